"""Numbers of processes, threads and devices, from the ids of a database."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

import numpy as np
import polars as pl

from tracekit.model import DEVICES, Maker
from tracekit.sources._identities import small
from tracekit.sources._seen import OPEN
from tracekit.sources._tables import Strings
from tracekit.sources.nvprof._input import (
    PROCESS,
    TABLE,
    THREAD,
    object_gid,
    pid_of,
    tid_of,
)
from tracekit.sources.sqlite import SqliteFile

NAME, DEVICE = f"{TABLE}NAME", f"{TABLE}DEVICE"

_UUID_BYTES = 16
_KILO = 1000


class Places:
    """Numbers of processes and threads for the ids of a database, and time 0.

    Parameters
    ----------
    pids
        By process number: its process id.
    threads
        By thread number: its global id.
    origin, last
        Times of the first and the last event as recorded, ns.
    """

    def __init__(self, pids: pl.Series, threads: pl.Series, origin: int, last: int) -> None:
        self._pids = pids.to_numpy()
        self._threads = threads.to_numpy()
        self._origin = origin
        self._last = last

    def process(self, pids: pl.Series) -> pl.Series:
        """Return the process number of each process id."""
        return pl.Series(np.searchsorted(self._pids, pids.to_numpy()), dtype=pl.Int32)

    def process_by_thread(self, gids: pl.Series) -> pl.Series:
        """Return the process number of each global thread id."""
        return self.process(gids.to_frame("gid").select(pid_of(pl.col("gid")))["gid"])

    def thread(self, gids: pl.Series) -> pl.Series:
        """Return the thread number of each global thread id."""
        return pl.Series(np.searchsorted(self._threads, gids.to_numpy()), dtype=pl.Int32)

    def ops(self) -> Mapping[str, Maker]:
        """Return column -> function for the columns of ops."""
        return {
            **self._times(),
            "process": Maker(("pid",), lambda ops: self.process(ops["pid"])),
        }

    def calls(self) -> Mapping[str, Maker]:
        """Return column -> function for the columns of calls."""
        gid = "thread_gid"
        return {
            **self._times(),
            "thread": Maker((gid,), lambda calls: self.thread(calls[gid])),
            "process": Maker((gid,), lambda calls: self.process_by_thread(calls[gid])),
        }

    def ranges(self, payloads: pl.DataFrame) -> Mapping[str, Maker]:
        """Return column -> function for the columns of ranges; `payloads` has ``id, payload``."""
        closed = pl.when(pl.col("end") == OPEN).then(self._last).otherwise("end") - self._origin
        return {
            **self.calls(),
            "end": Maker(("end",), lambda _: closed),
            "open": Maker(("end",), lambda _: pl.col("end") == OPEN),
            "payload": Maker(
                ("id",),
                lambda rows: rows.join(payloads, on="id", how="left", maintain_order="left")[
                    "payload"
                ],
            ),
        }

    def since_origin(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return rows with times that count from the first event."""
        return rows.with_columns(pl.col("start", "end") - self._origin)

    def _times(self) -> dict[str, Maker]:
        return {
            "start": Maker(("start",), lambda _: pl.col("start") - self._origin),
            "end": Maker(("end",), lambda _: pl.col("end") - self._origin),
        }


def object_names(file: SqliteFile, strings: Strings) -> pl.DataFrame:
    """Return the names of processes and threads: ``kind, gid, name``."""
    rows = file.read(NAME, {"objectKind": "int", "objectId": "blob", "name": "int"})
    return (
        rows.select(
            kind="objectKind",
            gid=object_gid(pl.col("objectKind"), pl.col("objectId")),
            name=pl.lit(strings.of(rows["name"])),
        )
        .drop_nulls(["gid", "name"])
        .unique(["kind", "gid"], keep="first", maintain_order=True)
    )


def processes(pids: pl.Series, names: pl.DataFrame) -> pl.DataFrame:
    """Return the canonical table of processes with these ids, without ``report``.

    A process is recorded with its whole command line, which may hold private data: only the name of
    the executable is kept.
    """
    commands = names.filter(pl.col("kind") == PROCESS).select(
        pid=pid_of(pl.col("gid")), name="name"
    )
    named = pids.to_frame("pid").with_row_index("process")
    named = named.join(commands, on="pid", how="left", maintain_order="left")
    executables = [None if name is None else _executable(name) for name in named["name"]]
    return named.with_columns(pl.Series("name", executables, pl.String), global_id="pid")


def _executable(command: str) -> str | None:
    words = command.split(maxsplit=1)
    return PurePath(words[0]).name or None if words else None


def threads(gids: pl.Series, names: pl.DataFrame) -> pl.DataFrame:
    """Return the canonical table of threads with these global ids.

    The columns ``report`` and ``process`` are not in it.
    """
    named = names.filter(pl.col("kind") == THREAD).select("gid", "name")
    return (
        gids.to_frame("gid")
        .with_row_index("thread")
        .join(named, on="gid", how="left", maintain_order="left")
        .with_columns(tid=tid_of(pl.col("gid")))
        .rename({"gid": "global_id"})
    )


def devices(file: SqliteFile, strings: Strings, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the canonical table of GPUs, without ``report``: those described and those of ops.

    Parameters
    ----------
    file, strings
        The database and its strings.
    ops
        ``device, src_device, dst_device`` of the ops.
    """
    described = _described(file, strings)
    active = ops["device"].drop_nulls()
    seen = pl.concat([ops[name] for name in ops.columns]).drop_nulls()
    every = pl.concat([described["device"], seen.cast(pl.Int32)]).unique().sort()
    table = every.to_frame("device").join(described, on="device", how="left", maintain_order="left")
    table = table.with_columns(
        active=pl.col("device").is_in(active.cast(pl.Int32).implode()),
        identity=pl.when("known").then(pl.lit("ordinal")).otherwise(pl.lit("unknown")),
    )
    return table.select(name for name in DEVICES.schema if name in table.columns)


def _described(file: SqliteFile, strings: Strings) -> pl.DataFrame:
    numbers = (
        "id", "name", "globalMemorySize", "globalMemoryBandwidth", "numMultiprocessors",
        "computeCapabilityMajor", "computeCapabilityMinor",
    )  # fmt: skip
    rows = file.read(DEVICE, {**dict.fromkeys(numbers, "int"), "uuid": "blob"})
    return (
        rows.with_columns(strings.of(rows["name"]).alias("product"))
        .select(
            device=small(pl.col("id")).cast(pl.Int32),
            name="product",
            uuid=_uuid(),
            memory_bytes=_positive("globalMemorySize"),
            peak_memory_bandwidth=_positive("globalMemoryBandwidth") * _KILO,
            sm_count=small(_positive("numMultiprocessors")).cast(pl.Int32),
            compute_capability=pl.format(
                "{}.{}", "computeCapabilityMajor", "computeCapabilityMinor"
            ),
            known=pl.lit(value=True),
        )
        .drop_nulls("device")
        .unique("device", keep="first", maintain_order=True)
    )


def _positive(name: str) -> pl.Expr:
    return pl.when(pl.col(name) > 0).then(name)


def _uuid() -> pl.Expr:
    uuid = pl.col("uuid")
    whole = (uuid.bin.size() == _UUID_BYTES) & (uuid != bytes(_UUID_BYTES))
    text = uuid.bin.encode("hex")
    parts = (text.str.slice(at, length) for at, length in ((0, 8), (8, 4), (12, 4), (16, 4)))
    return pl.when(whole).then(pl.concat_str(*parts, text.str.slice(20), separator="-"))
