"""Our methods, one training step at a time, as `toolkit.calibration.training.train` takes it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from toolkit.calibration.batches import Batches
from toolkit.calibration.bilevel import Direction, State
from toolkit.calibration.losses import Bounds, Kind, cross_entropy, entropy_regularised, initial_alpha
from toolkit.calibration.objectives import OBJECTIVES
from toolkit.calibration.oracles import CalibrationProblem
from toolkit.calibration.solvers import bome, finite_difference
from toolkit.calibration.training import Schedule, Solver, Trained, build_optimizers, take_step
from toolkit.models.adapters import THETA, activate, adapter_parameters, add_copy, attach_lora
from toolkit.models.adjustment import Level
from toolkit.models.encoding import EncodedQuestion

THETA_HAT = "room"
"""Name of the adapter that holds θ̂."""


@dataclass(frozen=True)
class Method:
    """What a step of a method is.

    Attributes:
        solver: The bilevel solver; without one the method has a single level, and no α.
        level: `tokens` is the loss of plain fine-tuning: only the right answers' tokens are laid out.
            `options` takes the softmax over a question's options.
        entropy_weight: β of entropy regularisation.
    """

    solver: Solver | None
    level: Level
    entropy_weight: float = 0.0


METHODS = {
    "sft": Method(None, "tokens"),
    "entropy_regularisation": Method(None, "tokens", entropy_weight=0.1),
    "bome": Method(bome, "tokens"),
    "finite_difference": Method(finite_difference, "tokens"),
    "sft_options": Method(None, "options"),
    "bome_options": Method(bome, "options"),
}


@dataclass(frozen=True)
class StepSettings:
    """What all rows have in common.

    Attributes:
        batch_size: Questions a step, and held-out questions a bilevel step; one pass takes them all.
        rank: Rank of the adapter, on all linear layers.
        learning_rate: Of θ, AdamW, constant.
        upper_every: m: of the steps of `finite_difference` every m-th is bilevel.
        gradient_checkpointing: Compute activations again in the backward pass instead of keeping them.
        seed: Seeds the sample of questions and the adapter.
    """

    batch_size: int = 8
    rank: int = 8
    learning_rate: float = 3e-4
    upper_every: int = 16
    gradient_checkpointing: bool = False
    seed: int = 0


def our_model(model: PreTrainedModel, settings: StepSettings, *, room: bool) -> PeftModel:
    """Puts a new adapter on the base, and with `room` a second one for θ̂."""
    if settings.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    adapted = attach_lora(
        model, rank=settings.rank, alpha=2 * settings.rank, base_name="base", seed=settings.seed
    )
    if room:
        add_copy(adapted, THETA_HAT)
    return adapted.train()


def our_step(
    model: PeftModel,
    method: Method,
    lower: Sequence[EncodedQuestion],
    upper: Sequence[EncodedQuestion],
    settings: StepSettings,
    pad_id: int = 0,
    micro_batch_size: int | None = None,
) -> Callable[[], float]:
    """Returns a function that takes one step of a method, and returns its lower-level loss.

    A step is `take_step` of the training loop: lay out the batch, the solver's direction, clip, AdamW on θ,
    Adam on α, and the diagnostics of the history. Left out are the files that the history goes to.

    Args:
        model: From `our_model`; several methods may share one, each with its own optimizers and α.
        method: The method.
        lower: The lower level's batch.
        upper: The held-out batch.
        settings: What all rows have in common.
        pad_id: Fills the rows.
        micro_batch_size: Questions a pass; all by default.
    """
    activate(model, THETA)
    hat = adapter_parameters(model, THETA_HAT) if method.solver else []
    run = Trained(adapter_parameters(model), _alpha(model, method), State(hat))
    schedule = _schedule(method, settings)
    if method.level == "tokens":
        lower, upper = ([question.right_only() for question in level] for level in (lower, upper))
    size = micro_batch_size or settings.batch_size
    batches = partial(
        Batches, batch_size=len(lower), micro_batch_size=size, seed=settings.seed, pad_id=pad_id
    )
    problem, solve = _problem(model, method), method.solver or _no_solver
    levels = batches(lower), batches(upper)
    optimizers = build_optimizers(run, schedule)
    return lambda: take_step(run, problem, solve, *levels, schedule, optimizers)["lower"]


def _alpha(model: PeftModel, method: Method) -> list[torch.Tensor]:
    kind: Kind = "vector" if method.solver else "scalar"
    return [a.to(model.device) for a in initial_alpha(kind, model.config.vocab_size)]


def _problem(model: PeftModel, method: Method) -> CalibrationProblem:
    spread, objective = OBJECTIVES["uniform_matched"]
    return CalibrationProblem(
        model,
        adapters=(THETA, THETA_HAT) if method.solver else (THETA,),
        bounds=Bounds(),
        spread=spread,
        objective=objective,
        level=method.level,
        score="token",
        loss=lambda log_probs, answers, _: (
            entropy_regularised(log_probs, answers, method.entropy_weight)
            if method.entropy_weight
            else cross_entropy(log_probs, answers)
        ),
    )


def _schedule(method: Method, settings: StepSettings) -> Schedule:
    return Schedule(
        steps=1_000_000,
        theta_lr=settings.learning_rate,
        alpha_lr=0.01,
        lower_steps=0 if method.solver else 1_000_000,
        upper_every=settings.upper_every if method.solver is finite_difference else 1,
        decay="constant",
    )


def _no_solver(*_: object) -> Direction:
    raise AssertionError("a method of a single level never gets to a solver")
