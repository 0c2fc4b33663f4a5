"""`tracekit sql`: any question to the canonical tables."""

from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli._command import command
from tracekit.cli._options import RunArgument, StoreOption, open_run

if TYPE_CHECKING:
    from tracekit.model import Answer


@command(
    'tracekit sql @latest "SELECT kind, count(*) AS ops FROM ops GROUP BY kind"',
    rows=False,
)
def sql(
    run: RunArgument,
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="A SELECT over the tables of the run.")
    ],
    store: StoreOption = None,
) -> "Answer":
    """Answer an SQL query (polars' dialect) over a run's tables; nothing can be changed.

    The tables are reports, contents, processes, threads, devices, ops, calls, ranges, iterations,
    host and metrics, and worked out of them transfers and collectives. Times are in ns.
    """
    return open_run(run, store).sql.answer(query)
