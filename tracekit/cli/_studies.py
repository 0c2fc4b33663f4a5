"""`tracekit study`, `scaling` and `overhead`: tables over many runs."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli._options import (
    RunsArgument,
    SkipOption,
    StoreOption,
    WhereOption,
    figure_option,
    listing,
    parse_count,
    parse_labels,
)
from tracekit.cli._output import Listing
from tracekit.errors import MissingDataError, UsageError

if TYPE_CHECKING:
    import polars as pl

    import tracekit


class Mode(StrEnum):
    """What stays the same as GPUs are added: the data set, or its part for each GPU."""

    STRONG = "strong"
    WEAK = "weak"


class Scope(StrEnum):
    """Whose images a batch counts."""

    GPU = "gpu"
    GLOBAL = "global"


class Time(StrEnum):
    """What is compared."""

    STEP = "step"
    EPOCH = "epoch"


class Value(StrEnum):
    """What a scaling figure shows."""

    SPEEDUP = "speedup"
    EFFICIENCY = "efficiency"


_OF_SEVERAL = (
    "run", "baseline_run", "time_low_ns", "time_high_ns", "baseline_low_ns", "baseline_high_ns",
    "low_percent", "high_percent",
)  # fmt: skip
"""Columns of overheads that say something only of pooled runs, or of one."""
_FEW = 4
"""So many runs are called by their names."""

TableOption = Annotated[
    Path | None,
    typer.Option(
        "--table",
        metavar="FILE",
        help="Times that were measured elsewhere, instead of runs: CSV with columns network, "
        "batch, gpus, method, and step_s or epoch_s.",
    ),
]
ScopeOption = Annotated[
    Scope, typer.Option("--batch-scope", help="Whether a batch counts images of each GPU, or all.")
]


def _study(
    runs: list[str] | None,
    where: list[str] | None,
    table: Path | None,
    skip: int,
    scope: Scope,
    store: Path | None,
) -> "tuple[pl.DataFrame, dict[str, Any]]":
    from tracekit._studies import study_with_meta

    return study_with_meta(
        runs or (), where=parse_labels(where or []), table=table, skip=skip,
        batch_scope=scope.value, store=store,
    )  # fmt: skip


@listing
def study(
    runs: RunsArgument = None,
    *,
    where: WhereOption = None,
    table: TableOption = None,
    skip: SkipOption = 0,
    scope: ScopeOption = Scope.GPU,
    figure: Annotated[
        Path | None, figure_option("--figure", "Draw what a step of each run is made of")
    ] = None,
    store: StoreOption = None,
) -> Listing:
    """List runs as a study: configuration, step time and its stages, traffic, images per second.

    A run's network, batch, gpus and method are its labels (`tracekit ingest --label batch=16`).
    """
    import polars.selectors as cs

    from tracekit import present
    from tracekit.analysis import study_stages

    rows, verdicts = _study(runs, where, table, skip, scope, store)
    if figure is not None:
        drawn = present.stage_bars_figure(
            study_stages(rows, apart=bool(runs)),
            title="What a step is made of",
            subtitle=_of_runs(rows),
        )
        present.save_figure(drawn, figure)
    meta = {"runs": rows.height, "skip": skip, "batch_scope": scope.value, **_per(rows), **verdicts}
    shown = rows.drop("devices", cs.ends_with("_total_ns"))
    if not rows["step_ns"].has_nulls():  # the window is that of all steps, and no time per step
        shown = shown.drop("window_ns")
    return Listing("study", None, rows, meta, "study", "no runs", shown=shown)


def _per(study: "pl.DataFrame") -> dict[str, str]:
    """Say what times of steps are means over, where there are any."""
    if not study["step_ns"].count():
        return {}
    return {"per": "step/process" if "host" in study["basis"] else "step/GPU"}


@listing
def scaling(
    runs: RunsArgument = None,
    *,
    where: WhereOption = None,
    table: TableOption = None,
    mode: Annotated[Mode, typer.Option("--mode", help="Strong or weak scaling.")] = Mode.STRONG,
    images: Annotated[
        str | None,
        typer.Option(
            "--images",
            metavar="COUNT",
            help="Images of the data set, such as 256000; weak: of a GPU.",
        ),
    ] = None,
    time: Annotated[
        Time | None, typer.Option("--time", help="Compare times of steps or of epochs.")
    ] = None,
    scope: ScopeOption = Scope.GPU,
    skip: SkipOption = 0,
    figure: Annotated[Path | None, figure_option("--figure", "Draw the scaling curves")] = None,
    value: Annotated[Value, typer.Option("--value", help="What the figure shows.")] = Value.SPEEDUP,
    store: StoreOption = None,
) -> Listing:
    """List speedup, efficiency and throughput by number of GPUs, network, batch and method."""
    from tracekit import present
    from tracekit.analysis import scaling as scale
    from tracekit.analysis import scaling_meta

    found, verdicts = _study(runs, where, table, skip, scope, store)
    options: dict[str, Any] = {
        "mode": mode.value,
        "images": None if images is None else parse_count(images),
        "batch_scope": scope.value,
        "time": None if time is None else time.value,
        "apart": bool(runs),
    }
    rows = scale(found, **options)
    if figure is not None:
        drawn = present.scaling_figure(
            rows, value=value.value, title=f"{mode.capitalize()} scaling", subtitle=_of_runs(found)
        )
        present.save_figure(drawn, figure)
    title = f"{mode} scaling"
    meta = {**scaling_meta(found, **options), **verdicts}
    meta |= _per(found) if meta["time"] == "step" else {}
    shown = _without_empty(
        rows, "run", "time_low_ns", "time_high_ns", "speedup_low", "speedup_high"
    )
    return Listing("scaling", None, rows, meta, title, "no timed runs", shown=shown)


def _without_empty(rows: "pl.DataFrame", *names: str) -> "pl.DataFrame":
    """Leave out those of some columns that say nothing, as the spread of what is not pooled."""
    return rows.drop(name for name in names if rows[name].null_count() == rows.height)


@listing
def overhead(
    runs: RunsArgument = None,
    *,
    where: WhereOption = None,
    table: TableOption = None,
    baseline: Annotated[
        str, typer.Option("--baseline", metavar="METHOD", help="The method to hold others against.")
    ] = "p2p",
    heat: Annotated[
        Path | None, figure_option("--heat-map", "Draw the overheads as a map, network by batch")
    ] = None,
    as_matrix: Annotated[
        bool, typer.Option("--as-matrix", help="Lay it out as a column per batch.")
    ] = False,
    api: Annotated[
        bool, typer.Option("--api", help="List calls of the CUDA API by run and method instead.")
    ] = False,
    profiler: Annotated[
        bool, typer.Option("--profiler", help="List what the profiler itself took instead.")
    ] = False,
    skip: SkipOption = 0,
    figure: Annotated[Path | None, figure_option("--figure", "Draw the overheads")] = None,
    store: StoreOption = None,
) -> Listing:
    """List what a way to communicate costs beside another, at equal network, batch and GPUs."""
    from tracekit import analysis, present

    if api or profiler:
        if any(given is not None for given in (table, figure, heat)):
            raise UsageError(
                "calls and the profiler's time are of runs, and in no figure",
                "leave out --api and --profiler, or --table and figures",
            )
        chosen = _chosen(runs, where, store)
        return _api(chosen) if api else _profiler(chosen)
    found, verdicts = _study(runs, where, table, skip, Scope.GPU, store)
    rows = analysis.overhead(found, baseline=baseline, apart=bool(runs))
    meta = {**analysis.overhead_meta(found, baseline=baseline, apart=bool(runs)), **verdicts}
    if figure is not None:
        title = f"Time over that of {baseline}"
        drawn = present.overhead_figure(rows, title=title, subtitle=_of_runs(found))
        present.save_figure(drawn, figure)
    if heat is not None:
        drawn = present.heat_figure(
            _cells(rows), "configuration", "batch", "overhead_percent", "%",
            title=f"Time over that of {baseline}", subtitle=_of_runs(found),
        )  # fmt: skip
        present.save_figure(drawn, heat)
    laid_out = analysis.overhead_matrix(rows) if as_matrix else rows
    if not as_matrix and set(rows["time"].drop_nulls()) == {"step"}:
        meta |= _per(found)
    shown = laid_out if as_matrix else _without_empty(rows, *_OF_SEVERAL)
    title = f"overhead against {baseline}"
    return Listing("overhead", None, laid_out, meta, title, "nothing to compare", shown=shown)


def _chosen(
    runs: list[str] | None, where: list[str] | None, store: Path | None
) -> "list[tracekit.Run]":
    import tracekit

    return tracekit.select_runs(runs or (), where=parse_labels(where or []), store=store)


def _api(chosen: "list[tracekit.Run]") -> Listing:
    from tracekit._studies import verdicts_of
    from tracekit.analysis import api_by_run, api_calls

    tables: dict[str, pl.DataFrame | None] = {}
    for run in chosen:
        try:
            tables[run.name] = api_calls(run.trace)
        except MissingDataError:
            tables[run.name] = None
    methods = {run.name: run.labels.get("method") for run in chosen}
    rows, meta = api_by_run(tables, methods), verdicts_of(chosen)
    return Listing("overhead", None, rows, meta, "CUDA API calls by run")


def _profiler(chosen: "list[tracekit.Run]") -> Listing:
    import polars as pl

    from tracekit._studies import verdicts_of
    from tracekit.analysis import profiler_overhead

    rows = pl.concat(
        profiler_overhead(run.trace).select(pl.lit(run.name).alias("run"), pl.all())
        for run in chosen
    )
    title, empty = "time of the profiler", "none was recorded"
    return Listing("overhead", None, rows, verdicts_of(chosen), title, empty)


def _cells(overheads: "pl.DataFrame") -> "pl.DataFrame":
    """Return overheads with what a row of the map is of: network, method and number of GPUs."""
    import polars as pl

    known = overheads.drop_nulls("overhead_percent")
    alike = known.select("network", "batch", "gpus", "method", "scaling").is_duplicated()
    runs = ("run", "baseline_run") if alike.any() else ()
    parts = ("network", "method", pl.format("{} GPUs", "gpus"), "scaling", *runs)
    text = pl.concat_str(parts, separator=", ", ignore_nulls=True)
    return known.with_columns(configuration=text)


def _of_runs(study: "pl.DataFrame") -> str:
    """Say which runs a figure is of, by name where they are few, and what was measured."""
    names = study["run"].drop_nulls().to_list()
    told = ", ".join(names) if names and len(names) <= _FEW else f"{study.height:,} runs"
    known = set(study["basis"].drop_nulls())
    measured = {"host": ", measured on the host", "gpu": ", measured on GPUs"}
    return told + "".join(measured[basis] for basis in sorted(known))
