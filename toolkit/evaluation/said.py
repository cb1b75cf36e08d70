"""What a model should have said of its own answers: data that teaches stated confidence.

An evaluation's `answers.parquet` has answers, whether they are right, and confidences that the model did not
put into words. How often answers at such a confidence are right is what it should have said. Each answer
becomes an open-ended question: a dialogue that ends in asking how probable it is, with that frequency
as the accepted answer. Trained on these a model learns to say when it does not know. The question itself with
the model's own answer can stand beside, so that its answers stay as they are. The evaluation should be of
questions that the model was not trained on: to others it is right too often.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit.confidence.semantic import modal
from toolkit.errors import CalibrantError
from toolkit.evaluation.files import replacing
from toolkit.evaluation.metrics import Bools, Floats
from toolkit.questions.elicitation import ELICITATIONS
from toolkit.questions.jsonl import content_id
from toolkit.questions.prompts import dialogue, dialogue_text
from toolkit.questions.question import OpenEnded

SEMANTIC = ("sem1", "sem2", "semantic_entropy")
"""Kinds of confidence that are about the most frequent of the sampled answers, not about the greedy one."""

STEP = 0.05
"""Steps in which a model is taught to say probabilities."""


@dataclass(frozen=True)
class Said:
    """Rows of a JSONL file of open-ended questions, and what they were made of.

    Attributes:
        rows: One for each answer that can stand in a dialogue.
        skipped: Answers that cannot: empty ones, those with a label of another turn in them, and those
            without a confidence.
        probabilities: How many rows teach to say each probability.
    """

    rows: list[dict[str, Any]]
    skipped: int
    probabilities: dict[float, int]


def frequencies(confidence: Floats, correct: Bools, bins: int = 10) -> Floats:
    """Returns how often answers at each one's confidence are right, in steps of `STEP`.

    Bins are of equal mass as far as ties allow: equal confidences are never told apart.

    Args:
        confidence: Shape (N,), none missing.
        correct: Shape (N,).
        bins: Number of bins, at most; fewer where ties leave fewer.

    Returns:
        The share of right answers in each one's bin, shape (N,).

    Raises:
        CalibrantError: There are fewer answers than bins.
    """
    if len(confidence) < bins:
        raise CalibrantError(
            f"{len(confidence)} answers are too few for {bins} bins; evaluate more, or take fewer bins"
        )
    edges = np.quantile(confidence, np.arange(1, bins) / bins, method="inverted_cdf")
    _, place = np.unique(np.searchsorted(edges, confidence, side="left"), return_inverse=True)
    share = np.bincount(place, correct) / np.bincount(place)
    return np.asarray(np.round(share / STEP)[place] * STEP)


def said_rows(answers: pd.DataFrame, confidence: str, bins: int = 10, *, keep: bool = False) -> Said:
    """Makes questions of answers; see the top of this file.

    Args:
        answers: What `toolkit.evaluation.open_report.answers_frame` gives, of one or several sets.
        confidence: The column of the confidence.
        bins: As in `frequencies`.
        keep: Whether each question comes with its answer too.

    Raises:
        CalibrantError: There is no such confidence, or there are too few answers.
    """
    kinds = [name.removesuffix("_correct") for name in answers.columns if name.endswith("_correct")]
    if confidence not in kinds:
        raise CalibrantError(
            f"no confidence {confidence!r} in these answers; choose one of {', '.join(kinds)}"
        )
    if confidence in SEMANTIC:
        places = modal(np.array(answers["clusters"].tolist()))
        given = [own[place] for own, place in zip(answers["samples"], places, strict=True)]
    else:
        given = answers["answer"].tolist()
    asked = [_dialogue(text, answer) for text, answer in zip(answers["question"], given, strict=True)]
    fit = np.array([text is not None for text in asked], dtype=bool) & answers[confidence].notna().to_numpy()
    target = frequencies(
        answers[confidence].to_numpy(dtype=np.float64)[fit],
        answers[f"{confidence}_correct"].to_numpy(dtype=bool)[fit],
        bins,
    )
    texts = [text for text, one in zip(asked, fit, strict=True) if one and text is not None]
    pairs = [(text, f"Probability: {value:.2f}") for text, value in zip(texts, target, strict=True)]
    if keep:
        pairs += zip(compress(answers["question"], fit), compress(given, fit), strict=True)
    rows = {
        (identity := content_id(text, [reply])): {"id": identity, "question": text, "answers": [reply]}
        for text, reply in pairs
    }
    values, counts = np.unique(np.round(target, 2), return_counts=True)
    told = dict(zip(values.tolist(), counts.tolist(), strict=True))
    return Said(list(rows.values()), int((~fit).sum()), told)


def _dialogue(text: str, answer: str) -> str | None:
    """Returns the question how probable an answer is as a dialogue, or None where it would be another one."""
    ask_again = ELICITATIONS["two_stage"].ask_again
    assert ask_again is not None
    turns = ask_again(OpenEnded("asked", text, ("unknown",)), answer)
    whole = dialogue_text(turns)
    stripped = [{**turn, "content": turn["content"].strip()} for turn in turns]
    return whole if dialogue(whole) == stripped else None


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes rows as a JSONL file, whole or not at all.

    Raises:
        CalibrantError: It cannot be written.
    """
    with replacing(path) as partial:
        partial.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
