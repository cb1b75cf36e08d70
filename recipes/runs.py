"""The folder of a run: never overwritten when finished, resumed when not, used by one command at a time."""

import fcntl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from toolkit.errors import CalibrantError


@contextmanager
def open_run(folder: Path, config: str, *, finished: str, active: bool = True) -> Iterator[None]:
    """Makes or reopens a run's folder and holds it against other processes.

    Args:
        folder: The folder.
        config: The resolved settings as YAML, kept as `config.yaml`.
        finished: Name of the file that a finished run has.
        active: False in all but one of several processes of the same run; they only check.

    Raises:
        CalibrantError: The folder holds a finished run, a run with other settings, files that are no run, or
            is in use, or cannot be written.
    """
    if (folder / finished).exists():
        raise CalibrantError(f"{folder} already holds a finished run; choose another --output_dir")
    if not active:
        yield
        return
    saved = folder / "config.yaml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not saved.exists() and any(path.name != ".lock" for path in folder.iterdir()):
            raise CalibrantError(f"{folder} is not empty and holds no run; choose another --output_dir")
        lock = open(folder / ".lock", "w")  # noqa: SIM115
    except OSError as error:
        raise CalibrantError(
            f"{folder} cannot be used ({error.strerror}); choose another --output_dir"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CalibrantError(
                f"{folder} is in use by another command; wait for it, or choose another --output_dir"
            ) from error
        if saved.exists() and (changed := _changes(saved.read_text(), config)):
            raise CalibrantError(
                f"{folder} holds an unfinished run with other settings ({changed}); give the same ones to "
                "resume it, or choose another --output_dir"
            )
        saved.write_text(config)
        yield
        (folder / ".lock").unlink()


def run_recipe(main: Callable[[], None]) -> None:
    """Runs a recipe; a fault that the user can mend is one line on stderr and exit status 2."""
    try:
        main()
    except CalibrantError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped; the same command resumes the run", file=sys.stderr)
        sys.exit(130)


def _changes(old: str, new: str) -> str:
    """Returns the keys that differ between two configs, or nothing."""
    before, after = _flat(yaml.safe_load(old)), _flat(yaml.safe_load(new))
    keys = [key for key in sorted(before | after) if before.get(key) != after.get(key)]
    return ", ".join(f"{key}: {before.get(key)} before, {after.get(key)} now" for key in keys)


def _flat(tree: object, prefix: str = "") -> dict[str, object]:
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {
        k: v for key, value in tree.items() for k, v in _flat(value, f"{prefix}.{key}".strip(".")).items()
    }
