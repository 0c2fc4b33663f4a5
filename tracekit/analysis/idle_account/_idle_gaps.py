"""Idle gaps of GPUs: the ops before and after each, and the GPU that the later op waits for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.analysis.idle_account._timeline import Array, covered, merged, merged_in_batches
from tracekit.engine import Lines, extended, launch_groups
from tracekit.model import Stretch
from tracekit.support.batches import at_least_one
from tracekit.support.compiled import compiled, given

if TYPE_CHECKING:
    from tracekit.model import Frames, Trace

_OUT_OF_ORDER = -1
_LANE = ["process", "context", "stream"]
_FOUND = pl.Schema({"gap": pl.UInt32(), "held_until": pl.Int64(), "held_by": pl.Int32()})
BEHIND = ("behind_weight_update", "behind_collective", "behind_stage")
"""Activities of another GPU during a gap; of several the longest counts, then the first."""


class _Ops(NamedTuple):
    """GPU ops as arrays (start, end and others), ordered by timeline, start and op number.

    A timeline is one GPU, or one process on a GPU.
    """

    lines: Array
    numbers: Array
    starts: Array
    ends: Array
    leads: Array
    """Time at which the host was ahead (the op was queued for long); if it was not, a time earlier
    than all others.
    """
    of_loader: Array
    """Whether a data loader's thread launched the op."""


class _Reached(NamedTuple):
    """State of each timeline (GPU, or process on a GPU) after the ops read: latest op and end."""

    ends: Array
    """Latest end of any op."""
    numbers: Array
    """The op with that end, the last of several; -1 before the first op."""
    starts: Array
    """Start of the latest op."""
    latest: Array
    """The latest op."""
    leads: Array
    """Time at which the host was last ahead."""
    waiting: Array
    """Whether a gap came, and since then only ops that a data loader launched."""


class _Found(NamedTuple):
    """Output arrays, an entry per op after an idle gap: its row, the gap's begin, the op before it.

    For each gap these are the op that ends it and, if a data loader launched that one, also the
    next op that no loader launched; the latter ends no gap, so ``begins`` is its own start.
    """

    rows: Array
    begins: Array
    before: Array
    leads: Array


def _find_gaps(ops: _Ops, reached: _Reached, found: _Found) -> int:
    """Find the gaps between ops on each timeline (a GPU, or a process on a GPU).

    Parameters
    ----------
    ops
        The ops of one batch.
    reached
        State of each timeline after earlier batches; updated.
    found
        Output arrays with room for one row per op. The first op of a timeline counts as the end of
        a gap, before which there is no op.

    Returns
    -------
    Number of rows in `found`; `_OUT_OF_ORDER` if a timeline's ops are not sorted by start and
    number.
    """
    count = 0
    for row in range(len(ops.lines)):
        line, op, start = ops.lines[row], ops.numbers[row], ops.starts[row]
        latest = reached.starts[line]
        if start < latest or (start == latest and op < reached.latest[line]):
            return _OUT_OF_ORDER
        reached.starts[line], reached.latest[line] = start, op
        is_gap = start > reached.ends[line]
        if is_gap or (reached.waiting[line] and not ops.of_loader[row]):
            found.rows[count], found.before[count] = row, reached.numbers[line]
            found.begins[count] = reached.ends[line] if is_gap else start
            found.leads[count] = reached.leads[line]
            reached.waiting[line] = ops.of_loader[row]
            count += 1
        if ops.ends[row] >= reached.ends[line]:
            reached.ends[line], reached.numbers[line] = ops.ends[row], op
        reached.leads[line] = max(reached.leads[line], ops.leads[row])
    return count


_OWNER = ["process", "device"]
_NEVER = -(1 << 62)
AHEAD_NS = 50_000
"""Time in the queue above which an op was launched by a host that is ahead of the GPU, ns."""
_LATE = ["op", "process", "stage", "launch_thread", "launch_start", "launch_end"]
_TARGET = [*_LATE, "brings_input"]
"""Columns on the late op of a gap."""
_INPUT_BYTES = 1 << 16
"""Least bytes of a copy from the host that brings a batch; smaller ones may be of a few numbers."""
_NEEDED = [*_LATE, "device", "start", "end", "kind", "bytes"]
_REACH_NS, _FURTHER = 10_000_000, 8
"""Least time around windows in which ops are looked for, ns, and how much further each next time.
"""


def gaps_of(trace: Trace, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the idle gaps of each GPU, with the op whose lateness explains each gap.

    The late op (`after`) is the op that ends the gap; if a data loader's thread launched that op,
    the late op is the next one that no loader launched, since a copy of input does not show why the
    other ops are late.

    Parameters
    ----------
    windows
        ``process, device, start, end`` (ns). If ``process`` is null, a gap is time in which no
        process uses the device; else each process on a device has gaps of its own. If a window ends
        after the last op, the rest of it is a gap without a later op.

    Returns
    -------
    One row per gap: ``gap, process`` (of the late op), ``device, start, end``; the ops ``before``
    and ``ended_by`` around the gap, and the late op ``after``; of the late op ``stage,
    launch_thread, launch_start, launch_end, brings_input`` (whether it copies input from the host);
    ``ahead``, when the host was last ahead of the GPU: the end of a launch whose op was then queued
    for longer than `AHEAD_NS`; ``by_loader``, whether a data loader's thread launched the op that
    ends the gap.
    """
    gaps, ends, line = *trace.once(_between_ops), _OWNER
    if windows["process"].null_count():
        line = ["device"]
        if ends["device"].is_duplicated().any():
            gaps, ends = _between_ops(trace, line)
    found = pl.concat([gaps, _behind(trace, ends, windows, line)], how="diagonal")
    return found.sort("device", "start", "end", maintain_order=True).with_row_index("gap")


def near(trace: Trace, windows: pl.DataFrame, ending: pl.DataFrame) -> Trace:
    """Return the run with only the ops that decide on idle time inside of `windows`.

    These begin where each GPU's host was last ahead before the windows, since its waits from then
    on count, and end with its next op that no data loader launched. If GPUs may wait for each
    other, all ops are kept: such waits are passed on from GPU to GPU, however far. So are they if
    the windows cover at least half of the run, to share the gaps with questions about the rest.

    Parameters
    ----------
    windows
        As for `gaps_of`.
    ending
        The GPUs that end steps, from `last_to_work`.
    """
    if windows.is_empty() or trace.once(_may_hold, of_all=True):
        return trace
    begin, end = min([*windows["start"], *ending["since"]]), max(windows["end"])
    owners = windows.select(["device"] if windows["process"].null_count() else _OWNER).unique()
    kept = trace.once(_kept_near)
    for since, until, gpus, found in kept:  # mostly windows of the same time, such as its steps
        lines = found.once(_between_ops)[1]
        is_known = (
            owners["device"].is_in(gpus.implode()).all() and lines["device"].is_unique().all()
        )
        is_known &= owners.join(lines, on=owners.columns, how="anti").is_empty()
        if is_known and since <= begin and end <= until:
            return found
    groups = launch_groups(trace)
    whole = groups.select(pl.col("end").max() - pl.col("start").min()).item() or 0
    if 2 * (end - begin) >= whole:
        kept[:] = [(_NEVER, -_NEVER, owners["device"], trace)]
        return trace
    ops, start, loaders = trace["ops"], pl.col("start"), loading_threads(trace)
    reach = max((end - begin) // _FURTHER, _REACH_NS)
    around = partial(_furthest, owners=owners, edges=(begin, end), reach=reach)
    ahead = ops.filter(start < begin, start - pl.col("launch_end") > AHEAD_NS)
    lead = around(ahead, -pl.col("launch_end"))
    since = _NEVER if lead is None else AHEAD_NS - lead + 1
    by_loader = pl.col("launch_thread").is_in(loaders.implode()).fill_null(value=False)
    last = around(ops.filter(start >= end, ~by_loader), start)
    until = -_NEVER if last is None else last
    found = trace.with_part({"ops": trace.during("ops", since, until)})
    kept[:] = [(begin, end, owners["device"], found)]
    return found


def _kept_near(_: Trace) -> list[tuple[int, int, pl.Series, Trace]]:
    """Return a list, empty at first, for the last result of `near`, and its time and GPUs."""
    return []


def _furthest(
    ops: pl.LazyFrame, bound: pl.Expr, owners: pl.DataFrame, edges: tuple[int, int], reach: int
) -> int | None:
    """Return the largest of the owners' least `bound`; None if `ops` has none of an owner.

    Ops are looked for up to `reach` ns before and after the time `edges`, and then further away.
    """
    while True:
        is_near = pl.col("start").is_between(edges[0] - reach, edges[1] + reach)
        least = ops.filter(is_near).group_by(owners.columns).agg(bound=bound.min()).collect()
        met = owners.join(least, on=owners.columns)["bound"]
        if met.len() == owners.height:
            return int(max(met))
        if ops.filter(~is_near).head(1).collect().is_empty():
            return None
        reach *= _FURTHER


def _may_hold(trace: Trace) -> bool:
    """Return whether a GPU may wait for another one: for its copy, or by an event of a process."""
    if trace["devices"].filter("active").select(pl.len()).collect().item() == 1:
        return False
    if not copying(trace).is_empty():
        return True
    if not trace.height("event_records"):
        return False
    return (
        launch_groups(trace).select("process", "device").unique()["process"].is_duplicated().any()
    )


def copying(trace: Trace) -> pl.DataFrame:
    """Return ``device, src_device, dst_device``: GPUs between which ops copy."""
    return trace.once(_loading_and_copying, of_all=True)["copying"]


def _between_ops(trace: Trace, line: Sequence[str] = _OWNER) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the gaps between ops of each GPU or other `line`, and the end of its last op.

    `line` has the columns that name the owner of a gap: the GPU, or the process and the GPU.
    """
    ops, loaders = trace["ops"].select(_NEEDED), loading_threads(trace)
    found = _found(ops, line, loaders)
    if found is None:  # several reports saw one device, and each has its ops by start
        found = _found(ops.sort("start", "op"), line, loaders)
    if found is None:
        raise AssertionError("ops that were sorted come by start")
    return _between(found[0]), found[1]


def _found(
    ops: pl.LazyFrame, line: Sequence[str], loaders: pl.Series
) -> tuple[pl.DataFrame, pl.DataFrame] | None:
    """Return ops that end idle gaps, and when each timeline ends; None if ops are not sorted.

    A timeline has the ops of a GPU, or of a process on a GPU, by the columns `line`.

    Returns
    -------
    Columns of ops with ``line`` (timeline), ``begin`` (of the gap, ns), ``before, ahead,
    by_loader`` as in `gaps_of`; and the columns `line`, ``end, before`` (end and number of the op
    that ends last) per timeline.
    """
    lines, reached = Lines(line), _reached(0)
    may_be_input = (pl.col("stage") == "IO") | (pl.col("bytes") >= _INPUT_BYTES)
    parts = []
    for batch in at_least_one(ops):
        numbers = lines.of(batch)
        reached = extended(reached, _reached(len(lines)))
        known = batch.with_columns(
            brings_input=((pl.col("kind") == "h2d") & may_be_input).fill_null(value=False),
            by_loader=pl.col("launch_thread").is_in(loaders.implode()).fill_null(value=False),
            lead=pl.when(pl.col("start") - pl.col("launch_end") > AHEAD_NS).then("launch_end"),
        )
        room = _Found(*(np.empty(batch.height, np.int64) for _ in _Found._fields))
        count = compiled(_find_gaps, batch.height)(
            _Ops(numbers, given(known["op"]), given(known["start"]), given(known["end"]),
                given(known["lead"], null=_NEVER), given(known["by_loader"])),
            reached, room,
        )  # fmt: skip
        if count == _OUT_OF_ORDER:
            return None
        rows, begins, before, ahead = (values[:count] for values in room)
        parts.append(known[rows].drop("lead", "kind", "bytes").with_columns(
            line=pl.Series(numbers[rows]), begin=pl.Series(begins), before=pl.Series(before),
            ahead=pl.Series(ahead),
        ))  # fmt: skip
    return pl.concat(parts), lines.owners.with_columns(
        end=pl.Series(reached.ends), before=pl.Series(reached.numbers)
    )


def loading_threads(trace: Trace) -> pl.Series:
    """Return the threads that launch only copies of input (data loaders)."""
    return trace.once(_loading_and_copying, of_all=True)["threads"]["launch_thread"]


def _loading_and_copying(trace: Trace) -> Frames:
    """Return ``threads`` (see `loading_threads`) and ``copying`` of a run; cached with it."""
    whole = trace.limited_to(Stretch())
    return whole.sums_of_parts([partial(_of_all_ops, whole)])[0]


def _of_all_ops(trace: Trace) -> Frames:
    ends, is_input = ("device", "src_device", "dst_device"), pl.col("stage") == "IO"
    ops = trace["ops"].select("launch_thread", *ends, loads=is_input)
    threads, copies = [], []
    for rows in at_least_one(ops):
        threads.append(rows.group_by("launch_thread").agg(pl.col("loads").all()))
        copies.append(rows.filter(pl.col(ends[1]) != pl.col(ends[2])).select(ends).unique())
    known = pl.concat(threads).drop_nulls("launch_thread").group_by("launch_thread")
    loading = known.agg(pl.col("loads").all()).filter("loads")
    return {"threads": loading, "copying": pl.concat(copies).unique()}


def _reached(lines: int) -> _Reached:
    """Return the initial `_Reached` of `lines` timelines (GPUs, or processes on GPUs)."""
    never = [np.full(lines, _NEVER) for _ in range(4)]
    ends, starts, latest, leads = never
    return _Reached(ends, np.full(lines, -1), starts, latest, leads, np.zeros(lines, np.bool_))


def _between(found: pl.DataFrame) -> pl.DataFrame:
    """Make rows of idle gaps from rows of `_found`; columns as of `gaps_of`, without ``gap``."""
    main = pl.when(~pl.col("by_loader")).then("row").backward_fill().over("line")
    late = found.with_row_index("row").select(pl.coalesce(main, "row")).to_series()
    after = found.select(_TARGET)[late].rename({"op": "after"})
    gaps = found.select(
        "device", "before", "by_loader", start="begin", end="start", ended_by="op",
        ahead=pl.when(pl.col("ahead") > _NEVER).then("ahead"),
    ).with_columns(after)  # fmt: skip
    return gaps.filter((pl.col("before") >= 0) & (pl.col("start") < pl.col("end")))


def _behind(
    trace: Trace, ends: pl.DataFrame, windows: pl.DataFrame, line: Sequence[str]
) -> pl.DataFrame:
    """Return idle time from a timeline's (GPU's, or process's) last op to its last window's end."""
    until = windows.group_by(line).agg(until=pl.col("end").max())
    last = ends.join(until, on=line).filter(pl.col("until") > pl.col("end"))
    known = trace.rows("ops", last["before"], ["process", "op"]).rename({"op": "before"})
    return last.select(
        "device", "before", start="end", end="until", by_loader=pl.lit(value=False)
    ).join(known, on="before", how="left")


def holders(trace: Trace, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return the GPU that the op after an idle gap waits for, and the end of that wait.

    `gaps` are the idle gaps of GPUs, from `gaps_of`.

    Returns
    -------
    ``gap, held_until`` (ns), ``held_by`` (the other GPU); one row per gap where it is known.
    """
    if trace["devices"].filter("active").select(pl.len()).collect().item() == 1:
        return pl.DataFrame(schema=_FOUND)
    found = [_by_event(trace, gaps), _by_copy(trace, gaps)]
    known = pl.concat([each.select(*_FOUND).cast(_FOUND) for each in found])
    return known.sort("held_until", "held_by").unique("gap", keep="last", maintain_order=True)


def _by_event(trace: Trace, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return the GPU that recorded the CUDA event which the op after an idle gap waited for."""
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
    open_waits = _known_lanes(named).sort("start").join_asof(
        _known_lanes(launched).select(*_LANE, "launch_start", after="op"),
        left_on="start", right_on="launch_start", by=_LANE, strategy="forward",
        check_sortedness=False,
    ).drop_nulls("after").with_columns(known=pl.coalesce("recorded_by", "wait"))  # fmt: skip
    recorded = open_waits.drop_nulls("known").sort("known").join_asof(
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
    """Return the GPU that sent the last copy to arrive in an idle gap, or the copy that ends it."""
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


def last_to_work(trace: Trace, windows: pl.DataFrame) -> pl.DataFrame:
    """Return, per window end, the GPU that works until then, if others have ended earlier.

    Returns
    -------
    ``until`` (end of the window, ns), ``held_by`` (the GPU with an op that ends then; of several
    the lowest number) and ``since`` (end of the last op of the GPU that finished first, ns).
    """
    line = ["device"] if windows["process"].null_count() else _OWNER
    groups, end = launch_groups(trace), pl.col("end")
    last = groups.group_by(until="end").agg(held_by=pl.col("device").min())
    ends = windows.group_by(line).agg(until=end.max())
    ended = groups.group_by(line).agg(since=end.max()).join(ends, on=line)
    left = ended.filter(pl.col("until") > pl.col("since")).group_by("until").agg(
        pl.col("since").min()
    )  # fmt: skip
    return last.join(left, on="until").sort("until")


def waiting_for_end(gaps: pl.DataFrame, last: pl.DataFrame) -> pl.DataFrame:
    """Return the gaps that last until the end of a window, where another GPU (``held_by``) works.

    The columns are ``gap, start, end`` (ns), ``held_by``.

    Parameters
    ----------
    gaps
        Idle gaps of GPUs, from `gaps_of`.
    last
        GPUs that work until windows end, from `last_to_work`.
    """
    behind = gaps.filter(pl.col("after").is_null()).select("gap", "start", "end")
    return behind.join(last.select("until", "held_by"), left_on="end", right_on="until")


def named_behind(trace: Trace, pieces: pl.DataFrame) -> pl.DataFrame:
    """Add ``behind``: main activity of GPU ``held_by`` while another GPU (``device``) waits for it.

    If that GPU itself waits for a third one meanwhile, the third one's activity counts: the first
    micro-batch of a pipeline reaches the last stage through all others. Null if known activities
    cover under half of the interval. `pieces` has ``device, start, end, held_by`` (times in ns).
    """
    blocks = busy_blocks(trace, pieces["held_by"].unique())
    found = [pieces.clear().with_columns(behind=pl.lit(None, pl.String))]
    known, rest = found[0], pieces
    while True:
        each = behind_blocks(rest, blocks)
        known, rest = each.drop_nulls("behind"), each.filter(pl.col("behind").is_null())
        found.append(known)
        if known.is_empty() or rest.is_empty():
            return pl.concat([*found, rest])
        blocks, rest = with_passed_on(blocks, known), rest.drop("behind")


def with_passed_on(blocks: pl.DataFrame, pieces: pl.DataFrame) -> pl.DataFrame:
    """Add to GPUs' busy intervals (`blocks`) the waits (`pieces`) of a GPU for a busy GPU.

    The waiting GPU counts as busy with the busy GPU's activity: a third GPU may wait for it.
    """
    passed_on = pieces.select("start", "end", held_by="device", what="behind")
    both = pl.concat([blocks.select(passed_on.columns), passed_on])
    return merged(both, ["held_by", "what"])


def busy_blocks(trace: Trace, holding: pl.Series, since: int | None = None) -> pl.DataFrame:
    """Return the busy intervals of the GPUs in `holding` (other GPUs wait for these).

    `since`: leave out ops that end before this time, ns; None keeps all.

    Returns
    -------
    ``held_by`` (the GPU), ``what`` (the activity, one of `BEHIND`: weight update, collective or
    other work), ``start, end``.
    """
    activity = (
        pl.when(pl.col("kind") == "collective").then(pl.lit(BEHIND[1]))
        .when(pl.col("stage") == "WU").then(pl.lit(BEHIND[0]))
        .otherwise(pl.lit(BEHIND[2]))
    )  # fmt: skip
    ops = trace["ops"].with_columns(what=activity)
    if since is not None:
        ops = ops.filter(pl.col("end") > since)
    works = pl.concat(
        ops.select("start", "end", "what", held_by=name).drop_nulls("held_by")
        for name in ("device", "src_device", "dst_device")
    )
    holding_works = works.filter(pl.col("held_by").is_in(holding.implode()))
    return merged_in_batches(holding_works, ["held_by", "what"])


def behind_blocks(pieces: pl.DataFrame, busy: pl.DataFrame) -> pl.DataFrame:
    """Add ``behind``: what the GPU that an idle GPU waits for (``held_by``) mainly did meanwhile.

    `busy` has the activities of each GPU. ``behind`` is null if they cover less than half of the
    idle interval.
    """
    for name in BEHIND:
        blocks = busy.filter(pl.col("what") == name).drop("what")
        pieces = covered(pieces, blocks, ["held_by"], name)
    most = pl.max_horizontal(BEHIND)
    longest = pl.coalesce(pl.when(pl.col(name) == most).then(pl.lit(name)) for name in BEHIND)
    length = pl.col("end") - pl.col("start")
    enough = 2 * sum((pl.col(name) for name in BEHIND), pl.lit(0)) >= length
    return pieces.with_columns(behind=pl.when(enough & (most > 0)).then(longest)).drop(BEHIND)
