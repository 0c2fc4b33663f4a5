"""Host events of nvprof: CUDA runtime and driver calls, waits for GPU work, and NVTX ranges."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.model import RANGE_STYLE
from tracekit.sources._export_tables import Strings
from tracekit.sources._identities import Identities, small
from tracekit.sources._labels import RunLabels
from tracekit.sources._seen import OPEN, backward, counted
from tracekit.sources._syncs import LOST, by_call, chunks, ordered, sync_type
from tracekit.sources.nvprof._input import (
    TABLE,
    THREAD,
    object_gid,
    owned,
    pid_of,
    thread_gid,
    timed,
)
from tracekit.sources.sqlite import SqliteFile, SqlType
from tracekit.support.files import schemas
from tracekit.support.spool import Workspace

RUNTIME, DRIVER = f"{TABLE}RUNTIME", f"{TABLE}DRIVER"
CALL_COLUMNS = ("start", "end", "processId", "threadId", "correlationId", "cbid")
SYNC, EVENT_RECORD = f"{TABLE}SYNCHRONIZATION", f"{TABLE}CUDA_EVENT"
_CONTEXT = f"{TABLE}CONTEXT"
_HEAD = ("contextId", "streamId", "correlationId")
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
_LOST = {
    "invalid": "markers have no valid time, thread or process and were left out",
    "startless": "ranges whose start was not recorded were left out",
    "repeated": "markers repeat the id of another one and were left out",
}


class Calls:
    """CUDA calls of an nvprof database.

    A runtime call and the driver call inside it are two rows, which may share a correlation id. The
    correlation id of the driver call is then removed, so that the runtime call is the op's launch.
    """

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._lost = 0
        self.rows: dict[str, int] = {RUNTIME: 0, DRIVER: 0}
        """Table -> number of rows read."""

    @property
    def losses(self) -> tuple[str, ...]:
        """Warnings, one sentence each, on calls left out, as they lack valid times or a process."""
        problem = "CUDA calls have no valid times or process and were left out"
        return (f"{self._lost:,} {problem}",) if self._lost else ()

    def batches(self, rows: int) -> Iterator[pl.DataFrame]:
        """Yield CUDA calls, at most `rows` at a time.

        Columns: ``start, end`` (ns), ``thread_gid`` (a global id), ``name, correlation, result``.
        """
        both = self._file.holds_rows(DRIVER)
        keys = [np.array([], np.int64)]
        for calls in self._read(RUNTIME, "runtime", rows):
            if both:
                keys.append(_keys(calls))
            yield calls
        of_runtime = np.unique(np.concatenate(keys))
        for calls in self._read(DRIVER, "driver", rows):
            inner = pl.lit(pl.Series(_among(_keys(calls), of_runtime)))
            yield calls.with_columns(correlation=pl.when(~inner).then("correlation"))

    def _read(self, table: str, api: str, rows: int) -> Iterator[pl.DataFrame]:
        columns: dict[str, SqlType] = dict.fromkeys((*CALL_COLUMNS, "returnValue"), "int")
        for batch in self._file.batches(table, columns, rows):
            self.rows[table] += batch.height
            calls = timed(batch).select(
                "start",
                "end",
                thread_gid=thread_gid(pl.col("processId"), pl.col("threadId")),
                name=_function(api),
                correlation="correlationId",
                result="returnValue",
            )
            calls = calls.drop_nulls("thread_gid")
            self._lost += batch.height - calls.height
            yield calls


def _keys(calls: pl.DataFrame) -> NDArray[np.int64]:
    """Return process id and correlation id of calls (32 bits each) as one integer per call."""
    key = thread_gid(pid_of(pl.col("thread_gid")), pl.col("correlation").fill_null(0))
    return calls.select(key.alias("key"))["key"].to_numpy()


def _among(keys: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Test for each of `keys` whether it is in `known` (sorted)."""
    if not known.size:
        return np.zeros(keys.size, np.bool_)
    found = known[np.searchsorted(known, keys).clip(max=known.size - 1)]
    return np.asarray(found == keys, np.bool_)


def _function(api: str) -> pl.Expr:
    """Return an expression: name of the CUDA function with CUPTI's callback id ``cbid``.

    Null if unknown; `api` is ``runtime`` or ``driver``, which have separate ids.
    """
    names = _functions(api)
    return pl.col("cbid").replace_strict(
        list(names), list(names.values()), default=None, return_dtype=pl.Categorical()
    )


@cache
def _functions(api: str) -> dict[int, str]:
    with (schemas() / "nvprof" / "callbacks.toml").open("rb") as file:
        names: list[str] = tomllib.load(file)[api]
    return {number: name for number, name in enumerate(names) if name}


class Syncs:
    """Host waits for GPU work, and records of CUDA events, of an nvprof database.

    Parameters
    ----------
    file
        The database.
    workspace
        Folder and memory budget for rows until they are sorted.
    owners
        Process id of all rows; or ``correlation, pid``, to look it up by correlation id.
    """

    def __init__(self, file: SqliteFile, workspace: Workspace, owners: int | pl.DataFrame) -> None:
        self._file, self._owners = file, owners
        self._lost = 0
        self.rows = {SYNC: 0, EVENT_RECORD: 0}
        """Table -> number of rows read."""
        self._devices = self._of_contexts()
        self._waits = ordered(self._read_waits(workspace.rows), workspace)
        self._records = ordered(self._read_records(workspace.rows), workspace)

    @property
    def losses(self) -> tuple[str, ...]:
        """Warnings, one sentence each, on waits left out, as they lack valid times or a process."""
        return (f"{self._lost:,} {LOST}",) if self._lost else ()

    def _read_waits(self, rows: int) -> Iterator[pl.DataFrame]:
        columns: dict[str, SqlType] = dict.fromkeys((*_HEAD, "cudaEventId", "start", "end"), "int")
        for batch in self._file.batches(SYNC, columns, rows):
            self.rows[SYNC] += batch.height
            waits = self._named(timed(batch), "cudaEventId").with_columns(sync_type())
            self._lost += batch.height - waits.height
            yield waits

    def _read_records(self, rows: int) -> Iterator[pl.DataFrame]:
        columns: dict[str, SqlType] = dict.fromkeys((*_HEAD, "eventId"), "int")
        for batch in self._file.batches(EVENT_RECORD, columns, rows):
            self.rows[EVENT_RECORD] += batch.height
            yield by_call(self._named(batch, "eventId"))

    def _named(self, rows: pl.DataFrame, event: str) -> pl.DataFrame:
        named = rows.with_columns(
            context=small(pl.col("contextId")).cast(pl.Int32),
            stream=small(pl.col("streamId")),
            event=small(pl.col(event)),
        ).rename({"correlationId": "correlation"})
        placed = named.join(self._devices, on="context", how="left", maintain_order="left")
        return owned(placed, self._owners).drop("contextId", "streamId", event)

    def _of_contexts(self) -> pl.DataFrame:
        """Return ``context, device`` for CUDA context ids that mean one GPU in all processes."""
        rows = self._file.read(_CONTEXT, {"contextId": "int", "deviceId": "int"})
        pairs = rows.select(
            context=small(pl.col("contextId")).cast(pl.Int32),
            device=small(pl.col("deviceId")).cast(pl.Int32),
        )
        return pairs.drop_nulls().unique().unique("context", keep="none")

    def waits(self, identities: Identities) -> Iterator[pl.DataFrame]:
        """Yield the table ``syncs``: host waits for GPU work, sorted by start."""
        for chunk in chunks(self._waits, "syncs", "pid"):
            since = pl.col("start", "end") - identities.origin
            yield chunk.with_columns(since, process=identities.process(chunk["pid"]))

    def records(self, identities: Identities) -> Iterator[pl.DataFrame]:
        """Yield the table ``event_records``: calls that recorded CUDA events."""
        for chunk in chunks(self._records, "event_records", "pid"):
            yield chunk.with_columns(process=identities.process(chunk["pid"]))


class Markers:
    """NVTX ranges of an nvprof database, which has a row (marker) for each start and end.

    Push/pop and start/end ranges are recorded alike. Ranges of a thread are taken for push/pop
    ranges. Ranges of a process, which have the thread id 0, are taken for start/end ranges.

    Parameters
    ----------
    file
        The database.
    strings
        Strings of the database.
    """

    def __init__(self, file: SqliteFile, strings: Strings) -> None:
        self._file = file
        self._strings = strings
        self.labels = RunLabels()
        """Labels that the program gave its run."""
        self.rows = 0
        """Number of rows read."""
        self._lost: Counter[str] = Counter()

    @property
    def losses(self) -> tuple[str, ...]:
        """Warnings, one sentence each, on NVTX markers and labels that were left out."""
        lost = counted(self._lost, _LOST)
        return (*lost, *backward(self._lost["backward"], "NVTX ranges"), *self.labels.losses)

    def batches(self, rows: int) -> Iterator[pl.DataFrame]:
        """Yield the NVTX ranges; the end of ranges that were never closed is `OPEN`.

        Returns
        -------
        ``start, end`` (ns), ``thread_gid`` (global thread id), ``id, domain, name``, and ``style``:
        push/pop or start/end
        """
        columns: dict[str, SqlType] = dict.fromkeys((*MARKER_COLUMNS, "domain"), "int")
        columns["objectId"] = "blob"
        times, open_markers = self._file.times, pl.DataFrame(schema=_HELD)
        checked = times.within("NVTX ranges")
        for batch in self._file.batches(MARKER, columns, rows):
            self.rows += batch.height
            pool = pl.concat([open_markers, self._valid(batch)])
            starts, ends = _first(pool, _START), _first(pool, _END)
            closed = starts.join(
                ends.select(*_KEY, end="timestamp"), on=_KEY, how="inner", maintain_order="left"
            )
            open_markers = pool.join(closed, on=_KEY, how="anti")
            self._lost["repeated"] += pool.height - open_markers.height - 2 * closed.height
            yield checked(self._ranges(closed))
        still_open = _first(open_markers, _START)
        self._lost["repeated"] += open_markers.filter(_has(_START)).height - still_open.height
        self._lost["startless"] += open_markers.filter(~_has(_START)).height
        times.check_endless("NVTX ranges", still_open.height)
        yield self._ranges(still_open.with_columns(end=pl.lit(OPEN)))

    def _valid(self, batch: pl.DataFrame) -> pl.DataFrame:
        """Return the valid markers that start or end ranges; collect labels in other markers."""
        self.labels.add(self._strings.of(batch.filter(_has(_MARK))["name"]))
        edges = batch.filter(_has(_START | _END))
        gid = object_gid(pl.col("objectKind"), pl.col("objectId"))
        placed = edges.with_columns(thread_gid=gid).drop("objectId")
        is_time = (pl.col("timestamp") > 0) & self._file.times.hold(pl.col("timestamp"))
        valid = placed.filter(is_time).drop_nulls(["thread_gid", "id"])
        self._lost["invalid"] += edges.height - valid.height
        return valid.with_columns(pid=pid_of(pl.col("thread_gid"))).select(list(_HELD))

    def _ranges(self, closed: pl.DataFrame) -> pl.DataFrame:
        names = self._strings.of(closed["name"])
        self.labels.add(names)
        self._lost["backward"] += int((closed["end"] < closed["timestamp"]).sum())
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
        """Return the numbers attached to NVTX ranges, as text: ``id, payload``.

        Ids are per process and MARKER_DATA names no process, so this is only for databases of one
        process. A zero payload of type float means that there is none.
        """
        columns: dict[str, SqlType] = {"id": "int", "payloadKind": "int", "payload": "blob"}
        found = [pl.DataFrame(schema={"id": pl.Int64, "payload": pl.String})]
        for batch in self._file.batches(MARKER_DATA, columns):
            payloads = batch.filter(
                pl.col("payloadKind").is_in(list(_PAYLOADS))
                & (pl.col("payload").bin.size() == _PAYLOAD_BYTES)
                & ((pl.col("payloadKind") != 0) | (pl.col("payload") != bytes(_PAYLOAD_BYTES)))
            )
            found.append(payloads.select("id", payload=pl.coalesce(_values())))
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
