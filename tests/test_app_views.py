"""What is shown: tests of `app/views`."""

import json
import math
import re
from html.parser import HTMLParser
from io import BytesIO

import pytest
from app_models import HOSTILE, predictions
from PIL import Image

from app.answers import KINDS, Answer, Figure, Form
from app.reports import Bin, Evidence, bin_of
from app.session import Asked, Chosen, Session
from app.views.colours import INK, STOPS, colour, contrast, luminance
from app.views.figures import figures_html, gap_of, worth
from app.views.options import Choice, options_html
from app.views.picture import picture
from app.views.reliability import reliability_svg, small_reliability_svg
from app.views.tables import mistakes_html
from app.views.tokens import token_html
from toolkit.confidence.tokens import Alternative, TokenConfidence

TEXTS = ["The", " cap", "ital", "  of\n\n", "\t", "🎯", "", HOSTILE, "&amp;", ' "quoted" \'']


class Reader(HTMLParser):
    """Collects the elements, their attributes and the text of some HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data


def token(text: str, probability: float = 0.5) -> TokenConfidence:
    others = (Alternative(8, HOSTILE, math.log(0.3), -math.inf),)
    return TokenConfidence(7, text, 0, 0, math.log(probability), 2, 1.25, others, math.log(0.75))


def answer(**changes) -> Answer:
    tokens = tuple(token(text) for text in TEXTS)
    figures = (Figure("token", 0.3, HOSTILE), Figure("stated", 0.9, "said"), Figure("p_true", None, HOSTILE))
    return Answer(**{"model": HOSTILE, "tokens": tokens, "figures": figures} | changes)


BINS = (
    Bin(0.0, 0.5, 0, None, None, None),
    Bin(0.5, 0.75, 3, 0.6, 1 / 3, (0.06, 0.79)),
    Bin(0.75, 1.0, 100, 0.9, 0.8, (0.71, 0.87)),
)
CHOICES = (Choice(HOSTILE, (0.25, 0.75), 0.1, BINS), Choice("other", (0.6, 0.4), 0.9))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_are_continuous_monotone_and_readable(theme):
    shades = [colour(i / 1000, theme) for i in range(1001)]
    assert all(contrast(shade, INK[theme]) >= 4.5 for shade in shades)
    channels = [[int(shade[i : i + 2], 16) for i in (1, 3, 5)] for shade in shades]
    steps = [
        max(abs(a - b) for a, b in zip(*pair, strict=True))
        for pair in zip(channels, channels[1:], strict=False)
    ]
    assert max(steps) <= 3
    assert len(set(shades)) > 150  # differences can be seen
    light = [luminance(shade) for shade in shades[::100]]
    assert light == sorted(light, reverse=theme == "dark")  # told apart without colour vision
    assert shades[0] == STOPS[theme][0] and shades[-1] == STOPS[theme][-1]


def test_contrast_is_that_of_the_standard():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # the known edge of AA


def test_tokens_keep_their_text_and_nothing_stands_between_them():
    html = "".join(token_html(token(text), place) for place, text in enumerate(TEXTS))
    read = Reader(html)
    assert read.text == "".join(TEXTS)
    assert [tag for tag, _ in read.elements] == ["span"] * len(TEXTS)
    assert re.search(r"</span>\s+<span", html) is None


def test_a_token_carries_its_details():
    ((_, attributes),) = Reader(token_html(token(HOSTILE, 0.25), 3)).elements
    details = json.loads(attributes["data-token"] or "")
    assert details["p"] == 0.25 and details["rank"] == 2 and details["entropy"] == 1.25
    assert details["kept"] == 0.75 and details["place"] == 3
    assert details["alternatives"] == [[8, HOSTILE, 0.3, 0.0]]
    assert f"--light:{colour(0.25, 'light')};--dark:{colour(0.25, 'dark')}" == attributes["style"]


@pytest.mark.parametrize(
    "html",
    [
        token_html(token(HOSTILE), 0),
        figures_html(answer(), [], dict.fromkeys(KINDS, Evidence(BINS, HOSTILE))),
        options_html([HOSTILE, "other"], 0, CHOICES, "cloze"),
        reliability_svg(BINS, HOSTILE),
        small_reliability_svg(BINS, 0.8, HOSTILE),
        mistakes_html(predictions().assign(subject=HOSTILE, source=HOSTILE), 10),
    ],
    ids=["token", "figures", "options", "diagram", "small diagram", "mistakes"],
)
def test_what_others_wrote_stays_text(html):
    read = Reader(html)
    assert not {"img", "script"} & {tag for tag, _ in read.elements}
    assert not [name for _, attributes in read.elements for name in attributes if name.startswith("on")]
    shown = read.text + "".join(
        value or "" for _, attributes in read.elements for value in attributes.values()
    )
    assert HOSTILE in shown


def test_worth_is_the_bin_of_the_confidence():
    assert "80 % were right" in worth(0.8, BINS) and "(71 to 87 %) of 100 answers" in worth(0.8, BINS)
    assert worth(0.2, BINS) == worth(0.2, ()) == "No evidence at this confidence."


def test_bins_are_closed_at_the_right_as_in_the_report():
    assert bin_of(BINS, 0.75) is BINS[1]
    assert bin_of(BINS, 0.7500001) is BINS[2] and bin_of(BINS, 1.0) is BINS[2]
    assert bin_of(BINS, 0.0) is None and bin_of((), 0.5) is None


def test_the_gap_between_said_and_computed():
    assert gap_of(answer()) == pytest.approx(0.6)
    html = figures_html(answer(), [], dict.fromkeys(KINDS, Evidence((), "nothing")))
    assert "60 points above its token confidence" in html and 'style="left:30.00%;width:60.00%"' in html
    near = answer(figures=(Figure("token", 0.85), Figure("stated", 0.9)))
    assert "meter-gap" not in figures_html(near, [], dict.fromkeys(KINDS, Evidence((), "nothing")))


def test_options_say_what_is_on_none_of_them():
    text = Reader(options_html(["a", "b"], 1, CHOICES, "letter")).text
    assert "10.0 % of its probability is on the options' letters, 90.0 % on other answers" in text
    assert "Chooses B at 75.0 %. It is right." in text and "Chooses A at 60.0 %. It is wrong." in text


def test_picture_grows_with_the_answer():
    form = Form("A question with $dollars$ and \\frac", "one", "two")
    sizes = []
    for count in (1, 30):
        long = answer(tokens=tuple(token(text) for text in TEXTS * count))
        sizes.append(Image.open(BytesIO(picture(Asked(form, (long, answer(tokens=())))))).size)
    assert sizes[0][0] == sizes[1][0] and sizes[0][1] < sizes[1][1]


def test_session_exports_everything_as_strict_json():
    form = Form("Which?", "one", "two", kinds=("stated",))
    chosen = Chosen("Which?", ("a", "b"), None, {"form": "cloze"}, CHOICES)
    session = Session().add(chosen).add(Asked(form, (answer(), answer())))
    read = json.loads(json.dumps(session.export(), allow_nan=False))
    assert [entry["kind"] for entry in read["entries"]] == ["choose", "ask"]
    first = read["entries"][1]["answers"][0]
    assert first["text"] == "".join(TEXTS)
    assert first["tokens"][0]["alternatives"][0]["kept_log_prob"] is None  # it was cut off: no number
