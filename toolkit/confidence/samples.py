"""Many answers to each question, drawn together: the prompt is read once, and answers share each step."""

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from toolkit.confidence.tokens import stopped
from toolkit.errors import CalibrantError
from toolkit.models.adjustment import Adjustment
from toolkit.models.decoding import choose, gumbel_noise, kept_log_probs, random_numbers
from toolkit.models.generation import Decoding, Run, advance, begin, check_room, end_ids
from toolkit.models.sharding import is_sharded
from toolkit.models.spans import TokenText

Row = tuple[int, int]
"""Index of a question and number of a sample."""


@dataclass(frozen=True)
class Sample:
    """One drawn answer.

    Attributes:
        text: Its text without special tokens, and without a stop text and what comes after it.
        ids: All its tokens, those that ended it among them.
        log_prob: Sum of their log-probabilities by the raw logits, in nats.
        ended: Whether it ended by itself; otherwise it was cut at the most tokens allowed.
    """

    text: str
    ids: tuple[int, ...]
    log_prob: float
    ended: bool


def draw_samples(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[int]],
    ids: Sequence[str],
    *,
    n: int = 50,
    decoding: Decoding,
    seed: int,
    batch_size: int = 64,
    accelerator: Accelerator | None = None,
    description: str | None = None,
    adjustment: Adjustment | None = None,
) -> list[list[Sample]]:
    """Draws n independent answers to each question.

    An answer is a function of the seed, its question's id, its number and the model alone, whatever is drawn
    beside it and on however many processes.

    Args:
        model: A causal language model; run in evaluation mode.
        tokenizer: Its tokenizer.
        prompts: The questions' prompts.
        ids: The questions' ids, each once.
        n: Answers to each question.
        decoding: How tokens are chosen, and where an answer ends.
        seed: Decides the draws.
        batch_size: Most answers that are drawn together: all of a question, or of several short of it.
        accelerator: The processes that share the questions; every one gets the answers to all of them.
            Without it this process draws all.
        description: Label of a progress bar; no bar without one.
        adjustment: α of an `adjusted` adapter.

    Returns:
        For each question its answers, in the order of their numbers.

    Raises:
        CalibrantError: An id stands twice, prompts and ids differ in number, a prompt does not fit into the
            context with its answer, or the base is sharded.
    """
    if len(ids) != len(prompts) or len(set(ids)) != len(ids):
        raise CalibrantError(f"{len(prompts)} prompts have {len(set(ids))} ids; give each an id of its own")
    if accelerator is not None and is_sharded(accelerator):
        raise CalibrantError(
            "a sharded base cannot draw samples; launch with an accelerate config without it"
        )
    check_room(model, prompts, decoding)
    batches = _batches(prompts, n, batch_size)
    if accelerator is not None:
        batches = batches[accelerator.process_index :: accelerator.num_processes]
    ends = end_ids(model, tokenizer)
    empty = TokenText(tokenizer, special=False)
    found: list[tuple[Row, Sample]] = []
    for rows in tqdm(batches, desc=description, unit="batch", disable=description is None):
        drafts = [_Draft(random_numbers(seed, ids[which], number), copy(empty)) for which, number in rows]
        questions = list(dict.fromkeys(question for question, _ in rows))
        logits, run = begin(model, [prompts[question] for question in questions], adjustment)
        places = [questions.index(question) for question, _ in rows]
        run.select(places)
        _draw(model, run, logits[places, 0], drafts, decoding, ends, adjustment)
        found += [(row, draft.sample(decoding.stop)) for row, draft in zip(rows, drafts, strict=True)]
    if accelerator is not None:
        found = gather_object(found)
    answers = dict(found)
    assert len(answers) == len(found) == n * len(prompts), "each answer is drawn once"
    return [[answers[question, number] for number in range(n)] for question in range(len(prompts))]


def _batches(prompts: Sequence[list[int]], n: int, size: int) -> list[list[Row]]:
    """Returns which answers are drawn together: those to questions of like length, the longest first."""
    order = sorted(range(len(prompts)), key=lambda question: -len(prompts[question]))
    together = max(1, size // n)
    groups = [order[start : start + together] for start in range(0, len(order), together)]
    rows = [[(question, number) for question in group for number in range(n)] for group in groups]
    return [group[start : start + size] for group in rows for start in range(0, len(group), size)]


@dataclass
class _Draft:
    """An answer that is being drawn; `random` gives the numbers that decide it."""

    random: np.random.Generator
    text: TokenText
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    ended: bool = False

    def append(self, token: int, log_prob: float, ends: frozenset[int], stop: tuple[str, ...]) -> None:
        self.ids.append(token)
        self.log_probs.append(log_prob)
        start, _ = self.text.append(token)
        self.ended = token in ends or stopped(self.text.text, start, stop)

    def sample(self, stop: tuple[str, ...]) -> Sample:
        text = self.text.text
        end = min((place for one in stop if (place := text.find(one)) >= 0), default=len(text))
        return Sample(text[:end], tuple(self.ids), math.fsum(self.log_probs), self.ended)


def _draw(
    model: nn.Module,
    run: Run,
    logits: Tensor,
    drafts: Sequence[_Draft],
    decoding: Decoding,
    ends: frozenset[int],
    adjustment: Adjustment | None,
) -> None:
    """Draws R answers to their ends; a row leaves the batch when its answer has ended.

    Args:
        model: A causal language model.
        run: What it keeps of the rows' prompts.
        logits: Raw logits after the prompts, shape (R, V).
        drafts: The answers, still empty.
        decoding: How tokens are chosen, and where an answer ends.
        ends: Tokens that end an answer.
        adjustment: α of an `adjusted` adapter.
    """
    going = list(drafts)
    for number in range(1, decoding.max_tokens + 1):
        kept = kept_log_probs(
            logits, temperature=decoding.temperature, top_p=decoding.top_p, top_k=decoding.top_k
        )
        noise = gumbel_noise([draft.random for draft in going], logits.shape[-1])
        chosen = choose(kept, torch.from_numpy(noise).to(kept.device))
        log_probs = logits.gather(-1, chosen[:, None])[:, 0] - logits.logsumexp(-1)
        tokens, values = torch.stack([chosen.float(), log_probs]).tolist()  # ids up to 2²⁴ are exact
        for draft, token, value in zip(going, tokens, values, strict=True):
            draft.append(int(token), value, ends, decoding.stop)
        left = [place for place, draft in enumerate(going) if not draft.ended]
        if not left or number == decoding.max_tokens:
            return
        if len(left) < len(going):
            run.select(left)
            chosen, going = chosen[left], [going[place] for place in left]
        logits = advance(model, run, chosen, adjustment)
