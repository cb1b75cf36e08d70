"""What a method is: from settings to its losses, solver and schedule, as plain arguments of the toolkit."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from build import Base, Data
from peft import PeftModel
from settings import CalibrateSettings, CalmSettings
from torch import Tensor

from toolkit.calibration.batches import Batches
from toolkit.calibration.bilevel import State
from toolkit.calibration.losses import (
    Bounds,
    bounded,
    cross_entropy,
    entropy_regularised,
    focal,
    initial_alpha,
    label_smoothing,
    regularised_to_bins,
)
from toolkit.calibration.objectives import OBJECTIVES, ascend_to_match
from toolkit.calibration.oracles import BatchLoss, CalibrationProblem
from toolkit.calibration.preferences import dpo, with_reference
from toolkit.calibration.running import RunningMeans, bin_accuracies, entropy_and_nll
from toolkit.calibration.solvers import bome, descend_alpha, finite_difference, iterate, penalty
from toolkit.calibration.training import Row, Schedule, Solver, Trained
from toolkit.confidence.given import GivenTokens, given_tokens
from toolkit.confidence.options import option_confidence
from toolkit.errors import CalibrantError
from toolkit.evaluation.metrics import ece, metrics
from toolkit.models.adapters import THETA, activate, adapter_parameters, add_copy, attach_lora
from toolkit.models.adjustment import Adjustment, Level
from toolkit.models.bundled import HUB_ID
from toolkit.models.encoding import EncodedQuestion
from toolkit.models.layout import layout_for
from toolkit.models.predictive import Layout
from toolkit.models.sharding import is_sharded
from toolkit.questions.question import OpenEnded, Preference

THETA_HAT = "lower_level_solution"
"""Name of the adapter that holds θ̂."""

BILEVEL = ("calm", "iterate")
"""Methods that hold questions back for an upper level."""


def resolve(settings: CalibrateSettings) -> CalibrateSettings:
    """Returns settings in which a method is what its keys say: its name no longer stands for other keys.

    Methods of a single level have neither α nor an upper level.
    """
    method, calm = settings.method, settings.calm
    if method == "calm":
        return settings
    if method == "calm_scalar":
        return replace(settings, method="calm", calm=replace(calm, alpha="scalar"))
    if method == "iterate":
        return replace(settings, calm=replace(calm, lower="cross_entropy"))
    if method == "vector_scaling":
        return replace(settings, calm=replace(calm, lower="cross_entropy", predictive="adjusted"))
    level: Level = "tokens" if method == "cft" else calm.level
    lower: Literal["cross_entropy", "dpo"] = "dpo" if method == "dpo" else "cross_entropy"
    single = CalmSettings(level=level, lower=lower, dpo_beta=calm.dpo_beta, alpha="scalar")
    return replace(settings, calm=single)


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


def build_problem(model: PeftModel, base: Base, settings: CalibrateSettings) -> CalibrationProblem:
    """Returns L and F of this model."""
    calm = settings.calm
    try:
        bounds = Bounds(calm.delta_min, calm.delta_max, calm.iota_max)
    except ValueError as error:
        raise CalibrantError(f"{error}; see --calm.delta_min") from error
    spread, objective = OBJECTIVES[calm.upper]
    if objective is ascend_to_match:
        objective = partial(ascend_to_match, margin=calm.margin)
    rcft = settings.rcft
    bins = bin_accuracies(rcft.bins, rcft.memory) if settings.method == "rcft" else None
    return CalibrationProblem(
        model,
        adapters=(THETA, THETA_HAT) if settings.method == "calm" else (THETA,),
        bounds=bounds,
        spread=spread,
        objective=objective,
        level=calm.level,
        predictive=calm.predictive,
        score=settings.prompt.score,
        loss=build_loss(settings, bins),
        recent=entropy_and_nll(calm.memory),
        bins=bins,
        prefix=base.prefix,
        reduce=lambda tensor: base.accelerator.reduce(tensor, "sum"),
    )


def build_loss(settings: CalibrateSettings, bins: RunningMeans | None) -> BatchLoss:
    """Returns the lower level's loss."""
    if settings.method == "rcft" and bins is not None:
        weight = settings.rcft.weight
        return lambda log_probs, answers, _: regularised_to_bins(
            log_probs, answers, weight, bins.means().to(log_probs)
        )
    if settings.calm.lower == "dpo":
        beta = settings.calm.dpo_beta
        return lambda log_probs, answers, batch: dpo(log_probs, answers, batch.reference, beta)
    epsilon, penalty = settings.label_smoothing.epsilon, settings.entropy_regularisation.weight
    losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "label_smoothing": partial(label_smoothing, epsilon=epsilon),
        "focal": focal,
        "entropy_regularisation": partial(entropy_regularised, weight=penalty),
    }
    loss = losses.get(settings.method, cross_entropy)
    return lambda log_probs, answers, _: loss(log_probs, answers)


def build_run(model: PeftModel, problem: CalibrationProblem, settings: CalibrateSettings) -> Trained:
    """Returns θ, α and what else training moves, at their start."""
    device = adapter_parameters(model)[0].device
    alpha = [a.to(device) for a in initial_alpha(settings.calm.alpha, model.config.vocab_size)]
    hat = adapter_parameters(model, THETA_HAT) if settings.method == "calm" else []
    activate(model, THETA)
    running = [problem.recent.sums, *([problem.bins.sums] if problem.bins else [])]
    return Trained(adapter_parameters(model), alpha, State(hat), running)


def build_solver(settings: CalibrateSettings) -> Solver:
    """Returns the solver with its settings bound; methods of a single level never get to it."""
    calm = settings.calm
    if settings.method == "vector_scaling":
        return lambda lower, upper, theta, alpha, state: descend_alpha(lower, theta, alpha)
    if settings.method == "iterate":
        return iterate
    if calm.solver == "finite_difference":
        return partial(finite_difference, inner_lr=calm.inner_lr, epsilon=calm.epsilon)
    if calm.solver == "penalty":
        return partial(penalty, kappa=calm.kappa, growth=calm.kappa_growth, kappa_max=calm.kappa_max)
    return partial(
        bome,
        inner_steps=calm.inner_steps,
        inner_lr=calm.inner_lr,
        eta=calm.eta,
        barrier=calm.barrier,
        warm_start=calm.warm_start,
        lambda_max=calm.lambda_max,
    )


def check_levels(data: Data, settings: CalibrateSettings) -> None:
    """Refuses questions that a level can make nothing of, before anything is loaded.

    Raises:
        CalibrantError: A level would look at the options of open-ended questions, the upper one at the
            entropy over two long answers, or DPO at tokens.
    """
    calm = settings.calm
    if calm.level == "options" and any(isinstance(one, OpenEnded) for one in [*data.lower, *data.upper]):
        raise CalibrantError(
            "open-ended questions have no options to learn from; set --calm.level to tokens, or give "
            "--data.train and --data.heldout questions with choices"
        )
    pairs = any(isinstance(question, Preference) for question in data.upper)
    if settings.method in BILEVEL and calm.level == "options" and pairs:
        raise CalibrantError(
            "the upper level would hold back preference pairs, whose answers are no options to be unsure of; "
            "give --data.heldout a source with choices, or set --calm.level to tokens"
        )
    if calm.lower == "dpo" and calm.level == "tokens":
        raise CalibrantError(
            "DPO compares options; set --calm.level to options, or --calm.lower to cross_entropy"
        )


def build_lower(
    questions: list[EncodedQuestion], model: PeftModel, base: Base, settings: CalibrateSettings
) -> list[EncodedQuestion]:
    """Returns the lower level's questions with what its loss needs to know of them."""
    if settings.calm.lower != "dpo":
        return questions
    return with_reference(
        questions,
        model,
        score=settings.prompt.score,
        layout=training_layout(questions, base),
        batch_size=settings.training.micro_batch_size,
        pad_id=base.tokenizer.pad_token_id or 0,
        description="reference" if base.accelerator.is_main_process else None,
        prefix=base.prefix,
    )


def training_layout(questions: Sequence[EncodedQuestion], base: Base) -> Layout:
    """Returns how training lays questions out."""
    return "separate" if layout_for(base.model, questions, base.layout) == "separate" else "packed"


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
        layout=training_layout(questions, base),
        process=accelerator.process_index,
        processes=accelerator.num_processes,
    )


def build_schedule(settings: CalibrateSettings) -> Schedule:
    """Returns steps and learning rates."""
    training = settings.training
    two_levels = settings.method in BILEVEL
    lower_steps = settings.calm.lower_steps if two_levels else training.steps
    if settings.method == "vector_scaling":
        lower_steps = 0  # every step is one of α
    if settings.calm.solver == "penalty" and settings.calm.upper_every > 1:
        raise CalibrantError("penalty moves θ̂ beside θ at every step; set --calm.upper_every to 1")
    if two_levels and lower_steps >= training.steps > 0:
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
    """Returns a function that measures θ on the validation questions, as it is now.

    It looks at options or, where some question has none, at the tokens of right answers.
    """
    options = all(len(question.options) > 1 for question in questions)
    shared: dict[str, Any] = {
        "layout": layout_for(base.model, questions, base.layout),
        "batch_size": settings.report.batch_size,
        "pad_id": base.tokenizer.pad_token_id or 0,
        "accelerator": base.accelerator,
        "prefix": base.prefix,
    }

    def validate() -> Row:
        activate(model, THETA)
        if options:
            found = option_confidence(
                model, questions, adjustment=view(), score=settings.prompt.score, **shared
            )
            values = metrics(found.log_probs, found.answers, settings.report.bins)
        else:
            values = token_metrics(
                given_tokens(model, questions, adjustment=view(), **shared), settings.report.bins
            )
        names = ("accuracy", "confidence", "conf_ece", "nll", "entropy")
        return {f"validation_{name}": values[name] for name in names}

    return validate


def token_metrics(found: GivenTokens, bins: int) -> dict[str, float]:
    """Returns the metrics of a curve, each the mean over tokens, in nats or as a share of 1."""
    return {
        "accuracy": float(found.correct.mean()),
        "confidence": float(found.confidence.mean()),
        "conf_ece": ece(found.confidence, found.correct, bins),
        "nll": -float(found.log_prob.mean()),
        "entropy": float(found.entropy.mean()),
    }


CRITERIA: dict[str, Callable[[dict[str, Any]], float]] = {
    "nll": lambda row: row["validation_nll"],
    "matched": lambda row: abs(row["validation_entropy"] - row["validation_nll"]),
    "last": lambda row: -row["step"],
}
"""What the kept point has the least of, by the names of `training.keep`."""
