"""A model's answers to sets of questions, measured and written down."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from accelerate import Accelerator
from torch import nn
from transformers import PreTrainedTokenizerBase

from toolkit.confidence.options import OptionConfidence, option_confidence
from toolkit.errors import CalibrantError
from toolkit.evaluation.metrics import top_answers
from toolkit.evaluation.open_ended import OpenAnswers
from toolkit.evaluation.open_report import answers_frame, open_panels
from toolkit.evaluation.plots import Panel, reliability_diagram
from toolkit.evaluation.report import (
    Report,
    build_result,
    predictions_frame,
    write_predictions,
    write_report,
)
from toolkit.models.adjustment import Adjustment
from toolkit.models.encoding import encode_questions
from toolkit.models.layout import layout_for
from toolkit.models.predictive import Layout, Score
from toolkit.models.prefix import FrozenPrefix
from toolkit.questions.prompts import Form, Style
from toolkit.questions.question import QuestionSet


@dataclass(frozen=True)
class Answered:
    """A set of questions with a model's confidence in each of their options."""

    data: QuestionSet
    confidence: OptionConfidence


def answer_sets(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    sets: Sequence[QuestionSet],
    *,
    form: Form,
    style: Style,
    score: Score,
    max_length: int,
    adjustment: Adjustment | None = None,
    layout: Layout = "tree",
    batch_size: int = 16,
    label: str | None = None,
    accelerator: Accelerator | None = None,
    prefix: FrozenPrefix | None = None,
) -> list[Answered]:
    """Lets a model answer multiple-choice questions.

    Args:
        model: A causal language model.
        tokenizer: Its tokenizer.
        sets: The questions.
        form: See `toolkit.questions.prompts`.
        style: See `toolkit.questions.prompts`.
        score: See `toolkit.models.predictive`.
        max_length: The model's context, in tokens.
        adjustment: α of an `adjusted` adapter.
        layout: See `toolkit.models.layout.choose_layout`.
        batch_size: Questions a forward pass.
        label: What the progress bars call the model; no bars without it.
        accelerator: The processes that share the questions; every one gets all answers.
        prefix: The model's frozen layers, which need not run again on texts that they know.

    Raises:
        CalibrantError: A question cannot be encoded; see `encode_question`.
    """
    encoded = [
        encode_questions(data, tokenizer, form=form, style=style, max_length=max_length) for data in sets
    ]
    return [
        Answered(
            data,
            option_confidence(
                model,
                questions,
                adjustment=adjustment,
                score=score,
                layout=layout_for(model, questions, layout),
                batch_size=batch_size,
                pad_id=tokenizer.pad_token_id or 0,
                description=label and f"{label} {data.name}",
                accelerator=accelerator,
                prefix=prefix,
            ),
        )
        for data, questions in zip(sets, encoded, strict=True)
    ]


def tested(answered: Sequence[Answered]) -> list[Answered]:
    """Returns the test sets among some answers, or all of them where there is none."""
    return [one for one in answered if one.data.split == "test"] or list(answered)


def measure(answered: Sequence[Answered], *, bins: int, resamples: int, seed: int) -> list[Report]:
    """Returns an entry of a report's `results` for each set; see `toolkit.evaluation.report`."""
    return [
        build_result(
            one.data,
            one.confidence.log_probs,
            one.confidence.answers,
            one.confidence.mass,
            bins=bins,
            resamples=resamples,
            seed=seed,
        )
        for one in answered
    ]


def all_predictions(answered: Sequence[Answered]) -> pd.DataFrame:
    """Returns one row a question, over one set or more; see `predictions_frame` for the columns."""
    return pd.concat(
        [
            predictions_frame(one.data, one.confidence.log_probs, one.confidence.answers, one.confidence.mass)
            for one in answered
        ],
        ignore_index=True,
    )


def write_evaluation(
    folder: Path,
    report: Report,
    answered: Sequence[Answered],
    panels: Sequence[Panel],
    open_ended: Sequence[OpenAnswers] = (),
    *,
    label: str,
    bins: int,
) -> None:
    """Writes what was found and, last, `report.json`.

    Of questions with options that is `predictions.parquet` and `reliability.png`, of open-ended ones
    `answers.parquet` and `confidence.png`.

    Args:
        folder: Takes the files.
        report: The report.
        answered: Answers to questions with options.
        panels: The reliability diagrams of the test sets among them.
        open_ended: Answers to open-ended questions.
        label: What diagrams of these call the model.
        bins: Equal-width bins of the diagrams.

    Raises:
        CalibrantError: A file cannot be written.
    """
    if answered:
        write_predictions(all_predictions(answered), folder / "predictions.parquet")
    if panels:
        reliability_diagram(panels, folder / "reliability.png", bins=bins)
    if open_ended:
        write_predictions(answers_frame(open_ended), folder / "answers.parquet")
        diagrams = [diagram for one in open_ended for diagram in open_panels(one, label)]
        reliability_diagram(diagrams, folder / "confidence.png", columns=4, bins=bins)
    write_report(report, folder / "report.json")


def read_answers(path: Path, sets: Sequence[QuestionSet]) -> list[Answered]:
    """Reads the answers to some sets of questions back from `predictions.parquet`.

    Raises:
        CalibrantError: The file cannot be read, or holds no answers to a set, or to other questions.
    """
    try:
        frame = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise CalibrantError(f"{path} cannot be read ({error}); remove its folder and run again") from error
    answered = []
    for data in sets:
        rows = frame[(frame["source"] == data.name) & (frame["split"] == data.split)]
        if list(rows["id"]) != [question.id for question in data]:
            raise CalibrantError(
                f"{path} holds no answers to these questions of {data.name} ({data.split}); "
                "remove its folder and run again"
            )
        width = max(map(len, rows["probabilities"]))
        log_probs = np.full((len(rows), width), -np.inf)
        for row, probabilities in zip(log_probs, rows["probabilities"], strict=True):
            row[: len(probabilities)] = np.log(np.maximum(probabilities, np.finfo(float).tiny))
        answers = rows["answer"].to_numpy(dtype=np.int64)
        confidence = OptionConfidence(log_probs, answers, rows["option_mass"].to_numpy())
        answered.append(Answered(data, confidence))
    return answered


def panel(answered: Answered, label: str) -> Panel:
    """Returns the reliability diagram of one set, titled with its name and the model's label."""
    chosen, confidence = top_answers(answered.confidence.log_probs)
    title = f"{answered.data.name} · {label}"
    return Panel(title, confidence, chosen == answered.confidence.answers)
