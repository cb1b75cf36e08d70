"""The metrics against torchmetrics, scikit-learn, scipy and naive loops."""

import math

import numpy as np
import pytest
import torch
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
    }


def naive_ece(pairs, bins):
    total = 0.0
    for b in range(bins):
        inside = [
            (p, e) for p, e in pairs if (b == 0 or p > b / bins) and (p <= (b + 1) / bins or b == bins - 1)
        ]
        if inside:
            confidence, accuracy = np.mean(inside, axis=0)
            total += len(inside) / len(pairs) * abs(accuracy - confidence)
    return total


@pytest.mark.parametrize("seed", range(30))
def test_metrics_equal_naive_loops(seed):
    rng = np.random.default_rng(1000 + seed)
    n, k, bins = int(rng.integers(1, 40)), int(rng.integers(2, 7)), int(rng.integers(1, 21))
    log_probs, answers = predictions(n, k, seed, fewer=seed % 2 == 1, peak=rng.choice([0.0, 1.0, 8.0]))
    found, expected = m.metrics(log_probs, answers, bins), naive(log_probs, answers, bins)
    assert tuple(found) == m.METRICS
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
    assert found["cw_ece"] == pytest.approx(np.mean(one_against_rest), abs=1e-6)
    assert found["accuracy"] == pytest.approx(multiclass_accuracy(probs, target, 4, average="micro").item())


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


def test_one_certain_right_answer():
    found = m.metrics(np.array([[0.0, -np.inf]]), np.array([0]))
    assert math.isnan(found.pop("auroc"))
    assert found.pop("accuracy") == found.pop("confidence") == 1
    assert set(found.values()) == {0.0}


def test_all_wrong_and_sure():
    log_probs = np.log(np.array([[0.8, 0.2], [0.8, 0.2]]))
    found = m.metrics(log_probs, np.array([1, 1]))
    assert found["conf_ece"] == pytest.approx(0.8)
    assert found["cw_ece"] == pytest.approx(0.8)
    assert math.isnan(found["auroc"])


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
