"""Multiple choice as bars: what each model gives to each option, and to none of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from app.reports import Bin
from app.views.figures import worth
from app.views.reliability import small_reliability_svg
from app.views.tokens import percent

SIDES = ("left", "right")


@dataclass(frozen=True)
class Choice:
    """What one model makes of a multiple-choice question.

    Attributes:
        model: The model's name on the page.
        probabilities: Of each option, among the options.
        mass: Probability of the options' texts together, before it is shared out.
        bins: Reliability diagram of that model, with how the question is put; none where it was not measured.
    """

    model: str
    probabilities: tuple[float, ...]
    mass: float
    bins: tuple[Bin, ...] = ()

    @property
    def top(self) -> int:
        """Index of the most probable option."""
        return self.probabilities.index(max(self.probabilities))


def options_html(options: Sequence[str], answer: int | None, choices: Sequence[Choice], form: str) -> str:
    """Returns one bar a model for each option, and how much probability is on none of them.

    Args:
        options: The options' texts.
        answer: Index of the right one, where it is known.
        choices: What one or two models make of them.
        form: "cloze" or "letter": whose probability it is.
    """
    names = "".join(
        f'<span class="side-name {side}"><i></i>{escape(choice.model)}</span>'
        for side, choice in zip(SIDES, choices, strict=False)
    )
    rows = "".join(_option(place, text, place == answer, choices) for place, text in enumerate(options))
    notes = "".join(
        _summary(side, choice, answer, form) for side, choice in zip(SIDES, choices, strict=False)
    )
    return (
        f'<div class="choice-view"><div class="side-names">{names}</div><ol class="options">{rows}</ol>'
        f'<div class="choice-notes">{notes}</div></div>'
    )


def _option(place: int, text: str, right: bool, choices: Sequence[Choice]) -> str:
    bars = "".join(
        f'<div class="option-bar {side}{" top" if choice.top == place else ""}">'
        f'<div class="meter"><span class="meter-fill" style="width:{100 * choice.probabilities[place]:.2f}%">'
        f'</span></div><span class="option-value">{100 * choice.probabilities[place]:.1f} %</span></div>'
        for side, choice in zip(SIDES, choices, strict=False)
    )
    mark = '<span class="right-mark">right answer</span>' if right else ""
    return (
        f'<li class="option{" right" if right else ""}"><div class="option-text">'
        f'<span class="letter">{chr(ord("A") + place)}</span> <span>{escape(text)}</span>{mark}</div>'
        f'<div class="option-bars">{bars}</div></li>'
    )


def _summary(side: str, choice: Choice, answer: int | None, form: str) -> str:
    top = choice.probabilities[choice.top]
    verdict = "" if answer is None else " It is right." if choice.top == answer else " It is wrong."
    kind = "letters" if form == "letter" else "texts"
    diagram = small_reliability_svg(choice.bins, top, choice.model) if choice.bins else ""
    off = max(0.0, 1 - choice.mass)
    return (
        f'<section class="choice-note {side}">{diagram}<h4>{escape(choice.model)}</h4>'
        f"<p>Chooses {chr(ord('A') + choice.top)} at <b>{percent(top)}</b>.{verdict}</p>"
        f'<p class="figure-worth">In its report: {worth(top, choice.bins)}</p>'
        '<div class="mass"><div class="meter">'
        f'<span class="meter-fill" style="width:{100 * min(1, choice.mass):.2f}%"></span></div>'
        f"<p>{percent(min(1, choice.mass))} of its probability is on the options' {kind}, "
        f"{percent(off)} on other answers; the bars share out the former.</p></div></section>"
    )
