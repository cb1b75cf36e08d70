"""Several methods on the same test sets, with several seeds: means, spread, paired differences, tables."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from toolkit.confidence.options import OptionConfidence
from toolkit.evaluation.intervals import draws, percentiles, resampled_metrics
from toolkit.evaluation.metrics import METRICS, Floats, metrics

BASE = "none"
"""What a comparison calls the model as it is."""

CONTEXTUAL = "contextual"
"""What it calls the model as it is, by contextual calibration."""

TEMPERED = " + T"
"""Ends the name of a method that is shown at a temperature fitted on the training domains."""

TEMPERED_ELSEWHERE = " + T*"
"""Ends the name of one that is shown at a temperature fitted on the upper level's own domain."""

KINDS = {True: "in domain", False: "out of domain"}


@dataclass(frozen=True)
class Asked:
    """A test set of a comparison.

    Attributes:
        name: Its source, with the fold where there are several.
        in_domain: Whether training saw another split of its source.
    """

    name: str
    in_domain: bool


@dataclass(frozen=True)
class Measured:
    """What one method came to, on S test sets with each of N seeds.

    Attributes:
        values: Each metric, shape (N, S).
        resampled: Each metric's mean over seeds in R resamples of each set's questions, shape (S, R). Methods
            that answered the same questions were resampled alike.
    """

    values: dict[str, Floats]
    resampled: dict[str, Floats]

    def mean(self, metric: str, places: Sequence[int]) -> float:
        """Returns the mean over seeds and some of the test sets."""
        return float(self.values[metric][:, places].mean())

    def spread(self, metric: str, places: Sequence[int]) -> float:
        """Returns the standard deviation over seeds of the mean over some test sets; NaN for one seed."""
        over_sets = self.values[metric][:, places].mean(1)
        return float(over_sets.std(ddof=1)) if len(over_sets) > 1 else float("nan")

    def interval(self, metric: str, places: Sequence[int]) -> tuple[float, float] | None:
        """Returns the 95 % bootstrap interval, over questions, of the mean over seeds and some test sets."""
        return percentiles(self.resampled[metric][places].mean(0))

    def difference(self, other: "Measured", metric: str, places: Sequence[int]) -> dict[str, Any]:
        """Returns this method's mean less another's, with the interval of the paired bootstrap."""
        resampled = (self.resampled[metric][places] - other.resampled[metric][places]).mean(0)
        value = self.mean(metric, places) - other.mean(metric, places)
        return {"value": value, "ci95": percentiles(resampled)}


def measure_method(
    answered: Sequence[Sequence[OptionConfidence]], *, bins: int = 10, resamples: int = 1000, seed: int = 0
) -> Measured:
    """Measures one method.

    Args:
        answered: For each seed, the answers to each test set; all seeds answered the same questions.
        bins: Number of bins of the calibration errors.
        resamples: Number R of bootstrap resamples.
        seed: Seed of the resamples; each test set is resampled by itself.
    """
    found = [[metrics(one.log_probs, one.answers, bins) for one in sets] for sets in answered]
    values = {name: np.array([[one[name] for one in sets] for sets in found]) for name in METRICS}
    resampled: dict[str, list[Floats]] = {name: [] for name in METRICS}
    for place, by_seed in enumerate(zip(*answered, strict=True)):
        blocks = []
        for counts in draws(len(by_seed[0].answers), resamples, [seed, place]):
            drawn = [resampled_metrics(one.log_probs, one.answers, counts, bins) for one in by_seed]
            blocks.append({name: np.mean([one[name] for one in drawn], axis=0) for name in METRICS})
        for name in METRICS:
            resampled[name].append(np.concatenate([block[name] for block in blocks]))
    return Measured(values, {name: np.stack(sets) for name, sets in resampled.items()})


def places_of(tests: Sequence[Asked]) -> dict[str, list[int]]:
    """Returns where the test sets in and out of domain are, leaving out a kind that has none."""
    places = {
        name: [i for i, test in enumerate(tests) if test.in_domain == kind] for kind, name in KINDS.items()
    }
    return {name: found for name, found in places.items() if found}


def summary(tests: Sequence[Asked], methods: Mapping[str, Measured], reference: str) -> dict[str, Any]:
    """Returns, for each method, its figures on each test set and on the mean of each kind of them.

    Each figure is {"seeds": [...], "mean", "sd", "ci95"}; on the mean of a kind there is "difference" too,
    the method less the reference. A number that does not exist is null.
    """
    groups = {test.name: [i] for i, test in enumerate(tests)} | {
        f"mean {name}": places for name, places in places_of(tests).items()
    }
    return {
        method: {
            group: {
                metric: _figure(measured, metric, places)
                | (
                    {"difference": measured.difference(methods[reference], metric, places)}
                    if group.startswith("mean ")
                    else {}
                )
                for metric in METRICS
            }
            for group, places in groups.items()
        }
        for method, measured in methods.items()
    }


def _figure(measured: Measured, metric: str, places: Sequence[int]) -> dict[str, Any]:
    return {
        "seeds": measured.values[metric][:, places].mean(1).tolist(),
        "mean": measured.mean(metric, places),
        "sd": measured.spread(metric, places),
        "ci95": measured.interval(metric, places),
    }


def method_table(tests: Sequence[Asked], methods: Mapping[str, Measured], reference: str, bins: int) -> str:
    """Formats a Markdown table with a row for each method: means over seeds and test sets of each kind.

    The last column is the difference in conf-ECE to the reference out of domain, or in domain where nothing
    is out of it, with its paired bootstrap interval. The line below says what the cells are.
    """
    places = places_of(tests)
    last = list(places)[-1]
    head = [f"{name}: conf-ECE" if i == 0 else column for name in places for i, column in enumerate(_COLUMNS)]
    rows = [["method", *head, f"conf-ECE − {reference}'s"]]
    for name, measured in methods.items():
        cells = [_cell(measured, metric, where) for where in places.values() for metric in _COLUMNS.values()]
        rows.append(
            [name, *cells, _difference(measured, methods[reference], places[last], name == reference)]
        )
    seeds = max(len(measured.values["conf_ece"]) for measured in methods.values())
    note = f"conf-ECE with {bins} equal-width bins; NLL in nats"
    if seeds > 1:
        note += f"; means over {seeds} seeds ± standard deviation over seeds"
    note += f"; last: {last}, with the 95 % interval of a paired bootstrap over questions"
    if any(name.endswith(TEMPERED) for name in methods):
        note += f";{TEMPERED}: at a temperature fitted on the training domains' validation split"
    if any(name.endswith(TEMPERED_ELSEWHERE) for name in methods):
        note += f";{TEMPERED_ELSEWHERE}: on that of the domain that only the upper level sees"
    return f"{_markdown(rows)}\n\n{note}."


def set_table(tests: Sequence[Asked], methods: Mapping[str, Measured]) -> str:
    """Formats a Markdown table of every test set: conf-ECE and, in brackets, accuracy, means over seeds.

    Methods are columns while there are few of them, and else rows.
    """
    rows = [["test set", "", *methods]]
    for i, test in enumerate(tests):
        cells = [
            f"{_cell(measured, 'conf_ece', [i])} ({measured.mean('accuracy', [i]):.3f})"
            for measured in methods.values()
        ]
        rows.append([test.name, KINDS[test.in_domain], *cells])
    if len(methods) > len(tests):
        rows = [list(column) for column in zip(*rows, strict=True)]
    return f"{_markdown(rows)}\n\nconf-ECE (accuracy) on each test set."


def untempered(name: str) -> str:
    """Returns the name of the method that is shown at a fitted temperature, or the name as it is."""
    return name.removesuffix(TEMPERED_ELSEWHERE).removesuffix(TEMPERED)


_COLUMNS = {"conf-ECE": "conf_ece", "accuracy": "accuracy", "NLL": "nll", "AUROC": "auroc"}


def _cell(measured: Measured, metric: str, places: Sequence[int]) -> str:
    value, spread = measured.mean(metric, places), measured.spread(metric, places)
    shown = f"{value:.3f}" if np.isfinite(value) else "–"
    return shown + (f" ± {spread:.3f}" if metric == "conf_ece" and np.isfinite(spread) else "")


def _difference(measured: Measured, reference: Measured, places: Sequence[int], same: bool) -> str:
    if same:
        return ""
    found = measured.difference(reference, "conf_ece", places)
    low, high = found["ci95"]
    return f"{found['value']:+.3f} ({low:+.3f} to {high:+.3f})"


def _markdown(rows: Iterable[Sequence[str]]) -> str:
    rows = list(rows)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])
