"""The tables of a run as polars frames, and as files."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import stat
import threading
import zlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import index, itemgetter
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import polars as pl

from tracekit.model._checks import Check, Status, read_checks, write_checks
from tracekit.model._tables import TABLES, Table
from tracekit.support import compiled
from tracekit.support.files import read_plain, status_of

T = TypeVar("T")

_MANIFEST = "parts.json"
_TIMES = "times.json"
_ROWS_PER_PART = 1 << 20
_GROUP_ROWS = {"ranges": 1 << 16}
"""Rows per row group of tables of which single steps are read by time."""
_SHORT = 10_000
"""Tables with at most this number of rows in a run are read as a whole, and kept."""
_LONG = 1_000_000
"""Number of ops from which sums over a run of one part are cached."""
_LATER = (
    "host", "metrics", "memory", "syncs", "event_records", "graph_nodes", "machine", "verdicts",
    "assumptions", "opinions", "device_sums",
)  # fmt: skip
"""Tables that runs of an earlier version lack."""


@dataclass(frozen=True)
class Stretch:
    """Part of a run (time span or steps) that an analysis is limited to; empty for the whole."""

    between: tuple[int, int] | None = None
    """Start and end, ns since the start of the recording; the end is excluded. None if not limited
    by time."""
    iterations: tuple[int, int] | None = None
    """First and last step, both included. None if not limited by steps."""

    @property
    def is_all(self) -> bool:
        """True if the analysis covers the whole run."""
        return self.between is None and self.iterations is None

    def holds(self, start: str = "start", iteration: str = "iteration") -> pl.Expr:
        """Return a condition that selects the rows of a table inside the time span or the steps.

        The arguments are names of columns: a limit in time is compared with the column `start`, a
        limit in steps with the column `iteration`.
        """
        if self.between is not None:
            return pl.col(start).is_between(*self.between, closed="left")
        if self.iterations is not None:
            return pl.col(iteration).is_between(*self.iterations).fill_null(value=False)
        return pl.lit(value=True)


Spread = Callable[[Sequence[Callable[[], Any]]], Iterator[tuple[int, Any]]]
"""Function that calls functions, in any order and place, and yields their numbers and results."""


Frames = dict[str, pl.DataFrame]
"""Sums of a part of a run: name -> table."""


class Keeper(Protocol):
    """Cache of frames, such as sums of parts of a run, across analyses."""

    def find(self, key: str) -> Frames | None:
        """Return the frames cached under a key; None if there are none."""

    def keep(self, key: str, frames: Frames) -> bool:
        """Cache frames under a key; return whether `find` will find them."""


def _one_by_one(work: Sequence[Callable[[], T]]) -> Iterator[tuple[int, T]]:
    return ((number, each()) for number, each in enumerate(work))


@dataclass(frozen=True)
class Trace:
    """Canonical tables of a run, with warnings from ingest."""

    tables: Mapping[str, pl.LazyFrame]
    """Lazy frames: name -> table. Every canonical table is there, empty if nothing was recorded."""
    warnings: tuple[str, ...] = field(default=())
    """Warnings about the run for users, one sentence each."""
    stretch: Stretch = Stretch()
    """Part of the run that analyses are limited to. The tables always have the whole run, since the
    state at the start of this part depends on earlier events."""
    spread: Spread = field(default=_one_by_one, repr=False, compare=False)
    """Function that calls functions on parts of the run, in processes or, by default, one by
    one."""
    keeper: Keeper | None = field(default=None, repr=False, compare=False)
    """Cache for the results of `spread`; None for no cache."""
    _known: dict[Callable[[Trace], Any], Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _known_of_all: dict[Callable[[Trace], Any], Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _known_of_tables: dict[tuple[str, ...], dict[Callable[[Trace], Any], Any]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def of(cls, tables: Mapping[str, pl.DataFrame], warnings: tuple[str, ...] = ()) -> Trace:
        """Make a trace of eager frames; missing tables are empty, columns get declared types."""
        unknown = set(tables) - set(TABLES)
        if unknown:
            raise ValueError(f"no canonical table {', '.join(sorted(unknown))}")
        return cls(
            {
                name: (table.conform(tables[name]) if name in tables else table.empty()).lazy()
                for name, table in TABLES.items()
            },
            warnings,
        )

    @classmethod
    def scan(cls, folder: Path, warnings: tuple[str, ...] = (), *, reports: int = 1) -> Trace:
        """Open the tables in a folder written by `TraceWriter`, without reading any file.

        `reports` is the number of trace files in the run: the more there are, the fewer rows of
        each are kept in memory.
        """
        return cls(_StoredTables(folder, _heights(folder), _SHORT // reports), warnings)

    def write(self, folder: Path) -> None:
        """Write all tables into `folder`, which is created, with a `TraceWriter`."""
        with TraceWriter(folder) as writer:
            for name, frame in self.tables.items():
                for part in frame.collect().iter_slices(_ROWS_PER_PART):
                    writer.append(name, part)

    def __getitem__(self, name: str) -> pl.LazyFrame:
        return self.tables[name]

    def height(self, name: str) -> int:
        """Return the number of rows of a table."""
        known = self.tables.height(name) if isinstance(self.tables, _StoredTables) else None
        if known is not None:
            return known
        return int(self.tables[name].select(pl.len()).collect().item())

    def read(self, name: str) -> pl.DataFrame:
        """Return a whole table as an eager frame."""
        return self.tables[name].collect(engine="in-memory")  # short ones in a sixth of the time

    def rows(self, name: str, ids: pl.Series, columns: Sequence[str] | pl.Expr) -> pl.DataFrame:
        """Return the rows of a table whose ids lie between the smallest and the largest of `ids`.

        An id is the table's first column, and in most runs the row's number: then only the files
        that contain these rows are read.
        """
        if ids.is_empty():
            return self[name].clear().select(columns).collect()
        first, last = ids.min(), ids.max()
        wanted = pl.col(TABLES[name].columns[0].name).is_between(first, last)
        stored = self.tables
        if isinstance(stored, _StoredTables) and isinstance(first, int) and isinstance(last, int):
            near = stored.at(name, first, last).filter(wanted).select(columns).collect()
            if near.height == last - first + 1:
                return near
        return self[name].filter(wanted).select(columns).collect()

    def during(self, name: str, start: int, end: int) -> pl.LazyFrame:
        """Return the rows of a table that overlap or touch an interval of time, ns.

        Only the files with such rows are opened: to open twenty takes longer than to read one.
        """
        stored = self.tables
        known = stored.during(name, start, end) if isinstance(stored, _StoredTables) else self[name]
        return known.filter(pl.col("start") <= end, pl.col("end") >= start)

    def once(
        self, work: Callable[[Trace], T], *, of_all: bool = False, reads: tuple[str, ...] = ()
    ) -> T:
        """Compute a value from this trace once, and cache it as long as the trace lives.

        Meant for small values that many analyses need.

        Parameters
        ----------
        work
            Function that computes the value; it is also the key of the cache.
        of_all
            Whether the value is the same whatever time span or steps the run is limited to.
        reads
            Names of all tables that `work` reads, to share the value with traces in which only
            other tables are replaced; empty not to share it.
        """
        known = self._known_of_all if of_all else self._known
        if reads:
            known = self._known_of_tables.setdefault(reads, {})
        if work not in known:
            known[work] = work(self)
        found: T = known[work]
        return found

    def limited_to(self, stretch: Stretch) -> Trace:
        """Return the trace limited to a time span or steps; values of the whole run stay cached.

        If it is limited so already, it is returned itself, with all values that it has cached.
        """
        if stretch == self.stretch:
            return self
        other = replace(self, stretch=stretch)
        object.__setattr__(other, "_known_of_all", self._known_of_all)  # of the same tables
        object.__setattr__(other, "_known_of_tables", self._known_of_tables)
        return other

    def parts(
        self, *, with_paths: bool = False, together: Sequence[tuple[int, int]] = ()
    ) -> Sequence[Trace]:
        """Divide the run into parts that share no device and no process, so that sums can be added.

        Processes and devices keep the run's numbers in each part; ops, calls and ranges are
        numbered within the part. A run that cannot be divided is one part.

        Parameters
        ----------
        with_paths
            Whether paths of ranges get the run's ids, too; otherwise paths must not be used.
        together
            Pairs of devices that have to be in the same part.
        """
        all_tables = self.tables
        if not isinstance(all_tables, LaterTables):
            return [self]
        tables = all_tables.parts(with_paths=with_paths, together=together)
        return [self] if len(tables) == 1 else [Trace(each, (), self.stretch) for each in tables]

    def reports_of_parts(self) -> list[list[int]]:
        """Return the indices of the trace files in each part; empty if the run is not divided."""
        return self.tables.reports_of_parts() if isinstance(self.tables, LaterTables) else []

    def own_ops(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Keep rows whose `op` is in this part of the run, with `op` numbered as in the part."""
        return self.tables.own_ops(rows) if isinstance(self.tables, LaterTables) else rows

    def in_run(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Convert the ids in the columns `op` and `range` from those of this part to the run's."""
        return self.tables.in_run(rows) if isinstance(self.tables, LaterTables) else rows

    def sums_of_parts(self, work: Sequence[partial[Frames]]) -> list[Frames]:
        """Return the results of several calls on parts of the run, in order; some may be cached.

        Parameters
        ----------
        work
            One `functools.partial` per part, with all arguments: the part, then frames. The cache
            key has the name of its function, or the `repr` of a callable dataclass instance.
        """
        is_short = len(work) == 1 and self.height("ops") < _LONG
        keeper = None if is_short else self.keeper
        calls = work if len(work) == 1 else [partial(_on_a_copy, each) for each in work]
        if keeper is None:
            return [frames for _, frames in sorted(self.spread(calls), key=itemgetter(0))]
        keys = [_key(each) for each in work]
        found = {number: keeper.find(key) for number, key in enumerate(keys)}
        missing = [number for number, frames in found.items() if frames is None]
        made = self.spread([calls[number] for number in missing]) if missing else ()
        for place, frames in made:
            number = missing[place]
            # Read back when all are made: until then memory is for the parts that are being read.
            found[number] = None if keeper.keep(keys[number], frames) else frames
        return [
            frames or keeper.find(keys[number]) or calls[number]()
            for number, frames in found.items()
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "spread": _one_by_one,
            "keeper": None,
            "_known": {},
            "_known_of_all": {},
            "_known_of_tables": {},
        }

    def with_tables(
        self, tables: Mapping[str, pl.DataFrame], warnings: tuple[str, ...] = ()
    ) -> Trace:
        """Return a trace in which `tables` replace the tables of the same names."""
        conformed = {name: TABLES[name].conform(frame).lazy() for name, frame in tables.items()}
        # An analysis that is done again warns again of the same things.
        warned = tuple(dict.fromkeys(self.warnings + warnings))
        return replace(self.with_lazy(conformed), warnings=warned)

    def with_part(self, tables: Mapping[str, pl.LazyFrame]) -> Trace:
        """Return a trace with only a part of some tables: `tables` are the parts, by table name.

        Values that `once` has cached with `of_all` stay, as they are of the whole run.
        """
        part = self.with_lazy(tables)
        object.__setattr__(part, "_known_of_all", {**self._known_of_all})
        return part

    def with_lazy(self, tables: Mapping[str, pl.LazyFrame]) -> Trace:
        """Return a trace in which lazy `tables` replace the tables of the same names.

        If ops are among them, cached sums over ops are dropped.
        """
        if "ops" in tables:
            tables = {**tables, "device_sums": TABLES["device_sums"].empty().lazy()}
        current = self.tables
        changed = current.but(tables) if isinstance(current, LaterTables) else {**current, **tables}
        other = replace(self, tables=changed)
        same = (reads for reads in self._known_of_tables if tables.keys().isdisjoint(reads))
        known = {reads: self._known_of_tables[reads] for reads in same}
        object.__setattr__(other, "_known_of_tables", known)
        return other


def _on_a_copy(work: partial[Frames]) -> Frames:
    """Call a function on a copy of a part of a run, so that what the copy caches is freed later."""
    part, *frames = work.args
    return work.func(replace(copy(part), tables=copy(part.tables)), *frames)


def _key(work: partial[Frames]) -> str:
    """Return the cache key of a call on a part of a run.

    It consists of the function, the time span or steps that the run is limited to, the part, and
    the frames passed.
    """
    part, *frames = work.args
    function_name = getattr(work.func, "__qualname__", None) or repr(work.func)
    function_name = f"{work.func.__module__} {function_name}"
    texts = [f"{frame.schema} {frame.write_json()}" for frame in (*frames, *part.tables.own())]
    whole = "\n".join([function_name, repr(part.stretch), part.tables.name, *texts])
    return hashlib.sha256(whole.encode()).hexdigest()  # of many parts, the texts would fill memory


class LaterTables(Mapping[str, pl.LazyFrame], ABC):
    """Tables by name that are opened on first use.

    Parameters
    ----------
    lazy
        Tables that are open already.
    """

    def __init__(self, lazy: Mapping[str, pl.LazyFrame]) -> None:
        self._lazy = {**lazy}
        self._opened = {**lazy}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": {**self._lazy}}

    def __getitem__(self, name: str) -> pl.LazyFrame:
        if name not in self._opened:
            self._opened[name] = self._open(name)
        return self._opened[name]

    def __iter__(self) -> Iterator[str]:
        return iter(TABLES)

    def __len__(self) -> int:
        return len(TABLES)

    def but(self, tables: Mapping[str, pl.LazyFrame]) -> LaterTables:
        """Return a copy in which `tables` replace the tables of the same names."""
        changed = copy(self)
        # Of the same class.
        changed._lazy = {**self._lazy, **tables}  # noqa: SLF001
        changed._opened = {**self._opened, **tables}  # noqa: SLF001
        return changed

    def parts(
        self,
        *,
        with_paths: bool,  # noqa: ARG002 - see `Trace`
        together: Sequence[tuple[int, int]] = (),  # noqa: ARG002
    ) -> Sequence[LaterTables]:
        """Return the tables of each part of a run (files read together); see `Trace.parts`."""
        return [self]

    def reports_of_parts(self) -> list[list[int]]:
        """Return the indices of the trace files in each part; see `Trace.reports_of_parts`."""
        return []

    @property
    def name(self) -> str:
        """Name of the part of a run that these tables are of; empty if they are of a whole run."""
        return ""

    def own_ops(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Keep rows whose `op` is in this part of the run, with `op` numbered as in the part."""
        return rows

    def in_run(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Convert the ids in columns `op` and `range` to the run's; see `Trace.in_run`."""
        return rows

    def own(self) -> list[pl.DataFrame]:
        """Return the tables of this run that are in memory already, in the order of their names."""
        return [self._lazy[name].collect(engine="in-memory") for name in sorted(self._lazy)]

    @abstractmethod
    def _open(self, name: str) -> pl.LazyFrame:
        """Open the table `name`; called on its first use."""


class _StoredTables(LaterTables):
    """The tables that `TraceWriter` wrote into a folder.

    Opening a file lazily takes longer than reading a short file, so short tables are read on
    opening and kept in memory.

    Parameters
    ----------
    folder
        Folder that `TraceWriter` wrote.
    heights
        Name of a table -> number of rows in each of its files.
    short
        Largest number of rows of a table that counts as short.
    known
        Contents of files that are in memory already: name of the table -> frame.
    """

    def __init__(
        self,
        folder: Path,
        heights: Mapping[str, Sequence[int]],
        short: int,
        known: Mapping[str, pl.DataFrame] | None = None,
    ) -> None:
        super().__init__({})
        self._opened |= {name: frame.lazy() for name, frame in (known or {}).items()}
        self._folder = folder
        self._heights = heights
        self._short = short
        self._files: dict[str, list[Path]] = {}

    def height(self, name: str) -> int | None:
        """Return the number of rows that a table was written with; None if it has been replaced."""
        return None if name in self._lazy else sum(self._heights.get(name, ()))

    def files(self, name: str) -> list[Path]:
        """Return the files of a table, without those that have no rows."""
        if name not in self._files:
            numbers = (n for n, rows in enumerate(self._heights.get(name, ())) if rows)
            self._files[name] = [_part(self._folder, name, number) for number in numbers]
        return self._files[name]

    def at(self, name: str, first: int, last: int) -> pl.LazyFrame:
        """Return rows `first` to `last` of a table from their files; all rows if it is replaced."""
        if name in self._lazy:
            return self[name]
        ends = [0, *itertools.accumulate(rows for rows in self._heights.get(name, ()) if rows)]
        begin, files = bisect_right(ends, first) - 1, self.files(name)
        near = files[begin : bisect_right(ends, last)]
        return self._some(name, near).slice(first - ends[begin], last - first + 1)

    def during(self, name: str, start: int, end: int) -> pl.LazyFrame:
        """Return the rows of the files that have any between two times; all if this is unknown."""
        files, times = self.files(name), self._times.get(name, [])
        if name in self._lazy or len(files) != len(times):
            return self[name]
        near = [file for file, (first, last) in zip(files, times, strict=True)
                if first <= end and last >= start]  # fmt: skip
        return self._some(name, near)

    def _some(self, name: str, files: Sequence[Path]) -> pl.LazyFrame:
        """Open only some files of a table; all if none are given."""
        is_part = 0 < len(files) < len(self.files(name))
        return _with_later(_scanned(files), TABLES[name]) if is_part else self[name]

    @cached_property
    def _times(self) -> Mapping[str, Sequence[tuple[int, int]]]:
        """First start and last end of each file of tables of several; empty if that is unknown.

        Earlier versions wrote no such list; a damaged one is not used.
        """
        with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
            times = json.loads(read_plain(self._folder / _TIMES)).items()
            return {
                name: [(index(first), index(last)) for first, last in files]
                for name, files in times
            }
        return {}

    def _open(self, name: str) -> pl.LazyFrame:
        table, parts = TABLES[name], self.files(name)
        if not parts:
            return table.empty().lazy()
        frame = _scanned(parts)
        if sum(self._heights[name]) <= self._short:
            frame = frame.collect().lazy()
        return _with_later(frame, table)


_UNLIKE = (pl.exceptions.SchemaError, pl.exceptions.ColumnNotFoundError)
"""Errors raised when reading files of which some were written by an earlier version."""


def read_each(traces: Sequence[Trace], name: str) -> list[pl.DataFrame]:
    """Return the table `name` of each trace, as eager frames."""
    found = _at_once(traces, name)
    if found is None:
        return [trace.read(name) for trace in traces]
    rows, heights = found
    ends = itertools.accumulate(heights)
    return [rows.slice(end - height, height) for end, height in zip(ends, heights, strict=True)]


def read_together(
    traces: Sequence[Trace], name: str, columns: Sequence[str] | None = None
) -> tuple[pl.DataFrame, list[int]]:
    """Return the table `name` of all traces as one frame, and its number of rows in each trace.

    Only the given `columns` are read, or all.
    """
    found = _at_once(traces, name, columns)
    if found is not None:
        return found
    frames = [trace[name].select(columns or pl.all()).collect() for trace in traces]
    return pl.concat(frames), [frame.height for frame in frames]


def _at_once(
    traces: Sequence[Trace], name: str, columns: Sequence[str] | None = None
) -> tuple[pl.DataFrame, list[int]] | None:
    """Read a table of many trace files in one scan; None if that fails, or is not possible.

    It takes a fifth of the time of reading them one by one.
    """
    stored = [trace.tables for trace in traces if isinstance(trace.tables, _StoredTables)]
    heights = [height for each in stored if (height := each.height(name)) is not None]
    if len(heights) == len(traces) and any(heights):
        parts = [part for each in stored for part in each.files(name)]
        with suppress(*_UNLIKE):
            wanted = _with_later(_scanned(parts), TABLES[name]).select(columns or pl.all())
            rows = wanted.collect()
            if rows.height == sum(heights):  # else nobody knows which rows are whose
                return rows, heights
    return None


def _scanned(parts: Sequence[Path]) -> pl.LazyFrame:
    return pl.scan_parquet(list(parts), glob=False, hive_partitioning=False)


class TraceWriter:
    """Writes the tables of one trace file into a folder, each in one or more files (parts).

    Parts of different tables may be appended from several threads at once. The tables are valid
    only once the writer is closed: the list of all parts is written last.

    Parameters
    ----------
    folder
        Folder to write into; it is created, its parent must exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: dict[str, list[int]] = {name: [] for name in TABLES}
        self._times: dict[str, list[tuple[int, int]]] = {}
        self._checks: dict[str, Check] = {}
        self._short: dict[str, list[pl.DataFrame]] = {}
        self._lock = threading.Lock()
        folder.mkdir(exist_ok=True)

    def append(self, table: str, frame: pl.DataFrame) -> None:
        """Write `frame` as the next part of a canonical table, with its columns and types.

        For a frame without rows, no file is written: many reports have a dozen empty tables each.
        """
        conformed = TABLES[table].conform(frame)
        if conformed.is_empty():
            return
        never_null = {column.name for column in TABLES[table].columns if not column.nullable}
        is_timed = {"start", "end"} <= never_null
        times = conformed.select(pl.col("start").min(), pl.col("end").max()) if is_timed else None
        with self._lock:
            rows = self._rows[table]
            number = len(rows)
            rows.append(conformed.height)
            if times is not None:
                self._times.setdefault(table, []).append(times.row(0))
            if sum(rows) <= _SHORT:
                self._short.setdefault(table, []).append(conformed)
            else:
                self._short.pop(table, None)
        path = _part(self._folder, table, number)
        path.parent.mkdir(exist_ok=True)
        check = _write(conformed, path, frame, _GROUP_ROWS.get(table))
        with self._lock:
            self._checks[str(path.relative_to(self._folder))] = check

    def close(self) -> None:
        """Write the list of all parts, which makes the folder valid."""
        write_checks(self._folder, self._checks)
        several = {name: each for name, each in self._times.items() if len(each) > 1}
        if several:
            (self._folder / _TIMES).write_text(json.dumps(several) + "\n", encoding="utf-8")
        (self._folder / _MANIFEST).write_text(json.dumps(self._rows) + "\n", encoding="utf-8")

    def trace(self) -> Trace:
        """Return the tables that were written; short ones are passed on from memory."""
        short = {name: pl.concat(parts) for name, parts in self._short.items()}
        return Trace(_StoredTables(self._folder, self._rows, _SHORT, short))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()


def _write(
    frame: pl.DataFrame, path: Path, source: pl.DataFrame | None = None, rows: int | None = None
) -> Check:
    """Write a part of a table; return the size and checksum of its file; see `parquet.write`.

    `source` has the same rows, with texts that may still be categories; `rows` is the number of
    rows per row group.
    """
    from tracekit.support import parquet  # noqa: PLC0415 - not needed to read

    if frame.height >= compiled.FEW_ROWS and parquet.can_write(frame):
        coded = () if source is None else [c for c in source if c.dtype == pl.Categorical]
        return Check.of(path, parquet.write(frame, path, coded, rows))
    # Polars takes twice as long to write a small file itself, and may not say why it cannot.
    content = io.BytesIO()
    frame.write_parquet(content, compression="zstd", compression_level=1)
    path.write_bytes(content.getvalue())
    return Check.of(path, zlib.crc32(content.getvalue()))


def replace_table(folder: Path, name: str, frame: pl.DataFrame) -> None:
    """Overwrite a table in a folder by `frame`; the table must have at most one file (part)."""
    parts = _parts(folder)[name]
    if not parts and frame.is_empty():
        return
    if len(parts) != 1:
        raise ValueError(f"table {name} has {len(parts)} parts")
    check = _write(TABLES[name].conform(frame), parts[0])
    part = str(parts[0].relative_to(folder))
    write_checks(folder, {**read_checks(folder), part: check})


def missing_files(folder: Path, status: Status = status_of) -> list[str]:
    """Return the missing files of a folder of tables; `status` gives None for an absent file."""
    try:
        parts = {
            table: [_name(table, number) for number in range(len(rows))]
            for table, rows in _heights(folder).items()
        }
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return [_MANIFEST]
    absent = [f"table {name}" for name in TABLES if name not in parts and name not in _LATER]
    # A folder that is a link would lead out of the store, through names that are plain files there.
    within = f"{folder}/"
    with os.scandir(folder) as entries:
        placed = {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
    return absent + [
        name
        for table, names in parts.items()
        for name in names
        if table not in placed
        or (found := status(within + name)) is None
        or not stat.S_ISREG(found.st_mode)
    ]


def _with_later(frame: pl.LazyFrame, table: Table) -> pl.LazyFrame:
    """Add to a stored table the columns that an earlier version did not write, all null."""
    there = frame.collect_schema()
    later = {name: dtype for name, dtype in table.schema.items() if name not in there}
    if not later:
        return frame
    return frame.with_columns(pl.lit(None, dtype).alias(name) for name, dtype in later.items())


def _heights(folder: Path) -> dict[str, list[int]]:
    """Return the number of rows in each part of each table: name -> numbers.

    Raises
    ------
    ValueError
        If the folder's list of parts is damaged.
    """
    heights: dict[str, list[int]] = json.loads(read_plain(folder / _MANIFEST))
    for name, rows in heights.items():
        if not name.isidentifier() or not all(type(each) is int and each >= 0 for each in rows):
            raise ValueError(f"{folder / _MANIFEST} is damaged")
    return heights


def _parts(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each table, in order: name -> paths."""
    return {
        name: [_part(folder, name, number) for number in range(len(rows))]
        for name, rows in _heights(folder).items()
    }


def _part(folder: Path, table: str, number: int) -> Path:
    return folder / _name(table, number)


def _name(table: str, number: int) -> str:
    return f"{table}/{number:05d}.parquet"
