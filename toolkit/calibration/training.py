"""The training loop: evaluate, save, step, log."""

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.nn.utils import get_total_norm
from tqdm import tqdm

from toolkit.calibration.batches import Batches
from toolkit.calibration.bilevel import Direction, Oracle, State, Tensors
from toolkit.calibration.checkpoints import load_checkpoint, save_checkpoint
from toolkit.calibration.losses import bounded
from toolkit.calibration.oracles import CalibrationProblem
from toolkit.calibration.solvers import descend
from toolkit.calibration.termination import Terminated, held_back
from toolkit.errors import CalibrantError

Solver = Callable[[Oracle, Oracle, Tensors, Tensors, State], Direction]
"""(lower, upper, θ, α, state) -> direction; one of `solvers` with its own settings bound."""

Row = dict[str, float]
"""One line of `history.jsonl`."""


@dataclass(frozen=True)
class Schedule:
    """How far and how fast the parameters move.

    Attributes:
        steps: Number of steps.
        lower_steps: How many of them, at the start, only fit θ to the lower level; the solver's θ is then
            near the lower level's solution, as bilevel methods take it to be.
        upper_every: After these, every how many-th step is the solver's; the others fit θ to the lower level.
        theta_lr: Peak learning rate of θ (AdamW).
        alpha_lr: Peak learning rate of the unconstrained α (Adam).
        warmup_steps: Steps over which both rise linearly from 0.
        decay: "constant", "linear" to 0, or "cosine" to 0 after the warm-up.
        weight_decay: AdamW's decay of θ.
        max_norm: Clips the direction of θ to this Euclidean norm; infinity for none.
        validate_every: Steps between validations; the last step is always validated.
        save_every: Steps between checkpoints.
    """

    steps: int
    theta_lr: float
    alpha_lr: float
    lower_steps: int = 0
    upper_every: int = 1
    warmup_steps: int = 0
    decay: str = "linear"
    weight_decay: float = 0.0
    max_norm: float = 1.0
    validate_every: int = 20
    save_every: int = 20

    def bilevel(self, step: int) -> bool:
        """Says whether a step counted from 0 is the solver's."""
        return step >= self.lower_steps and (step - self.lower_steps) % self.upper_every == 0

    def factor(self, step: int) -> float:
        """Returns the share of the peak learning rate at a step counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(self.steps - self.warmup_steps, 1)
        if self.decay == "linear":
            return 1 - done
        return 0.5 * (1 + math.cos(math.pi * done)) if self.decay == "cosine" else 1.0


@dataclass
class Trained:
    """The state of a run: what moves, and the best point so far.

    Attributes:
        theta: LoRA weights θ, changed in place.
        alpha: Unconstrained α, changed in place.
        state: What the solver keeps from step to step.
        running: Running means that the problem keeps, changed in place.
        best: θ and α with the least validation criterion so far.
        best_value: That criterion.
        best_step: The step it was measured after.
        step: Number of finished steps.
    """

    theta: list[Tensor]
    alpha: list[Tensor]
    state: State = field(default_factory=State)
    running: list[Tensor] = field(default_factory=list)
    best: list[Tensor] = field(default_factory=list)
    best_value: float = math.inf
    best_step: int = 0
    step: int = 0


def train(
    run: Trained,
    problem: CalibrationProblem,
    solve: Solver,
    lower: Batches,
    upper: Batches,
    schedule: Schedule,
    *,
    accelerator: Accelerator,
    folder: Path,
    fingerprint: str,
    validate: Callable[[], Row],
    criterion: Callable[[Row], float],
    seed: int,
    keep_checkpoints: int = 2,
) -> Trained:
    """Trains θ and α, resuming from the folder's newest checkpoint, and ends at the best validated point.

    SIGTERM ends it after the step that runs, with a checkpoint of that step. Every row of the history goes to
    the accelerator's trackers too.

    Args:
        run: θ and α, at their start.
        problem: L and F.
        solve: The solver.
        lower: The lower level's batches.
        upper: The upper level's batches, of other questions.
        schedule: Steps and learning rates.
        accelerator: Device and processes.
        folder: Takes `history.jsonl` and `checkpoints/`.
        fingerprint: Stands for the questions; a run is resumed with the same ones only.
        validate: Returns `validation_*` figures of the model as it is.
        criterion: Maps them to the number that the kept point has the least of.
        seed: Seeds dropout.
        keep_checkpoints: How many checkpoints stay on disk.

    Returns:
        The run, θ and α at its best validated point.

    Raises:
        CalibrantError: A loss or gradient is not finite, the disk is full, or the checkpoint is of other
            questions or all are damaged; checkpoints stay as they were.
        Terminated: SIGTERM came.
    """
    optimizers = build_optimizers(run, schedule)
    log = _History(folder / "history.jsonl", accelerator)
    _resume(run, optimizers, folder / "checkpoints", fingerprint)
    log.keep_until(run.step if run.best else -1)
    if not run.best:
        log.append(_validated({"step": 0}, run, validate, criterion))

    progress = tqdm(
        range(run.step, schedule.steps),
        desc="training",
        unit="step",
        total=schedule.steps,
        initial=run.step,
        disable=not accelerator.is_main_process,
        dynamic_ncols=True,
    )
    with held_back() as asked_to_stop:
        for step in progress:
            torch.manual_seed(seed * 1_000_003 + step)  # dropout
            try:
                row = take_step(run, problem, solve, lower, upper, schedule, optimizers)
            except ArithmeticError as error:
                raise CalibrantError(
                    f"{error} at step {step + 1}; the last good checkpoint stays in "
                    f"{folder / 'checkpoints'}, lower the learning rates or use --model.dtype float32"
                ) from error
            if _due(run.step, schedule.validate_every, schedule.steps):
                row = _validated(row, run, validate, criterion)
            log.append(row)
            progress.set_postfix({name: f"{row[name]:.3f}" for name in ("lower", "upper") if name in row})
            stop = _anywhere(asked_to_stop(), accelerator)
            if (stop or _due(run.step, schedule.save_every, schedule.steps)) and accelerator.is_main_process:
                state = _state(run, optimizers) | {"fingerprint": fingerprint}
                save_checkpoint(folder / "checkpoints", run.step, state, keep_checkpoints)
            if stop:
                raise Terminated(f"stopped by SIGTERM after step {run.step}")
    _assign([*run.theta, *run.alpha], run.best)
    return run


def build_optimizers(run: Trained, schedule: Schedule) -> dict[str, torch.optim.Optimizer]:
    """Returns AdamW for `theta` and, where there is one, `theta_hat`, and Adam for `alpha`."""

    def adamw(weights: Tensors) -> torch.optim.Optimizer:
        return torch.optim.AdamW(weights, schedule.theta_lr, weight_decay=schedule.weight_decay, fused=True)

    optimizers = {"theta": adamw(run.theta), "alpha": torch.optim.Adam(run.alpha, schedule.alpha_lr)}
    return optimizers | ({"theta_hat": adamw(run.state.theta_hat)} if run.state.theta_hat else {})


def take_step(
    run: Trained,
    problem: CalibrationProblem,
    solve: Solver,
    lower: Batches,
    upper: Batches,
    schedule: Schedule,
    optimizers: Mapping[str, torch.optim.Optimizer],
) -> Row:
    """Moves θ and, in a bilevel step, α against the solver's direction, and returns the step's row.

    Raises:
        ArithmeticError: The loss or its gradient is not finite; nothing has moved.
    """
    began, step, device = time.monotonic(), run.step, run.theta[0].device
    level = problem.lower(lower.at(step, device))
    if step == schedule.lower_steps and run.state.theta_hat:
        _assign(run.state.theta_hat, run.theta)  # θ̂ starts where the bilevel phase starts
    if schedule.bilevel(step):
        direction = solve(level, problem.upper(upper.at(step, device)), run.theta, run.alpha, run.state)
    else:
        direction = descend(level, run.theta, run.alpha)
    norm = _clip(direction, schedule.max_norm)
    _check_finite(direction, norm)
    factor = schedule.factor(step)
    theta_lr, alpha_lr = schedule.theta_lr * factor, schedule.alpha_lr * factor
    _apply(optimizers["theta"], run.theta, direction.theta, theta_lr)
    _apply(optimizers.get("theta_hat"), run.state.theta_hat, direction.theta_hat, theta_lr)
    _apply(optimizers["alpha"], run.alpha, direction.alpha, alpha_lr)
    run.step = step + 1
    row = {"step": run.step, **direction.record, "grad_norm": norm, "lr": theta_lr}
    row |= _describe(*bounded(run.alpha, problem.bounds))
    return row | {"seconds": time.monotonic() - began}


def _anywhere(here: bool, accelerator: Accelerator) -> bool:
    """Says whether something holds in any process, so that all of them do the same."""
    flag = torch.tensor(float(here), device=accelerator.device)
    return float(accelerator.reduce(flag, "sum")) > 0


def _due(step: int, every: int, last: int) -> bool:
    return step % every == 0 or step == last


def _validated(row: Row, run: Trained, validate: Callable[[], Row], criterion: Callable[[Row], float]) -> Row:
    """Returns the row with validation figures, and keeps the point if it is the best so far."""
    row = row | validate()
    value = criterion(row)
    if not run.best or value < run.best_value:
        run.best = [tensor.detach().clone() for tensor in [*run.theta, *run.alpha]]
        run.best_value, run.best_step = value, run.step
    return row


def _clip(direction: Direction, max_norm: float) -> float:
    """Scales the direction of θ to the given norm at most, that of θ̂ alike, and returns the norm it had."""
    norm = _norm(direction.theta)
    if norm > max_norm:
        for d in [*direction.theta, *direction.theta_hat]:
            d *= max_norm / norm
    return norm


def _norm(tensors: Tensors) -> float:
    return float(get_total_norm(tensors)) if tensors else 0.0


def _check_finite(direction: Direction, norm: float) -> None:
    values = [norm, *direction.record.values(), _norm(direction.alpha), _norm(direction.theta_hat)]
    if not all(map(math.isfinite, values)):
        raise ArithmeticError("the loss or its gradient is not finite")


def _apply(
    optimizer: torch.optim.Optimizer | None, parameters: Tensors, direction: Tensors, lr: float
) -> None:
    """Takes one optimizer step along the direction, if there is one; no gradient stays behind."""
    if optimizer is None or not direction:
        return
    for group in optimizer.param_groups:
        group["lr"] = lr
    for parameter, d in zip(parameters, direction, strict=True):
        parameter.grad = d.to(parameter.dtype)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _describe(delta: Tensor, iota: Tensor) -> Row:
    return {
        f"alpha_{name}_{part}": float(getattr(value.detach(), part)())
        for name, value in (("delta", delta), ("iota", iota))
        for part in ("mean", "min", "max")
    }


def _state(run: Trained, optimizers: Mapping[str, torch.optim.Optimizer]) -> dict[str, Any]:
    """Returns what a run carries over.

    The order of questions, learning rates and dropout are functions of seed and step, and need no state.
    """
    return {
        **{name: [tensor.detach() for tensor in tensors] for name, tensors in _moving(run).items()},
        "solver_steps": run.state.steps,
        "best": run.best,
        "best_value": run.best_value,
        "best_step": run.best_step,
        "optimizers": {name: optimizer.state_dict() for name, optimizer in optimizers.items()},
    }


def _moving(run: Trained) -> dict[str, Tensors]:
    """Returns all tensors that training changes in place, by the names that checkpoints give them."""
    return {
        "theta": run.theta,
        "theta_hat": run.state.theta_hat,
        "alpha": run.alpha,
        "running": run.running,
    }


def _resume(
    run: Trained, optimizers: Mapping[str, torch.optim.Optimizer], checkpoints: Path, fingerprint: str
) -> None:
    """Puts the run where its newest checkpoint is; changes nothing where there is none."""
    state = load_checkpoint(checkpoints)
    if state is None:
        return
    if state.get("fingerprint") != fingerprint:
        raise CalibrantError(
            f"the checkpoints in {checkpoints} were trained on other questions than these; give the same "
            "ones to resume the run, or choose another --output_dir"
        )
    for name, target in _moving(run).items():
        _assign(target, state[name])
    run.state.steps = state["solver_steps"]
    device = run.theta[0].device
    run.best = [tensor.to(device) for tensor in state["best"]]
    run.best_value, run.best_step, run.step = state["best_value"], state["best_step"], state["step"]
    for name, optimizer in optimizers.items():
        optimizer.load_state_dict(state["optimizers"][name])


@torch.no_grad()
def _assign(target: Tensors, source: Tensors) -> None:
    for t, s in zip(target, source, strict=True):
        t.copy_(s)


class _History:
    """`history.jsonl`: a JSON object a step, on the disk as soon as the step is done; trackers get it too."""

    def __init__(self, path: Path, accelerator: Accelerator) -> None:
        self.path, self.accelerator = path, accelerator
        self.active = accelerator.is_main_process

    def keep_until(self, step: int) -> None:
        """Drops rows after a step: what a killed run logged after its last checkpoint comes again."""
        if not self.active:
            return
        lines = self.path.read_text(errors="replace").splitlines() if self.path.exists() else []
        kept = [line for line in lines if _step(line) <= step]
        partial = self.path.with_suffix(".partial")
        partial.write_text("".join(line + "\n" for line in kept))
        os.replace(partial, self.path)

    def append(self, row: Row) -> None:
        if self.active:
            with self.path.open("a") as file:
                file.write(json.dumps({key: _short(value) for key, value in row.items()}) + "\n")
        self.accelerator.log(row, step=int(row["step"]))


def _step(line: str) -> float:
    """Returns the step of a row of the history, or infinity where a kill has torn it."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


def _short(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.6g}")
