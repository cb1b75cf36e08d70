"""From a question to the text that a model reads, and the texts whose probability is its answer."""

import re
from collections.abc import Sequence
from string import ascii_uppercase
from typing import Literal

from toolkit.errors import CalibrantError
from toolkit.questions.question import MultipleChoice, OpenEnded, Preference, Question

Form = Literal["cloze", "letter"]
"""`cloze` scores the text of each option, `letter` its letter in a list; other questions have texts only."""

Style = Literal["plain", "chat"]
"""`plain` is "Question: ...\\nAnswer:", `chat` the question as a user's turn in the chat template."""

LETTERS = ascii_uppercase

ROLES = {"System": "system", "Human": "user", "Assistant": "assistant"}
"""Labels of a dialogue's turns, and the roles that chat templates know them by."""

LABEL = re.compile(rf"(?:\A|\n\n)({'|'.join(ROLES)}):")

Turn = dict[str, str]
"""One turn of a conversation, as chat templates take it: `role` and `content`."""


def question_text(question: Question, form: Form) -> str:
    """Returns what the model is asked: the question, and for `letter` its lettered options.

    Only multiple choice has options to show; other questions read the same in each form.

    Raises:
        CalibrantError: the question has more options than there are letters.
    """
    if form == "cloze" or not isinstance(question, MultipleChoice):
        return question.text
    if len(question.choices) > len(LETTERS):
        raise CalibrantError(
            f"question {question.id!r} has {len(question.choices)} options, and there are only "
            f"{len(LETTERS)} letters; use the form cloze"
        )
    options = (f"{letter}. {text}" for letter, text in zip(LETTERS, question.choices, strict=False))
    return "\n".join([question.text, *options])


def dialogue(text: str) -> list[Turn] | None:
    """Returns the turns of a prompt that is a dialogue, as in many sets of preferences, or None for another.

    A dialogue is "Human: ...", "Assistant: ...", and so on by turns, with an empty line before each label,
    and ends in "Assistant:", whose turn it is. "System: ..." may stand before the first. `dialogue_text` is
    the way back.
    """
    before, *parts = LABEL.split(text.strip())
    labels, said = parts[::2], [part.strip() for part in parts[1::2]]
    spoken = labels[labels[:1] == ["System"] :]
    by_turns = spoken and spoken == ["Human", "Assistant"] * (len(spoken) // 2)
    if before or not by_turns or said[-1] or not all(said[:-1]):
        return None
    return [
        {"role": ROLES[label], "content": content}
        for label, content in zip(labels[:-1], said[:-1], strict=True)
    ]


def dialogue_text(turns: Sequence[Turn]) -> str:
    """Returns turns as a dialogue whose next turn is the assistant's; see `dialogue`."""
    labels = {role: label for label, role in ROLES.items()}
    said = [f"{labels[turn['role']]}: {turn['content']}" for turn in turns]
    return "\n\n".join([*said, "Assistant:"])


def chat_turns(question: Question, form: Form) -> list[Turn]:
    """Returns the turns before the assistant's: the user's question, or the dialogue that a prompt is."""
    text = question_text(question, form)
    asked = [{"role": "user", "content": text}]
    return asked if isinstance(question, MultipleChoice) else dialogue(text) or asked


def plain_prompt(question: Question, form: Form) -> str:
    """Returns the question as plain text that ends where the answer begins; a dialogue stays as it is."""
    text = question_text(question, form)
    if not isinstance(question, MultipleChoice) and dialogue(text):
        return text.rstrip()
    return f"Question: {text}\nAnswer:"


def answer_texts(question: Question, form: Form) -> tuple[str, ...]:
    """Returns the text that stands for each option, in order.

    Those of a preference are the chosen and the rejected answer, that of an open-ended question is its
    preferred answer.
    """
    if isinstance(question, Preference):
        return question.chosen, question.rejected
    if isinstance(question, OpenEnded):
        return question.answers[:1]
    return question.choices if form == "cloze" else tuple(LETTERS[: len(question.choices)])
