"""Runs that a scheduler stops, that go on, that a tracker follows, and that several processes share."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from recipe_runs import config, contents, launch, said
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

STEPS = 6
TERMINATED = """
import os, runpy, signal, sys
sys.path.insert(0, "recipes")
import {module} as module
function, calls = module.{function}, []
def terminate(*arguments, **keys):
    calls.append(0)
    if len(calls) == {call} and os.environ.get("RANK", "0") == "0":  # one of several processes is told
        os.kill(os.getpid(), signal.SIGTERM)
    return function(*arguments, **keys)
module.{function} = terminate
sys.argv = [word for word in sys.argv if word != "recipes/calibrate.py"]
runpy.run_path("recipes/calibrate.py", run_name="__main__")
"""
IN_STEP_3 = TERMINATED.format(module="toolkit.calibration.training", function="_describe", call=3)


@pytest.fixture(scope="module")
def settings(tmp_path_factory, tiny_folder):
    return config(tmp_path_factory.mktemp("settings"), tiny_folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, settings):
    folder = tmp_path_factory.mktemp("runs") / "finished"
    done = launch("calibrate.py", "--config", settings, "--output_dir", folder, "--log_with", "tensorboard")
    assert done.returncode == 0, done.stderr
    return folder


def test_sigterm_saves_the_step_and_exits_with_a_status_of_its_own(settings, finished, tmp_path):
    command = ("calibrate.py", "--config", settings, "--output_dir", tmp_path / "finished")
    stopped = launch(*command, python=IN_STEP_3)
    assert stopped.returncode == 75, stopped.stderr
    assert said(stopped) == ["stopped by SIGTERM after step 3; the same command resumes the run"]
    assert sorted(p.name for p in (tmp_path / "finished" / "checkpoints").iterdir()) == [
        "step-0000002.pt",
        "step-0000003.pt",
    ]
    refused = launch(*command, "--resume", "never")
    assert refused.returncode != 0 and "holds an unfinished run" in said(refused)[0]
    resumed = launch(*command, "--resume", "auto")
    assert resumed.returncode == 0, resumed.stderr
    alone, ours = contents(finished), contents(tmp_path / "finished")
    for name in ("adapter_model.safetensors", "calibration.safetensors", "predictions.parquet"):
        assert ours[name] == alone[name], name
    rows = [json.loads(line)["step"] for line in ours["history.jsonl"].splitlines()]
    assert rows == list(range(STEPS + 1))


def test_sigterm_outside_training_exits_so_too(settings, tmp_path):
    code = TERMINATED.format(module="build", function="load_model", call=1)
    stopped = launch("calibrate.py", "--config", settings, "--output_dir", tmp_path / "out", python=code)
    assert stopped.returncode == 75, stopped.stderr
    assert said(stopped) == ["stopped by SIGTERM; the same command resumes the run"]


def test_all_processes_stop_at_the_step_in_which_one_is_told(settings, finished, tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text(IN_STEP_3)
    command = ("--config", settings, "--output_dir", tmp_path / "two")
    stopped = launch(worker, *command, processes=2)
    assert stopped.stderr.count("stopped by SIGTERM after step 3") == 2
    resumed = launch("calibrate.py", *command, processes=2)
    assert resumed.returncode == 0, resumed.stderr
    one, two = (load_file(f / "adapter_model.safetensors") for f in (finished, tmp_path / "two"))
    for key, value in one.items():
        assert torch.allclose(two[key], value, atol=2e-4), key


def test_a_tracker_gets_the_history(finished):
    history = [json.loads(line) for line in (finished / "history.jsonl").read_text().splitlines()]
    found = EventAccumulator(str(finished / "logs" / "calibrant")).Reload()
    losses = {event.step: event.value for event in found.Scalars("lower")}
    assert losses == pytest.approx({row["step"]: row["lower"] for row in history[1:]}, rel=1e-4)
    validated = {event.step: event.value for event in found.Scalars("validation_nll")}
    assert validated == pytest.approx(
        {row["step"]: row["validation_nll"] for row in history if "validation_nll" in row}, rel=1e-4
    )


def test_a_tracker_that_is_not_installed_is_named(settings, tmp_path):
    refused = launch(
        "calibrate.py", "--config", settings, "--output_dir", tmp_path / "o", "--log_with", "wandb"
    )
    assert said(refused)[0] == "error: --log_with wandb needs its package; run: pip install wandb"


@pytest.mark.parametrize("limit", [1, 13])
def test_two_processes_score_each_question_once(tiny_folder, tmp_path, limit):
    """Counts that do not divide by the batch size or the processes, one of them less than a batch each."""
    for processes in (1, 2):
        done = launch(
            "evaluate.py", "--model", tiny_folder, "--data", "worldfacts/chemistry", "--limit", limit,
            "--batch_size", 2, "--resamples", 20, "--output_dir", tmp_path / str(processes),
            processes=processes,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("test set") == 1
    one, two = (pd.read_parquet(tmp_path / str(n) / "predictions.parquet") for n in (1, 2))
    assert list(one["id"]) == list(two["id"]) and one["id"].is_unique and len(one) == limit
    for ours, theirs in zip(one["probabilities"], two["probabilities"], strict=True):
        assert np.allclose(ours, theirs, atol=1e-6)
    assert np.allclose(one["option_mass"], two["option_mass"], rtol=1e-5)
