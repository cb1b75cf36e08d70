"""L and F of a language model as oracles: values and gradients, over micro-batches and processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from peft import PeftModel
from torch import Tensor

from toolkit.calibration.bilevel import Gradient, Oracle, Tensors
from toolkit.calibration.losses import Bounds, bounded, cross_entropy
from toolkit.calibration.objectives import entropy
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
        objective: F as a function of (H̄, NLL), both of shape (), in nats.
        score: How an option's tokens make its score.
        reduce: Sums a tensor over all processes.
    """

    model: PeftModel
    adapters: Sequence[str]
    bounds: Bounds
    objective: Callable[[Tensor, Tensor], Tensor]
    level: Level = "options"
    predictive: Predictive = "raw"
    score: Score = "sum"
    reduce: Callable[[Tensor], Tensor] = lambda tensor: tensor

    def lower(self, batches: Sequence[OptionBatch]) -> Oracle:
        """Returns L(θ; α) on these micro-batches: mean cross-entropy under adjusted logits, in nats."""

        def losses(batch: OptionBatch, logits: Tensor, alpha: Tensors) -> tuple[Tensor, Tensor]:
            adjustment = Adjustment(*bounded(alpha, self.bounds))
            if self.level == "tokens":
                nll = -answer_token_log_probs(logits, batch, adjustment)
            else:
                nll = cross_entropy(option_log_probs(logits, batch, adjustment, self.score), batch.answers)
            return nll, nll.detach()

        def oracle(theta: Tensors, alpha: Tensors, wrt: Wrt = "both") -> Gradient:
            return self._mean_gradient(losses, lambda loss, _: loss, batches, theta, alpha, wrt)

        return oracle

    def upper(self, batches: Sequence[OptionBatch]) -> Oracle:
        """Returns F(α, θ) on these held-out micro-batches, from their mean entropy and NLL."""

        def entropies(batch: OptionBatch, logits: Tensor, alpha: Tensors) -> tuple[Tensor, Tensor]:
            view = None
            if self.predictive == "adjusted":
                view = Adjustment(*bounded(alpha, self.bounds))
            if self.level == "tokens":
                nll = -answer_token_log_probs(logits, batch, view)
                return entropy(vocabulary_log_probs(logits, view)), nll.detach()
            log_probs = option_log_probs(logits, batch, view, self.score)
            return entropy(log_probs), cross_entropy(log_probs, batch.answers).detach()

        def oracle(theta: Tensors, alpha: Tensors, wrt: Wrt = "both") -> Gradient:
            return self._mean_gradient(
                entropies,
                self.objective,
                batches,
                theta,
                alpha,
                wrt,
                ("upper_entropy", "upper_nll"),
            )

        return oracle

    def _mean_gradient(
        self,
        terms: Callable[[OptionBatch, Tensor, Tensors], tuple[Tensor, Tensor]],
        objective: Callable[[Tensor, Tensor], Tensor],
        batches: Sequence[OptionBatch],
        theta: Tensors,
        alpha: Tensors,
        wrt: Wrt,
        names: tuple[str, ...] = (),
    ) -> Gradient:
        """Returns the objective of two means, with gradients.

        The means are of the terms over all micro-batches and processes; the first carries the gradient,
        the second none. `names` are what the record calls them.
        """
        activate(self.model, self._owner(theta))
        alpha = [a.detach().requires_grad_(wrt != "theta") for a in alpha]
        inputs = [*(theta if wrt != "alpha" else ()), *(alpha if wrt != "theta" else ())]
        total = [torch.zeros_like(tensor, dtype=torch.float32) for tensor in inputs]
        sums = torch.zeros(4, dtype=torch.float64, device=inputs[0].device)  # Σa, n_a, Σb, n_b
        for batch in batches:
            with torch.set_grad_enabled(wrt != "alpha"):
                logits = predictive(self.model, batch)
            with torch.enable_grad():
                a, b = terms(batch, logits, alpha)
            if a.requires_grad:
                gradients = torch.autograd.grad(a.sum(), inputs, allow_unused=True)
                for accumulated, gradient in zip(total, gradients, strict=True):
                    if gradient is not None:
                        accumulated += gradient
            sums += torch.stack([a.detach().sum(), _size(a), b.sum(), _size(b)]).double()
        sums = self.reduce(sums)
        mean_a = (sums[0] / sums[1]).requires_grad_()
        mean_b = sums[2] / sums[3]
        value = objective(mean_a, mean_b)
        (slope,) = torch.autograd.grad(value, mean_a)  # dF/dā, the chain rule's outer factor
        scale = (slope / sums[1]).float()
        total = [self.reduce(gradient) * scale for gradient in total]
        split = len(theta) if wrt != "alpha" else 0
        record = dict(zip(names, (mean_a.item(), mean_b.item()), strict=False))
        return Gradient(value.detach(), total[:split], total[split:], record)

    def _owner(self, theta: Tensors) -> str:
        """Returns the name of the adapter that these tensors are the weights of."""
        for name in self.adapters:
            if adapter_parameters(self.model, name)[0] is theta[0]:
                return name
        raise ValueError("θ is not one of the problem's adapters")


def _size(tensor: Tensor) -> Tensor:
    return torch.tensor(float(tensor.numel()), device=tensor.device)
