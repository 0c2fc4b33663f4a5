"""Commands that show whole runs: `report` in a page, `view` in a browser, `export` in Perfetto."""

from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from tracekit import runs as library
from tracekit.cli._command import action
from tracekit.cli._guard import complain
from tracekit.cli._options import (
    LATEST,
    ManyRunsArgument,
    MemoryOption,
    RunArgument,
    open_run,
)
from tracekit.cli._output import Format, Target
from tracekit.errors import UsageError
from tracekit.support.memory import allowing, keep_small
from tracekit.support.questions import Folder, Option, Steps


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

    The page is one file that loads nothing and sends nothing; docs/report.md explains it. With
    several runs, the page compares them. Without RUN it shows the run ingested last.
    """
    target = Target.of(Format.TABLE, output)
    with allowing(memory):
        opened = [open_run(each, store) for each in runs or [LATEST]]
        base = None if against is None else open_run(against, store)
        target.write_text(library.report_of(opened, against=base))
    complain(f"wrote {output}")
    if should_open:
        typer.launch(output.resolve().as_uri())


_ENDINGS = {"perfetto": ".pftrace", "chrome": ".json"}
_OF_TABLES = (".csv", ".parquet", ".md", ".html")


@action("tracekit export mnist --iterations 10:12", "tracekit export mnist -o mnist.json")
def export(
    run: RunArgument = LATEST,
    *,
    to: Annotated[
        Literal["perfetto", "chrome"] | None,
        Option("Perfetto's protobuf, or Chrome's JSON. Default: by --output, else perfetto."),
    ] = None,
    iterations: Annotated[tuple[int, int] | None, get_args(Steps)[1]] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The file to write, gzipped if it ends in .gz. Default: the run's name with "
            ".pftrace or .json.",
        ),
    ] = None,
    memory: MemoryOption = None,
    store: Folder = None,
) -> None:
    """Write a run for Perfetto (ui.perfetto.dev) or chrome://tracing.

    The timeline has tracks for each GPU (steps, stages, idle time by cause, streams, counters) and
    for each thread (ranges, launches). Arrows lead from a launch to its kernel or copy.
    """
    ending = Path((output or Path()).name.removesuffix(".gz")).suffix
    if ending in _OF_TABLES:
        raise UsageError(
            f"export writes timelines, and no {ending} files",
            "for tables: tracekit sql RUN QUERY -o FILE",
        )
    to = to or ("chrome" if ending == _ENDINGS["chrome"] else "perfetto")
    with allowing(memory):
        opened = open_run(run, store)
        path = output or Path(f"{opened.name}{_ENDINGS[to]}")
        Target.of(Format.TABLE, path)
        opened.export(path, to=to, iterations=iterations)
    complain(f"wrote {path}")


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

    The page is served on 127.0.0.1, only to those who have the printed address, until Ctrl-C;
    docs/view.md explains it. Without RUN it shows the run ingested last.
    """
    from tracekit.view import View

    keep_small()
    opened = [open_run(each, store) for each in runs or [LATEST]]
    folder = None if store is None else Path(store)
    with View(opened, port=port, opens=should_open, idle_minutes=idle, store=folder) as shown:
        complain(f"serving {shown.address} until Ctrl-C")
        shown.wait()
    complain(f"no request came for {idle} minutes")
