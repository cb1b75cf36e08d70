"""Every method and solver from the command line to the table, on the tiny model, in full and in 4 bits."""

import ast
import json
from typing import Any

import pytest
import yaml
from compare import base_name
from recipe_runs import config, launch, said
from safetensors.torch import load_file
from settings import CalibrateSettings, ModelSettings

SINGLE: dict[str, dict[str, Any]] = {
    name: {"method": name}
    for name in ("sft", "label_smoothing", "focal", "entropy_regularisation", "cft", "rcft", "dpo")
} | {"sft-lower": {"method": "sft", "training.learn_heldout": False}}
TWO_LEVELS: dict[str, dict[str, Any]] = {
    "calm": {},
    "calm_scalar": {"method": "calm_scalar"},
    "adjusted": {"calm.predictive": "adjusted", "calm.upper": "entropy_matched"},
    "penalty": {"calm.solver": "penalty", "calm.kappa_growth": 0.1},
    "finite_difference": {"calm.solver": "finite_difference", "calm.upper_every": 2},
    "iterate": {"method": "iterate", "calm.predictive": "adjusted", "calm.upper": "entropy"},
    "preferences": {"calm.lower": "dpo"},
    "tokens": {"calm.level": "tokens", "training.length_window": 2},
    "nf4": {"model.quantization": "nf4", "training.gradient_checkpointing": True},
}
METHODS = SINGLE | TWO_LEVELS | {"vector_scaling": {"method": "vector_scaling"}}


@pytest.fixture(scope="module")
def compared(tmp_path_factory, tiny_folder):
    folder = tmp_path_factory.mktemp("methods")
    config(folder, tiny_folder)
    keys = {
        "calibration": "config.yaml",
        "methods": METHODS,
        "temperature": ["all"],
        "shared": {"training.decay": "constant"},
    }
    (folder / "compare.yaml").write_text(yaml.safe_dump(keys, sort_keys=False))
    done = launch("compare.py", "--config", folder / "compare.yaml", "--output_dir", folder / "out")
    assert done.returncode == 0, done.stderr
    return folder / "out", done.stdout


def history(folder, name):
    lines = (folder / f"{name}-seed0" / "history.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def report(folder, name):
    return json.loads((folder / name / "report.json").read_text())


def test_each_quantization_has_a_base_of_its_own(compared):
    folder, table = compared
    rows = [line.split("|")[1].strip() for line in table.split("\n\n")[0].splitlines()]
    assert rows[2:] == [name + end for name in ("none", "none-nf4", *METHODS) for end in ("", " + T")]
    whole, small = report(folder, "none"), report(folder, "none-nf4")
    assert whole["base"]["quantization"] is None and small["base"]["quantization"]["method"] == "nf4"
    assert whole["results"][0]["nll"]["value"] != small["results"][0]["nll"]["value"]
    for name in METHODS:
        base = (small if name == "nf4" else whole)["results"]
        for one, other in zip(report(folder, f"{name}-seed0")["before"], base, strict=True):
            assert one["nll"]["value"] == pytest.approx(other["nll"]["value"], abs=1e-9), name


def test_the_full_base_is_none_whatever_comes_first():
    full, small = CalibrateSettings(), CalibrateSettings(model=ModelSettings(quantization="nf4"))
    both = {"nf4", "none"}
    assert [base_name(run, both) for run in (small, full)] == ["none-nf4", "none"]
    assert base_name(small, {"nf4"}) == "none"


def test_every_method_trains_every_layer(compared):
    folder, _ = compared
    for name in SINGLE | TWO_LEVELS:
        weights = load_file(folder / f"{name}-seed0" / "adapter_model.safetensors")
        assert all(weights[key].any() for key in weights if "lora_B" in key), name
        assert report(folder, f"{name}-seed0")["unmoved_layers"] == []


def test_the_upper_level_comes_every_other_step_and_moves_alpha_only_then(compared):
    folder, _ = compared
    rows = history(folder, "finite_difference")[1:]
    assert ["grad_f" in row for row in rows] == [False, False, True, False, True, False]
    moved = [row["alpha_delta_max"] for row in rows]
    assert moved[1] == 1 and moved[2] > 1 and moved[3] == moved[2] and moved[4] != moved[3]


def test_a_single_level_learns_from_all_questions_unless_told_otherwise(compared):
    folder, _ = compared
    for name in SINGLE:
        count = report(folder, f"{name}-seed0")["training"]["lower"]["count"]
        assert count == (36 if name == "sft-lower" else 48)
        assert not (folder / f"{name}-seed0" / "calibration.safetensors").exists()
    for name in TWO_LEVELS:
        levels = report(folder, f"{name}-seed0")["training"]
        assert levels["lower"]["count"] + levels["upper"]["count"] == 48


def test_methods_differ_and_are_called_what_the_user_called_them(compared):
    folder, _ = compared
    found = {name: history(folder, name)[-1]["validation_nll"] for name in METHODS}
    assert len(set(found.values())) == len(found), found
    for name, keys in METHODS.items():
        assert report(folder, f"{name}-seed0")["method"] == keys.get("method", "calm")


def test_alpha_is_a_vector_or_one_temperature_and_the_adjusted_model_has_it(compared, tiny_folder, tmp_path):
    folder, _ = compared
    alpha = {
        name: load_file(folder / f"{name}-seed0" / "calibration.safetensors")
        for name in ("calm", "calm_scalar", "adjusted", "vector_scaling")
    }
    assert alpha["calm"]["delta"].shape == (271,) and alpha["calm_scalar"]["delta"].shape == ()
    assert all(one["delta"].ne(1).any() for one in alpha.values())
    for name in ("adjusted", "vector_scaling"):
        done = launch(
            "evaluate.py", "--model", tiny_folder, "--adapter", folder / f"{name}-seed0", "--data",
            "worldfacts/chemistry", "--limit", 10, "--resamples", 20, "--dtype", "float32",
            "--output_dir", tmp_path / name,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        reported = report(folder, f"{name}-seed0")["results"][1]["nll"]["value"]
        assert report(tmp_path, name)["results"][0]["nll"]["value"] == pytest.approx(reported, abs=1e-5)
        base = report(folder, "none")["results"][1]["nll"]["value"]
        assert reported != pytest.approx(base, abs=1e-4)


def test_vector_scaling_leaves_the_model_as_it_is(compared):
    folder, _ = compared
    weights = load_file(folder / "vector_scaling-seed0" / "adapter_model.safetensors")
    assert not any(weights[key].any() for key in weights if "lora_B" in key)
    rows = history(folder, "vector_scaling")
    assert rows[-1]["alpha_delta_max"] > 1 and rows[-1]["lower"] < rows[1]["lower"]


def test_iterate_takes_the_levels_in_turn(compared):
    folder, _ = compared
    rows = history(folder, "iterate")[3:]  # after the first phase
    assert ["lower" in row for row in rows] == [True, False, True, False]
    moved = [row["alpha_delta_max"] for row in rows]
    assert moved[0] == 1 and moved[1] > 1 and moved[2] == moved[1] and moved[3] != moved[2]


def test_the_card_names_the_quantization(compared):
    folder, _ = compared
    card = (folder / "nf4-seed0" / "README.md").read_text()
    assert "4 bits (nf4" in card
    snippet = card.split("```python\n")[1].split("```")[0]
    tree = ast.parse(snippet)  # it loads the base in the same 4 bits
    [config] = [n for n in ast.walk(tree) if ast.unparse(n).startswith("BitsAndBytesConfig(")]
    assert "bnb_4bit_quant_type='nf4'" in ast.unparse(config)
    assert "bnb_4bit_compute_dtype='float32'" in ast.unparse(config)
    assert "4 bits" not in (folder / "tokens-seed0" / "README.md").read_text()


def test_an_adapter_is_evaluated_on_the_base_that_it_was_trained_on(compared, tiny_folder, tmp_path):
    folder, _ = compared
    for quantization in ("as trained", "none"):
        more = () if quantization == "as trained" else ("--quantization", "none")
        done = launch(
            "evaluate.py", "--model", tiny_folder, "--adapter", folder / "nf4-seed0", "--data",
            "worldfacts/chemistry", "--limit", 10, "--resamples", 20, "--dtype", "float32",
            "--output_dir", tmp_path / quantization, *more,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert ("need not hold" in done.stderr) == (quantization == "none")
    trained = report(folder, "nf4-seed0")["results"][1]["nll"]["value"]
    found = report(tmp_path, "as trained")
    assert found["base"]["quantization"]["method"] == "nf4"
    assert found["results"][0]["nll"]["value"] == pytest.approx(trained, abs=1e-5)
    assert report(tmp_path, "none")["results"][0]["nll"]["value"] != pytest.approx(trained, abs=1e-4)


def test_training_that_changes_nothing_is_a_fault(tiny_folder, tmp_path):
    settings = config(tmp_path, tiny_folder)
    done = launch(
        "calibrate.py", "--config", settings, "--output_dir", tmp_path / "out", "--training.learning_rate", 0
    )
    assert done.returncode != 0
    assert "training has changed no layer" in said(done)[0]
