"""What the page knows of an evaluation: tests of `app/reports.py` and `app/evidence.py`."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from app_models import load, predictions
from finished_adapters import report

from app.answers import KINDS, Form
from app.evidence import answer_evidence, data_sets, option_evidence
from app.reports import ALL_SETS, AdapterReport, mistakes, read_adapter_report
from toolkit.errors import CalibrantError
from toolkit.evaluation.binary import confidence_block
from toolkit.evaluation.metrics import reliability
from toolkit.evaluation.report import write_report


def pooled(count: int = 200) -> tuple[AdapterReport, list[dict]]:
    """A report of two sets, and the bins of all their answers at once."""
    draw = np.random.default_rng(5)
    confidence = draw.uniform(0.3, 1, count)
    correct = draw.random(count) < confidence
    found = report()
    halves = np.array_split(np.arange(count), [70])
    for result, half in zip(found["results"], halves, strict=True):
        result["reliability"] = [asdict(one) for one in reliability(confidence[half], correct[half])]
    return AdapterReport(found, predictions()), [asdict(one) for one in reliability(confidence, correct)]


def test_bins_of_all_sets_are_those_of_all_answers_at_once():
    found, expected = pooled()
    bins = found.bins("adapter", ALL_SETS)
    assert len(bins) == len(expected)
    for one, other in zip(bins, expected, strict=True):
        assert (one.low, one.high, one.count) == (other["low"], other["high"], other["count"])
        if one.count:
            assert one.confidence == pytest.approx(other["confidence"])
            assert one.accuracy == pytest.approx(other["accuracy"])
            assert one.ci95 == pytest.approx(other["ci95"])
        else:
            assert one.accuracy is None and one.ci95 is None


def test_base_and_adapter_and_sets_are_told_apart():
    found = AdapterReport(report(), predictions())
    one, other = (found.bins(who, "worldfacts/chemistry") for who in ("base", "adapter"))
    assert one != other and sum(b.count for b in one) == sum(b.count for b in other) == 30
    assert found.bins("adapter", "no such set") == ()
    assert found.sets == (ALL_SETS, "worldfacts/capitals", "worldfacts/chemistry")


def test_mistakes_the_most_confident_first():
    frame = predictions()
    assert list(mistakes(frame)["confidence"]) == [0.99, 0.97, 0.9, 0.6, 0.4]
    assert list(mistakes(frame, wrong_only=False)["question"])[-1] == "B?"
    assert list(mistakes(frame, source="worldfacts/capitals", subjects=["border"])["question"]) == ["C?"]
    assert list(mistakes(frame, low=0.5, high=0.9)["confidence"]) == [0.9, 0.6]
    assert mistakes(frame[:0]).empty


def test_reads_only_test_questions_and_whole_reports(tmp_path):
    assert read_adapter_report(tmp_path) is None
    write_report(report(), tmp_path / "report.json")
    found = read_adapter_report(tmp_path)
    assert found is not None and found.predictions.empty
    predictions().to_parquet(tmp_path / "predictions.parquet")
    found = read_adapter_report(tmp_path)
    assert found is not None and set(found.predictions["split"]) == {"test"}
    (tmp_path / "predictions.parquet").write_bytes(b"no table")
    with pytest.raises(CalibrantError, match="evaluate the adapter again"):
        read_adapter_report(tmp_path)
    broken = report()
    del broken["results"][0]["reliability"]
    (tmp_path / "report.json").write_text(json.dumps(broken))
    with pytest.raises(CalibrantError, match="lacks parts"):
        read_adapter_report(tmp_path)


def test_each_kind_has_its_own_diagram_where_open_ended_answers_were_measured(tmp_path, tiny_folder):
    models = load(tmp_path, tiny_folder)
    base, first, second = models.names
    found = models.adapters[first].report
    block = confidence_block(np.array([0.2, 0.4]), np.array([False, True]), resamples=2)
    entry = {"data": {"name": "facts/open"}, "confidence": {"p_true": block}}
    assert found is not None
    found.report["open_ended"] = [entry]
    assert data_sets(models, base, first, open_ended=True)[0] == "facts/open"
    assert "facts/open" not in data_sets(models, base, first, open_ended=False)
    form = Form("Which?", base, first, data="facts/open")
    evidence = answer_evidence(models, form, first, base)
    assert sum(one.count for one in evidence["p_true"].bins) == 2
    assert evidence["token"].bins == () and "has not measured" in evidence["token"].of
    by_options = answer_evidence(models, Form("Which?", base, first, data=ALL_SETS), first, base)
    assert len({by_options[kind].bins for kind in KINDS}) == 1
    assert option_evidence(models, base, second, ALL_SETS).bins != by_options["token"].bins
