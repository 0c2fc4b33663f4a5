"""Declaration of the question `memory` to several runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from tracekit import model
from tracekit.analysis import studies
from tracekit.analysis.studies._runs import Runs
from tracekit.errors import UsageError
from tracekit.support.columns import columns, keys
from tracekit.support.files import StrPath
from tracekit.support.questions import ChosenRuns, Option, question
from tracekit.support.schemas import NO_RUN, Json

if TYPE_CHECKING:
    import polars as pl

    from tracekit.model import Answer

_FIGURES = {"use": "use", "table": "extra", "extra": "extra", "growth": "growth"}

_MEMORY = Json(
    "memory",
    run=NO_RUN,
    meta={
        "table?": "text: File of measurements from elsewhere.",
        "runs?": "texts: Names of the runs.",
        **keys("warnings?", "verdicts?"),
        "peak_of?": "text: Of what GPU memory in use is the greatest at once, and no sum, such as "
        "each GPU; absent where it was measured elsewhere.",
        **keys("simulated?"),
    },
    rows={
        **columns("run?", "network?", "method?", "batch?"),
        "gpu?": "integer: Number of the GPU.",
        "device?": "integer or null: Index of the GPU in the run.",
        "name?": "text or null: Name of a kernel, function or GPU.",
        "source?": "text: allocator or nvidia_smi.",
        "pre_bytes?": "integer or null: Most in use before training.",
        "training_bytes?": "integer or null: Most in use in training.",
        "peak_bytes?": "integer or null: Most in use in the whole recording.",
        "extra_percent?": "number or null: By how much more than others_bytes is in use, percent.",
        "memory_bytes?": "integer or null: Size of the GPU's memory.",
        **columns("share?"),
        "note?": "text or null: What the row leaves unknown.",
        **columns("gpus?"),
        "root_bytes?": "number or null: Most in use in training on the root GPU.",
        "others_bytes?": "number or null: Most in use in training, median of the other GPUs.",
        "extra_bytes?": "number or null: root_bytes - others_bytes.",
        "smallest_batch?": "integer or null: Batch that increase_percent is relative to.",
        "increase_percent?": "number or null: Growth since the smallest batch, percent.",
        "points?": "integer: Number of points that the line is fitted to.",
        "slope_bytes?": "number or null: Slope of the fitted line, bytes per sample of a batch.",
        "intercept_bytes?": "number or null: Value of the fitted line at batch 0.",
        "usable_bytes?": "integer: Capacity less the margin.",
        "largest_batch?": "integer or null: The largest batch that fits.",
        "predicted_bytes?": "number or null: Value of the fitted line at the largest batch.",
        "low_bytes?": "number or null: Lower end of the prediction interval.",
        "high_bytes?": "number or null: Upper end of the prediction interval.",
        "extrapolated?": "flag or null: Whether largest_batch lies outside of the measured ones.",
    },
)


@question(
    "tracekit memory --smi smi.csv",
    "tracekit memory --where network=resnet --what largest-batch --capacity 16GiB",
    figures={"figure": "Draw memory by GPU, or by batch with its line"},
    writes=_MEMORY,
    is_of_latest=True,
)
def memory(
    runs: Runs,
    what: Annotated[
        Literal["use", "table", "extra", "growth", "largest-batch"],
        Option(
            "Memory in use by GPU; a table by batch; the root GPU's extra memory; growth by batch; "
            "the largest batch that fits."
        ),
    ] = "use",
    *,
    smi: Annotated[
        StrPath | None,
        Option(
            "Samples: nvidia-smi --query-gpu=timestamp,index,uuid,memory.used --format=csv.",
            "FILE",
            typed=Path | None,
        ),
    ] = None,
    table: Annotated[
        StrPath | None,
        Option(
            "Measured elsewhere: CSV with network, batch, gpu, pre_bytes, training_bytes.",
            "FILE",
            typed=Path | None,
        ),
    ] = None,
    root: Annotated[int, Option("The GPU that gathers gradients.", least=0)] = 0,
    capacity: Annotated[
        int | None, Option("Memory of a GPU, such as 16GiB.", "SIZE", unit="bytes")
    ] = None,
    margin: Annotated[float, Option("Part of the capacity to keep free, 0 to 1.")] = 0.1,
    **_: Unpack[ChosenRuns],
) -> "Answer":
    """List memory in use by GPU before and in training, its growth, and the largest batch.

    From recorded allocations (`nsys profile --cuda-memory-usage=true`), samples of nvidia-smi, or
    both. Without RUN: the runs with the labels of --where, else the run that was ingested last.
    """
    from tracekit.analysis.studies._memories import memory_rows

    points, meta = _points(runs, smi, table)
    if "peak_of" in meta and what != "use":
        meta["peak_of"] = f"GPU {root} in training"
    return model.Answer(
        rows=memory_rows(what, points, root, capacity, margin),
        meta=meta,
        title=f"memory · {what}",
        tables={"points": points},
        empty="no memory was recorded",
        command="memory",
        figures={"figure": f"memory {_FIGURES.get(what, 'fit')}"},
        source={"root": root, "capacity": capacity},
    )


def _points(
    runs: Runs, smi: StrPath | None, table: StrPath | None
) -> "tuple[pl.DataFrame, dict[str, Any]]":
    """Return the memory of GPUs, a row each, and where the numbers come from."""
    from tracekit.analysis.studies._memories import memory_of

    if table is not None:
        if runs.is_chosen or smi is not None:
            raise UsageError("memory is of runs or of a table", "give either, not both")
        return studies.read_memory_table(Path(table)), {"table": str(table)}
    points, metas = memory_of(runs, None if smi is None else runs.read_smi(smi))
    told = [f"{name}: {text}" for name, meta in metas.items()
            for text in (*meta["missing"], *meta["warnings"])]  # fmt: skip
    said = {"runs": list(metas), **runs.facts(), "warnings": told, "peak_of": "each GPU"}
    return points, said
