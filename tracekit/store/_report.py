"""One report of a run: read it, attribute it, write its tables beside the computation."""

from __future__ import annotations

import shutil
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

from tracekit.model import TraceWriter
from tracekit.store._staging import file_errors
from tracekit.support.memory import keep_small
from tracekit.support.spool import DEFAULT_MEMORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from tracekit.attribution import Rules

_IN_QUEUE = 2
"""How many frames may wait to be written: more would only fill memory."""
_WAITING = "waiting"
"""Folder of what does not fit into memory, as long as a report is being made."""


class Behind:
    """Make rows and write them in another thread, in the order of calls.

    Leaving the context waits until all is written. An error of a write is raised by a later call,
    or there.
    """

    def __init__(self, write: Callable[[str, pl.DataFrame], None]) -> None:
        self._write = write
        self._thread = ThreadPoolExecutor(1, "write")
        self._waiting: deque[Future[None]] = deque()

    def __call__(self, table: str, make: Callable[[], pl.DataFrame]) -> None:
        """Write what `make` returns as the next rows of `table`, soon."""
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
    """Adds up ops as they are written, by start."""

    def add(self, ops: pl.DataFrame) -> None:
        """Count the next ones."""

    def table(self) -> pl.DataFrame:
        """Return the sums as a table."""


@dataclass(frozen=True)
class ReportOptions:
    """Options for making a report into tables.

    Parameters
    ----------
    rules
        What names mean.
    digest
        SHA-256 of the report's content, in hexadecimal, or `NOT_YET`: whoever makes the run then
        puts it into the tables.
    memory
        How much memory the work may use, bytes.
    nsys
        The nsys that exports reports; None for the one that is found.
    captures
        Traces of captures of CUDA graphs that the report replays.
    sums
        Begins to add up the ops for the table ``device_sums``, which else is empty.
    look
        Given the report and the folder of its tables, says what all reports of the run together
        are judged by. What makes many reports at once looks at many at once.
    """

    rules: Rules
    digest: str
    memory: int = DEFAULT_MEMORY
    nsys: str | None = None
    captures: Sequence[Path] = ()
    sums: Callable[[], _Adding] | None = None
    look: Callable[[Path, Path], Any] | None = None


@dataclass(frozen=True)
class ReportMade:
    """Facts about a report whose tables are written.

    Parameters
    ----------
    warnings
        What a user should know about it, one sentence each.
    labels
        Labels that the program gave its run.
    seen
        What was seen where one was to `look`.
    """

    warnings: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    seen: Any = None


def make_report(
    path: Path,
    folder: Path,
    options: ReportOptions,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> ReportMade:
    """Read a trace file, attribute it, and write its tables into `folder`, which is created.

    Raises
    ------
    InputError
        If the file cannot be read as a trace.
    StoreError
        If the tables cannot be written.
    """
    from tracekit.attribution import attribute_recording  # noqa: PLC0415
    from tracekit.sources import open_report  # noqa: PLC0415
    from tracekit.support.spool import Workspace  # noqa: PLC0415

    if options.memory < DEFAULT_MEMORY:
        keep_small()
    with file_errors(folder), _waiting(folder) as waiting:
        workspace = Workspace(waiting, options.memory)
        sums = options.sums() if options.sums else None
        with (
            TraceWriter(folder) as writer,
            _written(writer, sums) as append,
            Behind(append) as write,
        ):
            recording = open_report(path, workspace, progress, options.nsys, options.captures)
            reports = _digested(recording.tables["reports"], options.digest)
            for name, table in {**recording.tables, "reports": reports}.items():
                write(name, table.clone)
            for name, batches in recording.passing.items():
                for batch in batches():
                    write(name, batch.clone)
            warnings = attribute_recording(recording, options.rules, workspace, write, progress)
            if sums is not None:
                write("device_sums", sums.table)
    with file_errors(folder):
        seen = options.look(path, folder) if options.look else None
    return ReportMade(warnings, dict(recording.labels), seen)


@contextmanager
def _written(
    writer: TraceWriter, sums: _Adding | None
) -> Iterator[Callable[[str, pl.DataFrame], None]]:
    """Yield what writes rows, and adds ops up meanwhile."""
    with ThreadPoolExecutor(1, "add") as adder:

        def append(table: str, rows: pl.DataFrame) -> None:
            if sums is None or table != "ops":
                writer.append(table, rows)
                return
            adding = adder.submit(sums.add, rows)
            writer.append(table, rows)
            adding.result()

        yield append


@contextmanager
def _waiting(folder: Path) -> Iterator[Path]:
    """Yield a new folder in `folder`, which is created, for as long as it is needed."""
    waiting = folder / _WAITING
    # Nothing around it: that would bring a folder back which is dropped, and without its mark.
    folder.mkdir(exist_ok=True)
    waiting.mkdir()
    try:
        yield waiting
    finally:
        shutil.rmtree(waiting)


def _digested(reports: pl.DataFrame, digest: str) -> pl.DataFrame:
    import polars as pl  # noqa: PLC0415

    return reports.with_columns(digest=pl.lit(digest))
