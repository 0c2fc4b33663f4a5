"""`tracekit memory`: how much memory training takes."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli._options import (
    StoreOption,
    WhereOption,
    complete_run,
    figure_option,
    listing,
    parse_labels,
    parse_size,
)
from tracekit.cli._output import Listing
from tracekit.errors import UsageError

if TYPE_CHECKING:
    import plotly.graph_objects as go
    import polars as pl


class What(StrEnum):
    """What is listed of memory."""

    USE = "use"
    EXTRA = "extra"
    GROWTH = "growth"
    LARGEST_BATCH = "largest-batch"


_KEYS = ("network", "method", "source")
"""What memory is compared within; samples of nvidia-smi hold what allocations do not."""


@listing
def memory(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN...",
            help="Runs, as names, starts of ids or files; by default those of --where, else the "
            "one ingested last.",
            autocompletion=complete_run,
        ),
    ] = None,
    *,
    where: WhereOption = None,
    what: Annotated[
        What,
        typer.Option(
            "--what",
            help="Use by GPU; the root GPU's extra; growth by batch; the largest batch that fits.",
        ),
    ] = What.USE,
    smi: Annotated[
        Path | None,
        typer.Option(
            "--smi",
            metavar="FILE",
            help="Samples: nvidia-smi --query-gpu=timestamp,index,uuid,memory.used --format=csv.",
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            "--table",
            metavar="FILE",
            help="Measured elsewhere: CSV with network, batch, gpu, pre_bytes, training_bytes.",
        ),
    ] = None,
    root: Annotated[int, typer.Option("--root", min=0, help="The GPU that gathers gradients.")] = 0,
    capacity: Annotated[
        str | None,
        typer.Option("--capacity", metavar="SIZE", help="Memory of a GPU, such as 16GiB."),
    ] = None,
    margin: Annotated[
        float, typer.Option("--margin", help="Part of it that is to stay free, 0 to 1.")
    ] = 0.1,
    figure: Annotated[
        Path | None, figure_option("--figure", "Draw memory by GPU, or by batch with its line")
    ] = None,
    store: StoreOption = None,
) -> Listing:
    """List memory before and in training by GPU, the root's extra, growth, and the largest batch.

    From allocations that were recorded (`nsys profile --cuda-memory-usage=true`), samples of
    nvidia-smi, or both. Without RUN it is those with the labels of --where, else the run that was
    ingested last.
    """
    from tracekit import present

    points, meta = _points(runs, where, smi, table, store)
    if table is None:
        meta["peak_of"] = "each GPU" if what is What.USE else f"GPU {root} in training"
    bytes_of = None if capacity is None else parse_size(capacity)
    rows = _rows(what, points, root, bytes_of, margin)
    if figure is not None:
        present.save_figure(_drawn(what, points, rows, root, bytes_of), figure)
    return Listing("memory", None, rows, meta, f"memory · {what}", "no memory was recorded")


def _drawn(
    what: What, points: "pl.DataFrame", rows: "pl.DataFrame", root: int, capacity: int | None
) -> "go.Figure":
    """Draw what is listed."""
    import polars as pl

    from tracekit import present

    if what is What.LARGEST_BATCH:
        return present.memory_fit_figure(
            points.filter(gpu=root), rows, title="Memory in training by batch",
            subtitle=f"GPU {root}, and the line that gives the largest batch",
            capacity_bytes=capacity,
        )  # fmt: skip
    if what is What.USE:
        subtitle = "most in use before training and in it"
        return present.memory_figure(points, title="Memory by GPU", subtitle=subtitle)
    extra = what is What.EXTRA
    percent = pl.col("extra_percent" if extra else "increase_percent")
    return present.overhead_figure(
        rows.with_columns(percent.alias("overhead_percent")),
        title="Memory of the root beyond that of the others" if extra else "Memory by batch",
        subtitle=f"GPU {root}, in training{'' if extra else ', over that of the smallest batch'}",
        axis="extra memory" if extra else "growth",
    )  # fmt: skip


def _points(
    runs: list[str] | None,
    where: list[str] | None,
    smi: Path | None,
    table: Path | None,
    store: Path | None,
) -> "tuple[pl.DataFrame, dict[str, Any]]":
    import tracekit
    from tracekit._studies import memory_points_with_meta, verdicts_of
    from tracekit.analysis import read_memory_table
    from tracekit.sources import read_smi

    if table is not None:
        if runs or where or smi is not None:
            raise UsageError("memory is of runs or of a table", "give either, not both")
        return read_memory_table(table), {"table": str(table)}
    chosen = tracekit.select_runs(
        runs or (() if where else ("@latest",)), where=parse_labels(where or []), store=store
    )
    points, metas = memory_points_with_meta(chosen, None if smi is None else read_smi(smi))
    told = [f"{name}: {text}" for name, meta in metas.items()
            for text in (*meta["missing"], *meta["warnings"])]  # fmt: skip
    return points, {"runs": list(metas), **verdicts_of(chosen), "warnings": told}


def _rows(
    what: What, points: "pl.DataFrame", root: int, capacity: int | None, margin: float
) -> "pl.DataFrame":
    from tracekit import analysis

    by = [name for name in _KEYS if name in points.columns]
    match what:
        case What.USE:
            return points.drop("gpu", strict=False) if "device" in points.columns else points
        case What.EXTRA:
            return analysis.memory_extra(points, root=root, by=[*by, "batch"])
        case What.GROWTH:
            return analysis.memory_growth(points, root=root, by=by)
        case What.LARGEST_BATCH:
            if capacity is None:
                raise UsageError("the largest batch depends on the GPU", "give --capacity 16GiB")
            of_root = points.filter(gpu=root)
            return analysis.largest_batch(of_root, capacity, margin, by=by)
