"""Settings of tracekit's own processes: the command-line program, and workers.

In a program that uses tracekit as a library these settings are left to the program.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Mapping
from contextlib import suppress

_OBJECTS = 200_000
"""Number of new objects after which Python collects garbage. Modules and tables have few reference
cycles, and repeated collections took a tenth of a small ingest; no command makes this many objects
before it has larger work to do."""
_THREADS = "OPENBLAS_NUM_THREADS"
"""OpenBLAS, which comes with NumPy and SciPy, has a thread per core wait for work by spinning. Here
it solves nothing that is worth a second thread."""
_OWN: set[str] = set()
"""Environment variables set for this process only."""


def own_process() -> None:
    """Reduce garbage collection and threads, and let only Python write on stderr.

    It has to be called before polars is imported.
    """
    before = set(os.environ)
    os.environ.setdefault(_THREADS, "1")
    _OWN.update(set(os.environ) - before)
    _take_stderr()
    gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])
    # At the end Python looks at all objects once more, although the memory goes back as a whole.
    atexit.register(gc.freeze)


def _take_stderr() -> None:
    """Give Python a separate file descriptor for stderr, and silence native code there.

    A thread of polars that panics, over a damaged file or an interrupt, prints its position in
    polars; the error itself is raised in Python, and reported there.
    """
    global _theirs  # noqa: PLW0603 - there is one process
    with suppress(OSError, AttributeError):  # there may be no stderr
        _theirs = os.dup(sys.stderr.fileno())
        sys.stderr = os.fdopen(
            _theirs, "w", buffering=1,
            encoding=sys.stderr.encoding, errors=sys.stderr.errors, closefd=False,
        )  # fmt: skip
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _NATIVE)
        os.close(nowhere)


_NATIVE = 2
"""File descriptor to which native code writes stderr."""
_theirs: int | None = None


def users_stderr() -> int | None:
    """Return the original stderr, to pass to other programs; None if it was not replaced."""
    return _theirs


def users_environment() -> Mapping[str, str]:
    """Return the environment without tracekit's own settings, for other programs."""
    return {name: value for name, value in os.environ.items() if name not in _OWN}
