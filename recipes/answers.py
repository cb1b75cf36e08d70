"""What a comparison asks of models that are not trained: the base, as it is and calibrated post hoc."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from accelerate import Accelerator
from build import Base, build_answers, build_base, place
from open_answers import build_open_answers
from settings import CalibrateSettings, DataSettings, ModelSettings

from toolkit.calibration.baselines import contextual, fit_temperature, temper
from toolkit.confidence.options import OptionConfidence
from toolkit.evaluation.compare import BASE, CONTEXTUAL, TEMPERED, TEMPERED_ELSEWHERE
from toolkit.evaluation.evaluate import (
    Answered,
    measure,
    panel,
    read_answers,
    tested,
    write_evaluation,
)
from toolkit.evaluation.metrics import Floats
from toolkit.evaluation.open_ended import OpenAnswers
from toolkit.evaluation.open_report import measure_open
from toolkit.evaluation.report import build_report
from toolkit.models.base import model_identity, model_name
from toolkit.models.sharding import is_sharded
from toolkit.questions.content_free import WORDS, content_free
from toolkit.questions.question import QuestionSet

Known = dict[tuple[str, str], Answered]
"""Answers by a set's source and split."""

Columns = dict[str, list[dict[str, list[Answered]]]]
"""Answers to all validation and test sets, by method, seed and fold."""


class Loaded:
    """The base model that a comparison used last, so that it is not loaded again for every run."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self._settings: ModelSettings | None = None
        self._base: Base | None = None

    def base(self, settings: ModelSettings) -> Base:
        """Returns the base model; one that is sharded is loaded each time, for it cannot be put back."""
        if self._base is None or self._settings != settings or is_sharded(self.accelerator):
            self._base = None  # before the next one takes memory
            self._base = build_base(settings, self.accelerator)
            self._settings = settings
        return self._base


def answer_base(
    settings: CalibrateSettings,
    sets: Sequence[QuestionSet],
    open_ended: Sequence[QuestionSet],
    folder: Path,
    loaded: Loaded,
) -> Known:
    """Lets the base model answer all questions, once, and keeps a report of it in the folder.

    Returns:
        The answers to questions with options; those to open-ended ones are in the report alone.
    """
    size, seed = settings.report.batch_size, settings.data.seed

    def answer(base: Base, label: str | None) -> list[Answered]:
        return build_answers(base, base.model, sets, settings.prompt, size, label)

    def answer_open(base: Base, label: str | None) -> list[OpenAnswers]:
        asking, prompt = settings.open_ended, settings.prompt
        return build_open_answers(base, base.model, open_ended, asking, prompt, size, seed, label)

    return _answer_once(settings, sets, folder, loaded, BASE, answer, answer_open)


def answer_contextually(settings: CalibrateSettings, known: Known, folder: Path, loaded: Loaded) -> Known:
    """Divides the base model's probabilities by those that options have without a question, once."""
    sets = [one.data for one in known.values()]

    def answer(base: Base, label: str | None) -> list[Answered]:
        size, form = settings.report.batch_size, settings.prompt.form
        leanings = []
        for word in WORDS:
            emptied = [content_free(one, form, word) for one in sets]
            shown = label and f"{CONTEXTUAL} {word}"
            leanings.append(build_answers(base, base.model, emptied, settings.prompt, size, shown))
        return [
            _with(
                one, contextual(one.confidence.log_probs, [leaning.confidence.log_probs for leaning in own])
            )
            for one, own in zip(known.values(), zip(*leanings, strict=True), strict=True)
        ]

    return _answer_once(settings, sets, folder, loaded, CONTEXTUAL, answer)


def _answer_once(
    settings: CalibrateSettings,
    sets: Sequence[QuestionSet],
    folder: Path,
    loaded: Loaded,
    method: str,
    answer: Callable[[Base, str | None], list[Answered]],
    answer_open: Callable[[Base, str | None], list[OpenAnswers]] = lambda base, label: [],
) -> Known:
    accelerator = loaded.accelerator
    if not finished(folder, accelerator):
        base = loaded.base(settings.model)
        base = place(base, base.model)
        label = method if accelerator.is_main_process else None
        answered, opened = answer(base, label), answer_open(base, label)
        if accelerator.is_main_process:
            shown = settings.report
            keys = {"bins": shown.bins, "resamples": shown.resamples, "seed": settings.data.seed}
            report = build_report(
                measure(tested(answered), **keys),
                model=model_name(settings.model.name),
                adapter=None,
                method=method,
                seed=settings.data.seed,
                prompt=asdict(settings.prompt),
            )
            report["base"] = model_identity(settings.model.name, base.model, settings.model.revision)
            report["open_ended"] = measure_open(opened, grader=settings.open_ended.grader, **keys)
            panels = [panel(one, method) for one in tested(answered)]
            write_evaluation(folder, report, answered, panels, opened, label=method, bins=shown.bins)
        accelerator.wait_for_everyone()
    answered = read_answers(folder / "predictions.parquet", sets) if sets else []
    return {(one.data.name, one.data.split): one for one in answered}


def finished(folder: Path, accelerator: Accelerator) -> bool:
    """Says whether a run is finished, in all processes the same."""
    found = (folder / "report.json").exists()
    accelerator.wait_for_everyone()  # no process may look after another has written
    return found


def temperature_sources(folds: Mapping[str, DataSettings]) -> dict[str, dict[str, list[str]]]:
    """Returns the validation sources on which temperatures are fitted, by what ends a method's name and fold.

    `TEMPERED` has those of the training domains, or all where none is of them; `TEMPERED_ELSEWHERE` those
    that only the upper level sees, if every fold has some.
    """
    found: dict[str, dict[str, list[str]]] = {TEMPERED: {}, TEMPERED_ELSEWHERE: {}}
    for fold, settings in folds.items():
        sources = settings.validation or settings.train
        trained = [source for source in sources if source in settings.train]
        found[TEMPERED][fold] = trained or sources
        found[TEMPERED_ELSEWHERE][fold] = [one for one in sources if trained and one in settings.heldout]
    return {ending: by_fold for ending, by_fold in found.items() if all(by_fold.values())}


def tempered(
    by_fold: Mapping[str, list[Answered]], sources: Mapping[str, Collection[str]]
) -> tuple[list[float], dict[str, list[Answered]]]:
    """Returns each fold's temperature, and answers at it.

    It is the one that fits the validation questions of the fold's sources, all of them together.
    """
    temperatures, found = [], {}
    for fold, answered in by_fold.items():
        temperature = fit_pooled_temperature(
            [one for one in answered if one.data.split == "validation" and one.data.name in sources[fold]]
        )
        temperatures.append(temperature)
        found[fold] = [_with(one, temper(one.confidence.log_probs, temperature)) for one in answered]
    return temperatures, found


def fit_pooled_temperature(answered: Sequence[Answered]) -> float:
    """Fits one temperature on the answers to several sets together."""
    pooled = [one.confidence for one in answered]
    width = max(one.log_probs.shape[1] for one in pooled)
    log_probs = [
        np.pad(one.log_probs, ((0, 0), (0, width - one.log_probs.shape[1])), constant_values=-np.inf)
        for one in pooled
    ]
    return fit_temperature(np.concatenate(log_probs), np.concatenate([one.answers for one in pooled]))


def _with(answered: Answered, log_probs: Floats) -> Answered:
    """Returns answers with other log-probabilities."""
    before = answered.confidence
    return Answered(answered.data, OptionConfidence(log_probs, before.answers, before.mass))
