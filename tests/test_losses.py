"""α in its bounds and the parametric loss, against torch and scipy."""

import math

import pytest
import torch
from scipy.stats import entropy as scipy_entropy
from torch.nn.functional import cross_entropy as torch_cross_entropy

from toolkit.calibration.losses import (
    Bounds,
    bin_of,
    bounded,
    cross_entropy,
    entropy_regularised,
    focal,
    initial_alpha,
    label_smoothing,
    regularised_to_bins,
)
from toolkit.calibration.objectives import OBJECTIVES, ascend_to_match, closeness_to_uniform, entropy
from toolkit.models.adjustment import Adjustment, adjust

BOUNDS = [Bounds(), Bounds(0.5, 3.0, 0.2), Bounds(0.9, 10.0, 0.0)]


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("kind", ["vector", "scalar"])
def test_alpha_starts_as_no_adjustment(kind, bounds):
    delta, iota = bounded(initial_alpha(kind, 7), bounds)
    assert torch.allclose(delta, torch.ones_like(delta), atol=1e-6)
    assert torch.equal(iota, torch.zeros_like(iota))
    assert delta.shape == iota.shape == ((7,) if kind == "vector" else ())


@pytest.mark.parametrize("bounds", BOUNDS)
def test_alpha_stays_in_its_bounds_and_is_monotone(bounds):
    raw = torch.linspace(-50, 50, 401, dtype=torch.float64)
    delta, iota = bounded([raw, raw], bounds)
    assert delta.min() >= bounds.delta_min - 1e-9 and delta.max() <= bounds.delta_max + 1e-9
    assert iota.abs().max() <= bounds.iota_max
    assert (delta.diff() >= 0).all() and (iota.diff() >= 0).all()
    assert delta[0] < bounds.delta_min * 1.01 and delta[-1] > bounds.delta_max * 0.99


@pytest.mark.parametrize("values", [(1.0, 2.0, 1.0), (0.5, 1.0, 1.0), (-1.0, 2.0, 1.0), (0.5, 2.0, -0.1)])
def test_bounds_that_do_not_hold_the_start_are_refused(values):
    with pytest.raises(ValueError, match="delta_min"):
        Bounds(*values)


def test_parametric_loss_is_the_cross_entropy_of_adjusted_logits():
    torch.manual_seed(0)
    logits, answers = torch.randn(5, 9, dtype=torch.float64), torch.tensor([0, 3, 8, 2, 2])
    delta, iota = torch.rand(9, dtype=torch.float64) + 0.5, torch.randn(9, dtype=torch.float64)
    loss = cross_entropy(adjust(logits, Adjustment(delta, iota)).log_softmax(-1), answers)
    assert torch.allclose(loss, torch_cross_entropy(delta * logits + iota, answers, reduction="none"))
    naive = []
    for row, answer in zip(logits, answers, strict=True):
        shifted = [math.exp(d * z + i) for d, z, i in zip(delta, row, iota, strict=True)]
        naive.append(-math.log(shifted[answer] / sum(shifted)))
    assert loss.tolist() == pytest.approx(naive)


def test_entropy_is_scipys_and_ignores_absent_options():
    torch.manual_seed(1)
    logits = torch.randn(6, 5, dtype=torch.float64) * 3
    logits[2, 3:] = -torch.inf
    log_probs = logits.log_softmax(-1)
    assert entropy(log_probs).numpy() == pytest.approx(scipy_entropy(log_probs.exp().numpy(), axis=1))
    uniform = torch.full((1, 4), -math.log(4))
    assert entropy(uniform).item() == pytest.approx(math.log(4))


def test_closeness_to_uniform_is_a_divergence():
    torch.manual_seed(2)
    logits = torch.randn(6, 5, dtype=torch.float64) * 3
    logits[4, 2:] = -torch.inf
    log_probs = logits.log_softmax(-1)
    for row, found in zip(log_probs, closeness_to_uniform(log_probs), strict=True):
        present = row[row.isfinite()].exp().numpy()
        assert -found.item() == pytest.approx(scipy_entropy([1 / len(present)] * len(present), present))


@pytest.mark.parametrize("spread", [entropy, closeness_to_uniform])
def test_gradients_of_spread_are_right_and_finite_with_absent_options(spread):
    torch.manual_seed(3)
    logits = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: spread(z.log_softmax(-1)), logits)
    mask = torch.tensor([[False, False, True, True]])
    spread(logits.masked_fill(mask, -torch.inf).log_softmax(-1)).sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all()


def test_only_closeness_to_uniform_reaches_a_saturated_answer():
    gradients = []
    for spread in (entropy, closeness_to_uniform):
        logits = torch.tensor([[30.0, 0.0, 0.0]], requires_grad=True)
        spread(logits.log_softmax(-1)).sum().backward()
        assert logits.grad is not None
        gradients.append(logits.grad.norm().item())
    assert gradients[0] < 1e-9 and gradients[1] > 0.5


@pytest.mark.parametrize("name", OBJECTIVES)
def test_objectives_push_up_while_overconfident_and_matched_ones_turn_back(name):
    _, objective = OBJECTIVES[name]
    for mean_entropy, mean_nll in ((0.3, 0.9), (0.9, 0.9), (0.9, 0.3)):
        spread = torch.tensor(0.7, requires_grad=True)
        objective(spread, torch.tensor(mean_entropy), torch.tensor(mean_nll)).backward()
        back = name.endswith("matched") and mean_entropy > mean_nll
        assert spread.grad is not None and spread.grad.item() == (1.0 if back else -1.0)


def test_within_its_margin_a_matched_objective_fades():
    for gap, weight in ((0.6, -1), (0.1, -1), (0.05, -0.5), (0, 0), (-0.02, 0.2), (-0.6, 1)):  # NLL − H̄
        spread = torch.tensor(0.7, requires_grad=True)
        ascend_to_match(spread, torch.tensor(0.9), torch.tensor(0.9 + gap), margin=0.1).backward()
        assert spread.grad is not None and spread.grad.item() == pytest.approx(weight, abs=1e-5)


@pytest.mark.parametrize("name", ["entropy_matched", "uniform_matched"])
def test_a_matched_objective_ends_at_the_temperature_that_minimises_the_nll(name):
    """With a temperature alone to move it stops where E[H] = E[NLL], which is the NLL's minimum."""
    spread, objective = OBJECTIVES[name]
    generator = torch.Generator().manual_seed(0)
    scores = 2 * torch.randn(2000, 4, generator=generator, dtype=torch.float64)
    answers = torch.multinomial(scores.softmax(-1), 1, generator=generator).squeeze(1)
    for start in (-1.5, 1.5):  # too sure and not sure enough; the model is right at 1 / T = exp(0)
        log_scale = torch.tensor(-start, dtype=torch.float64, requires_grad=True)
        for step in range(400):
            log_probs = (log_scale.exp() * scores).log_softmax(-1)
            nll = cross_entropy(log_probs, answers).mean()
            value = objective(spread(log_probs).mean(), entropy(log_probs).mean().detach(), nll.detach())
            (slope,) = torch.autograd.grad(value, log_scale)
            with torch.no_grad():
                log_scale -= 0.02 / (1 + step / 100) * slope.sign()
        (slope,) = torch.autograd.grad(
            cross_entropy((log_scale.exp() * scores).log_softmax(-1), answers).mean(), log_scale
        )
        assert abs(slope.item()) < 0.01 and abs(log_scale.item()) < 0.05


def predictions():
    """Log-probabilities of 40 questions of 5 options, of which every third question has 3 only."""
    torch.manual_seed(3)
    logits = 2 * torch.randn(40, 5, dtype=torch.float64)
    logits[::3, 3:] = -torch.inf
    return logits.log_softmax(-1).requires_grad_(), torch.randint(3, (40,))


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0])
def test_label_smoothing_is_torchs(epsilon):
    log_probs, answers = predictions()
    found = label_smoothing(log_probs, answers, epsilon)
    for row, answer, value in zip(log_probs, answers, found, strict=True):
        present = row[row.isfinite()]  # torch would give absent options a share of the target
        theirs = torch_cross_entropy(present[None], answer[None], label_smoothing=epsilon)
        assert value.item() == pytest.approx(theirs.item())
    (gradient,) = torch.autograd.grad(found.sum(), log_probs)
    assert gradient.isfinite().all()


def test_focal_loss_is_the_naive_one():
    log_probs, answers = predictions()
    found = focal(log_probs, answers)
    for row, answer, value in zip(log_probs, answers, found, strict=True):
        p = row[answer].exp().item()
        assert value.item() == pytest.approx((1 - p) ** (5 if p < 0.2 else 3) * -math.log(p))
    sure = torch.tensor([[0.0, -torch.inf]], requires_grad=True)
    assert focal(sure, torch.tensor([0])).item() == 0
    assert torch.autograd.grad(focal(sure, torch.tensor([0])).sum(), sure)[0].isfinite().all()


def test_entropy_regularisation_is_cross_entropy_less_entropy():
    log_probs, answers = predictions()
    probabilities = log_probs.exp().detach().numpy()
    expected = -log_probs.gather(1, answers[:, None]).squeeze(1) - 0.7 * torch.tensor(
        scipy_entropy(probabilities, axis=1)
    )
    assert torch.allclose(entropy_regularised(log_probs, answers, 0.7), expected)


def test_regularisation_to_bins_is_the_naive_one():
    log_probs, answers = predictions()
    accuracy = torch.linspace(0.1, 0.9, 10, dtype=torch.float64)
    found = regularised_to_bins(log_probs, answers, 0.4, accuracy)
    for row, answer, value in zip(log_probs, answers, found, strict=True):
        confidence = row.exp().max().item()
        target = accuracy[max(math.ceil(confidence * 10) - 1, 0)].item()
        expected = 0.6 * -row[answer].item() + 0.4 * (confidence - target) ** 2
        assert value.item() == pytest.approx(expected)
    (gradient,) = torch.autograd.grad(found.sum(), log_probs)
    assert gradient.isfinite().all()


def test_a_confidence_on_an_edge_is_in_the_bin_below():
    assert bin_of(torch.tensor([0.0, 0.25, 0.25001, 0.5, 1.0]), 4).tolist() == [0, 0, 1, 1, 3]
