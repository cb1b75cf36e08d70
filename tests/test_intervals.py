"""Vectorised resamples against the plain metrics, and intervals against what is known of them."""

import time

import numpy as np
import pytest
from random_predictions import predictions

from toolkit.evaluation import intervals
from toolkit.evaluation.intervals import bootstrap, draws, resampled_metrics
from toolkit.evaluation.metrics import METRICS, metrics


@pytest.mark.parametrize("seed", range(8))
def test_each_resample_equals_the_metrics_of_its_questions(seed):
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(1, 25)), int(rng.integers(2, 6))
    log_probs, answers = predictions(n, k, seed, fewer=True)
    if seed % 2:  # ties, within and across the resamples' questions
        log_probs = np.repeat(log_probs[: (n + 1) // 2], 2, axis=0)[:n]
        answers = np.minimum(answers, (log_probs > -np.inf).sum(axis=1) - 1)
    drawn = rng.integers(n, size=(20, n))
    counts = np.array([np.bincount(row, minlength=n) for row in drawn])
    together = resampled_metrics(log_probs, answers, counts, bins=7)
    assert set(together) == set(METRICS)
    for r, row in enumerate(drawn):
        alone = metrics(log_probs[row], answers[row], bins=7)
        found = {name: values[r] for name, values in together.items()}
        assert found == pytest.approx(alone, abs=1e-12, nan_ok=True)


def test_interval_of_the_accuracy_is_the_binomial_one():
    from scipy.stats import binom

    n, right = 400, 280
    log_probs = np.log(np.tile([0.7, 0.3], (n, 1)))
    found = bootstrap(log_probs, (np.arange(n) >= right).astype(int), resamples=4000)
    expected = binom(n, right / n).ppf([0.025, 0.975]) / n
    assert found["accuracy"] == pytest.approx(expected, abs=0.004)


def test_blocks_do_not_change_the_draws(monkeypatch):
    log_probs, answers = predictions(50, 4, seed=1)
    whole = bootstrap(log_probs, answers, resamples=100, seed=5)
    monkeypatch.setattr(intervals, "_ENTRIES", 50 * 7)
    assert bootstrap(log_probs, answers, resamples=100, seed=5) == whole
    assert bootstrap(log_probs, answers, resamples=100, seed=6) != whole


def test_questions_are_drawn_evenly_and_n_at_a_time():
    counts = np.concatenate(list(draws(20, 3000, seed=0)))
    assert (counts.sum(axis=1) == 20).all()
    assert counts.mean(axis=0) == pytest.approx(np.ones(20), abs=0.08)
    assert counts.var() == pytest.approx(1 - 1 / 20, abs=0.03)


def test_intervals_hold_the_value():
    log_probs, answers = predictions(300, 4, seed=2)
    found, values = bootstrap(log_probs, answers), metrics(log_probs, answers)
    for name, interval in found.items():
        assert interval and interval[0] < values[name] < interval[1], name


def test_auroc_without_a_wrong_answer_has_no_interval():
    log_probs = np.log(np.array([[0.9, 0.1], [0.6, 0.4]]))
    found = bootstrap(log_probs, np.array([0, 0]), resamples=50)
    assert found["auroc"] is None
    assert found["accuracy"] == (1, 1)


def test_auroc_leaves_out_resamples_that_have_none():
    log_probs = np.log(np.array([[0.9, 0.1], [0.6, 0.4]]))
    assert bootstrap(log_probs, np.array([0, 1]), resamples=50)["auroc"] == (1, 1)


def test_a_thousand_resamples_of_a_thousand_questions_take_no_time():
    log_probs, answers = predictions(1000, 4, seed=3)
    start = time.process_time()
    bootstrap(log_probs, answers)
    assert time.process_time() - start < 3


def test_a_resample_of_some_metrics_is_that_of_all():
    log_probs, answers = predictions(30, 4, seed=4)
    counts = next(draws(30, 5, seed=0))
    whole = resampled_metrics(log_probs, answers, counts)
    some = resampled_metrics(log_probs, answers, counts, names=["aurc", "nll"])
    assert list(some) == ["aurc", "nll"]
    assert all((some[name] == whole[name]).all() for name in some)
