"""`tracekit report`: one page about a run, a comparison or a study."""

from pathlib import Path
from typing import Annotated

import typer

from tracekit import runs as library
from tracekit.cli._command import action
from tracekit.cli._guard import complain
from tracekit.cli._options import (
    LATEST,
    ManyRunsArgument,
    MemoryOption,
    open_run,
)
from tracekit.cli._output import Format, Target
from tracekit.support.memory import allowing
from tracekit.support.questions import Folder, Option


@action(
    "tracekit report",
    "tracekit report mnist -o mnist.html --open",
    "tracekit report after --against before -o change.html",
)
def report(
    runs: ManyRunsArgument = None,
    *,
    against: Annotated[
        str | None,
        Option("Compare the run with this one.", "BASE", unit="run"),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write.")
    ] = Path("report.html"),
    should_open: Annotated[bool, Option("Open the page in a browser.", flag="--open")] = False,
    memory: MemoryOption = None,
    store: Folder = None,
) -> None:
    """Write one page about a run: where a step's time goes, in pictures and tables.

    The page is one file that loads nothing and sends nothing; docs/report.md explains it. Of
    several runs it is about the study that they make. Without RUN it is the run ingested last.
    """
    target = Target.of(Format.TABLE, output)
    with allowing(memory):
        opened = [open_run(each, store) for each in runs or [LATEST]]
        base = None if against is None else open_run(against, store)
        target.write_text(library.report_of(opened, against=base))
    complain(f"wrote {output}")
    if should_open:
        typer.launch(output.resolve().as_uri())
