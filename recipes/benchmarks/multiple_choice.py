"""Times multiple-choice evaluation against lm-evaluation-harness, and compares their log-likelihoods.

python recipes/benchmarks/multiple_choice.py --model bundled --questions 500 --repeats 5 --output_dir runs/mc

Both sides take the same loaded model, questions and prompts, each with the batch size that suits it best.
lm-eval's time is that of `HFLM.loglikelihood` on prepared requests: its tokenisation, forward passes and
sums, without its loading, prompts, metrics, bootstrap and progress bars. Ours runs from questions to
log-probabilities, prompts and tokenisation included. Neither holds the loading of the model, nor our probe,
once a model, of whether it takes packed options.
"""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import partial
from io import StringIO
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np
import torch
from measure import (
    Parser,
    Result,
    circumstances,
    count_tokens,
    facts,
    in_turn,
    markdown,
    peak_memory,
    positive,
    ratio,
)
from numpy.typing import NDArray
from scipy.special import log_softmax
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from toolkit.confidence.options import OptionConfidence, option_confidence
from toolkit.errors import CalibrantError
from toolkit.models.base import context_length, default_device, load_model, model_identity
from toolkit.models.encoding import EncodedQuestion, encode_questions
from toolkit.models.layout import choose_layout, layout_for
from toolkit.models.predictive import Layout, collate, option_scores, predictive
from toolkit.models.quantization import compute_dtype
from toolkit.questions.prompts import Form, answer_texts, plain_prompt
from toolkit.questions.question import MultipleChoice
from toolkit.questions.sources import load_questions

FORMS: tuple[Form, ...] = get_args(Form)
SIDES = {"ours": "Calibrant", "lm_eval": "lm-eval"}
BATCH_SIZES = (8, 16, 32, 64)
"""What a forward pass may take: questions of ours, rows of lm-eval's."""

SEARCHED = 64
"""Questions, about, on which the batch sizes are tried."""

SAME_CHOICE = 0.998
"""Share of questions on which both sides must choose the same option."""

TOLERANCE, TOLERANCE_16_BIT = 1e-3, 0.5
"""Largest difference of a log-likelihood that rounding explains, in nats."""

Questions = Sequence[MultipleChoice]
Task = Callable[[], Any]


class Case:
    """A model on questions in one form, as either side evaluates them."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, form: Form) -> None:
        self.model, self.tokenizer, self.form = model, tokenizer, form
        self.config = model.config.get_text_config()
        self.layout = choose_layout(model, self.config.vocab_size)

    def ours(self, questions: Questions, size: int) -> Task:
        """Returns what is timed of ours, from questions to `OptionConfidence`."""

        def run() -> OptionConfidence:
            encoded, layout = self.encode(questions)
            return option_confidence(self.model, encoded, layout=layout, batch_size=size)

        return run

    def lm_eval(self, questions: Questions, size: int) -> Task:
        """Returns what is timed of lm-eval's, from the requests of a local task to log-likelihoods."""
        model_class, task_manager = harness()
        rows = [
            {"prompt": plain_prompt(question, self.form), "choices": answer_texts(question, self.form)}
            for question in questions
        ]
        with TemporaryDirectory() as folder, quiet():
            file = Path(folder, "questions.jsonl")
            file.write_text("".join(json.dumps({**row, "answer": 0}) + "\n" for row in rows))
            config = {
                "task": f"calibrant_{self.form}",
                "dataset_path": "json",
                "dataset_kwargs": {"data_files": {"test": str(file)}, "cache_dir": folder},
                "test_split": "test",
                "output_type": "multiple_choice",
                "doc_to_text": "prompt",
                "doc_to_choice": "choices",
                "doc_to_target": "answer",  # no metric is computed
            }
            [task] = task_manager(include_defaults=False).load([config])["tasks"].values()
            task.build_all_requests()
            model = model_class(pretrained=self.model, tokenizer=self.tokenizer, batch_size=size)
        return partial(model.loglikelihood, task.instances, disable_tqdm=True)

    def encode(self, questions: Questions) -> tuple[list[EncodedQuestion], Layout]:
        """Returns the questions as token ids, and how they are laid out."""
        limit = context_length(self.model, self.tokenizer)
        encoded = encode_questions(questions, self.tokenizer, form=self.form, style="plain", max_length=limit)
        return encoded, layout_for(self.model, encoded, self.layout)

    @torch.inference_mode()
    def log_likelihoods(self, questions: Questions, size: int) -> NDArray[np.float64]:
        """Returns ours of each option's text, (N, K), -inf for absent; the mass underflows for long ones."""
        encoded, layout = self.encode(questions)
        found = np.full((len(encoded), max(len(question.options) for question in encoded)), -np.inf)
        for start in range(0, len(encoded), size):
            batch = collate(encoded[start : start + size], layout=layout).to(self.model.device)
            scores = option_scores(predictive(self.model, batch), batch).cpu().numpy()
            found[start : start + size, : scores.shape[1]] = scores
        return found

    def reason(self, question: MultipleChoice, apart: float, tolerance: float) -> str:
        """Says why the sides differ on a question whose log-likelihoods are so far apart."""
        [encoded], _ = self.encode([question])
        if len(encoded.prompt) < len(self.tokenizer(plain_prompt(question, self.form))["input_ids"]):
            return "a token spans the end of the prompt, and each side splits it in its way"
        return "a tie within rounding" if apart <= tolerance else "more than rounding"


def harness() -> tuple[Any, Any]:
    """Returns lm-eval's model class and task manager.

    Raises:
        CalibrantError: lm-eval is not installed.
    """
    try:
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager
    except ModuleNotFoundError as error:
        raise CalibrantError(
            "lm-eval is not installed, with which this compares: pip install 'calibrant[benchmarks]'"
        ) from error
    return HFLM, TaskManager


@contextmanager
def quiet() -> Iterator[None]:
    """Silences lm-eval's warnings, log lines and progress bars."""
    with warnings.catch_warnings(), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        yield


def benchmark(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    identity: Mapping[str, object],
    *,
    count: int,
    repeats: int,
    seed: int,
    sizes: Sequence[int] = BATCH_SIZES,
) -> Result:
    """Scores the same questions on both sides, in turn.

    Args:
        model: A causal language model in evaluation mode, on its device.
        tokenizer: Its tokenizer, with a pad token.
        identity: What the result says of the model; see `model_identity`.
        count: Questions of the test split of worldfacts.
        repeats: Timed passes over the questions, for each side and form.
        seed: Seeds the sample of questions.
        sizes: Batch sizes to try on either side.

    Returns:
        For each form and side its batch size, tokens, memory (of a GPU, beside the model) and times in
        seconds; what the sides disagree on; and all that the times depend on.

    Raises:
        CalibrantError: lm-eval is not installed.
    """
    harness()
    data = load_questions("worldfacts", "test").sample(count, seed)
    questions = [question for question in data if isinstance(question, MultipleChoice)]
    return {
        "model": dict(identity),
        "data": {"name": data.name, "split": data.split, "count": len(data), "sha256": data.sha256},
        "seed": seed,
        "repeats": repeats,
        **circumstances("lm_eval"),
        "forms": {form: compare(Case(model, tokenizer, form), questions, repeats, sizes) for form in FORMS},
    }


def compare(case: Case, questions: Questions, repeats: int, sizes: Sequence[int]) -> Result:
    """Returns what one form measures."""
    sides = {"ours": case.ours, "lm_eval": case.lm_eval}
    some = questions[:: len(questions) // SEARCHED or 1]
    best = {
        name: fastest(partial(side, some), sizes, f"batch size, {case.form}, {SIDES[name]}")
        for name, side in sides.items()
    }
    tasks = {name: side(questions, best[name]) for name, side in sides.items()}
    found: dict[str, Any] = {}

    def keep(name: str) -> None:
        found[name] = tasks[name]()

    times = in_turn({name: partial(keep, name) for name in sides}, repeats, f"timing both, {case.form}")
    return {
        "layout": case.layout,
        "sides": {
            name: {
                "batch_size": best[name],
                "tokens": count_tokens(case.model, tasks[name]),
                "peak_bytes": peak_bytes(tasks[name]),
                "seconds": times[name],
                "median_seconds": median(times[name]),
                "questions_per_second": len(questions) / median(times[name]),
            }
            for name in sides
        },
        "ratio": ratio(times, "lm_eval", "ours"),
        **agreement(case, found["ours"], found["lm_eval"], questions, best["ours"]),
    }


def fastest(side: Callable[[int], Task], sizes: Sequence[int], description: str) -> int:
    """Returns the batch size of a side's shortest pass, each tried twice, in turn, after one to warm up."""
    tasks = {str(size): side(size) for size in sizes}
    tasks[str(max(sizes))]()
    seconds = in_turn(tasks, 2, description)
    return min(sizes, key=lambda size: min(seconds[str(size)]))


def peak_bytes(task: Task) -> int | None:
    """Returns the most GPU memory that a task takes beside the model; a CPU's would need a process a side."""
    if not torch.cuda.is_available():
        return None
    with peak_memory() as memory:
        task()
    return memory.peak - memory.before


def agreement(
    case: Case,
    confidence: OptionConfidence,
    answers: Sequence[tuple[float, bool]],
    questions: Questions,
    size: int,
) -> Result:
    """Compares what was timed, and our log-likelihoods behind it, with lm-eval's question by question."""
    tolerance = TOLERANCE if compute_dtype(case.model) == torch.float32 else TOLERANCE_16_BIT
    ours = case.log_likelihoods(questions, size)
    there = np.isfinite(ours)
    theirs = np.full_like(ours, -np.inf)
    theirs[there] = [value for value, _ in answers]  # question by question, option by option
    apart = np.zeros(len(ours))
    for a, b in ((ours, theirs), (confidence.log_probs, log_softmax(theirs, axis=1))):
        apart = np.maximum(apart, np.abs(np.subtract(a, b, out=np.zeros_like(a), where=there)).max(1))
    chosen = np.stack([confidence.log_probs.argmax(1), theirs.argmax(1)], axis=1)
    same = chosen[:, 0] == chosen[:, 1]
    differing = [
        {
            "id": question.id,
            "chosen": [question.choices[option] for option in chosen[i]],
            "log_likelihoods": [side[i, there[i]].tolist() for side in (ours, theirs)],
            "reason": case.reason(question, apart[i], tolerance),
        }
        for i, question in enumerate(questions)
        if not same[i] or apart[i] > tolerance
    ]
    return {
        "same_choice": int(same.sum()),
        "largest_difference": float(apart.max()),
        "tolerance": tolerance,
        "agree": bool(same.mean() >= SAME_CHOICE and apart.max() <= tolerance),
        "differing": differing,
    }


def table(result: Result) -> str:
    """Returns the result as a Markdown table, with what it depends on and where the sides differ."""
    model, data = result["model"], result["data"]
    rows = [
        line(f"{form}, {label}", found["sides"][side], found["ratio"] if side == "ours" else 1)
        for form, found in result["forms"].items()
        for side, label in SIDES.items()
    ]
    head = ("", "batch size", "tokens", "GiB", "seconds (median)", "questions/s", "times as fast")
    four_bits = f", {model['quantization']['method']}" if model.get("quantization") else ""
    about = (
        f"{model['name']} in {model['dtype']}{four_bits}; {data['count']} questions of {data['name']} "
        f"({data['split']}, sha256 {data['sha256'][:12]}...); seed {result['seed']}; "
        f"{result['repeats']} repeats in turn; {facts(result)}."
    )
    agreements = [said(form, found, data["count"]) for form, found in result["forms"].items()]
    return "\n\n".join([markdown(rows, head), about, *agreements])


def line(name: str, side: Result, times: float) -> tuple[object, ...]:
    """Returns one line of the table."""
    memory = "-" if side["peak_bytes"] is None else f"{side['peak_bytes'] / 2**30:.2f}"
    speed = f"{side['median_seconds']:.2f}", f"{side['questions_per_second']:.1f}", f"{times:.2f}"
    return name, side["batch_size"], side["tokens"], memory, *speed


def said(form: Form, found: Result, count: int) -> str:
    """Returns whether the sides agree in one form, and each question that they differ on."""
    text = (
        f"{form}: the sides {'agree' if found['agree'] else 'DO NOT AGREE'}. They choose the same option of "
        f"{found['same_choice']} of {count} questions; log-likelihoods are at most "
        f"{found['largest_difference']:.1g} nats apart, {found['tolerance']:g} allowed for rounding."
    )
    if not found["differing"]:
        return text
    head = (
        "question",
        *(f"{what}, {label}" for what in ("chosen", "scores") for label in SIDES.values()),
        "why",
    )
    rows = [
        (one["id"], *one["chosen"], *np.round(one["log_likelihoods"], 5).tolist(), one["reason"])
        for one in found["differing"]
    ]
    escaped = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    return text + "\n\n" + markdown(escaped, head)


def measure(name: str, count: int, repeats: int, seed: int) -> Result:
    """Loads a model in float32, and measures it."""
    harness()  # before a model that may take long to load
    model, tokenizer = load_model(name, dtype="float32", device=default_device())
    identity = model_identity(name, model)
    return benchmark(model, tokenizer, identity, count=count, repeats=repeats, seed=seed)


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line, measures, prints the table, and writes it where a folder is given."""
    parser = Parser("multiple_choice", "Times multiple-choice evaluation against lm-evaluation-harness.")
    parser.add_argument("--model", default="bundled", help="a Hub id, a local folder, or bundled (default)")
    parser.add_argument("--questions", type=positive, default=500, help="of worldfacts' test split (500)")
    parser.add_argument("--repeats", type=positive, default=5, help="timed passes of each side (default 5)")
    parser.add_argument("--seed", type=int, default=0, help="seeds the sample of questions (default 0)")
    parser.run(
        arguments, lambda given: measure(given.model, given.questions, given.repeats, given.seed), table
    )


if __name__ == "__main__":
    main()
