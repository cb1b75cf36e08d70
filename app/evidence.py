"""Which reliability diagram says what a model's confidence has been worth."""

from app.answers import Form, Kind
from app.models import Models
from app.reports import AdapterReport, Evidence, Who


def report_of(models: Models, name: str, partner: str) -> tuple[AdapterReport | None, Who]:
    """Returns the report that measured a model, and as which of the two it did.

    The base was measured beside each adapter: its results are those of the partner's report, or else of the
    first adapter that has one.

    Args:
        models: The models.
        name: The model.
        partner: The model beside it.
    """
    if (adapter := models.adapter(name)) is not None:
        return adapter.report, "adapter"
    beside = models.adapter(partner)
    others = [beside] if beside is not None else []
    reports = [one.report for one in [*others, *models.adapters.values()] if one.report is not None]
    return (reports[0] if reports else None), "base"


def option_evidence(models: Models, name: str, partner: str, data: str) -> Evidence:
    """Returns what a report says of a model's confidence in options of multiple-choice questions."""
    report, who = report_of(models, name, partner)
    if report is None:
        return Evidence((), f"{name} has no report")
    bins = report.bins(who, data)
    if not bins:
        return Evidence((), f"the report of {name} has nothing on {data or 'such questions'}")
    count = sum(one.count for one in bins)
    where = f"{count} multiple-choice questions" if data == report.sets[0] else f"{count} questions of {data}"
    return Evidence(bins, f"{name}, confidence in the options of {where}")


def answer_evidence(models: Models, form: Form, name: str, partner: str) -> dict[Kind, Evidence]:
    """Returns what a report says of each kind of confidence in a model's answers.

    On open-ended questions each kind has a diagram of its own; where only multiple choice was measured, all
    are judged by the confidence in options.
    """
    keys: dict[Kind, str] = {
        "token": form.measure,
        "stated": f"stated_{form.elicitation}",
        "p_true": "p_true",
        "agreement": "sem1",
    }
    report, who = report_of(models, name, partner)
    if report is None or form.data not in report.open_sets:
        return dict.fromkeys(keys, option_evidence(models, name, partner, form.data))
    found = {kind: report.open_bins(who, form.data, key) for kind, key in keys.items()}
    return {
        kind: Evidence(
            bins,
            f"{name}, {sum(one.count for one in bins)} open-ended questions of {form.data}"
            if bins
            else f"the report of {name} has not measured this on {form.data}",
        )
        for kind, bins in found.items()
    }


def data_sets(models: Models, left: str, right: str, *, open_ended: bool) -> list[str]:
    """Returns the sets that either model was measured on.

    Args:
        models: The models.
        left: Model on the left.
        right: Model on the right.
        open_ended: Whether to name those of open-ended questions too, which then come first.
    """
    reports = [report_of(models, *pair)[0] for pair in ((right, left), (left, right))]
    there = [report for report in reports if report is not None]
    first = [name for report in there for name in report.open_sets] if open_ended else []
    return list(dict.fromkeys([*first, *(name for report in there for name in report.sets)]))
