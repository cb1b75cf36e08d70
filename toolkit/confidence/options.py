"""Confidence in the options of many questions, as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn

from toolkit.confidence.passes import over_passes
from toolkit.models.adjustment import Adjustment
from toolkit.models.encoding import EncodedQuestion
from toolkit.models.predictive import Layout, OptionBatch, Score, normalised, option_scores
from toolkit.models.prefix import FrozenPrefix


@dataclass(frozen=True)
class OptionConfidence:
    """What a model makes of N questions of up to K options.

    Attributes:
        log_probs: Log-probability of each option among the options, shape (N, K), in nats; -inf for absent.
        answers: Index of the right option, shape (N,).
        mass: Sum of the probabilities of the options' texts, before renormalising, shape (N,); above 1 only
            where an option begins with another.
    """

    log_probs: NDArray[np.float64]
    answers: NDArray[np.int64]
    mass: NDArray[np.float64]


def option_confidence(
    model: nn.Module,
    questions: Sequence[EncodedQuestion],
    *,
    adjustment: Adjustment | None = None,
    score: Score = "sum",
    layout: Layout = "tree",
    batch_size: int = 16,
    pad_id: int = 0,
    description: str | None = None,
    accelerator: Accelerator | None = None,
    prefix: FrozenPrefix | None = None,
) -> OptionConfidence:
    """Scores the options of many questions, most tokens first, and returns them in the order given.

    Args:
        model: A causal language model; scored in evaluation mode.
        questions: The encoded questions.
        adjustment: α of an `adjusted` adapter, on any device.
        score: How an option's tokens make its score.
        layout: See `toolkit.models.predictive.collate`.
        batch_size: Questions a forward pass.
        pad_id: Fills the rows.
        description: Label of a progress bar; no bar without one.
        accelerator: The processes that share the questions; every one gets the confidence in all of them.
            Without it this process scores all.
        prefix: The model's frozen layers, which need not run again on texts that they know.
    """
    device = next(model.parameters()).device
    if adjustment is not None:
        adjustment = Adjustment(*(tensor.to(device) for tensor in adjustment))

    def find(logits: Tensor, batch: OptionBatch) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        sums = option_scores(logits, batch, adjustment)
        scores = normalised(sums, batch, score).cpu().double().log_softmax(-1)
        return scores.numpy(), sums.exp().sum(-1).cpu().numpy()

    width = max(len(question.options) for question in questions)
    log_probs = np.full((len(questions), width), -np.inf)
    mass = np.zeros(len(questions))
    for chunk, (chunk_log_probs, chunk_mass) in over_passes(
        model,
        questions,
        find,
        layout=layout,
        batch_size=batch_size,
        pad_id=pad_id,
        description=description,
        accelerator=accelerator,
        prefix=prefix,
    ):
        log_probs[chunk, : chunk_log_probs.shape[1]] = chunk_log_probs
        mass[chunk] = chunk_mass
    answers = np.array([question.answer for question in questions], dtype=np.int64)
    return OptionConfidence(log_probs, answers, mass)
