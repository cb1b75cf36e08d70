"""Times scoring texts that share a row, of a question or of several, against one row per option.

python recipes/benchmarks/options.py --model bundled --questions 64 --repeats 5 --output_dir runs/benchmark
"""

from collections.abc import Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import get_args

import measure
import numpy as np
from measure import Parser, Result, circumstances, facts, in_turn, markdown, positive, ratio
from tqdm import tqdm
from transformers import PreTrainedModel

from toolkit.confidence.options import OptionConfidence, option_confidence
from toolkit.errors import CalibrantError
from toolkit.models.base import context_length, default_device, load_model, model_identity
from toolkit.models.encoding import EncodedQuestion, encode_questions
from toolkit.models.layout import choose_layout, layout_for
from toolkit.models.predictive import Layout
from toolkit.questions.sources import load_questions

LAYOUTS: tuple[Layout, ...] = get_args(Layout)
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
"""Questions a forward pass, of which each layout gets what suits it best."""

TOLERANCE = 1e-4
"""Largest difference of a log-probability between the layouts, in nats."""


def benchmark(name: str, count: int, repeats: int, seed: int) -> Result:
    """Scores the same questions in each layout, in turn.

    Args:
        name: A Hub id, a local folder, or `bundled`.
        count: Questions of the test split of worldfacts.
        repeats: Timed passes over the questions, for each layout.
        seed: Seeds the sample of questions.

    Returns:
        For each layout its batch size, times in seconds, and tokens; and all that the times depend on.

    Raises:
        CalibrantError: The model does not take packed options, or scores them otherwise.
    """
    model, tokenizer = load_model(name, dtype="float32", device=default_device())
    data = load_questions("worldfacts", "test").sample(count, seed)
    limit = context_length(model, tokenizer)
    questions = encode_questions(data, tokenizer, style="plain", max_length=limit)
    if layout_for(model, questions, choose_layout(model, model.config.vocab_size)) == "separate":
        raise CalibrantError(f"{name} does not take these questions packed; choose another --model")

    sizes = {layout: best_batch_size(model, questions, layout) for layout in LAYOUTS}
    tokens = {layout: count_tokens(model, questions, layout, sizes[layout]) for layout in LAYOUTS}
    scores: dict[Layout, OptionConfidence] = {}

    def score(layout: Layout) -> None:
        scores[layout] = option_confidence(model, questions, layout=layout, batch_size=sizes[layout])

    seconds = in_turn({layout: partial(score, layout) for layout in LAYOUTS}, repeats, "timing layouts")

    separate = scores["separate"].log_probs
    present = np.isfinite(separate)
    difference = max(float(np.abs(one.log_probs - separate)[present].max()) for one in scores.values())
    if difference > TOLERANCE:
        raise CalibrantError(
            f"packed options of {name} score up to {difference:.2g} nats differently, more than rounding; "
            "choose another --model, and report this one"
        )
    return {
        "model": model_identity(name, model),
        "data": {"name": data.name, "split": data.split, "count": len(data), "sha256": data.sha256},
        "seed": seed,
        **circumstances(),
        "largest_difference": difference,
        "layouts": {
            layout: {
                "batch_size": sizes[layout],
                "tokens": tokens[layout],
                "seconds": seconds[layout],
                "median_seconds": median(seconds[layout]),
                "times_as_fast": ratio(seconds, "separate", layout),
            }
            for layout in LAYOUTS
        },
    }


def best_batch_size(model: PreTrainedModel, questions: Sequence[EncodedQuestion], layout: Layout) -> int:
    """Returns the number of questions a pass with which a layout is fastest, after a pass to warm up."""
    option_confidence(model, questions[: max(BATCH_SIZES)], layout=layout, batch_size=8)
    seconds = {}
    for size in tqdm(BATCH_SIZES, desc=f"batch size, {layout}", unit="size"):
        start = perf_counter()
        option_confidence(model, questions, layout=layout, batch_size=size)
        seconds[size] = perf_counter() - start
    return min(seconds, key=seconds.__getitem__)


def count_tokens(
    model: PreTrainedModel, questions: Sequence[EncodedQuestion], layout: Layout, batch_size: int
) -> int:
    """Returns how many tokens the model is given in one pass over all questions, padding included."""
    return measure.count_tokens(
        model, lambda: option_confidence(model, questions, layout=layout, batch_size=batch_size)
    )


def table(result: Result) -> str:
    """Returns the result as a Markdown table, with a line on what it depends on."""
    data, count = result["data"], result["data"]["count"]
    rows = [
        (
            layout,
            row["batch_size"],
            row["tokens"],
            f"{row['median_seconds']:.2f}",
            f"{count / row['median_seconds']:.1f}",
            f"{row['times_as_fast']:.2f}",
        )
        for layout, row in result["layouts"].items()
    ]
    lines = [
        markdown(
            rows,
            ("layout", "questions a pass", "tokens", "seconds (median)", "questions/s", "times as fast"),
        ),
        "",
        f"{result['model']['name']} in {result['model']['dtype']}; {count} questions of {data['name']} "
        f"({data['split']}, sha256 {data['sha256'][:12]}...); seed {result['seed']}; "
        f"{len(result['layouts']['packed']['seconds'])} repeats in turn; log-probabilities agree within "
        f"{result['largest_difference']:.1g} nats; {facts(result)}.",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line, measures, prints the table, and writes it where a folder is given."""
    parser = Parser("options", "Times scoring texts that share a row against one row per option.")
    parser.add_argument("--model", default="bundled", help="a Hub id, a local folder, or bundled (default)")
    parser.add_argument(
        "--questions", type=positive, default=64, help="of worldfacts' test split (default 64)"
    )
    parser.add_argument("--repeats", type=positive, default=5, help="timed passes of each layout (default 5)")
    parser.add_argument("--seed", type=int, default=0, help="seeds the sample of questions (default 0)")
    parser.run(
        arguments,
        lambda given: benchmark(given.model, given.questions, given.repeats, given.seed),
        table,
    )


if __name__ == "__main__":
    main()
