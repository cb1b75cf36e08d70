"""The exact hypergradient, a solver for problems small enough to have a known answer."""

import torch

from toolkit.calibration.bilevel import Direction


def exact(lower, upper, theta, alpha, state, *, epsilon=1e-4):
    """dF/dα = ∂_α F − ∂²_{αθ} L (∂²_{θθ} L)⁻¹ ∂_θ F by a dense solve, and Newton's direction for θ.

    Column i of both second derivatives is the central difference of L's gradients between θ ± ε e_i. The
    result is the hypergradient where θ solves the lower level; no θ̂ is needed.
    """

    def flat(tensors):
        return torch.cat([tensor.flatten() for tensor in tensors])

    def like(vector, tensors):
        parts = vector.split([tensor.numel() for tensor in tensors])
        return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]

    here, objective = lower(theta, alpha, wrt="theta"), upper(theta, alpha)
    point = flat(theta)
    hessian, mixed = [], []
    for axis in epsilon * torch.eye(len(point), dtype=point.dtype):
        plus, minus = lower(like(point + axis, theta), alpha), lower(like(point - axis, theta), alpha)
        hessian.append((flat(plus.theta) - flat(minus.theta)) / (2 * epsilon))
        mixed.append((flat(plus.alpha) - flat(minus.alpha)) / (2 * epsilon))
    curvature = torch.stack(hessian)
    adjoint = torch.linalg.solve(0.5 * (curvature + curvature.T), flat(objective.theta))
    newton = torch.linalg.solve(curvature, flat(here.theta))
    hypergradient = flat(objective.alpha) - torch.stack(mixed, 1) @ adjoint
    state.steps += 1
    record = {"lower": here.value.item(), "upper": objective.value.item()}
    return Direction(like(newton, theta), like(hypergradient, alpha), record)
