"""Where GPU time goes, by any of several keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from tracekit.analysis._windows import chosen_windows, cut
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import KERNEL_KINDS, STAGES, Trace, layered_lengths, union_length


@dataclass(frozen=True)
class _Key:
    """What ops are grouped by: the columns that the key gives, and how they are found."""

    columns: tuple[str, ...]
    meaning: str
    divides_time: bool = False
    """Whether its groups are stretches of time or devices, and so have a window of their own."""


_KEYS = {
    "stage": _Key(("stage",), "why an op runs"),
    "kind": _Key(("kind",), "what an op does"),
    "kernel": _Key(("name", "kind"), "name of a kernel; only kernels are listed"),
    "range": _Key(("range",), "path of the innermost NVTX range around the launch"),
    "device": _Key(("device",), "GPU", divides_time=True),
    "stream": _Key(("device", "pid", "stream"), "CUDA stream of a process on a GPU"),
    "iteration": _Key(("iteration",), "training step", divides_time=True),
}
KEYS = {name: key.meaning for name, key in _KEYS.items()}
"""What a breakdown can be by."""

_COLUMNS = (
    "op", "process", "device", "stream", "start", "end", "name", "kind", "launch_start", "range",
    "stage", "stage_source",
)  # fmt: skip
_PERCENTILES = {"p5_ns": 0.05, "median_ns": 0.5, "p95_ns": 0.95}


def parse_keys(by: str | Sequence[str]) -> tuple[str, ...]:
    """Return the keys in ``"stage,device"`` or a sequence of them.

    Raises
    ------
    UsageError
        If one is unknown, is given twice, or none is given.
    """
    keys = tuple(key.strip() for key in (by.split(",") if isinstance(by, str) else by))
    for key in keys:
        if key not in _KEYS:
            raise UsageError(f"no breakdown by {key!r}", f"choose among {', '.join(_KEYS)}")
    if not keys or len(set(keys)) < len(keys):
        raise UsageError(f"cannot break down by {by!r}", f"name each of {', '.join(_KEYS)} once")
    return keys


def breakdown(
    trace: Trace, by: str | Sequence[str] = "stage", *, skip: int = 0, per_iteration: bool = False
) -> pl.DataFrame:
    """Return where GPU time goes, grouped by one or more keys.

    Times are lengths of unions of intervals on each device, added over devices. With the key
    `iteration` every iteration is a window of its own and the row with a null iteration is the time
    between them. Definitions are in ``docs/breakdown.md``.

    Parameters
    ----------
    trace
        The run.
    by
        Keys out of `KEYS`, as a sequence or separated by commas.
    skip
        How many iterations to leave out at the beginning.
    per_iteration
        Add, over iterations, ``p5_ns, median_ns, p95_ns`` of exposed (by stage) or busy time.

    Returns
    -------
    The keys' columns, then

    ==================  ============================================================
    ``ops``             number of ops that start in the window
    ``total_ns``        sum of their durations (which may overlap); not by stage
    ``busy_ns``         length of the union of their intervals, inside the window
    ``exposed_ns``      by stage: busy time in which no stage of higher rank is busy
    ``overlap_ns``      by stage: busy_ns - exposed_ns
    ``mean_ns`` etc.    by kernel: statistics of durations
    ``window_ns``       by device or iteration: length of the window
    ``idle_ns``         by device or iteration: time of the window in which nothing runs
    ``share``           exposed_ns (by stage) or busy_ns over the length of the window
    ==================  ============================================================

    Raises
    ------
    UsageError
        If a key is unknown, or iterations are asked for that the run has not.
    MissingDataError
        If the run has no GPU work.
    """
    keys = parse_keys(by)
    by_iteration = "iteration" in keys
    pieces, windows = _pieces(trace, skip=skip, per_iteration=by_iteration)
    table = _grouped(keys, pieces, windows)
    if by_iteration:
        names = (
            trace.read("iterations")
            .group_by("iteration")
            .agg(iteration_name=pl.col("name").first())
        )
        table = table.join(names, on="iteration", how="left", maintain_order="left")
        first = ("iteration", "iteration_name")
        table = table.select(*first, pl.exclude(first))
    if per_iteration:
        table = _with_statistics(trace, keys, table, skip)
    return table


def breakdown_meta(trace: Trace, *, skip: int = 0) -> dict[str, Any]:
    """Return what every table of a run is measured against.

    Returns
    -------
    ``window_ns``, ``idle_ns`` and ``wu_residual_ns`` (window less the time in which FP or BP is
    busy) added over devices; the numbers ``devices`` and ``iterations``; ``coverage``, the share of
    GPU busy time by source of the stage (sources overlap, so shares may add to more than 1);
    ``launched``, the share of ops whose launching call is known; ``skip``.
    """
    pieces, windows = _pieces(trace, skip=skip, per_iteration=False)
    window = int((windows["end"] - windows["start"]).sum())
    busy = _total(pieces)
    sources = (
        union_length(pieces, ["window", "stage_source"])
        .group_by("stage_source")
        .agg(pl.col("length").sum())
    )
    passes = _total(pieces.filter(pl.col("stage").cast(pl.String).is_in(["FP", "BP"])))
    counted = pieces.filter("counts")
    iterations = trace.read("iterations").sort("process", "start")
    kept = iterations.filter(pl.int_range(pl.len()).over("process") >= skip)
    return {
        "window_ns": window,
        "idle_ns": window - busy,
        "wu_residual_ns": window - passes,
        "devices": windows["device"].n_unique(),
        "iterations": kept["iteration"].n_unique(),
        "skip": skip,
        "launched": counted["launch_start"].count() / counted.height if counted.height else None,
        "coverage": {
            source: length / busy if busy else 0.0
            for source, length in sources.sort("stage_source").rows()
        },
    }


def share_meaning(by: str | Sequence[str]) -> str:
    """Say what ``share`` is a share of in a breakdown by some keys."""
    keys = parse_keys(by)
    part = "exposed_ns" if _is_by_stage(keys) else "busy_ns"
    own = [key for key in keys if _KEYS[key].divides_time]
    return f"{part} / window_ns of the {' and '.join(own)}" if own else f"{part} / window_ns"


def _is_by_stage(keys: Sequence[str]) -> bool:
    return [key for key in keys if not _KEYS[key].divides_time] == ["stage"]


def _pieces(trace: Trace, *, skip: int, per_iteration: bool) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the ops cut at the windows' edges, and the windows."""
    ops = trace["ops"].select(_COLUMNS).collect()
    if ops.is_empty():
        raise MissingDataError(
            "this run holds no GPU work", "record with `nsys profile -t cuda,nvtx`"
        )
    windows = chosen_windows(trace, ops, skip=skip, per_iteration=per_iteration)
    pieces = cut(ops, windows).join(
        windows.with_row_index("window").select("window", "iteration"),
        on="window",
        how="left",
        maintain_order="left",
    )
    pids = trace["processes"].select("process", "pid").collect()
    paths = trace["ranges"].select("range", "path").collect()
    pieces = pieces.join(pids, on="process", how="left", maintain_order="left")
    pieces = pieces.join(paths, on="range", how="left", maintain_order="left")
    return pieces.drop("range").rename({"path": "range"}), windows


def _total(pieces: pl.DataFrame) -> int:
    return int(union_length(pieces, ["window"])["length"].sum())


def _grouped(keys: Sequence[str], pieces: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    if "kernel" in keys:
        pieces = pieces.filter(pl.col("kind").cast(pl.String).is_in(KERNEL_KINDS))
    columns = list(dict.fromkeys(name for key in keys for name in _KEYS[key].columns))
    # Windows are told apart by what divides time, so a group never spans two of them.
    own = [name for name in columns if name in {"device", "iteration"} & set(keys)]
    table = _lengths(keys, pieces, columns)
    counted = pieces.filter("counts").group_by(columns).agg(_statistics(keys))
    table = table.join(counted, on=columns, how="left", nulls_equal=True).with_columns(
        pl.col("ops", "total_ns").fill_null(0)
    )
    table = _with_windows(table, pieces, windows, own)
    part = "exposed_ns" if _is_by_stage(keys) else "busy_ns"
    table = table.with_columns(
        share=pl.when(pl.col("window_ns") > 0).then(pl.col(part) / pl.col("window_ns"))
    )
    if _is_by_stage(keys):
        table = table.with_columns(overlap_ns=pl.col("busy_ns") - pl.col("exposed_ns"))
    return _arranged(table, keys, columns)


def _lengths(keys: Sequence[str], pieces: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    """Return busy (and by stage exposed) time per group, added over windows."""
    within = list(dict.fromkeys(["window", *columns]))
    if _is_by_stage(keys):
        others = [name for name in within if name != "stage"]
        lengths = layered_lengths(pieces, "stage", STAGES, others)
    else:
        lengths = union_length(pieces, within).rename({"length": "busy_ns"})
    return lengths.group_by(columns).agg(pl.col("^(busy|exposed)_ns$").sum())


def _statistics(keys: Sequence[str]) -> list[pl.Expr]:
    duration = pl.col("duration_ns")
    statistics = [pl.len().cast(pl.Int64).alias("ops"), duration.sum().alias("total_ns")]
    if "kernel" in keys:
        statistics += [
            duration.mean().alias("mean_ns"),
            duration.median().alias("median_ns"),
            duration.min().alias("min_ns"),
            duration.max().alias("max_ns"),
        ]
    return statistics


def _with_windows(
    table: pl.DataFrame, pieces: pl.DataFrame, windows: pl.DataFrame, own: list[str]
) -> pl.DataFrame:
    """Add the length of each group's window, and its idle time."""
    lengths = windows.with_row_index("window").with_columns(
        window_ns=pl.col("end") - pl.col("start")
    )
    busy = union_length(pieces, ["window"])
    lengths = lengths.join(busy, on="window", how="left").with_columns(
        idle_ns=pl.col("window_ns") - pl.col("length").fill_null(0)
    )
    sums = pl.col("window_ns", "idle_ns").sum()
    if own:
        return table.join(lengths.group_by(own).agg(sums), on=own, how="left", nulls_equal=True)
    return table.join(lengths.select(sums), how="cross")


def _arranged(table: pl.DataFrame, keys: Sequence[str], columns: list[str]) -> pl.DataFrame:
    """Put columns in their documented order, and rows by window and then by what takes longest."""
    divides = [name for name in columns if name in ("device", "iteration") and name in keys]
    measures = ["ops", *(() if _is_by_stage(keys) else ("total_ns",))]
    if "kernel" in keys:
        measures += ["mean_ns", "median_ns", "min_ns", "max_ns"]
    measures.append("busy_ns")
    if _is_by_stage(keys):
        measures += ["exposed_ns", "overlap_ns"]
    if list(keys) == divides:
        measures += ["window_ns", "idle_ns"]
    rest = [name for name in columns if name not in divides]
    first = [*divides, *(name for name in rest[:1] if name == "stage")]
    order = [pl.col(first), -pl.col("busy_ns"), pl.col(rest)]
    return table.sort(order, nulls_last=True).select(*columns, *measures, "share")


def _with_statistics(
    trace: Trace, keys: Sequence[str], table: pl.DataFrame, skip: int
) -> pl.DataFrame:
    """Add percentiles over iterations; a group that an iteration lacks has length 0 in it."""
    if "iteration" in keys:
        raise UsageError("a breakdown by iteration has one iteration in each row", "drop either")
    pieces, windows = _pieces(trace, skip=skip, per_iteration=True)
    columns = list(dict.fromkeys(name for key in keys for name in _KEYS[key].columns))
    each = _grouped([*keys, "iteration"], pieces, windows).drop_nulls("iteration")
    part = "exposed_ns" if _is_by_stage(keys) else "busy_ns"
    steps = windows.select("iteration").drop_nulls().unique()
    filled = (
        table.select(columns)
        .join(steps, how="cross")
        .join(each, on=[*columns, "iteration"], how="left", nulls_equal=True)
        .with_columns(pl.col(part).fill_null(0))
    )
    statistics = filled.group_by(columns).agg(
        pl.len().cast(pl.Int64).alias("iterations"),
        *(
            pl.col(part).quantile(q, "nearest").cast(pl.Int64).alias(name)
            for name, q in _PERCENTILES.items()
        ),
    )
    if "median_ns" in table.columns:  # by kernel, that name is taken by the median of durations
        statistics = statistics.rename({name: f"iteration_{name}" for name in _PERCENTILES})
    return table.join(statistics, on=columns, how="left", nulls_equal=True, maintain_order="left")
