"""What an evaluation asks of open-ended questions, from settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from build import Base
from open_settings import OpenEndedSettings
from settings import PromptSettings

from toolkit.confidence.clusters import by_content, by_meaning, by_text
from toolkit.confidence.entailment import by_language_model, by_nli, load_nli
from toolkit.confidence.phrases import fit_phrases
from toolkit.confidence.stated import stated
from toolkit.errors import CalibrantError
from toolkit.evaluation.grading import GRADERS, Grader
from toolkit.evaluation.judge import local_judge, server_judge
from toolkit.evaluation.open_ended import Asking, Cluster, Model, OpenAnswers, Sampler, answer_open
from toolkit.evaluation.open_report import read_answers_frame
from toolkit.models.adjustment import Adjustment
from toolkit.questions.elicitation import ELICITATIONS
from toolkit.questions.question import QuestionSet


def build_open_answers(
    base: Base,
    model: torch.nn.Module,
    sets: Sequence[QuestionSet],
    settings: OpenEndedSettings,
    prompt: PromptSettings,
    batch_size: int,
    seed: int,
    label: str | None,
    adjustment: Adjustment | None = None,
    sampler: Sampler | None = None,
) -> list[OpenAnswers]:
    """Lets a model (the base, or the base with an adapter) answer sets of open-ended questions."""
    device = next(model.parameters()).device
    view = None if adjustment is None else Adjustment(*(tensor.to(device) for tensor in adjustment))
    shared: dict[str, Any] = {"style": prompt.style, "max_length": base.max_length, "layout": base.layout}
    asked = Model(model, base.tokenizer, **shared, adjustment=view, accelerator=base.accelerator, label=label)
    judging = shared | {"batch_size": batch_size}
    asking = Asking(
        grade=build_grader(settings, judging, model, base.tokenizer),
        max_tokens=settings.max_tokens,
        samples=settings.samples,
        sampler=sampler,
        cluster=build_cluster(settings, judging, model, base.tokenizer),
        elicitations=settings.elicitations,
        phrases=build_phrases(settings, sets),
        p_true=settings.p_true,
        batch_size=batch_size,
        seed=seed,
    )
    return [answer_open(asked, data, asking) for data in sets]


def build_phrases(settings: OpenEndedSettings, sets: Sequence[QuestionSet]) -> dict[str, float] | None:
    """Returns the probability of each phrase by an earlier evaluation, or None where none is named.

    Raises:
        CalibrantError: It had no `linguistic`, or one of these questions was in it.
    """
    if settings.phrases_from is None or "linguistic" not in settings.elicitations:
        return None
    answers = read_answers_frame(Path(settings.phrases_from))
    if "reply_linguistic" not in answers:
        raise CalibrantError(
            f"{settings.phrases_from} has no phrases; evaluate it with --open_ended.elicitations [linguistic]"
        )
    if seen := {question.id for data in sets for question in data} & set(answers["id"]):
        raise CalibrantError(
            f"{len(seen)} of these questions are in {settings.phrases_from}, where phrases were fitted; "
            "fit them on other questions"
        )
    asked = ELICITATIONS["linguistic"]
    said = [stated(asked, [reply])[0].phrase for reply in answers["reply_linguistic"]]
    pairs = [
        (phrase, right)
        for phrase, right in zip(said, answers["stated_linguistic_correct"], strict=True)
        if phrase
    ]
    return fit_phrases([phrase for phrase, _ in pairs], [right for _, right in pairs])


def build_grader(settings: OpenEndedSettings, asked: dict[str, Any], *model: Any) -> Grader:
    """Returns what says which answers are right.

    Raises:
        CalibrantError: A server's judge has no name.
    """
    if settings.grader != "judge":
        return GRADERS[settings.grader]
    if settings.judge_url is None:
        return local_judge(*model, **asked)
    if settings.judge_model is None:
        raise CalibrantError(
            "--open_ended.judge_url needs the model's name there; give --open_ended.judge_model"
        )
    return server_judge(settings.judge_url, settings.judge_model)


def build_cluster(settings: OpenEndedSettings, asked: dict[str, Any], *model: Any) -> Cluster:
    """Returns what says which sampled answers to a question mean the same."""
    if settings.clusters == "text":
        return lambda question, answers: by_text(answers)
    if settings.clusters == "content":
        return lambda question, answers: by_content(question.text, answers)
    if settings.nli_model is None:
        entails = by_language_model(*model, **asked)
    else:
        device = next(model[0].parameters()).device
        entails = by_nli(*load_nli(settings.nli_model, device=device), batch_size=asked["batch_size"])
    return lambda question, answers: by_meaning(question.text, answers, entails)
