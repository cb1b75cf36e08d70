"""What a comparison came to: tables, JSON and figures.

`comparison.json` has these keys; a number that does not exist is null.

    schema        "calibrant.comparison/2"
    created       UTC time, ISO 8601
    seconds       of the command that finished the comparison; after a kill, those of the last one
    machine       the processor's architecture
    versions      as in `toolkit.evaluation.report`
    bins          equal-width bins of the calibration errors
    reference     the method that differences are taken to
    tests         name, in_domain, count and sha256 of each test set
    temperatures  of each method + T and + T*: for each seed, one for each fold
    kept_steps    of each trained method: for each seed, one for each fold
    methods       for each method, test set and mean over a kind of test sets: every metric, as `summary` in
                  `toolkit.evaluation.compare` describes it
    open_ended    of open-ended test sets: `tests`, and `methods` as `open_summary` in
                  `toolkit.evaluation.open_compare` describes them
"""

import json
import platform
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from answers import Columns
from settings import CalibrateSettings

from toolkit.evaluation.compare import (
    Asked,
    Measured,
    measure_method,
    method_table,
    set_table,
    summary,
    untempered,
)
from toolkit.evaluation.comparison_plots import (
    Run,
    alpha_curves,
    ece_against_accuracy,
    entropy_against_nll,
    method_looks,
    risk_coverage_curves,
)
from toolkit.evaluation.evaluate import Answered
from toolkit.evaluation.files import replacing
from toolkit.evaluation.metrics import Bools, Floats, top_answers
from toolkit.evaluation.open_compare import open_summary, open_table
from toolkit.evaluation.plots import Panel, reliability_diagram
from toolkit.evaluation.report import read_report, strict, versions

SCHEMA = "calibrant.comparison/2"

MOST_COLUMNS = 9
"""Methods side by side in the reliability diagrams: the first ones, and the reference."""


Temperatures = dict[str, list[list[float]]]
"""Fitted temperatures, by the name of the method at them, seed and fold."""


@dataclass(frozen=True)
class Outcome:
    """All that a comparison found.

    Attributes:
        tests: The test sets with options of all folds, fold after fold.
        open_tests: The open-ended ones.
        answers: Answers to them by method, in the order of the table, seed and fold.
        folders: Of each trained method, by seed and fold.
        open_results: By method and seed, what the report has of each open-ended test set.
        temperatures: Those that methods at a fitted one are shown at.
        reference: The method that others are compared with.
        settings: Settings of any of the runs.
        began: When the comparison began, on the monotonic clock.
    """

    tests: list[Asked]
    open_tests: list[Asked]
    answers: Columns
    folders: dict[str, list[list[Path]]]
    open_results: dict[str, list[list[dict[str, Any]]]]
    temperatures: Temperatures
    reference: str
    settings: CalibrateSettings
    began: float


def write_outcome(outcome: Outcome, folder: Path) -> str:
    """Measures all methods and writes `comparison.md`, figures, and last `comparison.json`.

    Returns:
        The tables.
    """
    report, tests = outcome.settings.report, outcome.tests
    answered = {
        name: [[one for own in by_fold.values() for one in own] for by_fold in seeds]
        for name, seeds in outcome.answers.items()
    }
    measured = {
        name: measure_method(
            [[one.confidence for one in sets] for sets in seeds],
            bins=report.bins,
            resamples=report.resamples,
            seed=outcome.settings.data.seed,
        )
        for name, seeds in answered.items()
    }
    opened = open_summary(outcome.open_tests, outcome.open_results) if outcome.open_tests else {}
    tables = [open_table(outcome.open_tests, opened)] if opened else []
    if tests:
        tables = [
            method_table(tests, measured, outcome.reference, report.bins),
            set_table(tests, measured),
            *tables,
        ]
    text = "\n\n".join(tables)
    _draw(outcome, answered, measured, folder)
    content = _content(outcome, answered, measured) | {"open_ended": _open_content(outcome, opened)}
    for name, written in (("comparison.md", text), ("comparison.json", json.dumps(content, allow_nan=False))):
        with replacing(folder / name) as partial:
            partial.write_text(written + "\n", encoding="utf-8")
    return text


def _open_content(outcome: Outcome, opened: dict[str, Any]) -> dict[str, Any]:
    tests = [{"name": test.name, "in_domain": test.in_domain} for test in outcome.open_tests]
    return {"tests": tests, "methods": strict(opened)}


def _content(
    outcome: Outcome, answered: dict[str, list[list[Answered]]], measured: dict[str, Measured]
) -> dict[str, Any]:
    """Returns what `comparison.json` holds."""
    data = [one.data for one in next(iter(answered.values()))[0]]
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - outcome.began, 1),
        "machine": platform.machine(),
        "versions": versions(),
        "bins": outcome.settings.report.bins,
        "reference": outcome.reference,
        "tests": [
            {"name": test.name, "in_domain": test.in_domain, "count": len(one), "sha256": one.sha256}
            for test, one in zip(outcome.tests, data, strict=True)
        ],
        "temperatures": outcome.temperatures,
        "kept_steps": {
            name: [[read_report(one / "report.json")["kept_step"] for one in folds] for folds in seeds]
            for name, seeds in outcome.folders.items()
        },
        "methods": summary(outcome.tests, measured, outcome.reference) if outcome.tests else {},
    }
    return dict(strict(found))


def _draw(
    outcome: Outcome, answered: dict[str, list[list[Answered]]], measured: dict[str, Measured], folder: Path
) -> None:
    """Draws all figures; reliability and risk-coverage leave out methods at a fitted temperature."""
    looks = method_looks(list(answered))
    values = {name: one.values for name, one in measured.items()}
    histories = {
        name: [_run(one) for folds in seeds for one in folds] for name, seeds in outcome.folders.items()
    }
    alpha_curves(histories, folder / "alpha.png")
    entropy_against_nll(histories, folder / "entropy-nll.png", looks=looks)
    if not outcome.tests:
        return
    inside = [test.in_domain for test in outcome.tests]
    ece_against_accuracy(values, inside, folder / "ece-accuracy.png", looks=looks)
    plain = {name: seeds for name, seeds in answered.items() if untempered(name) == name}
    curves = {
        test.name: {name: [_answers(sets[i]) for sets in seeds] for name, seeds in plain.items()}
        for i, test in enumerate(outcome.tests)
    }
    risk_coverage_curves(curves, folder / "risk-coverage.png", looks=looks)
    few = list(dict.fromkeys([*list(plain)[: MOST_COLUMNS - 1], outcome.reference]))
    panels = [
        Panel(f"{test.name} · {name}", *map(np.concatenate, zip(*curves[test.name][name], strict=True)))
        for test in outcome.tests
        for name in few
    ]
    bins = outcome.settings.report.bins
    reliability_diagram(panels, folder / "reliability.png", columns=len(few), bins=bins)


def _run(folder: Path) -> Run:
    lines = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
    return Run([json.loads(line) for line in lines], read_report(folder / "report.json")["kept_step"])


def _answers(answered: Answered) -> tuple[Floats, Bools]:
    """Returns the confidence in each answer, and whether it is right."""
    chosen, confidence = top_answers(answered.confidence.log_probs)
    return confidence, chosen == answered.confidence.answers
