"""A sharded base: gradients and predictions of a whole one, whole adapters, and the accelerate configs."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType, parse_flag_from_env
from accelerate.utils.deepspeed import HfDeepSpeedConfig
from recipe_runs import ROOT
from sharding_worker import KINDS, build, gradients, predictions
from transformers import AutoTokenizer
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled, set_hf_deepspeed_config

from toolkit.errors import CalibrantError
from toolkit.models.adapters import WEIGHTS, save_adapter
from toolkit.models.sharding import check_engine, is_sharded, load_whole, shard_base

CONFIGS = ROOT / "recipes/accelerate"
CPU = SimpleNamespace(distributed_type=DistributedType.MULTI_CPU, device=torch.device("cpu"))


def accelerate_launch(config: str, *arguments: object) -> None:
    """Runs `accelerate launch` with one of the configs, on the CPU."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("ACCELERATE_", "FSDP_"))
    }
    command = ["-m", "accelerate.commands.launch", "--config_file", f"{CONFIGS / config}.yaml"]
    process = subprocess.run(
        [sys.executable, *command, *map(str, arguments)],
        cwd=ROOT,
        env=kept
        | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        | {"ACCELERATE_USE_CPU": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-4000:]


@pytest.fixture(scope="module")
def whole(tiny_folder, tmp_path_factory):
    """What one process finds whose base is whole, and the adapters that it saves."""
    folder, found = tmp_path_factory.mktemp("whole"), {}
    for kind in KINDS:
        model = build(str(tiny_folder), kind)
        found[kind] = {"gradients": gradients(model), "predictions": predictions(model)}
        save_adapter(model, AutoTokenizer.from_pretrained(tiny_folder), folder / kind)
    return found, folder


@pytest.fixture(scope="module", params=["fsdp2_qlora", "zero3"])
def sharded(request, tiny_folder, tmp_path_factory):
    """What both of two processes find whose base is sharded, and the adapters that the main one saves."""
    if request.param == "zero3":
        pytest.importorskip("deepspeed")
    folder = tmp_path_factory.mktemp(request.param)
    accelerate_launch(request.param, "tests/sharding_worker.py", tiny_folder, folder)
    return [torch.load(folder / f"{process}.pt") for process in (0, 1)], folder


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_and_predictions_are_those_of_a_whole_base(whole, sharded, kind):
    expected, found = whole[0][kind], sharded[0]
    for process in found:
        assert process["sharded"]
        for name in ("gradients", "again", "checkpointed", "predictions"):
            reference = expected["predictions" if name == "predictions" else "gradients"]
            for ours, theirs in zip(process[kind][name], reference, strict=True):
                assert torch.allclose(ours, theirs, atol=1e-5, rtol=0), name
    assert max(tensor.abs().max() for tensor in expected["gradients"]) > 1  # of which 1e-5 is little


def test_a_base_without_adapters_predicts_the_same(whole, sharded):
    for process in sharded[0]:
        assert torch.equal(process["alone"], whole[0]["float32"]["predictions"][1])


@pytest.mark.parametrize("kind", KINDS)
def test_each_process_holds_half_of_the_base_and_all_of_the_adapters(sharded, kind):
    first, second = (process[kind]["shares"] for process in sharded[0])
    assert first.keys() == second.keys()
    for name in first:
        if ".lora_" in name:
            assert first[name] == second[name] == 1, name
        else:
            assert 0.49 < first[name] < 0.51 and 0.49 < second[name] < 0.51, name


@pytest.mark.parametrize("kind", KINDS)
def test_the_main_process_saves_what_one_process_would(whole, sharded, kind):
    ours, theirs = sharded[1] / kind, whole[1] / kind
    assert (ours / WEIGHTS).read_bytes() == (theirs / WEIGHTS).read_bytes()
    assert {path.name for path in ours.iterdir()} == {path.name for path in theirs.iterdir()}


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_configs_are_accelerates(path: Path):
    config = load_config_from_file(str(path))
    assert path.read_text().startswith("# ")
    assert config.mixed_precision == "no"
    assert config.num_processes == (1 if path.stem == "single_gpu" else 2)


@pytest.mark.parametrize(
    ("config", "options", "processes"),
    [
        ("single_gpu", ("--cpu",), 1),
        ("multi_gpu", ("--cpu", "--num_processes", 1), 1),
        ("zero3", ("--cpu", "--num_processes", 1), 1),
        ("cpu", (), 2),
    ],
)
def test_configs_launch_on_the_cpu(tmp_path, config, options, processes):
    script = tmp_path / "state.py"
    script.write_text(
        "import pathlib\n"
        "from accelerate import Accelerator\n"
        "state = Accelerator().state\n"
        "found = f'{state.num_processes} {state.backend} {state.device.type}'\n"
        "pathlib.Path(__file__).with_name(f'{state.process_index}.txt').write_text(found)\n"
    )
    accelerate_launch(config, *options, script)
    found = [path.read_text() for path in tmp_path.glob("*.txt")]
    assert found == [f"{processes} {'gloo' if processes > 1 else None} cpu"] * processes


def test_without_an_engine_nothing_is_sharded(tiny_folder):
    model = build(str(tiny_folder), "float32")
    before = list(model.parameters())
    shard_base(model, CPU)
    assert not is_sharded(CPU)
    assert all(a is b for a, b in zip(model.parameters(), before, strict=True))


def test_bases_are_loaded_whole(monkeypatch):
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")
    settings = HfDeepSpeedConfig({"zero_optimization": {"stage": 3}})  # Accelerate makes one under ZeRO-3
    set_hf_deepspeed_config(settings)
    assert is_deepspeed_zero3_enabled()
    load_whole()
    assert not is_deepspeed_zero3_enabled()
    assert not parse_flag_from_env("FSDP_CPU_RAM_EFFICIENT_LOADING")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"USE_FSDP": "true"}, "set fsdp_version: 2"),
        ({"USE_FSDP": "true", "VERSION": "1"}, "set fsdp_version: 2"),
        ({"USE_FSDP": "true", "VERSION": "2", "ACTIVATION_CHECKPOINTING": "true"}, "set it to false"),
        ({"USE_DEEPSPEED": "true", "DEEPSPEED_ZERO_STAGE": "2"}, "ZeRO stage 2 .* set zero_stage: 3"),
    ],
)
def test_engines_that_cannot_work_are_refused(monkeypatch, variables, message):
    for name, value in variables.items():
        fsdp = name in ("VERSION", "ACTIVATION_CHECKPOINTING")
        monkeypatch.setenv(f"{'FSDP' if fsdp else 'ACCELERATE'}_{name}", value)
    monkeypatch.setattr("toolkit.models.sharding.find_spec", lambda name: "found")
    with pytest.raises(CalibrantError, match=message):
        is_sharded(CPU)


@pytest.mark.skipif(find_spec("deepspeed") is not None, reason="DeepSpeed is installed")
def test_a_missing_deepspeed_is_refused(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(CalibrantError, match="pip install deepspeed"):
        check_engine()


def test_fsdp_refuses_weights_packed_into_integers(monkeypatch, tiny_folder):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    with pytest.raises(CalibrantError, match="packed into integers"):
        shard_base(build(str(tiny_folder), "nf4", storage=torch.uint8), CPU)
