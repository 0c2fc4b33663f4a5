"""`tracekit export`: a run for other programs."""

from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from tracekit.cli._command import action
from tracekit.cli._guard import complain
from tracekit.cli._options import (
    LATEST,
    MemoryOption,
    RunArgument,
    open_run,
)
from tracekit.cli._output import Format, Target
from tracekit.support.memory import allowing
from tracekit.support.questions import Folder, Option, Steps

_ENDINGS = {"perfetto": ".pftrace", "chrome": ".json"}


@action(
    "tracekit export mnist --iterations 10:12", "tracekit export mnist --to chrome -o mnist.json"
)
def export(
    run: RunArgument = LATEST,
    *,
    to: Annotated[
        Literal["perfetto", "chrome"], Option("Perfetto's protobuf, or Chrome's JSON.")
    ] = "perfetto",
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

    There are tracks of each GPU's steps, stages, idle time by cause, streams and sampled counters,
    and of each thread's ranges and launches, with arrows from a launch to its op.
    """
    with allowing(memory):
        opened = open_run(run, store)
        path = output or Path(f"{opened.name}{_ENDINGS[to]}")
        Target.of(Format.TABLE, path)
        opened.export(path, to=to, iterations=iterations)
    complain(f"wrote {path}")
