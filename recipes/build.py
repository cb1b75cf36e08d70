"""From settings to models and questions: each builder unpacks a part of the config into plain arguments."""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from parsing import Launch
from peft import PeftModel
from settings import DataSettings, ModelSettings, PromptSettings
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from toolkit.errors import CalibrantError
from toolkit.evaluation.evaluate import Answered, answer_sets
from toolkit.models.adjustment import Adjustment
from toolkit.models.base import context_length, load_model, parse_dtype
from toolkit.models.encoding import EncodedQuestion, encode_questions
from toolkit.models.layout import choose_layout, choose_prefix
from toolkit.models.predictive import Layout
from toolkit.models.prefix import FrozenPrefix
from toolkit.models.sharding import check_engine, is_sharded, load_whole, shard_base
from toolkit.questions.heldout import check_disjoint, hold_out
from toolkit.questions.question import OpenEnded, Preference, Question, QuestionSet
from toolkit.questions.sources import load_questions

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Base:
    """A base model with all that is needed to ask it questions.

    Attributes:
        model: The model.
        tokenizer: Its tokenizer.
        max_length: Its context, in tokens.
        layout: How options are laid out for it.
        accelerator: Its device, and the processes that share the work.
        prefix: Its frozen layers, where what they make of texts is kept.
        prefixes: All such, by the number of layers; adapters that come after one another share them.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    max_length: int
    layout: Layout
    accelerator: Accelerator
    prefix: FrozenPrefix | None = None
    prefixes: dict[int, FrozenPrefix] = field(default_factory=dict)


@dataclass(frozen=True)
class Data:
    """Questions of a run, none of them in two places."""

    lower: list[Question]
    upper: list[Question]
    validation: list[QuestionSet]
    test: list[QuestionSet]


def build_accelerator(launch: Launch) -> Accelerator:
    """Returns the processes and devices of this launch, with the tracker that is asked for.

    Raises:
        CalibrantError: The tracker is not installed, the engine cannot shard a frozen base, or the processes
            do not find each other.
    """
    check_engine()
    tracker = launch.log_with
    if tracker and tracker not in map(str, get_available_trackers()):
        raise CalibrantError(f"--log_with {tracker} needs its package; run: pip install {tracker}")
    accelerator = Accelerator(log_with=tracker, project_dir=launch.output_dir / "logs")
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched > accelerator.num_processes:
        raise CalibrantError(
            f"{launched} processes were launched and do not find each other, for there is no GPU; set "
            "ACCELERATE_USE_CPU=1 in the environment to run them on the CPU"
        )
    load_whole()
    return accelerator


def build_base(settings: ModelSettings, accelerator: Accelerator) -> Base:
    """Loads the base model, on this process's device where it is to stay whole; see `place` for what is next.

    A base that is sharded stays in the host's memory until then, 4-bit weights packed into a floating type.
    """
    sharded = is_sharded(accelerator)
    model, tokenizer = load_model(
        settings.name,
        dtype=settings.dtype,
        quantization=None if settings.quantization == "none" else settings.quantization,
        storage=parse_dtype(settings.dtype) if sharded else torch.uint8,
        device="cpu" if sharded else accelerator.device,
        trust_remote_code=settings.trust_remote_code,
        allow_pickle=settings.allow_pickle,
        revision=settings.revision,
    )
    return Base(model, tokenizer, context_length(model, tokenizer), "separate", accelerator)


def place(base: Base, model: PreTrainedModel | PeftModel, kept_bytes: int = 0) -> Base:
    """Shards the model if the launch says so, and finds out how questions are best laid out for it.

    Args:
        base: The base.
        model: The base itself, or with the adapters that it will have.
        kept_bytes: How much of what the layers below the adapters make of texts may be kept.
    """
    shard_base(model, base.accelerator)
    vocabulary = base.model.config.vocab_size
    layout = choose_layout(model, vocabulary)
    if layout == "separate":
        logger.warning(
            "%s does not take packed options: each option gets a pass of its own, which is slower",
            base.model.config.model_type,
        )
    prefix = None
    if kept_bytes and not is_sharded(base.accelerator):
        prefix = choose_prefix(model, vocabulary, layout, kept_bytes)
        prefix = prefix and base.prefixes.setdefault(len(prefix.layers), prefix)
    return replace(base, layout=layout, prefix=prefix)


def build_data(settings: DataSettings) -> Data:
    """Loads all questions and checks that none is used twice.

    Raises:
        CalibrantError: No training source is named, a source is unknown, or two sets share a question.
    """
    if not settings.train:
        raise CalibrantError("no training questions are named; give --data.train '[SOURCE, ...]'")
    seed = settings.seed
    trained = _together(load_sets(settings.train, "train", settings.train_limit, seed))
    if settings.heldout:
        lower = trained
        upper = _together(load_sets(settings.heldout, "train", settings.train_limit, seed))
        check_disjoint(lower, upper, "--data.train and --data.heldout")
    else:
        lower, upper = hold_out(trained, settings.heldout_share, seed)
    sources = settings.validation or settings.train
    validation = load_sets(sources, "validation", settings.validation_limit, seed)
    test = load_sets(settings.test, "test", settings.test_limit, seed)
    for data in [*validation, *test]:
        if any(isinstance(question, Preference) for question in data):
            raise CalibrantError(
                f"{data.name} holds preference pairs, and confidence is measured on questions with choices; "
                "give --data.validation and --data.test such sources"
            )
    chosen = _together(validation)
    for data in test:
        check_disjoint(chosen, list(data), f"validation and the {data.split} split of {data.name}")
    for data in [*validation, *test]:
        check_disjoint([*lower, *upper], list(data), f"training and the {data.split} split of {data.name}")
    return Data(lower, upper, validation, test)


def load_sets(sources: Sequence[str], split: str, limit: int | None, seed: int) -> list[QuestionSet]:
    """Loads one split of some sources, at most `limit` questions of each, drawn with the seed."""
    twice = [source for place, source in enumerate(sources) if source in sources[:place]]
    if twice:
        raise CalibrantError(f"{twice[0]} is named twice; name each source once")
    sets = [load_questions(source, split) for source in sources]
    return sets if limit is None else [data.sample(limit, seed) for data in sets]


def seen(settings: DataSettings) -> list[str]:
    """Returns the sources whose other splits have a say in a run: in the weights, or in which are kept."""
    return [*dict.fromkeys([*settings.train, *settings.heldout, *settings.validation])]


def _together(sets: Sequence[QuestionSet]) -> list[Question]:
    return [question for data in sets for question in data]


def build_encoder(
    base: Base, prompt: PromptSettings
) -> Callable[[Sequence[Question]], list[EncodedQuestion]]:
    """Returns the function that turns questions into token ids for this model and prompt."""
    return partial(
        encode_questions,
        tokenizer=base.tokenizer,
        form=prompt.form,
        style=prompt.style,
        max_length=base.max_length,
    )


def by_kind(sets: Sequence[QuestionSet]) -> tuple[list[QuestionSet], list[QuestionSet]]:
    """Returns the sets whose questions have options, and those of open-ended ones."""
    is_open = [any(isinstance(question, OpenEnded) for question in one) for one in sets]
    choices, open_ended = (
        [one for one, found in zip(sets, is_open, strict=True) if found == kind] for kind in (False, True)
    )
    return choices, open_ended


def build_answers(
    base: Base,
    model: torch.nn.Module,
    sets: Sequence[QuestionSet],
    prompt: PromptSettings,
    batch_size: int,
    label: str | None,
    adjustment: Adjustment | None = None,
) -> list[Answered]:
    """Lets a model (the base, or the base with an adapter) answer sets of questions."""
    return answer_sets(
        model,
        base.tokenizer,
        sets,
        form=prompt.form,
        style=prompt.style,
        score=prompt.score,
        max_length=base.max_length,
        adjustment=adjustment,
        layout=base.layout,
        batch_size=batch_size,
        label=label,
        accelerator=base.accelerator,
        prefix=base.prefix,
    )
