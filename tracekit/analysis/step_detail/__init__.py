"""Single steps in detail: start and end on each GPU, ops, and exposed communication."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from tracekit.analysis.calls import collective_calls, read_calls
from tracekit.analysis.idle_account import idle_pieces, loading_threads, merged
from tracekit.engine import (
    StageSums,
    StageTally,
    cut,
    inside_steps,
    numbered_alike,
    range_layers,
    step_windows,
    sum_in,
)
from tracekit.model import COLLECTIVE_CALLS, KINDS, Trace, path_texts, with_clocks

__all__ = [
    "StepWork",
    "around",
    "around_steps",
    "details",
    "driving_threads",
    "idle_spans",
    "median_step",
    "ops_inside",
    "ranges_inside",
    "slowest_step",
    "stage_spans",
    "step_lengths",
    "step_spans",
    "whole_spans",
    "work_in_steps",
]

_LENGTH = pl.col("end") - pl.col("start")
_OWNER = ["process", "device"]
_KINDS = ("collective", "p2p", "staged")
_LAYER = pl.Enum(["work", "communication"])
_WORK_FIRST = pl.Series(sorted(KINDS, key=_KINDS.__contains__))
_WORK_FIRST = _WORK_FIRST.cast(pl.Enum(_WORK_FIRST))
"""Kinds of ops, those that are communication last: the rest hides it."""
_EVER = -(1 << 62), 1 << 62
"""Times before and after all that is recorded, ns."""
_OPS = ("process", "device", "start", "end")
_STEP = ("process", "device", "iteration")


def step_spans(trace: Trace) -> pl.DataFrame:
    """Return start and end of each step on each GPU; if there are no steps, of the whole run.

    Returns
    -------
    ``process, device, iteration, start, end, clock`` (times in ns); `iteration` is null where no
    step is known. Times of rows with the same `clock` can be compared.
    """
    trace = numbered_alike(trace)
    windows = step_windows(trace)
    known = windows.filter("counts")
    if known.is_empty() and not windows.is_empty():
        known = windows.group_by("process", "device", maintain_order=True).agg(
            pl.col("start").min(), pl.col("end").max(), iteration=pl.lit(None, pl.Int64)
        )
    steps = known.group_by("process", "device", "iteration", maintain_order=True).agg(
        pl.col("start").min(), pl.col("end").max()
    )
    processes = with_clocks(trace.read("processes"), trace.read("reports"))
    return steps.join(
        processes.select("process", "clock"), on="process", how="left", maintain_order="left"
    )


def step_lengths(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the length of each step, as the mean over its GPUs.

    `spans` are steps on GPUs, from `step_spans`.

    Returns
    -------
    ``iteration, step_ns``, in order of steps; no rows without steps.
    """
    return (
        spans.drop_nulls("iteration")
        .group_by("iteration")
        .agg(step_ns=_LENGTH.mean())
        .sort("iteration")
    )


def median_step(lengths: pl.DataFrame) -> int | None:
    """Return the number of the step of median length, the first of equals; None without steps."""
    if lengths.is_empty():
        return None
    typical = pl.col("step_ns").quantile(0.5, "nearest")
    return int(lengths.filter(pl.col("step_ns") == typical)["iteration"][0])


def slowest_step(lengths: pl.DataFrame) -> int | None:
    """Return the number of the longest step, the first of equals; None without steps."""
    found = lengths.sort("step_ns", "iteration", descending=[True, False])["iteration"]
    return None if found.is_empty() else int(found[0])


def ops_inside(trace: Trace, spans: pl.DataFrame, *, reaching: bool = False) -> pl.DataFrame:
    """Return the ops that start inside one of the spans of their process and GPU, by time.

    Parameters
    ----------
    spans
        ``process, device, start, end``; no two of one GPU and process overlap.
    reaching
        Whether ops that start before a span and reach into it are included.

    Returns
    -------
    The columns of ``ops``.
    """
    bounds = spans.select(*_OWNER, span_start="start", span_end="end").lazy()
    first, last = pl.col("span_start"), pl.col("span_end")
    begins, reaches = pl.col("start") >= first, pl.col("end") > first
    inside = (begins | reaches if reaching else begins) & (pl.col("start") < last)
    found = _near(trace, "ops", spans).join(bounds, on=_OWNER).filter(inside)
    return found.drop("span_start", "span_end").sort("start", "op").collect()


def _near(trace: Trace, name: str, spans: pl.DataFrame) -> pl.LazyFrame:
    """Return the rows of a table from the earliest start of `spans` to the latest end."""
    first, last = spans.select(pl.col("start").min(), pl.col("end").max()).row(0)
    return trace[name].clear() if first is None else trace.during(name, first, last)


def details(trace: Trace, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the details of each op as text.

    Parameters
    ----------
    ops
        The ops to describe, with the columns of the table ``ops``.

    Returns
    -------
    One row per op in the order of `ops`, null if unknown: ``kind``; ``bytes`` of a copy or memset,
    or of a collective as passed to the call; ``source`` and ``destination`` of a copy, a GPU or
    ``host``; ``launch``, the call that launched the op, and ``delay_ns`` from the start of the call
    to the start of the op; ``range``, the path of ranges around the launch; ``layer``, within
    passes; ``stage``, ``stage_source``, ``iteration``; ``threads``, the number of GPU threads of a
    kernel; and ``correlation``.
    """
    calls = trace.rows("calls", ops["call"], ["call", "name"])
    paths = trace.rows("ranges", ops["range"], ["range", "path"])
    none = pl.DataFrame(schema={"op": ops.schema["op"], "size_bytes": pl.Int64})
    sizes = trace.once(_sizes) if (ops["kind"] == "collective").any() else none
    beside = (
        ops.select("op", "call", "range")
        .join(sizes, on="op", how="left", maintain_order="left")
        .join(calls, on="call", how="left", maintain_order="left")
        .join(paths, on="range", how="left", maintain_order="left")
    )
    of_pass = pl.when(pl.col("stage").cast(pl.String).is_in(["FP", "BP"])).then("range")
    ranges = ops.select(of_pass).to_series()
    is_known = ranges.null_count() < len(ranges)
    layers = _layers(trace, ranges) if is_known else ranges.cast(pl.String)
    copied = pl.col("copy_kind")
    return ops.select(
        pl.col("kind").cast(pl.String),
        bytes=pl.coalesce("bytes", beside["size_bytes"]),
        source=_place("src_device", copied.str.starts_with("H")),
        destination=_place("dst_device", copied.str.ends_with("H")),
        launch=beside["name"].cast(pl.String),
        delay_ns=pl.col("start") - pl.col("launch_start"),
        range=path_texts(trace.read("paths"), beside["path"]),
        layer=layers,
        stage=pl.col("stage").cast(pl.String),
        stage_source=pl.col("stage_source").cast(pl.String),
        iteration="iteration",
        threads="launch_size",
        correlation="correlation",
    )


def _layers(trace: Trace, ranges: pl.Series) -> pl.Series:
    """Return the layer of each range; for backward, forward passes up to a step earlier count."""
    near = trace.rows("ranges", ranges, ["range", "start", "end"])
    near = near.filter(pl.col("range").is_in(ranges.implode()))
    first, last = near.select(pl.col("start").min(), pl.col("end").max()).row(0)
    begun = trace["iterations"].filter(pl.col("start") <= first).group_by("process")
    before = begun.agg(pl.col("start").sort().get(-2, null_on_oob=True))
    since = before.select(pl.col("start").min().fill_null(_EVER[0])).collect().item()
    meanwhile = trace.during("ranges", since, last)
    found = range_layers(trace.with_lazy({"ranges": meanwhile}))
    return found.layers.gather(found.of_range.gather(ranges))


def around(
    trace: Trace, begin: int, end: int, process: int | None = None
) -> tuple[Trace, pl.Series]:
    """Limit a run, or one of its processes, to what happens in an interval (ns).

    Calls and ranges are kept if they overlap the interval; ops, if they start at or after `begin`
    and were launched (if unknown: start) at or before `end`. Details of ops and causes of idle time
    can then be computed without reading the whole run.

    Returns
    -------
    The limited run, in which ranges are renumbered; and each range's number in the whole run.
    """
    start = pl.col("start")
    is_chosen = pl.lit(value=True) if process is None else pl.col("process") == process
    ranges = trace.during("ranges", begin, end).filter(is_chosen).collect().sort("range")
    known = ranges["range"]

    def numbered(table: pl.LazyFrame, *columns: str) -> pl.LazyFrame:
        new = pl.col(columns).replace_strict(known, range(len(known)), default=None)
        return table.with_columns(new.cast(known.dtype))

    # Files tell by the edges of single columns which of their pieces need not be read.
    launch = pl.col("launch_start")
    is_before_end = (launch <= end) | (launch.is_null() & (start <= end))
    launched = is_chosen & (start >= begin) & is_before_end
    return trace.with_part(
        {
            **{
                name: trace.during(name, begin, end).filter(is_chosen)
                for name in ("calls", "host", "syncs")
            },
            "ops": numbered(trace["ops"].filter(launched), "range"),
            "ranges": numbered(ranges.lazy(), "range", "parent").collect(engine="in-memory").lazy(),
        }
    ), known


def around_steps(trace: Trace, steps: pl.DataFrame, first: int, last: int) -> Trace:
    """Limit a run to steps `first` to `last`, and one step before and after, which may delay them.

    If `first` is the run's first step, all before is kept, too; if `last` is its last step, all
    after. Ops and calls are kept in memory, as they are read several times.
    """
    of_host = numbered_alike(trace).read("iterations").select("iteration", "start", "end")
    both = pl.concat([steps.select(of_host.columns), of_host]).drop_nulls("iteration")
    least, most = both.select(pl.col("iteration").min(), last=pl.col("iteration").max()).row(0)
    beside = both.filter(pl.col("iteration").is_between(first - 1, last + 1))
    begin, end = beside.select(pl.col("start").min(), pl.col("end").max()).row(0)
    begin, end = begin if first > least else _EVER[0], end if last < most else _EVER[1]
    loading_threads(trace)  # a thread may load only here, and work elsewhere
    starting = pl.col("start").is_between(begin, end)
    launched = trace["ops"].filter(starting).select(pl.col("launch_start").min()).collect().item()
    near, _ = around(trace, begin if launched is None else min(begin, launched), end)
    tables = {name: near[name].filter(pl.col("start") <= end) for name in ("ops", "calls")}
    return near.with_part({name: table.collect().lazy() for name, table in tables.items()})


def _sizes(trace: Trace) -> pl.DataFrame:
    """Return ``op, size_bytes`` of collectives of known size."""
    is_known = read_calls(trace)["message_bytes"].is_not_null().any()
    calls = collective_calls(trace) if is_known else COLLECTIVE_CALLS.empty()
    return calls.select("op", size_bytes="message_bytes").drop_nulls().unique("op")


def _place(device: str, is_host: pl.Expr) -> pl.Expr:
    named = pl.format("GPU {}", device)
    return pl.when(is_host.fill_null(value=False)).then(pl.lit("host")).otherwise(named)


def ranges_inside(trace: Trace, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the NVTX ranges that overlap the given interval of their process.

    `spans` has ``process, start, end``: one interval per process.

    Returns
    -------
    The columns of ``ranges``, sorted by start; an outer range comes before those inside it.
    """
    bounds = spans.select("process", span_start="start", span_end="end").lazy()
    touches = (pl.col("start") < pl.col("span_end")) & (pl.col("end") > pl.col("span_start"))
    found = _near(trace, "ranges", spans).join(bounds, on="process").filter(touches)
    return found.drop("span_start", "span_end").sort("start", "depth").collect()


def driving_threads(trace: Trace) -> pl.DataFrame:
    """Return the threads on which iterations run; without iterations, the one with most launches.

    Returns
    -------
    ``process, thread``.
    """
    known = trace.read("iterations").select("process", "thread").unique()
    if not known.is_empty():
        return known
    launched = trace["ops"].drop_nulls("launch_thread").group_by("process", "launch_thread").len()
    most = launched.sort("process", "len", descending=[False, True]).collect()
    return most.unique("process", keep="first").select("process", thread="launch_thread")


def whole_spans(trace: Trace) -> pl.DataFrame:
    """Return ``process, device, start, end`` (ns): first start and last end of ops in the run."""
    edges = trace["ops"].group_by(_OWNER).agg(pl.col("start").min(), pl.col("end").max())
    return edges.sort(_OWNER).collect()


def stage_spans(trace: Trace, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the intervals in which each GPU runs ops of each stage, inside `spans`.

    `spans` has ``process, device, start, end`` (ns); no two of one process and GPU overlap.

    Returns
    -------
    ``device, stage, start, end``; no two of one GPU and stage overlap or touch, so that their
    lengths add up to its busy time.
    """
    ops = _near(trace, "ops", spans).select(*_OWNER, "stage", "start", "end").collect()
    windows = spans.select(
        *_OWNER, "start", "end", iteration=pl.lit(None, pl.Int64), counts=pl.lit(value=True)
    )
    pieces = inside_steps(ops, windows.sort(*_OWNER, "start"))
    return merged(pieces.filter(pl.col("end") > pl.col("start")), ["device", "stage"])


def idle_spans(trace: Trace, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the idle intervals of each GPU inside `spans`, with their causes.

    `spans` has ``device, start, end`` (ns).

    Returns
    -------
    ``device, start, end, cause``, sorted by time on each GPU.
    """
    windows = spans.group_by("device").agg(pl.col("start").min(), pl.col("end").max())
    windows = windows.sort("device").select(
        "device",
        "start",
        "end",
        process=pl.lit(None, pl.Int32),
        iteration=pl.lit(None, pl.Int64),
    )
    inside = cut(idle_pieces(trace, windows).pieces, windows).filter(
        pl.col("end") > pl.col("start")
    )
    return inside.select("device", "start", "end", pl.col("cause").cast(pl.String)).sort(
        "device", "start"
    )


class StepWork(NamedTuple):
    """Work of GPUs in steps."""

    kinds: pl.DataFrame
    """``kind, busy_ns``: busy time by kind of op, summed over all steps and GPUs."""
    communication: pl.DataFrame
    """``process, device, iteration, step_ns, communication_ns, exposed_ns``: one row per step on a
    GPU. Communication means kernels of collectives, and copies between GPUs, direct or through the
    host. It is exposed while no other op runs on its GPU."""


def work_in_steps(trace: Trace, spans: pl.DataFrame) -> StepWork:
    """Return the busy time in steps by kind of op, and the communication of each step.

    `spans` are steps on GPUs, from `step_spans`. Ops that overlap in time count once.
    """
    is_communication = pl.col("kind").is_in(_KINDS)
    layer = pl.when(is_communication).then(pl.lit("communication", _LAYER))
    ops = trace["ops"].select(
        *_OPS, stage=pl.col("kind").cast(_WORK_FIRST.dtype), launch_thread=pl.lit(None, pl.Int32),
        stage_source=layer.otherwise(pl.lit("work", _LAYER)),
    )  # fmt: skip
    ordered = spans.sort("process", "device", "start").with_row_index("window")
    tally = StageTally(values=(_WORK_FIRST, _LAYER.categories.cast(_LAYER)))
    sums: StageSums = sum_in(trace.with_lazy({"ops": ops}), tally, ordered)
    kinds = sums.stages.group_by(kind="stage").agg(pl.col("busy_ns").sum())
    of_communication = sums.stages.filter(pl.col("stage").is_in(_KINDS))
    exposed = of_communication.group_by("window").agg(pl.col("exposed_ns").sum())
    busy = sums.sources.filter(stage_source="communication")
    steps = ordered
    for found in (busy.select("window", communication_ns="busy_ns"), exposed):
        steps = steps.join(found, on="window", how="left", maintain_order="left")
    lengths = pl.col("communication_ns", "exposed_ns").fill_null(0)
    return StepWork(kinds, steps.select(*_STEP, _LENGTH.alias("step_ns"), lengths))
