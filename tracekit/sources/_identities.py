"""Map the process, thread and GPU ids of a recorder to tracekit's indices, which count from 0."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

import polars as pl

from tracekit.model import REPORTS, Maker, Stream
from tracekit.sources._kernel_names import KernelNames
from tracekit.sources._seen import OPEN, Seen
from tracekit.support.progress import Progress
from tracekit.support.spool import Workspace

_INT32 = (1 << 31) - 1
OPS, HOST = ("pid", "device", "src_device", "dst_device"), ("pid", "tid")
"""Columns whose distinct values `Seen` collects: of ops, and of calls and ranges."""


def small(number: pl.Expr) -> pl.Expr:
    """Return ids from 0 to 2^31 - 1; null for other values, which mean "not set"."""
    return pl.when(number.is_between(0, _INT32)).then(number)


class Gathered:
    """Base of the ops, calls and ranges of all processes in a file, and counts of dropped rows."""

    def __init__(self, workspace: Workspace) -> None:
        self._ops, self._calls, self._ranges = (
            Seen((), workspace, *identities) for identities in (OPS, HOST, HOST)
        )
        self._counts: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._names = KernelNames()


class Identities:
    """Assigns indices to the processes, threads and GPUs of a trace, and determines time 0.

    Times count from the first event, since the clocks of AMD's and XLA's recorders count from the
    start of the machine or the session.

    Parameters
    ----------
    ops
        Rows with ``pid, device``.
    calls, ranges
        Rows with ``pid, tid``.
    origin
        Time 0 on the recorder's clock, ns; None: the first event.
    """

    def __init__(self, ops: Seen, calls: Seen, ranges: Seen, origin: int | None = None) -> None:
        self._ops, self._calls, self._ranges = ops, calls, ranges
        host = pl.concat([calls.distinct, ranges.distinct]).unique().sort("pid", "tid")
        self._threads = host.with_row_index("thread").cast({"thread": pl.Int32})
        pids = pl.concat([host["pid"], ops.distinct["pid"]]).unique().sort()
        self._pids = pids.to_frame("pid").with_row_index("process").cast({"process": pl.Int32})
        first = [int(each.rows.read(0, "start")["start"][0]) for each in self._some]
        self.origin = min(first, default=0) if origin is None else origin
        """Time 0 on the recorder's clock, ns."""
        self.last = max((each.last for each in self._some if each.last is not None), default=0)
        """End of the last event, ns on the recorder's clock."""

    @property
    def _some(self) -> list[Seen]:
        return [each for each in (self._ops, self._calls, self._ranges) if len(each)]

    def processes(self, names: Mapping[int, str | None]) -> pl.DataFrame:
        """Return the table ``processes`` of the trace; `names` maps process id -> name."""
        named = [names.get(pid) for pid in self._pids["pid"].to_list()]
        return self._pids.with_columns(pl.Series("name", named, pl.String), global_id="pid")

    def threads(self, names: pl.DataFrame | None = None) -> pl.DataFrame:
        """Return the table ``threads`` of the trace; `names` (``pid, tid, name``) adds names."""
        owners = self._threads.join(self._pids, on="pid", maintain_order="left")
        found = owners.with_columns(global_id="tid")
        if names is None:
            return found
        known = names.unique(["pid", "tid"], keep="first", maintain_order=True)
        return found.join(known, on=["pid", "tid"], how="left", maintain_order="left")

    def devices(self, described: pl.DataFrame, identity: str) -> pl.DataFrame:
        """Return the table ``devices``: the GPUs that ops name, joined with their descriptions.

        Parameters
        ----------
        described
            ``device`` and further columns of the table.
        identity
            Value of the column ``identity`` for described GPUs; other GPUs get ``unknown``.
        """
        seen = (self._ops.distinct[name] for name in OPS[1:])
        every = pl.concat(seen).drop_nulls().unique().sort().cast(pl.Int32)
        active = self._ops.distinct["device"].cast(pl.Int32)
        known = described.unique("device", keep="first", maintain_order=True)
        table = every.to_frame("device").join(
            known.with_columns(identity=pl.lit(identity)),
            on="device", how="left", maintain_order="left",
        )  # fmt: skip
        return table.with_columns(
            pl.col("identity").fill_null("unknown"),
            active=pl.col("device").is_in(active.implode()),
        )

    def streams(self, **more: Maker) -> dict[str, Stream]:
        """Return the tables ``ops``, ``calls`` and ``ranges`` by name, as streams of batches.

        Columns are computed while they are read. `more` has further columns of ranges, each with
        the function that computes it.
        """
        return {
            "ops": Stream("ops", "op", self._ops.rows, self._op_columns()),
            "calls": Stream("calls", "call", self._calls.rows, self._columns.calls()),
            "ranges": Stream(
                "ranges", "range", self._ranges.rows, {**self._columns.ranges(), **more}
            ),
        }

    def _op_columns(self) -> dict[str, Maker]:
        process = Maker(("pid",), lambda rows: self.process(rows["pid"]))
        return {**self._columns.times(), "process": process}

    @cached_property
    def _columns(self) -> HostColumns:
        return HostColumns(self._pids, self._threads, self.origin, self.last)

    def process(self, pids: pl.Series) -> pl.Series:
        """Return tracekit's index of each process, given process ids."""
        return self._columns.process(pids)


class HostColumns:
    """Functions that compute times and indices of calls and ranges from ``start, end, pid, tid``.

    Parameters
    ----------
    processes
        ``pid, process``: the index of each process id.
    threads
        ``pid, tid, thread``: the index of each thread.
    origin
        Time 0 on the recorder's clock, ns.
    last
        End given to ranges that were never closed, ns on the recorder's clock.
    """

    def __init__(
        self, processes: pl.DataFrame, threads: pl.DataFrame, origin: int, last: int
    ) -> None:
        self._processes = processes.select("pid", "process")
        self._threads = threads.select(*HOST, "thread")
        self._origin, self._last = origin, last

    def times(self) -> dict[str, Maker]:
        """Return ``start`` and ``end``, each with a function that makes times count from time 0."""
        return {
            "start": Maker(("start",), lambda rows: rows["start"] - self._origin),
            "end": Maker(("end",), lambda rows: rows["end"] - self._origin),
        }

    def calls(self) -> dict[str, Maker]:
        """Return the columns of calls that are computed on reading: name -> function."""
        return {
            **self.times(),
            "process": Maker(("pid",), lambda rows: self.process(rows["pid"])),
            "thread": Maker(HOST, self._thread),
        }

    def ranges(self) -> dict[str, Maker]:
        """Return the columns of ranges that are computed on reading: name -> function."""
        closed = pl.max_horizontal(pl.lit(self._last), "start")
        end = pl.when(pl.col("end") == OPEN).then(closed).otherwise("end") - self._origin
        return {
            **self.calls(),
            "end": Maker(("start", "end"), lambda _: end),
            "open": Maker(("end",), lambda rows: rows["end"] == OPEN),
        }

    def process(self, pids: pl.Series) -> pl.Series:
        """Return tracekit's index of each process, given process ids."""
        ids = pids.alias("pid").to_frame()
        return ids.join(self._processes, on="pid", how="left", maintain_order="left")["process"]

    def _thread(self, rows: pl.DataFrame) -> pl.Series:
        ids = rows.select(HOST)
        return ids.join(self._threads, on=HOST, how="left", maintain_order="left")["thread"]


def report(path: Path, format_: str, **known: object) -> pl.DataFrame:
    """Return the row of the table ``reports`` that describes a trace file: name, format, size.

    `known` has further columns. The host name `localhost` becomes null.
    """
    if str(known.get("host")).lower().startswith("localhost"):
        known = {**known, "host": None}  # many machines call themselves so
    row = {
        # A file's name may be any bytes; those that are no text are replaced.
        "file": os.fsencode(path.name).decode("utf-8", "replace"),
        "format": format_,
        "size": path.stat().st_size,
        **known,
    }
    schema = {name: dtype for name, dtype in REPORTS.schema.items() if name in row}
    return pl.DataFrame([row], schema=schema)


def contents(
    features: Iterable[tuple[str, str, str, str]], rows: Mapping[str, int]
) -> pl.DataFrame:
    """Return the table ``contents``: for each kind of data (feature), its number of rows in a file.

    Parameters
    ----------
    features
        Tuples of a feature's name, its place in the file, its use, and how to record it.
    rows
        Feature name -> number of rows.
    """
    names = ("feature", "source_table", "tells", "record_with")
    table = pl.DataFrame([dict(zip(names, each, strict=True)) for each in features])
    counts = [rows.get(feature, 0) for feature in table["feature"]]
    known = table.with_columns(pl.Series("rows", counts, pl.Int64))
    return known.with_columns(present=pl.col("rows") > 0)


def steps(progress: Progress, *names: str) -> Iterator[None]:
    """Return an iterator that reports progress through the steps `names`.

    Each ``next`` reports that the next step begins. A last ``next`` reports that all have ended.
    """
    for number, name in enumerate(names):
        progress(f"read {name}", number, len(names))
        yield
    progress(f"read {names[-1]}", len(names), len(names))
    yield
