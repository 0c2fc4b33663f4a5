"""`tracekit info`: what a trace holds."""

from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli._command import command
from tracekit.cli._options import (
    LATEST,
    RunArgument,
    StoreOption,
    open_run,
)

if TYPE_CHECKING:
    from tracekit.model import Answer


@command("tracekit info", "tracekit info trace.sqlite --format json")
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
) -> "Answer":
    """Say what a run is, what each command can say of it, and how to record what is missing.

    A command can say `none` of what was recorded and did not run. What each recorder records is in
    docs/info.md, and what speaks for clocks in docs/clocks.md.
    """
    opened = open_run(run, store)
    if clocks:
        return opened.clocks.answer()
    return opened.confusion.answer() if stages else opened.info.answer()
