"""The recipes from the command line to the finished folder, on the tiny model."""

import json
import re
import signal
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from compare import check_names, resolve_runs
from parsing import calibrate_settings, parse_calibrate, parse_compare
from peft import PeftModel
from recipe_runs import ROOT, config, contents, launch, said
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from toolkit.calibration.baselines import fit_temperature
from toolkit.evaluation.report import __doc__ as report_documentation
from toolkit.models.adapters import load_adapter
from toolkit.models.base import load_model

FILES = {
    "adapter_model.safetensors", "adapter_config.json", "calibration.safetensors", "config.yaml",
    "report.json", "predictions.parquet", "history.jsonl", "reliability.png", "training.png", "README.md",
    "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
}  # fmt: skip


@pytest.fixture(scope="module")
def settings(tmp_path_factory, tiny_folder):
    return config(tmp_path_factory.mktemp("settings"), tiny_folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, settings):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    done = launch("calibrate.py", "--config", settings, "--output_dir", folder)
    assert done.returncode == 0, done.stderr
    assert "worldfacts/chemistry" in done.stdout and "conf-ECE" in done.stdout
    assert said(done) == [f"adapter, report and figures: {folder}"]
    return folder


def test_a_finished_folder_holds_all_that_an_adapter_needs(finished):
    assert {path.name for path in finished.iterdir()} == FILES
    report = json.loads((finished / "report.json").read_text())
    assert report["schema"] == "calibrant.report/1" and report["method"] == "calm"
    assert report["adapter"] == "finished" and report["kept_step"] == 6
    assert [one["data"]["name"] for one in report["results"]] == [
        "worldfacts/capitals",
        "worldfacts/chemistry",
    ]
    assert [one["data"] for one in report["before"]] == [one["data"] for one in report["results"]]
    assert set(report) == set(re.findall(r"^ {4}(\w+)", str(report_documentation), flags=re.M))
    lower, upper = report["training"]["lower"], report["training"]["upper"]
    assert report["training"]["sources"]["seen"] == ["worldfacts/capitals", "worldfacts/languages"]
    assert lower["count"] + upper["count"] == 48 and upper["count"] > 0
    assert lower["sha256"] != upper["sha256"]
    assert "# finished" in (finished / "README.md").read_text()
    weights = load_file(finished / "adapter_model.safetensors")
    assert all(weights[key].any() for key in weights if "lora_B" in key)
    alpha = load_file(finished / "calibration.safetensors")
    assert alpha["delta"].shape == alpha["iota"].shape == (271,)
    assert (alpha["delta"] != 1).any() and (alpha["iota"] != 0).any()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # from within PEFT
def test_plain_peft_gives_the_logits_of_our_loader(finished, tiny_folder):
    tokens = torch.randint(271, (3, 17), generator=torch.Generator().manual_seed(0))
    theirs = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tiny_folder), str(finished)
    ).eval()
    base, _ = load_model(str(tiny_folder), dtype="float32")
    with torch.no_grad():
        plain = base(tokens).logits
        ours = load_adapter(base, finished)(tokens).logits
        assert torch.equal(ours, theirs(tokens).logits)
        assert not torch.allclose(ours, plain, atol=1e-3)


def test_the_resolved_config_gives_the_same_run(finished, tmp_path):
    again = launch("calibrate.py", "--config", finished / "config.yaml", "--output_dir", tmp_path / "again")
    assert again.returncode == 0, again.stderr
    assert (
        contents(tmp_path / "again")["adapter_model.safetensors"]
        == contents(finished)["adapter_model.safetensors"]
    )


def test_evaluate_finds_what_calibrate_reported(finished, tiny_folder, tmp_path):
    done = launch(
        "evaluate.py", "--model", tiny_folder, "--adapter", finished, "--data", "worldfacts/capitals",
        "--data=worldfacts/chemistry", "--limit", 10, "--resamples", 20, "--dtype", "float32",
        "--output_dir", tmp_path / "e",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ours, theirs = (json.loads((folder / "report.json").read_text()) for folder in (tmp_path / "e", finished))
    assert ours["prompt"] == theirs["prompt"] and ours["method"] == "calm"
    for one, other in zip(ours["results"], theirs["results"], strict=True):
        assert one["data"] == other["data"]
        for key in ("accuracy", "conf_ece", "nll", "auroc"):
            assert one[key]["value"] == pytest.approx(other[key]["value"], abs=1e-5)
    rows = pd.read_parquet(tmp_path / "e" / "predictions.parquet")
    assert len(rows) == 20 and np.allclose([sum(p) for p in rows["probabilities"]], 1)
    assert rows["correct"].mean() == pytest.approx(
        np.mean([one["accuracy"]["value"] for one in ours["results"]])
    )
    assert (tmp_path / "e" / "reliability.png").stat().st_size > 10_000


KILL = """
import os, runpy, signal, sys, torch
save, calls = torch.save, []
def half(state, file):
    calls.append(0)
    if len(calls) == {call}:
        save(state, file)
        file.truncate(file.tell() // 2)
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    save(state, file)
torch.save = half
sys.argv = sys.argv[1:]
sys.path.insert(0, "recipes")
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("call", [1, 3])
def test_a_run_killed_within_a_checkpoint_ends_with_the_weights_of_one_left_alone(
    finished, settings, tmp_path, call
):
    killed_and_resumed(settings, tmp_path / "finished", call)
    alone, ours = contents(finished), contents(tmp_path / "finished")
    assert ours.keys() == alone.keys()
    for name in ("adapter_model.safetensors", "calibration.safetensors", "predictions.parquet", "README.md"):
        assert ours[name] == alone[name], name


def test_dropout_too_is_resumed(settings, finished, tmp_path):
    keys = ("--lora.dropout", 0.2)
    killed_and_resumed(settings, tmp_path / "killed", 2, *keys)
    left = launch("calibrate.py", "--config", settings, "--output_dir", tmp_path / "alone", *keys)
    assert left.returncode == 0, left.stderr
    name = "adapter_model.safetensors"
    alone, ours = contents(tmp_path / "alone")[name], contents(tmp_path / "killed")[name]
    assert ours == alone and ours != contents(finished)[name]


def killed_and_resumed(settings, folder, call, *keys):
    """Kills a run within its `call`-th checkpoint, and gives the same command again."""
    command = ("calibrate.py", "--config", settings, "--output_dir", folder, *keys)
    killed = launch(*command, python=KILL.format(call=call))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = {path.name for path in (folder / "checkpoints").iterdir()}
    assert f"step-{2 * call:07}.partial" in left and f"step-{2 * call:07}.pt" not in left
    assert not (folder / "report.json").exists()
    resumed = launch(*command)
    assert resumed.returncode == 0, resumed.stderr


def test_two_processes_learn_what_one_learns(finished, settings, tmp_path):
    command = ("calibrate.py", "--config", settings, "--output_dir", tmp_path / "two")
    short = launch(*command, "--training.batch_size", 1, processes=2)
    assert "2 processes share 1 questions a step" in short.stderr  # there really are two
    done = launch(*command, processes=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test set") == 1
    one, two = (load_file(f / "adapter_model.safetensors") for f in (finished, tmp_path / "two"))
    for key, value in one.items():
        assert torch.allclose(two[key], value, atol=2e-4), key
    one, two = (load_file(f / "calibration.safetensors") for f in (finished, tmp_path / "two"))
    for key, value in one.items():
        assert torch.allclose(two[key], value, atol=1e-3), key


@pytest.mark.slow
def test_the_bundled_model_learns_from_one_command(tmp_path):
    done = launch(
        "calibrate.py", "--config", "recipes/configs/worldfacts.yaml", "--output_dir", tmp_path / "real",
        "--data.train_limit", 20, "--data.validation_limit", 6, "--data.test", "[worldfacts/chemistry]",
        "--data.test_limit", 12, "--training.steps", 5, "--calm.lower_steps", 2, "--calm.upper_every", 1,
        "--training.batch_size", 4, "--training.decay", "constant", "--training.warmup_steps", 1,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "real" / "history.jsonl").read_text().splitlines()]
    assert rows[-1]["validation_nll"] < rows[0]["validation_nll"]
    assert all(row["alpha_delta_max"] != 1 and row["upper_entropy"] > 0 for row in rows[3:])
    weights = load_file(tmp_path / "real" / "adapter_model.safetensors")
    assert all(weights[key].any() for key in weights if "lora_B" in key)
    adapter = json.loads((tmp_path / "real" / "adapter_config.json").read_text())
    assert adapter["base_model_name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_micro_batches_give_the_same_weights(finished, settings, tmp_path):
    command = (
        "calibrate.py",
        "--config",
        settings,
        "--training.micro_batch_size",
        1,
        "--output_dir",
        tmp_path / "m",
    )
    done = launch(*command)
    assert done.returncode == 0, done.stderr
    one, other = (load_file(f / "adapter_model.safetensors") for f in (finished, tmp_path / "m"))
    for key, value in one.items():
        assert torch.allclose(other[key], value, atol=2e-4), key


@pytest.fixture(scope="module")
def compared(tmp_path_factory, tiny_folder):
    folder = tmp_path_factory.mktemp("comparison")
    config(folder, tiny_folder)
    (folder / "compare.yaml").write_text(
        "calibration: config.yaml\n"
        "methods:\n  sft: {method: sft}\n  calm: {method: calm, calm.eta: 1.5}\n"
        "shared:\n  data.heldout: [worldfacts/airports]\n"
        "  data.validation: [worldfacts/capitals, worldfacts/airports]\n"
        "contextual: true\ntemperature: [none, sft]\nseeds: [0, 1]\n"
    )
    done = launch("compare.py", "--config", folder / "compare.yaml", "--output_dir", folder / "out")
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def rows_of(table):
    """Returns the cells of each row of the first Markdown table by the first of them."""
    lines = table.split("\n\n")[0].splitlines()
    return {
        row[0]: row[1:] for row in ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    }


def test_compare_shows_every_method_on_every_test_set(compared):
    folder, table = compared
    shown = rows_of(table)
    assert [*shown][2:] == [
        "none", "none + T", "none + T*", "contextual", "sft", "sft + T", "sft + T*", "calm",
    ]  # fmt: skip
    assert table.rstrip() == (folder / "out" / "comparison.md").read_text().rstrip()
    written = json.loads((folder / "out" / "comparison.json").read_text())
    assert [(one["name"], one["in_domain"], one["count"]) for one in written["tests"]] == [
        ("worldfacts/capitals", True, 10),
        ("worldfacts/chemistry", False, 10),
    ]
    methods = written["methods"]
    assert {name: len(one["worldfacts/chemistry"]["nll"]["seeds"]) for name, one in methods.items()} == {
        "none": 1, "none + T": 1, "none + T*": 1, "contextual": 1,
        "sft": 2, "sft + T": 2, "sft + T*": 2, "calm": 2,
    }  # fmt: skip
    predictions = pd.read_parquet(folder / "out" / "sft-seed1" / "predictions.parquet")
    for ending, source in (("T", "worldfacts/capitals"), ("T*", "worldfacts/airports")):
        own = predictions[(predictions["source"] == source) & (predictions["split"] == "validation")]
        fitted = fit_temperature(np.log(np.stack(own["probabilities"])), own["answer"].to_numpy())
        assert written["temperatures"][f"sft + {ending}"][1] == [pytest.approx(fitted, rel=1e-3)]
    assert written["kept_steps"] == {"sft": [[6], [6]], "calm": [[6], [6]]}
    for source, one in methods["sft"].items():
        other = methods["sft + T"][source]
        assert one["accuracy"]["seeds"] == other["accuracy"]["seeds"]
        assert one["nll"]["seeds"] != other["nll"]["seeds"]
        assert one["nll"]["seeds"][0] != one["nll"]["seeds"][1]
    plain = json.loads((folder / "out" / "sft-seed0" / "report.json").read_text())
    assert plain["training"]["lower"]["count"] == 72 and "upper" not in plain["training"]  # one level
    own = json.loads((folder / "out" / "calm-seed1" / "report.json").read_text())
    for result in own["results"]:
        mine = methods["calm"][result["data"]["name"]]["conf_ece"]["seeds"][1]
        assert mine == pytest.approx(result["conf_ece"]["value"], abs=1e-6)
    far = methods["calm"]["mean out of domain"]["conf_ece"]
    assert shown["calm"][4] == f"{far['mean']:.3f} ± {far['sd']:.3f}"
    assert yaml.safe_load((folder / "out" / "calm-seed1" / "config.yaml").read_text())["calm"]["eta"] == 1.5
    assert {path.name for path in (folder / "out").glob("*.png")} == {
        "reliability.png", "risk-coverage.png", "ece-accuracy.png", "entropy-nll.png", "alpha.png",
    }  # fmt: skip


def test_contextual_calibration_divides_by_what_options_have_without_a_question(compared, tiny_folder):
    folder, _ = compared
    base, tokenizer = load_model(str(tiny_folder), dtype="float32")
    plain, divided = (
        pd.read_parquet(folder / "out" / n / "predictions.parquet") for n in ("none", "contextual")
    )
    for (_, one), (_, other) in list(zip(plain.iterrows(), divided.iterrows(), strict=True))[::7]:
        leanings = []
        for word in ("N/A", "[MASK]"):
            scores = []
            for choice in one["choices"]:
                prompt, whole = (
                    tokenizer(f"Question: {word}\nAnswer:{end}", return_tensors="pt")["input_ids"]
                    for end in ("", f" {choice}")
                )
                with torch.no_grad():
                    log_probs = base(whole).logits[0].log_softmax(-1)
                start, tokens = prompt.shape[1], whole[0]
                own = [log_probs[i - 1, tokens[i]].item() for i in range(start, len(tokens))]
                scores.append(np.mean(own))
            leanings.append(np.exp(scores) / np.exp(scores).sum())
        expected = one["probabilities"] / np.mean(leanings, axis=0)
        assert other["probabilities"] == pytest.approx(expected / expected.sum(), abs=1e-4)


def test_an_interrupted_comparison_runs_only_what_is_missing(compared):
    folder, table = compared
    (folder / "out" / "comparison.json").unlink()
    (folder / "out" / "calm-seed1" / "report.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("*") if path.is_file()}
    done = launch("compare.py", "--config", folder / "compare.yaml", "--output_dir", folder / "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout == table
    rewritten = {path.parent.name for path, when in before.items() if path.stat().st_mtime_ns != when}
    assert rewritten == {"out", "calm-seed1"}


def test_a_comparison_goes_on_with_the_same_settings_only(compared):
    folder, _ = compared
    saved = (folder / "out" / "comparison.json").read_bytes()
    (folder / "out" / "comparison.json").unlink()
    before = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(before.replace("steps: 6", "steps: 7"))
    done = launch("compare.py", "--config", folder / "compare.yaml", "--output_dir", folder / "out")
    assert done.returncode != 0
    assert "other settings" in said(done)[0] and "training.steps: 6 before, 7 now" in said(done)[0]
    (folder / "config.yaml").write_text(before)
    (folder / "out" / "comparison.json").write_bytes(saved)


def test_a_comparison_killed_within_a_checkpoint_is_resumed(compared, tmp_path):
    folder, table = compared
    command = ("compare.py", "--config", folder / "compare.yaml", "--output_dir", tmp_path / "out")
    killed = launch(*command, python=KILL.format(call=2))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (tmp_path / "out" / "sft-seed0" / "checkpoints" / "step-0000002.pt").exists()
    resumed = launch(*command)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout == table


def test_settings_are_plain_numbers_however_they_come(settings):
    given = ["--config", str(settings), "--output_dir", "x", "--training.weight_decay", "0.01"]
    for one in (parse_calibrate(given)[0], calibrate_settings(settings, {"training.weight_decay": 0.01})):
        for part in (one, one.model, one.data, one.lora, one.calm, one.training, one.report):
            for name, value in vars(part).items():
                if isinstance(value, int | float):
                    assert type(value) in (bool, int, float), name


@pytest.mark.parametrize(
    "path", sorted((ROOT / "recipes" / "configs").glob("*.yaml")), ids=lambda path: path.name
)
def test_every_config_is_valid_and_every_key_has_a_comment(path):
    text = path.read_text()
    if "calibration:" in text:
        settings, _, base = parse_compare(["--config", str(path), "--output_dir", "x"])
        check_names(settings)
        assert len(resolve_runs(settings, base)) >= len(settings.methods)
    else:
        assert calibrate_settings(path, {})
    for line in text.splitlines():
        bare = line.rstrip().endswith(":") or line.lstrip().startswith(("#", "- ")) or not line
        assert "#" in line or bare, f"{path.name}: {line} has no comment"


def test_there_is_one_default_for_all_question_sets():
    configs = ROOT / "recipes" / "configs"
    worldfacts, arc = (
        calibrate_settings(configs / f"{name}.yaml", {}) for name in ("worldfacts", "arc_easy")
    )
    assert replace(worldfacts, data=arc.data) == arc
