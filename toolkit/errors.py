"""The one exception that a user is meant to read."""

import re


class CalibrantError(Exception):
    """A fault the user can mend: one line that names the fault and the mend.

    The recipes print it as it is and exit with status 2, without a traceback.
    """


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, without colour codes and full stop."""
    message = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip() or type(error).__name__
    return message.splitlines()[0].rstrip(".")
