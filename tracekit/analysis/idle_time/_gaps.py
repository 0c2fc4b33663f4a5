"""Gaps: when nothing runs on a device, between which ops, and when what ends them was launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from tracekit.model import Trace

_OWNER = ["process", "device"]
_NEEDED = [
    "op", "process", "device", "start", "end", "launch_thread", "launch_end", "stage",
]  # fmt: skip
AHEAD_NS = 50_000
"""An op that is queued for longer than this was launched by a host that is ahead of the GPU."""
_TARGET = [
    "op", "process", "stage", "launch_thread", "launch_start", "launch_end",
]  # fmt: skip


def gaps_of(trace: Trace, windows: pl.DataFrame) -> pl.DataFrame:
    """Return when nothing runs on each device, and what is known of the op that comes late.

    That op (`after`) is the one that ends the gap. Where a loader's thread launched that one, it is
    the next one that no loader did: a piece of input that runs by itself does not say why the
    others are late.

    Parameters
    ----------
    trace
        The run.
    windows
        ``process, device, start, end``. Without processes the gaps are those that all of a device's
        processes leave; else each process on a device has its own. Where a window ends later than
        the last op, the rest of it is a gap without a later op.

    Returns
    -------
    ``gap, process`` (that of the later op), ``device, start, end, before, ended_by, after, stage,
    launch_thread, launch_start, launch_end, ahead, by_loader``. ``ahead`` is when the host was last
    ahead before: the end of the call that launched an op which was then queued for longer than
    `AHEAD_NS`. ``by_loader`` is whether a loader's thread launched the op that ends the gap.
    """
    line = ["device"] if windows["process"].null_count() else _OWNER
    ops = trace["ops"].select(_NEEDED).collect().sort(*line, "start", "op")
    found = _between(ops, line, windows).with_row_index("gap")
    wanted = pl.concat([found["before"], found["after"]]).drop_nulls().unique()
    known = trace["ops"].filter(pl.col("op").is_in(wanted.implode())).select(_TARGET).collect()
    earlier = known.select(before="op", before_process="process")
    later = known.rename({"op": "after"})
    return (
        found.join(later, on="after", how="left", maintain_order="left")
        .join(earlier, on="before", how="left", maintain_order="left")
        .with_columns(process=pl.coalesce("process", "before_process"))
        .drop("before_process")
    )


def _between(ops: pl.DataFrame, line: list[str], windows: pl.DataFrame) -> pl.DataFrame:
    """Return ``device, start, end, before, ended_by, after, ahead, by_loader`` of ops by line."""
    own = pl.col("stage") != "IO"
    drivers = ops.filter(own)["launch_thread"].drop_nulls().unique()
    of_loader = ~own & ~pl.col("launch_thread").is_in(drivers.implode()).fill_null(value=True)
    main = pl.when(~of_loader).then("op").backward_fill().over(line)
    furthest = pl.col("end").cum_max().over(line)
    reaches = pl.col("end") == furthest
    queued = pl.col("start") - pl.col("launch_end") > AHEAD_NS
    lead = pl.when(queued).then("launch_end").cum_max()
    ordered = ops.with_columns(
        after=pl.coalesce(main, "op"),
        since=furthest.shift().over(line),
        before=pl.when(reaches).then("op").forward_fill().shift().over(line),
        by_loader=of_loader,
        ahead=lead.forward_fill().shift().over(line),
        last=pl.when(reaches).then("op").forward_fill().over(line),
    )
    inside = ordered.filter(pl.col("start") > pl.col("since"))
    columns = ["device", "start", "end", "before", "ended_by", "after", "ahead", "by_loader"]
    between = inside.select(
        "device", "before", "after", "ahead", "by_loader", start="since", end="start", ended_by="op"
    ).select(columns)
    until = windows.group_by(line).agg(until=pl.col("end").max())
    ends = ordered.group_by(line).agg(pl.col("end").max(), before=pl.col("last").last())
    nothing = pl.lit(None, ops.schema["op"])
    behind = (
        ends.join(until, on=line)
        .filter(pl.col("until") > pl.col("end"))
        .select(
            "device",
            "before",
            start="end",
            end="until",
            ended_by=nothing,
            after=nothing,
            ahead=pl.lit(None, pl.Int64),
            by_loader=pl.lit(value=False),
        )
        .select(columns)
    )
    return pl.concat([between, behind]).sort("device", "start", "end")
