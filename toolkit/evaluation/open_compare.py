"""Several methods and seeds on the same open-ended questions: each kind of confidence, means and spread."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toolkit.evaluation.compare import Asked, places_of
from toolkit.evaluation.report import markdown_table, three_digits

_COLUMNS = {
    "ECE": "conf_ece",
    "Brier": "brier",
    "AUROC": "auroc",
    "missing": "missing",
    "accuracy": "accuracy",
}


def open_summary(
    tests: Sequence[Asked], methods: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]
) -> dict[str, Any]:
    """Returns, for each method and kind of confidence, its figures on each test set and each kind of them.

    Args:
        tests: The test sets.
        methods: For each method and seed, the entry of a report's `open_ended` for each test set.

    Returns:
        By method, confidence, test set or "mean" of a kind of them, and metric: {"seeds": [...], "mean",
        "sd"}.
        A seed's mean is over the sets on which the number exists, and NaN where it exists on none.
    """
    groups = {test.name: [i] for i, test in enumerate(tests)} | {
        f"mean {kind}": places for kind, places in places_of(tests).items()
    }

    def figure(
        seeds: Sequence[Sequence[Mapping[str, Any]]], name: str, metric: str, places: list[int]
    ) -> Any:
        return _figure([[sets[i]["confidence"][name][metric]["value"] for i in places] for sets in seeds])

    return {
        method: {
            name: {
                group: {metric: figure(seeds, name, metric, places) for metric in _COLUMNS.values()}
                for group, places in groups.items()
            }
            for name in seeds[0][0]["confidence"]
        }
        for method, seeds in methods.items()
    }


def _figure(by_seed: Sequence[Sequence[float | None]]) -> dict[str, Any]:
    values = [[value for value in sets if value is not None] for sets in by_seed]
    seeds = [float(np.mean(sets)) if sets else float("nan") for sets in values]
    sd = float(np.std(seeds, ddof=1)) if len(seeds) > 1 else float("nan")
    return {"seeds": seeds, "mean": float(np.mean(seeds)), "sd": sd}


def open_table(tests: Sequence[Asked], summary: Mapping[str, Any]) -> str:
    """Formats a Markdown table with a row for each method and kind of confidence."""
    kinds = list(places_of(tests))
    head = [f"{kind}: {column}" if i == 0 else column for kind in kinds for i, column in enumerate(_COLUMNS)]
    rows = [["method", "confidence", *head]]
    for method, names in summary.items():
        for name, groups in names.items():
            figures = [groups[f"mean {kind}"][metric] for kind in kinds for metric in _COLUMNS.values()]
            rows.append([method, name, *map(_cell, figures)])
    note = (
        "Means over test sets and seeds ± standard deviation over seeds; accuracy of the answers that a "
        "confidence is about, missing the share without one."
    )
    return f"{markdown_table(rows, left=2)}\n\n{note}"


def _cell(figure: Mapping[str, Any]) -> str:
    mean, sd = (value if np.isfinite(value) else None for value in (figure["mean"], figure["sd"]))
    return three_digits(mean) + ("" if sd is None else f" ± {sd:.3f}")
