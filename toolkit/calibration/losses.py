"""The lower level: losses, and α, the bounded parameters of the logit adjustment under which CALM's is taken.

Pure tensor functions. α is a list of unconstrained tensors, mapped smoothly into its bounds, so that any
optimizer may move it: entropy without bounds has its maximum at the uniform distribution.

A loss takes log-probabilities (N, K), -inf for absent classes, and the index of each right class (N,), and
gives (N,) in nats. The classes are a question's options, or the vocabulary at an answer's token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from toolkit.calibration.objectives import entropy

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
    """Returns −log p(answer).

    With log-probabilities of Δ ⊙ z + ι this is the parametric loss of CALM's lower level (arXiv 2608.07419).
    """
    return -log_probs.gather(1, answers[:, None]).squeeze(1)


def label_smoothing(log_probs: Tensor, answers: Tensor, epsilon: float) -> Tensor:
    """Returns the cross-entropy to (1 − ε) · one-hot + ε / K, K present classes (arXiv 1512.00567)."""
    present = log_probs.isfinite()
    uniform = -torch.where(present, log_probs, 0.0).sum(-1) / present.sum(-1)
    return (1 - epsilon) * cross_entropy(log_probs, answers) + epsilon * uniform


def focal(log_probs: Tensor, answers: Tensor) -> Tensor:
    """Returns −(1 − p)^γ log p of the answer, γ = 5 where p < .2, else 3 (FLSD-53, arXiv 2002.09437)."""
    nll = cross_entropy(log_probs, answers)
    probability = (-nll).exp()
    gamma = torch.where(probability.detach() < 0.2, 5.0, 3.0)
    return (1 - probability).clamp(min=0) ** gamma * nll


def entropy_regularised(log_probs: Tensor, answers: Tensor, weight: float) -> Tensor:
    """Returns −log p(answer) − β H(p), the confidence penalty (arXiv 1701.06548)."""
    return cross_entropy(log_probs, answers) - weight * entropy(log_probs)


def regularised_to_bins(log_probs: Tensor, answers: Tensor, weight: float, accuracy: Tensor) -> Tensor:
    """Returns (1 − a) · −log p(answer) + a · (confidence − accuracy of its bin)² (RCFT, arXiv 2505.01997).

    Args:
        log_probs: Shape (N, K), nats.
        answers: Shape (N,).
        weight: a, in [0, 1].
        accuracy: Share of right answers in each of B equal-width bins of confidence, shape (B,), a constant.
    """
    confidence = log_probs.max(-1).values.exp()
    target = accuracy[bin_of(confidence, len(accuracy))]
    return (1 - weight) * cross_entropy(log_probs, answers) + weight * (confidence - target) ** 2


def bin_of(confidence: Tensor, bins: int) -> Tensor:
    """Returns the index of the bin ((b − 1) / B, b / B] of each confidence; 0 is in the first."""
    edges = torch.arange(1, bins, device=confidence.device) / bins
    return torch.bucketize(confidence.detach(), edges)
