"""Runs several methods on the same questions and prints one table.

accelerate launch recipes/compare.py --config recipes/configs/demo.yaml --output_dir runs/demo
"""

import json
import re
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import yaml
from accelerate import PartialState
from build import build_accelerator, build_answers, build_base, build_data, place, seen
from calibrate import calibrate
from parsing import Launch, calibrate_settings, parse_compare
from runs import open_run, run_recipe
from settings import CalibrateSettings, CompareSettings

from toolkit.calibration.baselines import fit_temperature, temper
from toolkit.confidence.options import OptionConfidence
from toolkit.errors import CalibrantError
from toolkit.evaluation.compare import TEMPERED, comparison_table
from toolkit.evaluation.evaluate import (
    Answered,
    all_predictions,
    measure,
    panel,
    read_answers,
    tested,
    write_evaluation,
)
from toolkit.evaluation.files import replacing
from toolkit.evaluation.plots import reliability_diagram
from toolkit.evaluation.report import Report, build_report
from toolkit.models.base import model_identity, model_name
from toolkit.questions.question import QuestionSet

BASE = "none"
"""The name under which a comparison lists the model as it is."""


def compare(settings: CompareSettings, folder: Path, config: Path) -> str:
    """Runs every method with every seed, each into a folder of its own, and compares them.

    What is finished is not run again; what was interrupted is resumed.

    Args:
        settings: The methods and seeds.
        folder: Takes a folder for each run, `comparison.json`, `comparison.md` and `reliability.png`.
        config: The calibration config that all methods start from.

    Returns:
        The table.

    Raises:
        CalibrantError: Any fault that the user can mend.
    """
    accelerator = build_accelerator(Launch(folder))
    main = accelerator.is_main_process
    check_methods(settings)
    runs = {
        (name, seed): calibrate_settings(config, keys | {"seed": seed})
        for name, keys in settings.methods.items()
        for seed in settings.seeds
    }
    shared = next(iter(runs.values()))
    for part in ("prompt", "data", "report"):
        if any(getattr(run, part) != getattr(shared, part) for run in runs.values()):
            raise CalibrantError(f"methods must share {part}; let them differ in other keys")
    kinds = {run.model.quantization for run in runs.values()}
    bases = {base_name(run, kinds): run for run in runs.values()}
    models = [replace(run.model, quantization="none") for run in runs.values()]
    if any(model != models[0] for model in models):
        raise CalibrantError("methods must share model but for quantization; let them differ in other keys")
    if unknown := set(settings.temperature) - {*bases, *settings.methods}:
        raise CalibrantError(f"temperature names {min(unknown)!r}, which is no method of this comparison")
    resolved = {folder_name(name, seed): asdict(run) for (name, seed), run in runs.items()}
    kept = yaml.safe_dump({"runs": resolved}, sort_keys=False, allow_unicode=True)

    with open_run(folder, kept, finished="comparison.json", active=main):
        data = build_data(shared.data)
        sets = [*data.validation, *data.test]
        answers = {name: [answer_base(run, sets, folder / name)] for name, run in bases.items()}
        for (name, seed), run in runs.items():
            target = folder / folder_name(name, seed)
            finished = (target / "report.json").exists()
            accelerator.wait_for_everyone()  # no process may look after another has written
            if not finished:
                if main:
                    print(f"{name}, seed {seed}", file=sys.stderr)
                calibrate(run, Launch(target), before=answers[base_name(run, kinds)][0])
            answers.setdefault(name, []).append(read_answers(target / "predictions.parquet", sets))

        columns = {}
        for name, found in answers.items():
            columns[name] = [report_of(one, shared, name, None) for one in found]
            if name in settings.temperature:
                columns[name + TEMPERED] = [
                    report_of(temper_all(one, t), shared, name, t)
                    for one in found
                    for t in [fit_pooled_temperature(one)]
                ]
        table = comparison_table(columns, seen(shared.data))
        if main:
            write_comparison(folder, table, columns, [found[0] for found in answers.values()], list(answers))
    return table


def check_methods(settings: CompareSettings) -> None:
    """Refuses methods that could not be told apart, in the table or on the disk."""
    if not settings.methods or not settings.seeds:
        raise CalibrantError("give --methods at least one method, and --seeds at least one seed")
    for name, keys in settings.methods.items():
        if name.split("-")[0] == BASE or not re.fullmatch(r"[\w-][\w.-]*", name):
            raise CalibrantError(
                f"a method cannot be called {name!r}, for its folder bears its name and {BASE!r} is the base "
                f"model; use letters, digits, - and _, and do not begin with {BASE}"
            )
        if "seed" in keys:
            raise CalibrantError(f"the method {name} sets its seed; give --seeds, which all methods share")


def base_name(run: CalibrateSettings, kinds: Collection[str]) -> str:
    """Returns the name of the base model that a run starts from; a comparison's quantizations make bases."""
    quantization = run.model.quantization
    return BASE if quantization == "none" or len(kinds) == 1 else f"{BASE}-{quantization}"


def folder_name(method: str, seed: int) -> str:
    """Returns the name of the folder of one run."""
    return f"{method}-seed{seed}"


def answer_base(settings: CalibrateSettings, sets: Sequence[QuestionSet], folder: Path) -> list[Answered]:
    """Lets the base model answer all questions, once."""
    accelerator = build_accelerator(Launch(folder))
    answered_before = (folder / "report.json").exists()
    accelerator.wait_for_everyone()  # no process may look after another has written
    if not answered_before:
        base = build_base(settings.model, accelerator)
        base = place(base, base.model)
        size = settings.report.batch_size
        label = "base" if accelerator.is_main_process else None
        answered = build_answers(base, base.model, sets, settings.prompt, size, label)
        if accelerator.is_main_process:
            report = report_of(answered, settings, BASE, None)
            report["base"] = model_identity(settings.model.name, base.model, settings.model.revision)
            panels = [panel(one, "base") for one in tested(answered)]
            write_evaluation(folder, report, all_predictions(answered), panels)
        accelerator.wait_for_everyone()
    return read_answers(folder / "predictions.parquet", sets)


def fit_pooled_temperature(answered: Sequence[Answered]) -> float:
    """Fits one temperature on the validation questions of all training domains together."""
    pooled = [one.confidence for one in answered if one.data.split == "validation"]
    width = max(one.log_probs.shape[1] for one in pooled)
    log_probs = [
        np.pad(one.log_probs, ((0, 0), (0, width - one.log_probs.shape[1])), constant_values=-np.inf)
        for one in pooled
    ]
    return fit_temperature(np.concatenate(log_probs), np.concatenate([one.answers for one in pooled]))


def temper_all(answered: Sequence[Answered], temperature: float) -> list[Answered]:
    """Returns the answers at another temperature."""
    return [
        Answered(
            one.data,
            OptionConfidence(
                temper(one.confidence.log_probs, temperature),
                one.confidence.answers,
                one.confidence.mass,
            ),
        )
        for one in answered
    ]


def report_of(
    answered: Sequence[Answered],
    settings: CalibrateSettings,
    method: str,
    temperature: float | None,
) -> Report:
    """Measures the test sets among some answers."""
    shown = settings.report
    return build_report(
        measure(tested(answered), bins=shown.bins, resamples=shown.resamples, seed=settings.data.seed),
        model=model_name(settings.model.name),
        adapter=None,
        method=method,
        seed=settings.data.seed,
        prompt=asdict(settings.prompt),
        temperature=temperature,
    )


def write_comparison(
    folder: Path,
    table: str,
    columns: dict[str, list[Report]],
    shown: Sequence[Sequence[Answered]],
    labels: Sequence[str],
) -> None:
    """Writes the reliability diagrams side by side, the table, and last all reports as JSON."""
    panels = [
        panel(one, label)
        for row in zip(*map(tested, shown), strict=True)
        for one, label in zip(row, labels, strict=True)
    ]
    bins = columns[BASE][0]["results"][0]["binning"]["bins"]
    reliability_diagram(panels, folder / "reliability.png", columns=len(labels), bins=bins)
    for name, text in (
        ("comparison.md", table + "\n"),
        (
            "comparison.json",
            json.dumps({"schema": "calibrant.comparison/1", "methods": columns}, indent=1),
        ),
    ):
        with replacing(folder / name) as partial:
            partial.write_text(text, encoding="utf-8")


def main() -> None:
    """Reads the command line, compares, and says where everything lies."""
    began = time.monotonic()
    settings, folder, config = parse_compare()
    table = compare(settings, folder, config)
    if not PartialState().is_main_process:
        return
    print(table)
    print(
        f"\n{(time.monotonic() - began) / 60:.1f} minutes\n"
        f"comparison: {folder / 'comparison.md'}, comparison.json, reliability.png",
        file=sys.stderr,
    )
    for name in settings.methods:
        target = folder / folder_name(name, settings.seeds[0])
        print(f"{name}: adapter {target}, report {target / 'report.json'}", file=sys.stderr)


if __name__ == "__main__":
    run_recipe(main)
