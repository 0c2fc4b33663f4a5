"""`tracekit latency`: how long operations take by the size of their messages."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli._command import command
from tracekit.cli._options import (
    LATEST,
    BytesOption,
    NcclLogOption,
    RunArgument,
    StoreOption,
    complete_run,
    open_run,
    parse_sizes,
)

if TYPE_CHECKING:
    from tracekit.model import Answer


class Buckets(StrEnum):
    """How sizes are put together."""

    POWER2 = "power2"
    EXACT = "exact"
    CLASS = "class"


class Measure(StrEnum):
    """What the statistics are of."""

    OSU_MEAN = "osu_mean"
    SPAN = "span"
    ACTIVE = "active"


class Library(StrEnum):
    """Whose operations."""

    MPI = "mpi"
    NCCL = "nccl"


class What(StrEnum):
    """What is listed."""

    LATENCY = "latency"
    HISTOGRAM = "histogram"
    POINTER_QUERIES = "pointer-queries"
    STAGING = "staging"


@command(
    "tracekit latency --measure span",
    "tracekit latency after --against before --figure latency.html",
    figures={"figure": "Draw latency, or messages, by size"},
)
def latency(
    run: RunArgument = LATEST,
    *,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="RUN",
            help="List how much faster RUN is than this run, size by size.",
            autocompletion=complete_run,
        ),
    ] = None,
    what: Annotated[
        What,
        typer.Option(
            "--what",
            help="Latency by size; numbers of messages by size; time that MPI spends asking where "
            "memory lies; collectives that went through host memory.",
        ),
    ] = What.LATENCY,
    buckets: Annotated[Buckets, typer.Option("--buckets", help="How sizes are put together.")] = (
        Buckets.POWER2
    ),
    measure: Annotated[Measure, typer.Option("--measure", help="What is measured.")] = (
        Measure.OSU_MEAN
    ),
    library: Annotated[
        Library | None, typer.Option("--library", help="Operations of this library alone.")
    ] = None,
    nccl_log: NcclLogOption = None,
    sizes: BytesOption = None,
    store: StoreOption = None,
) -> "Answer":
    """List the latency of collectives and messages by size, of MPI and NCCL.

    docs/studies.md defines the measures.
    """
    opened = open_run(run, store)
    return opened.latency.answer(
        None if against is None else open_run(against, store),
        what=what.value,
        buckets=buckets.value,
        measure=measure.value,
        library=None if library is None else library.value,
        nccl_log=nccl_log or (),
        sizes=parse_sizes(sizes or []),
    )
