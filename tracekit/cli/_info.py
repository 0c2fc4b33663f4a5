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
            "--stages", help="Say how stages were told, and where sources of stages disagree."
        ),
    ] = False,
    store: StoreOption = None,
) -> Listing:
    """Say what a run is, what each command can say of it, and how to record what is missing.

    A command can say `none` of what was recorded and did not run. What each recorder records is in
    docs/info.md.
    """
    opened = open_run(run, store)
    meta = {**opened.info_meta(), **opened.verdict_meta()}
    if opened.warnings:
        meta["warnings"] = list(opened.warnings)
    if stages:
        title = f"{opened.name} · what sources of stages say, by GPU time"
        return Listing("info", opened.name, opened.confusion(), meta, title, "no ops")
    return Listing("info", opened.name, opened.info(), meta, f"{opened.name} · what it holds")
