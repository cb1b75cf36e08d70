"""The metrics against torchmetrics, netcal, scikit-learn, scipy and naive loops."""

import math
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from netcal.metrics import ECE, MCE
from random_predictions import predictions
from sklearn.calibration import calibration_curve
from torchmetrics.functional.classification import (
    binary_calibration_error,
    multiclass_accuracy,
    multiclass_calibration_error,
)

from toolkit.errors import CalibrantError
from toolkit.evaluation import metrics as m


def naive(log_probs, answers, bins):
    """Every metric, one question at a time."""
    n, k = log_probs.shape
    rows = [[math.exp(v) for v in row] for row in log_probs]
    chosen = [row.index(max(row)) for row in rows]
    right = [c == a for c, a in zip(chosen, answers, strict=True)]
    top = [max(row) for row in rows]
    entropy = sum(-p * math.log(p) for row in rows for p in row if p > 0) / n
    nll = sum(-math.log(row[a]) for row, a in zip(rows, answers, strict=True)) / n
    pairs = [
        (top[i] > top[j]) + 0.5 * (top[i] == top[j])
        for i in range(n)
        for j in range(n)
        if right[i] and not right[j]
    ]
    classes = [
        [(row[c], a == c) for row, a in zip(rows, answers, strict=True) if row[c] > 0] for c in range(k)
    ]
    return {
        "accuracy": sum(right) / n,
        "confidence": sum(top) / n,
        "conf_ece": naive_ece(list(zip(top, right, strict=True)), bins),
        "cw_ece": np.mean([naive_ece(pairs_of, bins) for pairs_of in classes if pairs_of]),
        "nll": nll,
        "brier": sum(
            (p - (a == c)) ** 2 for row, a in zip(rows, answers, strict=True) for c, p in enumerate(row)
        )
        / n,
        "entropy": entropy,
        "entropy_minus_nll": entropy - nll,
        "auroc": sum(pairs) / len(pairs) if pairs else math.nan,
        "ace": naive_ace(top, right, bins),
        "mce": max(abs(gap) for _, gap in naive_bins(list(zip(top, right, strict=True)), bins)),
        "aurc": np.mean([naive_risk(top, right, k) for k in range(1, n + 1)]),
        "accuracy_at_50": 1 - naive_risk(top, right, math.ceil(n * 50 / 100)),
        "accuracy_at_80": 1 - naive_risk(top, right, math.ceil(n * 80 / 100)),
    }


def naive_bins(pairs, bins):
    """Number of questions and accuracy - confidence of each bin that is not empty."""
    for b in range(bins):
        inside = [
            (p, e) for p, e in pairs if (b == 0 or p > b / bins) and (p <= (b + 1) / bins or b == bins - 1)
        ]
        if inside:
            confidence, accuracy = np.mean(inside, axis=0)
            yield len(inside), accuracy - confidence


def naive_ece(pairs, bins):
    return sum(count / len(pairs) * abs(gap) for count, gap in naive_bins(pairs, bins))


def first_and_last_rank(top, i):
    """Ranks from the top between which question i may stand, and how many share them."""
    above, equal = sum(t > top[i] for t in top), sum(t == top[i] for t in top)
    return above, above + equal, equal


def naive_ace(top, right, bins):
    n, total = len(top), 0.0
    for low, high in pairwise(b * n / bins for b in range(bins + 1)):
        gap = 0.0
        for i in range(n):
            start, end, equal = first_and_last_rank(top, i)
            gap += max(0.0, min(high, end) - max(low, start)) / equal * (right[i] - top[i])
        total += abs(gap) / n
    return total


def naive_risk(top, right, k):
    """Error rate among the k surest: each question counts with its chance to be one of them."""
    wrong = 0.0
    for i in range(len(top)):
        start, _, equal = first_and_last_rank(top, i)
        wrong += (not right[i]) * min(1.0, max(0.0, (k - start) / equal))
    return wrong / k


@pytest.mark.parametrize("seed", range(30))
def test_metrics_equal_naive_loops(seed):
    rng = np.random.default_rng(1000 + seed)
    n, k, bins = int(rng.integers(1, 40)), int(rng.integers(2, 7)), int(rng.integers(1, 21))
    log_probs, answers = predictions(n, k, seed, fewer=seed % 2 == 1, peak=rng.choice([0.0, 1.0, 8.0]))
    found, expected = m.metrics(log_probs, answers, bins), naive(log_probs, answers, bins)
    assert tuple(found) == m.METRICS
    assert 0 <= found.pop("smooth_ece") <= 1  # test_smooth.py
    assert found == pytest.approx(expected, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("bins", [5, 10, 15])
def test_metrics_equal_torchmetrics(bins):
    log_probs, answers = predictions(500, 4, seed=bins)
    probs, target = torch.tensor(np.exp(log_probs)), torch.tensor(answers)
    found = m.metrics(log_probs, answers, bins)
    ece = multiclass_calibration_error(probs, target, 4, n_bins=bins)
    one_against_rest = [
        binary_calibration_error(probs[:, k].contiguous(), (target == k).long(), n_bins=bins).item()
        for k in range(4)
    ]
    assert found["conf_ece"] == pytest.approx(ece.item(), abs=1e-6)
    mce = multiclass_calibration_error(probs, target, 4, n_bins=bins, norm="max")
    assert found["mce"] == pytest.approx(mce.item(), abs=1e-6)
    assert found["cw_ece"] == pytest.approx(np.mean(one_against_rest), abs=1e-6)
    assert found["accuracy"] == pytest.approx(multiclass_accuracy(probs, target, 4, average="micro").item())


@pytest.mark.parametrize("bins", [5, 10, 20])
def test_calibration_errors_equal_netcal(bins):
    log_probs, answers = predictions(500, 4, seed=bins)
    found = m.metrics(log_probs, answers, bins)
    assert found["conf_ece"] == pytest.approx(ECE(bins).measure(np.exp(log_probs), answers))
    assert found["mce"] == pytest.approx(MCE(bins).measure(np.exp(log_probs), answers))
    adaptive = ECE(bins, equal_intervals=False)
    assert found["ace"] == pytest.approx(adaptive.measure(np.exp(log_probs), answers))


def test_edges_are_where_torchmetrics_and_netcal_differ():
    confidence, correct = np.array([0.5, 0.5, 0.55, 0.45]), np.array([False, True, True, False])
    # (.4, .5] holds three and (.5, .6] one; closed at the left, [.4, .5) one and [.5, .6) three.
    assert m.mce(confidence, correct) == pytest.approx(0.45)
    assert m.ece(confidence, correct) == pytest.approx((0.45 + 0.45) / 4)
    closed_left = (0.45 + 0.45) / 4, 0.45
    theirs = torch.tensor(confidence), torch.tensor(correct).long()
    found = [binary_calibration_error(*theirs, n_bins=10, norm=norm).item() for norm in ("l1", "max")]
    assert found == pytest.approx(closed_left)
    assert ECE(10).measure(confidence, correct) == pytest.approx(closed_left[0])


def test_equal_mass_bins_share_a_question_on_an_edge():
    confidence, correct = np.array([0.9, 0.8, 0.6]), np.array([True, False, True])
    # Residuals .1, -.8, .4; each of two bins holds a question and a half.
    assert m.ace(confidence, correct, 2) == pytest.approx((abs(0.1 - 0.4) + abs(-0.4 + 0.4)) / 3)
    # netcal has an edge at the median, 0.8, which is in the upper bin.
    assert ECE(2, equal_intervals=False).measure(confidence, correct) == pytest.approx((0.7 + 0.4) / 3)


def test_equal_mass_bins_equal_scikit_learn():
    log_probs, answers = predictions(480, 4, seed=8)
    chosen, confidence = m.top_answers(log_probs)
    accuracy, mean = calibration_curve(chosen == answers, confidence, n_bins=8, strategy="quantile")
    assert m.ace(confidence, chosen == answers, 8) == pytest.approx(np.abs(accuracy - mean).mean())


def test_equal_confidences_are_one_lump_for_equal_mass_bins():
    confidence = np.full(10, 0.7)
    assert m.ace(confidence, np.arange(10) < 7) == pytest.approx(0)
    assert m.ace(confidence, np.arange(10) < 2) == pytest.approx(0.5)


def test_risk_is_its_mean_over_all_orders_of_equal_confidences():
    confidence = np.array([0.5, 0.9, 0.5, 0.7, 0.5, 0.7])
    correct = np.array([True, False, False, True, True, False])
    orders = [
        order
        for order in permutations(range(6))
        if all(confidence[i] >= confidence[j] for i, j in pairwise(order))
    ]
    risks = [np.cumsum(~correct[list(order)]) / np.arange(1, 7) for order in orders]
    coverage, risk = m.risk_coverage(confidence, correct)
    assert len(orders) == 12
    assert coverage == pytest.approx(np.arange(1, 7) / 6)
    assert risk == pytest.approx(np.mean(risks, axis=0))
    assert m.aurc(confidence, correct) == pytest.approx(np.mean(risks))
    assert m.accuracy_at(confidence, correct, 50) == pytest.approx(1 - np.mean(risks, axis=0)[2])


@pytest.mark.parametrize(
    ("count", "percent", "expected"),
    [(1, 50, 1), (2, 50, 1), (5, 50, 3), (3, 80, 3), (10, 80, 8), (35, 80, 28), (7, 100, 7)],
)
def test_coverage_is_rounded_up_to_whole_questions(count, percent, expected):
    assert m.covered(count, percent) == expected
    best = np.arange(count) < expected
    assert m.accuracy_at(np.linspace(1, 0.5, count), best, percent) == 1


@pytest.mark.parametrize("peak", [0.5, 4.0])
def test_order_of_questions_and_of_options_does_not_matter(peak):
    log_probs, answers = predictions(83, 4, seed=9, peak=peak)
    log_probs = np.concatenate([log_probs, log_probs[:40]])  # equal confidences, answered otherwise
    answers = np.concatenate([answers, (answers[:40] + 1) % 4])
    rng = np.random.default_rng(0)
    found, questions, options = m.metrics(log_probs, answers), rng.permutation(123), rng.permutation(4)
    assert m.metrics(log_probs[questions], answers[questions]) == pytest.approx(found, abs=1e-12)
    renamed = m.metrics(log_probs[:, options], np.argsort(options)[answers])
    assert renamed == pytest.approx(found, abs=1e-12)


def test_metrics_equal_scikit_learn_and_scipy():
    from scipy.stats import entropy
    from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, roc_auc_score

    log_probs, answers = predictions(300, 5, seed=3)
    probs = np.exp(log_probs)
    correct = probs.argmax(axis=1) == answers
    found = m.metrics(log_probs, answers)
    assert found["accuracy"] == pytest.approx(accuracy_score(answers, probs.argmax(axis=1)))
    assert found["nll"] == pytest.approx(log_loss(answers, probs))
    assert found["brier"] == pytest.approx(brier_score_loss(answers, probs, scale_by_half=False))
    assert found["entropy"] == pytest.approx(entropy(probs, axis=1).mean())
    assert found["auroc"] == pytest.approx(roc_auc_score(correct, probs.max(axis=1)))


def test_brier_of_two_options_is_twice_the_binary_one():
    from sklearn.metrics import brier_score_loss

    log_probs, answers = predictions(50, 2, seed=4)
    binary = brier_score_loss(answers, np.exp(log_probs[:, 1]))
    assert m.brier(log_probs, answers) == pytest.approx(2 * binary)


@pytest.mark.parametrize(("confidence", "bin_"), [(0, 0), (0.1, 0), (0.3, 2), (0.7, 6), (0.71, 7), (1, 9)])
def test_bins_are_closed_at_their_upper_edge(confidence, bin_):
    table = m.reliability(np.array([confidence], float), np.array([True]))
    assert [b.count for b in table] == [int(b == bin_) for b in range(10)]


def test_rounding_above_one_stays_in_the_last_bin():
    assert m.bin_indices(np.array([1 + 1e-15]), 10).tolist() == [9]


def test_reliability_equals_scikit_learn_even_on_edges():
    rng = np.random.default_rng(0)
    confidence = rng.integers(0, 41, size=400) / 40  # every fourth lies on an edge
    correct = rng.random(400) < confidence
    table = [b for b in m.reliability(confidence, correct, 8) if b.count]
    accuracy, mean_confidence = calibration_curve(correct, confidence, n_bins=8)
    assert [b.accuracy for b in table] == pytest.approx(accuracy.tolist())
    assert [b.confidence for b in table] == pytest.approx(mean_confidence.tolist())


def test_reliability_adds_up_to_the_ece_and_has_wilson_intervals():
    log_probs, answers = predictions(200, 4, seed=5)
    chosen, confidence = m.top_answers(log_probs)
    table = m.reliability(confidence, chosen == answers)
    assert sum(b.count for b in table) == 200
    full = [b for b in table if b.count]
    ece = sum(b.count * abs(b.accuracy - b.confidence) for b in full) / 200
    assert ece == pytest.approx(m.ece(confidence, chosen == answers))
    z = 1.959963984540054
    for b in full:
        middle = (b.accuracy + z**2 / (2 * b.count)) / (1 + z**2 / b.count)
        half = math.sqrt(b.accuracy * (1 - b.accuracy) / b.count + (z / (2 * b.count)) ** 2)
        half *= z / (1 + z**2 / b.count)
        assert b.ci95 == pytest.approx((middle - half, middle + half))
    assert all(math.isnan(b.accuracy) for b in table if not b.count)


ONE_WHERE_ALL_ARE_RIGHT = ("accuracy", "accuracy_at_50", "accuracy_at_80")


def test_one_certain_right_answer():
    found = m.metrics(np.array([[0.0, -np.inf]]), np.array([0]))
    assert math.isnan(found.pop("auroc"))
    assert {found.pop(name) for name in (*ONE_WHERE_ALL_ARE_RIGHT, "confidence")} == {1}
    assert set(found.values()) == {0.0}


def test_one_question():
    found = m.metrics(np.log([[0.8, 0.2]]), np.array([0]))
    assert [found[name] for name in ("ace", "mce", "conf_ece", "smooth_ece")] == pytest.approx([0.2] * 4)
    assert [found[name] for name in ("aurc", *ONE_WHERE_ALL_ARE_RIGHT)] == [0, 1, 1, 1]


def test_all_right_and_unsure():
    log_probs, _ = predictions(40, 4, seed=10, peak=0.3)
    found = m.metrics(log_probs, log_probs.argmax(axis=1))
    assert [found[name] for name in ("aurc", *ONE_WHERE_ALL_ARE_RIGHT)] == [0, 1, 1, 1]
    gap = 1 - found["confidence"]
    assert found["ace"] == pytest.approx(gap) and found["smooth_ece"] == pytest.approx(gap, abs=1e-6)
    assert found["mce"] > gap


def test_all_wrong_and_sure():
    log_probs = np.log(np.array([[0.8, 0.2], [0.8, 0.2]]))
    found = m.metrics(log_probs, np.array([1, 1]))
    errors = ("conf_ece", "cw_ece", "ace", "mce", "smooth_ece")
    assert [found[name] for name in errors] == pytest.approx([0.8] * 5)
    assert [found[name] for name in ("aurc", *ONE_WHERE_ALL_ARE_RIGHT)] == [1, 0, 0, 0]
    assert math.isnan(found["auroc"])


def test_as_sure_as_right():
    log_probs = np.log(np.repeat([[0.4, 0.6], [0.75, 0.25], [0.9, 0.1]], 20, axis=0))
    place = np.tile(np.arange(20), 3)
    answers = np.where(place < np.repeat([8, 15, 18], 20), 0, 1)  # 8, 15 and 18 of 20 are option 1
    found = m.metrics(log_probs, answers)
    for name in ("conf_ece", "cw_ece", "ace", "mce", "smooth_ece"):
        assert found[name] == pytest.approx(0, abs=1e-12), name


def test_class_that_a_question_lacks_leaves_it_out():
    log_probs = np.log(np.array([[0.5, 0.5, 1], [0.25, 0.25, 0.5]]))
    log_probs[0, 2] = -np.inf
    # Class 3 is judged on the second question alone: |1 - .5|, not half of it.
    by_class = [(0.5 + 0.25) / 2, (0.5 + 0.25) / 2, 0.5]
    assert m.cw_ece(log_probs, np.array([0, 2])) == pytest.approx(np.mean(by_class))


def test_ties_count_half_and_equal_options_choose_the_first():
    confidence = np.array([0.5, 0.5, 0.9])
    assert m.auroc(confidence, np.array([True, False, True])) == pytest.approx(0.75)
    assert m.top_answers(np.log(np.full((1, 4), 0.25)))[0].tolist() == [0]


def test_entropy_equals_nll_at_the_best_temperature():
    from scipy.optimize import minimize_scalar

    log_probs, _ = predictions(400, 4, seed=6)

    def scaled(temperature):
        scores = log_probs / temperature
        return scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)

    softer = np.exp(scaled(2.0)).cumsum(axis=1)
    answers = (np.random.default_rng(7).random((400, 1)) > softer[:, :-1]).sum(axis=1)
    best = minimize_scalar(lambda t: m.nll(scaled(t), answers), bounds=(0.5, 10), options={"xatol": 1e-8})
    assert best.x == pytest.approx(2, abs=0.6)
    assert m.entropy_minus_nll(scaled(best.x), answers) == pytest.approx(0, abs=1e-5)
    assert m.entropy_minus_nll(scaled(best.x / 2), answers) < -0.01


@pytest.mark.parametrize(
    ("log_probs", "answers"),
    [
        (np.zeros((0, 4)), []),
        (np.full((1, 2), np.nan), [0]),
        (np.full((1, 2), -np.inf), [0]),
        (np.log([[0.5, 0.4]]), [0]),
        (np.log([[0.5, 0.5]]), [2]),
        (np.log([[0.5, 0.5]]), [-1]),
        (np.array([[0.0, -np.inf]]), [1]),
    ],
    ids=[
        "none",
        "nan",
        "all-missing",
        "not-normalised",
        "answer-too-large",
        "negative",
        "no-such-option",
    ],
)
def test_what_is_no_prediction_is_refused_in_one_line(log_probs, answers):
    with pytest.raises(CalibrantError) as caught:
        m.metrics(log_probs, np.array(answers, dtype=int))
    assert "\n" not in str(caught.value) and "; " in str(caught.value)
