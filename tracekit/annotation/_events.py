"""Times ranges on the GPU by CUDA events, without waiting, and not while a graph is captured.

An event is read once it is complete, which is checked whenever another event is recorded. The
first event counts as reached when it was recorded; later times are elapsed GPU time from there.
"""

from __future__ import annotations

import collections
import os
import threading
import time
from typing import Any, NamedTuple

from ._ring import PUSH_POP, RingRanges

MARK = "tracekit.cuda events"
"""Mark in ring files with times of CUDA events."""
_NO_STAGES = ("layer ", "aten::")
"""Begins of the names of ranges that are too many to be timed."""
_MOST = 4_096
"""Number of incomplete events, as of a GPU that hangs, from which on none is recorded."""


class _Moment:
    """An event on a GPU stream, and its time on the host's clock, ns, once it has been read."""

    __slots__ = ("ends", "event", "time")

    def __init__(self, event: Any) -> None:
        self.event = event
        self.time = 0
        self.ends: _Timed | None = None


class _Timed(NamedTuple):
    name: str
    begin: _Moment
    style: int
    thread: int


class EventRanges(RingRanges):
    """Writer of ranges into a ring file, timed on the GPU by a CUDA event at each end.

    Parameters
    ----------
    torch
        The package `torch`.
    path
        Ring file to write.
    """

    def __init__(self, torch: Any, path: str) -> None:
        super().__init__(path)
        self._cuda = torch.cuda
        self._waiting: collections.deque[_Moment] = collections.deque()
        self._free: list[Any] = []
        self._last: _Moment | None = None
        self._lock = threading.Lock()
        self._place: tuple[int, int] | None = None
        self._is_off = False

    def mark(self, name: str) -> None:
        """Write a marker: a range of no length on the GPU's clock."""
        self._close(self._opened(name), PUSH_POP)

    def _opened(self, name: str) -> tuple[str, Any] | None:
        begin = None if name.startswith(_NO_STAGES) else self._recorded(None)
        return None if begin is None else (name, begin)

    def _close(self, opened: tuple[str, Any] | None, style: int) -> None:
        if opened is not None:
            self._recorded(_Timed(*opened, style, threading.get_ident()))

    def _recorded(self, ends: _Timed | None) -> _Moment | None:
        """Record an event, after which the range `ends` is written; None if it cannot be timed."""
        try:
            with self._lock:
                if self._is_off or not self._may_record():
                    return None
                event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
                moment = _Moment(event)
                moment.ends = ends
                event.record()
                self._waiting.append(moment)
                self._read()
                return moment
        except Exception:  # noqa: BLE001 - the program runs on, whatever CUDA says of events
            self._is_off = True
            return None

    def _may_record(self) -> bool:
        """Test whether an event may be recorded now.

        It may if CUDA is in use, in the process and on the device of the first event, captures no
        graph, and few events are pending.
        """
        cuda = self._cuda
        if not cuda.is_initialized() or cuda.is_current_stream_capturing():
            return False
        here = os.getpid(), cuda.current_device()
        self._place = self._place or here
        return here == self._place and len(self._waiting) < _MOST

    def _read(self) -> None:
        """Read the events that are complete, in order, and write the ranges that end with them."""
        while self._waiting and self._waiting[0].event.query():
            moment, last = self._waiting.popleft(), self._last
            if last is None:
                moment.time = time.perf_counter_ns()
                self.write(MARK, moment.time, moment.time, PUSH_POP)
            else:
                moment.time = last.time + round(last.event.elapsed_time(moment.event) * 1e6)
                self._free.append(last.event)
            self._last = moment
            if moment.ends is not None:
                name, begin, style, thread = moment.ends
                self.write(name, begin.time, max(moment.time, begin.time), style, thread)
