"""Questions without content, whose options show what a model leans to by itself."""

from toolkit.questions.prompts import Form
from toolkit.questions.question import MultipleChoice, QuestionSet

WORDS = ("N/A", "[MASK]")
"""What stands in place of the content (arXiv 2102.09690)."""


class ContentFree(MultipleChoice):
    """A question that means nothing; its options may all be alike."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Takes options that a real question may not have."""


def content_free(data: QuestionSet, form: Form, word: str) -> QuestionSet:
    """Returns multiple-choice questions with a word in place of their content.

    Where the answer is a letter, the word takes the place of each listed option too: what is left is the
    model's leaning to letters. Where it is an option's text, the options stay: what is left is how likely
    they are in themselves.
    """
    emptied = tuple(
        ContentFree(
            question.id,
            word,
            question.choices if form == "cloze" else (word,) * len(question.choices),
            question.answer,
        )
        for question in data
        if isinstance(question, MultipleChoice)
    )
    return QuestionSet(data.name, data.split, emptied)
