"""Checkpoints: equal to the bit, and never lost to a kill, a full disk or a damaged file."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from toolkit.calibration.checkpoints import load_checkpoint, remove_checkpoints, save_checkpoint
from toolkit.errors import CalibrantError

ROOT = Path(__file__).parents[1]


def state(seed: int = 0) -> dict:
    torch.manual_seed(seed)
    return {
        "theta": [torch.randn(3, 2), torch.randn(4).bfloat16()],
        "best_value": 0.1 + seed,
        "nested": {"a": [1]},
    }


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs code that has `folder`, `state` and the functions above."""
    start = f"""
        import os, resource, signal, sys, torch
        from pathlib import Path
        from toolkit.calibration.checkpoints import save_checkpoint
        from toolkit.errors import CalibrantError
        folder = Path({str(folder)!r})
        state = {{"theta": [torch.ones(200_000)]}}
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(start) + textwrap.dedent(code)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_what_is_read_is_what_was_written_to_the_bit(tmp_path):
    save_checkpoint(tmp_path, 3, state())
    found = load_checkpoint(tmp_path)
    assert found is not None and found["step"] == 3
    assert found["best_value"] == state()["best_value"] and found["nested"] == {"a": [1]}
    for ours, theirs in zip(found["theta"], state()["theta"], strict=True):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)


def test_the_newest_are_kept_and_the_newest_is_read(tmp_path):
    for step in (2, 10, 9_999, 10_000):
        save_checkpoint(tmp_path, step, state(step), keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-0009999.pt", "step-0010000.pt"]
    found = load_checkpoint(tmp_path)
    assert found is not None and found["step"] == 10_000
    remove_checkpoints(tmp_path)
    assert load_checkpoint(tmp_path) is None and not tmp_path.exists()


def test_a_kill_in_the_middle_of_a_write_leaves_the_one_before(tmp_path):
    save_checkpoint(tmp_path, 1, state())
    killed = run(
        """
        def half(_, file):
            file.write(b"half")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        torch.save = half
        save_checkpoint(folder, 2, state)
        """,
        tmp_path,
    )
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "step-0000002.partial").exists()
    found = load_checkpoint(tmp_path)
    assert found is not None and found["step"] == 1
    save_checkpoint(tmp_path, 2, state())
    assert not list(tmp_path.glob("*.partial"))


def test_a_full_disk_is_one_line_and_leaves_the_one_before(tmp_path):
    save_checkpoint(tmp_path, 1, state())
    full = run(
        """
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            save_checkpoint(folder, 2, state)
        except CalibrantError as error:
            sys.exit(str(error))
        """,
        tmp_path,
    )
    assert full.returncode == 1 and len(full.stderr.splitlines()) == 1, full.stderr
    assert "step-0000002.pt cannot be written" in full.stderr and "free some space" in full.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000001.pt"]


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04half"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, content, caplog):
    save_checkpoint(tmp_path, 1, state())
    (tmp_path / "step-0000002.pt").write_bytes(content)
    found = load_checkpoint(tmp_path)
    assert found is not None and found["step"] == 1
    assert "step-0000002.pt cannot be read" in caplog.text and "\n" not in caplog.messages[0]
    (tmp_path / "step-0000001.pt").write_bytes(content)
    with pytest.raises(CalibrantError, match="no checkpoint in .* can be read; remove that folder") as error:
        load_checkpoint(tmp_path)
    assert "\n" not in str(error.value)
