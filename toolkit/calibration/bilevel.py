"""What solvers of min_α F(α, θ*(α)) with θ*(α) = argmin_θ L(θ; α) take and return.

A solver is a function (lower, upper, theta, alpha, state) -> Direction; see `solvers`. `lower` and `upper`
give values and gradients of L and F on this step's batches; where they come from (autograd, accumulation,
many processes) is not the solver's business. A solver computes a descent direction and changes neither θ nor
α.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

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


@dataclass
class State:
    """What a solver keeps from step to step: all of it, so that a run resumes from these two.

    Attributes:
        theta_hat: θ̂, an approximate solution of the lower level; same shapes as θ, at θ when a run starts,
            empty for a solver that needs none. The solver says whether it overwrites θ̂, or leaves it to be
            moved against `Direction.theta_hat`.
        steps: Number of steps taken. Every call of a solver that is given the state adds one.
    """

    theta_hat: list[Tensor] = field(default_factory=list)
    steps: int = 0


@dataclass(frozen=True)
class Direction:
    """What a solver computed: step against it, (α, θ) ← (α, θ) − (ξ_α, ξ_θ) ⊙ direction.

    Attributes:
        theta: Direction for each tensor of θ; empty where θ stays.
        alpha: Direction for each tensor of α; empty where α stays.
        record: Diagnostics for the history.
        theta_hat: Direction for each tensor of θ̂, to be stepped against by the same rule as θ; empty where
            nobody but the solver moves θ̂.
    """

    theta: list[Tensor]
    alpha: list[Tensor]
    record: dict[str, float]
    theta_hat: list[Tensor] = field(default_factory=list)


def wide(tensor: Tensor) -> Tensor:
    """Returns the tensor in float64, or as it is on Apple's GPUs, which have no float64."""
    return tensor if tensor.device.type == "mps" else tensor.double()
