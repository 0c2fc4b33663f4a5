"""A progress bar for work that takes a while."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

Report = Callable[[str, int, int], None]
"""Told the name of a step, how much of it is done, and how much there is to do."""


@contextmanager
def progress_bar(title: str | Path) -> Iterator[Report | None]:
    """Show the progress of some work on stderr, where someone looks at it.

    Parameters
    ----------
    title
        What is worked on.
    """
    if not sys.stderr.isatty():
        yield None
        return
    with ExitStack() as stack:
        bars: list[Progress] = []

        # The bar appears with the first report: work that turns out to be done shows none.
        def report(step: str, done: int, total: int) -> None:
            if not bars:
                bars.append(stack.enter_context(_bar(Path(title).name)))
            task = bars[0].task_ids[0]
            bars[0].update(task, description=step, completed=done, total=total or None)

        yield report


def _bar(title: str) -> "Progress":
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from tracekit.present import printable

    bar = Progress(
        TextColumn(escape(printable(title))),
        BarColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task("", total=None)
    return bar
