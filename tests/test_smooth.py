"""Smooth ECE against a sum over mirror images, the authors' package, and what is known of it."""

import numpy as np
import pytest
import relplot

from toolkit.evaluation import smooth
from toolkit.evaluation.smooth import resampled_smooth_ece, smooth_ece


def answered(n, seed, ends=True):
    """Random confidences, some close to 1, and whether each answer is right."""
    rng = np.random.default_rng(seed)
    confidence = rng.random(n) ** rng.choice([0.02, 0.3, 1.0])
    if not ends:
        confidence = 0.01 + 0.98 * confidence
    return confidence, rng.random(n) < confidence ** rng.choice([0.7, 1.0, 1.5])


def at_width(confidence, correct, width, points=20_000):
    """smECE at a width: each question's Gaussian and its mirror images, one after the other."""
    t = (np.arange(points) + 0.5) / points
    total = np.zeros(points)
    for f, right in zip(confidence, correct, strict=True):
        for image in [sign * f + 2 * shift for sign in (1, -1) for shift in range(-4, 5)]:
            if -9 * width < image < 1 + 9 * width:
                gauss = np.exp(-(((t - image) / width) ** 2) / 2) / np.sqrt(2 * np.pi) / width
                total += (right - f) * gauss
    return np.abs(total / len(confidence)).mean()


def naive(confidence, correct):
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if at_width(confidence, correct, middle) > middle else (low, middle)
    return high


def of_ours(confidence, correct, width):
    moments = smooth._moments(np.ones((1, len(confidence))), confidence, correct, 512)
    return smooth._smoothed(moments, np.array([width]))[0]


@pytest.mark.parametrize("seed", range(12))
def test_it_equals_a_sum_over_mirror_images(seed):
    confidence, correct = answered([1, 2, 5, 20][seed % 4], seed)
    found = smooth_ece(confidence, correct)
    if found >= 1 / 1024:
        assert found == pytest.approx(naive(confidence, correct), abs=1e-5)
    assert of_ours(confidence, correct, 0.3) == pytest.approx(at_width(confidence, correct, 0.3), abs=1e-5)


@pytest.mark.parametrize("seed", range(10))
def test_it_equals_the_authors_package_on_a_fine_mesh(seed, monkeypatch):
    monkeypatch.setattr(relplot.config, "smECE_mesh_pts", 20_000)
    confidence, correct = answered(200, seed, ends=False)
    for width in (0.01, 0.03, 0.1):
        theirs = relplot.smECE_sigma(confidence, correct.astype(float), width)
        assert of_ours(confidence, correct, width) == pytest.approx(theirs, abs=3e-4)
    found = smooth_ece(confidence, correct)
    assert found < 0.15  # beyond, their Gaussian is cut off noticeably
    assert found == pytest.approx(relplot.smECE(confidence, correct.astype(float)), abs=1 / 1024 + 3e-4)


@pytest.mark.parametrize("seed", range(10))
def test_it_is_near_the_authors_package_as_it_is(seed):
    confidence, correct = answered(1000, seed)
    assert smooth_ece(confidence, correct) == pytest.approx(
        relplot.smECE(confidence, correct.astype(float)), abs=0.02
    )


def test_a_confidence_of_one_counts_as_much_as_another():
    # The authors' package gives it half the weight: (.5 + .5)/1.5 and not (.5 + 1)/2.
    confidence, correct = np.array([0.5, 1.0]), np.array([True, False])
    assert of_ours(confidence, correct, 0.02) == pytest.approx((0.5 + 1) / 2, abs=1e-6)
    assert relplot.smECE_sigma(confidence, correct.astype(float), 0.02) == pytest.approx(2 / 3, abs=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_it_falls_with_the_width_and_the_crossing_is_found(seed):
    confidence, correct = answered(100, seed)
    widths = np.geomspace(1 / 256, 1, 30)
    values = [of_ours(confidence, correct, width) for width in widths]
    assert np.diff(values).max() < 1e-5
    found = smooth_ece(confidence, correct)
    assert of_ours(confidence, correct, found) == pytest.approx(found, abs=1e-5)
    assert abs(np.mean(correct - confidence)) - 1e-6 <= found <= np.abs(correct - confidence).mean()


@pytest.mark.parametrize("gap", [0.5, 0.1, 0.015, 0.003, 0.0005])
def test_equal_gaps_are_the_value_at_any_width(gap):
    confidence = np.linspace(0.6, 1, 30) - gap
    below = smooth_ece(confidence, np.ones(30, bool))
    assert below == pytest.approx(np.mean(1 - confidence), abs=1e-6)
    assert smooth_ece(np.full(7, 1 - gap), np.ones(7, bool)) == pytest.approx(gap, abs=1e-6)


def test_resamples_equal_their_questions_at_every_resolution(monkeypatch):
    rng = np.random.default_rng(1)
    confidence = np.concatenate([rng.random(20), 1 - 0.003 * rng.random(20)])
    correct = rng.random(40) < confidence
    drawn = np.concatenate([rng.integers(40, size=(10, 30)), rng.integers(20, 40, size=(10, 30))])
    counts = np.array([np.bincount(row, minlength=40) for row in drawn]).astype(float)
    alone = [smooth_ece(confidence[row], correct[row]) for row in drawn]
    assert min(alone) < 1 / 256 < 1 / 64 < max(alone)
    assert resampled_smooth_ece(counts, confidence, correct) == pytest.approx(alone, abs=1e-12)
    monkeypatch.setattr(smooth, "_ENTRIES", 900)
    assert resampled_smooth_ece(counts, confidence, correct) == pytest.approx(alone, abs=1e-12)
