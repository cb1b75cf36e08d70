"""From settings to what the toolkit takes: each builder unpacks a part of the config into plain arguments."""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from parsing import Launch
from peft import PeftModel
from settings import CalibrateSettings, CalmSettings, DataSettings, ModelSettings, PromptSettings
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from toolkit.calibration.batches import Batches
from toolkit.calibration.bilevel import bome, finite_difference
from toolkit.calibration.losses import Bounds, bounded, initial_alpha
from toolkit.calibration.objectives import OBJECTIVES
from toolkit.calibration.oracles import CalibrationProblem
from toolkit.calibration.training import Row, Schedule, Solver, Trained
from toolkit.confidence.options import option_confidence
from toolkit.errors import CalibrantError
from toolkit.evaluation.evaluate import Answered, answer_sets
from toolkit.evaluation.metrics import metrics
from toolkit.models.adapters import THETA, activate, adapter_parameters, add_copy, attach_lora
from toolkit.models.adjustment import Adjustment
from toolkit.models.base import context_length, load_model, parse_dtype
from toolkit.models.bundled import HUB_ID
from toolkit.models.encoding import EncodedQuestion, encode_questions
from toolkit.models.layout import choose_layout, layout_for
from toolkit.models.predictive import Layout
from toolkit.models.sharding import check_engine, is_sharded, load_whole, shard_base
from toolkit.questions.heldout import check_disjoint, hold_out
from toolkit.questions.question import Question, QuestionSet
from toolkit.questions.sources import load_questions

THETA_HAT = "lower_level_solution"
"""Name of the adapter that holds θ̂."""

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
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    max_length: int
    layout: Layout
    accelerator: Accelerator


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


def place(base: Base, model: PreTrainedModel | PeftModel) -> Base:
    """Shards the model if the launch says so, and finds out whether it takes packed options.

    Args:
        base: The base.
        model: The base itself, or with the adapters that it will have.
    """
    shard_base(model, base.accelerator)
    layout = choose_layout(model, base.model.config.vocab_size)
    if layout == "separate":
        logger.warning(
            "%s does not take packed options: each option gets a pass of its own, which is slower",
            base.model.config.model_type,
        )
    return replace(base, layout=layout)


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
    )


def build_adapter(base: Base, settings: CalibrateSettings) -> PeftModel:
    """Attaches θ to the base and, where the method needs it, θ̂."""
    lora = settings.lora
    if len(lora.layers) not in (0, 2):
        raise CalibrantError("--lora.layers takes the first layer and the one past the last, such as [0, 12]")
    if "all-linear" in lora.targets and len(lora.targets) > 1:
        raise CalibrantError("--lora.targets takes names of layers, or all-linear alone")
    model = attach_lora(
        base.model,
        rank=lora.rank,
        alpha=lora.alpha,
        dropout=lora.dropout,
        targets="all-linear" if lora.targets == ["all-linear"] else lora.targets,
        layers=range(lora.layers[0], lora.layers[1]) if lora.layers else None,
        base_name=HUB_ID if settings.model.name == "bundled" else settings.model.name,
        seed=settings.seed,
    )
    if settings.method == "calm":
        add_copy(model, THETA_HAT)
    if settings.training.gradient_checkpointing:
        base.model.activation_checkpointing_enable({"use_reentrant": False})
    return model.train()  # dropout and checkpointing act in training from the first step on


def build_run(model: PeftModel, settings: CalibrateSettings) -> Trained:
    """Returns θ, θ̂ and α at their start."""
    device = adapter_parameters(model)[0].device
    kind = settings.calm.alpha if settings.method == "calm" else "scalar"
    alpha = [a.to(device) for a in initial_alpha(kind, model.config.vocab_size)]
    hat = adapter_parameters(model, THETA_HAT) if settings.method == "calm" else []
    activate(model, THETA)
    return Trained(adapter_parameters(model), alpha, hat)


def build_problem(
    model: PeftModel, settings: CalibrateSettings, accelerator: Accelerator
) -> CalibrationProblem:
    """Returns L and F of this model."""
    calm = settings.calm if settings.method == "calm" else CalmSettings(level=settings.calm.level)
    regularised = settings.method == "entropy_regularisation"
    try:
        bounds = Bounds(calm.delta_min, calm.delta_max, calm.iota_max)
    except ValueError as error:
        raise CalibrantError(f"{error}; see --calm.delta_min") from error
    spread, objective = OBJECTIVES[calm.upper]
    return CalibrationProblem(
        model,
        adapters=(THETA, THETA_HAT) if settings.method == "calm" else (THETA,),
        bounds=bounds,
        spread=spread,
        objective=objective,
        level=calm.level,
        predictive=calm.predictive,
        score=settings.prompt.score,
        entropy_weight=settings.entropy_regularisation.weight if regularised else 0.0,
        reduce=lambda tensor: accelerator.reduce(tensor, "sum"),
    )


def build_solver(run: Trained, settings: CalibrateSettings) -> Solver:
    """Returns the solver with its settings bound; methods of a single level never get to it."""
    calm = settings.calm
    if calm.solver == "finite_difference":
        return lambda lower, upper, theta, alpha: finite_difference(
            lower, upper, theta, run.theta_hat, alpha, inner_lr=calm.inner_lr, epsilon=calm.epsilon
        )
    return lambda lower, upper, theta, alpha: bome(
        lower,
        upper,
        theta,
        run.theta_hat,
        alpha,
        inner_steps=calm.inner_steps,
        inner_lr=calm.inner_lr,
        eta=calm.eta,
        barrier=calm.barrier,
        warm_start=calm.warm_start,
        lambda_max=calm.lambda_max,
    )


def build_batches(
    questions: Sequence[EncodedQuestion],
    seed: int,
    base: Base,
    settings: CalibrateSettings,
) -> Batches:
    """Returns this process's batches of one level."""
    accelerator = base.accelerator
    size, processes = settings.training.batch_size, accelerator.num_processes
    if size < processes or (size % processes and is_sharded(accelerator)):
        share = "a multiple of them" if is_sharded(accelerator) else "at least one a process"
        raise CalibrantError(
            f"{processes} processes share {size} questions a step; set --training.batch_size to {share}"
        )
    return Batches(
        questions,
        batch_size=settings.training.batch_size,
        micro_batch_size=settings.training.micro_batch_size,
        seed=seed,
        length_window=settings.training.length_window,
        pad_id=base.tokenizer.pad_token_id or 0,
        layout="separate" if layout_for(base.model, questions, base.layout) == "separate" else "packed",
        process=accelerator.process_index,
        processes=accelerator.num_processes,
    )


def build_schedule(settings: CalibrateSettings) -> Schedule:
    """Returns steps and learning rates."""
    training = settings.training
    calm = settings.method == "calm"
    lower_steps = settings.calm.lower_steps if calm else training.steps
    if calm and lower_steps >= training.steps > 0:
        raise CalibrantError(
            f"all {training.steps} steps would only fit the lower level; set --training.steps above "
            f"--calm.lower_steps, which is {lower_steps}"
        )
    return Schedule(
        steps=training.steps,
        theta_lr=training.learning_rate,
        alpha_lr=settings.calm.alpha_lr,
        lower_steps=lower_steps,
        upper_every=settings.calm.upper_every,
        warmup_steps=training.warmup_steps,
        decay=training.decay,
        weight_decay=training.weight_decay,
        max_norm=training.max_norm,
        validate_every=training.validate_every,
        save_every=training.save_every,
    )


def build_view(run: Trained, problem: CalibrationProblem) -> Callable[[], Adjustment | None]:
    """Returns a function that gives what the finished model would apply to its logits, as α is now."""
    if problem.predictive == "raw":
        return lambda: None
    return lambda: Adjustment(*(tensor.detach() for tensor in bounded(run.alpha, problem.bounds)))


def build_validation(
    model: PeftModel,
    questions: Sequence[EncodedQuestion],
    view: Callable[[], Adjustment | None],
    base: Base,
    settings: CalibrateSettings,
) -> Callable[[], Row]:
    """Returns a function that measures θ on the validation questions, as it is now."""
    layout = layout_for(base.model, questions, base.layout)

    def validate() -> Row:
        activate(model, THETA)
        found = option_confidence(
            model,
            questions,
            adjustment=view(),
            score=settings.prompt.score,
            layout=layout,
            batch_size=settings.report.batch_size,
            pad_id=base.tokenizer.pad_token_id or 0,
            accelerator=base.accelerator,
        )
        values = metrics(found.log_probs, found.answers, settings.report.bins)
        names = ("accuracy", "confidence", "conf_ece", "nll", "entropy")
        return {f"validation_{name}": values[name] for name in names}

    return validate


CRITERIA: dict[str, Callable[[dict[str, Any]], float]] = {
    "nll": lambda row: row["validation_nll"],
    "matched": lambda row: abs(row["validation_entropy"] - row["validation_nll"]),
    "last": lambda row: -row["step"],
}
"""What the kept point has the least of, by the names of `training.keep`."""
