"""Runs several methods on the same questions, with several seeds, and says by how much they differ.

accelerate launch recipes/compare.py --config recipes/configs/demo.yaml --output_dir runs/demo
"""

import re
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml
from accelerate import PartialState
from answers import (
    Columns,
    Loaded,
    answer_base,
    answer_contextually,
    finished,
    temperature_sources,
    tempered,
)
from build import Data, build_accelerator, build_data, by_kind, seen
from calibrate import calibrate
from outcome import Outcome, Temperatures, write_outcome
from parsing import Launch, calibrate_settings, parse_compare
from runs import open_run, run_recipe
from settings import CalibrateSettings, CompareSettings

from toolkit.errors import CalibrantError
from toolkit.evaluation.compare import BASE, CONTEXTUAL, Asked, untempered
from toolkit.evaluation.evaluate import Answered, read_answers
from toolkit.evaluation.report import read_report
from toolkit.questions.question import QuestionSet

Runs = dict[tuple[str, str, int], CalibrateSettings]
"""The settings of each run, by fold, method and seed."""


def compare(settings: CompareSettings, folder: Path, config: Path) -> str:
    """Runs every method with every seed on every fold, each into a folder of its own, and compares them.

    What is finished is not run again; what was interrupted is resumed.

    Args:
        settings: The methods, seeds and folds.
        folder: Takes a folder for each run, and what `write_outcome` writes.
        config: The calibration config that all methods start from.

    Returns:
        The table.

    Raises:
        CalibrantError: Any fault that the user can mend.
    """
    began = time.monotonic()
    accelerator = build_accelerator(Launch(folder))
    main = accelerator.is_main_process
    check_names(settings)
    runs = resolve_runs(settings, config)
    kinds = {run.model.quantization for run in runs.values()}
    bases = {base_name(run, kinds): run for run in runs.values()}
    shown = {*bases, *settings.methods, *([CONTEXTUAL] if settings.contextual else [])}
    if unknown := set(settings.temperature) - shown - {"all"}:
        raise CalibrantError(f"temperature names {min(unknown)!r}, which is no method of this comparison")
    resolved = {folder_name(*key): asdict(run) for key, run in runs.items()}
    kept = yaml.safe_dump({"runs": resolved}, sort_keys=False, allow_unicode=True)

    with open_run(folder, kept, finished="comparison.json", active=main):
        folds = {fold: (run, build_data(run.data)) for (fold, _, _), run in runs.items()}
        sets = {fold: by_kind([*data.validation, *data.test])[0] for fold, (_, data) in folds.items()}
        opened = {fold: by_kind(data.test or data.validation)[1] for fold, (_, data) in folds.items()}
        every, every_open = (union(one for own in kind.values() for one in own) for kind in (sets, opened))
        loaded = Loaded(accelerator)
        known = {
            name: answer_base(run, every, every_open, folder / name, loaded) for name, run in bases.items()
        }
        if settings.contextual and every:
            name, run = next(iter(bases.items()))
            known[CONTEXTUAL] = answer_contextually(run, known[name], folder / CONTEXTUAL, loaded)
        answers: Columns = {
            name: [{fold: [found[one.name, one.split] for one in own] for fold, own in sets.items()}]
            for name, found in known.items()
        }
        for number, ((fold, name, seed), run) in enumerate(runs.items(), start=1):
            target = folder / folder_name(fold, name, seed)
            if not finished(target, accelerator):
                if main:
                    print(f"run {number} of {len(runs)}: {folder_name(fold, name, seed)}", file=sys.stderr)
                base = base_name(run, kinds)
                before, before_open = answers[base][0][fold], read_open(folder / base, opened[fold])
                calibrate(run, Launch(target), before, before_open, loaded=loaded.base(run.model))
            by_seed = answers.setdefault(name, [{} for _ in settings.seeds])
            found = read_answers(target / "predictions.parquet", sets[fold]) if sets[fold] else []
            by_seed[settings.seeds.index(seed)][fold] = found
        chosen = shown if "all" in settings.temperature else set(settings.temperature)
        temperatures: Temperatures = {}
        fitted_on = temperature_sources({fold: run.data for fold, (run, _) in folds.items()}) if every else {}
        for ending, sources in fitted_on.items():
            for name in [name for name in answers if name in chosen]:
                fitted = [tempered(one, sources) for one in answers[name]]
                temperatures[name + ending] = [values for values, _ in fitted]
                answers[name + ending] = [by_fold for _, by_fold in fitted]
        trained = {
            name: [[folder / folder_name(fold, name, seed) for fold in folds] for seed in settings.seeds]
            for name in settings.methods
        }
        outcome = Outcome(
            tests=tests_of(folds, open_ended=False),
            open_tests=tests_of(folds, open_ended=True),
            answers={name: [tested(one, folds) for one in answers[name]] for name in in_order(answers)},
            folders=trained,
            open_results={
                name: [[one for fold in folds for one in read_open(folder / name, opened[fold])]]
                for name in bases
            }
            | {
                name: [
                    [
                        one
                        for own, path in zip(opened.values(), paths, strict=True)
                        for one in read_open(path, own)
                    ]
                    for paths in seeds
                ]
                for name, seeds in trained.items()
            },
            reference=settings.reference if settings.reference in answers else next(iter(settings.methods)),
            temperatures=temperatures,
            settings=next(iter(runs.values())),
            began=began,
        )
        table = write_outcome(outcome, folder) if main else ""
        accelerator.wait_for_everyone()
    return table


def check_names(settings: CompareSettings) -> None:
    """Refuses methods and folds that could not be told apart, in a table or on the disk."""
    if not settings.methods or not settings.seeds:
        raise CalibrantError("give --methods at least one method, and --seeds at least one seed")
    if len(set(settings.seeds)) < len(settings.seeds):
        raise CalibrantError("a seed is named twice in --seeds; name each once")
    for kind, names in (("method", settings.methods), ("fold", settings.folds)):
        for name, keys in names.items():
            if name.split("-")[0] in (BASE, CONTEXTUAL) or not re.fullmatch(r"[\w-][\w.-]*", name):
                raise CalibrantError(
                    f"a {kind} cannot be called {name!r}, for its folder bears its name and {BASE!r} and "
                    f"{CONTEXTUAL!r} are the base model; use letters, digits, - and _, and begin otherwise"
                )
            if "seed" in keys:
                raise CalibrantError(f"the {kind} {name} sets its seed; give --seeds, which all share")


def resolve_runs(settings: CompareSettings, config: Path) -> Runs:
    """Returns the settings of every run.

    Raises:
        CalibrantError: A key is not right, or methods differ in what they must share to be compared.
    """
    runs = {
        (fold, name, seed): calibrate_settings(config, settings.shared | data | keys | {"seed": seed})
        for fold, data in (settings.folds or {"": {}}).items()
        for name, keys in settings.methods.items()
        for seed in settings.seeds
    }
    first = next(iter(runs.values()))
    for part in ("prompt", "report"):
        if any(getattr(run, part) != getattr(first, part) for run in runs.values()):
            raise CalibrantError(f"methods must share {part}; let them differ in other keys")
    for fold in settings.folds or {"": {}}:
        data = [run.data for (of, _, _), run in runs.items() if of == fold]
        if any(one != data[0] for one in data):
            raise CalibrantError("methods must share data; let them differ in other keys, or give --folds")
    models = [replace(run.model, quantization="none") for run in runs.values()]
    if any(model != models[0] for model in models):
        raise CalibrantError("methods must share model but for quantization; let them differ in other keys")
    return runs


def base_name(run: CalibrateSettings, kinds: Collection[str]) -> str:
    """Returns the name of the base model that a run starts from; a comparison's quantizations make bases."""
    quantization = run.model.quantization
    return BASE if quantization == "none" or len(kinds) == 1 else f"{BASE}-{quantization}"


def folder_name(fold: str, method: str, seed: int) -> str:
    """Returns the name of the folder of one run."""
    return f"{fold}/{method}-seed{seed}".removeprefix("/")


def union(sets: Iterable[QuestionSet]) -> list[QuestionSet]:
    """Returns each set of questions once.

    Raises:
        CalibrantError: Folds have different questions of the same source and split.
    """
    found: dict[tuple[str, str], QuestionSet] = {}
    for one in sets:
        if found.setdefault((one.name, one.split), one).sha256 != one.sha256:
            raise CalibrantError(
                f"folds have different {one.split} questions of {one.name}; give all the same limits and seed"
            )
    return list(found.values())


def tests_of(folds: dict[str, tuple[CalibrateSettings, Data]], *, open_ended: bool) -> list[Asked]:
    """Returns the test sets of all folds that are of one kind."""
    return [
        Asked(f"{one.name} ({fold})" if fold else one.name, one.name in seen(run.data))
        for fold, (run, data) in folds.items()
        for one in by_kind(data.test or data.validation)[open_ended]
    ]


def read_open(folder: Path, sets: Sequence[QuestionSet]) -> list[dict[str, Any]]:
    """Returns what the report in a folder has of some open-ended sets."""
    found = {one["data"]["name"]: one for one in read_report(folder / "report.json")["open_ended"]}
    return [found[one.name] for one in sets]


def tested(
    by_fold: dict[str, list[Answered]], folds: dict[str, tuple[CalibrateSettings, Data]]
) -> dict[str, list[Answered]]:
    """Returns the answers to the test sets of each fold, or to its validation sets where it has none."""
    return {
        fold: [one for one in answered if one.data in (folds[fold][1].test or folds[fold][1].validation)]
        for fold, answered in by_fold.items()
    }


def in_order(answers: Columns) -> list[str]:
    """Returns the names of columns, each method beside itself at a fitted temperature."""
    plain = list(dict.fromkeys(map(untempered, answers)))
    return [name for one in plain for name in answers if untempered(name) == one]


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
        f"comparison, with a JSON file and figures beside it: {folder / 'comparison.md'}",
        file=sys.stderr,
    )
    fold = next(iter(settings.folds), "")
    for name in settings.methods:
        target = folder / folder_name(fold, name, settings.seeds[0])
        print(f"{name}: adapter {target}, report {target / 'report.json'}", file=sys.stderr)


if __name__ == "__main__":
    run_recipe(main)
