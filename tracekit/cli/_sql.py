"""`tracekit sql`: any question to the canonical tables."""

from typing import TYPE_CHECKING, Annotated

import typer

from tracekit import model
from tracekit.cli._command import command
from tracekit.cli._guard import Command
from tracekit.cli._options import RunArgument, open_run
from tracekit.support.quantities import parse_size
from tracekit.support.questions import Folder, Option
from tracekit.support.schemas import Json

if TYPE_CHECKING:
    from tracekit.model import Answer
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracekit.cli._guard import complain

_JSON = Json(
    "sql",
    meta={"query": "text: The query."},
    row_rules={
        "description": "One row, keyed by the columns of the query.",
        "additionalProperties": True,
    },
)


class _NamingTables(Command):
    """A command whose help lists the tables, which are imported only then."""

    def _help_text(self) -> str:
        stored, made = ", ".join(model.TABLES), ", ".join(model.DERIVED)
        return f"{self._text}\n\nThe tables are {stored}, and, computed from these, {made}."

    def _tell(self, text: str) -> None:
        self._text = text

    help = property(_help_text, _tell)


@command(
    'tracekit sql @latest "SELECT kind, count(*) AS ops FROM ops GROUP BY kind"',
    rows=False,
    writes=[_JSON],
    cls=_NamingTables,
    short_help="Answer an SQL query (polars' dialect) over a run's tables; nothing can be changed.",
)
def sql(
    run: RunArgument,
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="A SELECT over the tables of the run.")
    ],
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0, help="Give up after that time.", show_default="never"
        ),
    ] = None,
    memory: Annotated[str, Option("Give up when more memory is taken.", "SIZE")] = "4GiB",
    store: Folder = None,
) -> "Answer":
    """Answer an SQL query (polars' dialect) over a run's tables; nothing can be changed.

    docs/tables.md describes the tables. Times are in ns.
    """
    most, found = parse_size(memory), open_run(run, store)
    with limited(timeout, most):
        return found.sql.answer(query)


# -- limits on what a question may take: of time, and of memory --------------------------------


_EVERY_SECONDS = 0.02
_HELD = Path("/proc/self/statm")
_EXIT_CODE = 2


@contextmanager
def limited(seconds: float | None, memory: int) -> Iterator[None]:
    """End this process with a message if the work in it exceeds a limit of time or memory.

    A query engine cannot be interrupted, so only ending the process stops it. If the system does
    not report the memory in use, only time is limited.
    """
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(over, seconds, memory), daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


def _watch(over: threading.Event, seconds: float | None, memory: int) -> None:
    end = None if seconds is None else time.monotonic() + seconds
    while not over.wait(_EVERY_SECONDS):
        if end is not None and time.monotonic() > end:
            _give_up(f"the query took longer than {seconds:g} s", "--timeout")
        if _held_bytes() > memory:
            _give_up(f"the query took more memory than {memory:,} bytes", "--memory")


def _give_up(reason: str, option: str) -> None:
    complain(f"{reason}: select less, or allow more with {option}")
    sys.stderr.flush()
    os._exit(_EXIT_CODE)


def _held_bytes() -> int:
    if not _HELD.exists():
        return 0
    pages = int(_HELD.read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
