"""Tokens as HTML: each on the colour of its probability, with its details for the card."""

import json
import math
from html import escape

from app.views.colours import colour, gradient
from toolkit.confidence.tokens import TokenConfidence


def token_html(token: TokenConfidence, place: int) -> str:
    """Returns a token as one inline element.

    Its text is kept as it is, so that words have no gaps and white space stays; the page's script reads the
    details from `data-token` and shows them as text, never as HTML.

    Args:
        token: The token.
        place: Its place in the answer, from 0.
    """
    details = {
        "place": place,
        "text": token.text,
        "p": _probability(token.log_prob),
        "rank": token.rank,
        "entropy": round(token.entropy, 4),
        "kept": _probability(token.kept_log_prob),
        "alternatives": [
            [one.id, one.text, _probability(one.log_prob), _probability(one.kept_log_prob)]
            for one in token.alternatives
        ],
        "id": token.id,
    }
    probability = math.exp(token.log_prob)
    light, dark = colour(probability, "light"), colour(probability, "dark")
    label = f"{visible(token.text)}, probability {percent(probability)}"
    kind = "token break" if "\n" in token.text else "token" if token.text else "token piece"
    return (
        f'<span class="{kind}" role="button" tabindex="{-1 if place else 0}" aria-label="{escape(label)}" '
        f'aria-haspopup="dialog" style="--light:{light};--dark:{dark}" '
        f'data-token="{escape(json.dumps(details))}">{escape(token.text)}</span>'
    )


def legend_html() -> str:
    """Returns the colour scale with its ends named."""
    light, dark = gradient("light"), gradient("dark")
    ticks = "".join(f"<span>{value}</span>" for value in ("0", "25 %", "50 %", "75 %", "100 %"))
    return (
        '<div class="legend"><span class="legend-name">Probability of each token</span>'
        f'<div class="legend-scale"><div class="legend-bar" style="--light:{light};--dark:{dark}"></div>'
        f'<div class="legend-ticks">{ticks}</div></div>'
        '<span class="legend-help">Hover over a token, or tab to it and use the arrow keys; '
        "click an alternative to branch from there.</span></div>"
    )


def visible(text: str) -> str:
    """Returns a token's text with white space that can be seen."""
    return text.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥") or "part of a character"


def percent(value: float) -> str:
    """Returns a probability in words that never round to certainty."""
    if 0 < value < 0.001:
        return "below 0.1 %"
    if 0.999 < value < 1:
        return "above 99.9 %"
    return f"{100 * value:.1f} %"


def _probability(log_prob: float) -> float:
    return float(f"{math.exp(log_prob):.5g}")
