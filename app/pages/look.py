"""The tab Look around: an adapter's report, and the answers it was most wrongly sure of."""

from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr
import pandas as pd

from app.evidence import option_evidence
from app.models import Models
from app.pages.parts import panel
from app.reports import ALL_SETS, AdapterReport, mistakes
from app.views.reliability import reliability_svg
from app.views.tables import mistakes_html, results_html

SHOWN = 20
"""Most answers that are listed."""


@dataclass(frozen=True)
class LookTab:
    """Components of the tab that others listen to.

    Attributes:
        adapter: Whose report is shown.
        answers: The list of answers, whose event `open` names a row and a tab.
    """

    adapter: gr.Dropdown
    answers: gr.HTML


def look_tab(models: Models) -> LookTab | None:
    """Builds the tab, or says that no adapter has a report."""
    measured = [name for name, adapter in models.adapters.items() if adapter.report and adapter.report.sets]
    if not measured:
        gr.HTML('<p class="worth-none">No adapter with a report is loaded.</p>', apply_default_css=False)
        return None
    report = report_of(models, measured[0])
    with gr.Row():
        adapter = gr.Dropdown(
            measured, value=measured[0], label="Adapter", min_width=200, elem_id="look-adapter"
        )
        data = gr.Dropdown(
            list(report.sets), value=report.sets[0], label="Test set", min_width=200, elem_id="look-data"
        )
    diagrams = panel("diagrams", diagrams_html(models, measured[0], report.sets[0]))
    results = panel("results", table_html(models, measured[0]))
    gr.HTML('<h3 class="section">What it was surest of, and wrong</h3>', apply_default_css=False)
    with gr.Row():
        subjects = gr.Dropdown(
            subjects_of(report, report.sets[0]), multiselect=True, label="Subjects (none chosen: all)",
            scale=2, min_width=240, elem_id="look-subjects",
        )  # fmt: skip
        low = gr.Slider(0, 1, 0, step=0.05, label="Least confidence", min_width=190, elem_id="look-low")
        high = gr.Slider(0, 1, 1, step=0.05, label="Greatest confidence", min_width=190, elem_id="look-high")
        right_too = gr.Checkbox(False, label="Right answers too", min_width=140, elem_id="look-right")
    answers = panel("mistakes", answers_html(models, measured[0], report.sets[0], [], 0, 1, False))
    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}

    def choose_adapter(name: str) -> Any:
        sets = report_of(models, name).sets
        return gr.Dropdown(list(sets), value=sets[0])

    def show(name: str, data: str) -> tuple[Any, ...]:
        offered = subjects_of(report_of(models, name), data)
        return diagrams_html(models, name, data), table_html(models, name), gr.Dropdown(offered, value=[])

    def listed(*filters: Any) -> str:
        return answers_html(models, *filters)

    filters: list[Any] = [adapter, data, subjects, low, high, right_too]
    adapter.change(choose_adapter, adapter, data, **quiet)
    gr.on([adapter.change, data.change], show, [adapter, data], [diagrams, results, subjects], **quiet)
    gr.on([one.change for one in filters], listed, filters, answers, trigger_mode="always_last", **quiet)
    return LookTab(adapter, answers)


def report_of(models: Models, name: str) -> AdapterReport:
    """Returns the report of an adapter that has one."""
    adapter = models.adapter(name)
    assert adapter is not None and adapter.report is not None
    return adapter.report


def subjects_of(report: AdapterReport, data: str) -> list[str]:
    """Returns the subjects of a test set's questions."""
    frame = mistakes(report.predictions, source=data, wrong_only=False)
    return sorted(frame["subject"].unique())


def diagrams_html(models: Models, name: str, data: str) -> str:
    """Returns the reliability diagrams of base and adapter on a test set."""
    panels = []
    for kind, model in (("base", models.base), ("adapter", name)):
        found = option_evidence(models, model, name, data)
        drawn = reliability_svg(found.bins, found.of) if found.bins else "<p>not measured</p>"
        panels.append(
            f'<figure class="panel {kind}"><h4>{escape(model)}</h4>{drawn}'
            f"<figcaption>{escape(found.of)}</figcaption></figure>"
        )
    return f'<div class="panels">{"".join(panels)}</div>'


def table_html(models: Models, name: str) -> str:
    """Returns the table of an adapter's results on all its test sets."""
    report = report_of(models, name)
    return results_html(
        report.results("base", ALL_SETS), report.results("adapter", ALL_SETS), name, models.base
    )


def answers_html(
    models: Models, name: str, data: str, subjects: list[str], low: float, high: float, right_too: bool
) -> str:
    """Returns the answers that pass the filters, the most confident mistakes first."""
    rows = mistakes(
        report_of(models, name).predictions,
        source=data,
        subjects=subjects or (),
        low=low,
        high=high,
        wrong_only=not right_too,
    )
    return mistakes_html(rows, SHOWN)


def prediction(models: Models, name: str, row: int) -> "pd.Series[Any] | None":
    """Returns the answer behind a button of the list, or None where there is none."""
    frame = report_of(models, name).predictions
    return frame.loc[row] if row in frame.index else None
