"""Reports: strict, whole or not at all, and readable."""

import errno
import json
import os
import re
import resource
from contextlib import contextmanager
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from random_predictions import predictions

from toolkit.errors import CalibrantError
from toolkit.evaluation import report as r
from toolkit.evaluation.intervals import bootstrap
from toolkit.evaluation.metrics import METRICS, metrics
from toolkit.questions.question import MultipleChoice, QuestionSet

PROMPT = {"form": "cloze", "style": "plain", "score": "sum"}


def question_set(log_probs, answers, name="worldfacts/chemistry", split="test"):
    questions = []
    for i, (row, answer) in enumerate(zip(log_probs, answers, strict=True)):
        choices = tuple(f"option {k}" for k in range(int((row > -np.inf).sum())))
        questions.append(MultipleChoice(f"q{i}", f"What is {i}? ä", choices, int(answer), "elements"))
    return QuestionSet(name, split, tuple(questions))


def build(n=60, seed=0, name="worldfacts/chemistry", split="test", **settings):
    log_probs, answers = predictions(n, 4, seed, fewer=True)
    data = question_set(log_probs, answers, name, split)
    result = r.build_result(data, log_probs, answers, np.full(n, 0.25), resamples=100, **settings)
    return r.build_report([result], model="bundled", adapter=None, method="none", seed=0, prompt=PROMPT)


@contextmanager
def full_disk(limit):
    """Files end at `limit` bytes: a write beyond fails half way, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_report_holds_every_documented_key():
    report = build(bins=5)
    described = set(re.findall(r"^ {4}(\w+)", r.__doc__.split("A recipe adds")[0], flags=re.M))
    assert set(report) == described
    assert report["schema"] == "calibrant.report/1"
    assert datetime.fromisoformat(report["created"]).utcoffset() == timedelta(0)
    assert report["versions"]["torch"].startswith("2.")
    [result] = report["results"]
    assert set(result) == {"data", "binning", *METRICS, "option_mass", "reliability"}
    assert result["binning"] == {"scheme": "equal-width", "bins": 5, "closed": "right"}
    assert result["option_mass"] == 0.25
    assert sum(b["count"] for b in result["reliability"]) == result["data"]["count"] == 60
    assert len(result["data"]["sha256"]) == 64


def test_numbers_are_those_of_metrics_and_bootstrap():
    log_probs, answers = predictions(60, 4, 0, fewer=True)
    values, intervals = metrics(log_probs, answers), bootstrap(log_probs, answers, resamples=100)
    [result] = build()["results"]
    for name, interval in intervals.items():
        assert interval and result[name] == {"value": values[name], "ci95": list(interval)}


def test_file_is_strict_json_and_reads_back(tmp_path):
    log_probs = np.log(np.array([[0.9, 0.1]]))
    answers = np.array([0])
    result = r.build_result(question_set(log_probs, answers), log_probs, answers, resamples=10)
    report = r.build_report(
        [result],
        model="bundled",
        adapter="a",
        method="calm",
        seed=1,
        prompt=PROMPT,
        temperature=2.0,
    )
    path = tmp_path / "new folder" / "report.json"
    r.write_report(report, path)

    def refuse(constant):
        raise AssertionError(constant)

    json.loads(path.read_text(), parse_constant=refuse)
    assert r.read_report(path) == report
    [result] = report["results"]
    assert result["auroc"] == {"value": None, "ci95": None}
    empty = result["reliability"][0]
    assert empty == {
        "low": 0,
        "high": 0.1,
        "count": 0,
        "confidence": None,
        "accuracy": None,
        "ci95": None,
    }
    assert [p.name for p in path.parent.iterdir()] == ["report.json"]


@pytest.mark.parametrize("kind", ["report", "predictions"])
def test_full_disk_leaves_the_old_file(tmp_path, kind):
    path = tmp_path / "file"
    path.write_text("old")
    log_probs, answers = predictions(2000, 4, 0)
    frame = r.predictions_frame(question_set(log_probs, answers), log_probs, answers)
    report = build()
    with full_disk(1000), pytest.raises(CalibrantError) as caught:
        r.write_report(report, path) if kind == "report" else r.write_predictions(frame, path)
    assert "\n" not in str(caught.value) and "free some space" in str(caught.value)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_file_is_put_in_place_by_one_rename(tmp_path, monkeypatch):
    def refuse(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "report.json"
    path.write_text("old")
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(CalibrantError, match=r"report.json cannot be written \(No space left"):
        r.write_report(build(), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(CalibrantError, match="choose another folder"):
        r.write_report(build(), tmp_path / "file" / "report.json")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (None, "cannot be read"),
        ("{", "is not JSON"),
        ("[]", "has the schema None"),
        ('{"schema": "calibrant.report/2"}', "'calibrant.report/2' and not 'calibrant.report/1'"),
    ],
)
def test_what_is_no_report_is_refused_in_one_line(tmp_path, text, fault):
    path = tmp_path / "report.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CalibrantError, match=fault) as caught:
        r.read_report(path)
    assert "\n" not in str(caught.value)


def test_table_is_aligned_markdown_grouped_by_test_set():
    base, adapter = build(seed=1), build(seed=2)
    for report in (base, adapter):
        report["results"] += build(seed=3, name="hub/mmlu", split="validation")["results"]
    adapter["results"][0]["auroc"]["value"] = None
    lines = r.format_table({"base": base, "CALM": adapter}).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:6]]
    assert len({len(line) for line in lines[:6]}) == 1
    assert [row[:3] for row in rows[2:]] == [
        ["worldfacts/chemistry", "base", "60"],
        ["worldfacts/chemistry", "CALM", "60"],
        ["hub/mmlu (validation)", "base", "60"],
        ["hub/mmlu (validation)", "CALM", "60"],
    ]
    by_heading = dict(zip(rows[0], rows[2], strict=True))
    assert by_heading["conf-ECE"] == f"{base['results'][0]['conf_ece']['value']:.3f}"
    assert by_heading["H − NLL"] == f"{base['results'][0]['entropy_minus_nll']['value']:.3f}"
    assert rows[3][-1] == "–"
    assert lines[-1] == "ECE with 10 equal-width bins; NLL and entropy (H) in nats."


def test_table_takes_reports_without_the_newer_metrics():
    report = build()
    table = r.format_table({"base": report})
    for name in ("ace", "mce", "smooth_ece", "aurc", "accuracy_at_50", "accuracy_at_80"):
        del report["results"][0][name]
    assert r.format_table({"base": report}) == table


def test_predictions_read_back_from_parquet(tmp_path):
    log_probs, answers = predictions(30, 4, 5, fewer=True)
    frame = r.predictions_frame(question_set(log_probs, answers), log_probs, answers)
    r.write_predictions(frame, tmp_path / "predictions.parquet")
    back = pd.read_parquet(tmp_path / "predictions.parquet")
    columns = "source split id subject question choices answer chosen correct confidence"
    assert " ".join(back) == f"{columns} probabilities entropy option_mass"
    found = metrics(log_probs, answers)
    assert back["correct"].mean() == pytest.approx(found["accuracy"])
    assert back["confidence"].mean() == pytest.approx(found["confidence"])
    assert back["entropy"].mean() == pytest.approx(found["entropy"])
    for row in back.itertuples():
        assert len(row.probabilities) == len(row.choices)
        assert sum(row.probabilities) == pytest.approx(1)
        assert row.probabilities[row.chosen] == pytest.approx(row.confidence)
    assert back["option_mass"].isna().all() and back["option_mass"].dtype == float
