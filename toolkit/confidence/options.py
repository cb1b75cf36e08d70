"""Confidence in the options of many questions, as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from tqdm import tqdm

from toolkit.models.adjustment import Adjustment
from toolkit.models.encoding import EncodedQuestion
from toolkit.models.predictive import Layout, Score, collate, option_scores, predictive


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


@torch.inference_mode()
def option_confidence(
    model: nn.Module,
    questions: Sequence[EncodedQuestion],
    *,
    adjustment: Adjustment | None = None,
    score: Score = "sum",
    layout: Layout = "packed",
    batch_size: int = 16,
    pad_id: int = 0,
    description: str | None = None,
) -> OptionConfidence:
    """Scores the options of many questions, longest first, and returns them in the order given.

    Args:
        model: A causal language model; scored in evaluation mode.
        questions: The encoded questions.
        adjustment: α of an `adjusted` adapter, on any device.
        score: How an option's tokens make its score.
        layout: See `toolkit.models.predictive.collate`.
        batch_size: Questions a forward pass.
        pad_id: Fills the rows.
        description: Label of a progress bar; no bar without one.
    """
    device = next(model.parameters()).device
    if adjustment is not None:
        adjustment = Adjustment(*(tensor.to(device) for tensor in adjustment))
    width = max(len(question.options) for question in questions)
    log_probs = np.full((len(questions), width), -np.inf)
    mass = np.zeros(len(questions))
    order = sorted(range(len(questions)), key=lambda i: -questions[i].packed_length)
    chunks = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    was_training = model.training
    model.eval()
    try:
        for chunk in tqdm(chunks, desc=description, unit="batch", disable=description is None):
            batch = collate([questions[i] for i in chunk], layout=layout, pad_id=pad_id).to(device)
            logits = predictive(model, batch)
            found = option_scores(logits, batch, adjustment, score).cpu().double().log_softmax(-1)
            log_probs[chunk, : found.shape[1]] = found.numpy()
            mass[chunk] = option_scores(logits, batch, adjustment).exp().sum(-1).cpu().numpy()
    finally:
        model.train(was_training)
    answers = np.array([question.answer for question in questions], dtype=np.int64)
    return OptionConfidence(log_probs, answers, mass)
