"""Whether a model takes all options of a question in one row, and whether these questions fit into one."""

import logging
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from toolkit.models.encoding import EncodedQuestion
from toolkit.models.predictive import (
    ROW_LENGTH,
    Layout,
    attention_window,
    collate,
    option_scores,
    predictive,
)
from toolkit.models.prefix import FrozenPrefix, frozen_layers
from toolkit.models.quantization import compute_dtype

logger = logging.getLogger(__name__)


@torch.no_grad()
def packing_error(model: nn.Module, vocabulary: int) -> float:
    """Measures how far the scores of a tree are from one-option-one-pass scores, on a small random batch.

    Architectures differ in whether they take a four-dimensional mask, and nothing in their config says so:
    some raise, some ignore it. This asks the model itself.

    Args:
        model: A causal language model; asked in evaluation mode.
        vocabulary: Token ids are drawn below this.

    Returns:
        The largest difference of an option's score, in nats; infinity where the packed pass fails.
    """
    questions = _random_questions(vocabulary)

    def scores(layout: Layout) -> Tensor:
        batch = collate(questions, layout=layout).to(next(model.parameters()).device)
        return option_scores(predictive(model, batch), batch)

    was_training = model.training
    model.eval()
    try:
        expected = scores("separate")
        try:
            error = (scores("tree") - expected).abs().max().item()
        except Exception:  # an architecture may refuse the mask in any way it likes
            return math.inf
    finally:
        model.train(was_training)
    return math.inf if math.isnan(error) else error


def _random_questions(vocabulary: int) -> list[EncodedQuestion]:
    """Returns two questions that begin alike: a row of 12 tokens, which fits into any window."""
    generator = torch.Generator().manual_seed(0)

    def draw(size: int) -> list[int]:
        return torch.randint(vocabulary, (size,), generator=generator).tolist()

    shared = draw(2)
    return [
        EncodedQuestion(str(size), shared + draw(size), [draw(3), draw(1), draw(2)], 0, [1, 1, 1])
        for size in (1, 3)
    ]


@torch.no_grad()
def choose_prefix(model: nn.Module, vocabulary: int, layout: Layout, limit: int) -> FrozenPrefix | None:
    """Returns what keeps the hidden states above the frozen layers, where that changes no score.

    It would where dropout acts on what is frozen, or where later layers look past the hidden states.

    Args:
        model: A causal language model with its adapters.
        vocabulary: Number of token ids.
        layout: How its questions are laid out.
        limit: Bytes that may be kept.
    """
    layers = frozen_layers(model)
    if not layers or limit == 0:
        return None
    batch = collate(_random_questions(vocabulary), layout=layout).to(next(model.parameters()).device)
    prefix = FrozenPrefix(layers, limit)
    was_training = model.training
    model.eval()
    try:
        expected = option_scores(predictive(model, batch), batch)
        found = [option_scores(predictive(model, batch, prefix), batch) for _ in range(2)]
    except Exception:  # an architecture may object to it in any way it likes
        return None
    finally:
        model.train(was_training)
    same = all((one - expected).abs().max() <= _tolerance(model) for one in found)
    return FrozenPrefix(layers, limit) if same else None


def _tolerance(model: nn.Module) -> float:
    """Returns the difference that two ways to the same score may have, in nats: what rounding explains."""
    return 1e-3 if compute_dtype(model) == torch.float32 else 0.5


def choose_layout(model: nn.Module, vocabulary: int, tolerance: float | None = None) -> Layout:
    """Returns `tree` where scores of texts that share a row are the separate ones, else `separate`.

    Args:
        model: A causal language model.
        vocabulary: Number of token ids.
        tolerance: Largest difference in nats; by default 1e-3 in float32, and in a 16-bit type what rounding
            explains, .5.
    """
    tolerance = _tolerance(model) if tolerance is None else tolerance
    return "tree" if packing_error(model, vocabulary) <= tolerance else "separate"


def layout_for(model: nn.Module, questions: Sequence[EncodedQuestion], layout: Layout) -> Layout:
    """Returns the layout of these questions: one with shorter rows where rows outgrow the model's attention.

    A layer with a sliding window makes its own mask. The mask of a row that texts share takes its place and
    does not slide, which is the same thing only while the row is no longer than the window. Where a question
    alone is longer the layout is `separate`, with a warning.

    Args:
        model: A causal language model.
        questions: The questions.
        layout: What `choose_layout` says of the model.
    """
    window = attention_window(model)
    longest = max(question.packed_length for question in questions)
    if layout == "separate" or window is None:
        return layout
    if longest <= window:  # a tree's rows are of ROW_LENGTH or two questions, and may end with half of one
        return layout if max(ROW_LENGTH, 2 * longest) + longest <= window else "packed"
    logger.warning(
        "a question with its options takes %d tokens and the model attends to the last %d: each option gets "
        "a pass of its own, which is slower",
        longest,
        window,
    )
    return "separate"
