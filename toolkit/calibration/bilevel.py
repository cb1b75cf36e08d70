"""First-order solvers of min_α F(α, θ*(α)) with θ*(α) = argmin_θ L(θ; α).

A solver is a function (lower, upper, theta, alpha, ...) -> Direction. `lower` and `upper` give values and
gradients of L and F on this step's batches; where they come from (autograd, accumulation, many processes) is
not the solver's business. A solver computes a descent direction and changes neither θ nor α.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

Tensors = Sequence[Tensor]


@dataclass(frozen=True)
class Gradient:
    """A scalar function's value with its gradients.

    Attributes:
        value: The value, shape ().
        theta: Gradient by each tensor of θ; empty where not asked for.
        alpha: Gradient by each tensor of α; empty where not asked for.
        record: What else was seen on the way, for the history.
    """

    value: Tensor
    theta: list[Tensor] = field(default_factory=list)
    alpha: list[Tensor] = field(default_factory=list)
    record: dict[str, float] = field(default_factory=dict)


class Oracle(Protocol):
    """Evaluates L or F on this step's batch at (θ, α)."""

    def __call__(
        self, theta: Tensors, alpha: Tensors, wrt: Literal["both", "theta", "alpha"] = "both"
    ) -> Gradient:
        """Returns the value and the gradients asked for; θ and α stay as they are."""
        ...


@dataclass(frozen=True)
class Direction:
    """What a solver computed: step against it, (α, θ) ← (α, θ) − (ξ_α, ξ_θ) ⊙ direction.

    Attributes:
        theta: Direction for each tensor of θ.
        alpha: Direction for each tensor of α; empty where α stays.
        record: Diagnostics for the history.
    """

    theta: list[Tensor]
    alpha: list[Tensor]
    record: dict[str, float]


def descend(lower: Oracle, theta: Tensors, alpha: Tensors) -> Direction:
    """Plain fine-tuning at a fixed α: the direction is ∇_θ L, and α stays."""
    loss = lower(theta, alpha, wrt="theta")
    return Direction(loss.theta, [], {"lower": loss.value.item()})


def bome(
    lower: Oracle,
    upper: Oracle,
    theta: Tensors,
    theta_hat: Tensors,
    alpha: Tensors,
    *,
    inner_steps: int = 1,
    inner_lr: float = 0.1,
    eta: float = 0.5,
    barrier: Literal["gradient", "value"] = "gradient",
    warm_start: bool = False,
    lambda_max: float = float("inf"),
) -> Direction:
    """One step of BOME, bilevel optimisation by a dynamic barrier (arXiv 2209.08709).

    θ̂ approximates the lower level's solution by T gradient steps from θ. With q = L(θ; α) − L(θ̂; α), θ̂ held
    constant, the direction is ∇F + λ∇q with the least λ ≥ 0 that gives ⟨∇F + λ∇q, ∇q⟩ ≥ φ.

    Args:
        lower: L, the lower-level loss, in nats.
        upper: F, the upper objective.
        theta: θ.
        theta_hat: Room for θ̂, same shapes as θ; overwritten.
        alpha: α.
        inner_steps: T, at least 1.
        inner_lr: Length of an inner step.
        eta: η of the barrier φ.
        barrier: φ = η‖∇q‖² ("gradient") or η q ("value").
        warm_start: Go on from the θ̂ of the last step instead of from θ.
        lambda_max: Cap on λ, which grows without bound as ‖∇q‖ → 0.

    Returns:
        The direction, with `lower`, `upper`, `q`, `lambda`, `grad_q` = ‖∇q‖ and `cosine` of ∇F and ∇q.
    """
    here = lower(theta, alpha)
    if not warm_start:
        _assign(theta_hat, theta)
    for step in range(inner_steps):
        start = here if step == 0 and not warm_start else lower(theta_hat, alpha, wrt="theta")
        _assign(theta_hat, [t - inner_lr * g for t, g in zip(theta_hat, start.theta, strict=True)])
    there = lower(theta_hat, alpha, wrt="alpha")
    objective = upper(theta, alpha)

    q = (here.value - there.value).item()
    # θ̂ is a constant: ∇_θ q = ∇_θ L(θ; α) and ∇_α q = ∂_α L(θ; α) − ∂_α L(θ̂; α).
    grad_q = here.theta + [a - b for a, b in zip(here.alpha, there.alpha, strict=True)]
    grad_f = objective.theta + objective.alpha
    norm2 = _dot(grad_q, grad_q)
    inner = _dot(grad_f, grad_q)
    phi = eta * (norm2 if barrier == "gradient" else max(q, 0.0))
    weight = min(max((phi - inner) / (norm2 + 1e-8), 0.0), lambda_max)  # λ

    direction = [f + weight * g for f, g in zip(grad_f, grad_q, strict=True)]
    record = {
        "lower": here.value.item(),
        "upper": objective.value.item(),
        "q": q,
        "lambda": weight,
        "grad_q": norm2**0.5,
        "cosine": inner / max((norm2 * _dot(grad_f, grad_f)) ** 0.5, 1e-30),
        **objective.record,
    }
    return Direction(direction[: len(theta)], direction[len(theta) :], record)


def finite_difference(
    lower: Oracle,
    upper: Oracle,
    theta: Tensors,
    theta_hat: Tensors,
    alpha: Tensors,
    *,
    inner_lr: float = 0.1,
    epsilon: float = 0.01,
) -> Direction:
    """One step by the finite-difference hypergradient of DARTS (arXiv 1806.09055, eqs. 7 and 8).

    θ descends the lower level alone. α descends F at θ − ξ∇_θ L(θ; α), one gradient step ahead. The gradient
    of that is ∂_α F − ξ ∂²_{αθ} L · v with v = ∇_θ F; the product is a central difference of ∂_α L between
    θ ± hv, h = ε / ‖v‖. α enters through the logits alone, so that ∂_α L needs no backward pass.

    Args:
        lower: L, the lower-level loss, in nats.
        upper: F, the upper objective.
        theta: θ.
        theta_hat: Room for θ ± hv, same shapes as θ; overwritten.
        alpha: α.
        inner_lr: ξ, length of the step ahead.
        epsilon: ε, how far θ is moved for the difference, as a Euclidean norm.

    Returns:
        The direction, with `lower`, `upper` and `grad_f` = ‖v‖.
    """
    here = lower(theta, alpha, wrt="theta")
    objective = upper(theta, alpha)
    norm = _dot(objective.theta, objective.theta) ** 0.5
    h = epsilon / max(norm, 1e-12)  # where v = 0 there is no difference to take
    sides = []
    for sign in (1, -1):
        _assign(theta_hat, [t + sign * h * v for t, v in zip(theta, objective.theta, strict=True)])
        sides.append(lower(theta_hat, alpha, wrt="alpha").alpha)
    hypergradient = [
        f - inner_lr * (a - b) / (2 * h) for f, a, b in zip(objective.alpha, *sides, strict=True)
    ]
    record = {"lower": here.value.item(), "upper": objective.value.item(), "grad_f": norm}
    return Direction(here.theta, hypergradient, record | objective.record)


def wide(tensor: Tensor) -> Tensor:
    """Returns the tensor in float64, or as it is on Apple's GPUs, which have no float64."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def _dot(a: Tensors, b: Tensors) -> float:
    products = [wide(x).flatten() @ wide(y).flatten() for x, y in zip(a, b, strict=True)]
    return float(torch.stack(products).sum())  # one transfer from the device, not one a tensor


@torch.no_grad()
def _assign(target: Tensors, source: Tensors) -> None:
    for t, s in zip(target, source, strict=True):
        t.copy_(s)
