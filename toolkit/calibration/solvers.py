"""First-order solvers of min_α F(α, θ*(α)) with θ*(α) = argmin_θ L(θ; α), and baselines beside them.

Solvers are functions of one signature, (lower, upper, theta, alpha, state, *, own settings) -> Direction;
those of the lower level alone take what they need of it. No solver changes θ or α. A solver asks an oracle
for the gradients that it uses and no others, and `state.steps` counts its calls.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch

from toolkit.calibration.bilevel import Direction, Gradient, Oracle, State, Tensors, wide


def descend(lower: Oracle, theta: Tensors, alpha: Tensors) -> Direction:
    """Plain fine-tuning at a fixed α: the direction is ∇_θ L, and α stays."""
    loss = lower(theta, alpha, wrt="theta")
    return Direction(loss.theta, [], {"lower": loss.value.item()})


def descend_alpha(lower: Oracle, theta: Tensors, alpha: Tensors) -> Direction:
    """Post-hoc vector scaling (arXiv 1706.04599): the direction is ∂_α L, and θ stays."""
    loss = lower(theta, alpha, wrt="alpha")
    return Direction([], loss.alpha, {"lower": loss.value.item()})


def iterate(lower: Oracle, upper: Oracle, theta: Tensors, alpha: Tensors, state: State) -> Direction:
    """The baseline without the coupling: one step of the lower level and one of the upper, in turn.

    θ descends L while α stays; in the next step α and θ descend F, as if θ were no function of α.

    Args:
        lower: L, the lower-level loss, in nats; asked in steps 0, 2, 4, ... only.
        upper: F, the upper objective; asked in the others.
        theta: θ.
        alpha: α.
        state: Whose turn it is; there is no θ̂.

    Returns:
        The direction, with `lower` or `upper`, whichever was asked.
    """
    lowers = state.steps % 2 == 0
    state.steps += 1
    if lowers:
        return descend(lower, theta, alpha)
    objective = upper(theta, alpha)
    return Direction(objective.theta, objective.alpha, {"upper": objective.value.item(), **objective.record})


def bome(
    lower: Oracle,
    upper: Oracle,
    theta: Tensors,
    alpha: Tensors,
    state: State,
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
        alpha: α.
        state: Its θ̂ is overwritten.
        inner_steps: T, at least 1.
        inner_lr: Length of an inner step.
        eta: η of the barrier φ.
        barrier: φ = η‖∇q‖² ("gradient") or η q ("value").
        warm_start: Go on from the θ̂ of the last step instead of from θ.
        lambda_max: Cap on λ, which grows without bound as ‖∇q‖ → 0.

    Returns:
        The direction, with `lower`, `upper`, `q`, `lambda`, `grad_q` = ‖∇q‖ and `cosine` of ∇F and ∇q.
    """
    theta_hat = state.theta_hat
    here = lower(theta, alpha)
    if not warm_start:
        _assign(theta_hat, theta)
    for step in range(inner_steps):
        start = here if step == 0 and not warm_start else lower(theta_hat, alpha, wrt="theta")
        _assign(theta_hat, [t - inner_lr * g for t, g in zip(theta_hat, start.theta, strict=True)])
    there = lower(theta_hat, alpha, wrt="alpha")
    objective = upper(theta, alpha)

    def barrier_weight(q: float, norm2: float, inner: float) -> float:
        phi = eta * (norm2 if barrier == "gradient" else max(q, 0.0))
        return min(max((phi - inner) / (norm2 + 1e-8), 0.0), lambda_max)

    state.steps += 1
    return _weighed(here, there, objective, "lambda", barrier_weight)


def penalty(
    lower: Oracle,
    upper: Oracle,
    theta: Tensors,
    alpha: Tensors,
    state: State,
    *,
    kappa: float = 6.0,
    growth: float = 0.0,
    kappa_max: float = float("inf"),
) -> Direction:
    """One step of the penalty method F2SA (arXiv 2301.10945), as ScaleBiO has it (arXiv 2406.19976).

    θ and α descend F + κ q, q = L(θ; α) − L(θ̂; α), while θ̂ descends κ L on the same batch. With κ in both,
    and one step size, θ and θ̂ follow a moving α at one pace, and what they lag behind by cancels in q; a θ̂
    that descended L alone would be κ times slower, and runs would diverge that otherwise do not. Where both
    have arrived, the direction of α is dF/dα up to O(1/κ). The larger κ, the shorter the steps that plain
    gradient descent may take.

    Args:
        lower: L, the lower-level loss, in nats.
        upper: F, the upper objective.
        theta: θ.
        alpha: α.
        state: Its θ̂ is left as it is; `steps` is t.
        kappa: κ_0, weight of the lower level against the upper.
        growth: κ_t = κ_0 (1 + growth · t).
        kappa_max: Cap on κ_t.

    Returns:
        The direction, θ̂'s too, with `lower`, `upper`, `q`, `kappa`, `grad_q` = ‖∇q‖ and `cosine` of ∇F and
        ∇q.
    """
    weight = min(kappa * (1 + growth * state.steps), kappa_max)  # κ_t
    here, there = lower(theta, alpha), lower(state.theta_hat, alpha)
    objective = upper(theta, alpha)

    state.steps += 1
    found = _weighed(here, there, objective, "kappa", lambda *_: weight)
    return replace(found, theta_hat=[weight * g for g in there.theta])


def finite_difference(
    lower: Oracle,
    upper: Oracle,
    theta: Tensors,
    alpha: Tensors,
    state: State,
    *,
    inner_lr: float = 0.1,
    epsilon: float = 0.01,
) -> Direction:
    """One step by the finite-difference hypergradient of DARTS (arXiv 1806.09055, eqs. 7 and 8).

    θ descends the lower level alone. α descends F at θ − ξ∇_θ L(θ; α), one gradient step ahead. The gradient
    of that is ∂_α F − ξ ∂²_{αθ} L · v with v = ∇_θ F; the product is a central difference of ∂_α L between
    θ ± hv, h = ε / ‖v‖. α enters through the logits alone, so that ∂_α L needs no backward pass. At the lower
    level's solution it is dF/dα but for ξ in the place of (∂²_{θθ} L)⁻¹.

    Args:
        lower: L, the lower-level loss, in nats.
        upper: F, the upper objective.
        theta: θ.
        alpha: α.
        state: Its θ̂ is overwritten, being room for θ ± hv.
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
        _assign(state.theta_hat, [t + sign * h * v for t, v in zip(theta, objective.theta, strict=True)])
        sides.append(lower(state.theta_hat, alpha, wrt="alpha").alpha)
    hypergradient = [
        f - inner_lr * (a - b) / (2 * h) for f, a, b in zip(objective.alpha, *sides, strict=True)
    ]
    record = {"lower": here.value.item(), "upper": objective.value.item(), "grad_f": norm}
    state.steps += 1
    return Direction(here.theta, hypergradient, record | objective.record)


def _weighed(
    here: Gradient,
    there: Gradient,
    objective: Gradient,
    name: str,
    weigh: Callable[[float, float, float], float],
) -> Direction:
    """Returns the direction ∇F + w ∇q, q = L(θ; α) − L(θ̂; α) with θ̂ a constant, and the diagnostics of it.

    Args:
        here: L(θ; α), with its gradients.
        there: L(θ̂; α), with its gradient by α.
        objective: F, with its gradients.
        name: What the record calls w.
        weigh: Gives w for q, ‖∇q‖² and ⟨∇F, ∇q⟩.
    """
    q = (here.value - there.value).item()
    # ∇_θ q = ∇_θ L(θ; α) and ∇_α q = ∂_α L(θ; α) − ∂_α L(θ̂; α).
    grad_q = here.theta + [a - b for a, b in zip(here.alpha, there.alpha, strict=True)]
    grad_f = objective.theta + objective.alpha
    norm2, inner = _dot(grad_q, grad_q), _dot(grad_f, grad_q)
    weight = weigh(q, norm2, inner)
    direction = [f + weight * g for f, g in zip(grad_f, grad_q, strict=True)]
    record = {
        "lower": here.value.item(),
        "upper": objective.value.item(),
        "q": q,
        name: weight,
        "grad_q": norm2**0.5,
        "cosine": inner / max((norm2 * _dot(grad_f, grad_f)) ** 0.5, 1e-30),
        **objective.record,
    }
    split = len(here.theta)
    return Direction(direction[:split], direction[split:], record)


def _dot(a: Tensors, b: Tensors) -> float:
    products = [wide(x).flatten() @ wide(y).flatten() for x, y in zip(a, b, strict=True)]
    return float(torch.stack(products).sum())  # one transfer from the device, not one a tensor


@torch.no_grad()
def _assign(target: Tensors, source: Tensors) -> None:
    for t, s in zip(target, source, strict=True):
        t.copy_(s)
