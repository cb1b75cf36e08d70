"""Confidence at every token of an answer, generated or given, and what it makes of the answer as a whole.

What a model gives to a token is read from its raw logits. What temperature, top-k and nucleus left of that is
a choice of the reader's, and stands beside it with `kept` in its name.
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from toolkit.models.adjustment import Adjustment
from toolkit.models.decoding import kept_log_probs
from toolkit.models.generation import Decoding, end_ids, given_logits, stream
from toolkit.models.spans import TokenText


@dataclass(frozen=True)
class Alternative:
    """A token that could have stood in a place.

    Attributes:
        id: The token.
        text: What it would add to the text; empty where it is but a part of a character.
        log_prob: Its log-probability by the raw logits, in nats.
        kept_log_prob: The same after temperature, top-k and nucleus; -inf where they cut it.
    """

    id: int
    text: str
    log_prob: float
    kept_log_prob: float


@dataclass(frozen=True)
class TokenConfidence:
    """A token of an answer and what the model thought of it.

    Attributes:
        id: The token.
        text: What it adds to the answer's text; of a character of several tokens the last adds it, the others
            add nothing. A special token adds its name.
        start: First of its characters in the answer's text.
        end: One past the last of them.
        log_prob: Log-probability by the raw logits, in nats.
        rank: Place among all tokens by the raw logits, 1 for the most probable; equals share the better one.
        entropy: Entropy of the distribution by the raw logits, in nats.
        alternatives: The most probable tokens in its place, most probable first; it may be among them.
        kept_log_prob: Log-probability after temperature, top-k and nucleus; -inf where they cut it, as may
            happen to a token that is given.
    """

    id: int
    text: str
    start: int
    end: int
    log_prob: float
    rank: int
    entropy: float
    alternatives: tuple[Alternative, ...]
    kept_log_prob: float


def generated_confidence(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    prompt_ids: Sequence[int],
    decoding: Decoding,
    *,
    seed: int,
    adjustment: Adjustment | None = None,
    forced: Sequence[int] = (),
    top: int = 10,
) -> Generator[TokenConfidence, None, None]:
    """Generates an answer and yields each token, with its confidence, as soon as it is chosen.

    The answer ends with a token of `toolkit.models.generation.end_ids`, which is yielded too, with the token
    that completes a text of `decoding.stop`, or after `decoding.max_tokens`. Closing the generator stops it;
    see `toolkit.models.generation.stream` for this and for the arguments that are not described here.

    Args:
        model: A causal language model.
        tokenizer: Its tokenizer.
        prompt_ids: The prompt.
        decoding: How tokens are chosen, and where an answer ends.
        seed: Decides the draws.
        adjustment: α of an `adjusted` adapter.
        forced: Tokens that the answer begins with.
        top: Number of alternatives.
    """
    answer = TokenText(tokenizer)
    ends = end_ids(model, tokenizer)
    steps = stream(model, prompt_ids, decoding, seed=seed, end_ids=ends, adjustment=adjustment, forced=forced)
    for step in steps:
        ids = torch.tensor([step.id], device=step.logits.device)
        [row] = _measures(step.logits[None], step.kept[None], ids, top).tolist()
        token = _token(answer, step.id, row)
        yield token
        if stopped(answer.text, token.start, decoding.stop):
            return


def given_confidence(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    prompt_ids: Sequence[int],
    answer_ids: Sequence[int],
    *,
    decoding: Decoding | None = None,
    adjustment: Adjustment | None = None,
    top: int = 10,
) -> list[TokenConfidence]:
    """Reads a given answer in one pass, each token after the tokens before it.

    Args:
        model: A causal language model.
        tokenizer: Its tokenizer.
        prompt_ids: The prompt.
        answer_ids: The answer, at least one token.
        decoding: What the kept log-probabilities are after; the raw ones if None.
        adjustment: α of an `adjusted` adapter.
        top: Number of alternatives.
    """
    logits = given_logits(model, prompt_ids, answer_ids, adjustment=adjustment)
    how = decoding or Decoding()
    kept = kept_log_probs(logits, temperature=how.temperature, top_p=how.top_p, top_k=how.top_k)
    rows = _measures(logits, kept, torch.tensor(answer_ids, device=logits.device), top).tolist()
    answer = TokenText(tokenizer)
    return [_token(answer, token, row) for token, row in zip(answer_ids, rows, strict=True)]


def stopped(text: str, start: int, stop: Sequence[str]) -> bool:
    """Says whether the characters of a text from `start` on complete a text that ends an answer."""
    return any(one in text[max(0, start - len(one) + 1) :] for one in stop)


def _measures(logits: Tensor, kept: Tensor, ids: Tensor, top: int) -> Tensor:
    """Returns all numbers of T places as one table, so that they leave the device together.

    Args:
        logits: Raw logits, shape (T, V).
        kept: What temperature, top-k and nucleus left of them, shape (T, V), in nats.
        ids: The tokens in these places, shape (T,).
        top: Number of alternatives K.

    Returns:
        Shape (T, 4 + 3 K): log-probability, rank, entropy, kept log-probability, and the alternatives' ids,
        log-probabilities and kept ones. Ids are exact in float32, which holds every integer up to 2²⁴.
    """
    log_probs = logits.log_softmax(-1)
    entropy = torch.special.entr(log_probs.exp()).sum(-1, keepdim=True)
    own = log_probs.gather(-1, ids[:, None])
    rank = 1 + (log_probs > own).sum(-1, keepdim=True)
    best, places = log_probs.topk(min(top, logits.shape[-1]))
    columns = [own, rank, entropy, kept.gather(-1, ids[:, None]), places, best, kept.gather(-1, places)]
    return torch.cat([column.float() for column in columns], dim=-1)


def _token(answer: TokenText, token: int, row: Sequence[float]) -> TokenConfidence:
    """Adds a token to an answer; `row` is its row of `_measures`."""
    log_prob, rank, entropy, kept, *others = row
    count = len(others) // 3
    columns = (others[:count], others[count : 2 * count], others[2 * count :])
    alternatives = tuple(
        Alternative(int(one), answer.peek(int(one)), *values) for one, *values in zip(*columns, strict=True)
    )
    start, end = answer.append(token)
    text = answer.text[start:end]
    return TokenConfidence(token, text, start, end, log_prob, int(rank), entropy, alternatives, kept)


class Read(Protocol):
    """What the confidence in a whole answer looks at of a token, as in `TokenConfidence`."""

    @property
    def log_prob(self) -> float:
        """Log-probability, in nats."""

    @property
    def entropy(self) -> float:
        """Entropy of the distribution, in nats."""


def product(tokens: Sequence[Read]) -> float:
    """Returns the probability of the whole answer: the product over its tokens."""
    return math.exp(math.fsum(token.log_prob for token in tokens))


def length_normalised(tokens: Sequence[Read]) -> float:
    """Returns the geometric mean of the tokens' probabilities."""
    return math.exp(fmean(token.log_prob for token in tokens))


def minimum(tokens: Sequence[Read]) -> float:
    """Returns the probability of the least probable token."""
    return math.exp(min(token.log_prob for token in tokens))


def first_token(tokens: Sequence[Read]) -> float:
    """Returns the probability of the first token."""
    return math.exp(tokens[0].log_prob)


def mean_entropy(tokens: Sequence[Read]) -> float:
    """Returns exp(-H̄), H̄ the mean entropy of the tokens' distributions in nats.

    It is 1 where each token is certain, and 1/k where each place is as open as among k equal tokens. It
    depends on which tokens were chosen only through the places that they lead to.
    """
    return math.exp(-fmean(token.entropy for token in tokens))


SEQUENCE: dict[str, Callable[[Sequence[Read]], float]] = {
    "product": product,
    "length_normalised": length_normalised,
    "minimum": minimum,
    "first_token": first_token,
    "mean_entropy": mean_entropy,
}
"""What makes one confidence, from 0 to 1, of the tokens of an answer, at least one. All that are given count:
leave out the token that ends an answer where that is no part of it."""
