import json

import large_model
import pytest
import torch
from step_rows import ROWS


def test_dry_run_measures_all_parts(tmp_path, capsys):
    large_model.main(["--dry_run", "--output_dir", str(tmp_path)])
    printed = capsys.readouterr()
    result = json.loads((tmp_path / "large_model.json").read_text())
    assert result["finished"] and result["device"] in printed.out.splitlines()[0]
    assert printed.out == (tmp_path / "large_model.md").read_text()
    steps, evaluation = result["parts"]["training_step"], result["parts"]["evaluation"]
    assert list(steps["rows"]) == list(ROWS)
    assert all(row["memory"]["peak"] > 0 and row["tokens_per_second"] > 0 for row in steps["rows"].values())
    for part in (steps, evaluation):
        assert part["model"]["name"] == "random:tiny" and part["model"]["quantization"]["method"] == "nf4"
    sides = evaluation["forms"]["cloze"]["sides"]
    assert all(sides[side]["tokens_per_second"] > 0 for side in ("ours", "lm_eval"))
    assert "times of training steps" in printed.err and "memory of bome_options" in printed.err


@pytest.fixture
def shortened(monkeypatch):
    """A run whose training steps take no time, and whose tables are short."""
    done: dict[str, object] = {"rows": {}}
    monkeypatch.setattr(large_model, "ROWS", ())
    monkeypatch.setattr(large_model.training_step, "time_rows", lambda *arguments, **keys: done)
    monkeypatch.setattr(large_model, "table", lambda result: f"{result['parts']}")
    return done


def test_keeps_what_was_done_when_cut_short(shortened, tmp_path, monkeypatch):
    def cut(*arguments, **keys):
        raise KeyboardInterrupt

    monkeypatch.setattr(large_model, "evaluate", cut)
    with pytest.raises(KeyboardInterrupt):
        large_model.main(["--dry_run", "--output_dir", str(tmp_path)])
    result = json.loads((tmp_path / "large_model.json").read_text())
    assert result["parts"] == {"training_step": shortened} and not result["finished"]
    assert (tmp_path / "large_model.md").read_text() == f"{result['parts']}\n"


def test_a_part_that_fails_stops_no_other(shortened, tmp_path, monkeypatch, capsys):
    def fail(*arguments, **keys):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(large_model.training_step, "time_rows", fail)
    monkeypatch.setattr(large_model, "evaluate", lambda plan, loads: {"forms": {}})
    with pytest.raises(SystemExit):
        large_model.main(["--dry_run", "--output_dir", str(tmp_path)])
    assert "times of training steps failed; what was measured" in capsys.readouterr().err.splitlines()[-1]
    result = json.loads((tmp_path / "large_model.json").read_text())
    assert result["parts"] == {"evaluation": {"forms": {}}} and not result["finished"]
    assert result["failed"] == {"times of training steps": "RuntimeError: no compiler"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--dry_run"], "give --output_dir"), (["--output_dir", "nowhere"], "no NVIDIA GPU is here")],
)
def test_refuses_in_one_line(arguments, said, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        large_model.main(arguments)
    printed = capsys.readouterr()
    assert printed.out == "" and said in printed.err and printed.err.count("\n") == 1
