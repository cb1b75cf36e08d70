"""Times a training step of each method against plain LoRA fine-tuning by TRL, and takes their peak memory.

python recipes/benchmarks/training_step.py --model bundled --batch_size 8 --rank 8 --output_dir runs/benchmark

All rows take steps on the same questions (prompt and right answer, the loss on the answer alone), with
adapters of the same rank on all linear layers, the same dtype, AdamW at the same learning rate, and gradients
clipped to norm 1. A row `..._options` lays all options of its questions out instead, for which TRL has no
counterpart. A step runs from token ids to moved weights; `trl_step` says what TRL's step is and what of its
defaults is kept, `method_steps` what ours is. Of `finite_difference` whole cycles of m steps are timed, of
which one is bilevel.

Memory is that of a process of its own for each row, or of the GPU where there is one: from the state after
loading the model, over making adapters and optimizer, to the end of a few steps.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from statistics import median
from typing import get_args

from measure import Parser, Result, apart, circumstances, facts, in_turn, markdown, positive, ratio
from method_steps import METHODS, StepSettings
from random_model import Loaded, load, this_device
from step_rows import ROWS, TRL, Load, check_losses, count_tokens, prepare, release, repeat, row_memory

from toolkit.models.base import Dtype
from toolkit.models.quantization import Quantization

SINGLE_LEVEL = "entropy_regularisation"
"""What the bilevel methods are set beside: the same end without a second level."""


def benchmark(
    load: Load,
    settings: StepSettings,
    memory: Callable[[str], Result],
    *,
    repeats: int = 5,
    steps: int = 3,
    rows: Sequence[str] = ROWS,
) -> Result:
    """Times steps of all rows in turn, then takes their memory.

    Args:
        load: Loads the model.
        settings: What all rows have in common.
        memory: Returns the memory of a row, as `row_memory` does.
        repeats: Turns.
        steps: Steps of a row a turn, but for `finite_difference`, of which it is a cycle.
        rows: Rows to measure, `trl_sft` and `entropy_regularisation` among them.

    Returns:
        For each row seconds a step, tokens a second, memory, and ratios; and all that they depend on.

    Raises:
        CalibrantError: TRL's loss is not ours.
    """
    result = time_rows(load, settings, repeats=repeats, steps=steps, rows=rows)
    for name in rows:
        add_memory(result, name, memory(name))
    return result


def time_rows(
    load: Load, settings: StepSettings, *, repeats: int, steps: int, rows: Sequence[str] = ROWS
) -> Result:
    """Times steps of all rows in turn; see `benchmark`."""
    take, lower, identity, sha256 = prepare(load, settings, rows)
    losses = {name: step() for name, step in take.items()}  # warms up
    check_losses(losses, identity)
    counts = {name: settings.upper_every if name == "finite_difference" else steps for name in take}
    tasks = {name: partial(repeat, step, counts[name]) for name, step in take.items()}
    seconds = in_turn(tasks, repeats, "timing steps in turn")
    seconds = {name: [time / counts[name] for time in times] for name, times in seconds.items()}
    del take, tasks
    release()
    quantizer = ["bitsandbytes"] if identity["quantization"] else []
    return {
        "model": identity,
        "data": {"name": "worldfacts", "split": "train", "sha256": sha256},
        "settings": asdict(settings),
        **circumstances("peft", "accelerate", "trl", *quantizer),
        "first_loss": {name: losses[name] for name in (TRL, "sft") if name in losses},
        "rows": {name: _timed(name, seconds, counts[name], count_tokens(lower, name)) for name in rows},
    }


def _timed(name: str, seconds: Mapping[str, Sequence[float]], steps: int, tokens: int) -> Result:
    """Returns the times of a row, and as multiples of TRL's and of entropy regularisation's."""
    middle = median(seconds[name])
    row: Result = {
        "steps": steps,
        "seconds": seconds[name],
        "median_seconds": middle,
        "tokens": tokens,
        "tokens_per_second": tokens / middle,
        "ratio_to_trl": ratio(seconds, name, TRL),
    }
    if name in METHODS and METHODS[name].solver is not None:
        row["ratio_to_single_level"] = ratio(seconds, name, SINGLE_LEVEL)
    return row


def add_memory(result: Result, name: str, memory: Result) -> None:
    """Adds the memory of a row, and as multiples of TRL's, whose comes first."""
    result["rows"][name]["memory"] = memory
    peer = result["rows"][TRL].get("memory")
    if peer is None:
        return
    memory["peak_ratio_to_trl"] = memory["peak"] / peer["peak"]
    memory["above_ratio_to_trl"] = memory["above"] / max(peer["above"], 1)


def memory_of(
    name: str, dtype: str, quantization: Quantization | None, settings: StepSettings
) -> tuple[Load, Callable[[str], Result]]:
    """Returns what loads a model, and what takes the memory of a row with it.

    A GPU's memory is taken here, the memory of a process in a process of its own for each row.
    """
    device = this_device()

    def loads(prepared: bool) -> Loaded:
        return load(name, dtype=dtype, quantization=quantization, device=device, prepared=prepared)

    if device.type == "cuda":
        return loads, partial(row_memory, loads, settings)
    arguments = ["--model", name, "--dtype", dtype]
    arguments += ["--quantization", quantization] if quantization else []
    for field in fields(settings):
        value = getattr(settings, field.name)
        arguments += [f"--{field.name}", *([] if value is True else [str(value)])] if value else []
    return loads, partial(child_memory, arguments)


def child_memory(arguments: Sequence[str], name: str) -> Result:
    """Returns the memory of a row, measured by this script in a process of its own.

    Raises:
        CalibrantError: The process fails.
    """
    print(f"memory of {name}", file=sys.stderr)
    return apart(__file__, [*arguments, "--only", name], f"memory of {name}")


def table(result: Result) -> str:
    """Returns the result as a Markdown table, with a line on what it depends on."""
    if "rows" not in result:
        return json.dumps(result)
    head = ["step", "tokens", "s a step (median)", "tokens/s", "x trl_sft", f"x {SINGLE_LEVEL}"]
    head += ["peak MB", "x trl_sft", "above the model MB", "x trl_sft"]
    rows = [(name, *_times(row), *_memory(row.get("memory"))) for name, row in result["rows"].items()]
    return markdown(rows, head) + "\n\n" + _depends_on(result)


def _times(row: Result) -> list[object]:
    single = row.get("ratio_to_single_level")
    return [
        row["tokens"],
        f"{row['median_seconds']:.4g}",
        f"{row['tokens_per_second']:.0f}",
        f"{row['ratio_to_trl']:.2f}",
        "" if single is None else f"{single:.2f}",
    ]


def _memory(memory: Result | None) -> list[str]:
    if memory is None:  # not measured yet
        return [""] * 4
    return [
        f"{memory['peak'] / 1e6:.0f}",
        f"{memory.get('peak_ratio_to_trl', math.nan):.2f}",
        f"{memory['above'] / 1e6:.0f}",
        f"{memory.get('above_ratio_to_trl', math.nan):.2f}",
    ]


def _depends_on(result: Result) -> str:
    """Returns the sentence under the table."""
    model, settings = result["model"], result["settings"]
    kind = (model["quantization"] or {}).get("method", "no quantization")
    turns = len(next(iter(result["rows"].values()))["seconds"])
    return (
        f"{model['name']} in {model['dtype']}, {kind}; {settings['batch_size']} questions of worldfacts a "
        f"step, rank {settings['rank']}, gradient checkpointing "
        f"{'on' if settings['gradient_checkpointing'] else 'off'}, finite_difference bilevel every "
        f"{settings['upper_every']} steps; seed {settings['seed']}; {turns} repeats in turn; {facts(result)}."
    )


def measure(given: argparse.Namespace) -> Result:
    """Measures what the command line asks for: all rows, or the memory of one."""
    settings = StepSettings(**{field.name: getattr(given, field.name) for field in fields(StepSettings)})
    loads, memory = memory_of(given.model, given.dtype, given.quantization, settings)
    if given.only:
        return row_memory(loads, settings, given.only)
    return benchmark(loads, settings, memory, repeats=given.repeats, steps=given.steps)


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line, measures, prints the table, and writes it where a folder is given."""
    parser = Parser("training_step", "Times a training step of each method against TRL's, and takes memory.")
    parser.add_argument(
        "--model", default="bundled", help="a Hub id, a folder, bundled (default), or random:100m"
    )
    parser.add_argument("--dtype", default="auto", choices=get_args(Dtype), help="default auto")
    parser.add_argument("--quantization", choices=get_args(Quantization), help="default none")
    parser.add_argument("--batch_size", type=positive, default=8, help="questions a step (default 8)")
    parser.add_argument("--rank", type=positive, default=8, help="of the adapters (default 8)")
    parser.add_argument("--learning_rate", type=float, default=3e-4, help="of AdamW (default 3e-4)")
    parser.add_argument(
        "--upper_every",
        type=positive,
        default=16,
        help="steps of finite_difference a bilevel one (default 16)",
    )
    parser.add_argument("--gradient_checkpointing", action="store_true", help="for all rows (default off)")
    parser.add_argument("--repeats", type=positive, default=5, help="turns (default 5)")
    parser.add_argument("--steps", type=positive, default=3, help="of a row a turn (default 3)")
    parser.add_argument("--seed", type=int, default=0, help="of questions and adapters (default 0)")
    parser.add_argument("--only", choices=ROWS, help=argparse.SUPPRESS)
    parser.run(arguments, measure, table)


if __name__ == "__main__":
    main()
