"""L and F of a language model as oracles: values and gradients, over micro-batches and processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    answer_token_log_probs,
    option_log_probs,
    predictive,
    vocabulary_log_probs,
)

Level = Literal["options", "tokens"]
"""What a level looks at: the distribution over a question's options, or over the vocabulary."""

Predictive = Literal["raw", "adjusted"]
"""Whether the predictive distribution is softmax(z) or softmax(Δ ⊙ z + ι)."""

Wrt = Literal["both", "theta", "alpha"]


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
    reduce: Callable[[Tensor], Tensor] = lambda tensor: tensor

    def lower(self, batches: Sequence[OptionBatch]) -> Oracle:
        """Returns L(θ; α) on these micro-batches: mean cross-entropy under adjusted logits, in nats."""

        def losses(batch: OptionBatch, logits: Tensor, alpha: Tensors) -> tuple[Tensor, ...]:
            adjustment = Adjustment(*bounded(alpha, self.bounds))
            if self.level == "tokens":
                return (-answer_token_log_probs(logits, batch, adjustment),)
            log_probs = option_log_probs(logits, batch, adjustment, self.score)
            return (cross_entropy(log_probs, batch.answers),)

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
            if self.level == "tokens":
                log_probs = vocabulary_log_probs(logits, view)
                nll = -answer_token_log_probs(logits, batch, view)
            else:
                log_probs = option_log_probs(logits, batch, view, self.score)
                nll = cross_entropy(log_probs, batch.answers)
            return self.spread(log_probs), entropy(log_probs).detach(), nll.detach()

        def oracle(theta: Tensors, alpha: Tensors, wrt: Wrt = "both") -> Gradient:
            gradient, means = self._mean_gradient(spreads, self.objective, batches, theta, alpha, wrt)
            record = {"upper_entropy": means[1], "upper_nll": means[2]}
            return replace(gradient, record=record)

        return oracle

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
                gradients = torch.autograd.grad(found[0].sum(), inputs, allow_unused=True)
                for accumulated, gradient in zip(total, gradients, strict=True):
                    if gradient is not None:
                        accumulated += gradient
            sums.append(torch.stack([_sum_and_count(term) for term in found]))
        summed = self.reduce(torch.stack(sums).sum(0))
        means = summed[:, 0] / summed[:, 1]
        first = means[0].clone().requires_grad_()
        value = objective(first, *means[1:])
        (slope,) = torch.autograd.grad(value, first)  # dF by the first mean, the chain rule's outer factor
        scale = (slope / summed[0, 1]).float()
        total = [self.reduce(gradient) * scale for gradient in total]
        split = len(theta) if wrt != "alpha" else 0
        return Gradient(value.detach(), total[:split], total[split:]), means.tolist()

    def _owner(self, theta: Tensors) -> str:
        """Returns the name of the adapter that these tensors are the weights of."""
        for name in self.adapters:
            if adapter_parameters(self.model, name)[0] is theta[0]:
                return name
        raise ValueError("θ is not one of the problem's adapters")


def _sum_and_count(term: Tensor) -> Tensor:
    return wide(torch.stack([term.detach().sum(), torch.tensor(float(term.numel()), device=term.device)]))
