"""A question with both answers and their confidence as a picture, drawn for sharing."""

import io
import math
import warnings
from collections.abc import Iterator, Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyBboxPatch, Rectangle

from app.answers import KINDS, Answer
from app.session import Asked
from app.views.colours import INK, colour, gradient_colours
from toolkit.confidence.tokens import TokenConfidence

WIDTH, MARGIN, GUTTER, DPI = 1100, 32, 24, 200
"""Of the picture, in points of 1/100 inch; each takes two pixels."""

LINE, ROW = 27, 34
"""Height of a line of an answer and of a row of confidence."""

SOFT, TRACK, SIDES = "#556270", "#e7ebef", ("#5b6b7a", "#0b6bb3")

Word = tuple[int, str, float]
"""A piece of a line: its token's number, its text, and its width."""


def picture(asked: Asked) -> bytes:
    """Draws the answers of one question.

    Args:
        asked: The question with its answers.

    Returns:
        A PNG image, light whatever the page is.
    """
    pen = _Pen()
    column = (WIDTH - 2 * MARGIN - GUTTER) / 2
    title = list(pen.lines([asked.form.question], WIDTH - 2 * MARGIN, 19))
    texts = [list(pen.lines([t.text for t in one.tokens], column - 32, 14)) for one in asked.answers]
    top = MARGIN + 30 * len(title) + 34
    boxes = top + LINE * max(1, *map(len, texts)) + 64
    height = boxes + ROW * len(KINDS) + 40
    pen.begin(height)
    for number, line in enumerate(title):
        pen.text(MARGIN, MARGIN + 12 + 30 * number, "".join(text for _, text, _ in line), 19, bold=True)
    _legend(pen, MARGIN, top - 22)
    for side, (answer, lines) in enumerate(zip(asked.answers, texts, strict=True)):
        left = MARGIN + side * (column + GUTTER)
        pen.box(left, top, column, boxes - top - 12)
        pen.text(left + 16, top + 20, answer.model, 11, color=SIDES[side], bold=True)
        for number, line in enumerate(lines):
            _line(pen, left + 16, top + 48 + LINE * number, line, answer.tokens)
        _figures(pen, left, boxes + 14, column, answer, SIDES[side])
    pen.text(WIDTH - MARGIN, height - 16, "calibrant · confidence explorer", 9, color=SOFT, align="right")
    return pen.png()


def _line(
    pen: "_Pen", left: float, y: float, line: Sequence[Word], tokens: Sequence[TokenConfidence]
) -> None:
    for number, text, width in line:
        pen.rectangle(left, y - 13, width, 23, colour(math.exp(tokens[number].log_prob), "light"))
        pen.text(left, y, text, 14)
        left += width


def _figures(pen: "_Pen", left: float, top: float, width: float, answer: Answer, fill: str) -> None:
    for number, (kind, name) in enumerate(KINDS.items()):
        found, y = answer.figure(kind), top + ROW * number
        value = None if found is None else found.value
        pen.text(left, y, name, 11)
        pen.rectangle(left + 170, y - 4, width - 230, 8, TRACK)
        if value is not None:
            pen.rectangle(left + 170, y - 4, (width - 230) * value, 8, fill)
        said = "–" if value is None else f"{100 * value:.0f} %"
        pen.text(left + width, y, said, 12, bold=True, align="right")


def _legend(pen: "_Pen", left: float, y: float) -> None:
    pen.text(left, y, "Probability of each token", 9.5, color=SOFT)
    left += 165
    colours = gradient_colours("light", 60)
    for number, shade in enumerate(colours):
        pen.rectangle(left + 3 * number, y - 5, 3.5, 10, shade)
    pen.text(left - 8, y, "0", 9, color=SOFT, align="right")
    pen.text(left + 3 * len(colours) + 8, y, "1", 9, color=SOFT)


class _Pen:
    """Draws in coordinates that start at the top left, and measures text before there is a canvas for it."""

    def __init__(self) -> None:
        self._figure = Figure(figsize=(WIDTH / 100, 1), dpi=DPI)
        self._renderer = FigureCanvasAgg(self._figure).get_renderer()

    def begin(self, height: float) -> None:
        """Sets the canvas up, once its height is known."""
        self._figure = Figure(figsize=(WIDTH / 100, height / 100), dpi=DPI, facecolor="white")
        FigureCanvasAgg(self._figure)
        self._axes = self._figure.add_axes((0, 0, 1, 1))
        self._axes.set(xlim=(0, WIDTH), ylim=(height, 0))
        self._axes.axis("off")

    def width(self, text: str, size: float) -> float:
        """Returns the width of a text, trailing spaces included."""
        font = FontProperties(family="DejaVu Sans", size=size * 0.72)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # characters that the font lacks are drawn as boxes
            ends = self._renderer.get_text_width_height_descent(f"{text}|", font, ismath=False)[0]
            bar = self._renderer.get_text_width_height_descent("|", font, ismath=False)[0]
        return float((ends - bar) * 100 / DPI)

    def lines(self, pieces: Sequence[str], room: float, size: float) -> Iterator[list[Word]]:
        """Breaks pieces of text into lines, at line breaks and before words that do not fit any more."""
        line: list[Word] = []
        used = 0.0
        for number, piece in enumerate(pieces):
            for part in _parts(piece):
                width = 0.0 if part == "\n" else self.width(part, size)
                if part == "\n" or (line and used + width > room):
                    yield line
                    line, used = [], 0.0
                if part != "\n":
                    line.append((number, part, width))
                    used += width
        if line:
            yield line

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        *,
        color: str = INK["light"],
        bold: bool = False,
        align: str = "left",
    ) -> None:
        """Writes a text, its middle at y."""
        self._axes.text(
            x, y, text, fontsize=size * 0.72, color=color, va="center_baseline", ha=align, parse_math=False,
            weight="bold" if bold else "normal", family="DejaVu Sans",
        )  # fmt: skip

    def rectangle(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        """Fills a rectangle."""
        self._axes.add_patch(Rectangle((x, y), width, height, facecolor=fill, linewidth=0))

    def box(self, x: float, y: float, width: float, height: float) -> None:
        """Draws the frame of an answer."""
        style = "round,pad=0,rounding_size=10"
        self._axes.add_patch(
            FancyBboxPatch(
                (x, y), width, height, boxstyle=style, fill=False, edgecolor="#dde2e8", linewidth=1
            )
        )

    def png(self) -> bytes:
        """Returns the picture."""
        file = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._figure.savefig(file, format="png", dpi=DPI)
        return file.getvalue()


def _parts(piece: str) -> list[str]:
    """Splits a piece where a line may break: before white space, and around line breaks."""
    parts: list[str] = []
    for character in piece:
        if parts and not character.isspace() and parts[-1] != "\n":
            parts[-1] += character
        else:
            parts.append(character)
    return parts
