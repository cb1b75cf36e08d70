"""Times samples drawn together against one `generate` each, and streaming with confidence against `generate`.

python recipes/benchmarks/sampling.py --model bundled --samples 50 --repeats 3 --output_dir runs/sampling
"""

from collections.abc import Sequence
from functools import partial
from itertools import count
from statistics import median
from typing import Any

import torch
from measure import Parser, Result, circumstances, facts, in_turn, markdown, positive, ratio
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from toolkit.confidence.samples import draw_samples
from toolkit.confidence.tokens import generated_confidence
from toolkit.errors import CalibrantError
from toolkit.models.base import context_length, default_device, load_model, model_identity
from toolkit.models.encoding import encode_prompt
from toolkit.models.generation import Decoding, end_ids
from toolkit.questions.prompts import Style
from toolkit.questions.question import OpenEnded
from toolkit.questions.sources import load_questions

STORY = OpenEnded("story", "Tell me the story of a lighthouse and a storm.", ("-",))
"""What the streams answer: at length."""


def benchmark(name: str, samples: int, tokens: int, repeats: int, seed: int) -> Result:
    """Draws samples and streams an answer in both ways, in turn.

    Args:
        name: A Hub id, a local folder, or `bundled`.
        samples: Answers to one question of worldfacts' test split.
        tokens: Most tokens of an answer.
        repeats: Timed runs of each way.
        seed: Seeds the choice of the question, and the draws.

    Returns:
        For samples and streams the times of each way in seconds, their ratios, and all that they depend on.
    """
    model, tokenizer = load_model(name, dtype="float32", device=default_device())
    data = load_questions("worldfacts", "test").sample(1, seed)
    [chosen] = data
    asked = OpenEnded(chosen.id, chosen.text, ("-",))
    style: Style = "chat" if tokenizer.chat_template else "plain"
    limit = context_length(model, tokenizer)
    question, story = (encode_prompt(one, tokenizer, style=style, max_length=limit) for one in (asked, STORY))
    return {
        "model": model_identity(name, model),
        "data": {"name": data.name, "split": data.split, "count": 1, "sha256": data.sha256},
        "seed": seed,
        "max_tokens": tokens,
        **circumstances(),
        "samples": {
            "count": samples,
            "prompt_tokens": len(question),
            **time_samples(model, tokenizer, question, samples, tokens, repeats, seed),
        },
        "streaming": {
            "prompt_tokens": len(story),
            **time_streaming(model, tokenizer, story, tokens, repeats),
        },
    }


def time_samples(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: list[int],
    samples: int,
    tokens: int,
    repeats: int,
    seed: int,
) -> Result:
    """Times answers that are drawn together against answers that are drawn one by one.

    Each run draws other answers, so the ways are compared by the time that a token takes.
    """
    ends = end_ids(model, tokenizer)
    drawn: dict[str, list[int]] = {"separate": [], "together": []}
    seeds = {way: count(seed) for way in drawn}

    def separate(number: int = samples) -> None:
        torch.manual_seed(next(seeds["separate"]))
        total = 0
        for _ in range(number):
            total += generate(
                model, prompt, ends, tokens, do_sample=True, temperature=1.0, top_k=0, top_p=1.0
            )
        drawn["separate"].append(total)

    def together() -> None:
        decoding = Decoding(max_tokens=tokens)
        [answers] = draw_samples(
            model, tokenizer, [prompt], ["asked"], n=samples, decoding=decoding, seed=next(seeds["together"])
        )
        drawn["together"].append(sum(len(answer.ids) for answer in answers))

    separate(1)
    together()
    for counts in drawn.values():
        counts.clear()
    seconds = in_turn({"separate": separate, "together": together}, repeats, "timing samples")
    each = {way: [s / t for s, t in zip(seconds[way], drawn[way], strict=True)] for way in drawn}
    return {
        way: {
            "tokens": drawn[way],
            "seconds": seconds[way],
            "median_seconds": median(seconds[way]),
            "times_as_fast": ratio(each, "separate", way),
        }
        for way in drawn
    }


def time_streaming(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: list[int], tokens: int, repeats: int
) -> Result:
    """Times a greedy answer whose tokens come with their confidence against `generate`, and its first token.

    Raises:
        CalibrantError: They answer differently.
    """
    ends = end_ids(model, tokenizer)
    lengths: dict[tuple[str, int], int] = {}

    def plain(most: int) -> None:
        lengths["generate", most] = generate(model, prompt, ends, most, do_sample=False)

    def stream(most: int) -> None:
        decoding = Decoding(temperature=0, max_tokens=most)
        steps = generated_confidence(model, tokenizer, prompt, decoding, seed=0)
        lengths["stream", most] = sum(1 for _ in steps)

    ways = {"generate": plain, "stream": stream}
    tasks = {f"{way} {most}": partial(ways[way], most) for most in (tokens, 1) for way in ways}
    for task in tasks.values():
        task()
    if lengths["generate", tokens] != lengths["stream", tokens]:
        raise CalibrantError("the stream and `generate` answer differently; report this model")
    seconds = in_turn(tasks, repeats, "timing streams")
    return {
        way: {
            "tokens": lengths[way, tokens],
            "seconds": seconds[f"{way} {tokens}"],
            "median_seconds": median(seconds[f"{way} {tokens}"]),
            "speed": ratio(seconds, f"generate {tokens}", f"{way} {tokens}"),
            "first_token_seconds": seconds[f"{way} 1"],
            "median_first_token_seconds": median(seconds[f"{way} 1"]),
            "first_token_ratio": ratio(seconds, f"{way} 1", "generate 1"),
        }
        for way in ways
    }


def generate(
    model: PreTrainedModel, prompt: list[int], ends: frozenset[int], most: int, **options: Any
) -> int:
    """Runs transformers' `generate` on one prompt, and returns the number of tokens of its answer."""
    ids = torch.tensor([prompt], device=model.device)
    found = model.generate(  # type: ignore[operator]
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=most, eos_token_id=sorted(ends), **options
    )
    return int(found.shape[1]) - len(prompt)


def table(result: Result) -> str:
    """Returns the result as two Markdown tables, with a line on what they depend on."""
    samples, streaming = result["samples"], result["streaming"]
    drawn = [
        (
            name,
            f"{median(row['tokens']):.0f}",
            f"{row['median_seconds']:.2f}",
            f"{median(t / s for t, s in zip(row['tokens'], row['seconds'], strict=True)):.1f}",
            f"{row['times_as_fast']:.2f}",
        )
        for way, name in (("separate", "one `generate` each"), ("together", "`draw_samples`"))
        for row in [samples[way]]
    ]
    streamed = [
        (
            name,
            row["tokens"],
            f"{row['tokens'] / row['median_seconds']:.1f}",
            f"{row['speed']:.2f}",
            f"{1000 * row['median_first_token_seconds']:.0f}",
            f"{row['first_token_ratio']:.2f}",
        )
        for way, name in (("generate", "plain `generate`"), ("stream", "stream with confidence"))
        for row in [streaming[way]]
    ]
    data = result["data"]
    return "\n".join(
        [
            markdown(
                drawn, (f"{samples['count']} samples", "tokens", "seconds", "tokens/s", "times as fast")
            ),
            "",
            markdown(
                streamed,
                ("greedy answer", "tokens", "tokens/s", "speed", "first token (ms)", "times as long"),
            ),
            "",
            f"{result['model']['name']} in {result['model']['dtype']}; answers of at most "
            f"{result['max_tokens']} tokens; samples of a question of {data['name']} ({data['split']}, "
            f"sha256 {data['sha256'][:12]}...) of {samples['prompt_tokens']} tokens, temperature 1; streams "
            f"after {streaming['prompt_tokens']} tokens; {len(streaming['stream']['seconds'])} repeats in "
            f"turn; seed {result['seed']}; {facts(result)}.",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line, measures, prints the tables, and writes them where a folder is given."""
    parser = Parser("sampling", "Times samples drawn together, and streaming with confidence.")
    parser.add_argument("--model", default="bundled", help="a Hub id, a local folder, or bundled (default)")
    parser.add_argument("--samples", type=positive, default=50, help="answers to a question (default 50)")
    parser.add_argument("--tokens", type=positive, default=32, help="most tokens of an answer (default 32)")
    parser.add_argument("--repeats", type=positive, default=3, help="timed runs of each way (default 3)")
    parser.add_argument("--seed", type=int, default=0, help="seeds the question and the draws (default 0)")
    parser.run(
        arguments,
        lambda given: benchmark(given.model, given.samples, given.tokens, given.repeats, given.seed),
        table,
    )


if __name__ == "__main__":
    main()
