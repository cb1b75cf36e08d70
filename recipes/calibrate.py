"""Trains a calibrated LoRA adapter and writes a finished adapter folder.

accelerate launch recipes/calibrate.py --config recipes/configs/worldfacts.yaml --output_dir runs/worldfacts
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from accelerate import PartialState
from build import (
    Base,
    Data,
    build_accelerator,
    build_answers,
    build_base,
    build_data,
    build_encoder,
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
from parsing import Launch, dump, parse_calibrate
from runs import flat, open_run, run_recipe
from settings import CalibrateSettings

from toolkit.calibration.checkpoints import remove_checkpoints
from toolkit.calibration.losses import bounded
from toolkit.calibration.training import train
from toolkit.evaluation.evaluate import Answered, all_predictions, measure, panel, tested, write_evaluation
from toolkit.evaluation.plots import training_curves
from toolkit.evaluation.report import Report, build_report, format_table
from toolkit.models.adapters import THETA, activate, base_only, check_moved, detach, save_adapter
from toolkit.models.adjustment import Adjustment, save_adjustment
from toolkit.models.base import model_identity
from toolkit.publishing.card import write_card
from toolkit.questions.question import QuestionSet


def calibrate(
    settings: CalibrateSettings,
    launch: Launch,
    before: Sequence[Answered] | None = None,
    loaded: Base | None = None,
) -> Report:
    """Runs one training run from its settings to its finished folder.

    Args:
        settings: All settings.
        launch: The finished adapter's folder, in which an unfinished run is resumed, and the tracker.
        before: The base model's answers to the validation and test questions, where they are known.
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
            lower += upper  # methods of a single level learn from all questions
            data = replace(data, lower=data.lower + data.upper, upper=[])
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
        sets = [*data.validation, *data.test]
        size = settings.report.batch_size
        if before is None:
            with base_only(model):
                before = build_answers(base, model, sets, settings.prompt, size, "base" if main else None)
        label = method if main else None
        after = build_answers(base, model, sets, settings.prompt, size, label, view())
        report = _report(settings, method, folder.name, identity, before, after, data)
        report["kept_step"], report["unmoved_layers"] = run.best_step, unmoved
        if main:
            save_adapter(model, base.tokenizer, folder)
            if settings.method in (*BILEVEL, "vector_scaling"):
                learnt = Adjustment(*bounded(run.alpha, problem.bounds))
                save_adjustment(learnt, folder, predictive=settings.calm.predictive)
            write_card(folder, report, settings.calm.predictive)
            _write_figures_and_report(folder, method, report, before, after)
            remove_checkpoints(folder / "checkpoints")
        detach(model)
        accelerator.wait_for_everyone()
    return report


def fingerprint(data: Data) -> str:
    """Returns a hash of all questions that have a say in the weights."""
    questions = [*data.lower, *data.upper, *(question for one in data.validation for question in one)]
    return QuestionSet("all", "train", tuple(questions)).sha256


def _report(
    settings: CalibrateSettings,
    method: str,
    adapter: str,
    identity: dict[str, Any],
    before: Sequence[Answered],
    after: Sequence[Answered],
    data: Data,
) -> Report:
    shown = settings.report
    base, own = (
        measure(tested(answered), bins=shown.bins, resamples=shown.resamples, seed=settings.seed)
        for answered in (before, after)
    )
    report = build_report(
        own,
        model=identity["name"],
        adapter=adapter,
        method=method,
        seed=settings.seed,
        prompt=asdict(settings.prompt),
    )
    levels = {"lower": data.lower, "upper": data.upper}
    training = {name: QuestionSet(name, "train", tuple(level)) for name, level in levels.items() if level}
    report["base"] = identity
    report["before"] = base
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
    folder: Path, method: str, report: Report, before: Sequence[Answered], after: Sequence[Answered]
) -> None:
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    training_curves(history, folder / "training.png")
    panels = [
        panel(one, label)
        for pair in zip(tested(before), tested(after), strict=True)
        for one, label in zip(pair, ("base", method), strict=True)
    ]
    write_evaluation(folder, report, all_predictions(after), panels)


def main() -> None:
    """Reads the command line, trains, and prints the report's table."""
    settings, launch = parse_calibrate()
    report = calibrate(settings, launch)
    if not PartialState().is_main_process:
        return
    print(format_table({settings.method: report}))
    print(f"adapter, report and figures: {launch.output_dir}", file=sys.stderr)


if __name__ == "__main__":
    run_recipe(main)
