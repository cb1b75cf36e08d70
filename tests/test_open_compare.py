import numpy as np
import pytest

from toolkit.evaluation.binary import confidence_block
from toolkit.evaluation.compare import Asked
from toolkit.evaluation.open_compare import open_summary, open_table

TESTS = [Asked("near", True), Asked("far", False), Asked("farther", False)]


def entry(seed: int, missing: bool = False):
    draw = np.random.default_rng(seed)
    value = draw.random(40)
    block = confidence_block(np.full(40, np.nan) if missing else value, draw.random(40) < value, resamples=5)
    return {"confidence": {"sem2": block}}


def test_means_are_over_sets_and_then_over_seeds():
    seeds = [[entry(3 * seed + place) for place in range(3)] for seed in range(2)]
    found = open_summary(TESTS, {"calm": seeds})["calm"]["sem2"]
    ece = [[one["confidence"]["sem2"]["conf_ece"]["value"] for one in sets] for sets in seeds]
    far = [(sets[1] + sets[2]) / 2 for sets in ece]
    assert found["mean out of domain"]["conf_ece"] == {
        "seeds": pytest.approx(far),
        "mean": pytest.approx(sum(far) / 2),
        "sd": pytest.approx(abs(far[0] - far[1]) / 2**0.5),
    }
    assert found["near"]["conf_ece"]["seeds"] == pytest.approx([ece[0][0], ece[1][0]])
    table = open_table(TESTS, {"calm": {"sem2": found}})
    assert f"{sum(far) / 2:.3f} ± {abs(far[0] - far[1]) / 2**0.5:.3f}" in table


def test_a_confidence_that_is_nowhere_is_a_dash():
    summary = open_summary(TESTS, {"none": [[entry(0, True), entry(1, True), entry(2)]]})
    groups = summary["none"]["sem2"]
    assert np.isnan(groups["near"]["brier"]["mean"]) and groups["near"]["missing"]["mean"] == 1
    value = entry(2)["confidence"]["sem2"]["brier"]["value"]
    assert groups["mean out of domain"]["brier"]["mean"] == pytest.approx(value)  # of the set that has it
    row = open_table(TESTS, summary).splitlines()[2]
    assert row.split("|")[3].strip() == "–" and "±" not in row
