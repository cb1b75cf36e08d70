import json
from dataclasses import replace

import measure
import pytest
import scaling
from scaling import Point

from toolkit.errors import CalibrantError

SMALL = Point(questions=3, options=2, length=5, model="tiny", batch_size=2)


def test_varies_one_factor_at_a_time():
    measured = []

    def measure(point, kind):
        measured.append((point, kind))
        return {"seconds": [1.0], "median_seconds": point.questions * point.length, "memory": point.options}

    factors = {"questions": [2, 3, 4], "length": [5, 10]}
    result = scaling.benchmark(SMALL, factors, measure)
    points = {replace(SMALL, questions=count) for count in (2, 3, 4)} | {replace(SMALL, length=10)}
    assert sorted(map(str, measured)) == sorted(
        str((point, kind)) for point in points for kind in ("evaluation", "step")
    )
    grown = [point["evaluation"]["growth"] for point in result["factors"]["questions"]]
    assert grown == [1, 1.5, 2]
    assert [point["step"]["growth"] for point in result["factors"]["length"]] == [1, 2]
    assert result["base"]["model"] == "tiny"


def test_questions_have_the_sizes_of_the_point():
    questions = scaling.random_questions(SMALL, 50, seed=1)
    assert len(questions) == 3 and questions != scaling.random_questions(SMALL, 50, seed=2)
    for question in questions:
        assert len(question.prompt) == 5 and [len(option) for option in question.options] == [4, 4]
        assert max(question.prompt) < 50


@pytest.mark.parametrize("kind", ["evaluation", "step"])
def test_measures_a_point(kind):
    found = scaling.measure_point(SMALL, kind, method="bome_options", repeats=2)
    assert len(found["seconds"]) == 2 and found["median_seconds"] > 0 and found["memory"] >= 0


def test_quick_form_measures_everything_here(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(scaling, "QUICK_FACTORS", {"options": [2, 3], "model": ["tiny"]})
    scaling.main(["--quick", "--repeats", "1", "--output_dir", str(tmp_path)])
    result = json.loads((tmp_path / "scaling.json").read_text())
    assert result["quick"] and result["method"] == "bome_options"
    printed = capsys.readouterr().out
    assert printed == (tmp_path / "scaling.md").read_text()
    rows = [line.split("|")[1].strip() for line in printed.splitlines() if line.startswith("|")]
    assert rows == ["factor", "---", "options", "options", "model"]


def test_measures_a_point_in_a_process_of_its_own(monkeypatch, capsys):
    found = {"seconds": [1.0], "median_seconds": 1.0, "memory": 7}

    def run(command, **keys):
        printed = command[2:]
        monkeypatch.setattr(
            scaling, "measure_point", lambda point, kind, **more: found | {"point": str(point)}
        )
        scaling.main(printed)
        return type("Done", (), {"returncode": 0, "stdout": capsys.readouterr().out, "stderr": ""})

    monkeypatch.setattr(measure.subprocess, "run", run)
    again = scaling.child(SMALL, "step", ["--repeats", "2"])
    assert again == found | {"point": str(SMALL)}


def test_says_why_a_process_failed(monkeypatch):
    failed = type("Done", (), {"returncode": 2, "stdout": "", "stderr": "warning\nerror: no room"})
    monkeypatch.setattr(measure.subprocess, "run", lambda *arguments, **keys: failed)
    with pytest.raises(CalibrantError, match="the step of Point.* failed: no room"):
        scaling.child(SMALL, "step", [])
