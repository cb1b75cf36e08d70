"""What an evaluation found: `report.json`, the table made of it, and `predictions.parquet`.

`report.json` has these keys. A number that does not exist is null: `auroc` where all answers are
right, or a confidence in an empty bin. Probabilities are shares of 1; `nll`, `entropy` and
`entropy_minus_nll` are in nats.

    schema       "calibrant.report/1"; a key that is renamed, removed or redefined raises the number
    created      UTC time, ISO 8601
    model        Hub id or folder of the base model
    adapter      Hub id or folder of the adapter, or null
    method       name of the method that made the adapter, "none" for the base model
    seed         seed of the evaluation: which questions are drawn, and the bootstrap
    temperature  divides the scores of the options, or null
    prompt       form, style and score: how an option gets its probability
    versions     of python, calibrant, torch, transformers, peft, accelerate, bitsandbytes; null if not
                 installed
    results      one entry for each test set:
        data         name, split, count, sha256 of the questions
        binning      scheme "equal-width", bins, closed "right": of both ECEs, `mce` and `reliability`;
                     `ace` has as many bins, of equal mass
        accuracy, confidence, conf_ece, cw_ece, nll, brier, entropy, entropy_minus_nll, auroc,
        ace, mce, smooth_ece, aurc, accuracy_at_50, accuracy_at_80
                     each {"value", "ci95": [low, high] or null}, as in `metrics` and `intervals`
        option_mass  mean probability that the model gives to all options together, or null
        reliability  for each bin: low, high, count, confidence, accuracy, ci95 of the accuracy

A recipe adds

    open_ended   one entry for each set of open-ended questions; see `toolkit.evaluation.open_report`
    base         name, revision, dtype, quantization, parameters and bytes of the base model

and calibrate.py has more:

    before       the base model's `results` on the same questions
    before_open_ended
                 its `open_ended` on the same questions
    training     sources of the lower and the upper level, and all that training or the choice of the
                 weights has seen a split of; count and sha256 of each level's questions
    kept_step    the step after which the weights are what they are now
    unmoved_layers
                 adapted layers that training did not reach
    adapter_sha256
                 SHA-256 of `adapter_model.safetensors`
"""

import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit.errors import CalibrantError
from toolkit.evaluation.files import replacing
from toolkit.evaluation.intervals import bootstrap
from toolkit.evaluation.metrics import (
    METRICS,
    Floats,
    Ints,
    metrics,
    question_entropy,
    reliability,
    top_answers,
)
from toolkit.questions.question import MultipleChoice, QuestionSet

SCHEMA = "calibrant.report/1"

Report = dict[str, Any]
"""The content of `report.json`."""

_PACKAGES = ("calibrant", "torch", "transformers", "peft", "accelerate", "bitsandbytes")

_HEADINGS = {
    "accuracy": "accuracy",
    "confidence": "confidence",
    "conf_ece": "conf-ECE",
    "cw_ece": "cw-ECE",
    "nll": "NLL",
    "brier": "Brier",
    "entropy": "entropy",
    "entropy_minus_nll": "H − NLL",
    "auroc": "AUROC",
}
"""Columns of the table: those that fit a terminal. `report.json` has every metric."""


def build_result(
    data: QuestionSet,
    log_probs: Floats,
    answers: Ints,
    option_mass: Floats | None = None,
    *,
    bins: int = 10,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Measures one test set.

    Args:
        data: The N questions.
        log_probs: Log-probabilities of their options, shape (N, K), nats, as in `metrics`.
        answers: Indices of the right options, shape (N,).
        option_mass: Probability of all options of a question together before it is shared out,
            shape (N,).
        bins: Number of bins, as in `metrics`.
        resamples: Number of bootstrap resamples.
        seed: Seed of the bootstrap.

    Returns:
        An entry of a report's `results`.

    Raises:
        CalibrantError: The arrays are not predictions.
    """
    values = metrics(log_probs, answers, bins)
    intervals = bootstrap(log_probs, answers, resamples, seed, bins)
    chosen, confidence = top_answers(log_probs)
    result = {
        "data": {"name": data.name, "split": data.split, "count": len(data), "sha256": data.sha256},
        "binning": {"scheme": "equal-width", "bins": bins, "closed": "right"},
        **{name: {"value": values[name], "ci95": intervals[name]} for name in METRICS},
        "option_mass": None if option_mass is None else float(option_mass.mean()),
        "reliability": [asdict(b) for b in reliability(confidence, chosen == answers, bins)],
    }
    return dict(strict(result))


def build_report(
    results: Sequence[Mapping[str, Any]],
    *,
    model: str,
    adapter: str | None,
    method: str,
    seed: int,
    prompt: Mapping[str, str],
    temperature: float | None = None,
) -> Report:
    """Puts the results of one model together.

    Args:
        results: One of `build_result` for each test set.
        model: Hub id or folder of the base model.
        adapter: Hub id or folder of the adapter, if there is one.
        method: Name of the method that made it; "none" for the base model.
        seed: Seed of the evaluation.
        prompt: `form`, `style` and `score`.
        temperature: Divides the scores of the options, if one is used.

    Returns:
        The content of `report.json`, as the top of this file describes it.
    """
    return {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": model,
        "adapter": adapter,
        "method": method,
        "seed": seed,
        "temperature": temperature,
        "prompt": dict(prompt),
        "versions": versions(),
        "results": [dict(result) for result in results],
    }


def write_report(report: Report, path: Path) -> None:
    """Writes a report as strict JSON, whole or not at all.

    Raises:
        CalibrantError: The file cannot be written.
    """
    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def read_report(path: Path) -> Report:
    """Reads a report.

    Raises:
        CalibrantError: There is no report, or one of another schema.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CalibrantError(
            f"{path} cannot be read ({error.strerror}); give the report.json of an evaluation"
        ) from error
    except ValueError as error:
        raise CalibrantError(f"{path} is not JSON ({error}); evaluate again to replace it") from error
    schema = report.get("schema") if isinstance(report, dict) else None
    if schema != SCHEMA:
        raise CalibrantError(
            f"{path} has the schema {schema!r} and not {SCHEMA!r}; evaluate again with this version"
        )
    return dict(report)


def format_table(reports: Mapping[str, Report]) -> str:
    """Formats reports as a Markdown table that is aligned as plain text too.

    Args:
        reports: What each report is called in the table, and the report.

    Returns:
        One row for each test set and report, the reports of a test set together, and a line that
        names the units and the number of bins. A metric that does not exist is a dash.
    """
    rows = [
        (_test_set(result["data"]), label, result)
        for label, report in reports.items()
        for result in report["results"]
    ]
    sets = list(dict.fromkeys(name for name, _, _ in rows))
    rows.sort(key=lambda row: sets.index(row[0]))
    table = [["test set", "model", "n", *_HEADINGS.values()]]
    for name, label, result in rows:
        numbers = [three_digits(result[metric]["value"]) for metric in _HEADINGS]
        table.append([name, label, str(result["data"]["count"]), *numbers])
    bins = sorted({result["binning"]["bins"] for _, _, result in rows})
    note = f"ECE with {' or '.join(map(str, bins))} equal-width bins; NLL and entropy (H) in nats."
    return f"{markdown_table(table, left=2)}\n\n{note}"


def markdown_table(rows: Sequence[Sequence[str]], left: int) -> str:
    """Formats rows, the first of them the head, so that they are aligned as plain text too.

    Args:
        rows: The cells.
        left: How many columns are aligned left; the others are aligned right.
    """
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * width if i < left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    lines = [
        [
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in (rows[0], rule, *rows[1:])
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def predictions_frame(
    data: QuestionSet, log_probs: Floats, answers: Ints, option_mass: Floats | None = None
) -> pd.DataFrame:
    """Tabulates what a model answered.

    Args:
        data: N multiple-choice questions.
        log_probs: Log-probabilities of their options, shape (N, K), nats, as in `metrics`.
        answers: Indices of the right options, shape (N,).
        option_mass: Probability of all options of a question together, shape (N,).

    Returns:
        One row for each question: source, split, id, subject, question, choices, answer (index),
        chosen (index), correct, confidence, probabilities (one for each choice), entropy (nats),
        option_mass (NaN where it is not known).
    """
    questions = [question for question in data if isinstance(question, MultipleChoice)]
    chosen, confidence = top_answers(log_probs)
    probabilities = np.exp(log_probs)
    return pd.DataFrame(
        {
            "source": data.name,
            "split": data.split,
            "id": [question.id for question in questions],
            "subject": [question.subject for question in questions],
            "question": [question.text for question in questions],
            "choices": [list(question.choices) for question in questions],
            "answer": answers,
            "chosen": chosen,
            "correct": chosen == answers,
            "confidence": confidence,
            "probabilities": [
                row[: len(question.choices)].tolist()
                for row, question in zip(probabilities, questions, strict=True)
            ],
            "entropy": question_entropy(log_probs),
            "option_mass": np.full(len(chosen), np.nan) if option_mass is None else option_mass,
        }
    )


def write_predictions(frame: pd.DataFrame, path: Path) -> None:
    """Writes predictions as Parquet, whole or not at all.

    Raises:
        CalibrantError: The file cannot be written.
    """
    with replacing(path) as partial:
        frame.to_parquet(partial, index=False)


def strict(value: Any) -> Any:
    """Returns the value with null for every number that JSON does not have."""
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [strict(item) for item in value]
        return None if items and all(item is None for item in items) else items
    return None if isinstance(value, float) and not math.isfinite(value) else value


def versions() -> dict[str, str | None]:
    """Returns the versions that results depend on; None for a package that is not installed."""
    return {"python": platform.python_version(), **{package: _version(package) for package in _PACKAGES}}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _test_set(data: Mapping[str, Any]) -> str:
    return data["name"] if data["split"] == "test" else f"{data['name']} ({data['split']})"


def three_digits(value: float | None) -> str:
    """Returns a number as tables show it, or a dash for one that does not exist."""
    return "–" if value is None else f"{value:.3f}"
