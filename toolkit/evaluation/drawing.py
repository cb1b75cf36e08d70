"""What the figures share: colours, looks, legends, labels that do not overlap, and saving."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from numpy.typing import NDArray

from toolkit.evaluation.files import replacing
from toolkit.evaluation.metrics import Bools, Floats

# Okabe and Ito's colours, told apart with any colour vision; their yellow is too pale for a line.
BLUE, VERMILLION, GREEN = "#0072B2", "#D55E00", "#009E73"
ORANGE, PURPLE, SKY = "#E69F00", "#CC79A7", "#56B4E9"
PALE_BLUE, PALE_VERMILLION = "#BFE1F5", "#F7DCC8"
INK, GREY, PALE_GREY = "#333333", "#999999", "#e6e6e6"
BLACK = "#000000"
_DPI = 160

Outside = Literal["outside lower center", "outside right center"]


class Look(NamedTuple):
    """How a method is drawn.

    Attributes:
        colour: Of its line and marker.
        marker: Shape.
        fill: Which part of the marker is filled: Matplotlib's fillstyle.
        line: Matplotlib's linestyle.
        strong: Larger, and its name in bold.
    """

    colour: str
    marker: str
    fill: str
    line: Any
    strong: bool

    def marked(self, size: float = 7) -> dict[str, Any]:
        """Returns what `Axes.plot` needs for the marker, its size in points."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "markersize": size * (1.45 if self.strong else 1),
            "fillstyle": "full" if self.fill == "none" else self.fill,
            "markerfacecolor": "white" if self.fill == "none" else self.colour,
            "markerfacecoloralt": "white",
            "markeredgecolor": self.colour,
            "markeredgewidth": 1.2,
        }

    @property
    def width(self) -> float:
        """Width of its line, in points."""
        return 2.2 if self.strong else 1.3


def never_moves(history: Sequence[Mapping[str, float]], key: str) -> bool:
    """Says whether a part of α is one and the same number in all entries and at all steps.

    Args:
        history: Rows of `history.jsonl`.
        key: Beginning of the keys of its mean, minimum and maximum; where none is logged, nothing moves.
    """
    names = [f"{key}_{part}" for part in ("mean", "min", "max")]
    values = [row[name] for row in history for name in names if name in row]
    # In single precision the mean of equal numbers need not be that number.
    return not values or max(values) - min(values) <= 1e-6 * max(1.0, abs(values[0]))


def new_figure(width: float, height: float) -> Figure:
    """Returns an empty figure that pyplot does not know, with a size in inches."""
    figure = Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def tidy(ax: Axes) -> None:
    """Gives axes the house style."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8, colors=INK)
    ax.xaxis.label.set_fontsize(9)
    ax.yaxis.label.set_fontsize(9)
    ax.set_axisbelow(True)


def save(figure: Figure, path: Path) -> None:
    """Writes a figure, whole or not at all.

    Args:
        figure: What to write.
        path: The image file; its suffix is the format.

    Raises:
        CalibrantError: The file cannot be written.
    """
    with replacing(path) as partial, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a letter that the font lacks becomes a box
        figure.savefig(partial, format=path.suffix.removeprefix("."))


def headline(ax: Axes, text: str, width: int) -> None:
    """Gives axes a title, shown as it is, `$` included, in lines of so many letters."""
    ax.set_title(fill(text, width), fontsize=9.5, weight="bold", color=INK, parse_math=False)


def legend_outside(figure: Figure, place: Outside, handles: Mapping[str, Artist], columns: int = 1) -> None:
    """Puts a legend beside the axes, at a place of Matplotlib's; its texts are shown as they are."""
    legend = figure.legend(
        list(handles.values()),
        list(handles),
        loc=place,
        ncols=columns,
        handlelength=3.5 if "right" in place else 2,
        frameon=False,
        fontsize=8.5,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def draw_diagonal(ax: Axes) -> None:
    """Draws y = x in axes whose limits are final, and shades both its sides: above blue, below red."""
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    ends = [left, right]
    ax.fill_between(ends, ends, max(top, right), color=PALE_BLUE, alpha=0.35, linewidth=0)
    ax.fill_between(ends, min(bottom, left), ends, color=PALE_VERMILLION, alpha=0.35, linewidth=0)
    ax.plot(ends, ends, color=GREY, linestyle="--", linewidth=1, zorder=2)
    ax.set(xlim=(left, right), ylim=(bottom, top))


def windows(ways: Floats, ends: Floats) -> list[tuple[Floats, Floats]]:
    """Returns two corners of each panel: one of everything, and one of the ends if they are close together.

    Args:
        ways: Points on some ways, shape (M, 2); both coordinates have one unit, and the first panel begins on
            the diagonal.
        ends: Where the ways end, shape (N, 2).
    """
    everything = np.concatenate([ways, ends])
    sides = np.maximum(np.ptp(everything, axis=0), 1e-2)
    room = np.maximum(0.2 * np.ptp(ends, axis=0), 0.03 * sides)
    near = ends.min(axis=0) - room, ends.max(axis=0) + room
    low = np.minimum(everything.min(axis=0) - 0.05 * sides, near[0])
    high = np.maximum(everything.max(axis=0) + 0.05 * sides, near[1])
    low = np.full(2, low.min())
    return [(low, high), near] if (near[1] - near[0])[0] < 0.5 * (high - low)[0] else [(low, high)]


def dense(way: Floats) -> Floats:
    """Returns places along a polygonal line of shape (N, 2), ten for each of its corners."""
    along = np.linspace(0, len(way) - 1, 10 * len(way))
    return np.stack([np.interp(along, np.arange(len(way)), part) for part in way.T], axis=1)


def label_points(
    ax: Axes, points: Mapping[str, tuple[Look, float, float]], *, avoided: Floats
) -> list[Annotation]:
    """Writes the methods' names beside their points, where they cover least.

    Every label starts at its point and goes in turn to the place that overlaps least, until none wants to
    move; a line leads back from one that went far. The limits of the axes must be final, and the figure
    must hold everything else that takes room.

    Args:
        ax: Where.
        points: Look, x and y of each method, in data coordinates.
        avoided: Places that a label should rather not cover, data coordinates, shape (M, 2).

    Returns:
        The labels, in the order of the points.
    """
    figure = ax.figure
    figure.draw_without_rendering()  # type: ignore[union-attr] # constrained layout moves the axes
    scale = figure.dpi / 72
    place = ax.transData.transform
    centres = np.asarray(place([(x, y) for _, x, y in points.values()]))
    soft = np.asarray(place(avoided))
    labels = [
        ax.annotate(
            name,
            (x, y),
            (0, 0),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=8,
            weight="bold" if look.strong else "normal",
            color=INK if look.colour == BLACK else _darker(look.colour),
            parse_math=False,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4},
        )
        for name, (look, x, y) in points.items()
    ]
    boxes = [Text.get_window_extent(label) for label in labels]  # without the line
    sizes = np.array([[box.width + 4, box.height + 2] for box in boxes])
    offsets = _spread(centres, sizes, soft, np.asarray(ax.bbox.extents), 7 * scale)
    for label, size, offset in zip(labels, sizes, offsets, strict=True):
        label.set_position((offset / scale).tolist())
        label.set_in_layout(False)
        beyond = np.hypot(*np.maximum(np.abs(offset) - size / 2, 0))
        if label.arrow_patch is not None and beyond < 10 * scale:
            label.arrow_patch.set_visible(False)
    return labels


def _spread(centres: Floats, sizes: Floats, soft: Floats, frame: Floats, radius: float) -> Floats:
    """Returns how far each label's middle lies from its point; all in pixels.

    Args:
        centres: The points, shape (N, 2).
        sizes: Width and height of each label, shape (N, 2).
        soft: Points that are better not covered, shape (M, 2).
        frame: Left, bottom, right and top of the axes.
        radius: Distance of the nearest places from the point.
    """
    angles = np.arange(24) * (2 * np.pi / 24)
    ways = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    reaches = radius * np.array([1, 1.6, 2.4, 3.5, 5, 7, 9.5, 12.5])
    distances = np.repeat(reaches, len(angles))  # (C,), as are all costs below
    steps = np.tile(ways, (len(reaches), 1))
    chosen = np.zeros_like(centres)
    placed = np.zeros(len(centres), dtype=bool)
    parts = np.linspace(0, 1, 12)[:, None]
    gaps = np.hypot(*(centres[:, None] - centres).transpose(2, 0, 1))
    order = np.argsort((gaps < 8 * radius).sum(axis=1), kind="stable")
    for _ in range(8):
        before = chosen.copy()
        for i in order:
            offsets = steps * distances[:, None] + np.clip(1.5 * steps, -1, 1) * sizes[i] / 2
            low = centres[i] + offsets - sizes[i] / 2
            high = low + sizes[i]
            others = placed & (np.arange(len(centres)) != i)
            middle = centres[others] + chosen[others]
            its_low, its_high = middle - sizes[others] / 2, middle + sizes[others] / 2
            lap = np.minimum(high[:, None], its_high) - np.maximum(low[:, None], its_low)
            own = (centres[i] + parts * offsets[:, None]).reshape(-1, 2)  # places on the leading line
            leads = (centres[others][:, None] + parts * chosen[others][:, None]).reshape(-1, 2)
            crossed = _inside(own, its_low, its_high).sum(axis=0).reshape(len(offsets), -1).sum(axis=1)
            outside = np.maximum(frame[:2] - low, 0).sum(axis=1) + np.maximum(high - frame[2:], 0).sum(axis=1)
            cost = (
                distances / radius
                + 1e4 * (outside > 0)
                + 1e3 * (lap > 0).all(axis=2).sum(axis=1)
                + 40 * _inside(centres, low - radius / 2, high + radius / 2).sum(axis=1)
                + 20 * _inside(leads, low, high).sum(axis=1)
                + 20 * crossed
                + 30 * _crossings(centres[i], offsets, centres[others], chosen[others])
                + np.minimum(_inside(soft, low, high).sum(axis=1), 12)
            )
            chosen[i], placed[i] = offsets[np.argmin(cost)], True
        if np.array_equal(before, chosen):
            break
    return chosen


def _inside(points: Floats, low: Floats, high: Floats) -> Bools:
    """Says which points lie in which boxes, shape (boxes, points)."""
    return np.all((points > low[:, None]) & (points < high[:, None]), axis=2)


def _crossings(start: Floats, ways: Floats, starts: Floats, its_ways: Floats) -> NDArray[np.int64]:
    """Counts for each way from one start, shape (C, 2), the lines from other starts that it crosses."""
    between = starts - start
    determinant = _cross(ways[:, None], its_ways)
    with np.errstate(divide="ignore", invalid="ignore"):
        mine = _cross(between, its_ways) / determinant
        its = _cross(between, ways[:, None]) / determinant
    return ((mine > 0) & (mine < 1) & (its > 0) & (its < 1)).sum(axis=1)


def _cross(a: Floats, b: Floats) -> Floats:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _darker(colour: str) -> str:
    """Returns a colour at 65 % of its brightness, for thin letters on white."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{int(0.65 * part):02x}" for part in parts)
