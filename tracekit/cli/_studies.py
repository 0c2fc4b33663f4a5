"""`tracekit study`, `scaling` and `overhead`: tables over many runs."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli._command import command
from tracekit.cli._options import (
    RunsArgument,
    SkipOption,
    StoreOption,
    WhereOption,
    parse_count,
    parse_labels,
)

if TYPE_CHECKING:
    from tracekit.model import Answer


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
    TIME = "time"
    IMAGES = "images"
    STAGES = "stages"


class Listed(StrEnum):
    """What is listed of runs."""

    RUNS = "runs"
    EXCHANGE = "exchange"


class Along(StrEnum):
    """What grows until one method overtakes another."""

    BATCH = "batch"
    PARAMETERS = "parameters"


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


@command(
    "tracekit study --where network=lenet --figure steps.html",
    "tracekit study --where network=lenet --images 256K --figure epochs.html",
    "tracekit study --where network=alexnet --what exchange --parameters 60M",
    figures={"figure": "Draw what a step of each run is made of; with --images, an epoch"},
)
def study(
    runs: RunsArgument = None,
    *,
    where: WhereOption = None,
    table: TableOption = None,
    what: Annotated[
        Listed,
        typer.Option("--what", help="Runs, or the bytes that they must exchange and do."),
    ] = Listed.RUNS,
    images: Annotated[
        str | None,
        typer.Option(
            "--images",
            metavar="COUNT",
            help="Images of the data set, such as 256K (weak: of a GPU): gives times of epochs.",
        ),
    ] = None,
    parameters: Annotated[
        str | None,
        typer.Option(
            "--parameters",
            metavar="COUNT",
            help="Parameters of the network, such as 60M, of runs without that label.",
        ),
    ] = None,
    skip: SkipOption = 0,
    scope: ScopeOption = Scope.GPU,
    store: StoreOption = None,
) -> "Answer":
    """List runs as a study: configuration, step time and its stages, traffic, images per second.

    A run's network, batch, gpus and method are its labels (`tracekit ingest --label batch=16`).
    """
    import tracekit

    return tracekit.study.answer(
        runs or (), where=parse_labels(where or []), table=table, what=what.value,
        images=None if images is None else parse_count(images),
        parameters=None if parameters is None else parse_count(parameters),
        skip=skip, batch_scope=scope.value, store=store,
    )  # fmt: skip


@command(
    "tracekit scaling --where network=lenet --images 256000",
    "tracekit scaling --table times.csv --mode weak --figure scaling.html",
    figures={"figure": "Draw the scaling curves"},
)
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
    value: Annotated[Value, typer.Option("--value", help="What the figure shows.")] = Value.SPEEDUP,
    store: StoreOption = None,
) -> "Answer":
    """List speedup, efficiency and throughput by number of GPUs, network, batch and method."""
    import tracekit

    return tracekit.scaling.answer(
        runs or (),
        where=parse_labels(where or []),
        table=table,
        mode=mode.value,
        images=None if images is None else parse_count(images),
        time=None if time is None else time.value,
        value=value.value,
        skip=skip,
        batch_scope=scope.value,
        store=store,
    )


@command(
    "tracekit overhead --where network=lenet --baseline p2p",
    "tracekit overhead --table times.csv --as-matrix",
    "tracekit overhead before after --api",
    "tracekit overhead --where study=dgx1 --crossover batch",
    figures={
        "figure": "Draw the overheads",
        "heat-map": "Draw the overheads as a map, network by batch",
    },
)
def overhead(
    runs: RunsArgument = None,
    *,
    where: WhereOption = None,
    table: TableOption = None,
    baseline: Annotated[
        str, typer.Option("--baseline", metavar="METHOD", help="The method to hold others against.")
    ] = "p2p",
    as_matrix: Annotated[
        bool, typer.Option("--as-matrix", help="Lay it out as a column per batch.")
    ] = False,
    api: Annotated[
        bool, typer.Option("--api", help="List calls of the CUDA API by run and method instead.")
    ] = False,
    profiler: Annotated[
        bool, typer.Option("--profiler", help="List what the profiler itself took instead.")
    ] = False,
    crossover: Annotated[
        Along | None,
        typer.Option(
            "--crossover",
            help="Tell by which batch or size of network methods overtake the baseline instead.",
        ),
    ] = None,
    skip: SkipOption = 0,
    store: StoreOption = None,
) -> "Answer":
    """List what a way to communicate costs beside another, at equal network, batch and GPUs."""
    import tracekit

    return tracekit.overhead.answer(
        runs or (), where=parse_labels(where or []), table=table, baseline=baseline,
        as_matrix=as_matrix, api=api, profiler=profiler,
        crossover=None if crossover is None else crossover.value, skip=skip, store=store,
    )  # fmt: skip
