"""`tracekit sql`: any question to the canonical tables."""

from typing import TYPE_CHECKING, Annotated

import typer

from tracekit import model
from tracekit.cli._command import command
from tracekit.cli._limits import limited
from tracekit.cli._options import RunArgument, StoreOption, open_run
from tracekit.cli._words import Command
from tracekit.support.quantities import parse_size
from tracekit.support.schemas import Json

if TYPE_CHECKING:
    from tracekit.model import Answer


_JSON = Json(
    "sql",
    meta={"query": "text: The query."},
    row_rules={
        "description": "One row, keyed by the columns of the query.",
        "additionalProperties": True,
    },
)


class _NamingTables(Command):
    """A command whose help names the tables, which takes loading them."""

    def _told(self) -> str:
        stored, made = ", ".join(model.TABLES), ", ".join(model.DERIVED)
        return f"{self._text}\n\nThe tables are {stored}, and worked out of them {made}."

    def _tell(self, text: str) -> None:
        self._text = text

    help = property(_told, _tell)


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
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Give up when more memory is taken.")
    ] = "4GiB",
    store: StoreOption = None,
) -> "Answer":
    """Answer an SQL query (polars' dialect) over a run's tables; nothing can be changed.

    docs/tables.md says what they hold. Times are in ns.
    """
    most, found = parse_size(memory), open_run(run, store)
    with limited(timeout, most):
        return found.sql.answer(query)
