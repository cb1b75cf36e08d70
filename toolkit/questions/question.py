"""Multiple-choice and open-ended questions, preference pairs, and sets of them with a content hash."""

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

from toolkit.errors import CalibrantError


@dataclass(frozen=True, slots=True)
class MultipleChoice:
    """A question with options, one of which is right.

    Args:
        id: Name of the question, unique within its set.
        text: The question as it is put to the model.
        choices: Two or more different options.
        answer: Index of the right option in `choices`.
        subject: What the question is about, such as "anatomy"; may be empty.
        entities: Keys of the things that the question names, such as "country:KE".

    Raises:
        CalibrantError: If the parts do not make a question.
    """

    id: str
    text: str
    choices: tuple[str, ...]
    answer: int
    subject: str = ""
    entities: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is not a question."""
        if not self.text.strip():
            raise CalibrantError("no question text; give `question` a text")
        if len(self.choices) < 2:
            raise CalibrantError(f"{len(self.choices)} option(s); give at least two")
        if not all(choice.strip() for choice in self.choices):
            raise CalibrantError("an empty option; give each option a text")
        if len(set(self.choices)) < len(self.choices):
            raise CalibrantError("the same option twice; keep one of each")
        if type(self.answer) is not int or not 0 <= self.answer < len(self.choices):
            raise CalibrantError(
                f"answer {self.answer!r} is not the place of an option; "
                f"give a whole number from 0 to {len(self.choices) - 1}"
            )


@dataclass(frozen=True, slots=True)
class OpenEnded:
    """A question that is answered in free text.

    Args:
        id: Name of the question, unique within its set.
        text: The question as it is put to the model; for one of several turns see
            `toolkit.questions.prompts.dialogue`.
        answers: Accepted answers, the preferred one first.
        subject: What the question is about; may be empty.
        entities: Keys of the things that the question names.

    Raises:
        CalibrantError: If the parts do not make a question.
    """

    id: str
    text: str
    answers: tuple[str, ...]
    subject: str = ""
    entities: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is not a question."""
        if not self.text.strip():
            raise CalibrantError("no question text; give `question` a text")
        if not self.answers:
            raise CalibrantError("no accepted answer; give at least one")
        if not all(answer.strip() for answer in self.answers):
            raise CalibrantError("an empty answer; give each answer a text")


@dataclass(frozen=True, slots=True)
class Preference:
    """A prompt with two answers, one of which people prefer.

    Args:
        id: Name of the pair, unique within its set.
        text: The prompt; for one of several turns see `toolkit.questions.prompts.dialogue`.
        chosen: The preferred answer.
        rejected: The other one.
        subject: What the prompt is about; may be empty.
        entities: Keys of the things that the prompt names.

    Raises:
        CalibrantError: If the parts do not make a preference.
    """

    id: str
    text: str
    chosen: str
    rejected: str
    subject: str = ""
    entities: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is not a preference."""
        if not self.text.strip():
            raise CalibrantError("no prompt text; give `prompt` a text")
        if not self.chosen.strip() or not self.rejected.strip():
            raise CalibrantError("an empty answer; give `chosen` and `rejected` a text")
        if self.chosen == self.rejected:
            raise CalibrantError("the same answer chosen and rejected; give two different ones")


Question = MultipleChoice | OpenEnded | Preference


@dataclass(frozen=True)
class QuestionSet:
    """Questions of one source and split, in a fixed order.

    Args:
        name: The source, such as "worldfacts/chemistry".
        split: "train", "validation" or "test".
        questions: The questions.
    """

    name: str
    split: str
    questions: tuple[Question, ...]

    def __len__(self) -> int:
        """Number of questions."""
        return len(self.questions)

    def __iter__(self) -> Iterator[Question]:
        """The questions, in order."""
        return iter(self.questions)

    @property
    def sha256(self) -> str:
        """Hash of all questions in their order, the same on every machine."""
        digest = hashlib.sha256()
        for question in self.questions:
            row = {name: getattr(question, name) for name in question.__slots__}
            line = json.dumps(row, ensure_ascii=True, sort_keys=True)
            digest.update(line.encode("ascii") + b"\n")
        return digest.hexdigest()

    def sample(self, n: int, seed: int) -> "QuestionSet":
        """Draw questions without replacement.

        Args:
            n: How many questions; all of them where the set has no more than that.
            seed: Seed of the draw.

        Returns:
            The drawn questions, in the order they have in this set.
        """
        if n >= len(self):
            return self
        places = sorted(random.Random(seed).sample(range(len(self)), n))
        return QuestionSet(self.name, self.split, tuple(self.questions[i] for i in places))
