"""Interrupts of commands: how to recognise them, their exit code, and where to report them."""

import sys
from contextlib import suppress

INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def is_an_interrupt(error: BaseException | None) -> bool:
    """Test whether an error is an interrupt, or was caused by one.

    Python replaces an interrupt by another error if it comes while a class is being created; so
    does polars if it comes during a call from polars into Python, which then panics.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        of = type(error).__module__.partition(".")[0]
        if of in ("polars", "pyo3_runtime") and KeyboardInterrupt.__name__ in str(error):
            return True
        error = error.__cause__
    return error is not None


def has_descriptor() -> bool:
    """Test whether stderr has a file descriptor; in notebooks and test harnesses it has none."""
    with suppress(AttributeError, OSError, ValueError):
        return sys.stderr.fileno() >= 0
    return False
