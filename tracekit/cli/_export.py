"""`tracekit export`: a run for other programs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli._command import app, examples
from tracekit.cli._guard import complain
from tracekit.cli._options import (
    LATEST,
    MemoryOption,
    RunArgument,
    StepsOption,
    StoreOption,
    open_run,
    steps_of,
)
from tracekit.cli._output import Format, Target
from tracekit.cli._words import Command
from tracekit.support.memory import allowing


class To(StrEnum):
    """Format of the exported timeline."""

    PERFETTO = "perfetto"
    CHROME = "chrome"


_ENDINGS = {To.PERFETTO: ".pftrace", To.CHROME: ".json"}


@app.command(
    cls=Command,
    epilog=examples(
        "tracekit export mnist --iterations 10:12",
        "tracekit export mnist --to chrome -o mnist.json",
    ),
)
def export(
    run: RunArgument = LATEST,
    *,
    to: Annotated[
        To, typer.Option("--to", help="Perfetto's protobuf, or Chrome's JSON.")
    ] = To.PERFETTO,
    iterations: StepsOption = None,
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
    store: StoreOption = None,
) -> None:
    """Write a run for Perfetto (ui.perfetto.dev) or chrome://tracing.

    There are tracks of each GPU's steps, stages, idle time by cause, streams and sampled counters,
    and of each thread's ranges and launches, with arrows from a launch to its op.
    """
    chosen = steps_of(iterations)
    with allowing(memory):
        opened = open_run(run, store)
        path = output or Path(f"{opened.name}{_ENDINGS[to]}")
        Target.of(Format.TABLE, path)
        opened.export(path, to=to.value, iterations=chosen)
    complain(f"wrote {path}")
