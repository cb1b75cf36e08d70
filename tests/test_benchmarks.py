import json

import numpy as np
import options
import pytest
import torch

from toolkit.confidence.options import OptionConfidence
from toolkit.models.base import load_model
from toolkit.models.encoding import EncodedQuestion
from toolkit.questions.sources import load_questions


def run(tiny_folder, *more: str) -> None:
    options.main(["--model", str(tiny_folder), "--questions", "6", "--repeats", "3", *more])


def fault(capsys, arguments: list[str]) -> str:
    """The one line on stderr with which the benchmark refuses to run."""
    with pytest.raises(SystemExit) as caught:
        options.main(arguments)
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1
    return printed.err


def test_measures_both_layouts_on_the_same_questions(tiny_folder, tmp_path, capsys):
    folder = tmp_path / "out"
    run(tiny_folder, "--seed", "7", "--output_dir", str(folder))
    result = json.loads((folder / "options.json").read_text())
    data = load_questions("worldfacts", "test").sample(6, 7)
    assert result["data"] == {"name": "worldfacts", "split": "test", "count": 6, "sha256": data.sha256}
    assert (result["seed"], result["threads"]) == (7, torch.get_num_threads())
    assert result["versions"]["torch"] == torch.__version__
    tree, packed, separate = (result["layouts"][layout] for layout in ("tree", "packed", "separate"))
    assert len(tree["seconds"]) == len(packed["seconds"]) == len(separate["seconds"]) == 3
    assert packed["median_seconds"] == sorted(packed["seconds"])[1]
    pairs = sorted(s / p for s, p in zip(separate["seconds"], packed["seconds"], strict=True))
    assert packed["times_as_fast"] == pytest.approx(pairs[1]) and separate["times_as_fast"] == 1
    assert 2 * packed["tokens"] < separate["tokens"] and tree["tokens"] < packed["tokens"]
    assert result["largest_difference"] < 1e-4
    printed = capsys.readouterr().out
    assert printed == (folder / "options.md").read_text()
    rows = [line.split("|")[1].strip() for line in printed.splitlines() if line.startswith("|")]
    assert rows == ["layout", "---", "tree", "packed", "separate"]
    assert data.sha256[:12] in printed and str(tiny_folder) not in printed


def test_counts_the_tokens_that_the_model_is_given(tiny_folder):
    model, _ = load_model(str(tiny_folder))
    short = EncodedQuestion("short", [1, 2, 3], [[4], [5, 6]], 0, [1, 1])  # packed: 4 tokens
    longer = EncodedQuestion("longer", [1, 2, 3, 4], [[4, 5], [5, 6, 7]], 0, [1, 1])  # packed: 7
    assert options.count_tokens(model, [short, longer], "packed", 1) == 4 + 7
    assert options.count_tokens(model, [short, longer], "packed", 2) == 2 * 7
    assert options.count_tokens(model, [short, longer], "separate", 2) == 4 * 6


def test_refuses_scores_that_differ(tiny_folder, monkeypatch, capsys):
    scores = {"tree": 0.0, "packed": -0.001, "separate": -0.001}

    def confidence(model, questions, *, layout, batch_size):
        log_probs = np.full((len(questions), 4), scores[layout])
        return OptionConfidence(log_probs, np.zeros(len(questions), int), np.ones(len(questions)))

    monkeypatch.setattr(options, "option_confidence", confidence)
    with pytest.raises(SystemExit):
        run(tiny_folder)
    printed = capsys.readouterr()
    assert printed.out == "" and "0.001 nats differently" in printed.err.splitlines()[-1]


def test_overwrites_nothing(tmp_path, capsys):
    (tmp_path / "options.md").write_text("mine")
    assert "already holds a benchmark" in fault(capsys, ["--output_dir", str(tmp_path)])
    assert (tmp_path / "options.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--question", "4"], "--question"),
        (["--nothing", "4"], "unrecognized arguments: --nothing 4"),
        (["--questions", "0"], "--questions"),
        (["--repeats", "few"], "--repeats"),
        (["--model", "./nowhere"], "no folder ./nowhere"),
    ],
)
def test_refuses_in_one_line(arguments, said, capsys):
    assert said in fault(capsys, arguments)
