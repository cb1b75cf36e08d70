"""Several methods on the same test sets, side by side."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from toolkit.evaluation.report import Report

Runs = Mapping[str, Sequence[Report]]
"""What a method is called, and its reports with different seeds, on the same test sets in the same order."""

TEMPERED = " + T"
"""Ends the name of a method that is shown at a fitted temperature."""


def comparison_table(runs: Runs, trained_on: Sequence[str]) -> str:
    """Formats reports as one Markdown table: a row for each test set, a column for each method.

    A cell is the conf-ECE, with the accuracy in brackets, means over seeds. Test sets of which training saw
    another split come first, then those that neither level has seen, each kind with its mean. The last line
    says what the cells are.

    Args:
        runs: The methods.
        trained_on: Names of the sources of both levels.
    """
    names = [result["data"]["name"] for result in next(iter(runs.values()))[0]["results"]]
    places = {
        "in domain": [i for i, name in enumerate(names) if name in trained_on],
        "out of domain": [i for i, name in enumerate(names) if name not in trained_on],
    }
    rows = [["test set", "", *runs]]
    for kind, chosen in places.items():
        rows += [[names[i], kind, *(_cell(reports, [i]) for reports in runs.values())] for i in chosen]
        if len(chosen) > 1:
            rows.append(["mean", kind, *(_cell(reports, chosen) for reports in runs.values())])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    seeds = max(map(len, runs.values()))
    bins = next(iter(runs.values()))[0]["results"][0]["binning"]["bins"]
    note = f"conf-ECE with {bins} equal-width bins (accuracy)" + (
        f", means over {seeds} seeds" if seeds > 1 else ""
    )
    if any(name.endswith(TEMPERED) for name in runs):
        note += f";{TEMPERED}: at a temperature fitted on the training domains' validation split"
    return "\n".join([lines[0], rule, *lines[1:], "", f"{note}."])


def _cell(reports: Sequence[Report], places: Sequence[int]) -> str:
    ece, accuracy = (
        fmean(report["results"][i][key]["value"] for report in reports for i in places)
        for key in ("conf_ece", "accuracy")
    )
    return f"{ece:.3f} ({accuracy:.3f})"
