"""Checkpoints that a kill cannot spoil: written beside their place, then renamed into it."""

import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch

from toolkit.errors import CalibrantError

_PREFIX = "step-"


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], keep: int = 2) -> Path:
    """Writes the state of a run after `step` steps and removes all but the newest checkpoints.

    Args:
        folder: Folder of the run's checkpoints.
        step: Number of finished steps.
        state: Tensors, numbers, strings, lists and dicts of them.
        keep: How many checkpoints stay.

    Raises:
        CalibrantError: The state cannot be written; older checkpoints are as they were.
    """
    final = folder / f"{_PREFIX}{step:07d}.pt"
    partial = final.with_suffix(".partial")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            torch.save({"step": step, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, final)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        partial.unlink(missing_ok=True)
        raise CalibrantError(
            f"the checkpoint {final} cannot be written ({_first_line(error)}); free some space and run the "
            "same command again, it resumes"
        ) from error
    for old in _finished(folder)[:-keep]:
        old.unlink()
    return final


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Reads the newest checkpoint, or returns None where there is none.

    Raises:
        CalibrantError: The newest checkpoint is damaged.
    """
    finished = _finished(folder)
    if not finished:
        return None
    try:
        state: dict[str, Any] = torch.load(finished[-1], map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load fails in many ways on a damaged file
        raise CalibrantError(
            f"the checkpoint {finished[-1]} cannot be read ({_first_line(error)}); remove it to resume "
            "from the one before"
        ) from error
    return state


def remove_checkpoints(folder: Path) -> None:
    """Removes all checkpoints of a finished run."""
    shutil.rmtree(folder, ignore_errors=True)


def _finished(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{_PREFIX}*.pt"))


def _first_line(error: BaseException) -> str:
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__
