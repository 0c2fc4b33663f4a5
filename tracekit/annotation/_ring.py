"""Keep the latest ranges of a program in a file of fixed size (ring buffer), without a profiler.

The file is memory-mapped, so it is complete and readable even if the program is killed. After a
header and the names of ranges come records of 56 bytes, each with a checksum; new records overwrite
the oldest. `tracekit/sources/rings` reads it.

Ranges on the GPU are timed by CUDA events, without waiting, and not while a graph is captured. An
event is read once it is complete, which is checked whenever another event is recorded. The first
event counts as reached when it was recorded; later times are elapsed GPU time from there.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import mmap
import operator
import os
import struct
import sys
import threading
import time
import zlib
from typing import Any, NamedTuple

from ._spans import Ranges

MAGIC = b"tracekit ring 1\n"
HEAD = struct.Struct("<16sQQqqqQ")
"""Header: magic, capacity in records, bytes of names, process, rank (-1: none), epoch, checksum."""
NAMES_AT = 128
RECORD = struct.Struct("<qqQIIQQQ")
"""Record: start, end, thread, name, style, number in the name plus 1 (0: none), turn, checksum."""
CAPACITY, NAMES_BYTES = 1 << 16, 1 << 16
PUSH_POP, START_END = range(2)
SALT = 0x9E3779B97F4A7C15
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK", "SLURM_PROCID")
_NAME = struct.Struct("<HI")
"""Name: length and CRC, before its UTF-8; the first name has number 1, 0 is none."""
_LONGEST = 1_000
_OPERATOR = "aten::"
"""Prefix of operators, which only a profiler gets: they would take most of the file."""


class RingRanges:
    """Writer of ranges into a ring file; a range is written when it ends.

    A forked process gets a file of its own, and so does each rank: with the path ``live.ring``,
    rank 3 writes ``live.rank3.ring``, and a process that finds its file in use ``live.PID.ring``.

    Parameters
    ----------
    path
        Path of the file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._local = _Stack()
        self._started: dict[int, tuple[str, Any] | None] = {}
        self._handles = itertools.count(1)
        self._file: _File | None = None
        self._pid = 0

    def push(self, name: str) -> None:
        """Open a range on this thread."""
        self._local.spans.append(self._opened(name))

    def pop(self) -> None:
        """Close the innermost range of this thread."""
        spans = self._local.spans
        self._close(spans.pop() if spans else None, PUSH_POP)

    def start(self, name: str) -> int:
        """Open a start/end range, which applies to all threads; return its handle."""
        handle = next(self._handles)
        self._started[handle] = self._opened(name)
        return handle

    start_once = start

    def end(self, opened: int) -> None:
        """Close the start/end range with the handle `opened`."""
        self._close(self._started.pop(opened, None), START_END)

    def mark(self, name: str) -> None:
        """Write a mark, as a range of no length."""
        now = time.perf_counter_ns()
        self.write(name, now, now, PUSH_POP)

    def _opened(self, name: str) -> tuple[str, Any] | None:
        """Return name and start of a range that begins now; None if it is not to be kept."""
        return None if name.startswith(_OPERATOR) else (name, time.perf_counter_ns())

    def _close(self, opened: tuple[str, Any] | None, style: int) -> None:
        end = time.perf_counter_ns()
        if opened is not None:
            self.write(*opened, end, style)

    def write(self, name: str, start: int, end: int, style: int, thread: int | None = None) -> None:
        """Write a complete range of this thread, or of another thread.

        `style` is the code for push/pop or start/end range.
        """
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._file = _File.made(self._path)
        if self._file is not None:
            thread_id = threading.get_ident() if thread is None else thread
            self._file.write(name, start, end, style, thread_id)


class _Stack(threading.local):
    def __init__(self) -> None:
        self.spans: list[tuple[str, Any] | None] = []


class _File:
    """Ring file of a process, locked while in use."""

    def __init__(self, descriptor: int) -> None:
        size = NAMES_AT + NAMES_BYTES + CAPACITY * RECORD.size
        os.ftruncate(descriptor, 0)
        os.ftruncate(descriptor, size)
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, size)
        self._names: dict[str, int] = {}
        self._names_end = NAMES_AT
        self._turns = itertools.count(1)
        epoch = time.time_ns() - time.perf_counter_ns()
        head = HEAD.pack(MAGIC, CAPACITY, NAMES_BYTES, os.getpid(), _rank(), epoch, 0)
        check = functools.reduce(operator.xor, struct.unpack("<8Q", head), SALT)
        self._map[: HEAD.size] = head[:-8] + struct.pack("<Q", check)

    @classmethod
    def made(cls, path: str) -> _File | None:
        """Return this process's file; None if it cannot be created."""
        stem, ending = os.path.splitext(path)
        rank = _rank()
        rank_path = path if rank < 0 else f"{stem}.rank{rank}{ending}"
        try:
            import fcntl  # Windows has none

            for each in (rank_path, f"{stem}.{os.getpid()}{ending}"):
                descriptor = _opened(each)
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return cls(descriptor)
                os.close(descriptor)
        except (ImportError, OSError) as error:  # the program runs, whatever becomes of this
            sys.stderr.write(f"tracekit: no ring ({error})\n")
        return None

    def write(self, name: str, start: int, end: int, style: int, thread: int) -> None:
        """Write a range over the oldest one."""
        text, _, behind = name.rpartition(" ")
        is_numbered = behind.isdecimal() and len(behind) < 19  # noqa: PLR2004
        label = self._number_of(text if is_numbered else name)
        number = int(behind) + 1 if is_numbered else 0
        turn = next(self._turns)
        check = SALT ^ start ^ end ^ thread ^ (label | style << 32) ^ number ^ turn
        place = NAMES_AT + NAMES_BYTES + (turn - 1) % CAPACITY * RECORD.size
        self._map[place : place + RECORD.size] = RECORD.pack(
            start, end, thread, label, style, number, turn, check
        )

    def _number_of(self, name: str) -> int:
        known = self._names.get(name)
        if known is None:
            text = name.encode("utf-8", "replace")[:_LONGEST]
            begin = self._names_end + _NAME.size
            if begin + len(text) > NAMES_AT + NAMES_BYTES:
                return 0
            self._map[begin : begin + len(text)] = text
            self._map[self._names_end : begin] = _NAME.pack(len(text), zlib.crc32(text))
            self._names_end = begin + len(text)
            known = self._names[name] = len(self._names) + 1
        return known


class Both:
    """Writer of ranges to a profiler and into a ring file."""

    def __init__(self, profiler: Ranges, ring: Ranges) -> None:
        self._profiler = profiler
        self._ring = ring
        self._handles: dict[int, int] = {}

    def push(self, name: str) -> None:
        """Open a range on this thread."""
        self._profiler.push(name)
        self._ring.push(name)

    def pop(self) -> None:
        """Close the innermost range of this thread."""
        self._ring.pop()
        self._profiler.pop()

    def start(self, name: str) -> int:
        """Open a start/end range, which applies to all threads; return its handle."""
        return self._kept(self._profiler.start(name), name)

    def start_once(self, name: str) -> int:
        """Open a start/end range whose name is used only once; return its handle."""
        return self._kept(self._profiler.start_once(name), name)

    def end(self, opened: int) -> None:
        """Close the start/end range with the handle `opened`."""
        self._ring.end(self._handles.pop(opened))
        self._profiler.end(opened)

    def mark(self, name: str) -> None:
        """Write an instantaneous marker to the profiler and into the ring file."""
        self._profiler.mark(name)
        self._ring.mark(name)

    def _kept(self, opened: int, name: str) -> int:
        self._handles[opened] = self._ring.start(name)
        return opened


def _opened(path: str) -> int:
    """Open a file that is new, or is a ring file already; return its descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if os.read(descriptor, len(MAGIC)) not in (b"", MAGIC):
        os.close(descriptor)
        raise OSError(f"{path} is there, and no ring")
    return descriptor


def _rank() -> int:
    found = next((os.environ[name] for name in _RANKS if os.environ.get(name)), "")
    return int(found) if found.isdecimal() and len(found) < 10 else -1  # noqa: PLR2004


# -- ranges timed by CUDA events

MARK = "tracekit.cuda events"
"""Mark in ring files with times of CUDA events."""
_NO_STAGES = ("layer ", "aten::")
"""Begins of the names of ranges that are too many to be timed."""
_MOST = 4_096
"""Number of incomplete events, as of a GPU that hangs, from which on none is recorded."""


class _Moment:
    """A CUDA event on a stream, and its time on the host's clock, ns, once it has been read."""

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
        """Record a CUDA event now and return it; None if that is not possible.

        Once the GPU has reached the event, the range `ends`, which ends there, is written.
        """
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
        """Test whether a CUDA event may be recorded now.

        It may if the process uses CUDA, is the one that recorded the first event, on the same
        device, captures no CUDA graph, and has few events that the GPU has not reached.
        """
        cuda = self._cuda
        if not cuda.is_initialized() or cuda.is_current_stream_capturing():
            return False
        here = os.getpid(), cuda.current_device()
        self._place = self._place or here
        return here == self._place and len(self._waiting) < _MOST

    def _read(self) -> None:
        """Read the CUDA events that are complete, in order; write ranges that end with them."""
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
