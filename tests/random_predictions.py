"""Random predictions for the tests of evaluation."""

import numpy as np


def predictions(n, k, seed, fewer=False, peak=2.0):
    """Random predictions; with `fewer`, some questions have fewer than k options."""
    rng = np.random.default_rng(seed)
    scores = peak * rng.normal(size=(n, k))
    options = rng.integers(2, k + 1, size=n) if fewer else np.full(n, k)
    scores[np.arange(k) >= options[:, None]] = -np.inf
    log_probs = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
    return log_probs, rng.integers(options)
