"""A question and its answer as the page knows them: tokens with their confidence, and what else was found."""

from dataclasses import dataclass, replace
from typing import Literal

from toolkit.confidence.tokens import TokenConfidence
from toolkit.errors import CalibrantError
from toolkit.questions.prompts import Style

LONGEST_QUESTION, LONGEST_OPTION = 2000, 300
"""Most characters of a question and of an option."""

MOST_TOKENS, MOST_SAMPLES, MOST_OPTIONS = 256, 20, 10
"""Most tokens of an answer, samples of an answer, and options of a question."""

Kind = Literal["token", "stated", "p_true", "agreement"]
"""The four kinds of confidence in an answer."""

KINDS: dict[Kind, str] = {
    "token": "Token confidence",
    "stated": "Stated confidence",
    "p_true": "P(True)",
    "agreement": "Agreement of samples",
}
"""What the page calls them, in its order."""


MEASURES = {
    "length_normalised": "geometric mean over its tokens",
    "product": "product over its tokens",
    "minimum": "its least probable token",
    "first_token": "its first token",
    "mean_entropy": "from the mean entropy of its tokens",
}
"""What makes token confidence of an answer's tokens: a name in `toolkit.confidence.tokens.SEQUENCE`, as the
page says it."""


@dataclass(frozen=True)
class Figure:
    """One kind of confidence in an answer.

    Attributes:
        kind: Which.
        value: A probability; None where there is none, such as words without a number.
        note: How it came about, in a phrase.
    """

    kind: Kind
    value: float | None
    note: str = ""


@dataclass(frozen=True)
class Answer:
    """What one model answered.

    Attributes:
        model: The model's name on the page.
        tokens: Its answer, token by token.
        ended: Whether the model ended it; otherwise the limit did, or the reader.
        figures: The confidence found in it so far.
        samples: Other answers drawn from the same model.
    """

    model: str
    tokens: tuple[TokenConfidence, ...] = ()
    ended: bool = False
    figures: tuple[Figure, ...] = ()
    samples: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The answer's text."""
        return "".join(token.text for token in self.tokens)

    def figure(self, kind: Kind) -> Figure | None:
        """Returns one kind of confidence, or None where it was not asked for."""
        return next((one for one in self.figures if one.kind == kind), None)

    def with_figure(self, figure: Figure) -> "Answer":
        """Returns the answer with one more kind of confidence, in place of what it had of that kind."""
        others = tuple(one for one in self.figures if one.kind != figure.kind)
        return replace(self, figures=(*others, figure))


@dataclass(frozen=True)
class Form:
    """A question and how it is asked: what stands in the fields of the page.

    Attributes:
        question: The question.
        left: Model on the left.
        right: Model on the right.
        style: How the question is put.
        temperature: Divides the logits that tokens are drawn from; at 0 the most probable token is taken.
        top_p: Probability that the nucleus holds at least.
        max_tokens: Most tokens of an answer.
        seed: Seed of what is drawn.
        measure: How tokens' probabilities make one of the answer.
        kinds: Kinds of confidence that are asked for, beside that of the tokens.
        elicitation: How the model is asked to state its confidence.
        samples: Number of answers whose agreement is measured.
        data: Test set that says what a confidence has been worth.

    Raises:
        CalibrantError: There is no question, or a limit is passed.
    """

    question: str
    left: str
    right: str
    style: Style = "chat"
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 48
    seed: int = 0
    measure: str = "length_normalised"
    kinds: tuple[Kind, ...] = ()
    elicitation: str = "two_stage"
    samples: int = 10
    data: str = ""

    def __post_init__(self) -> None:
        """Refuse what the page does not answer."""
        if not self.question.strip():
            raise CalibrantError("no question; write one first")
        if len(self.question) > LONGEST_QUESTION:
            raise CalibrantError(
                f"the question has {len(self.question)} characters and at most {LONGEST_QUESTION} are taken; "
                "shorten it"
            )
        limits = {
            "temperature": (self.temperature, 0, 2),
            "top_p": (self.top_p, 0.05, 1),
            "max_tokens": (self.max_tokens, 1, MOST_TOKENS),
            "samples": (self.samples, 2, MOST_SAMPLES),
        }
        for name, (value, low, high) in limits.items():
            if not low <= value <= high:
                raise CalibrantError(f"{name} is {value}; choose a value from {low} to {high}")

    @property
    def names(self) -> tuple[str, str]:
        """The models on the left and on the right."""
        return self.left, self.right
