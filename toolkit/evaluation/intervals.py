"""Bootstrap intervals of all metrics at once, and of differences between methods, over questions."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from toolkit.evaluation.metrics import (
    METRICS,
    Bools,
    Floats,
    Ints,
    answer_log_probs,
    bin_indices,
    check_predictions,
    covered,
    question_brier,
    question_entropy,
    top_answers,
)
from toolkit.evaluation.smooth import resampled_smooth_ece

Interval = tuple[float, float]
"""Lower and upper end."""

_ENTRIES = 4_000_000  # of a block of counts; 32 MB as float64
_ROUNDING = 1e-12  # a difference that is no larger counts as none


def bootstrap(
    log_probs: Floats, answers: Ints, resamples: int = 1000, seed: int = 0, bins: int = 10
) -> dict[str, Interval | None]:
    """Computes 95 % percentile intervals over questions drawn with replacement (Efron 1979).

    Equal N and seed give equal draws, so two models on the same questions are resampled alike. The
    error of calibration that a resample has (either ECE, ACE, MCE, smooth ECE) is larger than the
    sample's on average: for a well-calibrated model both ends may lie above the value.

    Args:
        log_probs: Shape (N, K), nats, as in `metrics`.
        answers: Shape (N,).
        resamples: Number of resamples R.
        seed: Seed of the draws.
        bins: Number of bins of both ECEs, ACE and MCE.

    Returns:
        An interval for each name in `METRICS`, or None where no resample has a finite value.
        Resamples without one (`auroc` where all answers are right) are left out.

    Raises:
        CalibrantError: The arrays are not predictions.
    """
    check_predictions(log_probs, answers)
    blocks = [
        resampled_metrics(log_probs, answers, counts, bins) for counts in draws(len(answers), resamples, seed)
    ]
    return {name: percentiles(np.concatenate([b[name] for b in blocks])) for name in METRICS}


def resampled_metrics(
    log_probs: Floats, answers: Ints, counts: Ints, bins: int = 10, names: Sequence[str] = METRICS
) -> dict[str, Floats]:
    """Computes metrics of R resamples together.

    Each is that of `metrics` on a data set that holds question n `counts[r, n]` times; so a
    resample's own ranks and quantiles count.

    Args:
        log_probs: Shape (N, K), nats.
        answers: Shape (N,).
        counts: How often each resample holds each question, shape (R, N).
        bins: Number of bins of both ECEs, ACE and MCE.
        names: The metrics to compute, of `METRICS`.

    Returns:
        An array of shape (R,) for each of the names.
    """
    weights = counts.astype(np.float64)
    size = weights.sum(axis=1)
    chosen, confidence = top_answers(log_probs)
    correct = chosen == answers
    ranked = _rank(weights, confidence, correct)

    def mean(values: Floats | Bools) -> Floats:
        return weights @ values / size

    table: dict[str, Callable[[], Floats]] = {
        "accuracy": lambda: mean(correct),
        "confidence": lambda: mean(confidence),
        "conf_ece": lambda: np.abs(_gaps(weights, confidence, correct, bins)).sum(axis=1) / size,
        "cw_ece": lambda: _cw_ece(weights, log_probs, answers, bins),
        "nll": lambda: mean(-answer_log_probs(log_probs, answers)),
        "brier": lambda: mean(question_brier(log_probs, answers)),
        "entropy": lambda: mean(question_entropy(log_probs)),
        "entropy_minus_nll": lambda: mean(question_entropy(log_probs) + answer_log_probs(log_probs, answers)),
        "auroc": lambda: _auroc(ranked),
        "ace": lambda: _ace(ranked, bins),
        "mce": lambda: _mce(weights, confidence, correct, bins),
        "smooth_ece": lambda: resampled_smooth_ece(weights, confidence, correct),
        "aurc": lambda: _aurc(ranked),
        "accuracy_at_50": lambda: _accuracy_at(ranked, 50),
        "accuracy_at_80": lambda: _accuracy_at(ranked, 80),
    }
    return {name: table[name]() for name in names}


def draws(n: int, resamples: int, seed: int | Sequence[int]) -> Iterator[Ints]:
    """Draws resamples of N questions, a block of resamples at a time.

    Args:
        n: Number of questions N.
        resamples: Number of resamples R.
        seed: Seed; equal N, R and seed give equal draws. Of several test sets each needs its own, such
            as [seed, place], for sets of equal size would be drawn alike otherwise.

    Yields:
        How often each question is drawn in N draws, blocks of shape (R', N).
    """
    generator = np.random.default_rng(seed)
    block = max(_ENTRIES // n, 1)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        drawn = generator.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n)


def _in_bins(probabilities: Floats, bins: int) -> Bools:
    """Returns which bin each probability lies in, shape (N, B)."""
    return bin_indices(probabilities, bins)[:, None] == np.arange(bins)


def _gaps(weights: Floats, probabilities: Floats, events: Bools, bins: int) -> Floats:
    """Returns Σ_{i in b} w_i (event_i - p_i), shape (R, B)."""
    return weights @ (_in_bins(probabilities, bins) * (events - probabilities)[:, None])


def _mce(weights: Floats, confidence: Floats, correct: Bools, bins: int) -> Floats:
    count = weights @ _in_bins(confidence, bins)
    return (np.abs(_gaps(weights, confidence, correct, bins)) / np.maximum(count, 1)).max(axis=1)


def _cw_ece(weights: Floats, log_probs: Floats, answers: Ints, bins: int) -> Floats:
    total = np.zeros(len(weights))
    classes = np.zeros(len(weights))
    for k in range(log_probs.shape[1]):
        has = log_probs[:, k] > -np.inf
        size = weights[:, has].sum(axis=1)
        gaps = _gaps(weights[:, has], np.exp(log_probs[has, k]), answers[has] == k, bins)
        total += np.abs(gaps).sum(axis=1) / np.maximum(size, 1)
        classes += size > 0  # a class that a resample lacks does not count there
    return total / classes


class _Ranked(NamedTuple):
    """G groups of equal confidence in R resamples, the most confident first; a group may be empty.

    Attributes:
        confidence: Shape (G,).
        right: Questions of each group that are answered right, shape (R, G).
        wrong: Those answered wrong, shape (R, G).
        ends: Questions of each group and all above it, shape (R, G).
    """

    confidence: Floats
    right: Floats
    wrong: Floats
    ends: Floats


def _rank(weights: Floats, confidence: Floats, correct: Bools) -> _Ranked:
    order = np.argsort(-confidence, kind="stable")
    distinct, starts = np.unique(-confidence[order], return_index=True)
    ordered = weights[:, order]
    right = np.add.reduceat(ordered * correct[order], starts, axis=1)
    wrong = np.add.reduceat(ordered * ~correct[order], starts, axis=1)
    return _Ranked(-distinct, right, wrong, np.cumsum(right + wrong, axis=1))


def _among_first(ranked: _Ranked, values: Floats, count: Floats) -> Floats:
    """Returns the sum of what the groups hold over so many of the most confident questions, shape (R, M).

    Args:
        ranked: Who stands where.
        values: What each group holds, shape (R, G); a group cut in two is shared by number.
        count: Questions to sum over, above 0, shape (R, M).
    """
    rows, groups = values.shape
    apart = np.arange(rows)[:, None] * (ranked.ends[:, -1].max() + 1)  # one sorted row out of R
    place = np.searchsorted((ranked.ends + apart).ravel(), count + apart) - groups * np.arange(rows)[:, None]
    place = np.minimum(place, groups - 1)

    def here(table: Floats) -> Floats:
        return np.take_along_axis(table, place, axis=1)

    beyond = (here(ranked.ends) - count) / np.maximum(here(ranked.right) + here(ranked.wrong), 1)
    return here(np.cumsum(values, axis=1)) - beyond * here(values)


def _auroc(ranked: _Ranked) -> Floats:
    """Returns the share of (right, wrong) pairs in order of confidence, ties half, shape (R,)."""
    above = np.cumsum(ranked.right, axis=1) - ranked.right / 2
    pairs = ranked.right.sum(axis=1) * ranked.wrong.sum(axis=1)
    ordered = (ranked.wrong * above).sum(axis=1)
    return np.divide(ordered, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)


def _ace(ranked: _Ranked, bins: int) -> Floats:
    residual = ranked.right - ranked.confidence * (ranked.right + ranked.wrong)
    size = ranked.ends[:, -1:]
    sums = _among_first(ranked, residual, size * np.arange(1, bins + 1) / bins)
    return np.abs(np.diff(sums, axis=1, prepend=0)).sum(axis=1) / size[:, 0]


def _aurc(ranked: _Ranked) -> Floats:
    """Returns the mean risk over all coverages, shape (R,).

    In a group of n after n_0 questions, w and w_0 of them wrong, the j-th risk is expected to be
    (w_0 + jw/n)/(n_0 + j); these add up to w + (w_0 - n_0 w/n) Σ_{n_0 < k <= n_0 + n} 1/k.
    """
    ends = ranked.ends.astype(np.int64)
    size = ranked.right + ranked.wrong
    before = ends - size.astype(np.int64)
    harmonic = np.append(0.0, np.cumsum(1 / np.arange(1, ends[:, -1].max() + 1)))
    rate = ranked.wrong / np.maximum(size, 1)
    extra = np.cumsum(ranked.wrong, axis=1) - ranked.wrong - before * rate
    risks = ranked.wrong + extra * (harmonic[ends] - harmonic[before])
    return risks.sum(axis=1) / ranked.ends[:, -1]


def _accuracy_at(ranked: _Ranked, percent: int) -> Floats:
    count = np.array([[covered(int(size), percent)] for size in ranked.ends[:, -1]], dtype=np.float64)
    return (_among_first(ranked, ranked.right, count) / count)[:, 0]


def percentiles(values: Floats) -> Interval | None:
    """Returns the 2.5th and 97.5th percentile of the finite values, or None where there is none."""
    finite = values[np.isfinite(values)]
    if len(finite) == 0:
        return None
    low, high = np.percentile(finite, [2.5, 97.5])
    return float(low), float(high)
