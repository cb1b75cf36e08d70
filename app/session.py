"""What was asked in one visit, and its export."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from app.answers import Answer, Form
from app.views.options import Choice
from toolkit.evaluation.report import strict

LIMIT = 100
"""Most entries that a visit keeps; the oldest are dropped."""


@dataclass(frozen=True)
class Branch:
    """Where an answer left the one before it.

    Attributes:
        side: 0 for the answer on the left, 1 for the one on the right.
        place: Place of the token that was replaced.
        text: Text of the token that replaced it.
    """

    side: int
    place: int
    text: str


@dataclass(frozen=True)
class Asked:
    """A question that was asked, with the answers on both sides.

    Attributes:
        form: The question and how it was asked.
        answers: Left and right.
        branch: Where the answers left those of the entry before, if they did.
    """

    form: Form
    answers: tuple[Answer, Answer]
    branch: Branch | None = None


@dataclass(frozen=True)
class Chosen:
    """A multiple-choice question, with what the models on both sides make of it.

    Attributes:
        question: Its text.
        options: Their texts.
        answer: Index of the right one, where it is known.
        prompt: Form, style and score.
        choices: Left and right.
    """

    question: str
    options: tuple[str, ...]
    answer: int | None
    prompt: dict[str, str]
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class Session:
    """Everything that was asked in one visit, oldest first."""

    entries: tuple[Asked | Chosen, ...] = ()

    def add(self, entry: Asked | Chosen) -> "Session":
        """Returns the session with one more entry."""
        return Session((*self.entries, entry)[-LIMIT:])

    def update(self, side: int, answer: Answer) -> "Session":
        """Returns the session with another answer on one side of the newest question."""
        place = self._newest()
        entry = self.entries[place]
        assert isinstance(entry, Asked)
        answers = (answer, entry.answers[1]) if side == 0 else (entry.answers[0], answer)
        changed = replace(entry, answers=answers)
        return Session((*self.entries[:place], changed, *self.entries[place + 1 :]))

    def judge(self, form: Form) -> "Session":
        """Returns the session with another form of the newest question, one that has the same answers."""
        place = self._newest()
        entry = self.entries[place]
        assert isinstance(entry, Asked)
        return Session((*self.entries[:place], replace(entry, form=form), *self.entries[place + 1 :]))

    @property
    def asked(self) -> Asked | None:
        """The newest question that was asked openly."""
        return next((entry for entry in reversed(self.entries) if isinstance(entry, Asked)), None)

    def export(self) -> dict[str, Any]:
        """Returns the session as JSON has it; probabilities are shares of 1, logarithms in nats."""
        entries = []
        for entry in self.entries:
            content = asdict(entry)
            if isinstance(entry, Asked):
                for answer, one in zip(content["answers"], entry.answers, strict=True):
                    answer["text"] = one.text
            else:
                for choice in content["choices"]:
                    del choice["bins"]
            entries.append({"kind": "ask" if isinstance(entry, Asked) else "choose", **content})
        found: dict[str, Any] = strict({"schema": "calibrant.session/1", "entries": entries})
        return found

    def _newest(self) -> int:
        return max(place for place, entry in enumerate(self.entries) if isinstance(entry, Asked))
