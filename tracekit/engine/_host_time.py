"""Host time by stage: for runs without GPU work, NVTX ranges take the place of ops.

Time that a host thread spends in a range differs from the GPU time of what it launches, so host
time is never shown beside GPU time.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tracekit.engine._launch_groups import host_marks, launch_groups
from tracekit.engine._windows import Cutter, run_windows
from tracekit.model import STAGE_SOURCE, Trace

_EVENT = ["line", "time", "begins", "turn"]


def has_ops(trace: Trace) -> bool:
    """Test whether a run has any GPU work."""
    return trace["ops"].select("start").head(1).collect().height > 0


def on_host(trace: Trace, *, by_range: bool = False) -> Trace:
    """Replace a run's ops by pieces of its NVTX ranges, to add up host time as if it were GPU time.

    A piece is an interval of a thread with one stage. The stage is that of the innermost push/pop
    range that has a stage; throughout a range of metric evaluation it is ``ME``. Each start/end
    range is one piece. With `by_range`, a range without a stage (such as a layer) inside a range
    with a stage gets pieces of its own, with that stage.

    Returns
    -------
    The trace; its ``ops`` have ``process, device`` (equal to the process), ``start, end`` (ns),
    ``stage, stage_source`` (``nvtx`` or ``process_range``), ``launch_thread, launch_start,
    iteration`` (null) and ``is_first``: true for one piece of each range.
    """
    ranges = trace["ranges"].select(
        "range", "report", "process", "thread", "domain", "start", "end", "style", "stage"
    )
    if by_range:
        ranges = _with_stages_around(ranges, trace["ranges"])
    staged = ranges.filter(pl.col("stage").is_not_null() & (pl.col("end") > pl.col("start")))
    is_nested = pl.col("style") == "push_pop"
    pieces = pl.concat(
        [
            _innermost(staged.filter(is_nested).collect()),
            _as_pieces(staged.filter(~is_nested).collect(), "process_range").with_columns(
                is_first=pl.lit(value=True)
            ),
        ]
    ).sort("start", "process", "thread")
    ops = pieces.with_columns(
        op=pl.int_range(pl.len()),
        device="process",
        launch_thread="thread",
        launch_start="start",
        iteration=pl.lit(None, pl.Int64),
    )
    return trace.with_lazy({"ops": ops.lazy()})


def _with_stages_around(ranges: pl.LazyFrame, table: pl.LazyFrame) -> pl.LazyFrame:
    """Give each range without a stage the stage of the nearest enclosing range that has one.

    The search upward is repeated, each time over twice as many nesting levels.
    """
    known = table.select("range", "stage", around="parent", depth="depth").collect()
    deepest = known["depth"].max()
    for _ in range(int(deepest or 0).bit_length() if isinstance(deepest, int) else 0):
        further = known.select(around="range", its_stage="stage", further="around")
        known = known.join(further, on="around", how="left", maintain_order="left").select(
            "range",
            # Who has a stage looks no further.
            stage=pl.coalesce("stage", "its_stage"),
            around=pl.when(pl.coalesce("stage", "its_stage").is_null()).then("further"),
        )
    return ranges.drop("stage").join(known.lazy().select("range", "stage"), on="range", how="left")


def _as_pieces(ranges: pl.DataFrame, source: str) -> pl.DataFrame:
    return ranges.select(
        "range", "report", "process", "thread", "start", "end", "stage",
        stage_source=pl.lit(source, STAGE_SOURCE),
    )  # fmt: skip


def _innermost(ranges: pl.DataFrame) -> pl.DataFrame:
    """Split each host thread's time into intervals by its innermost open NVTX range.

    A range is innermost from its start until a nested range starts; when that one ends, the range
    around it is innermost again.
    """
    ranges = _on_lines(_outside_evaluation(ranges))
    stretches = _stretches(ranges).select("range", piece_start="start", piece_end="end")
    cut = stretches.join(_as_pieces(ranges, "nvtx"), on="range", how="left", maintain_order="left")
    return cut.with_columns(
        start="piece_start", end="piece_end", is_first=pl.col("range").is_first_distinct()
    ).drop("piece_start", "piece_end")


def innermost_stretches(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return when a range is innermost: ``process, thread, range, start, end`` (ns).

    `ranges` has ``range, process, thread, domain, start, end``.
    """
    ranges = _on_lines(ranges)
    threads = ranges.select("line", "process", "thread").unique()
    stretches = _stretches(ranges).join(threads, on="line", how="left", maintain_order="left")
    return stretches.select("process", "thread", "range", "start", "end")


def _stretches(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return when a range is innermost on its line: ``line, range, start, end`` (ns).

    A line is a thread, or a thread and an NVTX domain.
    """
    owner = pl.col("owner").forward_fill().over("line", "level")
    return (
        _events(ranges)
        .with_columns(end=pl.col("time").shift(-1).over("line"), owner=owner)
        .filter((pl.col("level") > 0) & (pl.col("end") > pl.col("time")))
        .select("line", range="owner", start="time", end="end")
    )


def _events(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return range starts and ends in order: ``line, time`` (ns), ``begins, range, owner, level``.

    ``line`` is a thread (and NVTX domain), ``begins`` whether it is a start, ``owner`` the range
    that starts (null at an end), and ``level`` the number of ranges open on the line from then on.
    """
    level = (2 * pl.col("begins") - 1).cum_sum().over("line")
    begin = ranges.select("line", "range", time="start", begins=1, owner="range")
    end = ranges.select("line", "range", time="end", begins=0, owner=pl.lit(None, pl.Int64))
    # What ends at a time does so before anything begins, and what began last ends first.
    turn = pl.when(pl.col("begins") == 1).then("range").otherwise(-pl.col("range"))
    return pl.concat([begin, end]).with_columns(turn=turn).sort(_EVENT).with_columns(level=level)


def _on_lines(ranges: pl.DataFrame) -> pl.DataFrame:
    """Add ``line``, an id of the thread, or of thread and NVTX domain where ranges cross.

    NVTX ranges nest per thread and domain, so ranges of two domains may cross.
    """
    by_thread = ranges.with_columns(line=pl.struct("thread").rank("dense").cast(pl.Int64))
    closed = pl.col("level") + 1 - pl.col("begins")
    opened = pl.col("owner").forward_fill().over("line", "closed")
    crossing = (
        _events(by_thread.filter(pl.col("domain").n_unique().over("thread") > 1))
        .with_columns(closed=closed)
        .with_columns(opened=opened)
        .filter((pl.col("begins") == 0) & (pl.col("opened") != pl.col("range")))
    )
    domain = pl.when(pl.col("line").is_in(crossing["line"].unique().implode())).then("domain")
    line = pl.struct("thread", domain.alias("domain")).rank("dense").cast(pl.Int64)
    return by_thread.with_columns(line=line)


def _outside_evaluation(ranges: pl.DataFrame) -> pl.DataFrame:
    """Drop ranges inside a range of metric evaluation on their thread."""
    evaluated = pl.when(pl.col("stage") == "ME").then("end").cum_max().shift(1).over("thread")
    ordered = ranges.sort("thread", "range")
    inside = (pl.col("end") <= evaluated.forward_fill().over("thread")).fill_null(value=False)
    return ordered.filter(~inside)


def host_windows(trace: Trace) -> pl.DataFrame:
    """Cut each process's time into its iterations and the gaps between them.

    Parameters
    ----------
    trace
        A run with the pieces of ranges that `on_host` makes in place of ops.

    Returns
    -------
    ``process, device, iteration, start, end, is_open`` (times in ns), as `run_windows` returns for
    devices; but each iteration lasts exactly as long as its range, even the last iteration
    (``is_open`` is false).
    """
    owner = ["process", "device"]
    pieces = launch_groups(trace).group_by(owner)
    edges = pieces.agg(first=pl.col("start").min(), last=pl.col("end").max())
    marks = host_marks(trace.read("iterations")).select("process", "time", "iteration")
    begins = marks.group_by("process").agg(begin=pl.col("time").min())
    before = (
        edges.join(begins, on="process", how="left")
        .filter((pl.col("first") < pl.col("begin")).fill_null(value=True))
        .select("process", time="first", iteration=pl.lit(None, pl.Int64))
    )
    last = pl.max_horizontal("time", "last")
    return (
        pl.concat([before, marks])
        .join(edges, on="process")
        .sort("process", "time")
        .select(
            *owner,
            "iteration",
            start="time",
            end=pl.coalesce(pl.col("time").shift(-1).over("process"), last),
            is_open=False,
        )
    )


@dataclass(frozen=True)
class Work:
    """A run whose time is summed by stage and range: GPU time of its ops, or host time.

    For host time (`is_host`), `trace` has pieces of NVTX ranges in place of ops.
    """

    trace: Trace
    is_host: bool = False

    @property
    def cutter(self) -> Cutter:
        """Function that cuts the run's time into iterations."""
        return host_windows if self.is_host else run_windows
