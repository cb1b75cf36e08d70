"""Trains a calibrated LoRA adapter and writes a finished adapter folder.

accelerate launch recipes/calibrate.py --config recipes/configs/worldfacts.yaml --output_dir runs/worldfacts
"""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from accelerate import PartialState
from build import (
    Base,
    Data,
    build_accelerator,
    build_answers,
    build_base,
    build_data,
    build_encoder,
    by_kind,
    place,
    seen,
)
from methods import (
    BILEVEL,
    CRITERIA,
    build_adapter,
    build_batches,
    build_lower,
    build_problem,
    build_run,
    build_schedule,
    build_solver,
    build_validation,
    build_view,
    check_levels,
    resolve,
)
from open_answers import build_open_answers
from parsing import Launch, dump, parse_calibrate
from peft import PeftModel
from runs import flat, open_run, run_recipe
from settings import CalibrateSettings

from toolkit.calibration.checkpoints import remove_checkpoints
from toolkit.calibration.losses import bounded
from toolkit.calibration.training import train
from toolkit.evaluation.evaluate import Answered, measure, panel, write_evaluation
from toolkit.evaluation.open_ended import OpenAnswers
from toolkit.evaluation.open_report import format_tables, measure_open
from toolkit.evaluation.plots import training_curves
from toolkit.evaluation.report import Report, build_report
from toolkit.models.adapters import THETA, WEIGHTS, activate, base_only, check_moved, detach, save_adapter
from toolkit.models.adjustment import Adjustment, save_adjustment
from toolkit.models.base import model_identity
from toolkit.publishing.card import write_card
from toolkit.publishing.checks import file_sha256
from toolkit.questions.question import QuestionSet


def calibrate(
    settings: CalibrateSettings,
    launch: Launch,
    before: list[Answered] | None = None,
    before_open: list[dict[str, Any]] | None = None,
    loaded: Base | None = None,
) -> Report:
    """Runs one training run from its settings to its finished folder.

    Args:
        settings: All settings.
        launch: The finished adapter's folder, in which an unfinished run is resumed, and the tracker.
        before: The base model's answers to the validation and test questions with options, where they are
            known.
        before_open: In that case, what its report has of the open-ended ones.
        loaded: The base model, where it is loaded already; it ends as it came.

    Returns:
        The adapter's report.

    Raises:
        CalibrantError: Any fault that the user can mend.
    """
    accelerator, folder = build_accelerator(launch), launch.output_dir
    main, resume = accelerator.is_main_process, launch.resume == "auto"
    method, given, settings = settings.method, dump(settings), resolve(settings)
    with open_run(folder, given, finished="report.json", active=main, resume=resume):
        data = build_data(settings.data)
        check_levels(data, settings)
        base = loaded or build_base(settings.model, accelerator)
        encode = build_encoder(base, settings.prompt)
        validation = encode([question for one in data.validation for question in one])
        lower, upper = encode(data.lower), encode(data.upper)
        for one in data.test:  # a question that cannot be asked is better found now than after training
            encode(list(one))
        if settings.method not in BILEVEL:
            if settings.training.learn_heldout:
                lower, data = lower + upper, replace(data, lower=data.lower + data.upper)
            data = replace(data, upper=[])
        if settings.calm.level == "tokens":
            lower, upper = ([question.right_only() for question in level] for level in (lower, upper))
        identity = model_identity(settings.model.name, base.model, settings.model.revision)
        model = build_adapter(base, settings)
        base = place(base, model, settings.training.prefix_cache << 20)
        lower = build_lower(lower, model, base, settings)
        problem = build_problem(model, base, settings)
        run = build_run(model, problem, settings)
        view = build_view(run, problem)
        shown = {key: str(value) for key, value in flat(asdict(settings)).items()}
        accelerator.init_trackers("calibrant", shown)

        train(
            run,
            problem,
            build_solver(settings),
            build_batches(lower, settings.seed, base, settings),
            build_batches(upper, settings.seed + 1, base, settings),
            build_schedule(settings),
            accelerator=accelerator,
            folder=folder,
            fingerprint=fingerprint(data),
            validate=build_validation(model, validation, view, base, settings),
            criterion=CRITERIA[settings.training.keep],
            seed=settings.seed,
            keep_checkpoints=settings.training.keep_checkpoints,
        )
        for tracker in accelerator.trackers:
            tracker.finish()

        activate(model, THETA)
        moves = method != "vector_scaling" and run.best_step > 0
        unmoved = check_moved(model) if moves else []
        found_before = Found(before or [], [])
        if before is None:
            with base_only(model):
                found_before = ask(base, model, data, settings, "base" if main else None)
        found = ask(base, model, data, settings, method if main else None, view())
        report = _report(settings, method, folder.name, identity, found_before, found, data)
        report["before_open_ended"] += before_open or []
        report["kept_step"], report["unmoved_layers"] = run.best_step, unmoved
        if main:
            save_adapter(model, base.tokenizer, folder)
            report["adapter_sha256"] = file_sha256(folder / WEIGHTS)
            if settings.method in (*BILEVEL, "vector_scaling"):
                learnt = Adjustment(*bounded(run.alpha, problem.bounds))
                save_adjustment(
                    learnt, folder, predictive=settings.calm.predictive, level=settings.calm.level
                )
            write_card(folder, report)
            bins = settings.report.bins
            _write_figures_and_report(folder, method, report, found_before, found, data, bins)
            remove_checkpoints(folder / "checkpoints")
        detach(model)
        accelerator.wait_for_everyone()
    return report


class Found(NamedTuple):
    """A model's answers to the validation and test questions: those with options, and open-ended ones.

    Attributes:
        answered: Of both splits.
        opened: Of the test sets, or of the validation sets where there are none.
    """

    answered: list[Answered]
    opened: list[OpenAnswers]

    def tested(self, data: Data) -> list[Answered]:
        """Returns the answers that the report is about."""
        return [one for one in self.answered if one.data in (data.test or data.validation)]


def ask(
    base: Base,
    model: PeftModel,
    data: Data,
    settings: CalibrateSettings,
    label: str | None,
    adjustment: Adjustment | None = None,
) -> Found:
    """Lets the model answer all validation and test questions."""
    size = settings.report.batch_size
    choices, _ = by_kind([*data.validation, *data.test])
    _, open_ended = by_kind(data.test or data.validation)
    answered = build_answers(base, model, choices, settings.prompt, size, label, adjustment)
    asking, prompt, seed = settings.open_ended, settings.prompt, settings.data.seed
    written = adjustment if settings.calm.level == "tokens" else None
    opened = build_open_answers(base, model, open_ended, asking, prompt, size, seed, label, written)
    return Found(answered, opened)


def fingerprint(data: Data) -> str:
    """Returns a hash of all questions that have a say in the weights."""
    questions = [*data.lower, *data.upper, *(question for one in data.validation for question in one)]
    return QuestionSet("all", "train", tuple(questions)).sha256


def _report(
    settings: CalibrateSettings,
    method: str,
    adapter: str,
    identity: dict[str, Any],
    before: Found,
    found: Found,
    data: Data,
) -> Report:
    shown = settings.report
    keys = {"bins": shown.bins, "resamples": shown.resamples, "seed": settings.seed}
    report = build_report(
        measure(found.tested(data), **keys),
        model=identity["name"],
        adapter=adapter,
        method=method,
        seed=settings.seed,
        prompt=asdict(settings.prompt),
    )
    grader = settings.open_ended.grader
    report["open_ended"] = measure_open(found.opened, grader=grader, **keys)
    report["before_open_ended"] = measure_open(before.opened, grader=grader, **keys)
    report["before"] = measure(before.tested(data), **keys)
    levels = {"lower": data.lower, "upper": data.upper}
    training = {name: QuestionSet(name, "train", tuple(level)) for name, level in levels.items() if level}
    report["base"] = identity
    report["training"] = {
        "sources": {
            "lower": settings.data.train,
            "upper": settings.data.heldout or settings.data.train,
            "seen": seen(settings.data),
        },
        **{name: {"count": len(one), "sha256": one.sha256} for name, one in training.items()},
    }
    return report


def _write_figures_and_report(
    folder: Path, method: str, report: Report, before: Found, found: Found, data: Data, bins: int
) -> None:
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    training_curves(history, folder / "training.png")
    panels = [
        panel(one, label)
        for pair in zip(before.tested(data), found.tested(data), strict=True)
        for one, label in zip(pair, ("base", method), strict=True)
    ]
    write_evaluation(folder, report, found.answered, panels, found.opened, label=method, bins=bins)


def main() -> None:
    """Reads the command line, trains, and prints the report's table."""
    settings, launch = parse_calibrate()
    report = calibrate(settings, launch)
    if not PartialState().is_main_process:
        return
    print(format_tables({settings.method: report}))
    print(f"adapter, report and figures: {launch.output_dir}", file=sys.stderr)


if __name__ == "__main__":
    run_recipe(main)
