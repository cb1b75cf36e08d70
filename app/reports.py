"""What the page knows of an adapter's evaluation: its report, and every single prediction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from toolkit.errors import CalibrantError
from toolkit.evaluation.report import Report, read_report

Who = Literal["base", "adapter"]
"""Whom a report measured."""

PARTS: dict[Who, tuple[str, str]] = {
    "base": ("before", "before_open_ended"),
    "adapter": ("results", "open_ended"),
}
"""Keys of a report: results on multiple-choice questions, and on open-ended ones."""

ALL_SETS = "all multiple-choice sets"

COLUMNS = ("source", "split", "subject", "question", "choices", "answer", "chosen", "correct", "confidence")
"""Columns of `predictions.parquet` that the page needs."""


@dataclass(frozen=True)
class Bin:
    """One bin of a reliability diagram: the questions with low < confidence <= high.

    Attributes:
        low: Lower edge, a probability.
        high: Upper edge.
        count: Number of questions.
        confidence: Their mean confidence, None in an empty bin.
        accuracy: Share of them answered right, None in an empty bin.
        ci95: 95 % Wilson interval of the accuracy, None in an empty bin.
    """

    low: float
    high: float
    count: int
    confidence: float | None
    accuracy: float | None
    ci95: tuple[float, float] | None


@dataclass(frozen=True)
class Evidence:
    """What is known of answers at each confidence.

    Attributes:
        bins: The reliability diagram; none where nothing was measured.
        of: What it is of, or why there is none.
    """

    bins: tuple[Bin, ...]
    of: str


@dataclass(frozen=True)
class AdapterReport:
    """An adapter's evaluation.

    Attributes:
        report: The content of `report.json`.
        predictions: Those on test questions; empty where there are none.
    """

    report: Report
    predictions: pd.DataFrame

    @property
    def prompt(self) -> dict[str, str]:
        """How the questions were put: form, style and score."""
        return dict(self.report["prompt"])

    @property
    def sets(self) -> tuple[str, ...]:
        """Names of the sets of multiple-choice questions, all together first where there are several."""
        names = [result["data"]["name"] for result in self.report["results"]]
        return (ALL_SETS, *names) if len(names) > 1 else tuple(names)

    @property
    def open_sets(self) -> tuple[str, ...]:
        """Names of the sets of open-ended questions."""
        return tuple(result["data"]["name"] for result in self.report.get("open_ended") or [])

    def results(self, who: Who, data: str) -> list[Mapping[str, Any]]:
        """Returns the results on a set of multiple-choice questions, or on all sets."""
        found = self.report.get(PARTS[who][0]) or []
        return [one for one in found if data in (ALL_SETS, one["data"]["name"])]

    def bins(self, who: Who, data: str) -> tuple[Bin, ...]:
        """Returns the reliability diagram of confidence in options, on one set or on all of them together."""
        rows = [result["reliability"] for result in self.results(who, data)]
        if len({tuple((b["low"], b["high"]) for b in row) for row in rows}) != 1:  # none, or of unequal edges
            return ()
        return tuple(_together(column) for column in zip(*rows, strict=True))

    def open_bins(self, who: Who, data: str, confidence: str) -> tuple[Bin, ...]:
        """Returns the reliability diagram of a kind of confidence on a set of open-ended questions."""
        for result in self.report.get(PARTS[who][1]) or []:
            block = result["confidence"].get(confidence)
            if result["data"]["name"] == data and block is not None:
                return tuple(_together([one]) for one in block["reliability"])
        return ()


def bin_of(bins: Sequence[Bin], confidence: float) -> Bin | None:
    """Returns the bin that a confidence falls in, or None where it has no questions."""
    for number, one in enumerate(bins):
        if one.low < confidence <= one.high or (number == 0 and confidence <= one.low):
            return one if one.count else None
    return None


def read_adapter_report(folder: Path) -> AdapterReport | None:
    """Reads an adapter's report, and its predictions on test questions where they are there.

    Returns:
        The report, or None where the folder has none.

    Raises:
        CalibrantError: A file is damaged or of another schema.
    """
    if not (folder / "report.json").is_file():
        return None
    report = read_report(folder / "report.json")
    try:
        whole = all(result["data"]["name"] and result["reliability"] for result in report["results"])
        whole = whole and {"form", "style", "score"} <= report["prompt"].keys()
    except (KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise CalibrantError(f"{folder / 'report.json'} lacks parts of a report; evaluate the adapter again")
    return AdapterReport(report, _read_predictions(folder / "predictions.parquet"))


def _read_predictions(path: Path) -> pd.DataFrame:
    if not path.is_file():
        return pd.DataFrame(columns=list(COLUMNS))
    try:
        frame = pd.read_parquet(path, columns=list(COLUMNS))
    except (OSError, ValueError) as error:
        raise CalibrantError(f"{path} cannot be read; evaluate the adapter again") from error
    return frame[frame["split"] == "test"] if (frame["split"] == "test").any() else frame


def mistakes(
    predictions: pd.DataFrame,
    *,
    source: str = ALL_SETS,
    subjects: Sequence[str] = (),
    low: float = 0.0,
    high: float = 1.0,
    wrong_only: bool = True,
) -> pd.DataFrame:
    """Returns predictions with the most confident mistakes first, then right answers, most confident first.

    Args:
        predictions: As read.
        source: Name of a test set, or all.
        subjects: Only these; all where none is named.
        low: Least confidence.
        high: Greatest confidence.
        wrong_only: Leave out answers that are right.
    """
    found = predictions[predictions["confidence"].between(low, high)]
    if source != ALL_SETS:
        found = found[found["source"] == source]
    if subjects:
        found = found[found["subject"].isin(subjects)]
    if wrong_only:
        found = found[~found["correct"].astype(bool)]
    return found.sort_values(["correct", "confidence"], ascending=[True, False], kind="stable")


def _together(bins: Sequence[Mapping[str, Any]]) -> Bin:
    counts = np.array([one["count"] for one in bins])
    total = int(counts.sum())
    low, high = bins[0]["low"], bins[0]["high"]
    if total == 0:
        return Bin(low, high, 0, None, None, None)
    filled = [one for one in bins if one["count"]]
    confidence = sum(one["confidence"] * one["count"] for one in filled) / total
    right = round(sum(one["accuracy"] * one["count"] for one in filled))
    interval = binomtest(right, total).proportion_ci(0.95, method="wilson")
    return Bin(low, high, total, confidence, right / total, (float(interval.low), float(interval.high)))
