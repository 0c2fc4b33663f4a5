"""Progress bars for work that takes a while."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit import present
from tracekit.support.progress import Progress as Report
from tracekit.support.progress import ReportProgress

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@contextmanager
def progress_bar(title: str | Path) -> Iterator[Report | None]:
    """Show the progress of work on stderr, if it is a terminal.

    Parameters
    ----------
    title
        Name of the file or thing that is worked on.
    """
    if not sys.stderr.isatty():
        yield None
        return
    with ExitStack() as stack:
        yield _Bars(stack, Path(title).name).overall


@contextmanager
def progress_bars(title: str) -> Iterator[tuple[Report | None, ReportProgress | None]]:
    """Show progress of work on several files: an overall line, and a line per file being read."""
    if not sys.stderr.isatty():
        yield None, None
        return
    with ExitStack() as stack:
        bars = _Bars(stack, title)
        yield bars.overall, bars.file


class _Bars:
    """Progress bars that appear with the first report of progress; finished work shows none."""

    def __init__(self, stack: ExitStack, title: str) -> None:
        self._stack = stack
        self._title = title
        self._bars: Progress | None = None
        self._tasks: dict[str | Path, TaskID] = {}

    def overall(self, step: str, done: int, total: int) -> None:
        """Show the progress of all work."""
        self._show(self._title, self._title, step, done, total)

    def file(self, file: Path, step: str, done: int, total: int) -> None:
        """Show the progress of one file; a finished file's line disappears."""
        if step:
            self._show(file, file.name, step, done, total)
        elif file in self._tasks and self._bars is not None:
            self._bars.remove_task(self._tasks.pop(file))

    def _show(self, key: str | Path, title: str, step: str, done: int, total: int) -> None:
        bars = self._bars = self._bars or self._stack.enter_context(_bars())
        if key not in self._tasks:
            self._tasks[key] = bars.add_task("", total=None, title=present.printable(title))
        bars.update(self._tasks[key], description=step, completed=done, total=total or None)


def _bars() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.fields[title]}", markup=False),
        BarColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
