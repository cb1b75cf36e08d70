"""Means, spread and paired differences of methods, against naive loops; and the tables of them."""

import math

import numpy as np
import pytest
from random_predictions import predictions

from toolkit.confidence.options import OptionConfidence
from toolkit.evaluation.compare import Asked, measure_method, method_table, places_of, set_table, summary
from toolkit.evaluation.intervals import draws
from toolkit.evaluation.metrics import metrics

TESTS = [Asked("home", True), Asked("near", False), Asked("far", False)]
SIZES = (40, 31, 52)


def answered(seeds: int, shift: float) -> list[list[OptionConfidence]]:
    """Answers to three test sets by several seeds of a method; the questions do not depend on the shift."""
    found = []
    for seed in range(seeds):
        sets = []
        for place, n in enumerate(SIZES):
            log_probs, answers = predictions(n, 4, seed=place, fewer=True)
            noise = np.random.default_rng([seed, place]).normal(size=log_probs.shape)
            scores = np.where(np.isfinite(log_probs), (1 + shift) * log_probs + 0.3 * noise, -np.inf)
            normalised = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
            sets.append(OptionConfidence(normalised, answers, np.ones(n)))
        found.append(sets)
    return found


@pytest.fixture(scope="module")
def methods():
    return {
        "none": measure_method(answered(1, 0.0), resamples=200),
        "calm": measure_method(answered(3, 1.5), resamples=200),
    }


def test_means_and_deviations_are_those_of_a_loop(methods):
    found = [[metrics(one.log_probs, one.answers) for one in sets] for sets in answered(3, 1.5)]
    for metric in ("conf_ece", "accuracy", "nll", "auroc"):
        by_seed = [np.mean([sets[i][metric] for i in (1, 2)]) for sets in found]
        assert methods["calm"].mean(metric, [1, 2]) == pytest.approx(np.mean(by_seed))
        assert methods["calm"].spread(metric, [1, 2]) == pytest.approx(np.std(by_seed, ddof=1))
    assert math.isnan(methods["none"].spread("nll", [0]))


def test_a_paired_difference_is_that_of_a_loop_over_resamples():
    """The same questions are drawn for both methods and all seeds; each test set is drawn by itself."""
    one, other = answered(2, 0.0), answered(3, 1.5)
    measured = [measure_method(found, resamples=16, seed=4) for found in (one, other)]
    for metric in ("conf_ece", "nll"):
        differences = []
        for r in range(16):
            sides = []
            for found in (one, other):
                means = []
                for place, n in enumerate(SIZES):
                    counts = draws_of(n, 16, 4, place)[r]
                    drawn = np.repeat(np.arange(n), counts)
                    means.append(
                        np.mean(
                            [
                                metrics(s[place].log_probs[drawn], s[place].answers[drawn])[metric]
                                for s in found
                            ]
                        )
                    )
                sides.append(np.mean(means))
            differences.append(sides[0] - sides[1])
        result = measured[0].difference(measured[1], metric, [0, 1, 2])
        assert result["ci95"] == pytest.approx(np.percentile(differences, [2.5, 97.5]), abs=1e-9)
        assert result["value"] == pytest.approx(
            measured[0].mean(metric, [0, 1, 2]) - measured[1].mean(metric, [0, 1, 2])
        )


def draws_of(n, resamples, seed, place):
    return np.concatenate(list(draws(n, resamples, [seed, place])))


def sure(n, right):
    """Answers with one confidence, the first `right` of n questions right."""
    answers = (np.arange(n) >= right).astype(int)
    return OptionConfidence(np.log(np.tile([0.7, 0.3], (n, 1))), answers, np.ones(n))


def accuracy_difference(one, other, sets=1):
    measured = [measure_method([[answers] * sets], resamples=4000) for answers in (one, other)]
    found = measured[0].difference(measured[1], "accuracy", range(sets))
    return found["value"], found["ci95"]


def test_a_paired_interval_is_narrower_than_that_of_independent_methods():
    value, ci95 = accuracy_difference(sure(400, 300), sure(400, 280))
    # They differ on 20 of 400 questions, all in favour of the first: a share of .05 with its variance.
    half = 1.96 * np.sqrt(0.05 * 0.95 / 400)
    assert value == pytest.approx(0.05)
    assert ci95 == pytest.approx((0.05 - half, 0.05 + half), abs=0.004)


def test_test_sets_of_equal_size_are_drawn_apart():
    widths = [np.ptp(accuracy_difference(sure(200, 120), sure(200, 100), sets)[1]) for sets in (1, 4)]
    assert widths[0] / widths[1] == pytest.approx(2, abs=0.25)


def test_what_does_not_exist_has_no_interval():
    measured = [measure_method([[sure(5, right)]], resamples=20) for right in (5, 3)]
    found = measured[0].difference(measured[1], "auroc", [0])
    assert math.isnan(found["value"]) and found["ci95"] is None


def test_a_method_does_not_differ_from_itself(methods):
    found = methods["calm"].difference(methods["calm"], "conf_ece", [0, 1, 2])
    assert found == {"value": 0.0, "ci95": (0.0, 0.0)}


def test_a_summary_has_every_set_and_every_mean(methods):
    found = summary(TESTS, methods, "calm")
    assert list(found["calm"]) == ["home", "near", "far", "mean in domain", "mean out of domain"]
    mean = found["none"]["mean out of domain"]["conf_ece"]
    assert mean["mean"] == pytest.approx(
        np.mean([found["none"][s]["conf_ece"]["mean"] for s in ("near", "far")])
    )
    assert mean["difference"]["value"] == pytest.approx(
        mean["mean"] - found["calm"]["mean out of domain"]["conf_ece"]["mean"]
    )
    assert len(found["calm"]["far"]["nll"]["seeds"]) == 3


def test_the_tables_show_means_over_seeds(methods):
    table = method_table(TESTS, methods, "calm", bins=10)
    header, rule, none, calm, _, note = table.splitlines()
    cells = [cell.strip() for cell in calm.strip("|").split("|")]
    assert len(header) == len(rule) == len(none) == len(calm)
    mean, spread = methods["calm"].mean("conf_ece", [1, 2]), methods["calm"].spread("conf_ece", [1, 2])
    assert cells[0] == "calm" and cells[5] == f"{mean:.3f} ± {spread:.3f}" and cells[-1] == ""
    assert "±" not in none and "3 seeds" in note and "10 equal-width bins" in note
    sets = set_table(TESTS, methods)
    assert f"({methods['none'].mean('accuracy', [2]):.3f})" in sets and "far" in sets
    many = {f"m{i}": methods["calm"] for i in range(5)}
    assert [line.split("|")[1].strip() for line in set_table(TESTS, many).splitlines()[3:8]] == list(many)


def test_places_leave_out_a_kind_that_has_no_test_set():
    assert places_of(TESTS) == {"in domain": [0], "out of domain": [1, 2]}
    assert places_of(TESTS[1:]) == {"out of domain": [0, 1]}
