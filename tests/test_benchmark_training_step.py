import json
import sys

import measure
import method_steps
import pytest
import random_model
import step_rows
import torch
import training_step
from method_steps import METHODS, StepSettings, our_model, our_step
from trl_step import trl_rows, trl_step, trl_trainer

from toolkit.calibration.solvers import bome, finite_difference
from toolkit.errors import CalibrantError
from toolkit.models.adapters import adapter_parameters
from toolkit.models.predictive import collate

SETTINGS = StepSettings(batch_size=3, rank=2, upper_every=3, seed=5)
MEMORY = {"before": 100, "peak": 150, "above": 50}


def loads(folder):
    return lambda prepared: random_model.load(str(folder), prepared=prepared)


@pytest.fixture
def tiny(tiny_folder):
    """The tiny model, freshly loaded, with questions of the lower level and of the upper."""
    base = random_model.load(str(tiny_folder))
    lower, upper, _ = step_rows.questions(base, SETTINGS)
    return base, lower, upper


def trainer(base, lower, **more):
    keys = {"rank": 2, "learning_rate": 3e-4, "gradient_checkpointing": False, "seed": 0}
    return trl_trainer(base.model, base.tokenizer, lower, **keys | more)


def test_trl_gets_the_tokens_that_we_get(tiny):
    base, lower, _ = tiny
    found = trainer(base, lower)
    ours = collate([question.right_only() for question in lower])
    for place, (row, given) in enumerate(zip(found.train_dataset, trl_rows(lower), strict=True)):
        question = lower[place]
        answer = question.options[question.answer]
        assert row["input_ids"] == given["input_ids"] == question.prompt + answer
        assert row["labels"] == [-100] * len(question.prompt) + answer
        seen = len(row["input_ids"]) - 1  # ours leaves out the last token, which predicts nothing
        assert ours.input_ids[place, :seen].tolist() == row["input_ids"][:-1]
        assert ours.target[ours.option == place].tolist() == answer


def test_trl_takes_our_first_step(tiny, tiny_folder):
    base, lower, upper = tiny
    found = trainer(base, lower, learning_rate=1e-2)
    theirs = trl_step(found)
    again = random_model.load(str(tiny_folder))
    settings = StepSettings(batch_size=3, rank=2, learning_rate=1e-2)
    model = our_model(again.model, settings, room=False)
    ours = our_step(model, METHODS["sft"], lower, upper, settings)
    for mine, yours in zip(adapter_parameters(model), adapter_parameters(found.model), strict=True):
        with torch.no_grad():
            yours.copy_(mine)
    first = theirs(), ours()
    assert first[1] == pytest.approx(first[0], abs=1e-4)
    for _ in range(2):
        second = theirs(), ours()
    assert second[1] == pytest.approx(second[0], abs=1e-3)  # Adam raises rounding where a gradient is small
    assert first[0] - second[0] > 1e-2  # the steps move the weights


def test_trl_keeps_its_defaults(tiny, tiny_folder):
    base, lower, _ = tiny
    again = random_model.load(str(tiny_folder))
    args = trainer(again, lower).args
    assert args.optim == "adamw_torch_fused" and args.max_grad_norm == 1.0
    assert not args.bf16 and not args.fp16 and not args.packing and not args.padding_free
    assert not args.activation_checkpointing
    assert trainer(base, lower, gradient_checkpointing=True).args.activation_checkpointing


@pytest.mark.parametrize("name", METHODS)
def test_our_steps_lower_the_loss_and_only_bilevel_ones_look_up(name, tiny, monkeypatch):
    base, lower, upper = tiny
    asked = []
    original = method_steps.CalibrationProblem.upper

    def look_up(problem, batches):
        oracle = original(problem, batches)

        def counted(*arguments, **keys):
            asked.append(1)
            return oracle(*arguments, **keys)

        return counted

    monkeypatch.setattr(method_steps.CalibrationProblem, "upper", look_up)
    settings = StepSettings(batch_size=3, rank=2, learning_rate=1e-2, upper_every=3)
    step = our_step(
        our_model(base.model, settings, room=METHODS[name].solver is not None),
        METHODS[name],
        lower,
        upper,
        settings,
    )
    losses = [step() for _ in range(6)]
    assert losses[-1] < losses[0] - 1e-3
    expected: dict[object, int] = {None: 0, bome: 6, finite_difference: 2}
    assert len(asked) == expected[METHODS[name].solver]


def test_gradient_checkpointing_changes_no_step(tiny_folder):
    found = []
    for flag in (False, True):
        base = random_model.load(str(tiny_folder))
        settings = StepSettings(batch_size=3, rank=2, gradient_checkpointing=flag)
        lower, upper, _ = step_rows.questions(base, settings)
        model = our_model(base.model, settings, room=False)
        assert base.model.is_activation_checkpointing == flag
        step = our_step(model, METHODS["sft"], lower, upper, settings)
        found.append([step() for _ in range(2)])
    assert found[0] == pytest.approx(found[1], abs=1e-6)


def test_measures_all_rows_in_turn(tiny_folder):
    result = training_step.benchmark(
        loads(tiny_folder), SETTINGS, lambda name: dict(MEMORY), repeats=3, steps=2
    )
    assert list(result["rows"]) == list(step_rows.ROWS)
    assert result["first_loss"]["trl_sft"] == pytest.approx(result["first_loss"]["sft"], abs=1e-4)
    assert result["settings"]["upper_every"] == 3 and result["versions"]["trl"]
    for name, row in result["rows"].items():
        assert row["steps"] == (3 if name == "finite_difference" else 2)
        assert row["median_seconds"] == sorted(row["seconds"])[1]
        assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["median_seconds"])
        assert row["memory"]["peak_ratio_to_trl"] == row["memory"]["above_ratio_to_trl"] == 1
        assert ("ratio_to_single_level" in row) == (name in ("bome", "finite_difference", "bome_options"))
    rows = result["rows"]
    pairs = zip(rows["sft"]["seconds"], rows["trl_sft"]["seconds"], strict=True)
    assert rows["sft"]["ratio_to_trl"] == pytest.approx(sorted(a / b for a, b in pairs)[1])
    assert rows["sft"]["tokens"] == rows["trl_sft"]["tokens"] < rows["sft_options"]["tokens"]
    lines = training_step.table(result).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:9]] == list(step_rows.ROWS)
    assert str(tiny_folder) not in lines[-1] and "3 repeats in turn" in lines[-1]


def test_refuses_another_loss():
    exact = {"dtype": "float32", "quantization": None}
    with pytest.raises(CalibrantError, match="more than rounding"):
        step_rows.check_losses({"trl_sft": 1.0, "sft": 1.001}, exact)
    step_rows.check_losses({"trl_sft": 1.0, "sft": 1.001}, exact | {"dtype": "bfloat16"})


@pytest.mark.parametrize("name", ["trl_sft", "finite_difference"])
def test_takes_the_memory_of_a_row(name, tiny_folder, capsys):
    training_step.main(["--model", str(tiny_folder), "--batch_size", "2", "--rank", "2", "--only", name])
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["before"] <= found["peak"] and found["above"] == found["peak"] - found["before"]


def test_hands_the_settings_to_a_process_of_its_own(tiny_folder, monkeypatch):
    calls = []

    def run(command, **keys):
        calls.append(command)
        return type("Done", (), {"returncode": 0, "stdout": json.dumps(MEMORY), "stderr": ""})

    monkeypatch.setattr(measure.subprocess, "run", run)
    settings = StepSettings(batch_size=3, gradient_checkpointing=True, learning_rate=0.01)
    _, memory = training_step.memory_of(str(tiny_folder), "float32", "nf4", settings)
    assert memory("sft") == MEMORY
    [command] = calls
    assert command[0] == sys.executable and command[-2:] == ["--only", "sft"]
    text = " ".join(command)
    assert "--quantization nf4" in text and "--gradient_checkpointing --" in text
    assert "--batch_size 3" in text and "--learning_rate 0.01" in text


def test_says_why_a_process_failed(tiny_folder):
    with pytest.raises(CalibrantError, match="memory of sft failed: .*no random model"):
        training_step.child_memory(["--model", "random:nothing"], "sft")


def test_names_the_extra_where_trl_is_missing(tiny_folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(SystemExit):
        training_step.main(["--model", str(tiny_folder), "--batch_size", "2"])
    printed = capsys.readouterr()
    assert printed.out == "" and "pip install 'calibrant[benchmarks]'" in printed.err.splitlines()[-1]


def test_random_models_have_their_shapes(bundled):
    _, tokenizer = bundled
    shape = random_model.SHAPES["tiny"]
    full = random_model.load("random:tiny", seed=3)
    assert full.identity["name"] == "random:tiny" and full.model.config.num_hidden_layers == 2
    assert full.model.config.vocab_size == len(tokenizer)
    same = random_model.random_model(shape, seed=3)
    assert torch.equal(same.model.layers[1].mlp.up_proj.weight, full.model.model.layers[1].mlp.up_proj.weight)
    small = random_model.load("random:tiny", quantization="nf4", prepared=False)
    assert small.identity["quantization"]["method"] == "nf4" and small.model.is_loaded_in_4bit
    assert small.identity["parameters"] == full.identity["parameters"]
    assert small.identity["bytes"] < full.identity["bytes"]
    ids = torch.arange(5)[None]
    with torch.no_grad():
        assert small.model(ids).logits.shape == (1, 5, len(tokenizer))
