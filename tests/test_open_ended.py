"""Open-ended questions from training to the report, and every confidence in an answer, on the tiny model."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml
from recipe_runs import config, launch

from toolkit.confidence.clusters import by_content
from toolkit.confidence.phrases import HUMAN, find_phrase
from toolkit.confidence.semantic import modal
from toolkit.confidence.tokens import SEQUENCE
from toolkit.evaluation.binary import binary_metrics
from toolkit.evaluation.grading import GRADERS
from toolkit.questions.question import OpenEnded

OPEN = ["--data", "worldfacts/chemistry/open", "--data", "worldfacts/capitals/open", "--limit", "4"]
ASKED = ["--open_ended.samples", "6", "--open_ended.max_tokens", "5", "--open_ended.elicitations",
         "[one_stage,top_k,two_stage,reasoning]", "--resamples", "20"]  # fmt: skip
KEYS = ("before_open_ended", "open_ended")
STATED = ["stated_one_stage", "stated_top_k", "stated_two_stage", "stated_reasoning"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_folder):
    """An adapter trained on open-ended questions at the level of tokens, with an open-ended report."""
    folder = tmp_path_factory.mktemp("open")
    path = config(folder, tiny_folder)
    keys = yaml.safe_load(path.read_text())
    keys["data"] |= {
        "train": ["worldfacts/languages/open"],
        "heldout": ["worldfacts/currencies/open"],
        "test": ["worldfacts/chemistry/open"],
        "test_limit": 4,
    }
    keys["calm"] |= {"level": "tokens", "predictive": "adjusted", "alpha": "scalar"}
    keys["open_ended"] = {"samples": 4, "max_tokens": 5, "elicitations": []}
    path.write_text(yaml.safe_dump(keys))
    done = launch("calibrate.py", "--config", path, "--output_dir", folder / "out")
    assert done.returncode == 0, done.stderr
    return folder / "out", done.stdout


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory, tiny_folder):
    folder = tmp_path_factory.mktemp("evaluated") / "out"
    command = ["--model", tiny_folder, *OPEN, *ASKED, "--output_dir", folder]
    done = launch("evaluate.py", *command)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def report(folder):
    return json.loads((folder / "report.json").read_text())


def test_training_at_the_level_of_tokens_fits_open_ended_answers(trained):
    folder, table = trained
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert rows[-1]["validation_nll"] < rows[0]["validation_nll"]
    assert rows[-1]["alpha_delta_max"] != 1
    found = report(folder)
    assert found["results"] == found["before"] == []
    names = {*SEQUENCE, "sem1", "sem2", "semantic_entropy", "p_true", "p_true_samples"}
    for key in KEYS:
        assert [one["data"]["name"] for one in found[key]] == ["worldfacts/chemistry/open"]
        assert set(found[key][0]["confidence"]) == names
    assert "worldfacts/chemistry/open" in table and "sem2" in table
    assert not (folder / "predictions.parquet").exists()
    card = (folder / "README.md").read_text()
    (row,) = [line for line in card.splitlines() if "`sem2`" in line]
    before, after = (found[key][0]["confidence"]["sem2"]["conf_ece"]["value"] for key in KEYS)
    assert f"{before:.3f}" in row and f"{after:.3f}" in row and "reliability.png" not in card


def test_the_report_follows_from_the_answers(evaluated):
    folder, table = evaluated
    frame = pd.read_parquet(folder / "answers.parquet")
    found = report(folder)["open_ended"]
    assert [one["data"]["count"] for one in found] == [4, 4] == [*frame.groupby("source", sort=False).size()]
    for one in found:
        rows = frame[frame["source"] == one["data"]["name"]]
        questions = [OpenEnded(row.id, row.question, tuple(row.accepted)) for row in rows.itertuples()]
        right = GRADERS["any"](questions, [*rows["answer"]])
        assert [*rows["correct"]] == right and one["accuracy"] == np.mean(right)
        assert set(one["confidence"]) == {
            *SEQUENCE, "sem1", "sem2", "semantic_entropy", "p_true", "p_true_samples", *STATED,
        }  # fmt: skip
        for name, block in one["confidence"].items():
            expected = binary_metrics(rows[name].to_numpy(), rows[f"{name}_correct"].to_numpy())
            for metric in ("conf_ece", "brier", "missing", "accuracy"):
                value = block[metric]["value"]
                assert value == pytest.approx(expected[metric], nan_ok=True) if value is not None else True
        for question, samples, clusters in zip(questions, rows["samples"], rows["clusters"], strict=True):
            assert len(samples) == 6 and by_content(question.text, samples) == [*clusters]
        said = [s[m] for s, m in zip(rows["samples"], modal(np.stack([*rows["clusters"]])), strict=True)]
        assert [*rows["sem1_correct"]] == GRADERS["any"](questions, said)
    assert "stated_top_k" in table and "missing" in table
    assert (folder / "confidence.png").stat().st_size > 10_000


@pytest.mark.slow
def test_phrases_are_fitted_to_answers_to_other_questions(tmp_path):
    """The bundled model's phrases on one set, which then stand for how often they were right."""
    asked = ["--model", "bundled", "--style", "chat", "--limit", 12, "--open_ended.samples", 0,
             "--resamples", 20, "--open_ended.p_true", "false",
             "--open_ended.elicitations", "[linguistic]"]  # fmt: skip
    first = [
        *asked,
        "--data",
        "worldfacts/capitals/open",
        "--split",
        "validation",
        "--output_dir",
        tmp_path / "one",
    ]
    done = launch("evaluate.py", *first)
    assert done.returncode == 0, done.stderr
    fitting = ["--open_ended.phrases_from", tmp_path / "one"]
    second = [*asked, *fitting, "--data", "worldfacts/us_states/open", "--output_dir", tmp_path / "two"]
    done = launch("evaluate.py", *second)
    assert done.returncode == 0, done.stderr
    one, two = (pd.read_parquet(tmp_path / name / "answers.parquet") for name in ("one", "two"))
    phrases = [find_phrase(reply) for reply in one["reply_linguistic"]]
    said = {phrase for phrase in phrases if phrase}
    assert said
    right = one["stated_linguistic_correct"]
    fitted = {
        phrase: (10 * HUMAN[phrase] + right[[one == phrase for one in phrases]].sum())
        / (10 + phrases.count(phrase))
        for phrase in said
    }
    found = 0
    for reply, people, ours in zip(
        two["reply_linguistic"], two["stated_linguistic"], two["stated_linguistic_fitted"], strict=True
    ):
        phrase = find_phrase(reply)
        if phrase and people == HUMAN[phrase]:
            assert ours == pytest.approx(fitted.get(phrase, people))
            found += ours != people
    assert found
    done = launch("evaluate.py", *first[:-1], tmp_path / "three", *fitting)
    assert done.returncode == 1 and "fit them on other questions" in done.stderr.splitlines()[-1]


def test_two_processes_say_the_same(evaluated, tiny_folder, tmp_path):
    folder, _ = evaluated
    command = ["--model", tiny_folder, *OPEN, *ASKED, "--output_dir", tmp_path / "two"]
    done = launch("evaluate.py", *command, processes=2)
    assert done.returncode == 0, done.stderr
    one, two = (pd.read_parquet(path / "answers.parquet") for path in (folder, tmp_path / "two"))
    assert [[*row] for row in one["samples"]] == [[*row] for row in two["samples"]]
    assert [*one["answer"]] == [*two["answer"]]
    for name in (*SEQUENCE, "sem2", "p_true", *STATED):
        assert np.allclose(one[name], two[name], atol=1e-4, equal_nan=True), name


def test_both_kinds_of_questions_in_one_report(trained, tiny_folder, tmp_path):
    folder, _ = trained
    done = launch(
        "evaluate.py", "--model", tiny_folder, "--adapter", folder, *OPEN, "--data", "worldfacts/capitals",
        "--open_ended.samples", 0, "--open_ended.p_true", "false", "--open_ended.elicitations", "[]",
        "--open_ended.max_tokens", 5, "--resamples", 20, "--output_dir", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = report(tmp_path / "out")
    assert [one["data"]["name"] for one in found["results"]] == ["worldfacts/capitals"]
    assert [set(one["confidence"]) for one in found["open_ended"]] == [set(SEQUENCE)] * 2
    before = report(folder)["open_ended"][0]
    mine = found["open_ended"][0]["confidence"]
    assert before["data"]["sha256"] == found["open_ended"][0]["data"]["sha256"]
    for name in SEQUENCE:
        own = before["confidence"][name]["confidence"]["value"]
        assert mine[name]["confidence"]["value"] == pytest.approx(own, abs=1e-4)


def test_a_comparison_has_both_kinds_of_questions(trained, tmp_path):
    folder, _ = trained
    (tmp_path / "config.yaml").write_text((folder.parent / "config.yaml").read_text())
    keys = {
        "calibration": "config.yaml",
        "methods": {"sft": {"method": "sft"}, "calm": {}},
        "temperature": [],
        "seeds": [0, 1],
        "shared": {"data.validation": ["worldfacts/cities"], "open_ended.samples": 3},
        "folds": {
            "open": {"data.test": ["worldfacts/chemistry/open", "worldfacts/currencies/open"]},
            "both": {"data.test": ["worldfacts/capitals", "worldfacts/chemistry/open"]},
        },
    }
    (tmp_path / "compare.yaml").write_text(yaml.safe_dump(keys, sort_keys=False))
    command = ("compare.py", "--config", tmp_path / "compare.yaml", "--output_dir", tmp_path / "out")
    done = launch(*command)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [one["name"] for one in found["tests"]] == ["worldfacts/capitals (both)"]
    assert [(one["name"], one["in_domain"]) for one in found["open_ended"]["tests"]] == [
        ("worldfacts/chemistry/open (open)", False),
        ("worldfacts/currencies/open (open)", True),
        ("worldfacts/chemistry/open (both)", False),
    ]
    methods = found["open_ended"]["methods"]
    assert list(methods) == ["none", "sft", "calm"]
    for name, path in (("none", "none"), ("sft", "open/sft-seed1"), ("calm", "open/calm-seed1")):
        entries = report(tmp_path / "out" / path)["open_ended"]
        (own,) = [one for one in entries if one["data"]["name"] == "worldfacts/currencies/open"]
        for kind in ("sem2", "length_normalised"):
            value = own["confidence"][kind]["brier"]["value"]
            seeds = methods[name][kind]["worldfacts/currencies/open (open)"]["brier"]["seeds"]
            assert seeds[-1] == pytest.approx(value)
    assert "| sem2 " in done.stdout and "capitals" in done.stdout
