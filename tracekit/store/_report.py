"""Read a trace file, find stages and iterations of its ops, and write its tables in a thread."""

from __future__ import annotations

import shutil
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

from tracekit.model import Trace, TraceWriter
from tracekit.store._staging import file_errors
from tracekit.support.memory import keep_small
from tracekit.support.spool import DEFAULT_MEMORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from tracekit.attribution import Rules

_IN_QUEUE = 2
"""Number of frames that may wait to be written; more would only fill memory."""
_WAITING = "waiting"
"""Folder for data that do not fit into memory while a report is being made."""


class Behind:
    """Writes rows of tables in another thread, in the order in which they were scheduled.

    It is a context manager; leaving it waits until everything is written. If a write fails, a later
    call, or leaving, raises its error.
    """

    def __init__(self, write: Callable[[str, pl.DataFrame], None]) -> None:
        self._write = write
        self._thread = ThreadPoolExecutor(1, "write")
        self._waiting: deque[Future[None]] = deque()

    def __call__(self, table: str, make: Callable[[], pl.DataFrame]) -> None:
        """Schedule the result of `make` to be written as the next rows of `table`."""
        if len(self._waiting) == _IN_QUEUE:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(self._made, table, make))

    def _made(self, table: str, make: Callable[[], pl.DataFrame]) -> None:
        self._write(table, make())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=kind is not None)
        if kind is None:
            for written in self._waiting:
                written.result()


class _Adding(Protocol):
    """Interface of an aggregator of ops, which gets them in order of start as they are written."""

    def add(self, ops: pl.DataFrame) -> None:
        """Add the next chunk of ops to the sums."""

    def table(self) -> pl.DataFrame:
        """Return the sums over all added ops as a table."""


@dataclass(frozen=True)
class ReportOptions:
    """Options for making the tables of a trace file ("report")."""

    rules: Rules
    """Rules that derive stages and iterations from names."""
    digest: str
    """SHA-256 of the file's content, in hexadecimal; or `NOT_YET`, if it is written into the tables
    later."""
    memory: int = DEFAULT_MEMORY
    """Limit of memory for the work, bytes."""
    nsys: str | None = None
    """Path of the nsys executable that exports ``.nsys-rep`` files; None searches for one."""
    captures: Sequence[Path] = ()
    """Further trace files, recorded while the CUDA graphs were captured that this file replays."""
    sums: Callable[[], _Adding] | None = None
    """Factory of the aggregator for the table ``device_sums``; None leaves that table empty."""
    look: Callable[[Path, Trace], Any] | None = None
    """Function of the file's path and its tables whose result is needed once all files of the run
    have been read. It may run in several processes at once. None for no such result."""


@dataclass(frozen=True)
class ReportMade:
    """Result of making the tables of a trace file, once they are written."""

    warnings: tuple[str, ...] = ()
    """Warnings about the file for users, one sentence each."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that the program itself recorded: name -> value."""
    seen: Any = None
    """Result of `ReportOptions.look`; None without it."""


def make_report(
    path: Path,
    folder: Path,
    options: ReportOptions,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> ReportMade:
    """Read a trace file, find stages and iterations, and write the tables into a new `folder`.

    Raises
    ------
    InputError
        If the file cannot be read as a trace.
    StoreError
        If the tables cannot be written.
    """
    import polars as pl  # noqa: PLC0415

    from tracekit.attribution import attribute_recording  # noqa: PLC0415
    from tracekit.sources import open_report  # noqa: PLC0415
    from tracekit.support.spool import Workspace  # noqa: PLC0415

    if options.memory < DEFAULT_MEMORY:
        keep_small()
    with file_errors(folder), _waiting(folder) as waiting:
        workspace = Workspace(waiting, options.memory)
        sums = options.sums() if options.sums else None
        writer = TraceWriter(folder)

        def append(table: str, rows: pl.DataFrame) -> None:
            writer.append(table, rows)
            if sums is not None and table == "ops":
                sums.add(rows)

        with writer, Behind(append) as write:
            recording = open_report(path, workspace, progress, options.nsys, options.captures)
            reports = recording.tables["reports"].with_columns(digest=pl.lit(options.digest))
            for name, table in {**recording.tables, "reports": reports}.items():
                write(name, table.clone)
            for name, batches in recording.passing.items():
                for batch in batches():
                    write(name, batch.clone)
            warnings = attribute_recording(recording, options.rules, workspace, write, progress)
            if sums is not None:
                write("device_sums", sums.table)
    with file_errors(folder):
        seen = options.look(path, writer.trace()) if options.look else None
    return ReportMade(warnings, dict(recording.labels), seen)


@contextmanager
def _waiting(folder: Path) -> Iterator[Path]:
    """Yield a new temporary folder inside `folder`, both of which are created."""
    waiting = folder / _WAITING
    # Nothing around it: that would bring a folder back which is dropped, and without its mark.
    folder.mkdir(exist_ok=True)
    waiting.mkdir()
    try:
        yield waiting
    finally:
        shutil.rmtree(waiting)
