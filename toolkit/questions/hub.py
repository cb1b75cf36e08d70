"""The table of question sets on the Hugging Face Hub, and the loader they share."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from toolkit.errors import CalibrantError
from toolkit.questions.jsonl import content_id
from toolkit.questions.question import MultipleChoice, OpenEnded, Question

Row = dict[str, Any]


@dataclass(frozen=True)
class Share:
    """A part of a Hub split, for sets that lack a labelled split of their own.

    A row belongs to the share in which the hash of its question falls, so that shares are
    disjoint and a question that is asked twice is in one of them.

    Args:
        split: The split on the Hub.
        start: Lower end of the share, from 0 to 1.
        stop: Upper end, exclusive.
    """

    split: str
    start: float = 0.0
    stop: float = 1.0

    def __contains__(self, text: str) -> bool:
        """Whether a question belongs to this share."""
        digest = hashlib.sha256(text.encode("utf-8", "replace")).digest()
        return self.start <= int.from_bytes(digest[:4], "big") / 2**32 < self.stop


@dataclass(frozen=True)
class HubSource:
    """One question set on the Hub.

    Args:
        repository: Its id on the Hub.
        config: Its configuration; None for the only one.
        splits: Where "train", "validation" and "test" come from.
        columns: The columns that `convert` reads.
        convert: Makes a question of a row; None where the row has no answer.
        revision: Branch or commit; None for the main branch.
    """

    repository: str
    config: str | None
    splits: dict[str, Share]
    columns: tuple[str, ...]
    convert: Callable[[Row], Question | None]
    revision: str | None = None


def load_hub(name: str, split: str) -> Iterator[Question]:
    """Load a split of a question set in `HUB`.

    Rows without an answer, with an empty or repeated option, and repeated rows are left out.

    Args:
        name: Its name in the table, such as "mmlu".
        split: "train", "validation" or "test".

    Yields:
        The questions, in the order of the Hub.

    Raises:
        CalibrantError: If the Hub cannot be reached or the set has changed.
    """
    import datasets

    source = HUB[name]
    share = source.splits[split]
    try:
        rows = datasets.load_dataset(
            source.repository, source.config, split=share.split, revision=source.revision
        )
    except Exception as error:
        fault = (str(error).splitlines() or [type(error).__name__])[0].split(";")[0]
        raise CalibrantError(
            f"cannot load {source.repository} from the Hub ({fault}); "
            "check the network, or give the questions as a JSONL file"
        ) from error
    missing = [column for column in source.columns if column not in rows.column_names]
    if missing:
        raise CalibrantError(
            f"{source.repository} has no column {missing[0]!r}; "
            "its schema has changed: give the questions as a JSONL file"
        )
    seen: set[str] = set()
    for row in rows.select_columns(list(source.columns)):
        try:
            question = source.convert(row)
        except CalibrantError:
            continue
        if question is None or question.id in seen or question.text not in share:
            continue
        seen.add(question.id)
        yield question


def _choice(
    text: str, choices: list[str], answer: int, subject: str = "", identity: str = ""
) -> MultipleChoice | None:
    if answer < 0:  # the Hub's mark for a hidden answer
        return None
    identity = identity or content_id(text, choices)
    return MultipleChoice(identity, text, tuple(choices), answer, subject)


def _mmlu(row: Row) -> Question | None:
    return _choice(row["question"], row["choices"], row["answer"], row["subject"])


def _medmcqa(row: Row) -> Question | None:
    options = [row["opa"], row["opb"], row["opc"], row["opd"]]
    return _choice(row["question"], options, row["cop"], row["subject_name"] or "", row["id"])


def _labelled(row: Row, text: str) -> Question | None:
    """AI2's format: options with labels "A" to "E" or "1" to "5", and the label of the answer."""
    labels, key = row["choices"]["label"], row["answerKey"]
    if key not in labels:
        return None
    return _choice(text, row["choices"]["text"], labels.index(key), identity=row["id"])


def _openbookqa(row: Row) -> Question | None:
    return _labelled(row, row["question_stem"])


def _arc(row: Row) -> Question | None:
    return _labelled(row, row["question"])


def _hellaswag(row: Row) -> Question | None:
    label = row["label"]  # a string, empty where it is hidden
    if not label:
        return None
    return _choice(row["ctx"], row["endings"], int(label), row["activity_label"])


def _piqa(row: Row) -> Question | None:
    return _choice(row["goal"], [row["sol1"], row["sol2"]], row["label"])


def _triviaqa(row: Row) -> Question | None:
    answer = row["answer"]
    if answer["value"] == "<unk>":  # hidden
        return None
    accepted = tuple(dict.fromkeys([answer["value"], *answer["aliases"]]))
    return OpenEnded(row["question_id"], row["question"], accepted)


def _popqa(row: Row) -> Question | None:
    accepted = tuple(dict.fromkeys(json.loads(row["possible_answers"])))
    return OpenEnded(str(row["id"]), row["question"], accepted, row["prop"])


def _truthfulqa(row: Row) -> Question | None:
    """The Hub puts the right option first: here the hash of each option decides its place."""
    targets = row["mc1_targets"]
    right = targets["choices"][targets["labels"].index(1)]
    options = sorted(targets["choices"], key=lambda option: content_id(row["question"], [option]))
    return _choice(row["question"], options, options.index(right))


def _alpaca(row: Row) -> Question | None:
    text = f"{row['instruction']}\n\n{row['input']}" if row["input"] else row["instruction"]
    return OpenEnded(content_id(text, [row["output"]]), text, (row["output"],))


_OWN = {split: Share(split) for split in ("train", "validation", "test")}
_HIDDEN_TEST = {
    "train": Share("train", 0.1, 1.0),
    "validation": Share("train", 0.0, 0.1),
    "test": Share("validation"),
}


def _shares(split: str) -> dict[str, Share]:
    return {
        "train": Share(split, 0.4, 1.0),
        "validation": Share(split, 0.3, 0.4),
        "test": Share(split, 0.0, 0.3),
    }


HUB: dict[str, HubSource] = {
    "mmlu": HubSource(
        "cais/mmlu",
        "all",
        _OWN | {"train": Share("auxiliary_train")},
        ("question", "subject", "choices", "answer"),
        _mmlu,
    ),
    "medmcqa": HubSource(
        "openlifescienceai/medmcqa",
        None,
        _HIDDEN_TEST,
        ("id", "question", "opa", "opb", "opc", "opd", "cop", "subject_name"),
        _medmcqa,
    ),
    "openbookqa": HubSource(
        "allenai/openbookqa",
        "main",
        _OWN,
        ("id", "question_stem", "choices", "answerKey"),
        _openbookqa,
    ),
    "arc_easy": HubSource(
        "allenai/ai2_arc", "ARC-Easy", _OWN, ("id", "question", "choices", "answerKey"), _arc
    ),
    "arc_challenge": HubSource(
        "allenai/ai2_arc", "ARC-Challenge", _OWN, ("id", "question", "choices", "answerKey"), _arc
    ),
    "hellaswag": HubSource(
        "Rowan/hellaswag",
        None,
        _HIDDEN_TEST,
        ("activity_label", "ctx", "endings", "label"),
        _hellaswag,
    ),
    "piqa": HubSource(
        "ybisk/piqa",
        None,
        _HIDDEN_TEST,
        ("goal", "sol1", "sol2", "label"),
        _piqa,
        revision="refs/convert/parquet",  # the main branch is a script, which datasets refuses
    ),
    "triviaqa": HubSource(
        "mandarjoshi/trivia_qa",
        "rc.nocontext",
        _HIDDEN_TEST,
        ("question", "question_id", "answer"),
        _triviaqa,
    ),
    "popqa": HubSource(
        "akariasai/PopQA",
        None,
        _shares("test"),
        ("id", "prop", "question", "possible_answers"),
        _popqa,
    ),
    "truthfulqa": HubSource(
        "truthfulqa/truthful_qa",
        "multiple_choice",
        _shares("validation"),
        ("question", "mc1_targets"),
        _truthfulqa,
    ),
    "alpaca": HubSource(
        "tatsu-lab/alpaca", None, _shares("train"), ("instruction", "input", "output"), _alpaca
    ),
}
