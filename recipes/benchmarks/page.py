"""Times the explorer's page in a real browser against plain generation.

python recipes/benchmarks/page.py --repeats 5 --output_dir runs/page

A question is typed into the page, whose two sides are the same model, and the page notes when its first token
is drawn and when the last of both sides is, each with its probability, rank, entropy and alternatives. Beside
that `generate` answers the same prompt twice, or writes one token.
"""

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from urllib.parse import urlencode

from measure import Parser, Result, circumstances, facts, markdown, positive, ratio
from playwright.sync_api import Browser, Error, Playwright, sync_playwright
from sampling import STORY, generate
from tqdm import tqdm
from transformers import PreTrainedModel

from app.models import load_models
from app.pages.explorer import build
from app.serving import launch
from toolkit.errors import CalibrantError, first_line
from toolkit.models.base import model_identity
from toolkit.models.encoding import encode_prompt
from toolkit.models.generation import end_ids
from toolkit.questions.prompts import Style

TOKENS = 48
"""Most tokens of an answer: what the page's setting says at first."""

WATCH = """() => new Promise((resolve) => {
    const drawn = () => document.querySelectorAll(".answer-text .token").length;
    const start = performance.now();
    let began = false, first = 0, last = 0, count = drawn();
    new MutationObserver((_, observer) => {
        const streaming = Boolean(document.querySelector(".answer.streaming"));
        began ||= streaming;
        if (!began) return;
        const now = drawn(), passed = performance.now() - start;
        if (now < count) count = 0;  // of the question before
        if (now > count) {
            if (!count) first = passed;
            [last, count] = [passed, now];
        }
        if (!streaming) {
            observer.disconnect();
            resolve([first / 1000, last / 1000, count]);
        }
    }).observe(document.body, { subtree: true, childList: true, attributeFilter: ["class"] });
    document.querySelector("#ask-button").click();
})"""
"""Asks, and resolves to the seconds to the first and to the last token, and the number of tokens."""


def benchmark(name: str, repeats: int) -> Result:
    """Answers a question on the page and by `generate`, in turn.

    Args:
        name: A Hub id, a local folder, or `bundled`.
        repeats: Timed runs of each way.

    Returns:
        Times to the first token and tokens a second of each way, their ratios, and all that they depend on.

    Raises:
        CalibrantError: There is no Chromium, or the two answer differently.
    """
    with sync_playwright() as playwright:
        browser = start(playwright)
        models = load_models(name, [])
        with models.using(models.base) as active:
            model = active.model
        assert isinstance(model, PreTrainedModel)
        style: Style = "chat" if models.tokenizer.chat_template else "plain"
        prompt = encode_prompt(STORY, models.tokenizer, style=style, max_length=models.max_length)
        plain = partial(generate, model, prompt, end_ids(model, models.tokenizer), do_sample=False)
        page = browser.new_page()
        page.set_default_timeout(0)
        page.goto(f"{launch(build(models))}?{urlencode({'q': STORY.text, 'style': style})}")
        page.wait_for_function("document.querySelector('#question textarea')?.value")
        page.wait_for_selector("#answer-right .answer-text", state="attached")
        found: dict[str, list[float]] = {way: [] for way in ("first", "plain_first", "speed", "plain_speed")}
        for repeat in tqdm(range(repeats + 1), desc="timing the page", unit="repeat"):
            first, last, count = page.evaluate(WATCH)
            page.click("#stop-button")  # of what the page asks of the model next
            page.wait_for_timeout(1000)
            if count != 2 * plain(TOKENS):
                raise CalibrantError("the page and `generate` answer differently; report this model")
            if repeat:  # the first warms up
                found["first"].append(first)
                found["speed"].append(count / last)
                found["plain_first"].append(seconds(lambda: plain(1)))
                found["plain_speed"].append(count / seconds(lambda: (plain(TOKENS), plain(TOKENS))))
        browser.close()
    return {
        "model": model_identity(name, model),
        "max_tokens": TOKENS,
        "prompt_tokens": len(prompt),
        **circumstances("gradio", "playwright"),
        **found,
        "first_token_ratio": ratio(found, "first", "plain_first"),
        "speed_ratio": ratio(found, "speed", "plain_speed"),
    }


def start(playwright: Playwright) -> Browser:
    """Starts a headless Chromium, the system's if it has one.

    Raises:
        CalibrantError: There is none.
    """
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        return playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
    except Error as error:
        raise CalibrantError(
            f"Chromium does not start ({first_line(error)}); run: playwright install chromium"
        ) from error


def seconds(task: Callable[[], object]) -> float:
    """Returns how long a task takes."""
    start = perf_counter()
    task()
    return perf_counter() - start


def table(result: Result) -> str:
    """Returns the result as a Markdown table, with a line on what it depends on."""
    rows = [
        (
            label,
            f"{1000 * median(result[f'{way}first']):.0f}",
            f"{result['first_token_ratio'] if not way else 1:.2f}",
            f"{median(result[f'{way}speed']):.1f}",
            f"{result['speed_ratio'] if not way else 1:.2f}",
        )
        for label, way in (("plain `generate`", "plain_"), ("the page", ""))
    ]
    head = ("two greedy answers", "first token (ms)", "times as long", "tokens/s", "speed")
    return (
        f"{markdown(rows, head)}\n\n"
        f"{result['model']['name']} in {result['model']['dtype']}; answers of at most {result['max_tokens']} "
        f"tokens after {result['prompt_tokens']}; {len(result['first'])} repeats in turn; {facts(result)}."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line, measures, prints the table, and writes it where a folder is given."""
    parser = Parser("page", "Times the explorer's page in a real browser against plain generation.")
    parser.add_argument("--model", default="bundled", help="a Hub id, a local folder, or bundled (default)")
    parser.add_argument("--repeats", type=positive, default=5, help="timed runs of each way (default 5)")
    parser.run(arguments, lambda given: benchmark(given.model, given.repeats), table)


if __name__ == "__main__":
    main()
