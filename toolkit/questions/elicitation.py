"""Prompts that ask for an answer and for how sure the model is of it, in words.

They follow "Just Ask for Calibration" (arXiv 2305.14975): answer and probability in one reply, several
guesses with a probability each, the answer first and its probability in a second turn, the same with
reasoning before the answer, and a phrase from a list in place of the number. The wording is our own.
`toolkit.confidence.stated` reads the replies.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from toolkit.errors import CalibrantError
from toolkit.questions.prompts import Turn
from toolkit.questions.question import OpenEnded

Reply = Literal["answer_probability", "guesses", "answer", "reasoned_answer", "probability", "answer_phrase"]
"""What a reply holds: an answer and its probability, numbered guesses with a probability each, an answer
alone, an answer after reasoning, a probability alone, or an answer and a phrase."""

PHRASES = (
    "almost certain",
    "highly likely",
    "very good chance",
    "we believe",
    "probably",
    "probable",
    "likely",
    "better than even",
    "about even",
    "probably not",
    "we doubt",
    "unlikely",
    "little chance",
    "chances are slight",
    "improbable",
    "highly unlikely",
    "almost no chance",
)
"""The phrases that a model may choose from, the surest first: those of arXiv 2305.14975."""

SHORT = "in as few words as possible"


@dataclass(frozen=True)
class Elicitation:
    """How a model is asked for an answer and its confidence, in one stage or two.

    Attributes:
        ask: The turns of the first stage.
        reply: What the reply to them holds.
        ask_again: The turns of the second stage, from the question and the whole first reply, which stands in
            them as the assistant's turn; None where there is but one stage.
        second_reply: What the reply to those holds; None where there is but one stage.
    """

    ask: Callable[[OpenEnded], list[Turn]]
    reply: Reply
    ask_again: Callable[[OpenEnded, str], list[Turn]] | None = None
    second_reply: Reply | None = None

    @property
    def stages(self) -> int:
        """Number of replies that the model gives, 1 or 2."""
        return 1 if self.ask_again is None else 2


def _user(question: OpenEnded, request: str) -> list[Turn]:
    return [{"role": "user", "content": f"{question.text}\n\n{request}"}]


def _probability_of(question: OpenEnded, reply: str) -> list[Turn]:
    request = (
        "How probable is it that your answer is right? Reply with a number from 0.0 to 1.0 and nothing "
        "else:\nProbability: <number>"
    )
    return [
        {"role": "user", "content": question.text},
        {"role": "assistant", "content": reply.strip()},
        {"role": "user", "content": request},
    ]


def one_stage() -> Elicitation:
    """Returns the elicitation that asks for answer and probability in one reply."""
    request = (
        f"Answer {SHORT}, and give the probability that your answer is right, from 0.0 to 1.0. "
        "Reply with these two lines and nothing else:\nAnswer: <answer>\nProbability: <number>"
    )
    return Elicitation(lambda question: _user(question, request), "answer_probability")


def top_k(k: int = 4) -> Elicitation:
    """Returns the elicitation that asks for k different guesses, each with its probability, in one reply.

    Raises:
        CalibrantError: k is below 1.
    """
    if k < 1:
        raise CalibrantError(f"{k} guesses asked for; ask for at least 1")
    lines = [f"G{i}: <guess {i}>\nP{i}: <probability of guess {i}>" for i in range(1, k + 1)]
    guesses = "your best guess and the" if k == 1 else f"your {k} best guesses, the best first, with the"
    request = (
        f"Give {guesses} probability that it is right, from 0.0 to 1.0. Write each guess {SHORT}. "
        "Reply with these lines and nothing else:\n" + "\n".join(lines)
    )
    return Elicitation(lambda question: _user(question, request), "guesses")


def two_stage() -> Elicitation:
    """Returns the elicitation that asks for the answer first and in a second turn for its probability."""
    request = f"Answer {SHORT}, with no explanation."
    return Elicitation(lambda question: _user(question, request), "answer", _probability_of, "probability")


def reasoning() -> Elicitation:
    """Returns the elicitation in two stages with reasoning before the answer."""
    request = (
        "Think about it step by step in one or two sentences. Then write your answer "
        f"{SHORT} in a last line of its own:\nAnswer: <answer>"
    )
    return Elicitation(
        lambda question: _user(question, request), "reasoned_answer", _probability_of, "probability"
    )


def linguistic(phrases: Sequence[str] = PHRASES) -> Elicitation:
    """Returns the elicitation that asks for an answer and one of some phrases in place of a number.

    Args:
        phrases: What the model may choose from, in the order in which it reads them.
    """
    request = (
        f"Answer {SHORT}, and say how likely it is that your answer is right by one of these phrases: "
        f"{', '.join(phrases)}. Reply with these two lines and nothing else:\n"
        "Answer: <answer>\nConfidence: <phrase>"
    )
    return Elicitation(lambda question: _user(question, request), "answer_phrase")


ELICITATIONS: dict[str, Elicitation] = {
    "one_stage": one_stage(),
    "top_k": top_k(),
    "two_stage": two_stage(),
    "reasoning": reasoning(),
    "linguistic": linguistic(),
}
"""The elicitations by name, with four guesses and all phrases."""


def plain_text(turns: Sequence[Turn]) -> str:
    """Returns turns as text for a model without a chat template, which ends where the reply begins.

    A user's turn is "Question: ..." and the assistant's "Answer: ...", with an empty line between exchanges.
    """
    labels = {"user": "\n\nQuestion", "assistant": "\nAnswer"}
    said = "".join(f"{labels[turn['role']]}: {turn['content']}" for turn in turns)
    return f"{said.lstrip()}\nAnswer:"
