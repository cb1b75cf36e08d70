"""Figures of a comparison: many methods, each with several seeds, on several test sets.

Methods look as `looks` says; without it, a figure gives its methods looks in their order. Let all figures
have the `method_looks` of all methods, and a method looks the same in each.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from toolkit.errors import CalibrantError
from toolkit.evaluation.compare import BASE, TEMPERED, untempered
from toolkit.evaluation.drawing import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE_BLUE,
    PALE_GREY,
    PALE_VERMILLION,
    PURPLE,
    SKY,
    VERMILLION,
    Look,
    dense,
    draw_diagonal,
    headline,
    label_points,
    legend_outside,
    never_moves,
    new_figure,
    save,
    tidy,
    windows,
)
from toolkit.evaluation.metrics import Bools, Floats, risk_coverage

Looks = Mapping[str, Look]
Answers = tuple[Floats, Bools]
"""Probability of the given answer, shape (N,), and whether it is right, shape (N,)."""
LEAST_COVERAGE = 0.05
"""Where risk-coverage curves begin; with fewer answers, single ones decide."""


_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY)
_MARKERS = ("o", "s", "^", "D", "v", "P", "<", "p", ">", "d")
_FILLS = ("full", "right", "bottom", "left")
_LINES: tuple[Any, ...] = ("-", (0, (6, 1.5)), (0, (7, 1.5, 1.5, 1.5)), (0, (3, 1)), (0, (3, 1, 1, 1, 1, 1)))
_TEMPERED_LINE = (0, (1, 1.2))


class Run(NamedTuple):
    """How the training of a method with one seed went.

    Attributes:
        history: Rows of `history.jsonl`.
        kept_step: That of `report.json`, after which the weights are what the run ended with.
    """

    history: Sequence[Mapping[str, float]]
    kept_step: int | None = None


Histories = Mapping[str, Sequence[Run]]
"""The runs of each method, one for each seed."""


def method_looks(methods: Sequence[str]) -> dict[str, Look]:
    """Gives each method a look of its own; the look depends on the methods before it.

    `none` is a black cross, `calm` a vermillion star. A method at a fitted temperature has its method's
    colour and shape, hollow, and a dotted line; the upper half is filled where the temperature was fitted on
    the upper level's own domain. Shape and filling differ between any two of 40 methods.

    Args:
        methods: Their names, in an order that all figures share.
    """
    plain = list(dict.fromkeys(map(untempered, methods)))
    looks = {BASE: Look(BLACK, "X", "full", "-", True), "calm": Look(VERMILLION, "*", "full", "-", True)}
    for i, name in enumerate(name for name in plain if name not in looks):
        turn, shape = divmod(i, len(_MARKERS))
        looks[name] = Look(
            _COLOURS[(i + turn) % len(_COLOURS)],
            _MARKERS[shape],
            _FILLS[turn % len(_FILLS)],
            _LINES[i // len(_COLOURS) % len(_LINES)],
            False,
        )
    for name in methods:
        if (of := untempered(name)) != name:
            filled = "none" if name.endswith(TEMPERED) else "top"
            looks[name] = looks[of]._replace(fill=filled, line=_TEMPERED_LINE)
    return {name: looks[name] for name in methods}


def ece_against_accuracy(
    values: Mapping[str, Mapping[str, Floats]],
    in_domain: Sequence[bool],
    path: Path,
    *,
    looks: Looks | None = None,
) -> Figure:
    """Draws the conf-ECE of each method against its accuracy, in domain and out of domain.

    A point is the mean over seeds of the mean over test sets. Its bars reach one standard deviation over
    seeds to either side (divisor N - 1); a method with one seed has none.

    Args:
        values: For each method its `accuracy` and `conf_ece`, each of shape (N, S): N seeds, as many as the
            method has, and S test sets, the same for all methods.
        in_domain: For each test set, whether training saw another split of it.
        path: The image file; its suffix is the format.
        looks: See above.

    Returns:
        The figure that was saved.

    Raises:
        CalibrantError: There is no method or no test set, or the file cannot be written.
    """
    kinds = {"in domain": np.array(in_domain, dtype=bool), "out of domain": ~np.array(in_domain, dtype=bool)}
    kinds = {kind: places for kind, places in kinds.items() if places.any()}
    if not values or not kinds:
        raise CalibrantError("nothing was measured; give the reports of a comparison")
    looks = looks or method_looks(list(values))
    figure = new_figure(6.6 * len(kinds) + 0.3, 6.0)
    several = any(len(found["accuracy"]) > 1 for found in values.values())
    bars = " and seeds; bars: ± 1 standard deviation over seeds" if several else ""
    figure.supxlabel(f"means over test sets{bars}", fontsize=8.5, color=INK)
    axes = figure.subplots(1, len(kinds), squeeze=False)[0]
    middles = {
        kind: {name: _middle(found, places) for name, found in values.items()}
        for kind, places in kinds.items()
    }
    for ax, (kind, points) in zip(axes, middles.items(), strict=True):
        for name, (x, y, dx, dy) in points.items():
            look = looks[name].marked() | {"linestyle": "none", "ecolor": looks[name].colour, "label": name}
            level = 4 if looks[name].strong else 3
            ax.errorbar(x, y, dy or None, dx or None, elinewidth=1, zorder=level, **look)
        count = int(kinds[kind].sum())
        headline(ax, f"{kind}: {count} test set{'s' * (count > 1)}", 60)
        ax.set(xlabel="accuracy (better to the right)", ylabel="conf-ECE (better below)")
        ax.margins(0.12)
        ax.set_ylim(bottom=max(0, ax.get_ylim()[0]))
        ax.grid(color=PALE_GREY, linewidth=0.6)
        tidy(ax)
    for ax, points in zip(axes, middles.values(), strict=True):
        crosses = [
            dense(np.array([(x - dx, y), (x + dx, y), (x, y), (x, y - dy), (x, y + dy)]))
            for x, y, dx, dy in points.values()
        ]
        labelled = {name: (looks[name], x, y) for name, (x, y, *_) in points.items()}
        label_points(ax, labelled, avoided=np.concatenate(crosses))
    save(figure, path)
    return figure


def _middle(found: Mapping[str, Floats], places: Bools) -> tuple[float, float, float, float]:
    """Returns mean accuracy and conf-ECE on some test sets, and the deviations over seeds, or 0."""
    runs = np.stack([found[name][:, places].mean(axis=1) for name in ("accuracy", "conf_ece")])  # (2, N)
    spread = runs.std(axis=1, ddof=1) if runs.shape[1] > 1 else np.zeros(2)
    (x, y), (dx, dy) = runs.mean(axis=1).tolist(), spread.tolist()
    return x, y, dx, dy


def alpha_curves(histories: Histories, path: Path, *, columns: int = 6) -> Figure | None:
    """Draws how α = (Δ, ι) moved during training, a column for each method whose α moved.

    A line is one seed's mean over the entries of Δ or ι; the band reaches from the least to the greatest
    entry of all seeds that have the step. All methods share the axis of Δ, and that of ι.

    Args:
        histories: Their rows have `step`, `alpha_delta_mean`, `_min` and `_max`, and the same of
            `alpha_iota`; rows without them are passed over.
        path: The image file; its suffix is the format.
        columns: Methods side by side; more go below.

    Returns:
        The figure that was saved; None where no α moved, and nothing is written.

    Raises:
        CalibrantError: The file cannot be written.
    """
    moved = {
        name: runs
        for name, runs in histories.items()
        if any(not never_moves(run.history, key) for run in runs for key in ("alpha_delta", "alpha_iota"))
    }
    if not moved:
        return None
    columns = min(columns, len(moved))
    blocks = -(-len(moved) // columns)
    figure = new_figure(2.3 * columns + 1.0, 3.6 * blocks + 0.5)
    grid = figure.add_gridspec(2 * blocks, columns)
    first: tuple[Axes | None, Axes | None] = None, None
    for place, (name, runs) in enumerate(moved.items()):
        block, column = divmod(place, columns)
        upper = figure.add_subplot(grid[2 * block, column], sharey=first[0])
        lower = figure.add_subplot(grid[2 * block + 1, column], sharey=first[1], sharex=upper)
        first = first if place else (upper, lower)
        _draw_alpha(upper, runs, "alpha_delta", 1.0)
        _draw_alpha(lower, runs, "alpha_iota", 0.0)
        headline(upper, name, 26)
        upper.tick_params(labelbottom=False)
        lower.set_xlabel("training step")
        for ax, label in ((upper, "scale Δ"), (lower, "shift ι")):
            ax.set_ylabel("" if column else label)
            ax.tick_params(labelleft=not column)
            tidy(ax)
    figure.align_ylabels()
    several = max(map(len, moved.values())) > 1
    handles: dict[str, Artist] = {
        "mean, a line for each seed" if several else "mean": Line2D([], [], color=BLUE, linewidth=1),
        "least to greatest entry": Patch(color=BLUE, alpha=0.2, linewidth=0),
        "logits as they are": Line2D([], [], color=GREY, linestyle="--", linewidth=0.8),
    }
    legend_outside(figure, "outside lower center", handles, 3 if columns > 2 else 1)
    save(figure, path)
    return figure


def _draw_alpha(ax: Axes, runs: Sequence[Run], key: str, neutral: float) -> None:
    found = [[row for row in run.history if f"{key}_mean" in row] for run in runs]
    steps = sorted({row["step"] for rows in found for row in rows})
    at = [[row for rows in found for row in rows if row["step"] == step] for step in steps]
    low = [min(row[f"{key}_min"] for row in rows) for rows in at]
    high = [max(row[f"{key}_max"] for row in rows) for rows in at]
    ax.fill_between(steps, low, high, color=BLUE, alpha=0.2, linewidth=0)
    for rows in found:
        marker = "o" if len(rows) == 1 else ""
        places, means = [row["step"] for row in rows], [row[f"{key}_mean"] for row in rows]
        ax.plot(places, means, color=BLUE, linewidth=0.9, marker=marker, markersize=3)
    ax.axhline(neutral, color=GREY, linestyle="--", linewidth=0.8, zorder=1)
    ax.grid(axis="y", color=PALE_GREY, linewidth=0.6)
    ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))


def entropy_against_nll(histories: Histories, path: Path, *, looks: Looks | None = None) -> Figure:
    """Draws the way of each method through validation entropy H and validation NLL.

    On the diagonal H = NLL a model is as sure as it is right; above it is less sure, below surer. A way is
    the mean over seeds at the steps that all of them have. It starts at a ring and ends at the method's
    marker: the mean over seeds of the point at the kept step, or where none is given at the last one. Where
    the ends lie close together, a second panel magnifies them.

    Args:
        histories: Their rows have `step`, `validation_nll` and `validation_entropy`; rows without them are
            passed over.
        path: The image file; its suffix is the format.
        looks: See above.

    Returns:
        The figure that was saved.

    Raises:
        CalibrantError: A method's seeds share no validated step, a kept step was not validated, or the file
            cannot be written.
    """
    if not histories:
        raise CalibrantError("no method was trained; give the history.jsonl of some runs")
    looks = looks or method_looks(list(histories))
    ways = {name: _way(name, runs) for name, runs in histories.items()}
    ends = {name: _end(name, runs) for name, runs in histories.items()}
    shown = windows(np.concatenate(list(ways.values())), np.stack(list(ends.values())))
    figure = new_figure(5.7 * len(shown) + 0.3, 5.9)
    axes = figure.subplots(1, len(shown), squeeze=False)[0]
    ring: dict[str, Any] = {"marker": "o", "markersize": 9, "color": INK, "markerfacecolor": "none"}
    for ax, (low, high), title in zip(axes, shown, ("the whole way", "the ends, magnified"), strict=False):
        ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
        draw_diagonal(ax)
        for name, way in ways.items():
            look = looks[name]
            ax.plot(
                *way.T, color=look.colour, linestyle=look.line, linewidth=look.width, label=name, zorder=3
            )
            ax.plot(*way[0], zorder=4, **ring)
            ax.plot(*ends[name], linestyle="none", zorder=6 if look.strong else 5, **look.marked())
        headline(ax, title, 60)
        ax.set(xlabel="validation NLL (nats)", ylabel="validation entropy H (nats)")
        tidy(ax)
    for low, high in shown[1:]:
        axes[0].indicate_inset((*low, *(high - low)), edgecolor=INK, alpha=1, linewidth=0.8)
    kept = all(run.kept_step is not None for runs in histories.values() for run in runs)
    handles: dict[str, Artist] = {
        "less sure than right: H > NLL": Patch(color=PALE_BLUE),
        "surer than right: H < NLL": Patch(color=PALE_VERMILLION),
        "as sure as right: H = NLL": Line2D([], [], color=GREY, linestyle="--", linewidth=1),
        "start": Line2D([], [], linestyle="none", **ring),
        "kept step" if kept else "end": Line2D([], [], color=INK, linestyle="none", marker="s"),
    }
    legend_outside(figure, "outside lower center", handles, 5 if len(shown) > 1 else 2)
    points = {name: (looks[name], float(x), float(y)) for name, (x, y) in ends.items()}
    label_points(axes[-1], points, avoided=np.concatenate([dense(way) for way in ways.values()]))
    save(figure, path)
    return figure


def _validated(run: Run) -> dict[float, tuple[float, float]]:
    """Returns NLL and entropy at each validated step."""
    names = "validation_nll", "validation_entropy"
    return {row["step"]: (row[names[0]], row[names[1]]) for row in run.history if row.keys() >= {*names}}


def _way(name: str, runs: Sequence[Run]) -> Floats:
    """Returns NLL and entropy, means over seeds, at the steps that all seeds have: shape (steps, 2)."""
    seen = [_validated(run) for run in runs]
    steps = [step for step in sorted(seen[0]) if all(step in run for run in seen)]
    if not steps:
        raise CalibrantError(f"the runs of {name} share no validated step; give whole history.jsonl files")
    return np.array([[run[step] for step in steps] for run in seen]).mean(axis=0)


def _end(name: str, runs: Sequence[Run]) -> Floats:
    """Returns NLL and entropy where the runs ended, the mean over seeds: shape (2,)."""
    seen = [_validated(run) for run in runs]
    steps = [
        max(rows) if run.kept_step is None else run.kept_step for run, rows in zip(runs, seen, strict=True)
    ]
    if any(step not in rows for step, rows in zip(steps, seen, strict=True)):
        raise CalibrantError(f"{name} kept a step at which its history.jsonl has no validation")
    return np.array([rows[step] for step, rows in zip(steps, seen, strict=True)]).mean(axis=0)


def risk_coverage_curves(
    curves: Mapping[str, Mapping[str, Sequence[Answers]]],
    path: Path,
    *,
    columns: int = 3,
    looks: Looks | None = None,
) -> Figure:
    """Draws which share of answers is wrong if only the surest are given: risk against coverage.

    A line is the mean over seeds, from `LEAST_COVERAGE` on.

    Args:
        curves: For each test set the methods, and for each method the answers of each seed.
        path: The image file; its suffix is the format.
        columns: Test sets in a row.
        looks: See above.

    Returns:
        The figure that was saved.

    Raises:
        CalibrantError: There is nothing to draw, or the file cannot be written.
    """
    methods = list(dict.fromkeys(name for found in curves.values() for name in found))
    if not methods:
        raise CalibrantError("no method has answers; give the predictions of a comparison")
    looks = looks or method_looks(methods)
    columns = min(columns, len(curves))
    rows = -(-len(curves) // columns)
    figure = new_figure(3.7 * columns + 2.0, 3.0 * rows + 0.3)
    for place, (title, found) in enumerate(curves.items()):
        ax = figure.add_subplot(rows, columns, place + 1)
        for name, seeds in found.items():
            coverage, risk = _mean_risk(seeds)
            shifted = 0.15 + 0.2 * (np.arange(5) + methods.index(name) / len(methods)) - 0.1
            marks = np.unique(np.searchsorted(coverage, shifted[shifted < 1]).clip(max=len(coverage) - 1))
            look = looks[name].marked(4.5) | {"linestyle": looks[name].line, "linewidth": looks[name].width}
            level = 4 if looks[name].strong else 3
            ax.plot(coverage, risk, label=name, zorder=level, markevery=marks.tolist(), **look)
        ax.set(xlim=(0, 1), ylim=(0, None))
        headline(ax, title, 40)
        ax.set_ylabel("" if place % columns else "risk: share wrong")
        ax.set_xlabel("coverage: share answered" if place + columns >= len(curves) else "")
        ax.grid(axis="y", color=PALE_GREY, linewidth=0.6)
        tidy(ax)
    handles: dict[str, Artist] = {
        name: Line2D([], [], linestyle=look.line, linewidth=look.width, **look.marked(4.5))
        for name, look in ((name, looks[name]) for name in methods)
    }
    legend_outside(figure, "outside right center", handles)
    save(figure, path)
    return figure


def _mean_risk(seeds: Sequence[Answers]) -> tuple[Floats, Floats]:
    """Returns coverage as the seed with most answers has it, and the mean of the seeds' risks at it."""
    found = [risk_coverage(confidence, correct) for confidence, correct in seeds]
    coverage = max((one for one, _ in found), key=len)
    coverage = coverage[coverage >= LEAST_COVERAGE]
    return coverage, np.mean([np.interp(coverage, *one) for one in found], axis=0)
