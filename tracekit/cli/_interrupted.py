"""Interrupts of commands: how to detect them, their exit code, and where to report them."""

import sys
from contextlib import suppress

INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def is_an_interrupt(error: BaseException | None) -> bool:
    """Tell whether it is an interrupt, or another error that was made of one.

    Python makes one of an interrupt that comes while it makes a class; so does polars where it
    comes while that calls Python, and breaks down over it.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        of = type(error).__module__.partition(".")[0]
        if of in ("polars", "pyo3_runtime") and KeyboardInterrupt.__name__ in str(error):
            return True
        error = error.__cause__
    return error is not None


def has_descriptor() -> bool:
    """Tell whether stderr is a file of the system; notebooks and harnesses have other things."""
    with suppress(AttributeError, OSError, ValueError):
        return sys.stderr.fileno() >= 0
    return False
