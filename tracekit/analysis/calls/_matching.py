"""Find which recorded calls are participants of the same collective."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.analysis.calls._groups import GroupSearch
from tracekit.model import with_clocks

_OVERLAP_PERCENT = 95
"""Least share of the collectives of two matched lanes that must overlap in time, percent."""
_ENOUGH = 8
"""Least number of collectives of several participants that show that numbers are wrong."""
_MOST_LANES = 64
"""Largest number of a participant's streams at which a stream counts as a communicator."""
_LANE = ("participant", "process", "context", "stream")
_KEY = ("clock", "library", "kind", "communicator")
_NUMBER = ("library", "kind", "communicator", "call_sequence")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
"""Rooted collectives: a rank may leave before the last one arrives."""
_SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives that no rank leaves before all have arrived."""
_SHARED = pl.min_horizontal("end", "lead_end") - pl.max_horizontal("start", "lead_start")
"""Overlap of a row with its match in the leading lane, ns; negative: the distance between both."""
_NONE = pl.DataFrame(
    schema={"row": pl.UInt32, "lane": pl.Int64, "group": pl.Int64, "instance": pl.Int64}
)
"""Empty table of rows matched in order."""
_STOPPED = (
    "collectives of {ranks:,} ranks name no communicator, too many to try which of them end "
    "together: groups of ranks not found by then are unknown, and their calls not matched"
)
_Known = Literal["known", "likely", "unknown"]
_Times = NDArray[np.float64]
_HAS_MATE = pl.col("lead_start").is_not_null()


def match(rows: pl.DataFrame, reports: pl.DataFrame, notes: list[str] | None = None) -> pl.Series:
    """Return the id of each row's collective, equal for all its participants.

    Collectives with a sequence number in their communicator are matched by that number. A
    communicator's numbers are not used if, of 8 or more collectives matched on one clock, over 5
    percent have a participant that ends before another begins. Kernels that one call launched on
    several devices are matched by correlation id. Other calls are matched in order: the n-th call
    of one participant is the (n + d)-th of another, as recordings start at different points. The
    shift d with the longest overlap in time is taken, and accepted if at least 95 percent of the
    matched calls overlap, as calls that wait for each other do.

    If communicators are unknown, several groups may run at the same times. Ranks then form a group
    only if their calls end together (`GroupSearch`); calls without that proof stay unmatched. A
    rooted collective (such as broadcast) is assigned to the group that the other collectives of the
    same stream have. Calls that do not overlap in time match only in rooted collectives.

    Parameters
    ----------
    rows
        ``library, kind, report, process, device, context, stream, start, end, communicator,
        call_sequence, ranks, correlation, graph_node`` (times in ns). A participant is a device, or
        a process where that is null.
    reports
        The canonical table ``reports``: one row per trace file, with its clock.
    notes
        List to which a sentence is added if the search for groups stopped early.

    Returns
    -------
    ``match``, numbered from 0 in order of time; null for a row without another participant.
    """
    timed = with_clocks(rows, reports).with_row_index("row")
    timed = timed.with_columns(participant=pl.coalesce("device", "process"))
    is_numbered = (
        pl.all_horizontal(pl.col("communicator", "call_sequence").is_not_null())
        & (pl.col("kind") != "send_recv")
    ).fill_null(value=False)
    # Of each file's differences to others at equal ends, the 5th or 95th percentile is left.
    residual = pl.max_horizontal(pl.col("clock_p5").abs(), pl.col("clock_p95").abs()).max()
    between = int(reports.select(residual.fill_null(0)).item())
    miscounted = _miscounted(timed.filter(is_numbered), between)
    is_numbered &= ~pl.col("communicator").is_in(miscounted.implode())
    numbered = _by_number(timed.filter(is_numbered))
    rest = timed.filter(~is_numbered)
    launched = _by_launch(rest)
    search, unnamed = GroupSearch(), rest.join(launched, on="row", how="anti")
    ordered = _by_order(unnamed, search)
    if not search.work and notes is not None:
        ranks = unnamed.filter(pl.col("communicator").is_null())["participant"].n_unique()
        notes.append(_STOPPED.format(ranks=ranks))
    found = _apart([numbered, launched, ordered])
    keyed = timed.join(found, on="row", how="left", maintain_order="left")
    return _numbered(keyed, between)


def _numbered(keyed: pl.DataFrame, between_clocks: int) -> pl.Series:
    """Return the id of each row's collective, matched by the call's number; ids are in time order.

    Null unless two or more participants have that number, each once, no more than the communicator
    has ranks, and all end together within the error `between_clocks` (ns).
    """
    participant = pl.col("participant")
    numbers = (
        keyed.drop_nulls("instance")
        .group_by("instance")
        .agg(
            pl.col("clock").min(),
            pl.col("start").min(),
            once=participant.n_unique() == pl.len(),
            several=participant.n_unique() > 1,
            fits=(participant.n_unique() <= pl.col("ranks").max()).fill_null(value=True),
            together=_end_together(between_clocks),
        )
        .filter("once", "several", "fits", "together")
        .sort("clock", "start", "instance")
        .select("instance", match=pl.int_range(pl.len(), dtype=pl.Int64))
    )
    return keyed.join(numbers, on="instance", how="left", maintain_order="left")["match"]


def _end_together(between_clocks: int) -> pl.Expr:
    """Return an aggregation: whether matched calls overlap; clocks may be off `between_clocks` ns.

    The ends of a send and its receive may differ by at most the shorter call: in a pipeline,
    messages of other neighbours overlap them too. Calls of a collective must overlap, unless it is
    rooted (the root may end long before the others) or is matched by number or launch.
    """
    apart = pl.col("end").max() - pl.col("end").min()
    is_message = (pl.col("kind") == "send_recv").any()
    slack = pl.when(pl.col("report").n_unique() > 1).then(between_clocks).otherwise(0)
    waits = pl.col("kind").is_in(_SYMMETRIC).all() & pl.col("is_ordered").all()
    met = pl.col("end").min() + slack >= pl.col("start").max()
    return (~is_message | (apart <= (pl.col("end") - pl.col("start")).min())) & (~waits | met)


def _miscounted(rows: pl.DataFrame, between_clocks: int) -> pl.Series:
    """Return communicators whose sequence numbers are wrong: calls of one number do not overlap.

    Tested, allowing for the clocks' error `between_clocks` (ns), are collectives that no rank
    leaves before all arrive: of 8 or more, over 5 percent do not overlap. Numbers that a profiler
    counted by itself are wrong from the first call on that the recording lost.
    """
    calls = (
        rows.filter(pl.col("kind").is_in(_SYMMETRIC))
        .group_by("clock", *_NUMBER)
        .agg(pl.len(), met=pl.col("end").min() + between_clocks >= pl.col("start").max())
    )
    met = calls.filter(pl.col("len") > 1).group_by("communicator").agg(pl.len(), pl.mean("met"))
    wrong = (pl.col("len") >= _ENOUGH) & (pl.col("met") * 100 < _OVERLAP_PERCENT)
    return met.filter(wrong)["communicator"]


def _by_number(rows: pl.DataFrame) -> pl.DataFrame:
    """Match calls by sequence number: return ``row`` and ``instance``, the collective's id."""
    key = pl.struct(_NUMBER)
    return rows.select("row", instance=(key.rank("dense").cast(pl.Int64)))


def _by_launch(rows: pl.DataFrame) -> pl.DataFrame:
    """Match kernels that one call launched on several devices: ``row, instance`` (collective's id).

    One `cudaLaunchCooperativeKernelMultiDevice` starts the kernels of all ranks that one process
    drives. Kernels of a CUDA graph share a correlation id, too, but may be several collectives, and
    a collective of several processes needs several calls: both are left out.
    """
    call = ["clock", "process", "library", "kind", "correlation"]
    together = (
        rows.filter(pl.col("process").n_unique().over(_KEY) == 1)
        .filter(pl.col("correlation").is_not_null() & pl.col("graph_node").is_null())
        .filter(pl.col("device").is_unique().over(call), pl.len().over(call) > 1)
    )
    return together.select("row", instance=pl.struct(call).rank("dense").cast(pl.Int64))


def _apart(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """Concatenate tables of matches, give each match an id of its own, and add ``is_ordered``.

    It is true in rows of the last table, whose calls were matched by their order alone.
    """
    of_part = [part.with_columns(part=pl.lit(number)) for number, part in enumerate(parts)]
    key = pl.struct("part", "instance")
    return pl.concat(of_part).select(
        "row",
        instance=key.rank("dense").cast(pl.Int64),
        is_ordered=pl.col("part") == len(parts) - 1,
    )


def _by_order(rows: pl.DataFrame, search: GroupSearch) -> pl.DataFrame:
    """Match calls by their order in time: return ``row, instance`` (id of the collective)."""
    found = [_NONE]
    lanes = rows.with_columns(
        # In a communicator one collective runs after the other, on whatever streams.
        pl.when(pl.col("communicator").is_null()).then(name).alias(name)
        for name in ("context", "stream")
    ).with_columns(lane=pl.struct(_LANE).rank("dense").cast(pl.Int64))
    columns = ("row", "lane", "participant", "start", "end")
    is_named = pl.col("communicator").is_not_null()
    is_rooted = pl.col("kind").cast(pl.String).is_in(_ROOTED)
    named = lanes.filter(is_named).partition_by(_KEY, maintain_order=True)
    found += [_clusters(some.select(columns), "known", search) for some in named]
    for some in lanes.filter(~is_named).partition_by("clock", "library", maintain_order=True):
        found += _on_streams(some.select("kind", *columns), is_rooted, search)
    key = pl.struct("part", "instance")
    return _in_parts(found).select("row", instance=key.rank("dense").cast(pl.Int64))


def _on_streams(rows: pl.DataFrame, is_rooted: pl.Expr, search: GroupSearch) -> list[pl.DataFrame]:
    """Match calls of unknown communicator by stream; calls of one ``instance`` are one collective.

    A stream serves one communicator, so groups proven by one kind of collective that is not rooted
    apply to other kinds on the same streams, matched by position between calls of the proven kind.
    Sends and receives need only overlap and end in order: each involves only some ranks of a group.
    """
    kinds = rows.filter(~is_rooted).partition_by("kind", maintain_order=True)
    several = pl.col("lane").n_unique().over("group") > 1
    # A stream alone is no group: its calls may be of another kind's.
    found = [_NONE, *(_clusters(some, "unknown", search).filter(several) for some in kinds)]
    keys = (pl.struct("part", name).rank("dense").cast(pl.Int64).alias(name)
            for name in ("group", "instance"))  # fmt: skip
    proven = _in_parts(found).with_columns(*keys).drop("part")
    groups = proven.select("lane", "group").unique("lane", keep="first", maintain_order=True)
    rest = rows.join(proven, on="row", how="anti")
    of_groups = rest.join(groups, on="lane")
    is_message = pl.col("kind") == "send_recv"
    messages = of_groups.filter(is_message).partition_by("kind", "group", maintain_order=True)
    found += [_clusters(some.drop("kind", "group"), "known", search) for some in messages]
    found.append(_between(of_groups.filter(~is_message), rows.join(proven, on=["row", "lane"])))
    alone = rest.filter(is_rooted).join(groups, on="lane", how="anti")
    rooted = alone.partition_by("kind", maintain_order=True)
    return [*found, *(_clusters(some.drop("kind"), "likely", search) for some in rooted)]


def _between(rows: pl.DataFrame, proven: pl.DataFrame) -> pl.DataFrame:
    """Match calls of proven groups of streams by position: the n-th after the last proven call.

    Calls before the first proven call count backwards from it. A communicator runs its calls in
    the same order on all ranks. A match needs a call of every stream of the group.

    Parameters
    ----------
    rows
        ``row, lane, group, kind, start`` (ns): calls to match.
    proven
        ``lane, group, instance, start``: calls already matched by their ends, on these and other
        streams (``lane``); ``instance`` is the id of the collective.
    """
    size = proven.group_by("group").agg(lanes=pl.col("lane").n_unique())
    marks = proven.select("lane", "group", "start", mark="instance").sort("start")
    at = rows.sort("start")
    strategies: tuple[tuple[str, Literal["backward", "forward"]], ...] = (
        ("after", "backward"), ("before", "forward"),
    )  # fmt: skip
    for name, strategy in strategies:
        at = at.join_asof(
            marks.rename({"mark": name}), on="start", by=["lane", "group"], strategy=strategy,
            check_sortedness=False,
        )  # fmt: skip
    at = at.with_columns(before=pl.when(pl.col("after").is_null()).then("before"))
    place = ["group", "kind", "after", "before"]
    turn = pl.int_range(pl.len()) - pl.when(pl.col("after").is_null()).then(pl.len()).otherwise(0)
    placed = at.filter(pl.any_horizontal(pl.col("after", "before").is_not_null())).with_columns(
        turn=turn.over("lane", *place)
    )
    called = placed.with_columns(instance=pl.struct(*place, "turn").rank("dense").cast(pl.Int64))
    complete = called.join(size, on="group").filter(
        pl.col("lane").n_unique().over("instance") == pl.col("lanes")
    )
    return complete.select(_NONE.columns)


def _in_parts(found: list[pl.DataFrame]) -> pl.DataFrame:
    """Concatenate results of `_clusters`, numbered by a column ``part`` since their ids repeat."""
    return pl.concat(some.with_columns(part=pl.lit(part)) for part, some in enumerate(found))


def _clusters(rows: pl.DataFrame, one_group: _Known, search: GroupSearch) -> pl.DataFrame:
    """Match calls of one kind of collective between streams; return ``row, instance, lane, group``.

    The stream (``lane``) with most calls leads; of each other GPU or process (``participant``) the
    stream that overlaps the leading one longest is matched to it. ``instance`` is the id of the
    collective, ``group`` that of the group of ranks. This repeats with the streams that remain.

    Parameters
    ----------
    rows
        ``row, lane, participant, start, end`` (ns), and ``kind`` if rows may be messages.
    one_group
        Whether streams matched in order are one group of ranks: ``known``; ``likely`` (yes unless
        end times refute it); ``unknown`` (no unless end times prove it).
    search
        Infers groups from end times; once its budget of comparisons is spent, rows stay unmatched.
    """
    of_messages = "kind" in rows.columns and (rows["kind"] == "send_recv").any()
    crowded = pl.col("lane").n_unique().over("participant") > _MOST_LANES
    single_lane = -1 - pl.col("participant").cast(pl.Int64)
    lanes = rows.with_columns(lane=pl.when(crowded).then(single_lane).otherwise("lane"))
    waiting = lanes.sort("lane", "start", "end").with_columns(
        number=pl.int_range(pl.len()).over("lane")
    )
    found = [_NONE.select("row", "lane", "group", turn="instance")]
    unclear: list[int] = []
    while waiting["participant"].n_unique() > 1:
        sizes = waiting.group_by("lane").agg(pl.len(), pl.col("start").min())
        leads = sizes.filter(~pl.col("lane").is_in(unclear))
        if leads.is_empty() or (one_group != "known" and not search.work):
            break
        lead = int(leads.sort(-pl.col("len").cast(pl.Int64), "start", "lane")["lane"][0])
        leading = waiting.filter(pl.col("lane") == lead)
        others = waiting.filter(pl.col("participant") != leading["participant"][0])
        shifts = pl.concat(
            [_followers(leading, others), pl.DataFrame({"lane": [lead], "shift": [0]})],
            how="vertical_relaxed",
        )
        joined = waiting.join(shifts, on="lane").with_columns(
            turn=(pl.col("number") + pl.col("shift")).cast(pl.Int64)
        )
        members, is_clear = _members(joined, lead, one_group, search, of_messages=of_messages)
        if not is_clear:  # it may be once another group is known
            unclear.extend(members)
            continue
        unclear.clear()
        of_group = joined.filter(pl.col("lane").is_in(members.implode()))
        found.append(
            of_group.select("row", "lane", pl.lit(len(found), pl.Int64).alias("group"), "turn")
        )
        waiting = waiting.filter(~pl.col("lane").is_in(members.implode()))
    together = pl.struct("group", "turn").rank("dense").cast(pl.Int64)
    return pl.concat(found).select("row", "lane", "group", instance=together)


def _members(
    joined: pl.DataFrame, lead: int, one_group: _Known, search: GroupSearch, *, of_messages: bool
) -> tuple[pl.Series, bool]:
    """Return the streams that form one group with stream `lead`, and whether that is certain.

    `one_group` and `search` are those of `_clusters`; `of_messages` is whether calls are sends or
    receives.
    """
    lanes = joined["lane"].unique().sort()
    if one_group == "known":
        return lanes, True
    times, lead_row = _by_turn(joined, lead, lanes), int(lanes.search_sorted(lead))
    group = search.group_of(*times, lead_row, of_messages=of_messages)
    if one_group == "likely" and search.work and not (group.is_clear and group.is_one_of_several):
        return lanes, True
    return lanes[group.lanes], group.is_clear


def _by_turn(joined: pl.DataFrame, lead: int, lanes: pl.Series) -> tuple[_Times, _Times]:
    """Return starts and ends as matrices, ns: a row per call of stream `lead`, a column per stream.

    A row has the matched calls of all streams in `lanes`; NaN where a stream has none.
    """
    leading = joined.filter(pl.col("lane") == lead)
    met = joined.filter(pl.col("turn").is_between(0, leading.height - 1))
    at = met["turn"].to_numpy(), lanes.search_sorted(met["lane"]).to_numpy()
    first = met["start"].min()
    tables = []
    for name in ("start", "end"):
        # Times of an epoch are more than a float holds.
        times = np.full((leading.height, len(lanes)), np.nan)
        times[at] = (met[name] - first).to_numpy()
        tables.append(times)
    return tables[0], tables[1]


def _followers(leading: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """Return ``lane`` (stream), ``shift``: per participant the stream that overlaps `leading` best.

    With shift d, the stream's n-th call matches the (n + d)-th of the leading one. A participant is
    left out if none of its streams overlaps the leading one well enough.
    """
    shifts = _likely_shifts(leading, others)
    first, last = leading["start"].min(), leading["end"].max()
    shorter = pl.min_horizontal(
        pl.col("end") - pl.col("start"), pl.col("lead_end") - pl.col("lead_start")
    )
    lanes = (
        others.join(shifts, on="lane")
        .with_columns(mate=pl.col("number") + pl.col("shift"))
        .join(_mates(leading), on="mate", how="left")
        .group_by("lane", "participant", "shift")
        .agg(
            pl.col("start").min(),
            pl.col("end").max(),
            paired=pl.col("lead_start").count(),
            within=((pl.col("start") >= first) & (pl.col("end") <= last)).sum(),
            # Of a row without a mate the least and the largest time would be its own.
            hits=(_SHARED.filter(_HAS_MATE) > 0).sum(),
            shared=_SHARED.filter(_HAS_MATE).clip(lower_bound=0).sum(),
            shorter=shorter.filter(_HAS_MATE).sum(),
        )
    )
    lanes = lanes.with_columns(surrounded=_surrounded(leading, lanes))
    expected = pl.max_horizontal("paired", "within", "surrounded")
    believed = (pl.col("hits") * 100 >= expected * _OVERLAP_PERCENT) & (
        # Chance overlaps are short; participants that wait for each other end together.
        pl.col("shared") * 2 >= pl.col("shorter")
    )
    return (
        lanes.filter(believed)
        .sort(-pl.col("shared"), "lane")
        .unique("participant", keep="first", maintain_order=True)
        .select("lane", "shift")
    )


def _mates(leading: pl.DataFrame) -> pl.DataFrame:
    return leading.select(mate="number", lead_start="start", lead_end="end")


def _likely_shifts(leading: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """Return per stream (``lane``) of `others` the ``shift`` with the longest overlap in time.

    Its n-th call then meets the (n + shift)-th call of the stream `leading`.
    """
    starts = leading["start"].to_numpy()
    ends = np.maximum.accumulate(leading["end"].to_numpy())
    lowest = np.searchsorted(ends, others["start"].to_numpy(), side="right")
    behind = np.searchsorted(starts, others["end"].to_numpy(), side="left")
    touched = (
        others.with_columns(lowest=pl.Series(lowest), behind=pl.Series(behind))
        .filter(pl.col("behind") > pl.col("lowest"))
        .with_columns(mate=pl.int_ranges("lowest", "behind"))
        .explode("mate")
        .join(_mates(leading), on="mate")
    )
    return (
        touched.group_by("lane", shift=(pl.col("mate") - pl.col("number")))
        .agg(shared=_SHARED.clip(lower_bound=0).sum())
        .sort(-pl.col("shared"), pl.col("shift").abs(), "shift")
        .unique("lane", keep="first", maintain_order=True)
        .select("lane", "shift")
    )


def _surrounded(leading: pl.DataFrame, lanes: pl.DataFrame) -> pl.Series:
    """Count, for each stream, the calls of stream `leading` between its first and last call."""
    starts = leading["start"].to_numpy()
    ends = np.maximum.accumulate(leading["end"].to_numpy())
    first = np.searchsorted(starts, lanes["start"].to_numpy(), side="left")
    behind = np.searchsorted(ends, lanes["end"].to_numpy(), side="right")
    return pl.Series(np.maximum(behind - first, 0))
