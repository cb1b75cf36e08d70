"""L and F of a tiny language model: values and gradients against plain autograd, and invariants."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from toolkit.calibration import oracles
from toolkit.calibration.batches import Batches
from toolkit.calibration.bilevel import State
from toolkit.calibration.losses import (
    Bounds,
    bounded,
    entropy_regularised,
    focal,
    initial_alpha,
    label_smoothing,
    regularised_to_bins,
)
from toolkit.calibration.objectives import OBJECTIVES
from toolkit.calibration.oracles import CalibrationProblem
from toolkit.calibration.running import bin_accuracies, entropy_and_nll
from toolkit.calibration.solvers import bome, descend, finite_difference
from toolkit.confidence.options import option_confidence
from toolkit.models.adapters import adapter_parameters, add_copy, attach_lora
from toolkit.models.adjustment import Adjustment
from toolkit.models.base import load_model
from toolkit.models.encoding import EncodedQuestion
from toolkit.models.predictive import collate


def encoded(n: int = 8, seed: int = 0) -> list[EncodedQuestion]:
    """Ragged random questions of 2 to 4 options."""
    g = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> list[int]:
        size = int(torch.randint(low, high, (1,), generator=g))
        return torch.randint(5, 260, (size,), generator=g).tolist()

    questions = []
    for number in range(n):
        options = [draw(1, 5) for _ in range(2 + number % 3)]
        questions.append(EncodedQuestion(str(number), draw(3, 9), options, number % 2, [3] * len(options)))
    return questions


@pytest.fixture(scope="module")
def model(tiny_folder):
    base, _ = load_model(str(tiny_folder), dtype="float32")
    peft_model = attach_lora(base, rank=2, alpha=4, base_name="tiny", seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in adapter_parameters(peft_model):
            tensor.add_(0.2 * torch.randn(tensor.shape, generator=generator))
    add_copy(peft_model, "hat")
    return peft_model


def problem(model, upper="entropy", **changes):
    spread, objective = OBJECTIVES[upper]
    plain = CalibrationProblem(model, ("default", "hat"), Bounds(), spread, objective)
    return replace(plain, **changes)


def with_loss(model, loss, **changes):
    return problem(model, loss=lambda log_probs, answers, _: loss(log_probs, answers), **changes)


def regularised(log_probs, answers):
    return entropy_regularised(log_probs, answers, 0.3)


def moved_alpha(kind="vector", vocabulary=271):
    generator = torch.Generator().manual_seed(2)
    return [a + 0.3 * torch.randn(a.shape, generator=generator) for a in initial_alpha(kind, vocabulary)]


def naive(model, questions, alpha, level, adjusted):
    """Per-question log-probabilities by one ordinary pass per option, and the answers' token NLLs."""
    delta, iota = bounded(alpha, Bounds()) if adjusted else (1.0, 0.0)
    rows, token_nll, token_entropy, seen = [], [], [], set()
    for number, question in enumerate(questions):
        scores = []
        for index, option in enumerate(question.options):
            ids = torch.tensor([question.prompt + option])
            logits = delta * model(input_ids=ids, use_cache=False).logits[0] + iota
            log_probs = logits.log_softmax(-1)[len(question.prompt) - 1 : -1]
            picked = log_probs[torch.arange(len(option)), torch.tensor(option)]
            scores.append(picked.sum())
            if index == question.answer:
                token_nll += list(-picked)
            for offset, row in enumerate(log_probs):
                place = (number, index if offset else -1, offset)  # options share the prompt's last place
                if place not in seen:
                    seen.add(place)
                    token_entropy.append(-(row.exp() * row).sum())
        rows.append(torch.stack(scores).log_softmax(-1))
    if level == "tokens":
        return torch.stack(token_nll).mean(), torch.stack(token_entropy).mean()
    nll = torch.stack([-row[q.answer] for row, q in zip(rows, questions, strict=True)]).mean()
    return nll, torch.stack([-(row.exp() * row).sum() for row in rows]).mean()


@pytest.mark.parametrize("level", ["options", "tokens"])
@pytest.mark.parametrize("kind", ["vector", "scalar"])
def test_lower_is_the_naive_loss_with_its_gradients(model, level, kind):
    questions, alpha, theta = encoded(), moved_alpha(kind), adapter_parameters(model)
    found = problem(model, level=level).lower([collate(questions)])(theta, alpha)
    leaves = [a.clone().requires_grad_() for a in alpha]
    loss, _ = naive(model, questions, leaves, level, adjusted=True)
    expected = torch.autograd.grad(loss, [*theta, *leaves])
    assert found.value.item() == pytest.approx(loss.item(), rel=1e-5)
    for ours, theirs in zip([*found.theta, *found.alpha], expected, strict=True):
        assert torch.allclose(ours, theirs, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("level", ["options", "tokens"])
@pytest.mark.parametrize("view", ["raw", "adjusted"])
def test_upper_is_minus_the_naive_entropy_with_its_gradients(model, level, view):
    questions, alpha, theta = encoded(), moved_alpha(), adapter_parameters(model)
    found = problem(model, level=level, predictive=view).upper([collate(questions)])(theta, alpha)
    leaves = [a.clone().requires_grad_() for a in alpha]
    nll, mean_entropy = naive(model, questions, leaves, level, adjusted=view == "adjusted")
    assert found.value.item() == pytest.approx(-mean_entropy.item(), rel=1e-5)
    assert found.record == pytest.approx(
        {"upper_entropy": mean_entropy.item(), "upper_nll": nll.item()}, 1e-4
    )
    expected = torch.autograd.grad(-mean_entropy, [*theta, *leaves], allow_unused=True)
    for ours, theirs in zip([*found.theta, *found.alpha], expected, strict=True):
        assert torch.allclose(
            ours, torch.zeros_like(ours) if theirs is None else theirs, atol=2e-5, rtol=1e-3
        )
    assert any(a.any() for a in found.alpha) == (view == "adjusted")


@pytest.mark.parametrize("upper", OBJECTIVES)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_micro_batches_and_order_do_not_matter(model, upper, size):
    questions, alpha, theta = encoded(), moved_alpha(), adapter_parameters(model)
    problem_ = problem(model, upper)
    shuffled = questions[3:] + questions[:3]
    pieces = [collate(shuffled[i : i + size], padding_side="left") for i in range(0, 8, size)]
    for level in (problem_.lower, problem_.upper):
        whole, split = (level(batches)(theta, alpha) for batches in ([collate(questions)], pieces))
        assert split.value.item() == pytest.approx(whole.value.item(), rel=1e-5, abs=1e-6)
        for a, b in zip([*whole.theta, *whole.alpha], [*split.theta, *split.alpha], strict=True):
            assert torch.allclose(a, b, atol=2e-5, rtol=1e-3)


def test_wrt_gives_what_is_asked_and_the_same(model):
    alpha, theta = moved_alpha(), adapter_parameters(model)
    oracle = problem(model).lower([collate(encoded())])
    both, first, second = (oracle(theta, alpha, wrt=wrt) for wrt in ("both", "theta", "alpha"))
    assert not first.alpha and not second.theta
    for a, b in zip([*both.theta, *both.alpha], [*first.theta, *second.alpha], strict=True):
        assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("level", ["options", "tokens"])
def test_entropy_regularisation_is_the_naive_loss_with_its_gradients(model, level):
    """L = CE − β H; on tokens, H is that of the distributions that predict the right answers' tokens."""
    questions, alpha, theta = encoded(), moved_alpha(), adapter_parameters(model)
    if level == "tokens":
        questions = [question.right_only() for question in questions]
    found = with_loss(model, regularised, level=level).lower([collate(questions)])(theta, alpha)
    nll, mean_entropy = naive(model, questions, alpha, level, adjusted=True)
    expected = torch.autograd.grad(nll - 0.3 * mean_entropy, theta)
    assert found.value.item() == pytest.approx((nll - 0.3 * mean_entropy).item(), rel=1e-4)
    for ours, theirs in zip(found.theta, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("level", ["options", "tokens"])
def test_every_loss_takes_options_and_vocabulary_alike(model, level):
    """The mean of the loss of each question's options, or of the distribution at each answer's token."""
    questions, alpha, theta = encoded(), moved_alpha(), adapter_parameters(model)
    delta, iota = bounded(alpha, Bounds())
    rows = []
    for question in questions:
        scores = []
        for option in question.options:
            ids = torch.tensor([question.prompt + option])
            logits = delta * model(input_ids=ids, use_cache=False).logits[0] + iota
            log_probs = logits.log_softmax(-1)[len(question.prompt) - 1 : -1]
            scores.append(log_probs[torch.arange(len(option)), torch.tensor(option)].sum())
            if level == "tokens" and option is question.options[question.answer]:
                rows += list(zip(log_probs, option, strict=True))
        if level == "options":
            rows.append((torch.stack(scores).log_softmax(-1), question.answer))
    for loss in (focal, lambda p, a: label_smoothing(p, a, 0.2), regularised):
        naive_loss = torch.stack([loss(row[None], torch.tensor([a])).squeeze() for row, a in rows]).mean()
        found = with_loss(model, loss, level=level).lower([collate(questions)])(theta, alpha)
        assert found.value.item() == pytest.approx(naive_loss.item(), rel=1e-4)
        for ours, theirs in zip(
            found.theta, torch.autograd.grad(naive_loss, theta, retain_graph=True), strict=True
        ):
            assert torch.allclose(ours, theirs, atol=2e-5, rtol=1e-3)


def test_bins_follow_the_answers_whatever_the_micro_batches(model):
    questions, alpha, theta = encoded(), moved_alpha(), adapter_parameters(model)
    confidence = option_confidence(model, questions, adjustment=Adjustment(*bounded(alpha, Bounds())))
    chosen, top = confidence.log_probs.argmax(1), np.exp(confidence.log_probs.max(1))
    found = []
    for size in (8, 3):
        bins = bin_accuracies(4, decay=0.5)
        one = with_loss(
            model, lambda p, a, bins=bins: regularised_to_bins(p, a, 0.5, bins.means().to(p)), bins=bins
        )
        oracle = one.lower([collate(questions[i : i + size]) for i in range(0, 8, size)])
        first = oracle(theta, alpha)
        found.append([first.value.item(), *bins.means().tolist()])
        for b in range(4):
            inside = np.ceil(top * 4).clip(1) - 1 == b
            hits = (chosen == confidence.answers)[inside].sum()
            assert bins.means()[b].item() == pytest.approx((hits + (b + 0.5) / 4) / (inside.sum() + 1))
        oracle(theta, alpha, wrt="alpha")
        hits = 1.5 * (chosen == confidence.answers).sum()
        assert (bins.sums - bins.prior)[:, 0].sum().item() == pytest.approx(hits)
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_an_objective_decides_by_running_means(model):
    questions, alpha, theta = encoded(), moved_alpha(), adapter_parameters(model)
    sure = [q for q in questions for e, n in [held_out(model, [q], alpha)] if e < n]
    unsure = [q for q in questions for e, n in [held_out(model, [q], alpha)] if e > n]
    assert sure and unsure
    surest = max(sure, key=lambda q: np.subtract(*reversed(held_out(model, [q], alpha))))
    values = {}
    for decay in (0.0, 0.99):
        one = problem(model, "entropy_matched", recent=entropy_and_nll(decay))
        for question in [surest] * 20:
            one.upper([collate([question])])(theta, alpha)
        values[decay] = one.upper([collate(unsure[:1])])(theta, alpha).value.item()
    assert values[0.0] > 0 and values[0.99] < 0


def held_out(model, questions, alpha):
    record = problem(model).upper([collate(questions)])(adapter_parameters(model), alpha).record
    return record["upper_entropy"], record["upper_nll"]


def test_the_right_option_alone_gives_the_same_token_loss(model):
    questions, alpha, theta = encoded(), moved_alpha(), adapter_parameters(model)
    alone = [question.right_only() for question in questions]
    assert all(len(question.options) == 1 and question.answer == 0 for question in alone)
    tokens = with_loss(model, regularised, level="tokens")
    whole, right = (tokens.lower([collate(one)])(theta, alpha) for one in (questions, alone))
    assert right.value.item() == pytest.approx(whole.value.item(), rel=1e-5)
    for one, other in zip(right.theta, whole.theta, strict=True):
        assert torch.allclose(one, other, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("level", ["options", "tokens"])
def test_no_tensor_holds_logits_of_every_token(model, level):
    """The largest tensor of a step is that of the scored places: prompts never reach the vocabulary."""
    questions = [replace(question, prompt=question.prompt * 8) for question in encoded()]
    batch = collate(questions)
    rows, length = batch.input_ids.shape
    vocabulary, places = 271, len(batch.rows)
    assert 4 * places < rows * length

    class Largest(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for tensor in tree_leaves(out):
                if isinstance(tensor, torch.Tensor) and tensor.shape[-1:] == (vocabulary,):
                    self.numel = max(self.numel, tensor.numel())
            return out

    one = with_loss(model, regularised, level=level, predictive="adjusted")
    theta, alpha = adapter_parameters(model), moved_alpha()
    with Largest() as seen:
        for solver in (bome, finite_difference):
            state = State(adapter_parameters(model, "hat"))
            solver(one.lower([batch]), one.upper([batch]), theta, alpha, state)
        option_confidence(model, questions, batch_size=8)
    scored = len(batch.place)  # at the level of tokens, a row for each scored token
    assert places * vocabulary <= seen.numel <= scored * vocabulary
    assert 3 * seen.numel < rows * length * vocabulary


def test_each_adapter_gets_its_own_gradients_and_the_base_none(model):
    theta, hat, alpha = adapter_parameters(model), adapter_parameters(model, "hat"), moved_alpha()
    oracle = problem(model).lower([collate(encoded())])
    before = oracle(theta, alpha).value
    with torch.no_grad():
        hat[0].add_(0.5)
    assert oracle(theta, alpha).value == before
    assert oracle(hat, alpha).value != before
    with torch.no_grad():
        hat[0].sub_(0.5)
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(ValueError, match="adapters"):
        oracle([torch.zeros(2)], alpha)


def test_small_gradients_survive_float16(tiny_folder, monkeypatch):
    """Without a scale many gradients of a small loss are rounded to nothing on their way back."""
    found = {}
    for dtype, factor in (("float32", 1.0), ("float16", 1.0), ("float16", oracles.FLOAT16_SCALE)):
        monkeypatch.setattr(oracles, "FLOAT16_SCALE", factor)
        base, _ = load_model(str(tiny_folder), dtype=dtype)
        model = attach_lora(base, rank=2, alpha=4, base_name="tiny", seed=0)
        theta = adapter_parameters(model)
        with torch.no_grad():
            for tensor in theta:
                tensor.add_(1e-4)
        tiny = CalibrationProblem(model, ("default",), Bounds(), *OBJECTIVES["entropy"], level="tokens")
        alpha = initial_alpha("scalar", 271)
        alpha[0] -= 30.0  # Δ at its least: an almost uniform distribution, whose gradients are small
        found[dtype, factor] = torch.cat(
            [g.flatten() for g in tiny.lower([collate(encoded())])(theta, alpha).theta]
        )
    exact, plain, scaled = found.values()
    assert (scaled - exact).norm() < 0.05 * exact.norm()
    assert (scaled - exact).norm() <= (plain - exact).norm()
    assert scaled.ne(0).sum() > plain.ne(0).sum()


def test_sums_are_taken_over_processes(model):
    """Two processes with half a batch each: the reduction adds what the other process has."""
    questions, alpha, theta = encoded(), moved_alpha(), adapter_parameters(model)
    halves = [Batches(questions, 8, 8, seed=3, process=p, processes=2).at(0) for p in range(2)]
    seen: list[list[torch.Tensor]] = [[], []]
    for process in range(2):  # a first pass records what each would send
        record = seen[process].append

        def keep(tensor, record=record):
            record(tensor)
            return tensor

        problem(model, reduce=keep).lower(halves[process])(theta, alpha)
    other = iter(seen[1])
    together = problem(model, reduce=lambda tensor: tensor + next(other)).lower(halves[0])(theta, alpha)
    # the gradients that a process sends are not yet divided by the number of questions
    alone = problem(model).lower(Batches(questions, 8, 8, seed=3).at(0))(theta, alpha)
    assert together.value.item() == pytest.approx(alone.value.item(), rel=1e-5)
    for a, b in zip(together.theta, alone.theta, strict=True):
        assert torch.allclose(a, b, atol=2e-5, rtol=1e-3)


def test_every_question_comes_once_a_pass_and_shares_make_the_batch():
    batches = Batches(encoded(10), batch_size=4, micro_batch_size=2, seed=0)
    stream = [i for step in range(5) for i in batches.indices(step)]
    assert sorted(stream[:10]) == sorted(stream[10:20]) == list(range(10))
    assert stream[:10] != stream[10:20]
    assert batches.indices(3) == Batches(encoded(10), 4, 1, seed=0).indices(3)
    shares = [Batches(encoded(10), 4, 2, seed=0, process=p, processes=2).at(1) for p in range(2)]
    answers = sorted(int(a) for share in shares for batch in share for a in batch.answers)
    assert answers == sorted(int(a) for batch in batches.at(1) for a in batch.answers)


def test_windows_sort_by_length_and_lose_no_question():
    questions = encoded(24)
    plain = Batches(questions, batch_size=3, micro_batch_size=3, seed=0)
    windows = replace(plain, length_window=4)
    for first in range(0, 20, 4):
        steps = range(first, first + 4)
        one, other = (sorted(i for step in steps for i in b.indices(step)) for b in (plain, windows))
        assert one == other

    def padding(batches):
        rows = [batch for step in range(16) for batch in batches.at(step)]
        used = sum(int(batch.attention_mask.diagonal(dim1=-2, dim2=-1).numel()) for batch in rows)
        lengths = [questions[i].packed_length for step in range(16) for i in batches.indices(step)]
        return used - sum(lengths)

    assert padding(windows) < 0.5 * padding(plain)
    order = [max(questions[i].packed_length for i in windows.indices(step)) for step in range(8)]
    assert order != sorted(order)  # short and long batches come mixed
    halves = [replace(windows, process=p, processes=2) for p in range(2)]
    assert halves[0].indices(5) == halves[1].indices(5) == windows.indices(5)


def test_descending_lowers_the_loss(model):
    alpha, theta = initial_alpha("vector", 271), adapter_parameters(model)
    saved = [tensor.detach().clone() for tensor in theta]
    oracle = problem(model).lower([collate(encoded())])
    first = oracle(theta, alpha).value
    try:
        for _ in range(20):
            for tensor, d in zip(theta, descend(oracle, theta, alpha).theta, strict=True):
                tensor.data -= 0.01 * d
        assert oracle(theta, alpha).value < 0.8 * first
    finally:
        for tensor, value in zip(theta, saved, strict=True):
            tensor.data.copy_(value)
