"""Running means: closed forms, and what a resume needs."""

import pytest
import torch

from toolkit.calibration.running import bin_accuracies, entropy_and_nll


def test_a_running_mean_is_the_exponentially_weighted_one():
    running = entropy_and_nll(decay=0.8)
    assert running.means().isnan().all()
    steps = [(1.0, 2, 4.0, 2), (0.5, 1, 3.0, 1), (6.0, 4, 2.0, 4)]
    for entropy, n, nll, m in steps:
        running.add(torch.tensor([[entropy, n], [nll, m]]))
    weights = [0.64, 0.8, 1.0]
    expected = [
        sum(w * s[i] for w, s in zip(weights, steps, strict=True))
        / sum(w * s[i + 1] for w, s in zip(weights, steps, strict=True))
        for i in (0, 2)
    ]
    assert running.means().tolist() == pytest.approx(expected)


def test_without_memory_only_the_last_step_counts():
    running = entropy_and_nll(decay=0.0)
    running.add(torch.tensor([[5.0, 1], [7.0, 1]]))
    running.add(torch.tensor([[2.0, 2], [6.0, 2]]))
    assert running.means().tolist() == [1, 3]


def test_a_bin_that_is_never_seen_keeps_its_middle_for_ever():
    bins = bin_accuracies(4, decay=0.5)
    assert bins.means().tolist() == [0.125, 0.375, 0.625, 0.875]
    for _ in range(3000):  # a weight that only shrank would be 0 by now
        bins.add(torch.tensor([[0.0, 0], [1.0, 2], [0.0, 0], [0.0, 0]]))
    assert bins.means().tolist() == pytest.approx([0.125, (0.375 + 2) / 5, 0.625, 0.875])


def test_sums_are_changed_in_place_as_a_checkpoint_needs_it():
    running = entropy_and_nll(decay=0.5)
    sums = running.sums
    running.add(torch.ones(2, 2))
    assert sums is running.sums and sums.tolist() == [[1, 1], [1, 1]]
