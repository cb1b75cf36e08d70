"""Reliability diagrams as inline SVG: how often answers at each confidence were right."""

from collections.abc import Sequence
from html import escape

from app.reports import Bin, bin_of

SIZE, LEFT, TOP = 200, 40, 8
"""Side of the diagram's square and what stands left of and above it, in pixels."""


def reliability_svg(bins: Sequence[Bin], title: str) -> str:
    """Draws a reliability diagram with its axes.

    Bars are the share of right answers, whiskers its 95 % interval; a dot says where the bin's mean
    confidence lies, and stands on the diagonal where the model is as sure as it is right.

    Args:
        bins: The bins, empty ones included.
        title: What it is of.
    """
    box = f"0 0 {LEFT + SIZE + 12} {TOP + SIZE + 34}"
    return _svg("reliability", box, f"{title}: {describe(bins)}", f"{_frame()}{_axes()}{_bars(bins, None)}")


def small_reliability_svg(bins: Sequence[Bin], confidence: float, title: str) -> str:
    """Draws a reliability diagram without axes, one confidence and its bin marked.

    Args:
        bins: The bins, empty ones included.
        confidence: What is marked.
        title: What it is of.
    """
    box = f"{LEFT - 4} {TOP - 8} {SIZE + 8} {SIZE + 12}"
    mark = f'<path class="mark" d="M{_x(confidence)} {_y(0)}V{TOP - 6}"/>'
    label = f"{title}: {describe(bins)}; marked: {confidence:.0%}"
    return _svg("reliability small", box, label, f"{_frame()}{_bars(bins, bin_of(bins, confidence))}{mark}")


def describe(bins: Sequence[Bin]) -> str:
    """Says in words what a diagram shows."""
    said = [
        f"of {one.count} answers at {one.low:.0%} to {one.high:.0%}, {one.accuracy:.0%} right"
        for one in bins
        if one.count and one.accuracy is not None
    ]
    return "; ".join(said) or "no answers"


def _svg(kind: str, box: str, label: str, content: str) -> str:
    return f'<svg class="{kind}" viewBox="{box}" role="img" aria-label="{escape(label)}">{content}</svg>'


def _x(value: float) -> float:
    return round(LEFT + SIZE * value, 2)


def _y(value: float) -> float:
    return round(TOP + SIZE * (1 - value), 2)


def _frame() -> str:
    grid = "".join(f"M{_x(0)} {_y(v)}H{_x(1)}M{_x(v)} {_y(0)}V{_y(1)}" for v in (0.25, 0.5, 0.75))
    return (
        f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{SIZE}" height="{SIZE}"/>'
        f'<path class="grid" d="{grid}"/>'
        f'<path class="diagonal" d="M{_x(0)} {_y(0)}L{_x(1)} {_y(1)}"/>'
    )


def _axes() -> str:
    middle, below = TOP + SIZE / 2, TOP + SIZE
    ticks = "".join(
        f'<text class="tick" x="{LEFT - 5}" y="{_y(value) + 3.5}" text-anchor="end">{value:g}</text>'
        f'<text class="tick" x="{_x(value)}" y="{below + 14}" text-anchor="middle">{value:g}</text>'
        for value in (0, 0.5, 1)
    )
    return (
        f'{ticks}<text class="axis" x="{_x(0.5)}" y="{below + 29}" text-anchor="middle">confidence</text>'
        f'<text class="axis" transform="translate(12 {middle}) rotate(-90)" text-anchor="middle">'
        "share right</text>"
    )


def _bars(bins: Sequence[Bin], marked: Bin | None) -> str:
    most = max((one.count for one in bins), default=0)
    return "".join(_bar(one, most, one is marked) for one in bins if one.count)


def _bar(one: Bin, most: int, marked: bool) -> str:
    assert one.accuracy is not None and one.confidence is not None and one.ci95 is not None
    middle = _x((one.low + one.high) / 2)
    low, high = one.ci95
    tip = (
        f"{one.low:.0%} to {one.high:.0%} sure: {one.accuracy:.0%} right "
        f"({low:.0%} to {high:.0%}), {one.count} answers"
    )
    shade = 0.35 + 0.65 * (one.count / most) ** 0.5
    width = _x(one.high) - _x(one.low) - 2
    return (
        f'<g class="bin{" marked" if marked else ""}"><title>{escape(tip)}</title>'
        f'<rect class="bar" x="{_x(one.low) + 1}" y="{_y(one.accuracy)}" width="{width:.2f}" '
        f'height="{SIZE * one.accuracy:.2f}" style="opacity:{shade:.2f}"/>'
        f'<path class="whisker" d="M{middle} {_y(low)}V{_y(high)}M{middle - 3} {_y(low)}h6'
        f'M{middle - 3} {_y(high)}h6"/>'
        f'<circle class="dot" cx="{_x(one.confidence)}" cy="{_y(one.accuracy)}" r="2.6"/></g>'
    )
