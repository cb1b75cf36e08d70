"""Agreement of the graders with a reader, on answers of the bundled model."""

import json

import graders
import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score


def test_the_default_grader_agrees_with_a_reader(tmp_path, capsys):
    graders.main(["--output_dir", str(tmp_path)])
    found = json.loads((tmp_path / "graders.json").read_text())
    assert (found["answers"], found["right"]) == (200, 58)
    rows = [json.loads(line) for line in graders.SAMPLE.read_text().splitlines()]
    for one in found["graders"].values():
        wrong = len(one["wrongly_right"]) + len(one["wrongly_wrong"])
        assert one["agreement"] == pytest.approx(1 - wrong / len(rows))
    best = found["graders"]["any"]
    assert best["agreement"] >= 0.96 and best["kappa"] >= 0.9
    assert f"| any | {best['agreement']:.3f} | {best['kappa']:.2f} |" in capsys.readouterr().out


def test_kappa_is_scikit_learns():
    random = np.random.default_rng(0)
    a, b = random.random(50) < 0.3, random.random(50) < 0.4
    assert graders.kappa(a, b) == pytest.approx(cohen_kappa_score(a, b))
    assert graders.kappa(np.ones(3, dtype=bool), np.ones(3, dtype=bool)) is None


def test_a_file_of_something_else_is_one_line(tmp_path, capsys):
    path = tmp_path / "graded.jsonl"
    for text in ("{}", "no JSON", '{"question": "?"}'):
        path.write_text(text)
        with pytest.raises(SystemExit):
            graders.main(["--sample", str(path)])
        assert "is no file of graded answers" in capsys.readouterr().err
    path.write_text("")
    with pytest.raises(SystemExit):
        graders.main(["--sample", str(path)])
    assert "has no answers" in capsys.readouterr().err
