"""Metrics of any confidence against other libraries, the plain metrics, and known values."""

import json
import math

import numpy as np
import pytest
import torch
from netcal.metrics import ECE
from scipy.stats import binom
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score
from torchmetrics.functional.classification import binary_calibration_error

from toolkit.errors import CalibrantError
from toolkit.evaluation import intervals
from toolkit.evaluation.binary import (
    BINARY_METRICS,
    CLIP,
    binary_metrics,
    confidence_block,
    paired_difference,
    resampled_binary_metrics,
)
from toolkit.evaluation.metrics import ace, aurc, auroc, ece, reliability
from toolkit.evaluation.smooth import smooth_ece

OF_GIVEN = [name for name in BINARY_METRICS if name not in ("missing", "accuracy")]


def judged(n, seed, missing=0.0, steps=None):
    """Random confidences, with `steps` shares of so many samples, and whether each answer is right."""
    rng = np.random.default_rng(seed)
    confidence = rng.random(n)
    if steps:
        confidence = np.round(confidence * steps) / steps
    correct = rng.random(n) < confidence**1.5
    confidence[rng.random(n) < missing] = np.nan
    return confidence, correct


def plain(confidence, correct, bins):
    """Every metric by the function that stands elsewhere, or a loop over questions."""
    pairs = [(p, right) for p, right in zip(confidence, correct, strict=True) if not math.isnan(p)]
    found = {
        "missing": 1 - len(pairs) / len(correct),
        "accuracy": sum(correct) / len(correct),
        **dict.fromkeys(OF_GIVEN, math.nan),
    }
    if not pairs:
        return found
    p, right = np.array([p for p, _ in pairs]), np.array([r for _, r in pairs])
    losses = [-math.log(min(max(q if r else 1 - q, CLIP), 1 - CLIP)) for q, r in pairs]
    return found | {
        "accuracy_with_confidence": right.mean(),
        "confidence": p.mean(),
        "conf_ece": ece(p, right, bins),
        "ace": ace(p, right, bins),
        "smooth_ece": smooth_ece(p, right),
        "brier": sum((q - r) ** 2 for q, r in pairs) / len(pairs),
        "auroc": auroc(p, right),
        "nll": sum(losses) / len(losses),
        "aurc": aurc(p, right),
    }


@pytest.mark.parametrize("seed", range(12))
def test_metrics_and_resamples_equal_the_plain_ones(seed):
    rng = np.random.default_rng(100 + seed)
    n, bins = int(rng.integers(1, 25)), int(rng.integers(1, 15))
    confidence, correct = judged(n, seed, missing=rng.choice([0.0, 0.3, 0.9]), steps=(5, 50, None)[seed % 3])
    expected = plain(confidence, correct, bins)
    found = binary_metrics(confidence, correct, bins)
    assert tuple(found) == BINARY_METRICS
    assert found == pytest.approx(expected, abs=1e-12, nan_ok=True)
    drawn = rng.integers(n, size=(15, n))
    counts = np.array([np.bincount(row, minlength=n) for row in drawn])
    together = resampled_binary_metrics(confidence, correct, counts, bins)
    for r, row in enumerate(drawn):
        alone = plain(confidence[row], correct[row], bins)
        own = {name: values[r] for name, values in together.items()}
        assert own == pytest.approx(alone, abs=1e-12, nan_ok=True)


def test_metrics_equal_other_libraries():
    confidence, correct = judged(600, seed=1, missing=0.2)
    given = ~np.isnan(confidence)
    p, right = confidence[given], correct[given]
    found = binary_metrics(confidence, correct, bins=12)
    theirs = binary_calibration_error(torch.tensor(p), torch.tensor(right).long(), n_bins=12, norm="l1")
    assert found["conf_ece"] == pytest.approx(theirs.item(), abs=1e-6)
    assert found["conf_ece"] == pytest.approx(ECE(12).measure(p, right.astype(int)))
    assert found["brier"] == pytest.approx(brier_score_loss(right, p))
    assert found["auroc"] == pytest.approx(roc_auc_score(right, p))
    assert found["nll"] == pytest.approx(log_loss(right, np.clip(p, CLIP, 1 - CLIP)))
    whole = p[: len(p) // 12 * 12], right[: len(p) // 12 * 12]
    adaptive = ECE(12, equal_intervals=False).measure(whole[0], whole[1].astype(int))
    assert binary_metrics(*whole, bins=12)["ace"] == pytest.approx(adaptive)


def test_what_is_missing_counts_as_such_and_in_the_accuracy_only():
    confidence, correct = judged(50, seed=2)
    more = np.append(confidence, [np.nan] * 50), np.append(correct, np.zeros(50, dtype=bool))
    found, without = binary_metrics(*more), binary_metrics(confidence, correct)
    assert found["missing"] == 0.5 and without["missing"] == 0
    assert found["accuracy"] == correct.mean() / 2
    assert {name: found[name] for name in OF_GIVEN} == pytest.approx({n: without[n] for n in OF_GIVEN})
    assert found["accuracy_with_confidence"] == correct.mean()


def test_sure_and_wrong_costs_a_finite_nll():
    sure = np.array([1.0, 0.0])
    assert binary_metrics(sure, np.array([False, True]))["nll"] == pytest.approx(-math.log(CLIP))
    assert binary_metrics(sure, np.array([True, False]))["nll"] == pytest.approx(-math.log(1 - CLIP))
    found = binary_metrics(sure, np.array([False, True]))
    assert [found[name] for name in ("conf_ece", "brier", "aurc")] == [1, 1, 0.75]


def test_a_block_is_strict_json_of_the_shape_of_a_result():
    confidence, correct = judged(40, seed=3, missing=0.1)
    block = confidence_block(confidence, correct, bins=5, resamples=50, seed=1)
    assert json.loads(json.dumps(block, allow_nan=False)) == block
    assert block["count"] == 40
    assert block["binning"] == {"scheme": "equal-width", "bins": 5, "closed": "right"}
    values = {name: block[name]["value"] for name in BINARY_METRICS}
    assert values == binary_metrics(confidence, correct, 5)
    given = ~np.isnan(confidence)
    table = reliability(confidence[given], correct[given], 5)
    assert [row["count"] for row in block["reliability"]] == [b.count for b in table]
    assert sum(row["count"] for row in block["reliability"]) == given.sum() < 40


def test_no_confidence_at_all_leaves_an_accuracy():
    block = confidence_block(np.full(20, np.nan), np.arange(20) < 5, resamples=50)
    assert block["missing"] == {"value": 1, "ci95": [1, 1]}
    assert block["accuracy"]["value"] == 0.25 and block["accuracy"]["ci95"]
    assert all(block[name] == {"value": None, "ci95": None} for name in OF_GIVEN)
    assert len(block["reliability"]) == 10 and all(row["count"] == 0 for row in block["reliability"])


def test_auroc_of_right_answers_alone_does_not_exist():
    block = confidence_block(np.array([0.2, 0.9, 0.7]), np.ones(3, dtype=bool), resamples=20)
    assert block["auroc"] == {"value": None, "ci95": None}
    assert block["accuracy"] == {"value": 1, "ci95": [1, 1]}


def test_interval_of_a_share_is_the_binomial_one():
    n = 400
    confidence = np.where(np.arange(n) < 100, np.nan, 0.7)
    block = confidence_block(confidence, np.arange(n) % 10 < 7, resamples=4000)
    for name, share in (("missing", 0.25), ("accuracy", 0.7)):
        assert block[name]["ci95"] == pytest.approx(binom(n, share).ppf([0.025, 0.975]) / n, abs=0.006)


def test_intervals_hold_the_value_and_hang_on_the_seed():
    confidence, correct = judged(300, seed=4, missing=0.1)
    block = confidence_block(confidence, correct, seed=5)
    for name in BINARY_METRICS:
        low, high = block[name]["ci95"]
        assert low < block[name]["value"] < high, name
    assert confidence_block(confidence, correct, seed=5) == block
    assert confidence_block(confidence, correct, seed=6) != block


def test_blocks_of_memory_do_not_change_the_draws(monkeypatch):
    one, other = judged(30, seed=5, missing=0.5), judged(30, seed=6, missing=0.5)

    def found():
        block = confidence_block(*one, resamples=40)
        difference = paired_difference("brier", one, other, resamples=40)
        return np.array([block[name]["ci95"] for name in BINARY_METRICS] + [difference["ci95"]])

    whole = found()
    monkeypatch.setattr(intervals, "_ENTRIES", 30 * 7)
    assert found() == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize("metric", BINARY_METRICS)
def test_a_difference_is_that_of_each_resample(metric):
    one, other = judged(40, seed=7, missing=0.2), judged(40, seed=8, missing=0.1)
    found = paired_difference(metric, one, other, bins=6, resamples=30, seed=2)
    counts = np.concatenate(list(intervals.draws(40, 30, 2)))
    differences = []
    for row in counts:
        held = np.repeat(np.arange(40), row)
        first, second = (plain(c[held], r[held], 6)[metric] for c, r in (one, other))
        differences.append(first - second)
    first, second = (plain(c, r, 6)[metric] for c, r in (one, other))
    assert found["value"] == pytest.approx(first - second)
    assert found["ci95"] == pytest.approx(np.percentile(differences, [2.5, 97.5]))


def test_pairing_narrows_the_interval_of_a_difference():
    confidence, correct = judged(500, seed=9)
    shifted = np.clip(confidence + 0.01, 0, 1), correct
    found = paired_difference("brier", shifted, (confidence, correct))
    low, high = confidence_block(confidence, correct)["brier"]["ci95"]
    assert found["ci95"][1] - found["ci95"][0] < (high - low) / 10
    assert paired_difference("brier", shifted, shifted) == {"value": 0, "ci95": [0, 0]}


@pytest.mark.parametrize(
    ("confidence", "correct"),
    [([], []), ([0.5], [True, False]), ([1.01], [True]), ([-0.1], [True]), ([np.nan, np.inf], [True, True])],
)
def test_what_is_no_confidence_is_refused_in_one_line(confidence, correct):
    with pytest.raises(CalibrantError) as caught:
        confidence_block(np.array(confidence), np.array(correct, dtype=bool))
    assert "; " in str(caught.value) and "\n" not in str(caught.value)


def test_answers_to_other_questions_are_not_paired():
    with pytest.raises(CalibrantError, match="same questions"):
        paired_difference("brier", judged(3, 0), judged(4, 0))
