"""A card's metadata: what the Hub reads of an adapter, with its figures before and after."""

from collections.abc import Iterator, Mapping
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from toolkit.publishing.markdown import one_line
from toolkit.publishing.subject import Subject
from toolkit.questions.hub import HUB

_METRICS = {
    "accuracy": ("accuracy", "accuracy"),
    "conf_ece": ("conf_ece", "conf-ECE"),
    "smooth_ece": ("smooth_ece", "smooth ECE"),
    "brier": ("brier_score", "Brier score"),
    "nll": ("nll", "NLL in nats"),
}
"""Type and name of each metric in the model index, by its key in a report."""

_BINNED = ("conf_ece",)


def metadata(subject: Subject) -> str:
    """Returns the YAML at a card's top.

    Its `model-index` has every test set's figures twice, those of the base model named so, with 95 %
    intervals, and of a binned error the number and the scheme of its bins, as arguments of the metric.
    """
    training = subject.report["training"]["sources"]
    licence: dict[str, Any] = dict(subject.licence)
    data = ModelCardData(
        base_model=subject.base,
        base_model_relation="adapter",
        library_name="peft",
        pipeline_tag="text-generation",
        **licence,
        datasets=hub_datasets([*training["lower"], *training["upper"]]) or None,
        tags=["lora", "calibration", "confidence", one_line(subject.report["method"])],
        model_name=one_line(subject.name),
        eval_results=list(_results(subject)),
    )
    return str(data.to_yaml())


def hub_datasets(sources: list[str]) -> list[str]:
    """Returns the Hub ids of those sources that are data sets on the Hub, each once."""
    names = [source.removeprefix("hub/") for source in sources if source.startswith("hub/")]
    return list(dict.fromkeys(HUB[name].repository for name in names if name in HUB))


def _results(subject: Subject) -> Iterator[EvalResult]:
    report = subject.report
    for before, after in zip(report["before"], report["results"], strict=True):
        for suffix, result in (("", after), (" of the base model", before)):
            for key, (kind, name) in _METRICS.items():
                value = result[key]["value"]
                if value is None:
                    continue
                yield EvalResult(
                    task_type="multiple-choice",
                    task_name="Multiple choice",
                    **_data_set(result["data"]),
                    metric_type=kind,
                    metric_name=name + suffix,
                    metric_value=round(value, 4),
                    metric_args=_arguments(result, key),
                )


def _data_set(data: Mapping[str, Any]) -> dict[str, Any]:
    name = one_line(data["name"])
    source = HUB.get(name.removeprefix("hub/")) if name.startswith("hub/") else None
    return {
        "dataset_type": name if source is None else source.repository,
        "dataset_name": name,
        "dataset_config": None if source is None else source.config,
        "dataset_split": one_line(data["split"]),
        "dataset_args": {"questions": data["count"], "sha256": one_line(data["sha256"])},
    }


def _arguments(result: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    interval = result[key]["ci95"]
    found = {} if interval is None else {"ci95": [round(end, 4) for end in interval]}
    if key in _BINNED:
        found |= {name: result["binning"][name] for name in ("bins", "scheme", "closed")}
    return found or None
