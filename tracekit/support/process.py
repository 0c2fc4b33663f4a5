"""How a process behaves that is all ours: one of a command, or one that makes reports for it.

Where tracekit is a library, its user decides about these things.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from tracekit.support.allocator import keep_free_memory

_OBJECTS = 50_000
"""How many more objects make Python look for garbage. Modules and tables refer to each other in few
circles, and looking at all of them again and again took a tenth of a small ingest."""
_THREADS = "OPENBLAS_NUM_THREADS"
"""OpenBLAS, which comes with NumPy and SciPy, has a thread per core wait for work by spinning. Here
it solves nothing that is worth a second thread."""
_OWN: set[str] = set()
"""The variables of the environment that are there for this process alone."""


def own_process() -> None:
    """Spend little on memory, garbage and threads; to be called before polars is imported."""
    before = set(os.environ)
    keep_free_memory()
    os.environ.setdefault(_THREADS, "1")
    _OWN.update(set(os.environ) - before)
    _STDERR.take()
    gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])
    # At the end Python looks at all objects once more, although the memory goes back as a whole.
    atexit.register(gc.freeze)


class _Stderr:
    """The process's stderr, of which Python gets a door of its own: the other one can be closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_ours = False
        self._wishes = 0
        self._open = -1

    def take(self) -> None:
        """Have Python write by another descriptor than native code does."""
        with suppress(OSError, AttributeError):  # there may be no stderr
            self._open = os.dup(sys.stderr.fileno())
            sys.stderr = os.fdopen(
                self._open, "w", buffering=1,
                encoding=sys.stderr.encoding, errors=sys.stderr.errors, closefd=False,
            )  # fmt: skip
            self._is_ours = True

    def wish(self, number: int) -> None:
        """Count who wishes native code to be silent; it is while there is anyone."""
        with self._lock:
            self._wishes += number
            if self._is_ours and self._wishes == number == 1:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, _NATIVE)
                os.close(nowhere)
            elif self._is_ours and not self._wishes:
                os.dup2(self._open, _NATIVE)


_NATIVE = 2
"""The descriptor by which native code writes on stderr."""
_STDERR = _Stderr()


@contextmanager
def native_silence() -> Iterator[None]:
    """Keep from the user what native code writes on stderr, if the process is ours.

    A thread of polars that breaks down over a damaged file writes where in polars it did.
    """
    _STDERR.wish(1)
    try:
        yield
    finally:
        _STDERR.wish(-1)


def users_environment() -> Mapping[str, str]:
    """Return the environment as it was found, for the programs of others."""
    return {name: value for name, value in os.environ.items() if name not in _OWN}
