"""Predictive distributions: what probability a model gives to each option of a question.

Texts that begin alike share one pass over their beginning: the row of a question is prompt, option 1,
option 2, ..., where each option sees the prompt and itself, and its positions continue from the prompt. So do
questions whose prompts begin alike. Logits are computed only where a token is scored. Texts that are
not there yet are written by `toolkit.models.generation`.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from os.path import commonprefix
from typing import Literal

import torch
from torch import Tensor, nn

from toolkit.errors import CalibrantError
from toolkit.models.adjustment import Adjustment, adjust
from toolkit.models.encoding import EncodedQuestion
from toolkit.models.prefix import FrozenPrefix
from toolkit.models.quantization import computing

Score = Literal["sum", "token", "byte"]
"""An option's score: its log-probability, or that divided by its number of tokens or of UTF-8 bytes."""

Layout = Literal["tree", "packed", "separate"]
"""`packed` takes all options of a question in one row, and `tree` several questions too, with what they begin
alike with once; `separate` takes one row per option."""

ROW_LENGTH = 256
"""Tokens of a tree's row, about: longer ones spend more on attention than they save on padding."""

WINDOWS = ("sliding_window", "attention_chunk_size", "window_size")
"""Keys of a model's config that bound how far back some of its layers attend, in tokens."""


@dataclass(frozen=True)
class OptionBatch:
    """Q questions of up to K options as one forward pass of B rows and L columns.

    P scored tokens (the tokens of all options) are read from U places in the batch; the first tokens of a
    question's options share one place, the last of its prompt, unless they are laid out separately.

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
        spans: First column of each row that is no padding, and one past the last, shape (B, 2).
        reference: Scores under a reference model, shape (Q, K), nats, 0 where there is no such option; None
            unless all questions have them.
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
    spans: Tensor
    reference: Tensor | None = None

    def to(self, device: torch.device | str) -> "OptionBatch":
        """Returns the same batch on another device."""
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {name: tensor.to(device) for name, tensor in tensors.items() if tensor is not None}
        return replace(self, **moved)


def collate(
    questions: Sequence[EncodedQuestion],
    *,
    layout: Layout = "packed",
    pad_id: int = 0,
    padding_side: Literal["left", "right"] = "right",
    row_length: int = ROW_LENGTH,
) -> OptionBatch:
    """Lays questions out for one forward pass.

    Args:
        questions: The questions, at least one.
        layout: What shares a row.
        pad_id: Fills the rows; masked, so its value does not matter.
        padding_side: Where the filling goes.
        row_length: Tokens of a tree's row, about; of long questions it takes two.
    """
    width = max(len(question.options) for question in questions)
    rows: list[_Row] = []
    places: dict[tuple[int, int], int] = {}  # (row, column without padding)
    place: list[int] = []
    target: list[int] = []
    option: list[int] = []
    numbers = list(range(len(questions)))
    if layout == "tree":
        numbers.sort(key=lambda number: questions[number].prompt)  # neighbours begin alike
    new = _new_tokens([questions[number] for number in numbers])
    wanted = _even_length(new, questions, row_length)
    for number, count in zip(numbers, new, strict=True):
        question = questions[number]
        if not rows or layout != "tree" or len(rows[-1].ids) + count / 2 > wanted:
            rows.append(_Row())
        for index, tokens in enumerate(question.options):
            if layout == "separate" and index > 0:
                rows.append(_Row())
            again = len(question.prompt) if layout == "packed" else None
            columns = rows[-1].append(question.prompt + tokens[:-1], again)
            scored = [(len(rows) - 1, column) for column in columns[len(question.prompt) - 1 :]]
            place.extend(places.setdefault(spot, len(places)) for spot in scored)
            target.extend(tokens)
            option.extend([number * width + index] * len(tokens))

    references = [question.reference for question in questions if question.reference is not None]
    length = max(len(row.ids) for row in rows)
    left = [length - len(row.ids) if padding_side == "left" else 0 for row in rows]
    input_ids = torch.full((len(rows), length), pad_id)
    position_ids = torch.zeros((len(rows), length), dtype=torch.long)
    ends = torch.zeros((len(rows), length), dtype=torch.long)
    for index, (row, offset) in enumerate(zip(rows, left, strict=True)):
        span = slice(offset, offset + len(row.ids))
        input_ids[index, span] = torch.tensor(row.ids)
        position_ids[index, span] = torch.tensor(row.positions)
        ends[index, span] = torch.tensor(row.ends) + offset

    return OptionBatch(
        input_ids=input_ids,
        position_ids=position_ids,
        attention_mask=(ends > 0).long() if layout == "separate" else _tree_mask(ends),
        rows=torch.tensor([row for row, _ in places]),
        columns=torch.tensor([column + left[row] for row, column in places]),
        place=torch.tensor(place),
        target=torch.tensor(target),
        option=torch.tensor(option),
        tokens=_table([list(map(len, question.options)) for question in questions], width),
        bytes=_table([question.option_bytes for question in questions], width),
        answers=torch.tensor([question.answer for question in questions]),
        spans=torch.tensor([[offset, offset + len(row.ids)] for row, offset in zip(rows, left, strict=True)]),
        reference=_table(references, width) if len(references) == len(questions) else None,
    )


def predictive(model: nn.Module, batch: OptionBatch, prefix: FrozenPrefix | None = None) -> Tensor:
    """Runs the model and returns its raw logits at the batch's places, shape (U, V), in float32.

    Args:
        model: A causal language model.
        batch: The questions.
        prefix: The model's frozen layers, which need not run again on texts that they know.

    Raises:
        CalibrantError: A packed row is longer than the model's attention window.
    """

    def run(row: int) -> object:
        part = slice(*batch.spans[row].tolist())
        mask = batch.attention_mask[row : row + 1, ..., part]
        mask = mask if mask.dim() == 2 else mask[..., part, :]
        return _forward(model, batch.input_ids[row, None, part], batch.position_ids[row, None, part], mask)

    with computing(model):
        hidden = (
            None if prefix is None else prefix.hidden(batch.input_ids, batch.position_ids, batch.spans, run)
        )
        skipping = nullcontext() if prefix is None else prefix.replaced(hidden)
        with _projection_at(model, batch.rows, batch.columns), skipping:
            logits = _forward(model, batch.input_ids, batch.position_ids, batch.attention_mask)
    return logits[0].float()


def _forward(model: nn.Module, input_ids: Tensor, position_ids: Tensor, attention_mask: Tensor) -> Tensor:
    logits: Tensor = model(
        input_ids=input_ids,
        attention_mask=_mask_for(model, attention_mask),
        position_ids=position_ids,
        use_cache=False,
    ).logits
    return logits


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
    return normalised(total.masked_fill(batch.tokens == 0, float("-inf")), batch, score)


def normalised(sums: Tensor, batch: OptionBatch, score: Score) -> Tensor:
    """Turns sums over the options' tokens into another score, shape (Q, K), in nats."""
    if score == "sum":
        return sums
    return sums / (batch.tokens if score == "token" else batch.bytes).clamp(min=1)


def option_log_probs(
    logits: Tensor, batch: OptionBatch, adjustment: Adjustment | None = None, score: Score = "sum"
) -> Tensor:
    """Returns the log of the softmax of `option_scores` over each question's options, shape (Q, K), nats."""
    return option_scores(logits, batch, adjustment, score).log_softmax(-1)


def answer_tokens(batch: OptionBatch) -> tuple[Tensor, Tensor]:
    """Returns place and id of each token of the right options, shapes (A,) and (A,)."""
    width = batch.tokens.shape[1]
    right = batch.answers[batch.option // width] == batch.option % width
    return batch.place[right], batch.target[right]


def vocabulary_log_probs(logits: Tensor, adjustment: Adjustment | None = None) -> Tensor:
    """Returns log softmax(Δ ⊙ z + ι) over the vocabulary at every scored place, shape (U, V), in nats."""
    return adjust(logits, adjustment).log_softmax(-1)


def attention_window(model: nn.Module) -> int | None:
    """Returns how many tokens the model's narrowest attention layer reaches, or None where all reach all."""
    config = model.config.get_text_config()  # type: ignore[union-attr, operator]
    widths = [getattr(config, name, None) for name in WINDOWS]
    return min((width for width in widths if width is not None), default=None)


class _Row:
    """Texts laid out as a tree: what a text begins alike with the one before is not laid out again.

    Attributes:
        ids: Token ids, in the order of a walk down the tree, branch by branch.
        positions: Position of each token in its text.
        ends: One past the last column that a token's branch reaches; the columns from a token up to there
            continue it.
        path: Columns of the text laid out last.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.ends: list[int] = []
        self.path: list[int] = []

    def append(self, text: list[int], most: int | None = None) -> list[int]:
        """Lays out a text, sharing at most that many tokens, and returns the column of each of its tokens."""
        before = [self.ids[column] for column in self.path]
        shared = len(commonprefix([before, text[:most]]))
        self.path = [*self.path[:shared], *range(len(self.ids), len(self.ids) + len(text) - shared)]
        self.ids += text[shared:]
        self.positions += range(shared, len(text))
        self.ends += [0] * (len(text) - shared)
        for column in self.path:
            self.ends[column] = len(self.ids)
        return self.path


def _new_tokens(questions: Sequence[EncodedQuestion]) -> list[int]:
    """Returns how many tokens each question adds to a row after the one before it."""
    prompts: list[list[int]] = [[], *(question.prompt for question in questions)]
    shared = [len(commonprefix(pair)) for pair in pairwise(prompts)]
    return [question.packed_length - same for question, same in zip(questions, shared, strict=True)]


def _even_length(new: Sequence[int], questions: Sequence[EncodedQuestion], row_length: int) -> float:
    """Returns the length at which a tree's rows come out about equally long."""
    longest = max(question.packed_length for question in questions)
    return sum(new) / math.ceil(sum(new) / max(row_length, 2 * longest))


def _tree_mask(ends: Tensor) -> Tensor:
    """Returns the boolean mask (B, 1, L, L): a token sees itself and what it continues.

    Args:
        ends: One past the last column of each token's branch, 0 for padding, shape (B, L).
    """
    columns = torch.arange(ends.shape[1])
    query, key = columns[:, None], columns[None, :]
    seen = (key <= query) & (query < ends[:, None, :])
    # A row of padding sees itself: a softmax over nothing is NaN in some kernels.
    return (seen | (key == query)).unsqueeze(1)


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


def _table(values: Sequence[Sequence[float]], width: int) -> Tensor:
    """Returns rows of unequal length as one tensor (Q, width), filled with 0."""
    return torch.tensor([[*row] + [0] * (width - len(row)) for row in values])


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
