"""What an evaluation of open-ended questions found: part of `report.json`, its table, and `answers.parquet`.

An entry of a report's `open_ended` has

    data         name, split, count, sha256 of the questions
    grader       which answers are right
    samples      sampled answers to each question
    accuracy     share of greedy answers that are right
    confidence   for each kind of confidence, by name, what `toolkit.evaluation.binary.confidence_block`
                 gives; its accuracy is that of the answers which this confidence is about (`open_ended`)
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from toolkit.errors import CalibrantError, first_line
from toolkit.evaluation.binary import confidence_block
from toolkit.evaluation.open_ended import OpenAnswers
from toolkit.evaluation.plots import Panel
from toolkit.evaluation.report import Report, format_table, markdown_table, strict, three_digits
from toolkit.questions.question import OpenEnded

_HEADINGS = {
    "accuracy": "accuracy",
    "confidence": "mean",
    "conf_ece": "ECE",
    "brier": "Brier",
    "auroc": "AUROC",
    "missing": "missing",
}
"""Columns of the table."""


def measure_open(
    found: Sequence[OpenAnswers], *, grader: str, bins: int, resamples: int, seed: int
) -> list[dict[str, Any]]:
    """Returns an entry of a report's `open_ended` for each set; see the top of this file."""
    return [_result(one, grader, {"bins": bins, "resamples": resamples, "seed": seed}) for one in found]


def _result(found: OpenAnswers, grader: str, keys: dict[str, int]) -> dict[str, Any]:
    data = found.data
    result = {
        "data": {"name": data.name, "split": data.split, "count": len(data), "sha256": data.sha256},
        "grader": grader,
        "samples": len(found.samples[0]) if found.samples else 0,
        "accuracy": float(found.correct.mean()),
        "confidence": {
            name: confidence_block(one.value, one.correct, **keys) for name, one in found.confidence.items()
        },
    }
    return dict(strict(result))


def answers_frame(found: Sequence[OpenAnswers]) -> pd.DataFrame:
    """Returns one row a question, over all sets.

    Columns are source, split, id, subject, question, accepted, answer, correct, samples and clusters; for
    each kind of confidence its value and, with `_correct` added, whether the answer that it is about is
    right; and for each elicitation the reply.
    """
    return pd.concat([_frame(one) for one in found], ignore_index=True)


def _frame(found: OpenAnswers) -> pd.DataFrame:
    questions = [question for question in found.data if isinstance(question, OpenEnded)]
    columns: dict[str, Any] = {
        "source": [found.data.name] * len(questions),
        "split": [found.data.split] * len(questions),
        "id": [question.id for question in questions],
        "subject": [question.subject for question in questions],
        "question": [question.text for question in questions],
        "accepted": [list(question.answers) for question in questions],
        "answer": found.answers,
        "correct": found.correct,
        "samples": found.samples or [[] for _ in questions],
        "clusters": found.clusters or [[] for _ in questions],
    }
    for name, one in found.confidence.items():
        columns |= {name: one.value, f"{name}_correct": one.correct}
    return pd.DataFrame(columns | {f"reply_{name}": said for name, said in found.replies.items()})


def read_answers_frame(folder: Path) -> pd.DataFrame:
    """Reads what `answers_frame` gave to an evaluation that has ended.

    Raises:
        CalibrantError: The folder has none.
    """
    path = folder / "answers.parquet"
    if not path.is_file():
        raise CalibrantError(
            f"{folder} has no answers.parquet; name the folder of an evaluation of open-ended questions"
        )
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise CalibrantError(f"{path} is damaged ({first_line(error)}); evaluate again") from error


def format_open_table(reports: Mapping[str, Report]) -> str:
    """Formats the `open_ended` of reports as a Markdown table, a row for each set, report and confidence."""
    rows = [
        (result["data"]["name"], label, name, str(result["data"]["count"]), block)
        for label, report in reports.items()
        for result in report.get("open_ended", [])
        for name, block in result["confidence"].items()
    ]
    sets = list(dict.fromkeys(row[0] for row in rows))
    rows.sort(key=lambda row: sets.index(row[0]))
    table = [["test set", "model", "confidence", "n", *_HEADINGS.values()]]
    table += [[*row, *(three_digits(block[key]["value"]) for key in _HEADINGS)] for *row, block in rows]
    note = (
        "accuracy of the answers that a confidence is about, its mean, and the share of answers without one."
    )
    return f"{markdown_table(table, left=3)}\n\n{note}"


def format_tables(reports: Mapping[str, Report]) -> str:
    """Formats reports as one table of questions with options, and one of open-ended ones."""
    tables = [format_table(reports)] if any(report["results"] for report in reports.values()) else []
    if any(report.get("open_ended") for report in reports.values()):
        tables.append(format_open_table(reports))
    return "\n\n".join(tables)


def open_panels(found: OpenAnswers, label: str) -> list[Panel]:
    """Returns a reliability diagram of each kind of confidence, without the answers that have none."""
    panels = []
    for name, one in found.confidence.items():
        there = one.value == one.value
        if there.any():
            title = f"{found.data.name} · {label} · {name}"
            panels.append(Panel(title, one.value[there], one.correct[there]))
    return panels
