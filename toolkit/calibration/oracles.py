"""L and F of a language model as oracles: values and gradients, over micro-batches and processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from peft import PeftModel
from torch import Tensor

from toolkit.calibration.bilevel import Gradient, Oracle, Tensors, wide
from toolkit.calibration.losses import Bounds, bounded, cross_entropy
from toolkit.calibration.objectives import Objective, Spread, entropy
from toolkit.models.adapters import activate, adapter_parameters
from toolkit.models.adjustment import Adjustment
from toolkit.models.predictive import (
    OptionBatch,
    Score,
    answer_tokens,
    option_log_probs,
    predictive,
    vocabulary_log_probs,
)
from toolkit.models.quantization import compute_dtype

Level = Literal["options", "tokens"]
"""What a level looks at: the distribution over a question's options, or over the vocabulary."""

Predictive = Literal["raw", "adjusted"]
"""Whether the predictive distribution is softmax(z) or softmax(Δ ⊙ z + ι)."""

Wrt = Literal["both", "theta", "alpha"]

FLOAT16_SCALE = 2.0**10
"""Losses are multiplied by this on their way back through a model that computes in float16, whose smallest
number is 6e-8, and gradients divided by it afterwards (arXiv 1710.03740)."""


@dataclass(frozen=True)
class CalibrationProblem:
    """A model with its adapters θ and θ̂, and what L and F are of them.

    Attributes:
        model: The base with the adapters.
        adapters: Names of the adapters that an oracle may be asked about.
        bounds: Bounds of α.
        level: What both levels look at.
        predictive: The view of the logits whose entropy the upper level raises.
        spread: Measure of a distribution's spread whose mean the upper level raises.
        objective: F as a function of mean spread, mean entropy and mean NLL, each of shape (), in nats.
        score: How an option's tokens make its score.
        entropy_weight: β of single-level entropy regularisation, L = CE − β H (arXiv 1701.06548); 0 for CALM.
        reduce: Sums a tensor over all processes.
    """

    model: PeftModel
    adapters: Sequence[str]
    bounds: Bounds
    spread: Spread
    objective: Objective
    level: Level = "options"
    predictive: Predictive = "raw"
    score: Score = "sum"
    entropy_weight: float = 0.0
    reduce: Callable[[Tensor], Tensor] = lambda tensor: tensor
    _names: dict[int, str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        names = {id(adapter_parameters(self.model, name)[0]): name for name in self.adapters}
        object.__setattr__(self, "_names", names)

    def lower(self, batches: Sequence[OptionBatch]) -> Oracle:
        """Returns L(θ; α) on these micro-batches: mean cross-entropy under adjusted logits, in nats."""

        def losses(batch: OptionBatch, logits: Tensor, alpha: Tensors) -> tuple[Tensor, ...]:
            adjustment = Adjustment(*bounded(alpha, self.bounds))
            log_probs, nll = self._level(logits, batch, adjustment)
            if self.entropy_weight == 0:
                return (nll,)
            spread = entropy(log_probs)
            if self.level == "tokens":
                spread = spread[answer_tokens(batch)[0]]
            return (nll - self.entropy_weight * spread,)

        def oracle(theta: Tensors, alpha: Tensors, wrt: Wrt = "both") -> Gradient:
            gradient, _ = self._mean_gradient(losses, lambda loss: loss, batches, theta, alpha, wrt)
            return gradient

        return oracle

    def upper(self, batches: Sequence[OptionBatch]) -> Oracle:
        """Returns F(α, θ) on these held-out micro-batches, from their mean spread, entropy and NLL."""

        def spreads(batch: OptionBatch, logits: Tensor, alpha: Tensors) -> tuple[Tensor, ...]:
            view = None
            if self.predictive == "adjusted":
                view = Adjustment(*bounded(alpha, self.bounds))
            log_probs, nll = self._level(logits, batch, view)
            return self.spread(log_probs), entropy(log_probs).detach(), nll.detach()

        def oracle(theta: Tensors, alpha: Tensors, wrt: Wrt = "both") -> Gradient:
            gradient, means = self._mean_gradient(spreads, self.objective, batches, theta, alpha, wrt)
            record = {"upper_entropy": means[1], "upper_nll": means[2]}
            return replace(gradient, record=record)

        return oracle

    def _level(
        self, logits: Tensor, batch: OptionBatch, adjustment: Adjustment | None
    ) -> tuple[Tensor, Tensor]:
        """Returns what the levels look at, and the NLL of the right answers, in nats.

        That is log-probabilities of options (Q, K) and NLLs (Q,), or log-probabilities over the vocabulary at
        every scored place (U, V) and the NLLs of the right answers' tokens (A,).
        """
        if self.level == "options":
            log_probs = option_log_probs(logits, batch, adjustment, self.score)
            return log_probs, cross_entropy(log_probs, batch.answers)
        log_probs = vocabulary_log_probs(logits, adjustment)
        places, targets = answer_tokens(batch)
        return log_probs, -log_probs[places, targets]

    def _mean_gradient(
        self,
        terms: Callable[[OptionBatch, Tensor, Tensors], tuple[Tensor, ...]],
        objective: Callable[..., Tensor],
        batches: Sequence[OptionBatch],
        theta: Tensors,
        alpha: Tensors,
        wrt: Wrt,
    ) -> tuple[Gradient, list[float]]:
        """Returns an objective of means with its gradients, and the means.

        The means are of the terms over all micro-batches and processes; the first carries the gradient.
        """
        activate(self.model, self._owner(theta))
        magnified = FLOAT16_SCALE if compute_dtype(self.model) == torch.float16 else 1.0
        alpha = [a.detach().requires_grad_(wrt != "theta") for a in alpha]
        inputs = [*(theta if wrt != "alpha" else ()), *(alpha if wrt != "theta" else ())]
        total = [torch.zeros_like(tensor, dtype=torch.float32) for tensor in inputs]
        sums: list[Tensor] = []  # (Σ term, number of terms) of each term
        for batch in batches:
            with torch.set_grad_enabled(wrt != "alpha"):
                logits = predictive(self.model, batch)
            with torch.enable_grad():
                found = terms(batch, logits, alpha)
            if found[0].requires_grad:
                gradients = torch.autograd.grad(magnified * found[0].sum(), inputs, allow_unused=True)
                for accumulated, gradient in zip(total, gradients, strict=True):
                    if gradient is not None:
                        accumulated += gradient
            sums.append(torch.stack([_sum_and_count(term) for term in found]))
        summed = self.reduce(torch.stack(sums).sum(0))
        means = summed[:, 0] / summed[:, 1]
        first = means[0].clone().requires_grad_()
        value = objective(first, *means[1:])
        (slope,) = torch.autograd.grad(value, first)  # dF by the first mean, the chain rule's outer factor
        scale = (slope / summed[0, 1] / magnified).float()
        together = self.reduce(torch.cat([gradient.flatten() for gradient in total])) * scale
        parts = together.split([tensor.numel() for tensor in inputs])
        total = [part.view_as(tensor) for part, tensor in zip(parts, inputs, strict=True)]
        split = len(theta) if wrt != "alpha" else 0
        return Gradient(value.detach(), total[:split], total[split:]), means.tolist()

    def _owner(self, theta: Tensors) -> str:
        """Returns the name of the adapter that these tensors are the weights of."""
        if id(theta[0]) not in self._names:
            raise ValueError("θ is not one of the problem's adapters")
        return self._names[id(theta[0])]


def _sum_and_count(term: Tensor) -> Tensor:
    return wide(torch.stack([term.detach().sum(), torch.tensor(float(term.numel()), device=term.device)]))
