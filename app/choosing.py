"""Multiple choice as the evaluation does it: the probability that a model gives to each option."""

from typing import get_args

import numpy as np

from app.answers import LONGEST_OPTION, LONGEST_QUESTION, MOST_OPTIONS
from app.models import Models
from app.reports import Bin
from app.views.options import Choice
from toolkit.confidence.options import option_confidence
from toolkit.errors import CalibrantError
from toolkit.models.encoding import encode_question
from toolkit.models.layout import layout_for
from toolkit.models.predictive import Score
from toolkit.questions.prompts import Form, Style
from toolkit.questions.question import MultipleChoice


def read_question(text: str, options: str, answer: int | None) -> MultipleChoice:
    """Returns the question that stands in the fields of the page.

    Args:
        text: The question.
        options: One option a line; empty lines are left out.
        answer: Index of the right option, where it is known.

    Raises:
        CalibrantError: They make no question, or pass a limit.
    """
    lines = tuple(line.strip() for line in options.splitlines() if line.strip())
    if len(lines) > MOST_OPTIONS:
        raise CalibrantError(f"{len(lines)} options; give at most {MOST_OPTIONS}")
    if len(text) > LONGEST_QUESTION or any(len(line) > LONGEST_OPTION for line in lines):
        raise CalibrantError(
            f"at most {LONGEST_QUESTION} characters of a question and {LONGEST_OPTION} of an option are "
            "taken; shorten them"
        )
    right = answer if answer is not None and 0 <= answer < len(lines) else 0
    return MultipleChoice("the question", text.strip(), lines, right)


def choose(
    models: Models,
    name: str,
    question: MultipleChoice,
    *,
    form: Form,
    style: Style,
    score: Score,
    bins: tuple[Bin, ...] = (),
) -> Choice:
    """Lets a model choose among options, with the numbers that `recipes/evaluate.py` finds.

    Args:
        models: The models.
        name: The model that chooses.
        question: The question.
        form: Whether the options' texts or their letters are scored.
        style: Plain text, or the chat template.
        score: How an option's tokens make its score.
        bins: The model's reliability diagram.

    Raises:
        CalibrantError: The question cannot be encoded, or a choice is none that the page offers.
    """
    for value, known in ((form, get_args(Form)), (style, get_args(Style)), (score, get_args(Score))):
        if value not in known:
            raise CalibrantError(f"{value!r} is not offered; choose one of {', '.join(known)}")
    encoded = [
        encode_question(question, models.tokenizer, form=form, style=style, max_length=models.max_length)
    ]
    with models.using(name) as active:
        found = option_confidence(
            active.model,
            encoded,
            adjustment=active.option_adjustment,
            score=score,
            layout=layout_for(active.model, encoded, models.layout),
            pad_id=models.tokenizer.pad_token_id or 0,
        )
    probabilities = np.exp(found.log_probs[0, : len(question.choices)])
    return Choice(name, tuple(probabilities.tolist()), float(found.mass[0]), bins)
