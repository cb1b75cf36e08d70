"""What a user can get wrong: one line that names the fault and the mend, exit status 2, nothing lost."""

import json
import shutil
import signal
import sys

import calibrate
import compare
import evaluate
import pytest
import torch
from recipe_runs import config, contents, launch, said
from runs import run_recipe
from transformers import AutoTokenizer

from toolkit.errors import CalibrantError
from toolkit.models.adapters import attach_lora, save_adapter
from toolkit.models.base import load_model

GOOD = json.dumps({"question": "Is ice cold?", "choices": ["yes", "no"], "answer": 0})


def fails(main, monkeypatch, capsys, *arguments) -> str:
    """Runs a recipe within this process and returns the one line that it says."""
    monkeypatch.setattr(sys, "argv", ["recipe", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        run_recipe(main)
    assert end.value.code == 2
    printed = capsys.readouterr()
    lines = [
        line for line in printed.err.replace("\r", "\n").splitlines() if "%|" not in line and line.strip()
    ]
    assert len(lines) == 1 and lines[0].startswith("error: "), printed.err
    assert printed.out == ""
    return lines[0]


@pytest.fixture
def settings(tmp_path, tiny_folder):
    return config(tmp_path / "settings", tiny_folder)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model.name", "no/such-model"], ["no/such-model"]),
        (["--model.name", "./no-such-folder"], ["no-such-folder"]),
        (["--model.dtype", "float8"], ["model.dtype", "float8"]),
        (["--data.train", "[worldfacts/alchemy]"], ["worldfacts/alchemy", "chemistry"]),
        (["--data.train", "[hub/nothing]"], ["hub/nothing", "mmlu"]),
        (["--data.train", "[nothing.jsonl]"], ["nothing.jsonl"]),
        (["--data.train", "[]"], ["--data.train"]),
        (["--data.train", "[worldfacts/capitals/open]"], ["open-ended", "--calm.level"]),
        (["--training.stepz", "3"], ["stepz", "--help"]),
        (["--training.steps", "many"], ["training.steps", "many"]),
        (["--method", "magic"], ["method", "magic", "calm"]),
        (["--calm.upper", "chaos"], ["calm.upper", "entropy"]),
        (["--calm.delta_min", "2"], ["delta_min"]),
        (["--lora.targets", "[no_such_layer]"], ["--lora.targets"]),
        (["--data.train_limit", "1"], ["heldout_share"]),
        (["--config", "no-such.yaml"], ["no-such.yaml"]),
        (["--training.steps", "2"], ["--training.steps", "--calm.lower_steps"]),
        (["--training.batch_size", "0"], ["training.batch_size", "0"]),
        (["--training.learning_rate", "nan"], ["training.learning_rate", "nan"]),
        (["--report.bins", "0"], ["report.bins"]),
        (["--report.resamples", "0"], ["report.resamples"]),
        (["--seed", "-1"], ["seed"]),
        (["--data.test_limit", "-1"], ["data.test_limit"]),
        (["--lora.rank", "0"], ["lora.rank"]),
        (["--lora.layers", "[0,99]"], ["--lora.layers", "[0, 2]"]),
        (["--lora.layers", "[1]"], ["--lora.layers"]),
        (["--lora.targets", "[all-linear,q_proj]"], ["--lora.targets"]),
        (["--data.train", "[worldfacts/cities,worldfacts/cities]"], ["named twice"]),
    ],
)
def test_settings(settings, tmp_path, monkeypatch, capsys, arguments, words):
    line = fails(
        calibrate.main,
        monkeypatch,
        capsys,
        "--config",
        settings,
        "--output_dir",
        tmp_path / "out",
        *arguments,
    )
    assert all(word in line for word in words), line
    assert not (tmp_path / "out").exists() or contents(tmp_path / "out") == {}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{not json}", [".jsonl:2: ", "JSON"]),
        (json.dumps({"question": "Who?", "choices": ["a", "b"]}), [".jsonl:2: ", "answer"]),
        (json.dumps({"question": "Who?", "choices": ["a", "b"], "answer": 2}), [".jsonl:2: ", "answer", "2"]),
        (
            json.dumps({"question": "Who?", "choices": ["a", "b"], "answer": -1}),
            [".jsonl:2: ", "answer", "-1"],
        ),
        (json.dumps({"question": "Who?", "choices": ["a"], "answer": 0}), [".jsonl:2: ", "1 option"]),
        (json.dumps({"question": "w " * 600, "choices": ["a", "b"], "answer": 0}), ["512", "token"]),
        (None, ["no questions"]),
    ],
)
@pytest.mark.parametrize("recipe", ["calibrate", "evaluate"])
def test_questions(settings, tiny_folder, tmp_path, monkeypatch, capsys, content, words, recipe):
    path = tmp_path / "fragen größer.jsonl"
    path.write_text("" if content is None else f"{GOOD}\n{content}\n", encoding="utf-8")
    out = ("--output_dir", tmp_path / "out")
    if recipe == "calibrate":
        test = f"--data.test=['{path}']"
        line = fails(calibrate.main, monkeypatch, capsys, "--config", settings, test, *out)
    else:
        line = fails(evaluate.main, monkeypatch, capsys, "--model", tiny_folder, "--data", path, *out)
    assert all(word in line for word in words), line
    assert contents(tmp_path / "out") == {}


def test_the_same_question_in_another_guise_is_not_tested_on(settings, tmp_path, monkeypatch, capsys):
    rows = [{"question": f"Is {n} even?", "choices": ["Yes", "No"], "answer": n % 2} for n in range(40)]
    guise = [{"question": f"is  {n} EVEN? ", "choices": ["no", "yes"], "answer": 1 - n % 2} for n in range(4)]
    other = [{"question": f"Is {n} odd?", "choices": ["Yes", "No"], "answer": 1 - n % 2} for n in range(4)]
    for name, content in (("rows", rows), ("guise", guise), ("other", other)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
    for train, validation, test in (
        ("rows", "other", "guise"),
        ("rows", "guise", "other"),
        ("rows", "other", "other"),
    ):
        line = fails(
            calibrate.main, monkeypatch, capsys, "--config", settings, "--output_dir", tmp_path / "out",
            "--data.train_limit=40", *(f"--data.{key}=['{tmp_path / name}.jsonl']"
              for key, name in (("train", train), ("validation", validation), ("test", test))),
        )  # fmt: skip
        assert "share 4 questions" in line and "{split}" in line


def test_a_run_is_resumed_with_the_same_questions_only(settings, tmp_path, monkeypatch, capsys):
    def write(word):
        rows = [{"question": f"Is {n} {word}?", "choices": ["Yes", "No"], "answer": n % 2} for n in range(40)]
        (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    write("even")
    command = ("--config", settings, f"--data.train=['{tmp_path}/train.jsonl']",
               "--data.validation=[worldfacts/cities]", "--output_dir", tmp_path / "out")  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr("toolkit.calibration.training._describe", _stop_at(4))
        line = fails(calibrate.main, monkeypatch, capsys, *command)
    assert "stopped" in line
    write("odd")
    line = fails(calibrate.main, monkeypatch, capsys, *command)
    assert "trained on other questions" in line and "--output_dir" in line
    write("even")
    assert launch("calibrate.py", *command).returncode == 0


def _stop_at(last):
    steps: list[int] = []

    def describe(delta, iota):
        steps.append(0)
        if len(steps) > last:
            raise CalibrantError("stopped")
        return {}

    return describe


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ("{none: {method: sft}}", ["'none'"]),
        ("{'none + T': {method: sft}}", ["'none + T'"]),
        ("{../out: {method: sft}}", ["'../out'"]),
        ("{a: {seed: 3}}", ["--seeds"]),
        ("{a: {method: sft}, b: {model.dtype: bfloat16}}", ["share model"]),
        ("{a: {method: sft}, b: {report.bins: 3}}", ["share report"]),
        ("{a: {prompt.form: letter}, b: {}}", ["share prompt"]),
        ("{a: {metod: sft}}", ["metod"]),
        ("{a: {method: sfd}}", ["sfd", "calm"]),
        ("{}", ["--methods"]),
    ],
)
def test_comparison_settings(settings, tmp_path, monkeypatch, capsys, methods, words):
    (tmp_path / "compare.yaml").write_text(f"calibration: '{settings}'\nmethods: {methods}\n")
    line = fails(
        compare.main,
        monkeypatch,
        capsys,
        "--config",
        tmp_path / "compare.yaml",
        "--output_dir",
        tmp_path / "out",
    )
    assert all(word in line for word in words), line
    assert not (tmp_path / "out").exists()


def test_evaluation_settings(tiny_folder, tmp_path, monkeypatch, capsys):
    out = ("--output_dir", tmp_path / "out")
    line = fails(evaluate.main, monkeypatch, capsys, "--model", tiny_folder, *out)
    assert "--data" in line
    sources = ("--data", "worldfacts/chemistry")
    line = fails(evaluate.main, monkeypatch, capsys, "--model", "no/such-model", *sources, *out)
    assert "no/such-model" in line
    line = fails(evaluate.main, monkeypatch, capsys, "--adapter", tmp_path / "nothing", *sources, *out)
    assert "no adapter folder" in line and "nothing" in line
    line = fails(evaluate.main, monkeypatch, capsys, "--adapter", tiny_folder, *sources, *out)
    assert "adapter_model.safetensors" in line


@pytest.mark.parametrize(
    ("config", "words"),
    [("prompt: {form: haiku}", ["form", "haiku"]), ("prompt: 3", ["prompt"]), ("prompt: {foo: 1}", ["foo"])],
)
def test_an_adapter_with_a_damaged_config(tiny_folder, tmp_path, monkeypatch, capsys, config, words):
    base, tokenizer = load_model(str(tiny_folder), dtype="float32")
    save_adapter(attach_lora(base, rank=2, alpha=4, base_name="tiny"), tokenizer, tmp_path / "adapter")
    (tmp_path / "adapter" / "config.yaml").write_text(config)
    line = fails(
        evaluate.main, monkeypatch, capsys, "--model", tiny_folder, "--adapter", tmp_path / "adapter",
        "--data", "worldfacts/chemistry", "--output_dir", tmp_path / "out",
    )  # fmt: skip
    assert all(word in line for word in words), line


def test_an_adapter_of_another_base(tiny_folder, tmp_path, monkeypatch, capsys):
    base, tokenizer = load_model(str(tiny_folder), dtype="float32")
    save_adapter(attach_lora(base, rank=2, alpha=4, base_name="tiny"), tokenizer, tmp_path / "adapter")
    line = fails(
        evaluate.main, monkeypatch, capsys, "--model", "bundled", "--adapter", tmp_path / "adapter", "--data",
        "worldfacts/chemistry", "--output_dir", tmp_path / "out",
    )  # fmt: skip
    assert "was trained on tiny and does not fit" in line and "--model" in line


def test_processes_that_do_not_find_each_other(settings, tmp_path, monkeypatch, capsys):
    """As a launch of several processes without a GPU leaves them, unless it is told to use the CPU."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    line = fails(calibrate.main, monkeypatch, capsys, "--config", settings, "--output_dir", tmp_path / "out")
    assert "2 processes" in line and "ACCELERATE_USE_CPU=1" in line
    assert not (tmp_path / "out").exists()


def test_a_finished_run_is_not_overwritten(settings, tmp_path, monkeypatch, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.json").write_text("mine")
    line = fails(calibrate.main, monkeypatch, capsys, "--config", settings, "--output_dir", tmp_path / "out")
    assert "already holds a finished run" in line and "--output_dir" in line
    assert contents(tmp_path / "out") == {"report.json": b"mine"}


def test_a_tokenizer_without_chat_template_or_pad_token(tiny_folder, tmp_path, monkeypatch, capsys):
    shutil.copytree(tiny_folder, tmp_path / "bare")
    (tmp_path / "bare" / "chat_template.jinja").unlink()
    file = tmp_path / "bare" / "tokenizer_config.json"
    keys = json.loads(file.read_text())
    file.write_text(
        json.dumps({key: value for key, value in keys.items() if key not in ("pad_token", "chat_template")})
    )
    assert AutoTokenizer.from_pretrained(tmp_path / "bare").pad_token is None
    settings = config(tmp_path / "settings", tmp_path / "bare")
    command = ("--config", settings, "--output_dir", tmp_path / "out")
    line = fails(calibrate.main, monkeypatch, capsys, *command, "--prompt.style", "chat")
    assert "chat template" in line and "plain" in line
    done = launch("calibrate.py", *command)  # no pad token is no fault: what is padded is never looked at
    assert done.returncode == 0, done.stderr


def test_weights_that_are_not_finite_stop_the_run(tiny_folder, tmp_path, monkeypatch, capsys):
    base, tokenizer = load_model(str(tiny_folder), dtype="float32")
    with torch.no_grad():
        next(base.parameters()).fill_(torch.nan)
    base.save_pretrained(tmp_path / "broken")
    tokenizer.save_pretrained(tmp_path / "broken")
    settings = config(tmp_path / "settings", tmp_path / "broken")
    line = fails(calibrate.main, monkeypatch, capsys, "--config", settings, "--output_dir", tmp_path / "out")
    assert "not finite" in line


DISK = """
import matplotlib.font_manager, resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
sys.argv = sys.argv[1:]
sys.path.insert(0, "recipes")
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    ("limit", "place"), [(600, "config.yaml"), (20_000, "checkpoint"), (155_000, ".png")]
)
def test_a_full_disk_loses_nothing_and_the_same_command_goes_on(settings, tmp_path, limit, place):
    """Fails at the config, at a checkpoint, and at a figure of the finished folder."""
    command = ("calibrate.py", "--config", settings, "--output_dir", tmp_path / "out")
    full = launch(*command, python=DISK.format(limit=limit))
    assert full.returncode == 2, full.stderr
    lines = said(full)
    assert len(lines) == 1 and lines[0].startswith("error: ") and "free some space" in lines[0], full.stderr
    assert place in lines[0]
    assert not (tmp_path / "out" / "report.json").exists()
    assert not list(tmp_path.rglob("*.partial"))
    again = launch(*command)
    assert again.returncode == 0, again.stderr


def test_an_interrupt_says_how_to_go_on(settings, tmp_path):
    code = f"""
import os, runpy, signal, sys
import toolkit.calibration.training as training
save = training.save_checkpoint
def interrupt(*arguments):
    save(*arguments)
    os.kill(os.getpid(), signal.{signal.SIGINT.name})
training.save_checkpoint = interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
sys.argv = sys.argv[1:]
sys.path.insert(0, "recipes")
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    stopped = launch("calibrate.py", "--config", settings, "--output_dir", tmp_path / "out", python=code)
    assert stopped.returncode == 130
    assert said(stopped) == ["stopped; the same command resumes the run"]
