"""Files that are replaced whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from toolkit.errors import CalibrantError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a path to write to, and puts what was written there in the place of `path` at the end.

    Whatever goes wrong on the way, `path` stays as it was.

    Args:
        path: The file to write or replace; its folder is made.

    Yields:
        A path in the same folder.

    Raises:
        CalibrantError: The file cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise CalibrantError(
            f"{path} cannot be written ({error.strerror or error}) and is as it was; "
            "free some space or choose another folder"
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
