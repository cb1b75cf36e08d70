"""Confidence in the options of many questions, as arrays."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from numpy.typing import NDArray
from torch import nn
from tqdm import tqdm

from toolkit.models.adjustment import Adjustment
from toolkit.models.encoding import EncodedQuestion
from toolkit.models.predictive import Layout, Score, collate, normalised, option_scores, predictive
from toolkit.models.prefix import FrozenPrefix

Scored = tuple[list[int], NDArray[np.float64], NDArray[np.float32]]
"""Indices of some questions, their options' log-probabilities (n, K), and the options' mass (n,)."""


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


@torch.no_grad()  # inference mode would make tensors of a sharded base unfit for training
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
    width = max(len(question.options) for question in questions)
    log_probs = np.full((len(questions), width), -np.inf)
    mass = np.zeros(len(questions))
    chunks = _chunks(questions, layout, batch_size)
    share = _share(chunks, accelerator)
    found = []
    was_training = model.training
    model.eval()
    try:
        for chunk in tqdm(share, desc=description, unit="batch", disable=description is None):
            batch = collate([questions[i] for i in chunk], layout=layout, pad_id=pad_id).to(device)
            sums = option_scores(predictive(model, batch, prefix), batch, adjustment)
            scores = normalised(sums, batch, score).cpu().double().log_softmax(-1)
            found.append((chunk, scores.numpy(), sums.exp().sum(-1).cpu().numpy()))
    finally:
        model.train(was_training)
    for chunk, chunk_log_probs, chunk_mass in _gather(found, len(chunks), accelerator):
        log_probs[chunk, : chunk_log_probs.shape[1]] = chunk_log_probs
        mass[chunk] = chunk_mass
    answers = np.array([question.answer for question in questions], dtype=np.int64)
    return OptionConfidence(log_probs, answers, mass)


def _chunks(questions: Sequence[EncodedQuestion], layout: Layout, size: int) -> list[list[int]]:
    """Returns the questions of each pass: of like length, or for a tree of like beginning."""
    order = list(range(len(questions)))
    if layout == "tree":
        order.sort(key=lambda i: questions[i].prompt)
    else:
        order.sort(key=lambda i: -questions[i].packed_length)
    chunks = [order[start : start + size] for start in range(0, len(order), size)]
    return sorted(chunks, key=lambda chunk: -sum(questions[i].packed_length for i in chunk))


def _share(chunks: list[list[int]], accelerator: Accelerator | None) -> list[list[int]]:
    """Returns what this process scores; where the base is sharded, all must run equally many passes.

    A process that would have one chunk fewer gets the first one again.
    """
    if accelerator is None:
        return chunks
    own = chunks[accelerator.process_index :: accelerator.num_processes]
    passes = math.ceil(len(chunks) / accelerator.num_processes)
    return own + chunks[:1] * (passes - len(own))


def _gather(found: list[Scored], count: int, accelerator: Accelerator | None) -> list[Scored]:
    """Returns what all processes scored, each question once."""
    if accelerator is None:
        return found
    own = len(range(accelerator.process_index, count, accelerator.num_processes))
    gathered = gather_object(found[:own])
    scored = sorted(index for chunk, _, _ in gathered for index in chunk)
    assert scored == list(range(len(scored))) and len(gathered) == count, "each question is scored once"
    return gathered
