"""The rows of the step benchmark: a step of TRL's and of each of our methods on the same questions."""

import gc
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch
from measure import Result, peak_memory
from method_steps import METHODS, StepSettings, our_model, our_step
from random_model import Loaded
from trl_step import require_trl, trl_step, trl_trainer

from toolkit.errors import CalibrantError
from toolkit.models.base import context_length
from toolkit.models.encoding import EncodedQuestion, encode_questions
from toolkit.questions.question import QuestionSet
from toolkit.questions.sources import load_questions

TRL = "trl_sft"
ROWS = (TRL, *METHODS)

MEMORY_STEPS = 2
"""Steps over which memory is taken; of `finite_difference` the first is bilevel and the second is not."""

Load = Callable[[bool], Loaded]
"""Loads the model, prepared as our recipes do or as it comes; see `random_model.load`."""


def prepare(
    load: Load, settings: StepSettings, rows: Sequence[str]
) -> tuple[dict[str, Callable[[], float]], list[EncodedQuestion], Result, str]:
    """Returns a step of each row, the questions, what the model is, and the hash of the questions."""
    base = load(True)
    lower, upper, sha256 = questions(base, settings)
    ours = [name for name in rows if name != TRL]
    take: dict[str, Callable[[], float]] = {}
    if TRL in rows:
        take[TRL] = make_trl(load(False), lower, settings)
    if ours:
        model = our_model(base.model, settings, room=any(METHODS[name].solver is not None for name in ours))
        pad = base.tokenizer.pad_token_id or 0
        take |= {name: our_step(model, METHODS[name], lower, upper, settings, pad) for name in ours}
    return take, lower, base.identity, sha256


def questions(
    base: Loaded, settings: StepSettings
) -> tuple[list[EncodedQuestion], list[EncodedQuestion], str]:
    """Returns questions of worldfacts for the lower level, as many others for the upper, and their hash."""
    data = _worldfacts().sample(2 * settings.batch_size, settings.seed)
    limit = context_length(base.model, base.tokenizer)
    encoded = encode_questions(data, base.tokenizer, style="plain", max_length=limit)
    return encoded[::2], encoded[1::2], data.sha256


@cache
def _worldfacts() -> QuestionSet:
    return load_questions("worldfacts", "train")


def make_trl(base: Loaded, lower: Sequence[EncodedQuestion], settings: StepSettings) -> Callable[[], float]:
    """Returns TRL's step on a freshly loaded base."""
    trainer = trl_trainer(
        base.model,
        base.tokenizer,
        lower,
        rank=settings.rank,
        learning_rate=settings.learning_rate,
        gradient_checkpointing=settings.gradient_checkpointing,
        seed=settings.seed,
    )
    return trl_step(trainer)


def repeat(step: Callable[[], float], count: int) -> None:
    """Takes a number of steps."""
    for _ in range(count):
        step()


def check_losses(losses: Mapping[str, float], identity: Result) -> None:
    """Raises CalibrantError where TRL and we do not begin at the same loss.

    Up to rounding, which is in the 16-bit types a percent or so of a loss of some nats.
    """
    if not {TRL, "sft"} <= losses.keys():
        return
    exact = identity["dtype"] == "float32" and identity["quantization"] is None
    if abs(losses[TRL] - losses["sft"]) > (1e-4 if exact else 0.1):
        raise CalibrantError(
            f"TRL begins at a loss of {losses[TRL]:.5f} nats a token and we at {losses['sft']:.5f}, which is "
            "more than rounding; choose another --model, and report this one"
        )


def count_tokens(lower: Sequence[EncodedQuestion], name: str) -> int:
    """Returns how many tokens of text a row's step trains on, padding and held-out questions left out."""
    if name != TRL and METHODS[name].level == "options":
        return sum(len(question.prompt) + sum(map(len, question.options)) for question in lower)
    return sum(len(question.prompt) + len(question.options[question.answer]) for question in lower)


def row_memory(load: Load, settings: StepSettings, name: str) -> Result:
    """Returns the bytes in use after loading the model, and the most in use while a row's steps ran."""
    if name == TRL:
        require_trl()  # libraries belong to the state before
    base = load(name != TRL)
    lower, upper, _ = questions(base, settings)
    with peak_memory() as found:
        if name == TRL:
            step = make_trl(base, lower, settings)
        else:
            model = our_model(base.model, settings, room=METHODS[name].solver is not None)
            step = our_step(model, METHODS[name], lower, upper, settings)
        repeat(step, MEMORY_STEPS)
    del base, step
    return {"before": found.before, "peak": found.peak, "above": found.peak - found.before}


def release() -> None:
    """Gives the memory of dropped models back to the GPU."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
