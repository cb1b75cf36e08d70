"""Handing an adapter on: the model card and the Hub."""
