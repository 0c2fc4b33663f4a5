"""`tracekit view`: whole runs to scroll through in a browser."""

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli._command import action
from tracekit.cli._guard import complain
from tracekit.cli._options import LATEST, ManyRunsArgument, open_run
from tracekit.support.questions import Folder


@action("tracekit view", "tracekit view mnist --port 8080 --no-open")
def view(
    runs: ManyRunsArgument = None,
    *,
    port: Annotated[
        int,
        typer.Option(
            "--port", metavar="N", min=0, max=65535, help="Port of 127.0.0.1. Default: a free one."
        ),
    ] = 0,
    should_open: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser.")] = True,
    idle: Annotated[
        int,
        typer.Option(
            "--idle", metavar="MINUTES", min=1, help="End after so long without a request."
        ),
    ] = 60,
    store: Folder = None,
) -> None:
    """Scroll through whole runs in a browser, and select a time to break it down.

    The page is served on 127.0.0.1, to whoever has the printed address alone, until Ctrl-C;
    docs/view.md explains it. Without RUN it is the run ingested last.
    """
    from tracekit.view import View

    opened = [open_run(each, store) for each in runs or [LATEST]]
    folder = None if store is None else Path(store)
    with View(opened, port=port, opens=should_open, idle_minutes=idle, store=folder) as shown:
        complain(f"serving {shown.address} until Ctrl-C")
        shown.wait()
    complain(f"nothing was asked for {idle} minutes")
