"""Whether a model takes all options of a question in one row, and whether these questions fit into one."""

import logging
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from toolkit.models.encoding import EncodedQuestion
from toolkit.models.predictive import Layout, attention_window, collate, option_scores, predictive

logger = logging.getLogger(__name__)


@torch.no_grad()
def packing_error(model: nn.Module, vocabulary: int) -> float:
    """Measures how far packed scores are from one-option-one-pass scores, on a small random batch.

    Architectures differ in whether they take a four-dimensional mask, and nothing in their config says so:
    some raise, some ignore it. This asks the model itself.

    Args:
        model: A causal language model in evaluation mode.
        vocabulary: Token ids are drawn below this.

    Returns:
        The largest difference of an option's score, in nats; infinity where the packed pass fails.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(size: int) -> list[int]:
        return torch.randint(vocabulary, (size,), generator=generator).tolist()

    questions = [
        EncodedQuestion(str(size), draw(size), [draw(3), draw(1), draw(5)], 0, [1, 1, 1]) for size in (4, 9)
    ]

    def scores(layout: Layout) -> Tensor:
        batch = collate(questions, layout=layout).to(next(model.parameters()).device)
        return option_scores(predictive(model, batch), batch)

    expected = scores("separate")
    try:
        error = (scores("packed") - expected).abs().max().item()
    except Exception:  # an architecture may refuse the mask in any way it likes
        return math.inf
    return math.inf if math.isnan(error) else error


def choose_layout(model: nn.Module, vocabulary: int, tolerance: float | None = None) -> Layout:
    """Returns `packed` where the model's packed scores are its separate ones, `separate` elsewhere.

    Args:
        model: A causal language model in evaluation mode.
        vocabulary: Number of token ids.
        tolerance: Largest difference in nats; by default 1e-3 in float32, and in a 16-bit type what rounding
            explains, .5.
    """
    if tolerance is None:
        tolerance = 1e-3 if next(model.parameters()).dtype == torch.float32 else 0.5
    return "packed" if packing_error(model, vocabulary) <= tolerance else "separate"


def layout_for(model: nn.Module, questions: Sequence[EncodedQuestion], layout: Layout) -> Layout:
    """Returns `separate`, and says so, where packed rows of these questions outgrow the model's attention.

    A layer with a sliding window makes its own mask. The mask of packed rows takes its place and does not
    slide, which is the same thing only while a row is no longer than the window.

    Args:
        model: A causal language model.
        questions: The questions.
        layout: What `choose_layout` says of the model.
    """
    window = attention_window(model)
    longest = max(question.packed_length for question in questions)
    if layout == "separate" or window is None or longest <= window:
        return layout
    logger.warning(
        "a question with its options takes %d tokens and the model attends to the last %d: each option gets "
        "a pass of its own, which is slower",
        longest,
        window,
    )
    return "separate"
