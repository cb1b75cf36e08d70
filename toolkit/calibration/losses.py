"""The lower level: cross-entropy under adjusted logits, and α, the adjustment's bounded parameters.

Pure tensor functions. α is a list of unconstrained tensors, mapped smoothly into its bounds, so that any
optimizer may move it: entropy without bounds has its maximum at the uniform distribution.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["vector", "scalar"]
"""`vector` is (Δ ∈ R^V, ι ∈ R^V), the VS loss; `scalar` one Δ and no ι, a temperature 1 / Δ."""


@dataclass(frozen=True)
class Bounds:
    """The box that α stays in.

    Attributes:
        delta_min: Least Δ, in (0, 1).
        delta_max: Greatest Δ, above 1.
        iota_max: Greatest absolute ι, in nats.
    """

    delta_min: float = 0.25
    delta_max: float = 4.0
    iota_max: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.delta_min < 1 < self.delta_max or self.iota_max < 0:
            raise ValueError("α's bounds need 0 < delta_min < 1 < delta_max and iota_max >= 0")


def initial_alpha(kind: Kind, vocabulary: int) -> list[Tensor]:
    """Returns the unconstrained α at which Δ = 1 and ι = 0: zeros, shapes [(V,), (V,)] or [()]."""
    return [torch.zeros(())] if kind == "scalar" else [torch.zeros(vocabulary), torch.zeros(vocabulary)]


def bounded(alpha: Sequence[Tensor], bounds: Bounds) -> tuple[Tensor, Tensor]:
    """Maps unconstrained α to (Δ, ι).

    Δ = exp(l + (u − l) σ(a + a₀)) with l, u the logs of its bounds and a₀ such that a = 0 gives 1;
    ι = ι_max tanh(b). Δ is bounded on a log scale, since 1/2 and 2 are the same change of temperature.

    Returns:
        Δ without unit and ι in nats, shapes (V,) and (V,), or () and () for a scalar α.
    """
    low, high = math.log(bounds.delta_min), math.log(bounds.delta_max)
    start = math.log(-low / high)  # logit of −l / (u − l)
    delta = (low + (high - low) * torch.sigmoid(alpha[0] + start)).exp()
    iota = bounds.iota_max * alpha[1].tanh() if len(alpha) > 1 else torch.zeros_like(delta)
    return delta, iota


def cross_entropy(log_probs: Tensor, answers: Tensor) -> Tensor:
    """Returns −log p(answer) in nats, shape (N,), from log-probabilities (N, K) and indices (N,).

    With log-probabilities of Δ ⊙ z + ι this is the parametric loss of CALM's lower level.
    """
    return -log_probs.gather(1, answers[:, None]).squeeze(1)
