"""Settings of a process of our own: a command, or a worker that makes reports.

Where tracekit is a library, its user decides about these things.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Mapping
from contextlib import suppress

_OBJECTS = 200_000
"""How many more objects make Python look for garbage. Modules and tables refer to each other in few
circles, and looking at all of them again and again took a tenth of a small ingest; this many are
not made by any command before it has something large to do."""
_THREADS = "OPENBLAS_NUM_THREADS"
"""OpenBLAS, which comes with NumPy and SciPy, has a thread per core wait for work by spinning. Here
it solves nothing that is worth a second thread."""
_OWN: set[str] = set()
"""The variables of the environment that are there for this process alone."""


def own_process() -> None:
    """Spend little on garbage and threads, and let Python alone write on stderr.

    To be called before polars is imported.
    """
    before = set(os.environ)
    os.environ.setdefault(_THREADS, "1")
    _OWN.update(set(os.environ) - before)
    _take_stderr()
    gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])
    # At the end Python looks at all objects once more, although the memory goes back as a whole.
    atexit.register(gc.freeze)


def _take_stderr() -> None:
    """Have Python write by a descriptor of its own, and native code nowhere.

    A thread of polars that breaks down, over a damaged file or as it is interrupted, writes where
    in polars it did; what went wrong comes up in Python too, and is told there.
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
"""The descriptor by which native code writes on stderr."""
_theirs: int | None = None


def users_stderr() -> int | None:
    """Return where the programs of others write on stderr; None where that is inherited."""
    return _theirs


def users_environment() -> Mapping[str, str]:
    """Return the environment as it was found, for the programs of others."""
    return {name: value for name, value in os.environ.items() if name not in _OWN}
