"""`tracekit memory`: how much memory training takes."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli._command import command
from tracekit.cli._options import LATEST, StoreOption, WhereOption, complete_run, parse_labels
from tracekit.errors import UsageError
from tracekit.support.columns import columns, keys
from tracekit.support.quantities import parse_size
from tracekit.support.schemas import NO_RUN, Json

if TYPE_CHECKING:
    from tracekit.model import Answer


class What(StrEnum):
    """What is listed of memory."""

    USE = "use"
    TABLE = "table"
    EXTRA = "extra"
    GROWTH = "growth"
    LARGEST_BATCH = "largest-batch"


_JSON = Json(
    "memory",
    run=NO_RUN,
    meta={
        "table?": "text: File of what was measured elsewhere.",
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
        "peak_bytes?": "integer or null: Most in use at all.",
        "extra_percent?": "number or null: More than the other GPUs, percent.",
        "memory_bytes?": "integer or null: Size of the GPU's memory.",
        **columns("share?"),
        "note?": "text or null: What the row does not say.",
        **columns("gpus?"),
        "root_bytes?": "number or null: In use on the root GPU.",
        "others_bytes?": "number or null: Median of the other GPUs.",
        "extra_bytes?": "number or null: root_bytes - others_bytes.",
        "smallest_batch?": "integer or null: What growth is relative to.",
        "increase_percent?": "number or null: Growth, percent.",
        "points?": "integer: Points of the line.",
        "slope_bytes?": "number or null: Bytes per sample of the batch.",
        "intercept_bytes?": "number or null: Bytes at batch 0.",
        "usable_bytes?": "integer: Capacity less the margin.",
        "largest_batch?": "integer or null: The largest batch that fits.",
        "predicted_bytes?": "number or null: What the line says of it.",
        "low_bytes?": "number or null: Lower end of the prediction interval.",
        "high_bytes?": "number or null: Upper end of it.",
        "extrapolated?": "flag or null: Whether it lies outside of what was measured.",
    },
)


@command(
    "tracekit memory --smi smi.csv",
    "tracekit memory --where network=resnet --what largest-batch --capacity 16GiB",
    figures={"figure": "Draw memory by GPU, or by batch with its line"},
    writes=[_JSON],
)
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
            help="Use by GPU; a table by batch; the root GPU's extra; growth by batch; the largest "
            "batch that fits.",
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
    store: StoreOption = None,
) -> "Answer":
    """List memory before and in training by GPU, the root's extra, growth, and the largest batch.

    From allocations that were recorded (`nsys profile --cuda-memory-usage=true`), samples of
    nvidia-smi, or both. Without RUN it is those with the labels of --where, else the run that was
    ingested last.
    """
    import tracekit

    if not (runs or where or table is not None):
        runs = [LATEST]
    elif table is not None and (runs or where or smi is not None):
        raise UsageError("memory is of runs or of a table", "give either, not both")
    return tracekit.memory.answer(
        runs or (),
        where=parse_labels(where or []),
        what=what.value,
        smi=smi,
        table=table,
        root=root,
        capacity=None if capacity is None else parse_size(capacity),
        margin=margin,
        store=store,
    )
