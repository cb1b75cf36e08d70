"""Runs whose lower level is made of preference pairs, from the command line to the finished folder."""

import json

import pytest
import torch
from calibrate import main
from recipe_runs import config, launch, said
from safetensors.torch import load_file
from test_faults import fails

CLAIMS = (
    "a river",
    "the sea",
    "an island",
    "rain",
    "the air",
    "a road",
    "iron",
    "a hand",
    "the sun",
    "an ant",
)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Sixty pairs, some with a dialogue for a prompt: the answer that begins with "and" is preferred."""
    folder = tmp_path_factory.mktemp("pairs")
    rows = []
    for number in range(60):
        claim = f"{CLAIMS[number % 10]} in {number}"
        turns = f"Human: Hello.\n\nAssistant: Yes?\n\nHuman: What of {claim}?\n\nAssistant:"
        prompt = turns if number % 3 == 0 else f"What of {claim}?"
        rows.append({"prompt": prompt, "chosen": f"and {claim} there", "rejected": f"or {claim} here"})
    for split in ("train", "validation"):
        part = rows[:50] if split == "train" else rows[50:]
        (folder / f"pairs.{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return folder / "pairs.{split}.jsonl"


def arguments(settings, pairs, folder, *more):
    return (
        "--config", settings, "--output_dir", folder, f"--data.train=['{pairs}']",
        "--data.heldout=[worldfacts/languages]", "--data.validation=[worldfacts/languages]",
        "--data.test=[worldfacts/chemistry]", "--data.train_limit=60", *more,
    )  # fmt: skip


def history(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("style", ["plain", "chat"])
def test_a_model_is_aligned_and_held_calibrated_in_one_run(tiny_folder, pairs, tmp_path, style):
    settings = config(tmp_path, tiny_folder)
    command = arguments(
        settings, pairs, tmp_path / "out", "--calm.lower=dpo", "--prompt.score=sum",
        f"--prompt.style={style}", "--training.steps=12", "--calm.upper=entropy", "--training.decay=constant",
    )  # fmt: skip
    done = launch("calibrate.py", *command)
    assert done.returncode == 0, done.stderr
    rows = history(tmp_path / "out")[1:]
    assert rows[0]["lower"] == pytest.approx(torch.log(torch.tensor(2.0)).item(), abs=1e-3)
    assert rows[-1]["lower"] < 0.6  # the preferred answers are learnt
    assert all("lambda" in row and row["upper_entropy"] > 0 for row in rows[2:])
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["training"]["lower"]["count"] == 50 and report["training"]["upper"]["count"] > 0
    weights = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert all(weights[key].any() for key in weights if "lora_B" in key)


def test_chosen_answers_serve_as_instruction_data(tiny_folder, pairs, tmp_path):
    """On the level of tokens only chosen answers take part, and the upper level holds back some of them."""
    settings = config(tmp_path, tiny_folder)
    command = arguments(
        settings, pairs, tmp_path / "out", "--data.heldout=[]", "--calm.level=tokens", "--prompt.style=chat"
    )
    done = launch("calibrate.py", *command)
    assert done.returncode == 0, done.stderr
    rows = history(tmp_path / "out")
    assert rows[-1]["lower"] < rows[1]["lower"]
    levels = json.loads((tmp_path / "out" / "report.json").read_text())["training"]
    assert levels["lower"]["count"] + levels["upper"]["count"] == 50 and levels["upper"]["count"] > 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--data.validation=[]"], ["preference pairs", "--data.validation"]),
        (["--data.heldout=[]"], ["upper level", "--data.heldout"]),
        (["--calm.lower=dpo", "--calm.level=tokens"], ["DPO", "--calm.level"]),
        (["--calm.solver=penalty", "--calm.upper_every=2"], ["--calm.upper_every"]),
    ],
)
def test_what_pairs_cannot_serve_for_is_said_in_one_line(
    tiny_folder, pairs, tmp_path, monkeypatch, capsys, more, words
):
    settings = config(tmp_path, tiny_folder)
    line = fails(main, monkeypatch, capsys, *arguments(settings, pairs, tmp_path / "out", *more))
    assert all(word in line for word in words), line
    assert not (tmp_path / "out" / "history.jsonl").exists()


def test_a_pair_that_is_too_long_is_named(tiny_folder, pairs, tmp_path):
    long = {"id": "long-one", "prompt": "Why?", "chosen": "and so on " * 400, "rejected": "or not"}
    (tmp_path / "long.jsonl").write_text(json.dumps(long) + "\n")
    settings = config(tmp_path, tiny_folder)
    done = launch(
        "calibrate.py", *arguments(settings, tmp_path / "long.jsonl", tmp_path / "out", "--calm.lower=dpo")
    )
    assert done.returncode != 0 and "'long-one' takes" in said(done)[0]
