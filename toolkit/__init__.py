"""Confidence calibration for preference-aligned language models, as importable parts."""
