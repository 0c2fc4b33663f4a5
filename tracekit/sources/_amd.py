"""Decoding shared by the readers of AMD's profilers: kind of GPU work, kernel name, launch size."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl

from tracekit.errors import MissingDataError
from tracekit.model import KIND, RANGE_STYLE
from tracekit.sources._kernel_names import KernelNames
from tracekit.sources._launch_size import LAUNCH_SIZE, launch_size
from tracekit.sources._seen import Seen, absences, no_work
from tracekit.sources._times import Times

COUNT_THREADS = ("hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel")
"""Functions whose grid argument counts threads instead of blocks."""
GRID, BLOCK = LAUNCH_SIZE[:3], LAUNCH_SIZE[3:]
WITHIN = "copies count as copies within a GPU: AMD's profiles do not name another one"
OP = ("start", "end", "pid", "device", "stream", "correlation", "name", "short_name", "kind")
"""Columns that all ops have."""
PUSH_POP = pl.lit("push_pop", RANGE_STYLE)
LOST = {
    "hosts": "hosts are in one file: their clocks differ, and GPUs of one number are one",
    "untimed": "GPU ops have no valid times and were left out",
    "untimed calls": "calls and markers have no valid times and were left out",
    "unplaced": "GPU ops have no device or process and were left out",
    "threadless": "calls and markers have no process or thread and were left out",
    "backward": "calls and markers end before they begin, and were taken to last 0 ns",
    "unnamed": "kernels have no name",
    "unclear": "allocations and releases have no GPU or size and were left out",
}
"""Reason -> words for rows that were left out, or lack an attribute."""
_BY_KERNEL = r"^__amd_rocclr_(copy|fill)Buffer"
_SHORT = {"H": "H", "D": "D", "P": "D"}
_ENDS = "(H|D|P)(?:OST|EVICE)?_?(?:TO|2)_?(H|D|P)"
_DIRECTIONS = {"HtoD": "h2d", "DtoH": "d2h", "DtoD": "d2d", "HtoH": "h2h"}
_START_END = ("roctxProcessRangeA", "roctxRangeStartA")
_NO_RANGES = ("roctxMarkA", "roctxGetThreadId", "roctxRangePop", "roctxRangeStop")
"""Functions of roctx recorded as markers that are no ranges: marks, and ends of ranges in older
versions."""


def is_range(function: pl.Expr) -> pl.Expr:
    """Test whether a function of roctx (AMD's NVTX), such as ``roctxRangePushA``, opens a range."""
    return ~function.is_in(_NO_RANGES).fill_null(value=False)


def range_style(function: pl.Expr) -> pl.Expr:
    """Return the style (push/pop or start/end) of the range that a roctx function creates."""
    starts = function.is_in(_START_END).fill_null(value=False)
    style = pl.when(starts).then(pl.lit("start_end")).otherwise(pl.lit("push_pop"))
    return style.cast(RANGE_STYLE)


def of_host(rows: pl.DataFrame, lost: Counter[str]) -> pl.DataFrame:
    """Return calls and markers with times, process and thread; those that end too early last 0 ns.

    The reasons of `LOST` for the others are counted in `lost`.
    """
    timed = rows.drop_nulls(["start", "end"])
    placed = timed.drop_nulls(["pid", "tid"])
    lost["untimed calls"] += rows.height - timed.height
    lost["threadless"] += timed.height - placed.height
    lost["backward"] += placed.filter(pl.col("end") < pl.col("start")).height
    return placed.with_columns(end=pl.max_horizontal("start", "end"))


def kernels(ops: pl.DataFrame, names: KernelNames) -> pl.DataFrame:
    """Add ``name`` (demangled), ``short_name`` and ``kind`` to kernels with a recorded ``name``."""
    return ops.with_columns(kind=kernel_kind().cast(KIND)).with_columns(names.of(ops["name"]))


def kernel_kind() -> pl.Expr:
    """Return the kind of each kernel, derived from its ``name``: compute, memset or unknown.

    AMD's driver runs some copies and fills as kernels (``__amd_rocclr_copyBuffer``): a fill is a
    memset; a copy is unknown, since its source and target are not recorded.
    """
    by_kernel = pl.col("name").str.extract(_BY_KERNEL)
    kinds = {"copy": "unknown", "fill": "memset"}
    return by_kernel.replace_strict(kinds, default="compute", return_dtype=pl.String)


def copies(ops: pl.DataFrame, direction: pl.Expr) -> pl.DataFrame:
    """Add names, kind (such as h2d), and source and target GPU to memory copies.

    A copy from device to device has the kind ``p2p`` if its two GPUs are known and differ.

    Parameters
    ----------
    ops
        Rows with ``device``, ``src_device`` and ``dst_device``, the last two null if unknown.
    direction
        Recorded direction, such as ``HostToDevice``, ``MEMORY_COPY_HOST_TO_DEVICE`` or ``H2D``.
    """
    ends = direction.str.to_uppercase().str.extract_groups(_ENDS)
    one, other = (ends.struct.field(part).replace_strict(_SHORT, default=None) for part in "12")
    copy_kind = pl.concat_str(one, pl.lit("to"), other)
    kind = copy_kind.replace_strict(_DIRECTIONS, default="unknown", return_dtype=pl.String)
    ops = ops.with_columns(copy_kind=copy_kind, kind=kind)
    between = (pl.col("kind") == "d2d") & (pl.col("src_device") != pl.col("dst_device"))
    kind = pl.when(between).then(pl.lit("p2p")).otherwise("kind")
    ops = ops.with_columns(kind=kind)
    name = pl.format("[CUDA memcpy {}]", pl.col("copy_kind").fill_null("Unknown"))
    from_gpu, to_gpu = (
        pl.when(pl.col("kind") == "p2p").then(end)
        .when(pl.col("kind").is_in(kinds)).then("device")
        .alias(end)
        for end, kinds in (("src_device", ("d2h", "d2d")), ("dst_device", ("h2d", "d2d")))
    )  # fmt: skip
    return ops.with_columns(
        from_gpu, to_gpu, pl.col("kind").cast(KIND), _name(name, "name"), _name(name, "short_name")
    )


def _name(text: pl.Expr, column: str) -> pl.Expr:
    return text.cast(pl.Categorical()).alias(column)


def threads_launched(sizes: pl.DataFrame, counts_threads: pl.Expr) -> pl.Series:
    """Return the number of threads (blocks x threads per block) of each kernel launch, or null.

    Parameters
    ----------
    sizes
        Grid and block sizes in x, y, z: the columns of `LAUNCH_SIZE`.
    counts_threads
        Whether the launching function takes its grid in threads instead of blocks.
    """
    blocks = [pl.when(counts_threads).then(1).otherwise(name).alias(name) for name in BLOCK]
    return launch_size(sizes.with_columns(blocks))


def absent(ops: Seen, calls: Seen, ranges: Seen, record: str, mark: str) -> tuple[str, ...]:
    """Return warnings that a trace has no GPU work, no HIP calls or no markers.

    `record` tells the user how to record GPU work and calls, `mark` how to record markers.
    """
    no_calls = "no HIP calls were recorded, so no op's launch is known"
    no_ranges = "no markers were recorded, so only structure and names can show stages"
    parts = (len(calls), no_calls, record), (len(ranges), no_ranges, mark)
    return absences(len(ops), 0, record, *parts)


def nothing(
    path: Path, product: str, calls: Seen, untimed: int, times: Times | None, record: str
) -> MissingDataError:
    """Return the error for a file with neither GPU work nor markers.

    Its text states the recorder (`product`), the number of HIP calls, the number of ops without
    times (`untimed`), the rows that `times` left out, and how to record GPU work (`record`).
    """
    also = f", but {len(calls):,} HIP calls" if len(calls) else ""
    return MissingDataError(
        f"{no_work(untimed)} and no markers in {path} ({product}){also}"
        f"{'' if times is None else times.why_nothing}",
        f"record the program while it uses a GPU: {record}",
    )
