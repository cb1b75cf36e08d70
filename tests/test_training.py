"""The training loop on a small bilevel problem: resuming, stopping, keeping the best, the schedule."""

import json
import math
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from accelerate import Accelerator
from torch.optim.lr_scheduler import LambdaLR

from toolkit.calibration.bilevel import Gradient, State
from toolkit.calibration.losses import Bounds
from toolkit.calibration.solvers import bome, iterate, penalty
from toolkit.calibration.training import Schedule, Trained, train
from toolkit.errors import CalibrantError

STEPS = 9
SCHEDULE = Schedule(
    steps=STEPS, theta_lr=0.1, alpha_lr=0.05, lower_steps=2, warmup_steps=2, validate_every=2, save_every=1
)


class Problem:
    """L = |θ − α − noise of the step|² / 2 and F = |θ|² / 2, with what a loop wants to know."""

    bounds = Bounds()

    def __init__(self, broken_at: int | None = None) -> None:
        self.broken_at = broken_at

    def at(self, step, device):
        return step

    def lower(self, step):
        noise = torch.randn(3, generator=torch.Generator().manual_seed(step))

        def oracle(theta, alpha, wrt="both"):
            difference = theta[0] - alpha[0] - noise
            value = 0.5 * difference.square().sum()
            if step == self.broken_at:
                value = value * math.nan
            return Gradient(value, [difference], [-difference])

        return oracle

    def upper(self, step):
        def oracle(theta, alpha, wrt="both"):
            return Gradient(0.5 * theta[0].square().sum(), [theta[0].clone()], [torch.zeros(3)])

        return oracle


def start() -> Trained:
    return Trained([torch.tensor([3.0, -2.0, 1.0])], [torch.zeros(3)], State([torch.zeros(3)]))


def go(folder: Path, run: Trained | None = None, problem: Problem | None = None, **changes: Any) -> Trained:
    folder.mkdir(exist_ok=True)
    run, problem = run or start(), problem or Problem()
    theta = run.theta[0]
    settings: dict[str, Any] = {
        "accelerator": Accelerator(),
        "folder": folder,
        "fingerprint": "questions",
        "validate": lambda: {"validation_nll": float(theta.square().sum())},
        "criterion": lambda row: row["validation_nll"],
        "seed": 0,
    }
    return train(
        run,
        cast(Any, problem),
        changes.pop("solve", partial(bome, warm_start=True)),
        cast(Any, problem),
        cast(Any, problem),
        changes.pop("schedule", SCHEDULE),
        **(settings | changes),
    )


def history(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


class Killed(Exception):
    pass


@pytest.mark.parametrize("solve", [partial(bome, warm_start=True), partial(penalty, growth=0.5), iterate])
@pytest.mark.parametrize("at", range(1, STEPS))
def test_a_run_stopped_at_any_step_ends_as_one_left_alone(tmp_path, at, solve):
    alone = go(tmp_path / "alone", solve=solve)

    class Stopping(Problem):
        def lower(self, step):
            if step == at:
                raise Killed
            return super().lower(step)

    with pytest.raises(Killed):
        go(tmp_path / "stopped", problem=Stopping(), solve=solve)
    with (tmp_path / "stopped" / "history.jsonl").open("a") as file:
        file.write('{"step": 99}\n{"step": 3, "lo')  # a torn tail
    resumed = go(tmp_path / "stopped", solve=solve)
    for ours, theirs in zip([*resumed.theta, *resumed.alpha], [*alone.theta, *alone.alpha], strict=True):
        assert torch.equal(ours, theirs)
    assert (resumed.best_step, resumed.best_value) == (alone.best_step, alone.best_value)
    rows = [[{k: v for k, v in row.items() if k != "seconds"} for row in history(tmp_path / name)]
            for name in ("stopped", "alone")]  # fmt: skip
    assert rows[0] == rows[1]


def test_history_has_every_step_and_the_validations(tmp_path):
    go(tmp_path)
    rows = history(tmp_path)
    assert [row["step"] for row in rows] == list(range(STEPS + 1))
    assert [row["step"] for row in rows if "validation_nll" in row] == [0, 2, 4, 6, 8, 9]
    assert ["lambda" in row for row in rows[1:]] == [False] * 2 + [True] * (STEPS - 2)


def test_the_run_ends_at_its_best_validated_point(tmp_path):
    values = iter([5.0, 4.0, 1.0, 3.0, 2.0, 2.5])
    seen: list[torch.Tensor] = []
    run = start()

    def validate():
        seen.append(torch.cat([*run.theta, *run.alpha]).clone())
        return {"validation_nll": next(values)}

    go(tmp_path, run, validate=validate)
    assert run.best_step == 4 and run.best_value == 1.0
    assert torch.equal(torch.cat([*run.theta, *run.alpha]), seen[2])
    assert not torch.equal(seen[2], seen[-1])


@pytest.mark.parametrize("where", ["lower", "gradient"])
def test_a_loss_that_is_not_finite_stops_the_run_before_the_step(tmp_path, where):
    class Broken(Problem):
        def lower(self, step):
            inner = super().lower(step)

            def oracle(theta, alpha, wrt="both"):
                found = inner(theta, alpha, wrt)
                if step == 5:
                    if where == "lower":
                        return Gradient(found.value * math.nan, found.theta, found.alpha)
                    return Gradient(found.value, [found.theta[0] / 0], found.alpha)
                return found

            return oracle

    with pytest.raises(CalibrantError, match="not finite at step 6; the last good checkpoint stays") as error:
        go(tmp_path, problem=Broken())
    assert "\n" not in str(error.value)
    assert (tmp_path / "checkpoints" / "step-0000005.pt").exists()
    assert history(tmp_path)[-1]["step"] == 5
    resumed = go(tmp_path)  # the fault is mended
    assert all(torch.isfinite(tensor).all() for tensor in resumed.theta)


@pytest.mark.parametrize("decay", ["constant", "linear", "cosine"])
def test_the_schedule_is_that_of_transformers(decay):
    from transformers import get_scheduler

    schedule = Schedule(steps=20, theta_lr=1.0, alpha_lr=1.0, warmup_steps=4, decay=decay)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    name = "constant_with_warmup" if decay == "constant" else decay
    theirs = cast(LambdaLR, get_scheduler(name, optimizer, num_warmup_steps=4, num_training_steps=20))
    for step in range(20):
        # Theirs starts at 0 and so wastes the first step; ours takes the warm-up's steps 1/4 .. 4/4.
        expected = (step + 1) / 4 if step < 4 else theirs.get_last_lr()[0]
        assert schedule.factor(step) == pytest.approx(expected)
        optimizer.step()
        theirs.step()


def test_the_direction_is_clipped_and_the_optimizer_is_adamw(tmp_path):
    schedule = Schedule(
        steps=1, theta_lr=0.1, alpha_lr=0.0, lower_steps=1, decay="constant", weight_decay=0.1, max_norm=0.5
    )
    run = go(tmp_path, schedule=schedule, criterion=lambda row: -row["step"])
    reference = start().theta[0].clone().requires_grad_()
    optimizer = torch.optim.AdamW([reference], lr=0.1, weight_decay=0.1)
    gradient = Problem().lower(0)([reference.detach()], [torch.zeros(3)]).theta[0]
    reference.grad = gradient * 0.5 / gradient.norm()
    optimizer.step()
    assert torch.allclose(run.theta[0], reference.detach(), atol=1e-6)
    assert history(tmp_path)[1]["grad_norm"] == pytest.approx(gradient.norm().item(), rel=1e-5)
