"""The confidence found in an answer, and what confidence like it has been worth."""

from collections.abc import Mapping, Sequence
from html import escape

from app.answers import KINDS, Answer, Kind
from app.reports import Bin, Evidence, bin_of
from app.views.reliability import small_reliability_svg

GAP = 0.1
"""Said and computed confidence are marked where they are further apart than this."""


def figures_html(answer: Answer, waiting: Sequence[Kind], evidence: Mapping[Kind, Evidence]) -> str:
    """Returns an answer's kinds of confidence, each with what it has been worth on its reliability diagram.

    Args:
        answer: The answer.
        waiting: Kinds that are still to be found.
        evidence: For each kind, what is known of answers at each confidence.
    """
    rows = "".join(_figure(kind, answer, kind in waiting, evidence[kind]) for kind in KINDS)
    notes = "".join(
        f"<p>Judged by: {escape(of)}.</p>" for of in dict.fromkeys(one.of for one in evidence.values())
    )
    return f'<div class="figures">{rows}<div class="figures-note">{notes}</div></div>'


def worth(value: float, bins: Sequence[Bin]) -> str:
    """Says how often answers at a confidence were right."""
    found = bin_of(bins, value)
    if found is None or found.accuracy is None or found.ci95 is None:
        return "No evidence at this confidence."
    low, high = found.ci95
    answers = "answer" if found.count == 1 else "answers"
    return (
        f"<b>{100 * found.accuracy:.0f} % were right</b> ({100 * low:.0f} to {100 * high:.0f} %) "
        f"of {found.count} {answers} at {100 * found.low:.0f} to {100 * found.high:.0f} %."
    )


def gap_of(answer: Answer) -> float | None:
    """Returns stated less token confidence, or None where one of them is not there."""
    said, computed = answer.figure("stated"), answer.figure("token")
    if said is None or computed is None or said.value is None or computed.value is None:
        return None
    return said.value - computed.value


def _figure(kind: Kind, answer: Answer, waiting: bool, evidence: Evidence) -> str:
    found = answer.figure(kind)
    name = escape(KINDS[kind])
    if found is None or found.value is None:
        note = found.note if found else "waiting for the model" if waiting else "not asked for"
        value = "…" if waiting and not found else "–"
        return (
            f'<section class="figure empty"><h4>{name}</h4><span class="figure-value">{value}</span>'
            f'<p class="figure-note">{escape(note)}</p></section>'
        )
    meter, gap = _gap(answer) if kind == "stated" else ("", "")
    diagram = small_reliability_svg(evidence.bins, found.value, evidence.of) if evidence.bins else ""
    return (
        f'<section class="figure"><h4>{name}</h4><span class="figure-value">{100 * found.value:.0f} %</span>'
        f'<div class="meter"><span class="meter-fill" style="width:{100 * found.value:.2f}%"></span>'
        f"{meter}</div>"
        f'<p class="figure-note">{escape(found.note)}{gap}</p>'
        f'<p class="figure-worth">{worth(found.value, evidence.bins)}</p>{diagram}</section>'
    )


def _gap(answer: Answer) -> tuple[str, str]:
    """Returns the band between said and computed confidence, and its name; "" where it is small."""
    gap, said = gap_of(answer), answer.figure("stated")
    if gap is None or abs(gap) <= GAP or said is None or said.value is None:
        return "", ""
    left = 100 * min(said.value, said.value - gap)
    return (
        f'<span class="meter-gap" style="left:{left:.2f}%;width:{100 * abs(gap):.2f}%"></span>',
        f'<span class="gap-name">{100 * abs(gap):.0f} points {"above" if gap > 0 else "below"} its '
        "token confidence</span>",
    )
