"""Calibration of any confidence against right and wrong: sampled, stated, P(True), of tokens, ...

N questions have one answer each. `confidence` has shape (N,), probabilities, NaN where there is none, such as
a stated one that cannot be read. `correct` has shape (N,): whether the answer is right. Bins, ties and ranks
are those of `toolkit.evaluation.metrics`. A question without a confidence counts in `missing` and `accuracy`,
and in nothing else: two kinds of confidence compare only with their `missing` beside them.

    missing      share of the questions without a confidence
    accuracy     of all questions
    accuracy_with_confidence, confidence, conf_ece, ace, smooth_ece, auroc, aurc
                 of those with a confidence, as in `metrics`
    brier        mean (p - [right])², from 0 to 1: half the Brier score of two options in `metrics`
    nll          mean -log p of a right answer, -log(1 - p) of a wrong one, in nats, where p is cut to
                 [CLIP, 1 - CLIP]: a wrong answer of confidence 1 would make it infinite otherwise, and shares
                 of samples and stated percentages often are just 1
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from toolkit.errors import CalibrantError
from toolkit.evaluation.intervals import _ace, _aurc, _auroc, _gaps, _rank, draws, percentiles
from toolkit.evaluation.metrics import Bools, Floats, Ints, reliability
from toolkit.evaluation.report import strict
from toolkit.evaluation.smooth import resampled_smooth_ece

BINARY_METRICS = (
    "missing",
    "accuracy",
    "accuracy_with_confidence",
    "confidence",
    "conf_ece",
    "ace",
    "smooth_ece",
    "brier",
    "auroc",
    "nll",
    "aurc",
)
"""Names of the metrics, in the order of every table."""

CLIP = 0.005
"""Least and, from 1, greatest probability in `nll`: half a step of a confidence in whole percent."""

Judged = tuple[Floats, Bools]
"""Confidence and whether the answer is right, shape (N,) each."""


def confidence_block(
    confidence: Floats, correct: Bools, *, bins: int = 10, resamples: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """Measures one kind of confidence on one test set.

    Args:
        confidence: Shape (N,), NaN for missing.
        correct: Shape (N,).
        bins: Number of bins of `conf_ece`, `ace` and `reliability`.
        resamples: Number of bootstrap resamples of the questions.
        seed: Seed of the bootstrap; equal N and seed give equal draws.

    Returns:
        What an entry of a report's `results` may hold: `count` (N), `binning`, `nll_clip`, for each of
        `BINARY_METRICS` its {"value", "ci95"}, and `reliability` of the questions with a confidence. A number
        that does not exist is None. For `ci95` of errors of calibration see `intervals.bootstrap`.

    Raises:
        CalibrantError: There is no question, the arrays differ in length, or a confidence is no probability.
    """
    values = binary_metrics(confidence, correct, bins)
    blocks = [
        resampled_binary_metrics(confidence, correct, counts, bins)
        for counts in draws(len(correct), resamples, seed)
    ]
    given = ~np.isnan(confidence)
    block = {
        "count": len(correct),
        "binning": {"scheme": "equal-width", "bins": bins, "closed": "right"},
        "nll_clip": CLIP,
        **{
            name: {"value": values[name], "ci95": percentiles(np.concatenate([b[name] for b in blocks]))}
            for name in BINARY_METRICS
        },
        "reliability": [asdict(b) for b in reliability(confidence[given], correct[given], bins)],
    }
    return dict(strict(block))


def paired_difference(
    metric: str, a: Judged, b: Judged, *, bins: int = 10, resamples: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """Compares two models, or two kinds of confidence, on the same questions.

    Each resample of the questions is given to both, and each is measured where it has a confidence.

    Args:
        metric: One of `BINARY_METRICS`.
        a: Confidence and correctness.
        b: Those that are subtracted, of the same questions in the same order.
        bins: Number of bins of `conf_ece` and `ace`.
        resamples: Number of bootstrap resamples.
        seed: Seed of the bootstrap.

    Returns:
        {"value", "ci95"} of the metric of a less that of b, None where it does not exist.

    Raises:
        CalibrantError: As `confidence_block`, or a and b differ in length.
    """
    if len(a[1]) != len(b[1]):
        raise CalibrantError(
            f"{len(a[1])} answers cannot be paired with {len(b[1])}; give answers to the same questions"
        )
    value = binary_metrics(*a, bins)[metric] - binary_metrics(*b, bins)[metric]
    drawn = []
    for counts in draws(len(a[1]), resamples, seed):
        own, other = (resampled_binary_metrics(*one, counts, bins, [metric])[metric] for one in (a, b))
        drawn.append(own - other)
    return dict(strict({"value": value, "ci95": percentiles(np.concatenate(drawn))}))


def binary_metrics(confidence: Floats, correct: Bools, bins: int = 10) -> dict[str, float]:
    """Computes every metric.

    Args:
        confidence: Shape (N,), NaN for missing.
        correct: Shape (N,).
        bins: Number of bins of `conf_ece` and `ace`.

    Returns:
        A number for each of `BINARY_METRICS`, NaN where it does not exist: `auroc` where all answers are
        right, or all wrong, and all but `missing` and `accuracy` where no question has a confidence.

    Raises:
        CalibrantError: As `confidence_block`.
    """
    _check(confidence, correct)
    once = np.ones((1, len(correct)), dtype=np.int64)
    return {
        name: float(values[0])
        for name, values in resampled_binary_metrics(confidence, correct, once, bins).items()
    }


def resampled_binary_metrics(
    confidence: Floats,
    correct: Bools,
    counts: Ints,
    bins: int = 10,
    names: Sequence[str] = BINARY_METRICS,
) -> dict[str, Floats]:
    """Computes metrics of R resamples together.

    Args:
        confidence: Shape (N,), NaN for missing.
        correct: Shape (N,).
        counts: How often each resample holds each question, shape (R, N).
        bins: Number of bins of `conf_ece` and `ace`.
        names: The metrics to compute, of `BINARY_METRICS`.

    Returns:
        An array of shape (R,) for each of the names, NaN where a metric does not exist.
    """
    given = ~np.isnan(confidence)
    whole = counts.astype(np.float64)
    some = whole[:, given].any(axis=1)
    weights = whole[np.ix_(some, given)]  # of the resamples that have a confidence
    p, right = confidence[given], correct[given]
    cut = np.clip(p, CLIP, 1 - CLIP)
    size = weights.sum(axis=1)
    ranked = _rank(weights, p, right)

    def mean(values: Floats | Bools) -> Floats:
        return weights @ values / size

    of_given: dict[str, Callable[[], Floats]] = {
        "accuracy_with_confidence": lambda: mean(right),
        "confidence": lambda: mean(p),
        "conf_ece": lambda: np.abs(_gaps(weights, p, right, bins)).sum(axis=1) / size,
        "ace": lambda: _ace(ranked, bins),
        "smooth_ece": lambda: resampled_smooth_ece(weights, p, right),
        "brier": lambda: mean((p - right) ** 2),
        "auroc": lambda: _auroc(ranked),
        "nll": lambda: mean(-np.log(np.where(right, cut, 1 - cut))),
        "aurc": lambda: _aurc(ranked),
    }

    def spread(compute: Callable[[], Floats]) -> Floats:
        found = np.full(len(counts), np.nan)
        if some.any():
            found[some] = compute()
        return found

    of_all = {"missing": ~given, "accuracy": correct}
    return {
        name: whole @ of_all[name] / whole.sum(axis=1) if name in of_all else spread(of_given[name])
        for name in names
    }


def _check(confidence: Floats, correct: Bools) -> None:
    if len(correct) == 0:
        raise CalibrantError("there is no answer to evaluate; give a source that has some questions")
    if confidence.shape != correct.shape:
        raise CalibrantError(
            f"{len(confidence)} confidences cannot be paired with {len(correct)} answers; give one to each"
        )
    bad = (confidence < 0) | (confidence > 1 + 1e-6)  # a sum of probabilities may exceed 1 by rounding
    if bad.any():
        first = int(bad.argmax())
        raise CalibrantError(
            f"{bad.sum()} of {len(bad)} confidences are no probability, the first {confidence[first]} for "
            f"question {first + 1}; give numbers from 0 to 1, and NaN for what is missing"
        )
