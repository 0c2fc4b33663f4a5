"""From the ids of an export to the numbers of processes, threads and devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.model import Maker
from tracekit.sources._seen import OPEN, WHO, Seen
from tracekit.sources.nsys._devices import DeviceMap
from tracekit.sources.nsys._ids import process_of
from tracekit.support.compiled import compiled, given, locate, remembered

_ORDINAL_BITS = 32
_ORDINALS = {"ordinal": "device", "src_ordinal": "src_device", "dst_ordinal": "dst_device"}
"""What device each column of ordinals means."""


class Places:
    """Who is who in an export.

    Parameters
    ----------
    processes
        The processes in the order of their numbers, with ``process_gid``.
    threads
        The threads in the order of their numbers, with ``thread_gid``, which grows.
    devices
        The devices, and which of them each process's ordinals are.
    """

    def __init__(self, processes: pl.DataFrame, threads: pl.DataFrame, devices: DeviceMap) -> None:
        self._processes = given(processes["process_gid"])
        self._threads = given(threads["thread_gid"])
        owner = threads.select(process_of(pl.col("thread_gid"))).to_series()
        self.process_of_thread = self.process(owner)
        """The number of the process of each thread."""
        ordinals = devices.ordinals
        paired = ordinals.with_columns(
            pair=_pair(self.process(ordinals["process_gid"]), ordinals["ordinal"])
        ).sort("pair")
        self._pairs, self._devices = given(paired["pair"]), paired["device"]

    def process(self, global_ids: pl.Series) -> pl.Series:
        """Return the numbers of processes."""
        return _position(global_ids, self._processes)

    def thread(self, global_ids: pl.Series) -> pl.Series:
        """Return the numbers of threads."""
        return _position(global_ids, self._threads)

    def process_by_thread(self, global_ids: pl.Series) -> pl.Series:
        """Return the numbers of the processes of threads."""
        return self.process_of_thread.gather(self.thread(global_ids))

    def device(self, process: pl.Series, ordinals: pl.Series) -> pl.Series:
        """Return the devices that ordinals of processes mean."""
        named = ordinals.is_not_null()
        if not named.all():
            found = pl.repeat(None, len(ordinals), dtype=pl.Int32, eager=True)
            some = self.device(process.filter(named), ordinals.filter(named))
            return found.scatter(named.arg_true(), some)
        return self._devices.gather(_position(_pair(process, ordinals), self._pairs))

    def settle(self, ops: Seen, calls: Seen, ranges: Seen) -> None:
        """Put numbers into rows in the place of ids, once for all who read them."""
        _settle(ops, self._of_ops)
        _settle(calls, self._of_calls)
        _settle(ranges, self._of_ranges)

    def _of_ops(self, ops: pl.DataFrame) -> Iterator[pl.Series]:
        process = self.process(ops["process_gid"])
        yield process.alias("process")
        for ordinal, device in _ORDINALS.items():
            if ordinal in ops.columns:
                yield self.device(process, ops[ordinal]).alias(device)

    def _of_calls(self, calls: pl.DataFrame) -> Iterator[pl.Series]:
        thread = self.thread(calls["thread_gid"])
        yield thread.alias("thread")
        yield self.process_of_thread.gather(thread).alias("process")

    def _of_ranges(self, ranges: pl.DataFrame) -> Iterator[pl.Series]:
        yield from self._of_calls(ranges)
        if "end_thread_gid" in ranges.columns:
            yield self._ended(ranges).alias("end_thread")

    def ranges(
        self, domains: pl.DataFrame, categories: pl.DataFrame, last: int, duration: int | None
    ) -> Mapping[str, Maker]:
        """Return expressions for the columns of ranges.

        Parameters
        ----------
        domains, categories
            Their names, by process and id.
        last
            When a range ended that was still open, ns.
        duration
            Length of the recording, if known: what ends no earlier was still open.
        """
        over = OPEN if duration is None else duration
        closed = pl.max_horizontal(pl.lit(last), "start")
        domains, categories = map(self._by_process, (domains, categories))
        ids = ("domain_id", "category_id")
        return {
            "end": Maker(
                ("start", "end"),
                lambda rows: (
                    rows["end"]
                    if (rows["end"].max() or 0) != OPEN
                    else pl.when(pl.col("end") == OPEN).then(closed).otherwise("end")
                ),
            ),
            "open": Maker(("end",), lambda rows: rows["end"] >= over),
            "domain": Maker(("process", *ids[:1]), lambda rows: _named(rows, domains, *ids[:1])),
            "category": Maker(("process", *ids), lambda rows: _named(rows, categories, *ids)),
        }

    def _by_process(self, names: pl.DataFrame) -> pl.DataFrame:
        """Return names with the numbers of processes in the place of their ids."""
        return names.select(self.process(names["process_gid"]).alias("process"), *names.columns[1:])

    def _ended(self, ranges: pl.DataFrame) -> pl.Series:
        """Return the thread that ended a range, if of the process that began it."""
        ended = ranges["end_thread_gid"]
        owners = (process_of(pl.col(name)) for name in ("end_thread_gid", "thread_gid"))
        same = ranges.select(next(owners).eq(next(owners)).fill_null(value=False)).to_series()
        return self.thread(ended.fill_null(0)).set(~same, None)


def _settle(seen: Seen, places: Callable[[pl.DataFrame], Iterator[pl.Series]]) -> None:
    """Look up the places of distinct identities, and give each row those of its own."""
    table = pl.DataFrame([column for column in places(seen.distinct) if column.count()])

    def of_rows(rows: pl.DataFrame) -> list[pl.Series]:
        # Which polars takes rows by as they are, all columns at once.
        which = pl.Series(rows[WHO].to_numpy().astype(np.uint32))
        return table[which].get_columns()

    seen.rows.settle((WHO,), of_rows)


_NOWHERE = np.iinfo(np.int64).min
"""An id that nothing has."""


def _position(values: pl.Series, known: NDArray[np.int64]) -> pl.Series:
    """Return where each value is in `known`, which is sorted; null where it is not."""
    found = np.empty(len(values), np.int32)
    wanted = given(values.fill_null(_NOWHERE), np.int64)
    compiled(locate, len(values))(wanted, known, *remembered(known), found)
    places = pl.Series(found)
    return places.set(places < 0, None) if len(found) and found.min() < 0 else places


def _pair(process: pl.Series, ordinal: pl.Series) -> pl.Series:
    high = process.cast(pl.Int64) * (1 << _ORDINAL_BITS)
    return high + ordinal.cast(pl.Int64)


def _named(ranges: pl.DataFrame, names: pl.DataFrame, *ids: str) -> pl.Series:
    """Return the names of a process's ids; of domain 0 there is none, and so of most rows."""
    name = names.columns[-1]
    if names.is_empty() or any(each not in ranges.columns for each in ids):
        return pl.repeat(None, ranges.height, dtype=pl.String, eager=True)
    may_have = ranges[ids[-1]] != 0 if len(ids) == 1 else ranges[ids[-1]].is_not_null()
    rows = may_have.fill_null(value=False).arg_true()
    key = ["process", *ids]
    asked = ranges.select(key)[rows].cast({column: names.schema[column] for column in key})
    found = asked.join(names, on=key, how="left", maintain_order="left").get_column(name)
    if len(rows) == ranges.height:
        return found
    places = np.full(ranges.height, len(found), np.uint32)
    places[rows] = np.arange(len(found))
    return found.append(pl.Series([None], dtype=pl.String)).gather(pl.Series(places))
