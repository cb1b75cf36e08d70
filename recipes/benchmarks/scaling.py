"""Measures how time and memory of evaluation and of a training step grow, one factor at a time.

python recipes/benchmarks/scaling.py --repeats 5 --output_dir runs/benchmark

The factors are the number of questions (of an evaluation, and of a training step, in passes of fixed size),
the options of a question, the tokens of its prompt, the vocabulary, and the model's size. Models have random
weights and questions random tokens. Every point is measured in two processes of its own, one for the
evaluation and one for the step, and memory is what they take beyond the loaded model. `--quick` measures few
and small points in this process, which shows that it works and no more.
"""

import argparse
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Literal, get_args

from measure import Parser, Result, apart, circumstances, facts, in_turn, markdown, peak_memory, positive
from method_steps import METHODS, StepSettings, our_model, our_step
from random_model import SHAPES, find_shape, random_model
from tqdm import tqdm

from toolkit.confidence.options import option_confidence
from toolkit.models.base import choose_dtype, default_device
from toolkit.models.encoding import EncodedQuestion

Work = Literal["evaluation", "step"]


@dataclass(frozen=True)
class Point:
    """What is measured.

    Attributes:
        questions: Questions of the evaluation, or of the training step.
        options: Options of a question, of 4 tokens each.
        length: Tokens of a prompt.
        vocabulary: Token ids of the model.
        model: Its shape; see `random_model.SHAPES`.
        batch_size: Questions a pass.
    """

    questions: int = 8
    options: int = 4
    length: int = 32
    vocabulary: int = 49_152
    model: str = "50m"
    batch_size: int = 8


FACTORS: dict[str, list[Any]] = {
    "questions": [8, 16, 32, 64],
    "options": [2, 4, 8, 16],
    "length": [16, 32, 64, 128],
    "vocabulary": [49_152, 98_304, 196_608],
    "model": ["10m", "50m", "100m", "500m"],
}
"""The values of each factor, the others as in `Point()`."""

QUICK = Point(questions=2, options=2, length=8, model="tiny", batch_size=2)
QUICK_FACTORS: dict[str, list[Any]] = {
    "questions": [2, 4],
    "options": [2, 3],
    "length": [8, 12],
    "vocabulary": [49_152, 50_000],
    "model": ["tiny"],
}

OPTION_TOKENS = 4


def benchmark(base: Point, factors: dict[str, list[Any]], measure: Callable[[Point, Work], Result]) -> Result:
    """Measures all points of all factors.

    Args:
        base: The values of the factors that are not varied.
        factors: The values of each factor.
        measure: Measures a point; see `measure_point`.

    Returns:
        For each factor and value `seconds`, `median_seconds` and `memory` (bytes beyond the loaded model) of
        `evaluation` and `step`, and their growth over the factor's first value.
    """
    points = {replace(base, **{name: value}) for name, values in factors.items() for value in values}
    order = sorted(points, key=lambda point: (SHAPES[point.model].layers, *map(str, asdict(point).values())))
    work: tuple[Work, ...] = get_args(Work)
    jobs = [(point, kind) for point in order for kind in work]
    found = {job: measure(*job) for job in tqdm(jobs, desc="measuring points", unit="point")}
    return {
        **circumstances("peft"),
        "base": asdict(base),
        "factors": {
            name: [
                {"value": value} | {kind: _grown(found, base, name, value, values[0], kind) for kind in work}
                for value in values
            ]
            for name, values in factors.items()
        },
    }


def _grown(
    found: dict[tuple[Point, Work], Result], base: Point, name: str, value: Any, first: Any, kind: Work
) -> Result:
    """Returns what was measured of a point, and its time as a multiple of the factor's first."""
    here, start = (found[replace(base, **{name: v}), kind] for v in (value, first))
    return here | {"growth": here["median_seconds"] / start["median_seconds"]}


def measure_point(point: Point, kind: Work, *, method: str, repeats: int) -> Result:
    """Measures an evaluation or a training step at a point, in this process."""
    shape = replace(find_shape(point.model), vocabulary=point.vocabulary)
    device = default_device()
    model = random_model(shape, dtype=choose_dtype(), device=device)
    lower, upper = (random_questions(point, model.config.vocab_size, seed) for seed in (0, 1))
    with peak_memory() as memory:
        task: Callable[[], object]
        if kind == "evaluation":

            def task() -> object:
                return option_confidence(model, lower, batch_size=point.batch_size)

        else:
            settings = StepSettings(batch_size=point.questions, upper_every=1)
            adapted = our_model(model, settings, room=METHODS[method].solver is not None)
            task = our_step(
                adapted,
                METHODS[method],
                lower,
                upper,
                settings,
                micro_batch_size=point.batch_size,
            )
        task()  # warms up
        seconds = in_turn({kind: task}, repeats, f"{kind} of {point.model}")[kind]
    return {
        "seconds": seconds,
        "median_seconds": median(seconds),
        "memory": memory.peak - memory.before,
    }


def random_questions(point: Point, vocabulary: int, seed: int) -> list[EncodedQuestion]:
    """Returns questions of random tokens, all of the same size."""
    draw = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(vocabulary) for _ in range(count)]

    sizes = [1] * point.options
    return [
        EncodedQuestion(
            str(number),
            tokens(point.length),
            [tokens(OPTION_TOKENS) for _ in sizes],
            draw.randrange(point.options),
            sizes,
        )
        for number in range(point.questions)
    ]


def child(point: Point, kind: Work, arguments: Sequence[str]) -> Result:
    """Measures a point in a process of its own.

    Raises:
        CalibrantError: The process fails.
    """
    only = ["--only", json.dumps([asdict(point), kind])]
    return apart(__file__, [*only, *arguments], f"{kind} of {point}")


def table(result: Result) -> str:
    """Returns the result as a Markdown table, with a line on what it depends on."""
    if "factors" not in result:
        return json.dumps(result)
    head = ["factor", "value", "evaluation s", "growth", "MB", "step s", "growth", "MB"]
    rows = []
    for name, points in result["factors"].items():
        for point in points:
            cells = [
                (f"{found['median_seconds']:.4g}", f"{found['growth']:.2f}", f"{found['memory'] / 1e6:.0f}")
                for found in (point[kind] for kind in get_args(Work))
            ]
            rows.append([name, point["value"], *cells[0], *cells[1]])
    others = ", ".join(f"{name} {value}" for name, value in result["base"].items())
    return "\n\n".join(
        [
            markdown(rows, head),
            f"One factor at a time, the others {others}; random weights and tokens; the step is one of "
            f"{result['method']}; memory beyond the loaded model; {facts(result)}.",
        ]
    )


def measure(given: argparse.Namespace) -> Result:
    """Measures what the command line asks for: all points, or one."""

    def here(point: Point, kind: Work) -> Result:
        return measure_point(point, kind, method=given.method, repeats=given.repeats)

    def away(point: Point, kind: Work) -> Result:
        return child(point, kind, ["--method", given.method, "--repeats", str(given.repeats)])

    if given.only:
        point, kind = json.loads(given.only)
        return here(Point(**point), kind)
    found = benchmark(QUICK, QUICK_FACTORS, here) if given.quick else benchmark(Point(), FACTORS, away)
    return found | {"method": given.method, "quick": given.quick}


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line, measures, prints the table, and writes it where a folder is given."""
    parser = Parser("scaling", "Measures how time and memory grow, one factor at a time.")
    parser.add_argument(
        "--method", choices=METHODS, default="bome_options", help="of the step (default bome_options)"
    )
    parser.add_argument("--repeats", type=positive, default=5, help="timed runs of a point (default 5)")
    parser.add_argument("--quick", action="store_true", help="few and small points, in this process")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.run(arguments, measure, table)


if __name__ == "__main__":
    main()
