"""Metrics of calibration, from the log-probabilities that a model gives to options.

N questions have up to K options. `log_probs` has shape (N, K), in nats, each row normalised over
the question's own options and -inf where it has fewer than K; `answers` has shape (N,), the index
of the right option. The answer a model gives is its most probable option (the first of equals), its
confidence that option's probability.

conf-ECE, cw-ECE and MCE have equal-width bins ((b - 1)/B, b/B] as in arXiv 1706.04599, the first one
also holding 0: a probability of 1 lies in the last bin, one on an edge in the bin below. scikit-learn's
`calibration_curve` does the same. torchmetrics and netcal close the bins at the left instead, and
torchmetrics keeps a bin for exactly 1; so they differ where a probability lies on an edge, and
nowhere else. An empty bin adds nothing to an ECE and is no candidate for MCE.

`ace` is ECE with equal-mass bins ("AdaECE" of arXiv 2002.09437): each of B bins holds N/B questions,
the b-th those of ranks (b - 1)N/B to bN/B by confidence. A question that straddles an edge is shared
between the bins, and equal confidences are one lump, each part of which has the lump's accuracy: the
order of the questions cannot matter, and B need not divide N. Where it does and all confidences
differ, netcal's `ECE(bins, equal_intervals=False)` is the same; netcal puts edges at quantiles
otherwise, and what it calls ACE is the unweighted mean over equal-width bins.

What ranks answers by confidence (`aurc`, `accuracy_at_50`, `accuracy_at_80`) is its expected value over
all orders of equal confidences. Accuracy at c % looks at the ⌈cN/100⌉ most confident answers. Smooth
ECE is in `smooth`.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score

from toolkit.errors import CalibrantError
from toolkit.evaluation.smooth import smooth_ece

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

METRICS = (
    "accuracy",
    "confidence",
    "conf_ece",
    "cw_ece",
    "nll",
    "brier",
    "entropy",
    "entropy_minus_nll",
    "auroc",
    "ace",
    "mce",
    "smooth_ece",
    "aurc",
    "accuracy_at_50",
    "accuracy_at_80",
)
"""Names of the metrics, in the order of every table."""


@dataclass(frozen=True)
class Bin:
    """One bin of a reliability table: the questions with low < confidence <= high.

    Attributes:
        low: Lower edge, a probability; the first bin also holds 0.
        high: Upper edge.
        count: Number of questions.
        confidence: Their mean confidence, NaN in an empty bin.
        accuracy: Share of them answered right, NaN in an empty bin.
        ci95: 95 % Wilson interval of the accuracy, NaN in an empty bin.
    """

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float
    ci95: tuple[float, float]


def metrics(log_probs: Floats, answers: Ints, bins: int = 10) -> dict[str, float]:
    """Computes every metric.

    Args:
        log_probs: Shape (N, K), nats.
        answers: Shape (N,).
        bins: Number of bins B of both ECEs, ACE and MCE.

    Returns:
        A number for each name in `METRICS`; `auroc` is NaN where all answers are right, or all
        wrong.

    Raises:
        CalibrantError: The arrays are not predictions (`check_predictions`).
    """
    check_predictions(log_probs, answers)
    chosen, confidence = top_answers(log_probs)
    correct = chosen == answers
    return {
        "accuracy": float(correct.mean()),
        "confidence": float(confidence.mean()),
        "conf_ece": ece(confidence, correct, bins),
        "cw_ece": cw_ece(log_probs, answers, bins),
        "nll": nll(log_probs, answers),
        "brier": brier(log_probs, answers),
        "entropy": entropy(log_probs),
        "entropy_minus_nll": entropy_minus_nll(log_probs, answers),
        "auroc": auroc(confidence, correct),
        "ace": ace(confidence, correct, bins),
        "mce": mce(confidence, correct, bins),
        "smooth_ece": smooth_ece(confidence, correct),
        "aurc": aurc(confidence, correct),
        "accuracy_at_50": accuracy_at(confidence, correct, 50),
        "accuracy_at_80": accuracy_at(confidence, correct, 80),
    }


def check_predictions(log_probs: Floats, answers: Ints) -> None:
    """Makes sure that metrics of these arrays mean something.

    Args:
        log_probs: Shape (N, K), nats.
        answers: Shape (N,).

    Raises:
        CalibrantError: There is no question; a probability is NaN, or a row does not add up to 1;
            an answer is not the index of an option, or its option has probability 0.
    """
    if len(log_probs) == 0:
        raise CalibrantError("there is no question to evaluate; give a source that has some")
    outside = (answers < 0) | (answers >= log_probs.shape[1])
    bad = outside | (np.abs(np.exp(log_probs).sum(axis=1) - 1) > 1e-3) | np.isnan(log_probs).any(axis=1)
    bad |= np.isneginf(answer_log_probs(log_probs, np.where(outside, 0, answers)))
    if bad.any():
        first = int(bad.argmax())
        raise CalibrantError(
            f"{bad.sum()} of {len(bad)} predictions are no distribution over options with the "
            f"answer among them, the first for question {first + 1}: log-probabilities "
            f"{log_probs[first].tolist()}, answer {answers[first]}; if they are not finite, "
            "use the dtype float32"
        )


def top_answers(log_probs: Floats) -> tuple[Ints, Floats]:
    """Returns the index of each question's most probable option and its probability, (N,) each."""
    chosen = log_probs.argmax(axis=1)
    return chosen, np.exp(answer_log_probs(log_probs, chosen))


def answer_log_probs(log_probs: Floats, answers: Ints) -> Floats:
    """Returns the log-probability of one option of each question, shape (N,), in nats."""
    return np.take_along_axis(log_probs, answers[:, None], axis=1)[:, 0]


def bin_edges(bins: int) -> Floats:
    """Returns the edges 0, 1/B, ..., 1 of B equal-width bins, each the double nearest to it."""
    return np.arange(bins + 1) / bins


def bin_indices(probabilities: Floats, bins: int) -> Ints:
    """Returns the index of the bin ((b - 1)/B, b/B] of each probability; 0 is in the first."""
    return np.searchsorted(bin_edges(bins)[1:-1], probabilities, side="left")


def ece(probabilities: Floats, events: Bools, bins: int = 10) -> float:
    """Expected calibration error of a probability (arXiv 1706.04599, eq. 3).

    Args:
        probabilities: What was said, shape (N,); for conf-ECE the confidence.
        events: What came true, shape (N,); for conf-ECE whether the answer is right.
        bins: Number of equal-width bins B.

    Returns:
        A probability.
    """
    index = bin_indices(probabilities, bins)
    # Σ_b (n_b/N) |acc_b - conf_b| = Σ_b |Σ_{i in b} (event_i - p_i)| / N
    gaps = np.bincount(index, weights=events - probabilities, minlength=bins)
    return float(np.abs(gaps).sum() / len(probabilities))


def cw_ece(log_probs: Floats, answers: Ints, bins: int = 10) -> float:
    """Class-wise ECE: the mean over classes of each one's ECE against the rest (arXiv 1910.12656).

    A class is a place among the options. A question that has no option in that place is left out of
    the class's ECE; every class counts the same, however few questions have it.

    Args:
        log_probs: Shape (N, K), nats.
        answers: Shape (N,).
        bins: Number of equal-width bins B.

    Returns:
        A probability.
    """
    errors = []
    for k in range(log_probs.shape[1]):
        has = log_probs[:, k] > -np.inf
        if has.any():
            errors.append(ece(np.exp(log_probs[has, k]), answers[has] == k, bins))
    return float(np.mean(errors))


def mce(confidence: Floats, correct: Bools, bins: int = 10) -> float:
    """Maximum calibration error (arXiv 1706.04599, eq. 5): the largest |acc_b - conf_b| of a non-empty bin.

    Args:
        confidence: Shape (N,).
        correct: Whether the answer is right, shape (N,).
        bins: Number of equal-width bins B.

    Returns:
        A probability.
    """
    index = bin_indices(confidence, bins)
    gaps = np.bincount(index, weights=correct - confidence, minlength=bins)
    return float((np.abs(gaps) / np.maximum(np.bincount(index, minlength=bins), 1)).max())


def ace(confidence: Floats, correct: Bools, bins: int = 10) -> float:
    """Adaptive calibration error of the given answers: ECE with equal-mass bins (arXiv 2002.09437).

    Args:
        confidence: Shape (N,).
        correct: Whether the answer is right, shape (N,).
        bins: Number of bins B, of N/B questions each; the top of this file says how ties are shared.

    Returns:
        A probability.
    """
    ends, sums = _from_the_top(confidence, correct - confidence)
    edges = len(confidence) * np.arange(bins + 1) / bins
    return float(np.abs(np.diff(np.interp(edges, ends, sums))).sum() / len(confidence))


def _from_the_top(confidence: Floats, values: Floats | Bools) -> tuple[Floats, Floats]:
    """Returns (0, n_1, n_1 + n_2, ...) and the sums of the values of so many most confident questions.

    n_g is the number of questions of the g-th highest confidence. In between, the expected sum over
    all orders of equal confidences is linear: shape (G + 1,) each.
    """
    distinct, group, counts = np.unique(-confidence, return_inverse=True, return_counts=True)
    sums = np.bincount(group, weights=values, minlength=len(distinct))
    return np.append(0.0, np.cumsum(counts)), np.append(0.0, np.cumsum(sums))


def nll(log_probs: Floats, answers: Ints) -> float:
    """Mean negative log-likelihood of the right option, in nats."""
    return float(-answer_log_probs(log_probs, answers).mean())


def question_brier(log_probs: Floats, answers: Ints) -> Floats:
    """Brier score of each question, shape (N,): Σ_k (p_k - [k = answer])², from 0 to 2."""
    onehot = np.arange(log_probs.shape[1]) == answers[:, None]
    return ((np.exp(log_probs) - onehot) ** 2).sum(axis=1)


def brier(log_probs: Floats, answers: Ints) -> float:
    """Mean multi-class Brier score, the squared error summed over all options (Brier 1950).

    Between 0 and 2. With two options it is twice the binary score (p_1 - [answer = 1])², which
    looks at one of them only.
    """
    return float(question_brier(log_probs, answers).mean())


def question_entropy(log_probs: Floats) -> Floats:
    """Predictive entropy of each question, (N,), in nats: -Σ_k p_k log p_k with 0 log 0 = 0."""
    return entr(np.exp(log_probs)).sum(axis=1)


def entropy(log_probs: Floats) -> float:
    """Mean predictive entropy H̄, in nats."""
    return float(question_entropy(log_probs).mean())


def entropy_minus_nll(log_probs: Floats, answers: Ints) -> float:
    """H̄ - NLL, in nats: below 0 for a model surer than it is right, above 0 for one less sure.

    It is 0 at the temperature that minimises NLL, where d NLL/dT = 0 (arXiv 1706.04599).
    """
    return entropy(log_probs) - nll(log_probs, answers)


def auroc(confidence: Floats, correct: Bools) -> float:
    """Probability that a right answer has more confidence than a wrong one, a tie counting half.

    Args:
        confidence: Shape (N,).
        correct: Whether the answer is right, shape (N,).

    Returns:
        A probability, or NaN where all answers are right, or all wrong.
    """
    if correct.all() or not correct.any():
        return float("nan")
    return float(roc_auc_score(correct, confidence))


def risk_coverage(confidence: Floats, correct: Bools) -> tuple[Floats, Floats]:
    """Returns how many of the most confident answers are wrong, for every number of them (arXiv 1705.08500).

    Args:
        confidence: Shape (N,).
        correct: Whether the answer is right, shape (N,).

    Returns:
        The coverages 1/N, 2/N, ..., 1, and the risk at each, the error rate among the k most
        confident answers, expected over all orders of equal confidences; shape (N,) each.
    """
    count = np.arange(1, len(confidence) + 1)
    wrong = np.interp(count, *_from_the_top(confidence, ~correct))
    return count / len(confidence), wrong / count


def aurc(confidence: Floats, correct: Bools) -> float:
    """Area under the risk-coverage curve: the mean of its N risks (arXiv 1805.08206); below is better."""
    return float(risk_coverage(confidence, correct)[1].mean())


def accuracy_at(confidence: Floats, correct: Bools, percent: int) -> float:
    """Accuracy among the most confident answers, expected over all orders of equal confidences.

    Args:
        confidence: Shape (N,).
        correct: Whether the answer is right, shape (N,).
        percent: Coverage; answers looked at are ⌈percent · N / 100⌉.

    Returns:
        A probability.
    """
    return 1 - float(risk_coverage(confidence, correct)[1][covered(len(confidence), percent) - 1])


def covered(count: int, percent: int) -> int:
    """Returns the least number of questions that makes up the percentage of all of them."""
    return -(-count * percent // 100)


def reliability(confidence: Floats, correct: Bools, bins: int = 10) -> list[Bin]:
    """Tabulates accuracy by confidence.

    Args:
        confidence: Shape (N,).
        correct: Whether the answer is right, shape (N,).
        bins: Number of equal-width bins B.

    Returns:
        All B bins in order, empty ones included.
    """
    edges = bin_edges(bins).tolist()
    index = bin_indices(confidence, bins)
    return [
        _bin(low, high, confidence[index == b], correct[index == b])
        for b, (low, high) in enumerate(pairwise(edges))
    ]


def _bin(low: float, high: float, confidence: Floats, correct: Bools) -> Bin:
    count = len(correct)
    if count == 0:
        nan = float("nan")
        return Bin(low, high, 0, nan, nan, (nan, nan))
    wilson = binomtest(int(correct.sum()), count).proportion_ci(0.95, method="wilson")
    ci95 = float(wilson.low), float(wilson.high)
    return Bin(low, high, count, float(confidence.mean()), float(correct.mean()), ci95)
