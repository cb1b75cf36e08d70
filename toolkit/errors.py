"""The one exception that a user is meant to read."""


class CalibrantError(Exception):
    """A fault the user can mend: one line that names the fault and the mend.

    The recipes print it as it is and exit with status 2, without a traceback.
    """
