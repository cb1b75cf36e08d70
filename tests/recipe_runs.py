"""Runs recipes as a user does, on the tiny model."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
LAUNCH = ("-m", "accelerate.commands.launch", "--num_machines", "1", "--mixed_precision", "no",
          "--dynamo_backend", "no", "--cpu", "--quiet")  # fmt: skip


def config(folder: Path, tiny: Path) -> Path:
    """Writes a config of a few steps on a few questions."""
    keys: dict[str, Any] = {
        "model": {"name": str(tiny), "dtype": "float32"},
        "prompt": {"score": "token"},
        "data": {
            "train": ["worldfacts/capitals", "worldfacts/languages"],
            "train_limit": 24,
            "validation_limit": 6,
            "test": ["worldfacts/capitals", "worldfacts/chemistry"],
            "test_limit": 10,
        },
        "lora": {"rank": 4},
        "calm": {"lower_steps": 2},
        "training": {
            "steps": 6,
            "batch_size": 4,
            "micro_batch_size": 4,
            "learning_rate": 0.01,
            "validate_every": 2,
            "save_every": 2,
            "keep": "last",
        },
        "report": {"resamples": 20},
    }
    path = folder / "config.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(keys))
    return path


def launch(recipe: str, *arguments: object, processes: int = 1, python: str | None = None):
    """Runs `accelerate launch recipes/<recipe>`, or `python -c` code that runs it in its own way."""
    command = [*LAUNCH, "--num_processes", "1", f"recipes/{recipe}"]
    if processes > 1:
        assert processes == 2, "as the config says"
        file = ROOT / "recipes" / "accelerate" / "cpu.yaml"
        command = [LAUNCH[0], LAUNCH[1], "--config_file", str(file), str(ROOT / "recipes" / recipe)]
    if python is not None:
        command = ["-c", python, f"recipes/{recipe}"]
    return subprocess.run(
        [sys.executable, *command, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def said(process: subprocess.CompletedProcess[str]) -> list[str]:
    """Returns the lines on stderr that are no progress bars."""
    lines = process.stderr.replace("\r", "\n").splitlines()
    return [
        line
        for line in lines
        if line.strip() and "it/s]" not in line and "?it/s" not in line and "%|" not in line
    ]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
