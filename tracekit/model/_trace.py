"""A run's tables as polars frames, and as files."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import polars as pl

from tracekit.model._checks import Check, read_checks, write_checks
from tracekit.model._tables import TABLES, Table
from tracekit.support import compiled

_MANIFEST = "parts.json"
_ROWS_PER_PART = 1 << 20
_SHORT = 10_000
"""Tables of no more rows than these are read as a whole, and kept; of a run, not of a report."""
_LATER = (
    "host", "metrics", "memory", "syncs", "event_records", "graph_nodes", "machine", "verdicts",
    "opinions", "device_sums",
)  # fmt: skip
"""Tables that runs of an earlier version lack."""


@dataclass(frozen=True)
class Trace:
    """The canonical tables of a run, with what was noticed while they were made.

    Parameters
    ----------
    tables
        Lazy frames by table name; every canonical table is there, if only without rows.
    warnings
        What a user should know about this run, one sentence each.
    """

    tables: Mapping[str, pl.LazyFrame]
    warnings: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, tables: Mapping[str, pl.DataFrame], warnings: tuple[str, ...] = ()) -> Trace:
        """Make a trace of eager frames; absent tables are empty, columns are conformed."""
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
        """Open the files that `TraceWriter` made of one of so many reports; nothing is read yet.

        Of many reports fewer rows are kept of each.
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

    def read(self, name: str) -> pl.DataFrame:
        """Return a whole table as an eager frame."""
        return self.tables[name].collect()

    def with_tables(
        self, tables: Mapping[str, pl.DataFrame], warnings: tuple[str, ...] = ()
    ) -> Trace:
        """Return a trace in which `tables` take the place of those of the same name."""
        conformed = {name: TABLES[name].conform(frame).lazy() for name, frame in tables.items()}
        # An analysis that is done again warns again of the same things.
        warned = tuple(dict.fromkeys(self.warnings + warnings))
        return replace(self.with_lazy(conformed), warnings=warned)

    def with_lazy(self, tables: Mapping[str, pl.LazyFrame]) -> Trace:
        """Return a trace in which `tables`, as they are, take the place of others.

        What was added up of ops is that of no others.
        """
        if "ops" in tables:
            tables = {**tables, "device_sums": TABLES["device_sums"].empty().lazy()}
        own = self.tables
        changed = own.but(tables) if isinstance(own, _StoredTables) else {**own, **tables}
        return replace(self, tables=changed)


class _StoredTables(Mapping[str, pl.LazyFrame]):
    """The tables of a folder, opened when they are first asked for.

    To open a file takes longer than to read a short one, so short ones are read then, and kept.

    Parameters
    ----------
    folder
        What `TraceWriter` wrote.
    heights
        The numbers of rows of the parts of each table.
    short
        Tables of no more rows than these are short.
    opened
        Tables that need not be opened.
    """

    def __init__(
        self,
        folder: Path,
        heights: Mapping[str, Sequence[int]],
        short: int,
        opened: Mapping[str, pl.LazyFrame] | None = None,
    ) -> None:
        self._folder = folder
        self._heights = heights
        self._short = short
        self._opened = {**(opened or {})}

    def __getitem__(self, name: str) -> pl.LazyFrame:
        if name not in self._opened:
            self._opened[name] = self._open(name, TABLES[name])
        return self._opened[name]

    def __iter__(self) -> Iterator[str]:
        return iter(TABLES)

    def __len__(self) -> int:
        return len(TABLES)

    def but(self, tables: Mapping[str, pl.LazyFrame]) -> _StoredTables:
        """Return the same with others in the place of some."""
        return _StoredTables(self._folder, self._heights, self._short, {**self._opened, **tables})

    def _open(self, name: str, table: Table) -> pl.LazyFrame:
        if name not in self._heights:
            return table.empty().lazy()
        parts = [_part(self._folder, name, number) for number in range(len(self._heights[name]))]
        frame = pl.scan_parquet(parts, glob=False, hive_partitioning=False)
        if sum(self._heights[name]) <= self._short:
            frame = frame.collect().lazy()
        return _with_later(frame, table)


class TraceWriter:
    """Writes the tables of one report into a folder, part by part.

    Parts of different tables may be appended from several threads at once. What is written counts
    only once the writer is closed: the list of all parts is written last.

    Parameters
    ----------
    folder
        Where to write; it is created, and the folder around it exists.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: dict[str, list[int]] = {name: [] for name in TABLES}
        self._checks: dict[str, Check] = {}
        self._lock = threading.Lock()
        folder.mkdir(exist_ok=True)

    def append(self, table: str, frame: pl.DataFrame) -> None:
        """Write `frame` as the next part of a canonical table, with its columns and types."""
        conformed = TABLES[table].conform(frame)
        with self._lock:
            rows = self._rows[table]
            number = len(rows)
            rows.append(conformed.height)
        path = _part(self._folder, table, number)
        path.parent.mkdir(exist_ok=True)
        _write(conformed, path)
        check = Check.of(path)
        with self._lock:
            self._checks[str(path.relative_to(self._folder))] = check

    def close(self) -> None:
        """Complete the folder; a table without parts gets one without rows."""
        for table, rows in self._rows.items():
            if not rows:
                self.append(table, TABLES[table].empty())
        write_checks(self._folder, self._checks)
        (self._folder / _MANIFEST).write_text(json.dumps(self._rows) + "\n", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()


def _write(frame: pl.DataFrame, path: Path) -> None:
    from tracekit.support import parquet  # noqa: PLC0415 - not needed to read

    if frame.height >= compiled.FEW_ROWS and parquet.can_write(frame):
        parquet.write(frame, path)
        return
    try:
        frame.write_parquet(path, compression="zstd", compression_level=1)
    except pl.exceptions.ComputeError:
        # What polars says of a file that cannot be written may lack why, as of a full disk.
        content = io.BytesIO()
        frame.write_parquet(content, compression="zstd", compression_level=1)
        path.write_bytes(content.getbuffer())


def replace_table(folder: Path, name: str, frame: pl.DataFrame) -> None:
    """Write another canonical table in the place of one of one part that `TraceWriter` wrote."""
    parts = _parts(folder)[name]
    if len(parts) != 1:
        raise ValueError(f"table {name} has {len(parts)} parts")
    _write(TABLES[name].conform(frame), parts[0])
    part = str(parts[0].relative_to(folder))
    write_checks(folder, {**read_checks(folder), part: Check.of(parts[0])})


def missing_files(folder: Path) -> list[str]:
    """Return the files that the folder of a report lacks."""
    try:
        parts = _parts(folder)
    except (OSError, ValueError, TypeError):
        return [_MANIFEST]
    absent = [f"table {name}" for name in TABLES if name not in parts and name not in _LATER]
    paths = (path for some in parts.values() for path in some)
    return absent + [str(path.relative_to(folder)) for path in paths if not path.exists()]


def _with_later(frame: pl.LazyFrame, table: Table) -> pl.LazyFrame:
    """Add the columns that an earlier version did not write, which are null."""
    there = frame.collect_schema()
    later = {name: dtype for name, dtype in table.schema.items() if name not in there}
    if not later:
        return frame
    return frame.with_columns(pl.lit(None, dtype).alias(name) for name, dtype in later.items())


def _heights(folder: Path) -> dict[str, list[int]]:
    """Return the numbers of rows of the parts of each table."""
    heights: dict[str, list[int]] = json.loads((folder / _MANIFEST).read_bytes())
    return heights


def _parts(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each table, in order."""
    return {
        name: [_part(folder, name, number) for number in range(len(rows))]
        for name, rows in _heights(folder).items()
    }


def _part(folder: Path, table: str, number: int) -> Path:
    return folder / table / f"{number:05d}.parquet"
