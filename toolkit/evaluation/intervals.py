"""Bootstrap intervals of all metrics at once, over questions."""

from collections.abc import Iterator

import numpy as np

from toolkit.evaluation.metrics import (
    METRICS,
    Bools,
    Floats,
    Ints,
    answer_log_probs,
    bin_indices,
    check_predictions,
    question_brier,
    question_entropy,
    top_answers,
)

Interval = tuple[float, float]
"""Lower and upper end."""

_ENTRIES = 4_000_000  # of a block of counts; 32 MB as float64


def bootstrap(
    log_probs: Floats, answers: Ints, resamples: int = 1000, seed: int = 0, bins: int = 10
) -> dict[str, Interval | None]:
    """Computes 95 % percentile intervals over questions drawn with replacement (Efron 1979).

    Equal N and seed give equal draws, so two models on the same questions are resampled alike. A
    resample's ECE is larger than the sample's on average: for a well-calibrated model both ends may
    lie above the value.

    Args:
        log_probs: Shape (N, K), nats, as in `metrics`.
        answers: Shape (N,).
        resamples: Number of resamples R.
        seed: Seed of the draws.
        bins: Number of equal-width bins of both ECEs.

    Returns:
        An interval for each name in `METRICS`, or None where no resample has a finite value.
        Resamples without one (`auroc` where all answers are right) are left out.

    Raises:
        CalibrantError: The arrays are not predictions.
    """
    check_predictions(log_probs, answers)
    blocks = [
        resampled_metrics(log_probs, answers, counts, bins)
        for counts in _draws(len(answers), resamples, seed)
    ]
    return {name: _percentiles(np.concatenate([b[name] for b in blocks])) for name in METRICS}


def resampled_metrics(log_probs: Floats, answers: Ints, counts: Ints, bins: int = 10) -> dict[str, Floats]:
    """Computes the metrics of R resamples together.

    Each is that of `metrics` on a data set that holds question n `counts[r, n]` times.

    Args:
        log_probs: Shape (N, K), nats.
        answers: Shape (N,).
        counts: How often each resample holds each question, shape (R, N).
        bins: Number of equal-width bins of both ECEs.

    Returns:
        An array of shape (R,) for each name in `METRICS`.
    """
    weights = counts.astype(np.float64)
    size = weights.sum(axis=1)
    chosen, confidence = top_answers(log_probs)
    correct = chosen == answers
    question_values = {
        "accuracy": correct,
        "confidence": confidence,
        "nll": -answer_log_probs(log_probs, answers),
        "brier": question_brier(log_probs, answers),
        "entropy": question_entropy(log_probs),
    }
    means = {name: weights @ values / size for name, values in question_values.items()}
    return means | {
        "entropy_minus_nll": means["entropy"] - means["nll"],
        "conf_ece": _gaps(weights, confidence, correct, bins) / size,
        "cw_ece": _cw_ece(weights, log_probs, answers, bins),
        "auroc": _auroc(weights, confidence, correct),
    }


def _draws(n: int, resamples: int, seed: int) -> Iterator[Ints]:
    """Yields blocks (R', N) of how often each of N questions is drawn in N draws."""
    generator = np.random.default_rng(seed)
    block = max(_ENTRIES // n, 1)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        drawn = generator.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n)


def _gaps(weights: Floats, probabilities: Floats, events: Bools, bins: int) -> Floats:
    """Returns Σ_b |Σ_{i in b} w_i (event_i - p_i)|, the ECE times its questions, shape (R,)."""
    in_bin = bin_indices(probabilities, bins)[:, None] == np.arange(bins)  # (N, B)
    return np.abs(weights @ (in_bin * (events - probabilities)[:, None])).sum(axis=1)


def _cw_ece(weights: Floats, log_probs: Floats, answers: Ints, bins: int) -> Floats:
    total = np.zeros(len(weights))
    classes = np.zeros(len(weights))
    for k in range(log_probs.shape[1]):
        has = log_probs[:, k] > -np.inf
        size = weights[:, has].sum(axis=1)
        gaps = _gaps(weights[:, has], np.exp(log_probs[has, k]), answers[has] == k, bins)
        total += gaps / np.maximum(size, 1)
        classes += size > 0  # a class that a resample lacks does not count there
    return total / classes


def _auroc(weights: Floats, confidence: Floats, correct: Bools) -> Floats:
    """Returns the share of (right, wrong) pairs in order of confidence, ties half, shape (R,)."""
    order = np.argsort(confidence, kind="stable")
    starts = np.unique(confidence[order], return_index=True)[1]  # of the G groups of equal confidence
    right = np.add.reduceat(weights[:, order] * correct[order], starts, axis=1)  # (R, G)
    wrong = np.add.reduceat(weights[:, order] * ~correct[order], starts, axis=1)
    below = np.cumsum(wrong, axis=1) - wrong / 2
    pairs = right.sum(axis=1) * wrong.sum(axis=1)
    ordered = (right * below).sum(axis=1)
    return np.divide(ordered, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)


def _percentiles(values: Floats) -> Interval | None:
    finite = values[np.isfinite(values)]
    if len(finite) == 0:
        return None
    low, high = np.percentile(finite, [2.5, 97.5])
    return float(low), float(high)
