"""An evaluation as tables: the test sets before and after, and single answers."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import pandas as pd

METRICS = {
    "accuracy": "accuracy",
    "confidence": "confidence",
    "conf_ece": "conf-ECE",
    "nll": "NLL",
    "auroc": "AUROC",
}
"""Metrics of the table, and what it calls them."""


def results_html(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], model: str, base: str
) -> str:
    """Returns one row a test set: each metric of the base and of the adapter, with the adapter's interval.

    Args:
        before: Results of the base, as in a report; those of a set that is missing are left out.
        after: Results of the adapter.
        model: What the adapter is called.
        base: What the base is called.
    """
    known = {result["data"]["name"]: result for result in before}
    head = "".join(f'<th scope="col">{name}</th>' for name in METRICS.values())
    rows = "".join(_result(known.get(result["data"]["name"]), result) for result in after)
    bins = after[0]["binning"]["bins"] if after else 10
    return (
        '<div class="table-scroll" tabindex="0" role="group" aria-label="Results"><table class="numbers">'
        f"<caption>{escape(base)} → {escape(model)}; below, the 95 % interval of the latter. "
        f"conf-ECE has {bins} equal-width bins, NLL is in nats.</caption>"
        '<thead><tr><th scope="col">test set</th><th scope="col">questions</th>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def mistakes_html(rows: pd.DataFrame, limit: int) -> str:
    """Returns answers as a list, each with buttons that open it.

    Args:
        rows: Some rows of `predictions.parquet`; their index is what a button sends back.
        limit: Most that are shown.
    """
    if rows.empty:
        return (
            '<p class="count">No answers pass these filters, or the adapter came without its predictions.</p>'
        )
    shown = rows.head(limit)
    items = "".join(_answer(int(index), row) for index, row in shown.iterrows())
    count = f"{len(shown)} of {len(rows)} answers" if len(rows) > len(shown) else f"{len(rows)} answers"
    return f'<p class="count">{count}</p><ul class="mistakes">{items}</ul>'


def _result(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> str:
    cells = "".join(_cell(before and before[metric], after[metric]) for metric in METRICS)
    name, count = escape(after["data"]["name"]), after["data"]["count"]
    return f'<tr><th scope="row">{name}</th><td>{count}</td>{cells}</tr>'


def _cell(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> str:
    was = f"{_three(before['value'])} → " if before else ""
    interval = after["ci95"]
    said = (
        f'<br><span class="interval">{_three(interval[0])} to {_three(interval[1])}</span>'
        if interval
        else ""
    )
    return f"<td>{was}<b>{_three(after['value'])}</b>{said}</td>"


def _three(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _answer(index: int, row: Any) -> str:
    chosen, right = row["choices"][row["chosen"]], row["choices"][row["answer"]]
    said = f"answered <b>{escape(chosen)}</b>"
    said += ", which is right" if row["correct"] else f", right is <b>{escape(right)}</b>"
    return (
        f'<li class="mistake{" correct" if row["correct"] else ""}">'
        f'<span class="mistake-confidence">{100 * row["confidence"]:.1f} %</span>'
        f'<div><div class="mistake-question">{escape(row["question"])}</div>'
        f'<div class="mistake-answers">{said} · {escape(row["subject"])} · {escape(row["source"])}</div>'
        "</div>"
        '<div class="mistake-open">'
        f'<button type="button" data-row="{index}" data-tab="choose">Choose</button>'
        f'<button type="button" data-row="{index}" data-tab="ask">Ask</button></div></li>'
    )
