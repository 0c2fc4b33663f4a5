"""`tracekit latency`: how long operations take by the size of their messages."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli._options import (
    LATEST,
    BytesOption,
    NcclLogOption,
    RunArgument,
    StoreOption,
    complete_run,
    figure_option,
    listing,
    open_run,
    parse_sizes,
)
from tracekit.cli._output import Listing
from tracekit.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

    import tracekit


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


@listing
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
    figure: Annotated[
        Path | None, figure_option("--figure", "Draw latency, or messages, by size")
    ] = None,
    store: StoreOption = None,
) -> Listing:
    """List the latency of collectives and messages by size, of MPI and NCCL.

    docs/studies.md defines the measures.
    """
    from tracekit import analysis
    from tracekit._studies import verdicts_of

    opened = open_run(run, store)
    calls: dict[str, Any] = {
        "library": None if library is None else library.value,
        "log": None if not nccl_log else _log(nccl_log),
        "sizes": parse_sizes(sizes or []),
    }
    if what is What.LATENCY:
        return _latency(opened, against, store, calls, buckets, measure, figure)
    if against is not None:
        raise UsageError("--against compares latencies", "leave out --what, or --against")
    title, verdicts = f"{opened.name} · {what}", verdicts_of([opened])
    if what is What.HISTOGRAM:
        rows = analysis.message_histogram(opened.trace, **calls)
        _draw_histogram(rows, opened.name, figure)
        return Listing("latency", opened.name, rows, verdicts, title, "no messages were recorded")
    if figure is not None:
        raise UsageError(f"no figure shows {what}", "leave out --figure, or --what")
    if what is What.STAGING:
        rows = analysis.staging(opened.trace)
        empty = "no MPI collectives were recorded"
        return Listing("latency", opened.name, rows, verdicts, title, empty)
    rows = analysis.pointer_queries(opened.trace)
    meta = {**analysis.pointer_queries_meta(opened.trace), **verdicts}
    return Listing("latency", opened.name, rows, meta, title, "no MPI calls were recorded")


def _latency(
    run: "tracekit.Run",
    against: str | None,
    store: Path | None,
    calls: dict[str, Any],
    buckets: Buckets,
    measure: Measure,
    figure: Path | None,
) -> Listing:
    from tracekit import analysis, present
    from tracekit._studies import verdicts_of

    shape: dict[str, Any] = {"buckets": buckets.value, "measure": measure.value}
    chosen, tables = [run], {run.name: analysis.latency(run.trace, **calls, **shape)}
    rows, title = tables[run.name], f"{run.name} · latency by size"
    if against is not None:
        base = open_run(against, store)
        if base.id == run.id:
            raise UsageError(f"{run.name} and {against} are the same run", "give two runs")
        chosen.append(base)
        tables = {base.name: analysis.latency(base.trace, **calls, **shape), **tables}
        rows = analysis.latency_speedup(tables[base.name], tables[run.name])
        title = f"{run.name} against {base.name} · latency by size"
    if figure is not None:
        drawn = present.latency_figure(
            _by_run(tables), title="Latency by size of message", subtitle=title
        )
        present.save_figure(drawn, figure)
    of_calls = {key: value for key, value in calls.items() if key != "library"}
    meta = analysis.latency_meta(run.trace, **of_calls)
    meta |= {"measure": measure.value, **verdicts_of(chosen)}
    return Listing("latency", run.name, rows, meta, title, "no operations were recorded")


def _by_run(tables: "dict[str, pl.DataFrame]") -> "pl.DataFrame":
    import polars as pl

    return pl.concat(
        table.select(pl.lit(name).alias("run"), pl.all()) for name, table in tables.items()
    )


def _draw_histogram(rows: "pl.DataFrame", run: str, figure: Path | None) -> None:
    from tracekit import present

    if figure is not None:
        drawn = present.histogram_figure(rows, title="Messages by size", subtitle=run)
        present.save_figure(drawn, figure)


def _log(paths: list[Path]) -> Any:
    from tracekit.machine import read_nccl_log

    return read_nccl_log(*paths)
