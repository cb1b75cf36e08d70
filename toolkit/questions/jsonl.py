"""Questions from a local file with one JSON object a line."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolkit.errors import CalibrantError
from toolkit.questions.question import MultipleChoice, OpenEnded, Preference, Question

KINDS: dict[type[Question], str] = {
    MultipleChoice: "multiple choice",
    OpenEnded: "open-ended questions",
    Preference: "preference pairs",
}
"""What a message calls each kind of question."""


def read_jsonl(path: Path) -> Iterator[Question]:
    """Read questions line by line.

    A line is `{"question", "choices", "answer": int}`, `{"question", "answers": [str]}` or
    `{"prompt", "chosen", "rejected"}`, each with an optional `id` and `subject`. All lines of a file
    are of one kind. Blank lines and a byte order mark are skipped, further keys are ignored. A line
    without an id gets one from its content.

    Args:
        path: The file, in UTF-8.

    Yields:
        The questions, in file order.

    Raises:
        CalibrantError: At the first line that is not a question, naming file, line, fault and mend.
    """
    if path.is_dir():
        raise CalibrantError(f"{path} is a folder; name a JSONL file in it")
    if not path.exists():
        raise CalibrantError(f"no such file: {path}; check the path")
    lines: dict[str, int] = {}
    kind: type[Question] | None = None
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if number == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                if not raw.strip():
                    continue
                try:
                    question = _parse(raw)
                    if kind is not None and kind is not type(question):
                        raise CalibrantError(
                            f"{KINDS[kind]} and {KINDS[type(question)]} in one file; keep one kind a file"
                        )
                    if question.id in lines:
                        raise CalibrantError(
                            f"a repeat of line {lines[question.id]} (id {question.id!r}); "
                            "remove one of the two, or give each its own id"
                        )
                except CalibrantError as error:
                    raise CalibrantError(f"{path}:{number}: {error}") from None
                lines[question.id] = number
                kind = type(question)
                yield question
    except OSError as error:
        raise CalibrantError(f"cannot read {path}: {error.strerror}; check the file") from error
    if not lines:
        raise CalibrantError(f"{path} holds no questions; write one JSON object a line")


def content_id(text: str, options: list[str]) -> str:
    """An id that depends on the content alone.

    Args:
        text: The question.
        options: Its options, its accepted answers, or its chosen and its rejected answer.

    Returns:
        16 hexadecimal digits.
    """
    return hashlib.sha256(json.dumps([text, options]).encode("ascii")).hexdigest()[:16]


def _parse(raw: bytes) -> Question:
    try:
        row = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise CalibrantError("not UTF-8; save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        fault = str(error).split(":")[0]
        raise CalibrantError(f"not JSON ({fault}); write one JSON object a line") from error
    if b"\\ud" in raw.lower() and not _is_whole(row):
        raise CalibrantError("half of a surrogate pair; write whole characters")
    if not isinstance(row, dict):
        raise CalibrantError('not a JSON object; write {"question": …} on each line')
    pair = not {"choices", "answers"} & row.keys() and {"prompt", "chosen", "rejected"} & row.keys()
    text = _string(row, "prompt" if pair else "question")
    subject = row.get("subject") or ""  # null stands for none
    if not isinstance(subject, str):
        raise CalibrantError('"subject" is not a string; write it as one')
    if pair:
        chosen, rejected = _string(row, "chosen"), _string(row, "rejected")
        return Preference(_identity(row, text, [chosen, rejected]), text, chosen, rejected, subject)
    if "choices" in row and "answers" in row:
        raise CalibrantError('both "choices" and "answers"; keep one of them')
    if "choices" in row:
        choices = _strings(row, "choices")
        if "answer" not in row:
            raise CalibrantError('no "answer"; give the place of the right option, from 0')
        identity = _identity(row, text, choices)
        return MultipleChoice(identity, text, tuple(choices), row["answer"], subject)
    if "answers" in row:
        answers = _strings(row, "answers")
        return OpenEnded(_identity(row, text, answers), text, tuple(answers), subject)
    raise CalibrantError('neither "choices" nor "answers"; give one of them as a list of strings')


def _is_whole(row: Any) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _string(row: dict[str, Any], key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        raise CalibrantError(f'no "{key}"; give it as a string')
    return value


def _strings(row: dict[str, Any], key: str) -> list[str]:
    values = row[key]
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise CalibrantError(f'"{key}" is not a list of strings; write it as one')
    return values


def _identity(row: dict[str, Any], text: str, options: list[str]) -> str:
    identity = row.get("id")
    if identity is None:
        return content_id(text, options)
    if type(identity) is int:
        return str(identity)
    if not isinstance(identity, str) or not identity:
        raise CalibrantError('"id" is not a string; write it as one or leave it out')
    return identity
