"""Figures of calibration: reliability diagrams, and how a training run went."""

from collections.abc import Mapping, Sequence
from math import floor, log10
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, SymmetricalLogLocator

from toolkit.errors import CalibrantError
from toolkit.evaluation.drawing import (
    BLUE,
    GREEN,
    GREY,
    INK,
    PALE_BLUE,
    PALE_GREY,
    PALE_VERMILLION,
    VERMILLION,
    never_moves,
    new_figure,
    save,
    tidy,
)
from toolkit.evaluation.metrics import Bools, Floats, ece, reliability


class Panel(NamedTuple):
    """One reliability diagram.

    Attributes:
        title: What is shown, such as "worldfacts/chemistry · base".
        confidence: Probability of the given answer, shape (N,).
        correct: Whether it is right, shape (N,).
    """

    title: str
    confidence: Floats
    correct: Bools


def reliability_diagram(panels: Sequence[Panel], path: Path, *, columns: int = 2, bins: int = 10) -> Figure:
    """Draws accuracy by confidence, and below it how many questions have that confidence.

    A bar is a bin's accuracy with its 95 % Wilson interval. The hatched part reaches from there to
    the bin's mean confidence, up where the answers are too sure, down where they are not sure
    enough. An empty bin has no bar.

    Args:
        panels: What to draw, row by row: with two columns base, adapter, base, adapter, ...
        path: The image file; its suffix is the format.
        columns: Panels in a row.
        bins: Number of equal-width bins.

    Returns:
        The figure that was saved.

    Raises:
        CalibrantError: The file cannot be written.
    """
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(3.7 * columns + 0.3, 4.5 * rows + 0.4)
    grid = figure.add_gridspec(2 * rows, columns, height_ratios=[3.4, 1] * rows)
    for place, panel in enumerate(panels):
        row, column = divmod(place, columns)
        upper = figure.add_subplot(grid[2 * row, column])
        lower = figure.add_subplot(grid[2 * row + 1, column], sharex=upper)
        _draw_reliability(upper, lower, panel, bins)
        if column == 0:
            upper.set_ylabel("accuracy")
            lower.set_ylabel("questions")
    figure.legend(
        handles=_reliability_legend(),
        loc="outside lower center",
        ncols=2 if columns == 1 else 4,
        frameon=False,
        fontsize=8.5,
    )
    save(figure, path)
    return figure


def training_curves(history: Sequence[Mapping[str, float]], path: Path) -> Figure:
    """Draws what a training run logged, over its steps.

    Args:
        history: Rows of `history.jsonl`: `step` and any of `upper_entropy`, `validation_entropy`,
            `lower`, `validation_nll`, `validation_accuracy`, `lambda`, `kappa`, `alpha_delta_mean`, `_min`,
            `_max`, and the same of `alpha_iota`. A row may lack any of them; what no row has is not
            drawn, nor is a part of α that never moves.
        path: The image file; its suffix is the format.

    Returns:
        The figure that was saved.

    Raises:
        CalibrantError: No row has anything to draw, or the file cannot be written.
    """
    logged = {key for row in history for key in row}
    curves = {label: [curve for curve in group if curve[0] in logged] for label, group in _CURVES.items()}
    curves = {label: group for label, group in curves.items() if group}
    bands = [(label, key) for label, key in _BANDS.items() if not never_moves(history, key)]
    if not curves and not bands:
        raise CalibrantError("the history holds nothing to draw; give the history.jsonl of a run")
    count = len(curves) + len(bands)
    figure = new_figure(8.0, 1.55 * count + 0.5)
    axes = figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
    for ax, (label, group) in zip(axes, curves.items(), strict=False):
        for key, name, colour in group:
            _draw_curve(ax, history, key, name, colour)
        ax.set_ylabel(label)
        if label == "weight λ":
            _logarithmic(ax, _series(history, "lambda")[1])
    for ax, (label, key) in zip(axes[len(curves) :], bands, strict=True):
        _draw_band(ax, history, key)
        ax.set_ylabel(label)
    for ax in axes:
        tidy(ax)
        ax.grid(axis="y", color=PALE_GREY, linewidth=0.6)
        ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8.5)
    axes[-1].set_xlabel("training step")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.align_ylabels()
    save(figure, path)
    return figure


_CURVES = {
    "entropy (nats)": [
        ("upper_entropy", "held-out batch", BLUE),
        ("validation_entropy", "validation", VERMILLION),
    ],
    "NLL (nats)": [
        ("lower", "training batch", BLUE),
        ("validation_nll", "validation", VERMILLION),
    ],
    "accuracy": [("validation_accuracy", "validation", VERMILLION)],
    "weight λ": [("lambda", "each step", GREEN)],
    "weight κ": [("kappa", "each step", GREEN)],
}
"""Axis label: (key of a history row, name, colour) of each curve."""

_BANDS = {"scale Δ": "alpha_delta", "shift ι": "alpha_iota"}
"""Axis label: beginning of the keys of a mean, a minimum and a maximum."""


_TOO_SURE: dict[str, Any] = {
    "facecolor": PALE_VERMILLION,
    "edgecolor": VERMILLION,
    "hatch": "////",
    "linewidth": 0.8,
}
_NOT_SURE_ENOUGH: dict[str, Any] = {
    "facecolor": PALE_BLUE,
    "edgecolor": BLUE,
    "hatch": "\\\\\\\\",
    "linewidth": 0.8,
}


def _draw_reliability(upper: Axes, lower: Axes, panel: Panel, bins: int) -> None:
    table = [b for b in reliability(panel.confidence, panel.correct, bins) if b.count]
    middles = [(b.low + b.high) / 2 for b in table]
    width = 0.92 / bins
    upper.bar(middles, [b.accuracy for b in table], width, color=BLUE, label="accuracy")
    for surer, look in ((True, _TOO_SURE), (False, _NOT_SURE_ENOUGH)):
        gaps = [b for b in table if (b.confidence > b.accuracy) == surer]
        upper.bar(
            [(b.low + b.high) / 2 for b in gaps],
            [b.confidence - b.accuracy for b in gaps],
            width,
            bottom=[b.accuracy for b in gaps],
            **look,
        )
    ends = [b.ci95[0] for b in table], [b.ci95[1] for b in table]
    upper.vlines(middles, *ends, color=INK, linewidth=1.2)
    upper.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1, zorder=3)
    upper.set(xlim=(0, 1), ylim=(0, 1))
    upper.tick_params(labelbottom=False)
    upper.set_title(fill(panel.title, 44), fontsize=10, weight="bold", color=INK, pad=20, parse_math=False)
    upper.annotate(
        f"accuracy {panel.correct.mean():.3f}   confidence {panel.confidence.mean():.3f}   "
        f"ECE {ece(panel.confidence, panel.correct, bins):.3f} ({bins} bins)",
        (0.5, 1),
        (0, 6),
        xycoords="axes fraction",
        textcoords="offset points",
        ha="center",
        fontsize=8,
        color=INK,
    )

    counts = [b.count for b in table]
    drawn = lower.bar(middles, counts, width, color=GREY)
    crowded = bins > 12
    lower.bar_label(drawn, padding=2, fontsize=7, color=INK, rotation=90 if crowded else 0)
    lower.set(ylim=(0, max(counts) * (1.7 if crowded else 1.35)), yticks=[], xlabel="confidence")
    for ax in (upper, lower):
        tidy(ax)


def _reliability_legend() -> list[Patch | Line2D]:
    return [
        Patch(color=BLUE, label="accuracy, 95 % interval"),
        Patch(label="gap: too sure", **_TOO_SURE),
        Patch(label="gap: not sure enough", **_NOT_SURE_ENOUGH),
        Line2D([], [], color=GREY, linestyle="--", label="perfect calibration"),
    ]


def _series(history: Sequence[Mapping[str, float]], key: str) -> tuple[list[float], list[float]]:
    """Returns the steps whose rows have the key, and its values."""
    rows = [row for row in history if key in row]
    return [row["step"] for row in rows], [row[key] for row in rows]


def _draw_curve(ax: Axes, history: Sequence[Mapping[str, float]], key: str, name: str, colour: str) -> None:
    steps, values = _series(history, key)
    sparse = key.startswith("validation") or len(steps) == 1
    ax.plot(
        steps,
        values,
        color=colour,
        label=name,
        marker="o" if sparse else "",
        markersize=4,
        linewidth=1.6 if sparse else 1,
    )


def _draw_band(ax: Axes, history: Sequence[Mapping[str, float]], key: str) -> None:
    steps, low = _series(history, f"{key}_min")
    high = _series(history, f"{key}_max")[1]
    ax.fill_between(steps, low, high, color=BLUE, alpha=0.2, linewidth=0, label="minimum to maximum")
    _draw_curve(ax, history, f"{key}_mean", "mean", BLUE)


def _logarithmic(ax: Axes, values: Sequence[float]) -> None:
    """Makes the axis logarithmic where values span more than two decades; 0 keeps its place."""
    positive = [value for value in values if value > 0]
    if positive and max(positive) > 100 * min(positive):
        least = max(min(positive), 1e-5 * max(positive))
        threshold = 10 ** floor(log10(least))
        ax.set_yscale("symlog", linthresh=threshold, linscale=0.6)
        ticks = SymmetricalLogLocator(base=10, linthresh=threshold)
        ticks.set_params(numticks=5)
        ax.yaxis.set_major_locator(ticks)
        ax.set_ylim(bottom=0)
