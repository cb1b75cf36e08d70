"""Confidence calibration for preference-aligned language models, as importable parts."""

import logging

logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # its import warns of a kernel it can do without
