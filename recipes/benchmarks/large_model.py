"""Benchmarks training steps and evaluation on a model of 8B weights in NF4, on a machine with an NVIDIA GPU.

python recipes/benchmarks/large_model.py --output_dir runs/large_model
python recipes/benchmarks/large_model.py --dry_run --output_dir runs/dry_run

The model has the shape of Llama 3 8B and random weights, with bfloat16 to compute in; to such a model all
options are about as likely, so what it answers says nothing. Training steps are set beside TRL's
(`training_step`) and evaluation beside lm-eval's (`multiple_choice`). The results are written anew after each
part, so that a run that is cut short loses no more than the part it was at, and a part that fails stops no
other. `--dry_run` does all of it with a tiny model on the device that is there, which shows that it works and
no more.
"""

import argparse
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import multiple_choice
import torch
import training_step
from measure import Parser, Result, circumstances
from method_steps import StepSettings
from random_model import Loaded, load, this_device
from step_rows import ROWS, Load, release, row_memory
from trl_step import require_trl

from toolkit.errors import CalibrantError, first_line
from toolkit.evaluation.files import replacing


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        model: Name of the random model.
        dtype: What its weights compute in.
        batch_size: Questions a training step.
        rank: Rank of the adapters.
        upper_every: m of `finite_difference`.
        repeats: Turns of each benchmark.
        steps: Training steps of a row a turn.
        questions: Questions of the evaluation.
        sizes: Batch sizes that the evaluation tries.
    """

    model: str = "random:8b"
    dtype: str = "bfloat16"
    batch_size: int = 16
    rank: int = 16
    upper_every: int = 16
    repeats: int = 5
    steps: int = 3
    questions: int = 256
    sizes: tuple[int, ...] = (16, 64, 128)


DRY = Plan("random:tiny", "auto", 2, 2, upper_every=2, repeats=1, steps=1, questions=4, sizes=(2,))


class Report:
    """The results so far, on the screen and in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.start = folder, perf_counter()
        self.result: Result = {**circumstances(), "finished": False, "parts": {}, "failed": {}, "seconds": {}}

    def write(self) -> None:
        """Writes what there is."""
        texts = {"json": json.dumps(self.result, indent=2), "md": table(self.result)}
        for kind, text in texts.items():
            with replacing(self.folder / f"large_model.{kind}") as partial_file:
                partial_file.write_text(text + "\n", encoding="utf-8")

    def part(self, name: str, work: Callable[[], None]) -> None:
        """Does a part; where it fails, says so and lets the others go on."""
        began = perf_counter()
        print(f"[{began - self.start:4.0f} s] {name}", file=sys.stderr, flush=True)
        try:
            work()
        except Exception as error:  # whatever ails one side, what the other parts measure stays of use
            traceback.print_exc()
            self.result["failed"][name] = f"{type(error).__name__}: {first_line(error)}"
        self.result["seconds"][name] = perf_counter() - began
        self.write()
        release()


def run(plan: Plan, report: Report) -> None:
    """Measures all parts, the ones that say most first."""
    settings = StepSettings(plan.batch_size, plan.rank, upper_every=plan.upper_every)
    loads, parts = loader(plan), report.result["parts"]

    def steps() -> None:
        parts["training_step"] = training_step.time_rows(
            loads, settings, repeats=plan.repeats, steps=plan.steps
        )

    def evaluation() -> None:
        parts["evaluation"] = evaluate(plan, loads)

    def memory(name: str) -> None:
        training_step.add_memory(parts["training_step"], name, row_memory(loads, settings, name))

    report.part("times of training steps", steps)
    report.part("evaluation", evaluation)
    for name in ROWS if "training_step" in parts else ():
        report.part(f"memory of {name}", partial(memory, name))
    report.result["finished"] = not report.result["failed"]
    report.write()


def loader(plan: Plan) -> Load:
    """Returns what makes the model."""

    def make(prepared: bool) -> Loaded:
        device = this_device()
        return load(plan.model, dtype=plan.dtype, quantization="nf4", device=device, prepared=prepared)

    return make


def evaluate(plan: Plan, loads: Load) -> Result:
    """Returns the evaluation benchmark of the model, with tokens per second.

    Both sides take the model as transformers loads it: what our recipes turn into float32 would slow lm-eval
    down, which computes in it.
    """
    base = loads(False)
    result = multiple_choice.benchmark(
        base.model,
        base.tokenizer,
        base.identity,
        count=plan.questions,
        repeats=plan.repeats,
        seed=0,
        sizes=plan.sizes,
    )
    for form in result["forms"].values():
        for side in form["sides"].values():
            side["tokens_per_second"] = side["tokens"] / side["median_seconds"]
    return result


def table(result: Result) -> str:
    """Returns the tables of all parts so far, with the device's name above them."""
    parts = result["parts"]
    texts = [f"# {result['device']}"]
    if "training_step" in parts:
        texts += ["## Training steps", training_step.table(parts["training_step"])]
    if "evaluation" in parts:
        texts += ["## Evaluation", multiple_choice.table(parts["evaluation"]), _speeds(parts["evaluation"])]
    texts += [f"{name} failed: {error}" for name, error in result["failed"].items()]
    times = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in result["seconds"].items())
    state = "Finished" if result["finished"] else "Not finished"
    return "\n\n".join([*texts, f"{state}: {times}."])


def _speeds(evaluation: Result) -> str:
    """Returns the tokens per second of the evaluation, as a sentence."""
    speeds = [
        f"{form}, {multiple_choice.SIDES[side]} {found['tokens_per_second']:.0f}"
        for form, both in evaluation["forms"].items()
        for side, found in both["sides"].items()
    ]
    return f"Tokens per second, padding included: {'; '.join(speeds)}."


def measure(given: argparse.Namespace) -> Result:
    """Measures what the command line asks for.

    Raises:
        CalibrantError: There is no folder for the results, no GPU, or no TRL or lm-eval; or a part failed.
    """
    if given.output_dir is None:
        raise CalibrantError("the results of every part go to a folder; give --output_dir")
    if not (given.dry_run or torch.cuda.is_available()):
        raise CalibrantError("no NVIDIA GPU is here; run this where there is one, or say --dry_run")
    require_trl()
    multiple_choice.harness()
    report = Report(given.output_dir)
    run(DRY if given.dry_run else Plan(), report)
    if failed := report.result["failed"]:
        raise CalibrantError(f"{' and '.join(failed)} failed; what was measured is in {given.output_dir}")
    return report.result


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line, measures, prints the tables, and writes them."""
    parser = Parser("large_model", "Benchmarks steps and evaluation of an 8B model in NF4 on an NVIDIA GPU.")
    parser.add_argument("--dry_run", action="store_true", help="a tiny model, on any device")
    parser.run(arguments, measure, table)


if __name__ == "__main__":
    main()
