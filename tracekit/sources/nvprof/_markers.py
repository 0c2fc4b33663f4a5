"""Make NVTX ranges from pairs of start and end markers."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit.model import RANGE_STYLE
from tracekit.sources._run_labels import RunLabels
from tracekit.sources._seen import OPEN, backward
from tracekit.sources.nvprof._input import TABLE, THREAD, Strings, object_gid, pid_of
from tracekit.sources.sqlite import SqliteFile, SqlType

MARKER, MARKER_DATA = f"{TABLE}MARKER", f"{TABLE}MARKER_DATA"
MARKER_COLUMNS = ("flags", "timestamp", "id", "objectKind", "objectId", "name")

_MARK, _START, _END = 1, 2, 4  # bits of MARKER.flags
_KEY = ["pid", "id"]
_HELD: dict[str, pl.DataType] = {
    **dict.fromkeys(("flags", "timestamp", "id", "objectKind", "name", "domain"), pl.Int64()),
    "thread_gid": pl.Int64(),
    "pid": pl.Int64(),
}
# Kinds of payloads whose 8 bytes are one value, and the type of that.
_PAYLOADS: dict[int, pl.DataType] = {0: pl.Float64(), 1: pl.UInt64(), 4: pl.Int64()}
_PAYLOAD_BYTES = 8


class Markers:
    """The markers of a database.

    Both kinds of NVTX ranges are recorded alike. Those of a thread are taken for push/pop ranges
    and those of a process for start/end ones, which have the thread id 0.

    Parameters
    ----------
    file
        The database.
    strings
        Its strings.
    """

    def __init__(self, file: SqliteFile, strings: Strings) -> None:
        self._file = file
        self._strings = strings
        self.labels = RunLabels()
        """The labels that the program gave its run."""
        self.rows = 0
        """How many rows were read."""
        self._invalid = 0
        self._startless = 0
        self._repeated = 0
        self._backward = 0

    @property
    def losses(self) -> tuple[str, ...]:
        """Markers that were left out, in words."""
        losses = (
            (self._invalid, "markers have no valid time, thread or process and were left out"),
            (self._startless, "ranges whose start was not recorded were left out"),
            (self._repeated, "markers repeat the id of another one and were left out"),
        )
        lost = tuple(f"{count:,} {what}" for count, what in losses if count)
        return (*lost, *backward(self._backward, "NVTX ranges"), *self.labels.losses)

    def batches(self, rows: int) -> Iterator[pl.DataFrame]:
        """Return the ranges; the end of one that was still open is `OPEN`.

        Returns
        -------
        ``start, end, thread_gid, id, domain, name, style``
        """
        columns: dict[str, SqlType] = dict.fromkeys((*MARKER_COLUMNS, "domain"), "int")
        columns["objectId"] = "blob"
        times, held = self._file.times, pl.DataFrame(schema=_HELD)
        checked = times.within("NVTX ranges")
        for batch in self._file.batches(MARKER, columns, rows):
            self.rows += batch.height
            pool = pl.concat([held, self._valid(batch)])
            starts, ends = _first(pool, _START), _first(pool, _END)
            closed = starts.join(
                ends.select(*_KEY, end="timestamp"), on=_KEY, how="inner", maintain_order="left"
            )
            held = pool.join(closed, on=_KEY, how="anti")
            self._repeated += pool.height - held.height - 2 * closed.height
            yield checked(self._ranges(closed))
        still_open = _first(held, _START)
        self._repeated += held.filter(_has(_START)).height - still_open.height
        self._startless += held.filter(~_has(_START)).height
        times.check_endless("NVTX ranges", still_open.height)
        yield self._ranges(still_open.with_columns(end=pl.lit(OPEN)))

    def _valid(self, batch: pl.DataFrame) -> pl.DataFrame:
        """Return the starts and ends of ranges, having looked at the labels among other markers."""
        self.labels.add(self._strings.of(batch.filter(_has(_MARK))["name"]))
        edges = batch.filter(_has(_START | _END))
        gid = object_gid(pl.col("objectKind"), pl.col("objectId"))
        placed = edges.with_columns(thread_gid=gid).drop("objectId")
        is_time = (pl.col("timestamp") > 0) & self._file.times.hold(pl.col("timestamp"))
        valid = placed.filter(is_time).drop_nulls(["thread_gid", "id"])
        self._invalid += edges.height - valid.height
        return valid.with_columns(pid=pid_of(pl.col("thread_gid"))).select(list(_HELD))

    def _ranges(self, closed: pl.DataFrame) -> pl.DataFrame:
        names = self._strings.of(closed["name"])
        self.labels.add(names)
        self._backward += int((closed["end"] < closed["timestamp"]).sum())
        of_thread = pl.when(pl.col("objectKind") == THREAD).then(pl.lit("push_pop", RANGE_STYLE))
        return closed.select(
            pl.col("timestamp").alias("start"),
            # An end before its start (a clock that was set back) makes the range empty.
            pl.max_horizontal("end", "timestamp").alias("end"),
            "thread_gid",
            "id",
            self._strings.of(closed["domain"]).alias("domain"),
            names.alias("name"),
            of_thread.otherwise(pl.lit("start_end", RANGE_STYLE)).alias("style"),
        )

    def payloads(self) -> pl.DataFrame:
        """Return the values attached to ranges, ``id, payload`` (as text).

        Ids are counted per process and MARKER_DATA names no process, so this is for databases of
        one process. A payload of zeros that claims to be a float is how an absent one looks.
        """
        columns: dict[str, SqlType] = {"id": "int", "payloadKind": "int", "payload": "blob"}
        found = [pl.DataFrame(schema={"id": pl.Int64, "payload": pl.String})]
        for batch in self._file.batches(MARKER_DATA, columns):
            given = batch.filter(
                pl.col("payloadKind").is_in(list(_PAYLOADS))
                & (pl.col("payload").bin.size() == _PAYLOAD_BYTES)
                & ((pl.col("payloadKind") != 0) | (pl.col("payload") != bytes(_PAYLOAD_BYTES)))
            )
            found.append(given.select("id", payload=pl.coalesce(_values())))
        return pl.concat(found).unique("id", keep="none")


def _values() -> list[pl.Expr]:
    return [
        pl.when(pl.col("payloadKind") == kind).then(
            pl.col("payload").bin.reinterpret(dtype=dtype, endianness="little").cast(pl.String)
        )
        for kind, dtype in _PAYLOADS.items()
    ]


def _has(flag: int) -> pl.Expr:
    return pl.col("flags").and_(pl.lit(flag, pl.Int64)) != 0


def _first(markers: pl.DataFrame, flag: int) -> pl.DataFrame:
    return markers.filter(_has(flag)).unique(_KEY, keep="first", maintain_order=True)
