"""Find ops that wait for another GPU: for its events, or for copies from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis.idle_account._timeline import covered, merged, merged_in_batches

if TYPE_CHECKING:
    from tracekit.model import Trace

_LANE = ["process", "context", "stream"]
_FOUND = pl.Schema({"gap": pl.UInt32(), "held_until": pl.Int64(), "held_by": pl.Int32()})
BEHIND = ("behind_weight_update", "behind_collective", "behind_stage")
"""What another GPU does meanwhile; of several at once the first one that takes longest."""


def holders(trace: Trace, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return which other GPU holds the op after a gap, and until when.

    Parameters
    ----------
    trace
        The run.
    gaps
        As `gaps_of` gives them.

    Returns
    -------
    ``gap, held_until, held_by``, a row per gap of which one is known.
    """
    if trace["devices"].filter("active").select(pl.len()).collect().item() == 1:
        return pl.DataFrame(schema=_FOUND)
    found = [_by_event(trace, gaps), _by_copy(trace, gaps), _by_end(trace, gaps)]
    known = pl.concat([each.select(*_FOUND).cast(_FOUND) for each in found])
    return known.sort("held_until", "held_by").unique("gap", keep="last", maintain_order=True)


def _by_event(trace: Trace, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return for which op on another device the stream of the later op waited."""
    waits = trace["syncs"].filter(pl.col("type") == "stream_wait_event")
    named = waits.select(*_LANE, "start", "event", "recorded_by", wait="correlation").collect()
    records = trace["event_records"].drop_nulls("correlation").select(
        "process", "event", record="correlation", record_context="context", record_stream="stream"
    ).collect()  # fmt: skip
    if named.is_empty() or records.is_empty():
        return pl.DataFrame(schema=_FOUND)
    ops = trace["ops"].drop_nulls("correlation").select(
        *_LANE, "op", "device", "correlation", "launch_start", "end"
    ).collect()  # fmt: skip
    launched = ops.drop_nulls("launch_start").sort("launch_start")
    held = _known_lanes(named).sort("start").join_asof(
        _known_lanes(launched).select(*_LANE, "launch_start", after="op"),
        left_on="start", right_on="launch_start", by=_LANE, strategy="forward",
        check_sortedness=False,
    ).drop_nulls("after").with_columns(known=pl.coalesce("recorded_by", "wait"))  # fmt: skip
    recorded = held.drop_nulls("known").sort("known").join_asof(
        records.sort("record"), left_on="known", right_on="record", by=["process", "event"],
        check_sortedness=False,
    ).select(
        "after", "process", context=pl.col("record_context").fill_null(-1), stream="record_stream",
        record="record",
    ).drop_nulls("record")  # fmt: skip
    awaited = recorded.sort("record").join_asof(
        _known_lanes(ops).sort("correlation").select(
            *_LANE, "correlation", held_by="device", held_until="end"
        ),
        left_on="record", right_on="correlation", by=_LANE, check_sortedness=False,
    ).drop_nulls("held_until")  # fmt: skip
    return (
        gaps.select("gap", "device", "start", "end", "after")
        .join(awaited.select("after", "held_by", "held_until"), on="after")
        .filter((pl.col("held_by") != pl.col("device")) & (pl.col("held_until") > pl.col("start")))
        .with_columns(held_until=pl.min_horizontal("held_until", "end"))
    )


def _known_lanes(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(pl.col("context").fill_null(-1))


def _by_copy(trace: Trace, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return from where the last copy came that arrived in a gap, or that ends it."""
    ops = trace["ops"].filter(pl.col("src_device") != pl.col("dst_device"))
    copies = ops.select("op", "start", "end", "src_device", device="dst_device").collect()
    arrived = (
        gaps.sort("end")
        .join_asof(
            copies.sort("end").select("device", time="end", held_until="end", held_by="src_device"),
            left_on="end", right_on="time", by="device", check_sortedness=False,
        )
        .filter(pl.col("held_until") > pl.col("start"))
    )  # fmt: skip
    ending = gaps.join(
        copies.select("device", ended_by="op", held_by="src_device"), on=["device", "ended_by"]
    ).with_columns(held_until="end")
    return pl.concat([frame.select(*_FOUND) for frame in (arrived, ending)])


def _by_end(trace: Trace, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return which other device was the last to work on a step that is over on this one."""
    behind = gaps.filter(pl.col("after").is_null())
    ends = trace["ops"].select(held_by="device", until="end")
    last = ends.filter(pl.col("until").is_in(behind["end"].implode())).collect().unique("until")
    return behind.join(last, left_on="end", right_on="until").with_columns(held_until="end")


def named_behind(trace: Trace, pieces: pl.DataFrame) -> pl.DataFrame:
    """Add ``behind``: what the device that holds a piece did for most of it; null if nothing.

    A device that is itself held behind another one meanwhile passes on what that one did: the
    first micro-batch of a pipeline comes to its last stage through all others.

    Parameters
    ----------
    trace
        The run.
    pieces
        ``device, start, end, held_by``.
    """
    busy = _busy(trace, pieces["held_by"].unique())
    known, before = _named(pieces, busy), -1
    while known["behind"].count() > before:
        before = known["behind"].count()
        passed_on = known.drop_nulls("behind").select(
            "start", "end", held_by="device", what="behind"
        )
        both = pl.concat([busy.select(passed_on.columns), passed_on])
        known = _named(pieces, merged(both, ["held_by", "what"]))
    return known


def _busy(trace: Trace, holding: pl.Series) -> pl.DataFrame:
    """Return when some devices are busy with what: ``held_by, what, start, end``."""
    what = (
        pl.when(pl.col("kind") == "collective").then(pl.lit(BEHIND[1]))
        .when(pl.col("stage") == "WU").then(pl.lit(BEHIND[0]))
        .otherwise(pl.lit(BEHIND[2]))
    )  # fmt: skip
    ops = trace["ops"].with_columns(what=what)
    works = pl.concat(
        ops.select("start", "end", "what", held_by=name).drop_nulls("held_by")
        for name in ("device", "src_device", "dst_device")
    )
    held = works.filter(pl.col("held_by").is_in(holding.implode()))
    return merged_in_batches(held, ["held_by", "what"])


def _named(pieces: pl.DataFrame, busy: pl.DataFrame) -> pl.DataFrame:
    """Add ``behind``: what takes the longest part of each piece, if all of it takes half of it."""
    for name in BEHIND:
        blocks = busy.filter(pl.col("what") == name).drop("what")
        pieces = covered(pieces, blocks, ["held_by"], name)
    most = pl.max_horizontal(BEHIND)
    longest = pl.coalesce(pl.when(pl.col(name) == most).then(pl.lit(name)) for name in BEHIND)
    length = pl.col("end") - pl.col("start")
    enough = 2 * sum((pl.col(name) for name in BEHIND), pl.lit(0)) >= length
    return pieces.with_columns(behind=pl.when(enough & (most > 0)).then(longest)).drop(BEHIND)
