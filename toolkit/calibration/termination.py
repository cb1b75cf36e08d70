"""SIGTERM, with which schedulers end a job: the step that runs is finished and saved, then the run ends."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 75
"""Exit status of a run that SIGTERM ended, `EX_TEMPFAIL` of sysexits.h: the same command goes on with it."""


class Terminated(Exception):
    """A run was ended by SIGTERM and can be resumed."""


def terminate(signum: int, frame: FrameType | None) -> None:
    """Handles SIGTERM by raising `Terminated` where the program is."""
    raise Terminated("stopped by SIGTERM")


@contextmanager
def held_back() -> Iterator[Callable[[], bool]]:
    """Holds SIGTERM back while a block runs, which asks at its own time whether one has come.

    Yields:
        A function that says so. Outside the main thread, which alone gets signals, it always says no.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda signum, frame: came.append(signum))
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGTERM, before)
