"""A model's passes over many questions, shared among processes."""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from tqdm import tqdm

from toolkit.models.encoding import EncodedQuestion
from toolkit.models.predictive import Layout, OptionBatch, collate, predictive
from toolkit.models.prefix import FrozenPrefix

Found = TypeVar("Found")


@torch.no_grad()  # inference mode would make tensors of a sharded base unfit for training
def over_passes(
    model: nn.Module,
    questions: Sequence[EncodedQuestion],
    find: Callable[[Tensor, OptionBatch], Found],
    *,
    layout: Layout = "tree",
    batch_size: int = 16,
    pad_id: int = 0,
    description: str | None = None,
    accelerator: Accelerator | None = None,
    prefix: FrozenPrefix | None = None,
) -> list[tuple[list[int], Found]]:
    """Runs a model in evaluation mode over questions, most tokens first.

    Args:
        model: A causal language model.
        questions: The encoded questions.
        find: What is to be found in a pass: of its raw logits (U, V) in float32, and its batch. The result
            must be fit for pickling where there are several processes.
        layout: See `toolkit.models.predictive.collate`.
        batch_size: Questions a forward pass.
        pad_id: Fills the rows.
        description: Label of a progress bar; no bar without one.
        accelerator: The processes that share the questions; every one gets what all have found.
            Without it this process runs over all.
        prefix: The model's frozen layers, which need not run again on texts that they know.

    Returns:
        For each pass the indices of its questions, in the order of its batch, and what was found in it.
    """
    device = next(model.parameters()).device
    chunks = _chunks(questions, layout, batch_size)
    found: list[tuple[list[int], Found]] = []
    was_training = model.training
    model.eval()
    try:
        for chunk in tqdm(
            _share(chunks, accelerator), desc=description, unit="batch", disable=description is None
        ):
            batch = collate([questions[i] for i in chunk], layout=layout, pad_id=pad_id).to(device)
            found.append((chunk, find(predictive(model, batch, prefix), batch)))
    finally:
        model.train(was_training)
    return _gather(found, len(chunks), accelerator)


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


def _gather(
    found: list[tuple[list[int], Found]], count: int, accelerator: Accelerator | None
) -> list[tuple[list[int], Found]]:
    """Returns what all processes found, on each question once."""
    if accelerator is None:
        return found
    own = len(range(accelerator.process_index, count, accelerator.num_processes))
    gathered = gather_object(found[:own])
    scored = sorted(index for chunk, _ in gathered for index in chunk)
    assert scored == list(range(len(scored))) and len(gathered) == count, "each question is scored once"
    return gathered
