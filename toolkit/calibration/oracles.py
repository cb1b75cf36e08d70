"""L and F of a language model as oracles: values and gradients, over micro-batches and processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from peft import PeftModel
from torch import Tensor

from toolkit.calibration.bilevel import Gradient, Oracle, Tensors, wide
from toolkit.calibration.losses import Bounds, bin_of, bounded, cross_entropy
from toolkit.calibration.objectives import Objective, Spread, entropy
from toolkit.calibration.running import RunningMeans, entropy_and_nll
from toolkit.models.adapters import activate, adapter_parameters
from toolkit.models.adjustment import Adjustment, Level
from toolkit.models.predictive import (
    OptionBatch,
    Score,
    answer_tokens,
    option_log_probs,
    predictive,
    vocabulary_log_probs,
)
from toolkit.models.prefix import FrozenPrefix
from toolkit.models.quantization import compute_dtype

Predictive = Literal["raw", "adjusted"]
"""Whether the predictive distribution is softmax(z) or softmax(Δ ⊙ z + ι)."""

Wrt = Literal["both", "theta", "alpha"]

BatchLoss = Callable[[Tensor, Tensor, OptionBatch], Tensor]
"""(log-probabilities (N, K), right classes (N,), the batch they are of) -> (N,), in nats; see `losses`."""

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
        loss: The lower level's loss.
        recent: Running mean entropy and NLL of the held-out questions, by which an objective may decide.
        bins: Running accuracy of each bin of confidence, for a loss that uses it.
        prefix: The model's frozen layers, which need not run again on texts that they know.
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
    loss: BatchLoss = lambda log_probs, answers, batch: cross_entropy(log_probs, answers)
    recent: RunningMeans = field(default_factory=lambda: entropy_and_nll(0.0))
    bins: RunningMeans | None = None
    prefix: FrozenPrefix | None = None
    reduce: Callable[[Tensor], Tensor] = lambda tensor: tensor
    _names: dict[int, str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        names = {id(adapter_parameters(self.model, name)[0]): name for name in self.adapters}
        object.__setattr__(self, "_names", names)

    def lower(self, batches: Sequence[OptionBatch]) -> Oracle:
        """Returns L(θ; α) on these micro-batches: the mean loss under adjusted logits, in nats."""

        def terms(batch: OptionBatch, logits: Tensor, alpha: Tensors) -> list[Tensor]:
            view = Adjustment(*bounded(alpha, self.bounds))
            log_probs, answers = self._of_answers(self._log_probs(logits, batch, view), batch)
            found = [self.loss(log_probs, answers, batch)]
            if self.bins is not None:
                found += _by_bin(log_probs.detach(), answers, len(self.bins.sums))
            return found

        def objective(loss: Tensor, summed: Tensor) -> Tensor:
            if self.bins is not None:
                self.bins.add(summed[1:])
            return loss

        def oracle(theta: Tensors, alpha: Tensors, wrt: Wrt = "both") -> Gradient:
            return self._mean_gradient(terms, objective, batches, theta, alpha, wrt)[0]

        return oracle

    def upper(self, batches: Sequence[OptionBatch]) -> Oracle:
        """Returns F(α, θ) on these held-out micro-batches, from their mean spread.

        Entropy and NLL, by which F may decide, are running means over the calls, this one included.
        """

        def terms(batch: OptionBatch, logits: Tensor, alpha: Tensors) -> list[Tensor]:
            view = None
            if self.predictive == "adjusted":
                view = Adjustment(*bounded(alpha, self.bounds))
            log_probs = self._log_probs(logits, batch, view)
            nll = cross_entropy(*self._of_answers(log_probs, batch))
            return [self.spread(log_probs), entropy(log_probs).detach(), nll.detach()]

        def objective(spread: Tensor, summed: Tensor) -> Tensor:
            self.recent.add(summed[1:])
            return self.objective(spread, *self.recent.means().to(spread))

        def oracle(theta: Tensors, alpha: Tensors, wrt: Wrt = "both") -> Gradient:
            gradient, summed = self._mean_gradient(terms, objective, batches, theta, alpha, wrt)
            _, mean_entropy, mean_nll = (summed[:, 0] / summed[:, 1]).tolist()
            return replace(gradient, record={"upper_entropy": mean_entropy, "upper_nll": mean_nll})

        return oracle

    def _log_probs(self, logits: Tensor, batch: OptionBatch, view: Adjustment | None) -> Tensor:
        """Returns what the levels look at, in nats.

        That is log-probabilities of options (Q, K), or over the vocabulary at every scored place (U, V).
        """
        if self.level == "options":
            return option_log_probs(logits, batch, view, self.score)
        return vocabulary_log_probs(logits, view)

    def _of_answers(self, log_probs: Tensor, batch: OptionBatch) -> tuple[Tensor, Tensor]:
        """Returns those of them where there is a right class (N, K), and which it is (N,).

        N is the number of questions, or that of the tokens of right answers.
        """
        if self.level == "options":
            return log_probs, batch.answers
        places, targets = answer_tokens(batch)
        return log_probs[places], targets

    def _mean_gradient(
        self,
        terms: Callable[[OptionBatch, Tensor, Tensors], list[Tensor]],
        objective: Callable[[Tensor, Tensor], Tensor],
        batches: Sequence[OptionBatch],
        theta: Tensors,
        alpha: Tensors,
        wrt: Wrt,
    ) -> tuple[Gradient, Tensor]:
        """Returns an objective with its gradients, and the sum and count of each term, shape (n, 2).

        The terms are summed over all micro-batches and processes. The objective is a function of the first
        term's mean, which carries the gradient, and of all sums and counts.
        """
        activate(self.model, self._owner(theta))
        magnified = FLOAT16_SCALE if compute_dtype(self.model) == torch.float16 else 1.0
        alpha = [a.detach().requires_grad_(wrt != "theta") for a in alpha]
        inputs = [*(theta if wrt != "alpha" else ()), *(alpha if wrt != "theta" else ())]
        total = [torch.zeros_like(tensor, dtype=torch.float32) for tensor in inputs]
        sums: list[Tensor] = []
        for batch in batches:
            with torch.set_grad_enabled(wrt != "alpha"):
                logits = predictive(self.model, batch, self.prefix)
            with torch.enable_grad():
                found = terms(batch, logits, alpha)
            if found[0].requires_grad:
                gradients = torch.autograd.grad(magnified * found[0].sum(), inputs, allow_unused=True)
                for accumulated, gradient in zip(total, gradients, strict=True):
                    if gradient is not None:
                        accumulated += gradient
            sums.append(torch.stack([_sum_and_count(term) for term in found]))
        summed = self.reduce(torch.stack(sums).sum(0))
        mean = (summed[0, 0] / summed[0, 1]).requires_grad_()
        value = objective(mean, summed)
        (slope,) = torch.autograd.grad(value, mean)  # dF by the mean, the chain rule's outer factor
        scale = (slope / summed[0, 1] / magnified).float()
        together = self.reduce(torch.cat([gradient.flatten() for gradient in total])) * scale
        parts = together.split([tensor.numel() for tensor in inputs])
        total = [part.view_as(tensor) for part, tensor in zip(parts, inputs, strict=True)]
        split = len(theta) if wrt != "alpha" else 0
        return Gradient(value.detach(), total[:split], total[split:]), summed

    def _owner(self, theta: Tensors) -> str:
        """Returns the name of the adapter that these tensors are the weights of."""
        if id(theta[0]) not in self._names:
            raise ValueError("θ is not one of the problem's adapters")
        return self._names[id(theta[0])]


def _by_bin(log_probs: Tensor, answers: Tensor, bins: int) -> list[Tensor]:
    """Returns, for each bin of confidence, whether its answers are right, shape (n_b,) as 0 and 1."""
    confidence, chosen = log_probs.max(-1)
    place = bin_of(confidence.exp(), bins)
    return [(chosen == answers)[place == b].to(log_probs.dtype) for b in range(bins)]


def _sum_and_count(term: Tensor) -> Tensor:
    return wide(torch.stack([term.detach().sum(), torch.tensor(float(term.numel()), device=term.device)]))
