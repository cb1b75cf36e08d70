"""Checkpoints that a kill cannot spoil: written beside their place, then renamed into it."""

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from toolkit.errors import CalibrantError, first_line

logger = logging.getLogger(__name__)

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
            f"the checkpoint {final} cannot be written ({first_line(error)}); free some space and run the "
            "same command again, it resumes"
        ) from error
    for old in _finished(folder)[:-keep]:
        old.unlink()
    return final


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Reads the newest checkpoint that is whole, or returns None where there is none at all.

    Raises:
        CalibrantError: There are checkpoints, and all are damaged.
    """
    finished = _finished(folder)
    for path in reversed(finished):
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch.load fails in many ways on a damaged file
            logger.warning("the checkpoint %s cannot be read (%s)", path, first_line(error))
            continue
        return state
    if finished:
        raise CalibrantError(
            f"no checkpoint in {folder} can be read; remove that folder to start the run again"
        )
    return None


def remove_checkpoints(folder: Path) -> None:
    """Removes all checkpoints of a finished run."""
    shutil.rmtree(folder, ignore_errors=True)


def _finished(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{_PREFIX}*.pt"))
