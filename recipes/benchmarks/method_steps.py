"""Our methods, one training step at a time, as `toolkit.calibration.training.train` takes it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from toolkit.calibration.batches import Batches
from toolkit.calibration.bilevel import Direction, Oracle, Tensors, bome, finite_difference
from toolkit.calibration.losses import Bounds, Kind, initial_alpha
from toolkit.calibration.objectives import OBJECTIVES
from toolkit.calibration.oracles import CalibrationProblem, Level
from toolkit.calibration.training import Schedule, Solver, Trained, build_optimizers, take_step
from toolkit.models.adapters import THETA, activate, adapter_parameters, add_copy, attach_lora
from toolkit.models.encoding import EncodedQuestion

THETA_HAT = "room"
"""Name of the adapter that holds θ̂."""


@dataclass(frozen=True)
class Method:
    """What a step of a method is.

    Attributes:
        solver: Where its direction comes from.
        level: `tokens` is the loss of plain fine-tuning: only the right answers' tokens are laid out.
            `options` takes the softmax over a question's options.
        entropy_weight: β of entropy regularisation.
    """

    solver: Literal["descend", "bome", "finite_difference"]
    level: Level
    entropy_weight: float = 0.0

    @property
    def bilevel(self) -> bool:
        """Says whether there is an α to choose, and held-out questions for it."""
        return self.solver != "descend"


METHODS = {
    "sft": Method("descend", "tokens"),
    "entropy_regularisation": Method("descend", "tokens", entropy_weight=0.1),
    "bome": Method("bome", "tokens"),
    "finite_difference": Method("finite_difference", "tokens"),
    "sft_options": Method("descend", "options"),
    "bome_options": Method("bome", "options"),
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
    hat = adapter_parameters(model, THETA_HAT) if method.bilevel else []
    run = Trained(adapter_parameters(model), _alpha(model, method), hat)
    schedule = _schedule(method, settings)
    if method.level == "tokens":
        lower = [question.right_only() for question in lower]
    size = micro_batch_size or settings.batch_size
    batches = partial(
        Batches, batch_size=len(lower), micro_batch_size=size, seed=settings.seed, pad_id=pad_id
    )
    problem, solve = _problem(model, method), _solver(method, hat)
    levels = batches(lower), batches(upper)
    optimizers = build_optimizers(run, schedule)
    return lambda: take_step(run, problem, solve, *levels, schedule, optimizers)["lower"]


def _alpha(model: PeftModel, method: Method) -> list[torch.Tensor]:
    kind: Kind = "vector" if method.bilevel else "scalar"
    return [a.to(model.device) for a in initial_alpha(kind, model.config.vocab_size)]


def _problem(model: PeftModel, method: Method) -> CalibrationProblem:
    spread, objective = OBJECTIVES["uniform_matched"]
    return CalibrationProblem(
        model,
        adapters=(THETA, THETA_HAT) if method.bilevel else (THETA,),
        bounds=Bounds(),
        spread=spread,
        objective=objective,
        level=method.level,
        score="token",
        entropy_weight=method.entropy_weight,
    )


def _schedule(method: Method, settings: StepSettings) -> Schedule:
    return Schedule(
        steps=1_000_000,
        theta_lr=settings.learning_rate,
        alpha_lr=0.01,
        lower_steps=0 if method.bilevel else 1_000_000,
        upper_every=settings.upper_every if method.solver == "finite_difference" else 1,
        decay="constant",
    )


def _solver(method: Method, hat: Tensors) -> Solver:
    """Returns the method's solver, θ̂ bound, with T = 1; a method of a single level never gets to it."""

    def solve(lower: Oracle, upper: Oracle, theta: Tensors, alpha: Tensors) -> Direction:
        solver = bome if method.solver == "bome" else finite_difference
        return solver(lower, upper, theta, hat, alpha)

    return solve
