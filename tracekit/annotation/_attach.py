"""Let all ranks of a running job record the same steps, on request.

The program that requests it (``tracekit record --attach``) and the ranks share a folder. The file
``request`` in it is replaced atomically; each rank reads it between steps, and answers in a file of
its own. `tracekit/recording/_attach_request.py` writes the requests.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

ATTACH = "TRACEKIT_ATTACH"
"""Environment variable with the shared folder."""
REQUEST = "request"
ASK, RECORD = "ask", "record"
IS_AT, LATE, DONE = "at", "late", "done"
_PAUSE = 0.05
"""Seconds between two looks, so that short steps, and a shared file system, are not slowed down."""


class Requests:
    """Requests to record some steps, which this rank reads from the shared folder and answers.

    A request is ``ID ask`` (for the current step) or ``ID record STEP LENGTH``; an answer is
    ``ID at STEP``, ``ID late STEP`` (this rank has passed that step) or ``ID done STEP``.

    Parameters
    ----------
    folder
        Path of the shared folder.
    """

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, REQUEST)
        self._answer = os.path.join(folder, f"{os.uname().nodename}.{os.getpid()}")
        self._seen: tuple[int, int] | None = None
        self._looks_at = 0.0
        self._is_known = False
        self._planned: tuple[str, int, int] | None = None

    def length_at(self, number: int) -> int:
        """Return the number of steps to record from step `number` on; 0 for none."""
        if not self._is_known:
            self._is_known = True
            self._say("0", IS_AT, number)
        now = time.monotonic()
        if now >= self._looks_at:
            self._looks_at = now + _PAUSE
            self._look(number)
        if self._planned is None or self._planned[1] != number:
            return 0
        return self._planned[2]

    def _look(self, number: int) -> None:
        """Read the request file; answer a new request, or note the steps it asks to record."""
        with contextlib.suppress(OSError):
            found = os.stat(self._path)
            if self._seen != (found.st_ino, found.st_mtime_ns):
                self._seen = found.st_ino, found.st_mtime_ns
                self._take(number)

    def done(self, number: int) -> None:
        """Answer that recording has ended before step `number`."""
        if self._planned is not None:
            self._say(self._planned[0], DONE, number)
            self._planned = None

    def _take(self, number: int) -> None:
        try:
            with open(self._path, encoding="ascii") as file:
                identity, kind, *numbers = file.read(200).split()
            if kind == RECORD:
                at, length = map(int, numbers)
                self._planned = (identity, at, length) if number <= at else None
        except (OSError, ValueError):
            return
        if kind == ASK:
            self._say(identity, IS_AT, number)
        elif self._planned is None:
            self._say(identity, LATE, number)

    def _say(self, identity: str, kind: str, number: int) -> None:
        try:
            with open(self._answer + ".new", "w", encoding="ascii") as file:
                file.write(f"{identity} {kind} {number}")
            os.replace(self._answer + ".new", self._answer)
        except OSError as error:  # the program runs, whatever becomes of this
            sys.stderr.write(f"tracekit: no answer ({error})\n")
