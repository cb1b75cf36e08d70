"""Clusters of the answers that were sampled to one question: which of them mean the same.

A cluster has a number, by the first appearance of its answers: 0, 1, 2, ... Empty answers are a cluster
like any other.
"""

import re
from collections.abc import Callable, Sequence, Set

from toolkit.questions.normalise import normalise_answer

Entails = Callable[[str, Sequence[tuple[str, str]]], list[bool]]
"""Says of each pair of answers to a question, given as text, whether the first one implies the second."""

_SENTENCE_END = re.compile(r"(?<=\w{3}[.!?])\s+(?=[A-Z])|(?<=[。！？])")
_CARRIES_NO_ANSWER = frozenset({
    "and", "are", "as", "at", "be", "been", "by", "for", "from", "in", "is", "it", "its", "of", "on",
    "that", "these", "this", "to", "was", "were", "which", "with",
})  # fmt: skip
"""Words that an answer in a sentence has and one of a few words lacks; articles go with the normalisation."""


def by_text(answers: Sequence[str]) -> list[int]:
    """Returns the cluster of each answer, where the same words are the same meaning.

    Args:
        answers: n answers; compared by `toolkit.questions.normalise.normalise_answer`.
    """
    return _numbered([normalise_answer(answer) for answer in answers])


def by_content(question: str, answers: Sequence[str]) -> list[int]:
    """Returns the cluster of each answer, where what it adds to the question is its meaning.

    "The capital of Bhutan is Thimphu.", "Thimphu is the capital." and "Thimphu" add the same word. Compared
    are the words of an answer's first sentence, in their order, without those of the question and without
    words such as "is" and "of"; of an answer that adds none, all of its words.

    Args:
        question: The question's text.
        answers: n answers.
    """
    known = _CARRIES_NO_ANSWER.union(normalise_answer(question).split())
    return _numbered([_added(answer, known) for answer in answers])


def _added(answer: str, known: Set[str]) -> str:
    """Returns the words of an answer's first sentence that are not known, or all of its words."""
    words = normalise_answer(_SENTENCE_END.split(answer.strip(), maxsplit=1)[0]).split()
    return " ".join([word for word in words if word not in known] or words)


def by_meaning(question: str, answers: Sequence[str], entails: Entails) -> list[int]:
    """Returns the cluster of each answer, where those that imply each other mean the same (arXiv 2302.09664).

    Each answer is compared with the first member of each cluster, in order, and joins the first one that it
    implies and is implied by, or else begins a new one. What is asked is just that, in other batches: all
    answers without a cluster are compared with the first of them, once in each direction, those that stay
    without one with the first of those, and so on. The other direction is asked only where one holds. Answers
    with the same words are one answer, and empty answers are never asked about.

    Args:
        question: The question's text.
        answers: n answers.
        entails: Called with up to n pairs at a time.
    """
    texts = [normalise_answer(answer) for answer in answers]
    as_given = {text: answer.strip() for text, answer in zip(reversed(texts), reversed(answers), strict=True)}
    leader = {"": ""}
    left = [text for text in dict.fromkeys(texts) if text]
    while left:
        first, *others = left
        leader[first] = first
        implied = _those(entails, question, [(as_given[other], as_given[first]) for other in others], others)
        same = _those(entails, question, [(as_given[first], as_given[other]) for other in implied], implied)
        leader |= dict.fromkeys(same, first)
        left = [other for other in others if other not in leader]
    return _numbered([leader[text] for text in texts])


def _those(
    entails: Entails, question: str, pairs: Sequence[tuple[str, str]], texts: Sequence[str]
) -> list[str]:
    """Returns the texts whose pair is an entailment."""
    if not pairs:
        return []
    return [text for text, holds in zip(texts, entails(question, pairs), strict=True) if holds]


def _numbered(labels: Sequence[str]) -> list[int]:
    """Returns the number of each label, by first appearance."""
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return [numbers[label] for label in labels]
