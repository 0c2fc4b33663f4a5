"""Memory of GPUs before and in training, and the largest batch that would fit."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracekit.analysis.facts import how_to_record
from tracekit.errors import UsageError
from tracekit.model import KERNEL_KINDS, Answer, Trace, with_clocks

__all__ = [
    "largest_batch",
    "memory_extra",
    "memory_growth",
    "memory_table",
    "memory_use",
]

_TRAINING = ("FP", "BP", "WU")
_SAMPLED = ("time", "gpu", "uuid", "memory_used")
_MEASURED = ("batch", "training_bytes")
_LACKS = (
    "allocations since recording began; without managed memory and the CUDA context's own, so less "
    "than nvidia-smi shows"
)
_APART = (
    "the samples are of another time than the recording, so not split: nvidia-smi writes local "
    "time, whose offset from UTC has to be given"
)
_OF_USE = ("pre_bytes", "training_bytes", "peak_bytes")
_USED = ("device", "time", "used")
_COLUMNS = (
    "device", "name", "source", "pre_bytes", "training_bytes", "peak_bytes", "extra_percent",
    "memory_bytes", "share", "note",
)  # fmt: skip


def memory_use(trace: Trace, samples: pl.DataFrame | None = None) -> Answer:
    """Return the peak memory use of each GPU before and in training.

    Training begins with the first iteration on the host. On a GPU it begins with the first kernel
    of stage FP, BP or WU if that is earlier (collectives do not count, as they distribute the first
    weights), or, without such a kernel, with the first kernel. Allocations of the first iteration
    before its first kernel belong to training.

    Parameters
    ----------
    samples
        Samples of nvidia-smi: ``time`` (Unix ns), ``gpu`` (its index), ``uuid`` (may be null) and
        ``memory_used`` (bytes). Samples outside of the recording are ignored, unless all samples of
        a GPU lie outside.

    Returns
    -------
    One row per GPU and source (allocator or nvidia-smi), sorted by source and device; columns and
    metadata are those of the command `memory`. ``extra_percent`` is 100 (own - others) / others in
    training, where `others` is the median of the other GPUs that ran ops.

    Samples are matched with GPUs by UUID; if samples or GPUs have no UUID, by index, provided that
    all GPUs are on one host. Sample times are aligned by the Unix time at which recording began.

    Raises
    ------
    UsageError
        If `samples` lacks a column.
    """
    ops = trace["ops"] if samples is not None or trace.height("memory") else trace["ops"].clear()
    devices, begins = trace.read("devices"), _training_begins(trace, ops)
    parts = [_of_allocator(trace, begins)]
    warnings: list[str] = []
    unmatched: list[int] = []
    if samples is not None:
        lacking = [name for name in _SAMPLED if name not in samples.columns]
        if lacking:
            raise UsageError(f"the samples lack {', '.join(lacking)}", "give those of nvidia-smi")
        placed, unmatched = _placed(samples, devices, trace.read("reports"))
        parts.append(_of_samples(trace, placed, begins))
        warnings = _sample_warnings(samples, placed, unmatched)
    table = pl.concat(parts).join(
        devices.select("device", "name", "memory_bytes", "active"), on="device", how="left"
    )
    table = _with_extra(table).with_columns(
        share=pl.when(pl.col("memory_bytes") > 0).then(
            pl.col("peak_bytes") / pl.col("memory_bytes")
        )
    )
    how = how_to_record(trace, "memory")
    meta = {
        "missing": [] if table.height else [f"no memory use is known: {how}"],
        "warnings": warnings,
        "unmatched_gpus": unmatched,
    }
    rows = table.sort("source", "device").select(_COLUMNS)
    return Answer(rows=rows, meta=meta, title="memory · use", command="memory")


# -- when training begins ----------------------------------------------------------------------


def _training_begins(trace: Trace, ops: pl.LazyFrame) -> pl.DataFrame:
    """Return ``device, report, clock, begins``: start of training in the trace file's time, ns.

    It is the start of the first training kernel, or of the first iteration if that is earlier.
    """
    kind, stage = pl.col("kind"), pl.col("stage").cast(pl.String)
    works = kind.is_in(["compute", "graph"])
    # The lowest rank that a GPU has any kernel of decides.
    ranks = pl.when(works & stage.is_in(_TRAINING)).then(0).when(works).then(1).otherwise(2)
    first = (
        ops.filter(kind.is_in([*KERNEL_KINDS, "graph"]))
        .group_by("device", "report", rank=ranks)
        .agg(begins=pl.col("start").min())
        .collect()
    )
    on_host = trace.read("iterations").group_by("report").agg(entered=pl.col("start").min())
    first = first.join(on_host, on="report", how="left").with_columns(
        begins=pl.when(pl.col("rank") == 0)
        .then(pl.min_horizontal("begins", "entered"))
        .otherwise("begins")
    )
    return (
        with_clocks(first, trace.read("reports"))
        .sort("device", "rank", "begins")
        .unique("device", keep="first", maintain_order=True)
        .select("device", "report", "clock", "begins")
    )


def _most(rows: pl.DataFrame, *, lasts: bool) -> pl.DataFrame:
    """Return each GPU's peak memory before training, in training, and overall, in bytes.

    Parameters
    ----------
    rows
        ``device, time`` (ns), ``used`` (bytes), ``begins``, sorted by time; `begins` is the start
        of training on the GPU; other columns are constant per GPU.
    lasts
        Whether memory stays in use until the next row, so that the last value before training
        counts as in training, too.
    """
    used, before = pl.col("used"), pl.col("time") < pl.col("begins")
    others = pl.exclude("device", "time", "used").first()
    since = [used.filter(~before).max(), *([used.filter(before).last()] if lasts else [])]
    return rows.group_by("device").agg(
        others,
        pre_bytes=used.filter(before).max(),
        training_bytes=pl.max_horizontal(since),
        peak_bytes=used.max(),
    )


# -- allocations -------------------------------------------------------------------------------


def _of_allocator(trace: Trace, begins: pl.DataFrame) -> pl.DataFrame:
    """Return the memory that all processes of the run together have allocated on each GPU."""
    events = with_clocks(trace.read("memory"), trace.read("reports")).sort(
        "time", maintain_order=True
    )
    # What a process has in use is known after each of its own events only.
    added = pl.col("in_use") - pl.col("in_use").shift(fill_value=0)
    apart = pl.col("clock").n_unique().over("device") > 1
    levels = (
        events.with_columns(added=added.over("process", "device"), apart=apart)
        .with_columns(used=pl.col("added").cum_sum().over("clock", "device"))
        .join(begins, on=["device", "clock"], how="left", maintain_order="left")
        # Of one clock's time another one's says nothing.
        .with_columns(begins=pl.when(~pl.col("apart")).then("begins"))
    )
    why = (
        pl.when("apart")
        .then(pl.lit("reports without a common clock, so not split, and the most of one of them; "))
        .when(pl.col("begins").is_null())
        .then(pl.lit("the time at which training began is unknown, so memory is not split; "))
        .otherwise(pl.lit(""))
    )
    return _most(levels.select(*_USED, "begins", "apart"), lasts=True).select(
        "device", *_OF_USE, source=pl.lit("allocator"), note=why + pl.lit(_LACKS)
    )


# -- samples -----------------------------------------------------------------------------------


def _placed(
    samples: pl.DataFrame, devices: pl.DataFrame, reports: pl.DataFrame
) -> tuple[pl.DataFrame, list[int]]:
    """Return the run's samples with ``device``, and the indices of sampled GPUs not in the run."""
    rows = samples.select(
        "time",
        pl.col("gpu").cast(pl.Int32),
        uuid=pl.col("uuid").cast(pl.String).str.strip_prefix("GPU-").str.to_lowercase(),
        used=pl.col("memory_used").cast(pl.Int64),
    ).drop_nulls(["time", "used"])
    known = devices.select("device", "report", uuid=pl.col("uuid").str.to_lowercase())
    by_uuid = known.drop_nulls("uuid").select("uuid", of_uuid="device")
    hosts = known.join(reports.select("report", "host"), on="report")["host"].n_unique()
    numbers = known.filter(hosts <= 1).select(
        gpu="device", of_index="device", named=pl.col("uuid").is_not_null()
    )
    both_named = pl.col("uuid").is_not_null() & pl.col("named")
    found = (
        rows.join(by_uuid, on="uuid", how="left", maintain_order="left")
        .join(numbers, on="gpu", how="left", maintain_order="left")
        .with_columns(
            device=pl.coalesce("of_uuid", pl.when(~both_named).then("of_index")),
            by_index=pl.col("of_uuid").is_null(),
        )
    )
    others = found.filter(pl.col("device").is_null())["gpu"].drop_nulls().unique().sort()
    placed = found.drop_nulls("device").sort("time", maintain_order=True)
    return placed.select(*_USED, "by_index"), others.to_list()


def _of_samples(trace: Trace, placed: pl.DataFrame, begins: pl.DataFrame) -> pl.DataFrame:
    recorded = _recorded(trace, begins)
    timed = placed.join(recorded, on="device", how="left", maintain_order="left")
    inside = pl.col("time").is_between("opened", "closed").fill_null(value=True)
    some = inside.any().over("device")
    # Samples that are all of another time may be off by a time zone: their peak is still shown.
    kept = timed.filter(inside | ~some).with_columns(
        begins=pl.when(some).then("unix_begins"), apart=~some
    )
    return _most(kept.select(*_USED, "begins", "apart", "by_index"), lasts=False).select(
        "device", *_OF_USE, source=pl.lit("nvidia_smi"), note=_sample_note()
    )


def _recorded(trace: Trace, begins: pl.DataFrame) -> pl.DataFrame:
    """Return by ``device`` when training begins, and when recording begins and ends (Unix ns)."""
    ends = trace["ops"].group_by("report").agg(last=pl.col("end").max()).collect()
    reports = trace.read("reports").join(ends, on="report", how="left")
    # Time 0 may be the start of another report of the run, by which the times of this one are told.
    began = pl.col("session_start") + pl.col("clock_offset").fill_null(0)
    spans = reports.select(
        "report",
        "session_start",
        opened=began,
        closed=pl.coalesce(began + pl.col("duration"), pl.col("session_start") + pl.col("last")),
    )
    return begins.join(spans, on="report", how="left").select(
        "device", "opened", "closed", unix_begins=pl.col("session_start") + pl.col("begins")
    )


def _sample_note() -> pl.Expr:
    why = (
        pl.when("apart")
        .then(pl.lit(_APART))
        .when(pl.col("begins").is_null())
        .then(pl.lit("the Unix time at which training began is unknown, so memory is not split"))
    )
    index = pl.when("by_index").then(pl.lit("GPU matched by index"))
    return pl.concat_str(why, index, separator="; ", ignore_nulls=True).replace("", None)


def _sample_warnings(
    samples: pl.DataFrame, placed: pl.DataFrame, unmatched: Sequence[int]
) -> list[str]:
    if samples.height and placed.is_empty():
        return ["no sample of nvidia-smi is of a GPU of this run: is it of another machine?"]
    if not unmatched:
        return []
    numbers = ", ".join(str(number) for number in unmatched)
    return [f"GPU {numbers} of nvidia-smi was left out: it is not in this run"]


def _with_extra(table: pl.DataFrame) -> pl.DataFrame:
    """Add ``extra_percent``: by how much a GPU's memory exceeds the other GPUs' median, in %."""
    active = table.filter("active").select("source", "device", "training_bytes")
    others = (
        active.select("source", "device")
        .join(active, on="source", suffix="_other")
        .filter(pl.col("device") != pl.col("device_other"))
        .group_by("source", "device")
        .agg(others=pl.col("training_bytes").median())
    )
    return table.join(others, on=["source", "device"], how="left").with_columns(
        extra_percent=_percent_more("training_bytes", "others")
    )


def _percent_more(value: str, than: str) -> pl.Expr:
    """Return 100 (value - than) / than of two columns; null unless `than` is above 0."""
    return pl.when(pl.col(than) > 0).then(100 * (pl.col(value) - pl.col(than)) / pl.col(than))


# -- tables of several runs --------------------------------------------------------------------


def memory_extra(
    table: pl.DataFrame, *, root: int = 0, by: Sequence[str] = ("network", "batch")
) -> pl.DataFrame:
    """Return by how much the root GPU's training memory exceeds the other GPUs' median.

        extra_percent = 100 (root - others) / others

    Parameters
    ----------
    table
        ``gpu``, ``training_bytes`` and the columns `by`: one row per GPU of each run.
    root
        The GPU that gathers gradients.
    by
        Columns that identify a run. Of several rows of one GPU the largest counts.

    Returns
    -------
    The columns `by`, ``gpus``, ``root_bytes``, ``others_bytes`` (median of the other GPUs),
    ``extra_bytes`` and ``extra_percent``; null if the root or the others are unknown.

    Raises
    ------
    UsageError
        If a column is not there.
    """
    keys = list(by)
    _check(table, [*keys, "gpu", "training_bytes"])
    each = table.group_by(*keys, "gpu").agg(pl.col("training_bytes").max())
    is_root = pl.col("gpu") == root
    return (
        each.group_by(keys or pl.lit(0).alias("all"))
        .agg(
            gpus=pl.len().cast(pl.Int64),
            root_bytes=pl.col("training_bytes").filter(is_root).first(),
            others_bytes=pl.col("training_bytes").filter(~is_root).median(),
        )
        .with_columns(extra_bytes=pl.col("root_bytes") - pl.col("others_bytes"))
        .with_columns(extra_percent=_percent_more("root_bytes", "others_bytes"))
        .select(*keys, pl.exclude(*keys, "all"))
        .sort(keys or "gpus")
    )


def memory_growth(
    table: pl.DataFrame, *, root: int = 0, by: Sequence[str] = ("network",)
) -> pl.DataFrame:
    """Return how much the root GPU's training memory grows from the smallest batch size.

        increase_percent = 100 (use[batch] - use[smallest]) / use[smallest]

    Parameters
    ----------
    table
        ``batch``, ``gpu``, ``training_bytes`` and the columns `by`.
    root
        Number of the GPU whose memory is compared between batch sizes.
    by
        Columns that form a group. Of several rows of one batch the largest counts.

    Returns
    -------
    The columns `by`, ``batch``, ``training_bytes``, ``smallest_batch``, ``increase_percent``.

    Raises
    ------
    UsageError
        If a column is not there.
    """
    keys = list(by)
    _check(table, [*keys, "batch", "gpu", "training_bytes"])
    each = (
        table.filter(pl.col("gpu") == root)
        .drop_nulls(["batch", "training_bytes"])
        .group_by(*keys, "batch")
        .agg(pl.col("training_bytes").max())
        .sort(*keys, "batch")
    )

    def first(name: str) -> pl.Expr:
        return pl.col(name).first().over(keys) if keys else pl.col(name).first()

    return each.with_columns(smallest_batch=first("batch"), least=first("training_bytes")).select(
        *keys, "batch", "training_bytes", "smallest_batch",
        increase_percent=_percent_more("training_bytes", "least"),
    )  # fmt: skip


def memory_table(
    table: pl.DataFrame, *, root: int = 0, by: Sequence[str] = ("network",)
) -> pl.DataFrame:
    """Return memory by batch size, before and in training, and the root GPU's excess.

    Parameters
    ----------
    table
        ``batch``, ``gpu``, ``pre_bytes``, ``training_bytes`` and the columns `by`.
    root
        The GPU that gathers gradients.
    by
        Columns that form a group.

    Returns
    -------
    The columns `by`, ``batch``; ``pre_bytes``, the peak before training on any GPU; ``root_bytes``
    and ``others_bytes``, training memory of the root and the median of the other GPUs;
    ``extra_percent``, by how much the root exceeds them; and ``increase_percent``, by how much the
    root's memory exceeds that with the smallest batch.

    Raises
    ------
    UsageError
        If a column is not there.
    """
    keys = [*by, "batch"]
    _check(table, [*keys, "gpu", "pre_bytes", "training_bytes"])
    before = table.group_by(keys).agg(pl.col("pre_bytes").max())
    growth = memory_growth(table, root=root, by=by).select(*keys, "increase_percent")
    extra = memory_extra(table, root=root, by=keys).select(
        *keys, "root_bytes", "others_bytes", "extra_percent"
    )
    found = before.join(extra, on=keys, nulls_equal=True)
    return found.join(growth, on=keys, how="left", nulls_equal=True).sort(keys)


# -- the largest batch -------------------------------------------------------------------------


def largest_batch(
    points: pl.DataFrame,
    capacity_bytes: int,
    margin: float = 0.1,
    *,
    by: Sequence[str] = (),
) -> pl.DataFrame:
    """Return the largest batch whose training would fit into memory, by linear regression.

    A least-squares line is fitted to the points; the batch is the largest for which the line stays
    within ``capacity_bytes (1 - margin)``. Frameworks change algorithms and workspaces with the
    batch, so the estimate is not certain, especially if ``extrapolated``; scatter about the line
    does not show by how much, so there is no interval.

    Parameters
    ----------
    points
        ``batch``, ``training_bytes`` and the columns `by`. Nulls are left out.
    capacity_bytes
        Memory of the GPU, bytes.
    margin
        Share of the memory to keep free, from 0 to 1.
    by
        Columns whose groups get a line each, such as ``network``.

    Returns
    -------
    One row per line: the columns `by`, and those of the command `memory`. ``largest_batch`` is 0
    if not even 1 fits; null if fewer than two batches were measured, or memory does not grow.

    Raises
    ------
    UsageError
        If a column is not there, or an option is out of range.
    """
    if capacity_bytes <= 0 or not 0 <= margin < 1:
        raise UsageError(
            f"a margin of {margin} of {capacity_bytes} bytes makes no sense",
            "give a capacity above 0 and a margin from 0 to below 1",
        )
    usable = capacity_bytes * (1 - margin)
    fits = ((usable - pl.col("intercept")) / pl.col("slope")).floor().clip(0, 1 << 62)
    lines = _lines(points, by).with_columns(
        at=pl.when(pl.col("slope") > 0).then(fits).cast(pl.Int64)
    )
    return lines.select(
        *by, "points", slope_bytes="slope", intercept_bytes="intercept",
        usable_bytes=pl.lit(int(usable), pl.Int64), largest_batch="at",
        predicted_bytes=(pl.col("intercept") + pl.col("slope") * pl.col("at")).round()
        .clip(-(1 << 62), 1 << 62).cast(pl.Int64),
        extrapolated=~pl.col("at").is_between("least", "most"),
    )  # fmt: skip


def _lines(points: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Fit a line per group, memory over batch size."""
    keys = list(by)
    _check(points, [*keys, *_MEASURED])
    known = points.drop_nulls(_MEASURED)
    x, y = (pl.col(name).cast(pl.Float64) for name in _MEASURED)
    # About the means, so that large numbers do not cancel.
    dx, dy = x - x.mean(), y - y.mean()
    sums = known.group_by(keys or pl.lit(0).alias("all")).agg(
        pl.len().cast(pl.Int64).alias("points"),
        x=x.mean(),
        y=y.mean(),
        xx=(dx * dx).sum(),
        xy=(dx * dy).sum(),
        least=x.min(),
        most=x.max(),
    )
    # What nothing is known of is there too, without a line.
    groups = (
        points.select(keys).unique().sort(keys)
        .join(sums, on=keys, how="left", nulls_equal=True, maintain_order="left")
        if keys
        else pl.DataFrame({"all": [0]}).join(sums, on="all", how="left")
    ).with_columns(pl.col("points").fill_null(0))  # fmt: skip
    slope = pl.when(pl.col("xx") > 0).then(pl.col("xy") / pl.col("xx"))
    return groups.with_columns(slope=slope).with_columns(
        intercept=pl.col("y") - pl.col("slope") * pl.col("x")
    )


def _check(table: pl.DataFrame, needed: Sequence[str]) -> None:
    lacking = [name for name in needed if name not in table.columns]
    if lacking:
        raise UsageError(
            f"the table lacks {', '.join(lacking)}", f"it has {', '.join(table.columns) or 'none'}"
        )
