"""`tracekit info`: what a trace holds."""

from typing import Annotated

import typer

from tracekit.cli._options import (
    LATEST,
    RunArgument,
    StoreOption,
    listing,
    open_run,
)
from tracekit.cli._output import Listing


@listing
def info(
    run: RunArgument = LATEST,
    *,
    stages: Annotated[
        bool,
        typer.Option(
            "--stages",
            help="Say instead how stages were told, and where sources of stages disagree.",
        ),
    ] = False,
    clocks: Annotated[
        bool,
        typer.Option("--clocks", help="Say instead how it is known whose times can be compared."),
    ] = False,
    store: StoreOption = None,
) -> Listing:
    """Say what a run is, what each command can say of it, and how to record what is missing.

    A command can say `none` of what was recorded and did not run. What each recorder records is in
    docs/info.md, and what speaks for clocks in docs/clocks.md.
    """
    opened = open_run(run, store)
    if clocks:
        rows, title = opened.clocks(), f"{opened.name} · clocks of its reports"
        return Listing("info clocks", opened.name, rows, {}, title, as_records=True)
    meta = {**opened.info_meta(), **opened.verdict_meta()}
    if opened.warnings:
        meta["warnings"] = list(opened.warnings)
    if stages:
        title = f"{opened.name} · what sources of stages say, by GPU time"
        return Listing("info", opened.name, opened.confusion(), meta, title, "no ops")
    return Listing("info", opened.name, opened.info(), meta, f"{opened.name} · what it holds")
