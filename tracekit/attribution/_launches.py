"""Op to launching call.

Correlation ids repeat across processes, so an op's call is the one with its id in its own process;
of several, the first one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import polars as pl

from tracekit.attribution._columns import Array, Keys, Launchers
from tracekit.attribution._loops import count_launches, index_calls, look_up, span
from tracekit.model import Stream
from tracekit.support.compiled import compiled, given
from tracekit.support.spool import Spool, Workspace

_KEPT = 4
"""How many chunks of calls stay indexed: ops follow their calls closely."""
_NO_ID = -1
_KERNELS = ("compute", "collective")
_LONGEST = np.iinfo(np.int64)


@dataclass(frozen=True)
class Launches:
    """Which call launched which op.

    Parameters
    ----------
    calls
        Chunk by chunk as the ops come: ``call``, -1 where none is known.
    launching
        Chunk by chunk as the calls come: whether a call launched an op.
    by_thread
        How many ops each thread launched.
    devices
        By thread the device that it launched kernels on: -1 for none, -2 for several.
    repeated
        How many calls repeat the key of another one.
    alone
        How many ops have no call.
    """

    calls: Spool
    launching: list[Array]
    by_thread: Array
    devices: Array
    repeated: int
    alone: int


def link_launches(
    ops: Stream, calls: Stream, threads: int, processes: int, workspace: Workspace
) -> Launches:
    """Find the call of each op, of so many threads and processes."""
    index = _Calls(calls, processes)
    found = Spool(workspace)
    launching = [np.zeros(height, np.bool_) for height in calls.heights]
    by_thread = Launchers(np.zeros(threads, np.int64), np.full(threads, -1))
    alone = 0
    for number in range(len(ops)):
        rows = ops.read(number, "process", "correlation", "kind", "device")
        keys, kernels = _keys(rows), _devices_of_kernels(rows)
        numbers = np.full(keys.process.size, -1)
        for chunk in index.overlapping(index.span(keys)):
            index.look_up(keys, chunk, numbers)
        for chunk in chunks_of(numbers, index.first):
            index.count(numbers, kernels, chunk, launching[chunk], by_thread)
        alone += int((numbers < 0).sum())
        found.append(pl.DataFrame({"call": numbers}))
    return Launches(found, launching, *by_thread, index.repeated, alone)


def _keys(frame: pl.DataFrame) -> Keys:
    """Return what links rows to others, the process `_NO_ID` where there is no correlation id."""
    lacking = frame["correlation"].is_null()
    process = frame["process"].set(lacking, _NO_ID) if lacking.any() else frame["process"]
    return Keys(given(process, np.int64), given(frame["correlation"].fill_null(0)))


def _devices_of_kernels(frame: pl.DataFrame) -> Array:
    """Return the device of each kernel, -1 for all other ops."""
    is_kernel = pl.col("kind").cast(pl.String).is_in(_KERNELS)
    return given(frame.select(pl.when(is_kernel).then("device").fill_null(-1)).to_series())


@dataclass(frozen=True)
class _Index:
    """A chunk of calls by process and correlation id."""

    keys: Keys
    slots: Array
    threads: Array
    repeated: int


class _Calls:
    """All calls, of which the chunks that are in use are indexed."""

    def __init__(self, calls: Stream, processes: int) -> None:
        self._calls = calls
        self._processes = processes
        self.first = first_numbers(calls)
        self._index = compiled(index_calls, calls.height)
        self._look_up = compiled(look_up, calls.height)
        self._count = compiled(count_launches, calls.height)
        self._span = compiled(span, calls.height)
        self._spans: list[tuple[Array, Array]] = []
        self._of = lru_cache(_KEPT)(self._indexed)
        self.repeated = 0
        for number in range(len(calls)):
            self._add(number)

    def _add(self, number: int) -> None:
        """Note which ids a chunk holds, and how many of them an earlier one holds too."""
        index = self._of(number)
        ids = self.span(index.keys)
        found = np.full(index.keys.process.size, -1)
        for earlier in self.overlapping(ids):
            self.look_up(index.keys, earlier, found)
        distinct = index.slots[index.slots >= 0]
        self.repeated += index.repeated + int((found[distinct] >= 0).sum())
        self._spans.append(ids)

    def _indexed(self, number: int) -> _Index:
        frame = self._calls.read(number, "process", "thread", "correlation")
        keys = _keys(frame)
        slots = np.full(1 << (2 * frame.height - 1).bit_length(), -1, np.int32)
        repeated = self._index(keys, slots)
        return _Index(keys, slots, given(frame["thread"]), repeated)

    def span(self, keys: Keys) -> tuple[Array, Array]:
        """Return the least and the largest id of each process."""
        least = np.full(self._processes, _LONGEST.max)
        most = np.full(self._processes, _LONGEST.min)
        self._span(keys, least, most)
        return least, most

    def overlapping(self, ids: tuple[Array, Array]) -> Iterator[int]:
        """Return the chunks that hold ids between those of the same process."""
        for number, (least, most) in enumerate(self._spans):
            if ((least <= ids[1]) & (ids[0] <= most)).any():
                yield number

    def look_up(self, keys: Keys, chunk: int, found: Array) -> None:
        """Look in a chunk for the calls of what has none yet."""
        index = self._of(chunk)
        self._look_up(keys, index.keys, index.slots, int(self.first[chunk]), found)

    def count(
        self, found: Array, kernels: Array, chunk: int, launching: Array, by: Launchers
    ) -> None:
        """Note what calls of a chunk have launched, see `count_launches`."""
        first, threads = int(self.first[chunk]), self._of(chunk).threads
        self._count(found, kernels, first, threads, launching, by)


def first_numbers(stream: Stream) -> Array:
    """Return the number of the first row of each chunk, and of the one after the last."""
    return np.array([*stream.first, stream.height])


def call_column(name: str, launches: Launches, calls: Stream, number: int) -> tuple[Array, Array]:
    """Return a column of times of the calls that launched a chunk of ops, and which are known."""
    of = launches.calls.read(number)["call"].to_numpy()
    first, values = first_numbers(calls), np.zeros(of.size, np.int64)
    for chunk in chunks_of(of, first):
        own = np.flatnonzero((of >= first[chunk]) & (of < first[chunk + 1]))
        values[own] = calls.read(chunk, name)[name].to_numpy()[of[own] - first[chunk]]
    return values, of >= 0


def chunks_of(numbers: Array, first: Array) -> range:
    """Return the chunks that rows of some numbers (negative is none) may be in.

    Parameters
    ----------
    numbers
        Numbers of rows of a table.
    first
        What `first_numbers` says of it.
    """
    most = numbers.max(initial=-1)
    if most < 0:
        return range(0)
    least = numbers.min() if numbers.min() >= 0 else numbers[numbers >= 0].min()
    begin, end = np.searchsorted(first, (least, most), side="right")
    return range(int(begin) - 1, int(end))
