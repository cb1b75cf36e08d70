"""How a token is chosen: tests of `toolkit/models/decoding.py`."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from toolkit.models.decoding import (
    CANDIDATES,
    choose,
    gumbel_noise,
    kept_log_probs,
    noise_size,
    random_numbers,
)


def logits(rows: int, vocabulary: int, spread: float = 2.0) -> torch.Tensor:
    return spread * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(vocabulary))


def noise(rows: int, vocabulary: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(gumbel_noise([random_numbers(seed, row) for row in range(rows)], vocabulary))


@pytest.mark.parametrize("vocabulary", [97, 3 * CANDIDATES])
@pytest.mark.parametrize("spread", [0.1, 3.0])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [None, 1, 40, 10**6])
@pytest.mark.parametrize("top_p", [1.0, 0.95, 0.5, 1e-6])
def test_what_is_kept_is_what_the_processors_of_transformers_keep(
    vocabulary, spread, temperature, top_k, top_p
):
    raw = logits(5, vocabulary, spread)
    expected = TemperatureLogitsWarper(temperature)(None, raw)
    if top_k is not None:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(None, expected)
    found = kept_log_probs(raw, temperature=temperature, top_p=top_p, top_k=top_k)
    torch.testing.assert_close(found, expected.log_softmax(-1), atol=1e-5, rtol=0)


def test_rows_with_and_without_a_wide_nucleus_share_a_batch():
    rows = torch.cat([logits(2, 3000, 0.01), logits(2, 3000, 9.0)])
    found = kept_log_probs(rows, top_p=0.9)
    assert found[:2].isfinite().sum(-1).min() > CANDIDATES > found[2:].isfinite().sum(-1).max()
    for row, alone in zip(rows, found, strict=True):
        torch.testing.assert_close(kept_log_probs(row, top_p=0.9), alone)


def test_the_nucleus_is_the_smallest_set_that_holds_its_probability():
    probs = torch.tensor([0.4, 0.1, 0.3, 0.2])
    for top_p, kept in ((0.39, [0]), (0.5, [0, 2]), (0.85, [0, 2, 3]), (0.95, [0, 1, 2, 3])):
        found = kept_log_probs(probs.log(), top_p=top_p)
        assert found.isfinite().nonzero()[:, 0].tolist() == kept
        torch.testing.assert_close(found.exp()[kept], probs[kept] / probs[kept].sum())


def test_greedy_keeps_the_first_of_the_most_probable():
    found = kept_log_probs(
        torch.tensor([[1.0, 3.0, 3.0], [2.0, 0.0, 1.0]]), temperature=0, top_p=0.1, top_k=2
    )
    assert found.tolist() == [[-math.inf, 0, -math.inf], [0, -math.inf, -math.inf]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_are_read_as_float32(dtype):
    raw = logits(3, 5000).to(dtype)
    found = kept_log_probs(raw, temperature=0.7, top_p=0.9)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, kept_log_probs(raw.float(), temperature=0.7, top_p=0.9))


@pytest.mark.parametrize("vocabulary", [1, 2, 5, 97, 100])
def test_choices_have_the_probabilities_they_are_drawn_from(vocabulary):
    log_probs = logits(1, vocabulary, 1.0)[0].log_softmax(-1)
    log_probs[3::7] = -math.inf
    draws = 20_000
    generator = random_numbers(1)
    numbers = torch.from_numpy(generator.gumbel(size=(draws, noise_size(vocabulary))))
    found = choose(log_probs.expand(draws, -1), numbers)
    counts = np.bincount(found.numpy(), minlength=vocabulary)
    expected = log_probs.double().softmax(-1).numpy() * draws
    assert counts[expected == 0].sum() == 0
    assert vocabulary == 1 or chisquare(counts[expected > 0], expected[expected > 0]).pvalue > 1e-3


def test_a_choice_is_the_rows_own():
    rows, numbers = logits(6, 97), noise(6, 97)
    together = choose(rows, numbers)
    assert len(set(together.tolist())) > 1
    for row, number, chosen in zip(rows, numbers, together, strict=True):
        assert choose(row[None], number[None]) == chosen
        assert choose(row[None] + 5, number[None]) == chosen  # log-probabilities up to a constant


def test_rounding_hardly_ever_changes_a_choice():
    """Where the inverse of the cumulative distribution would change many: 2 × 49152 boundaries move."""
    rows, numbers = logits(200, 49152, 1.0), noise(200, 49152)
    other = rows + 1e-5 * torch.randn(rows.shape, generator=torch.Generator().manual_seed(1))
    assert (choose(rows, numbers) == choose(other, numbers)).all()


def test_random_numbers_are_a_function_of_seed_and_names_on_any_machine():
    assert random_numbers(3, "q", 4).random(2).tolist() == [0.8454625357988889, 0.01900860688290329]


def test_random_numbers_differ_and_are_independent():
    names: list[tuple[str | int, ...]] = [("q", 1), ("p", 1), ("q", 2), ("q1",), ("1", "q"), ()]
    firsts = {random_numbers(seed, *name).random() for seed in (0, 1) for name in names}
    assert len(firsts) == 2 * len(names)
    numbers = np.array([random_numbers(0, "q", n).random() for n in range(2001)])
    assert kstest(numbers, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.1
