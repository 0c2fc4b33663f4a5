"""Limits on the time and memory of a question."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracekit.cli._guard import complain

_EVERY_SECONDS = 0.02
_HELD = Path("/proc/self/statm")
_EXIT_CODE = 2


@contextmanager
def limited(seconds: float | None, memory: int) -> Iterator[None]:
    """End this process with a message where what is done in it takes too long, or too much memory.

    An engine that works on a query hears nobody, so that nothing less than the end of the process
    stops it. Where the system does not say how much memory is held, only time is limited.
    """
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(over, seconds, memory), daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


def _watch(over: threading.Event, seconds: float | None, memory: int) -> None:
    end = None if seconds is None else time.monotonic() + seconds
    while not over.wait(_EVERY_SECONDS):
        if end is not None and time.monotonic() > end:
            _give_up(f"the query took longer than {seconds:g} s", "--timeout")
        if _held_bytes() > memory:
            _give_up(f"the query took more memory than {memory:,} bytes", "--memory")


def _give_up(what: str, option: str) -> None:
    complain(f"{what}: ask for less, or allow more with {option}")
    sys.stderr.flush()
    os._exit(_EXIT_CODE)


def _held_bytes() -> int:
    if not _HELD.exists():
        return 0
    pages = int(_HELD.read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
