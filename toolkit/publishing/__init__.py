"""Handing an adapter on: the model card."""
