"""The folder of a run: never overwritten when finished, resumed when not, used by one command at a time."""

import errno
import fcntl
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from transformers.utils.logging import disable_progress_bar

from toolkit.calibration.termination import EXIT_CODE, Terminated, terminate
from toolkit.errors import CalibrantError
from toolkit.evaluation.files import replacing

_CONFIG, _LOCK = "config.yaml", ".lock"


@contextmanager
def open_run(
    folder: Path, config: str, *, finished: str, active: bool = True, resume: bool = True
) -> Iterator[None]:
    """Makes or reopens a run's folder and holds it against other processes.

    Args:
        folder: The folder.
        config: The resolved settings as YAML, kept as `config.yaml`.
        finished: Name of the file that a finished run has.
        active: False in all but one of several processes of the same run; they only check.
        resume: Whether an unfinished run in the folder may go on.

    Raises:
        CalibrantError: The folder holds a finished run, a run with other settings, files that are no run, or
            is in use, or cannot be written.
    """
    if not active:
        _refuse_finished(folder, finished)
        yield
        return
    try:
        _refuse_finished(folder, finished)
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / _LOCK, "w")  # noqa: SIM115
    except OSError as error:
        raise CalibrantError(
            f"{folder} cannot be used ({error.strerror}); choose another --output_dir"
        ) from error
    used = f"{folder} is in use by another command; wait for it, or choose another --output_dir"
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CalibrantError(used) from error
        if not os.path.exists(folder / _LOCK) or not os.path.samestat(
            os.fstat(lock.fileno()), os.stat(folder / _LOCK)
        ):  # the command that held it has just removed it
            raise CalibrantError(used)
        try:
            _refuse_finished(folder, finished)  # by a command that held the lock until now
            if not resume and _files(folder):
                raise CalibrantError(
                    f"{folder} holds an unfinished run; leave out --resume never to go on with it, or choose "
                    "another --output_dir"
                )
            _refuse_other(folder, config)
            with replacing(folder / _CONFIG) as partial:
                partial.write_text(config, encoding="utf-8")
            try:
                yield
            finally:
                if _files(folder) == {_CONFIG}:  # nothing was done: other settings may come
                    (folder / _CONFIG).unlink()
        finally:
            (folder / _LOCK).unlink(missing_ok=True)


def _refuse_finished(folder: Path, finished: str) -> None:
    if (folder / finished).exists():
        raise CalibrantError(f"{folder} already holds a finished run; choose another --output_dir")


def _refuse_other(folder: Path, config: str) -> None:
    """Refuses a folder whose files are of no run, or of a run with other settings."""
    if not _files(folder):
        return
    if _CONFIG not in _files(folder):
        raise CalibrantError(f"{folder} is not empty and holds no run; choose another --output_dir")
    if changed := _changes(folder / _CONFIG, config):
        raise CalibrantError(
            f"{folder} holds an unfinished run with other settings ({changed}); give the same ones to "
            "resume it, or choose another --output_dir"
        )


def _files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {_LOCK}


def run_recipe(main: Callable[[], None]) -> None:
    """Runs a recipe; a fault that the user can mend is one line on stderr and exit status 2.

    A run that SIGTERM ends exits with 75, and one that is interrupted from the keyboard with 130.
    """
    disable_progress_bar()  # of the libraries' own inner workings
    signal.signal(signal.SIGTERM, terminate)
    try:
        main()
    except CalibrantError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        print(
            f"error: {error.filename or 'a file'} cannot be written ({error.strerror}); free some space and "
            "run the same command again, it resumes",
            file=sys.stderr,
        )
        sys.exit(2)
    except Terminated as error:
        print(f"{error}; the same command resumes the run", file=sys.stderr)
        sys.exit(EXIT_CODE)
    except KeyboardInterrupt:
        print("stopped; the same command resumes the run", file=sys.stderr)
        sys.exit(130)


def _changes(saved: Path, config: str) -> str:
    """Returns the keys that differ between a saved config and this one; a key that is new changes nothing."""
    try:
        before, after = flat(yaml.safe_load(saved.read_bytes())), flat(yaml.safe_load(config))
    except (yaml.YAMLError, OSError):
        return "its config.yaml is damaged"
    keys = [key for key in sorted(before) if key not in after or before[key] != after[key]]
    return ", ".join(f"{key}: {before[key]} before, {after.get(key)} now" for key in keys)


def flat(tree: object, prefix: str = "") -> dict[str, object]:
    """Returns settings in sections as one level of keys, joined by dots."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {k: v for key, value in tree.items() for k, v in flat(value, f"{prefix}.{key}".strip(".")).items()}
