"""From a question to the text that a model reads, and the texts whose probability is its answer."""

from string import ascii_uppercase
from typing import Literal

from toolkit.errors import CalibrantError
from toolkit.questions.question import MultipleChoice

Form = Literal["cloze", "letter"]
"""`cloze` scores the text of each option, `letter` the letter of each listed option."""

Style = Literal["plain", "chat"]
"""`plain` is "Question: ...\\nAnswer:", `chat` the question as a user's turn in the chat template."""

LETTERS = ascii_uppercase


def question_text(question: MultipleChoice, form: Form) -> str:
    """Returns what the model is asked: the question, and for `letter` its lettered options.

    Raises:
        CalibrantError: the question has more options than there are letters.
    """
    if form == "cloze":
        return question.text
    if len(question.choices) > len(LETTERS):
        raise CalibrantError(
            f"question {question.id!r} has {len(question.choices)} options, and there are only "
            f"{len(LETTERS)} letters; use the form cloze"
        )
    options = (f"{letter}. {text}" for letter, text in zip(LETTERS, question.choices, strict=False))
    return "\n".join([question.text, *options])


def plain_prompt(question: MultipleChoice, form: Form) -> str:
    """Returns the question as plain text that ends where the answer begins."""
    return f"Question: {question_text(question, form)}\nAnswer:"


def answer_texts(question: MultipleChoice, form: Form) -> tuple[str, ...]:
    """Returns the text that stands for each option, in the order of the options."""
    return question.choices if form == "cloze" else tuple(LETTERS[: len(question.choices)])
