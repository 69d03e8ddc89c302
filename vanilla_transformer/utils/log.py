"""Lines of progress for people: every function that has some takes one callable for them, `log`."""

import warnings
from collections.abc import Callable

Log = Callable[[str], None]
"""Receives one line, without its end."""


def no_log(line: str) -> None:
    """Leave a line unsaid."""


def renamed_log(log: Log, say: Log | None) -> Log:
    """Return `log`, or what a caller gives by its name before version 0.2, `say`."""
    if say is None:
        return log
    warnings.warn("say= is called log= now; say= goes with the next version.", FutureWarning, stacklevel=3)
    return say
