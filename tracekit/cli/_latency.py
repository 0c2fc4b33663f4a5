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
from tracekit.support.columns import columns, keys
from tracekit.support.schemas import Json

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


_JSON = Json(
    "latency",
    meta={
        "operations?": "integer: Operations.",
        "unmatched?": "integer: Collectives of which one participant is known.",
        "unsized?": "integer: Operations of unknown size.",
        "not_blocking?": "integer: Calls of MPI that do not block, left out.",
        **keys("missing?", "warnings?"),
        "measure?": "text: What the statistics are of.",
        "queries?": "integer: Pointer queries of the run.",
        "inside?": "integer: Those inside MPI calls.",
        **keys("verdicts?", "simulated?"),
    },
    rows={
        "library?": "text: mpi or nccl.",
        "operation?": "text: Collective or message.",
        "size_bytes?": "integer or null: Size, or the power of two below it.",
        "class?": "text or null: small, medium, large or mixed.",
        "count?": "integer: Operations.",
        "participants?": "number or null: How many were seen (median).",
        **columns("min_ns?", "p50_ns?", "mean_ns?"),
        "p95_ns?": "number or null: 95th percentile, ns.",
        **columns("max_ns?"),
        "span_ns?": "number or null: Median span, ns.",
        "skew_ns?": "number or null: Median skew, ns.",
        "active_ns?": "number or null: Median of last end less last start, ns.",
        "algorithm_bandwidth_gb_s?": "number or null: Bytes over time, GB/s.",
        "bus_bandwidth_gb_s?": "number or null: As nccl-tests defines it, GB/s.",
        "base_library?": "text or null: Library of the base run.",
        "new_library?": "text or null: Library of the other.",
        "base_count?": "integer or null: Operations of the base run.",
        "new_count?": "integer or null: Operations of the other.",
        "base_ns?": "number or null: Latency of the base run, ns.",
        "new_ns?": "number or null: Latency of the other, ns.",
        "speedup?": "number or null: Speedup.",
        **columns("reduction_percent?", "calls?"),
        "bytes?": "integer or null: Bytes.",
        **columns("share?"),
        "function?": "text: Function of MPI.",
        "mpi_ns?": "integer or null: Time of MPI calls, ns.",
        "queries?": "integer or null: Pointer queries within them.",
        "query_ns?": "integer or null: Their time, ns.",
        "queries_per_call?": "number or null: Queries over calls.",
        "calls_with_queries?": "integer or null: Calls that made any.",
        "staged?": "integer or null: Calls that went through host memory.",
        "staged_unknown?": "integer or null: Those of which it is not known.",
        "gpu_reduce?": "integer or null: Those in which a kernel reduced.",
        "d2h_bytes?": "integer or null: Bytes copied to host memory.",
        "h2d_bytes?": "integer or null: Bytes copied from it.",
        "reduce_kernels?": "integer or null: Kernels that reduced.",
    },
)


@command(
    "tracekit latency --measure span",
    "tracekit latency after --against before --figure latency.html",
    figures={"figure": "Draw latency, or messages, by size"},
    writes=[_JSON],
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
