"""A fact: one question with its answer, before distractors and split."""

import unicodedata
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that is known about an entity.

    Args:
        kind: What is asked, such as "capital"; facts of a kind are each other's distractors.
        key: Name of the fact, unique within its kind.
        text: The question.
        answer: The right answer, as it stands among the options.
        entity: Key of what the fact is about, such as "country:KE": decides the split.
        names: Names that tell the entity in `text` or in the answers; none crosses a split.
        region: Facts of one region are preferred as each other's distractors.
        aliases: Further answers that are accepted in free text.
        rivals: Answers of other facts that would be right here too; never a distractor.
        open: Whether the question has one answer without options.
    """

    kind: str
    key: str
    text: str
    answer: str
    entity: str
    names: tuple[str, ...]
    region: str = ""
    aliases: tuple[str, ...] = ()
    rivals: frozenset[str] = frozenset()
    open: bool = True


def words(text: str) -> tuple[str, ...]:
    """Split a text into words without case, accents and punctuation.

    Args:
        text: Any text.

    Returns:
        Its words, such as ("cote", "d", "ivoire").
    """
    folded = unicodedata.normalize("NFKD", text.casefold())
    letters = (c for c in folded if not unicodedata.combining(c))
    return tuple("".join(c if c.isalnum() else " " for c in letters).split())
