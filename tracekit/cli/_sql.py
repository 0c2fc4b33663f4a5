"""`tracekit sql`: any question to the canonical tables."""

from typing import Annotated

import typer

from tracekit.cli._options import RunArgument, StoreOption, listing, open_run
from tracekit.cli._output import Listing


@listing
def sql(
    run: RunArgument,
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="A SELECT over the tables of the run.")
    ],
    store: StoreOption = None,
) -> Listing:
    """Answer an SQL query (polars' dialect) over a run's tables; nothing can be changed.

    The tables are reports, contents, processes, threads, devices, ops, calls, ranges, iterations,
    host and metrics, and worked out of them transfers and collectives. Times are in ns.
    """
    opened = open_run(run, store)
    return Listing("sql", opened.name, opened.sql(query), {"query": query})
