"""Two disjoint sets of training questions: one to learn from, one to be held out."""

import random
from collections.abc import Sequence

from toolkit.errors import CalibrantError
from toolkit.questions.question import Question


def hold_out(questions: Sequence[Question], share: float, seed: int) -> tuple[list[Question], list[Question]]:
    """Splits questions so that no example is on both sides.

    Questions that name the same entities stay together, and so do those of one text where none is named. An
    open-ended question names one entity, which is then on one side alone. A multiple-choice question names
    those of its options too: one entity may be named in other company on the other side. All preferences
    among the answers to one prompt stay together.

    Args:
        questions: The questions.
        share: Share of the groups that stay together to hold out, in (0, 1).
        seed: Seeds the choice.

    Returns:
        The questions that are kept and those held out, each in the order given.

    Raises:
        CalibrantError: The share is not within its bounds, or one side would be empty.
    """
    if not 0 < share < 1:
        raise CalibrantError(f"cannot hold out a share of {share}; give --data.heldout_share between 0 and 1")
    keys = sorted({_key(question) for question in questions})
    chosen = set(random.Random(seed).sample(keys, round(share * len(keys))))
    kept = [question for question in questions if _key(question) not in chosen]
    held = [question for question in questions if _key(question) in chosen]
    if not kept or not held:
        raise CalibrantError(
            f"holding out a share of {share} of {len(questions)} questions leaves one side empty; give more "
            "questions, or a --data.heldout_share nearer to one half"
        )
    return kept, held


def check_disjoint(one: Sequence[Question], other: Sequence[Question], names: str) -> None:
    """Refuses two sets that share a question.

    Case, white space and the order of options make no other question, nor do other answers to the prompt of a
    preference.

    Raises:
        CalibrantError: They do; the message names one such question.
    """
    known = {_content(question) for question in one}
    shared = {content: question.text for question in other if (content := _content(question)) in known}
    if shared:
        raise CalibrantError(
            f"{names} share {len(shared)} questions, such as {min(shared.values())!r}; give sources that do "
            "not overlap, such as files with {split} in their names"
        )


def _key(question: Question) -> tuple[str, ...]:
    """Returns what questions that stay together have in common."""
    return question.entities or (question.text,)


def _content(question: Question) -> tuple[str, ...]:
    return _plain(question.text), *sorted(map(_plain, getattr(question, "choices", ())))


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
