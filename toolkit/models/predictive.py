"""Predictive distributions: what probability a model gives to each option of a question.

All options of a question share one pass over its prompt: the row is prompt, option 1, option 2, ...; each
option sees the prompt and itself, and its positions continue from the prompt. Logits are computed only where
a token is scored. This module is the only reader of logits in the toolkit.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor, nn

from toolkit.errors import CalibrantError
from toolkit.models.adjustment import Adjustment, adjust
from toolkit.models.encoding import EncodedQuestion

Score = Literal["sum", "token", "byte"]
"""An option's score: its log-probability, or that divided by its number of tokens or of UTF-8 bytes."""

Layout = Literal["packed", "separate"]
"""`packed` takes all options of a question in one row, `separate` one row per option."""

WINDOWS = ("sliding_window", "attention_chunk_size", "window_size")
"""Keys of a model's config that bound how far back some of its layers attend, in tokens."""


@dataclass(frozen=True)
class OptionBatch:
    """Q questions of up to K options as one forward pass of B rows and L columns.

    P scored tokens (the tokens of all options) are read from U places in the batch; the first tokens of a
    packed question's options share one place, the last of its prompt.

    Attributes:
        input_ids: Token ids, shape (B, L).
        position_ids: Position of each token in its own text, shape (B, L).
        attention_mask: Who sees whom, shape (B, 1, L, L), or (B, L) where each row is an ordinary text.
        rows: Row of each place, shape (U,).
        columns: Column of each place, shape (U,).
        place: Place whose logits predict each scored token, shape (P,).
        target: Id of each scored token, shape (P,).
        option: Option that each scored token belongs to, as question · K + option, shape (P,).
        tokens: Number of tokens of each option, 0 where there is no such option, shape (Q, K).
        bytes: Number of UTF-8 bytes of each option's text, shape (Q, K).
        answers: Index of the right option, shape (Q,).
    """

    input_ids: Tensor
    position_ids: Tensor
    attention_mask: Tensor
    rows: Tensor
    columns: Tensor
    place: Tensor
    target: Tensor
    option: Tensor
    tokens: Tensor
    bytes: Tensor
    answers: Tensor

    def to(self, device: torch.device | str) -> "OptionBatch":
        """Returns the same batch on another device."""
        return replace(self, **{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def collate(
    questions: Sequence[EncodedQuestion],
    *,
    layout: Layout = "packed",
    pad_id: int = 0,
    padding_side: Literal["left", "right"] = "right",
) -> OptionBatch:
    """Lays questions out for one forward pass.

    Args:
        questions: The questions, at least one.
        layout: All options of a question in one row, or each in a row of its own.
        pad_id: Fills the rows; masked, so its value does not matter.
        padding_side: Where the filling goes.
    """
    width = max(len(question.options) for question in questions)
    rows: list[_Row] = []
    places: list[tuple[int, int]] = []  # (row, column without padding)
    place, target, option = [], [], []
    for number, question in enumerate(questions):
        if layout == "packed":
            rows.append(_Row(question.prompt))
            places.append((len(rows) - 1, len(question.prompt) - 1))
            prompt_end = len(places) - 1
        for index, tokens in enumerate(question.options):
            if layout == "separate":
                rows.append(_Row(question.prompt))
                places.append((len(rows) - 1, len(question.prompt) - 1))
                prompt_end = len(places) - 1
            start = rows[-1].append(tokens[:-1])
            inner = range(len(places), len(places) + len(tokens) - 1)
            places.extend((len(rows) - 1, start + offset) for offset in range(len(inner)))
            place.extend([prompt_end, *inner])
            target.extend(tokens)
            option.extend([number * width + index] * len(tokens))

    length = max(len(row.ids) for row in rows)
    left = [length - len(row.ids) if padding_side == "left" else 0 for row in rows]
    input_ids = torch.full((len(rows), length), pad_id)
    position_ids = torch.zeros((len(rows), length), dtype=torch.long)
    block = torch.full((len(rows), length), -1)  # -1 padding, 0 prompt, 1 ... options
    for index, (row, offset) in enumerate(zip(rows, left, strict=True)):
        span = slice(offset, offset + len(row.ids))
        input_ids[index, span] = torch.tensor(row.ids)
        position_ids[index, span] = torch.tensor(row.positions)
        block[index, span] = torch.tensor(row.blocks)

    return OptionBatch(
        input_ids=input_ids,
        position_ids=position_ids,
        attention_mask=_block_mask(block) if layout == "packed" else (block >= 0).long(),
        rows=torch.tensor([row for row, _ in places]),
        columns=torch.tensor([column + left[row] for row, column in places]),
        place=torch.tensor(place),
        target=torch.tensor(target),
        option=torch.tensor(option),
        tokens=_table([list(map(len, question.options)) for question in questions], width),
        bytes=_table([question.option_bytes for question in questions], width),
        answers=torch.tensor([question.answer for question in questions]),
    )


def predictive(model: nn.Module, batch: OptionBatch) -> Tensor:
    """Runs the model and returns its raw logits at the batch's places, shape (U, V), in float32.

    Raises:
        CalibrantError: A packed row is longer than the model's attention window.
    """
    with _projection_at(model, batch.rows, batch.columns):
        logits = model(
            input_ids=batch.input_ids,
            attention_mask=_mask_for(model, batch.attention_mask),
            position_ids=batch.position_ids,
            use_cache=False,
        ).logits
    return logits[0].float()


def option_scores(
    logits: Tensor, batch: OptionBatch, adjustment: Adjustment | None = None, score: Score = "sum"
) -> Tensor:
    """Scores each option by the log-probability of its tokens.

    Args:
        logits: Raw logits z from `predictive`, shape (U, V).
        batch: The batch they came from.
        adjustment: α; the tokens' distribution is softmax(Δ ⊙ z + ι), or softmax(z) without one.
        score: Sum over the option's tokens, or per token, or per byte.

    Returns:
        Scores in nats, shape (Q, K), -inf where a question has fewer than K options. With `sum`, their
        exponential is the probability the model gives to the option's text.
    """
    adjusted = adjust(logits, adjustment)
    normaliser = adjusted.logsumexp(-1)  # (U,)
    token_log_probs = adjusted[batch.place, batch.target] - normaliser[batch.place]  # (P,)
    total = torch.zeros_like(batch.tokens, dtype=token_log_probs.dtype).flatten()
    total = total.index_add(0, batch.option, token_log_probs).view_as(batch.tokens)
    if score != "sum":
        total = total / (batch.tokens if score == "token" else batch.bytes).clamp(min=1)
    return total.masked_fill(batch.tokens == 0, float("-inf"))


def option_log_probs(
    logits: Tensor, batch: OptionBatch, adjustment: Adjustment | None = None, score: Score = "sum"
) -> Tensor:
    """Returns the log of the softmax of `option_scores` over each question's options, shape (Q, K), nats."""
    return option_scores(logits, batch, adjustment, score).log_softmax(-1)


def answer_token_log_probs(
    logits: Tensor, batch: OptionBatch, adjustment: Adjustment | None = None
) -> Tensor:
    """Returns the log-probability of each token of the right options, shape (A,), in nats."""
    width = batch.tokens.shape[1]
    right = batch.answers[batch.option // width] == batch.option % width
    log_probs = vocabulary_log_probs(logits, adjustment)
    return log_probs[batch.place[right], batch.target[right]]


def vocabulary_log_probs(logits: Tensor, adjustment: Adjustment | None = None) -> Tensor:
    """Returns log softmax(Δ ⊙ z + ι) over the vocabulary at every scored place, shape (U, V), in nats."""
    return adjust(logits, adjustment).log_softmax(-1)


def attention_window(model: nn.Module) -> int | None:
    """Returns how many tokens the model's narrowest attention layer reaches, or None where all reach all."""
    config = model.config.get_text_config()  # type: ignore[union-attr, operator]
    widths = [getattr(config, name, None) for name in WINDOWS]
    return min((width for width in widths if width is not None), default=None)


class _Row:
    """Token ids of one row with their positions and blocks: 0 for the prompt, 1, 2, ... for options."""

    def __init__(self, prompt: list[int]) -> None:
        self.prompt_length = len(prompt)
        self.ids = list(prompt)
        self.positions = list(range(len(prompt)))
        self.blocks = [0] * len(prompt)

    def append(self, tokens: list[int]) -> int:
        """Appends an option and returns the column where it starts."""
        start = len(self.ids)
        self.ids += tokens
        self.positions += range(self.prompt_length, self.prompt_length + len(tokens))
        self.blocks += [max(self.blocks) + 1] * len(tokens)
        return start


def _block_mask(block: Tensor) -> Tensor:
    """Returns the boolean mask (B, 1, L, L): causal, and only towards the prompt and the own block."""
    length = block.shape[1]
    query, key = block[:, :, None], block[:, None, :]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    seen = causal & ((key == 0) | (key == query)) & (key >= 0)
    # A row of padding sees itself: a softmax over nothing is NaN in some kernels.
    return (seen | torch.eye(length, dtype=torch.bool)).unsqueeze(1)


def _mask_for(model: nn.Module, mask: Tensor) -> Tensor:
    """Returns the mask as the model's attention takes it: eager attention adds it to its scores."""
    if mask.dim() == 2:
        return mask
    window = attention_window(model)
    if window is not None and mask.shape[-1] > window:  # a mask of ours takes the place of the model's own
        raise CalibrantError(
            f"a packed row of {mask.shape[-1]} tokens is longer than the model's attention window of "
            f"{window}; lay these questions out separately"
        )
    if model.config._attn_implementation != "eager":  # type: ignore[union-attr]
        return mask
    dtype = next(model.parameters()).dtype
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


def _table(values: list[list[int]], width: int) -> Tensor:
    """Returns rows of unequal length as one tensor (Q, width), filled with 0."""
    return torch.tensor([row + [0] * (width - len(row)) for row in values])


@contextmanager
def _projection_at(model: nn.Module, rows: Tensor, columns: Tensor) -> Iterator[None]:
    """Lets the vocabulary projection see only the given places, as one row of U hidden states.

    A hook keeps whatever the architecture does to its logits afterwards (scaling, soft capping).
    """
    head = model.get_output_embeddings()  # type: ignore[operator]
    handle = head.register_forward_pre_hook(lambda _, inputs: (inputs[0][rows, columns].unsqueeze(0),))
    try:
        yield
    finally:
        handle.remove()
