"""Collectives that ranks of a run wait in: called and launched, but no kernel was recorded.

Profilers record kernels when they end, so a collective that hangs has a call and a launch only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from tracekit.analysis.calls import (
    collective_kernels,
    communicator_groups,
    communicators,
    find_collectives,
    made_communicators,
    process_ranks,
    read_calls,
    with_iterations,
    with_kernels,
)
from tracekit.analysis.facts import how_to_record
from tracekit.analysis.hangs._causes import Problem, parties, with_roles
from tracekit.analysis.hangs._dump_calls import last_work
from tracekit.analysis.hangs._hang import (
    SCHEMA,
    collective_problems,
    last_of,
    readable_rows,
    row_of,
    they,
)
from tracekit.errors import UndecidedError
from tracekit.model import Answer, Trace, path_texts, with_clocks
from tracekit.support.wording import count

_LONG_NS, _LONGER = 1_000_000_000, 2
"""Least time from launch to the last record for a call to hang, ns; and the least ratio to the
longest time from launch to end of an op that ended in the run."""
_SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_LAUNCH = r"Launch\w*Kernel|GraphLaunch"
_MEMBER = ["party", "process"]


_OF_RUN = {"iteration": pl.Int64, "silent_ns": pl.Int64}
_SILENT = "; nothing was recorded since: the recorders may have stopped"


def find_hang_in_run(trace: Trace) -> Answer:
    """Explain why a job hangs, from traces of its ranks that were cut off while the job hung.

    Calls of a communicator are numbered from 1 on each rank. Ranks are aligned at the last of the
    collectives that were matched on most ranks; if none was matched, at the first call, provided
    that the creation of the communicator was recorded. A call without a recorded kernel hangs if
    its trace file still has records some time after the call: at least a second, and at least twice
    the run's longest time from launch to end of an op. If the recording lasted that long after the
    call but has no later record, the role is ``unknown``: the profiler may have stopped.

    Returns
    -------
    As for `find_hang`, with further values of ``problem``: ``ended`` (the recordings of `ranks` end
    before the others wait), ``partial`` (other ranks cannot be compared) and ``unended`` (work of
    unknown kind waits); and with ``silent_ns``, how long nothing was recorded. ``meta``: ``ranks``,
    ``entries``, ``groups`` and ``warnings``. ``tables``: ``ranks``, see `_ranks`.

    Raises
    ------
    UndecidedError
        If ranks are unknown, or no collective can be compared between them.
    """
    known = process_ranks(trace).select("process", pl.col("rank").cast(pl.Int64)).drop_nulls()
    ends = _ends(trace).join(known.unique("rank", keep="none"), on="process")
    if ends.is_empty():
        raise UndecidedError(
            "which process is which rank is not known", "record a report per rank, named rank0, ..."
        )
    launches, longest = _unended(trace)
    every, notes = _calls(trace)
    launched = _launched(every.join(ends, on="process"), launches)
    is_message = pl.col("collective") == "send_recv"
    placed, without = _placed(launched.filter(~is_message), ends, trace)
    if without:
        notes.append(
            f"left out: {count(without, 'group')} without collectives matched between ranks"
        )
    limit, ranks = max(_LONG_NS, _LONGER * longest), _ranks(trace, ends, launches)
    calls = _with_states(placed, launches, limit)
    unseen = _unseen(calls, trace.read("reports"), limit)
    cut = calls.join(unseen, on=["party", "rank"], how="anti")
    names = communicator_groups(trace, find_collectives(trace).rows)
    members = cut.group_by("party").agg(members=pl.col("rank").unique().sort()).join(
        names.select(party="communicator", description="group"), on="party", how="left"
    )  # fmt: skip
    calls = cut.join(members, on="party")
    problems = _of_collectives(calls, unseen, ranks, trace)
    problems += _messages(launched.filter(is_message), ends, trace, limit)
    waiting = ranks.filter(pl.col("waits_ns") >= limit)["rank"].to_list()
    if waiting and not problems:
        others = ranks.filter(unended=0)["rank"].to_list()
        problems = [{"problem": "unended", "ranks": others, "waiting": waiting, "group": None}]
    if calls.is_empty() and not problems:
        if ends.height == 1:
            raise UndecidedError("one rank was recorded", how_to_record(trace, "participants"))
        if collective_kernels(trace).is_empty():
            raise UndecidedError(
                "this run has no work of NCCL", "give dumps of PyTorch's flight recorder"
            )
        named, _, _ = how_to_record(trace, "message sizes").partition("; or")
        raise UndecidedError(
            "no collective of this run can be compared between ranks", f"record with {named}"
        )
    rows = _rows(problems, calls, waiting)
    answer = pl.DataFrame(rows, schema={**SCHEMA, **_OF_RUN}, orient="row")
    return Answer(
        rows=answer,
        readable=readable_rows(answer),
        meta={"ranks": ranks.height, "entries": calls.height, "groups": members.height,
              "warnings": notes},
        title=answer["says"][0] if rows else "",
        tables={"ranks": ranks},
        listed=["ranks"],
        empty="nothing shows a hang: no collective waits at the end that some ranks did not join",
        command="hang",
    )  # fmt: skip


def _rows(
    problems: Sequence[Problem], calls: pl.DataFrame, waiting: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the answer's rows, causes first; missing ranks that wait themselves are no cause."""
    rows, last = [], last_of(calls)
    for each in with_roles(problems):
        free = [rank for rank in each["ranks"] if rank not in waiting]
        row = row_of(each, calls, last) | {name: each.get(name) for name in _OF_RUN}
        if each["role"] == "cause" and each["problem"] == "missing" and not free:
            row |= {"role": "unknown", "says": f"{row['says']}; {they(row['ranks'])} itself"}
        elif row["silent_ns"]:
            row |= {"role": "unknown", "says": row["says"] + _SILENT}
        rows.append(row)
    return sorted(rows, key=lambda row: row["role"] != "cause")


def _of_collectives(
    calls: pl.DataFrame, unseen: pl.DataFrame, ranks: pl.DataFrame, trace: Trace
) -> list[Problem]:
    sizes = communicators(trace).group_by(party="communicator").agg(size=pl.col("ranks").max())
    waits = (pl.col("state") != "completed").any().over("party", "sequence")
    members = parties(calls, ranks.select("rank", lost=0))
    # What all ranks completed does not hang, whatever they gave.
    problems = collective_problems(calls, members, calls.filter(waits))
    for each in problems:
        here = pl.col("party") == each["party"]
        of_call = calls.filter(here, pl.col("sequence") == each["sequence"])
        each |= {name: of_call[name].max() for name in _OF_RUN}
        absent = unseen.filter(here)["rank"].sort().to_list()
        recorded = each["members"] + len(absent)
        each["members"] = sizes.filter(here)["size"].max() or recorded
        if each["problem"] == "unfinished" and absent:
            each |= {"problem": "ended", "ranks": absent}
        elif each["problem"] == "unfinished" and each["members"] > recorded:
            each["problem"] = "partial"
    return problems


def _ranks(trace: Trace, ends: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Return per rank the last call, open range, last kernel, and launches without a kernel."""
    launch = trace["ops"].select(thread="launch_thread").drop_nulls().unique()
    calls = trace["calls"].join(launch, on="thread", how="semi").group_by("process").agg(
        last_call=pl.col("name").cast(pl.String).get(pl.col("end").arg_max())
    )  # fmt: skip
    opened = trace["ranges"].filter("open").sort("depth", "start").group_by("process").agg(
        open_range=pl.col("name").last()
    )  # fmt: skip
    pending = launches.filter("is_last").group_by("process").agg(
        unended=pl.len(), launched=pl.col("start").min()
    )  # fmt: skip
    known = ends.join(pending, on="process", how="left")
    for each in (calls, opened):
        known = known.join(each.collect(), on="process", how="left")
    return (
        known.select(
            "rank", "last_call", "open_range", pl.col("unended").fill_null(0),
            waits_ns=pl.col("alive") - pl.col("launched"),
            silent_ns=pl.col("stop") - pl.col("alive"),
        )
        .join(last_work(trace), on="rank", how="left")
        .sort("rank")
    )  # fmt: skip


def _ends(trace: Trace) -> pl.DataFrame:
    """Return ``process, report``; ``alive, stop``: its last event, its recording's end, ns."""
    events = [
        trace["ops"].select("report", at="end"),
        trace["calls"].select("report", at="end"),
        trace["ranges"].select("report", at=pl.when("open").then("start").otherwise("end")),
        trace["host"].select("report", at="end"),
        trace["metrics"].select("report", at="time"),
    ]
    latest = pl.concat([each.group_by("report").agg(pl.col("at").max()) for each in events])
    alive = latest.group_by("report").agg(alive=pl.col("at").max()).collect()
    stop = pl.col("duration") + pl.col("clock_offset").fill_null(0)
    reports = trace.read("reports").select("report", stop=stop).join(alive, on="report")
    ended = reports.with_columns(stop=pl.max_horizontal("stop", "alive"))
    return trace.read("processes").select("process", "report").join(ended, on="report")


def _unended(trace: Trace) -> tuple[pl.DataFrame, int]:
    """Return launches whose op was not recorded, and the longest time from launch to op's end, ns.

    Launches: ``process, thread, start``, and ``is_last`` (later than all launches of the process
    whose ops ended).
    """
    waited = pl.col("end") - pl.col("launch_start")
    ops = trace["ops"].select("process", "call", "launch_start", waited=waited)
    latest = ops.group_by("process").agg(latest=pl.col("launch_start").max())
    is_launch = pl.col("name").cast(pl.String).str.contains(_LAUNCH)
    calls = trace["calls"].filter(is_launch, pl.col("result").fill_null(0) == 0)
    launches = calls.join(ops, on="call", how="anti")
    is_last = (pl.col("start") > pl.col("latest")).fill_null(value=True)
    rows = launches.join(latest, on="process", how="left").with_columns(is_last=is_last)
    found, longest = pl.collect_all(
        [rows.select("process", "thread", "start", "is_last"), ops.select(pl.col("waited").max())]
    )
    return found.sort("start"), longest.item() or 0


def _calls(trace: Trace) -> tuple[pl.DataFrame, list[str]]:
    """Return calls of collectives with their communicator (``party``), and notes on those left out.

    Calls without a named communicator count if all kernels of their process ran on one stream.
    """
    kernels = collective_kernels(trace)
    calls = with_kernels(read_calls(trace), kernels)
    spans = calls.group_by("group").agg(group_until=pl.col("end").max())
    calls = calls.drop_nulls("collective").join(spans, on="group", how="left")
    streams = pl.struct("device", "context", "stream").n_unique() == 1
    alone = kernels.group_by("process").agg(streams).filter("device")["process"]
    named = pl.col("communicator").is_not_null()
    is_kept = named | pl.col("process").is_in(alone.implode())
    notes = [
        f"left out: {count(lost, 'collective')} of unrecorded communicators"
        for lost in [calls.filter(~is_kept).height] if lost
    ]  # fmt: skip
    matches = find_collectives(trace).rows.select("op", "match", ended="end").drop_nulls()
    paths = trace.read("ranges").select("range", "parent", "open", "path")
    above = paths.select("parent", "range", "open").join(
        paths.select(parent="range", path="path"), on="parent", how="left"
    )
    rows = calls.filter(is_kept).join(
        above, on="range", how="left"
    ).join(matches, on="op", how="left", maintain_order="left")  # fmt: skip
    rows = with_iterations(rows.sort("start"), trace)
    return rows.select(
        "report", "process", "thread", "start", "range", "match", "ended", "iteration",
        "direction", "peer", "element_type", pl.col("root").cast(pl.String),
        size=pl.col("message_bytes").cast(pl.String),
        until=pl.coalesce("group_until", "end"),
        party=pl.coalesce("communicator", pl.lit("all")),
        collective=pl.col("collective").cast(pl.String),
        is_ended=pl.col("ops").is_not_null(),
        is_open=pl.col("open").fill_null(value=False),
        place=path_texts(trace.read("paths"), rows["path"]),
    ), notes  # fmt: skip


def _placed(calls: pl.DataFrame, ends: pl.DataFrame, trace: Trace) -> tuple[pl.DataFrame, int]:
    """Return calls, numbered in their communicator from the last collective that its ranks share.

    The second result is the number of communicators without a shared collective. A rank that
    created a communicator and never called it has one row, of number 0. ``since``: end of the
    shared collective, ns; null if ranks may leave it early.
    """
    rows = calls.sort("start", "range").with_columns(
        number=pl.int_range(1, pl.len() + 1).over(_MEMBER)
    )
    common = rows.drop_nulls("match").group_by("party", "match").agg(
        ranks=pl.col("process").n_unique(), at=pl.col("start").max()
    )  # fmt: skip
    last = common.filter(pl.col("ranks") > 1).sort("ranks", "at").unique("party", keep="last")
    first = rows.join(last, on=["party", "match"]).select(
        *_MEMBER, first="number", shift=pl.col("number").max().over("party") - pl.col("number"),
        since=pl.when(pl.col("collective").is_in(_SYMMETRIC)).then("ended"),
    )  # fmt: skip
    made = made_communicators(trace).select("process", party="communicator")
    new = made.join(first, on="party", how="anti").with_columns(first=0, shift=0)
    known = pl.concat([first, new], how="diagonal_relaxed")
    placed = rows.join(known, on=_MEMBER).filter(pl.col("number") >= pl.col("first"))
    without = rows.join(known, on="party", how="anti")["party"].n_unique()
    idle = new.join(rows, on=_MEMBER, how="anti").join(ends, on="process").with_columns(number=0)
    both = pl.concat([placed, idle], how="diagonal_relaxed")
    return both.with_columns(sequence=pl.col("number") + pl.col("shift")), without


def _launched(calls: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Add ``at``: when a call without a recorded kernel launched its work.

    For a call that launched nothing and has not returned, ``at`` is its begin; else it is null.
    """
    inside = calls.filter(~pl.col("is_ended")).select("range", "thread", "start", "until").join(
        launches.select("thread", at="start"), on="thread"
    )  # fmt: skip
    launched = inside.filter(pl.col("at").is_between("start", "until")).group_by("range").agg(
        pl.col("at").min()
    )  # fmt: skip
    return calls.join(launched, on="range", how="left").with_columns(
        at=pl.coalesce("at", pl.when("is_open").then("start"))
    )


def _messages(calls: pl.DataFrame, ends: pl.DataFrame, trace: Trace, limit: int) -> list[Problem]:
    """Return problems: sends or receives that hang for want of the peer's matching call.

    A call hangs if the recording went on for at least `limit` ns after it.
    """
    hangs = calls.filter(pl.col("alive") - pl.col("at") >= limit)
    made = communicators(trace).select("process", party="communicator", peer="rank").drop_nulls()
    ranks = made.join(ends, on="process")
    known = (
        hangs.join(ranks.select("party", "peer", other="rank"), on=["party", "peer"], how="left")
        .select("party", "rank", "direction", peer="other")
        .unique(maintain_order=True)
    )
    opposite = pl.col("direction").replace({"send": "receive", "receive": "send"})
    mates = known.select("party", opposite, rank="peer", peer="rank").drop_nulls()
    alone = known.join(mates, on=["party", "rank", "peer", "direction"], how="anti").sort("rank")
    problems = []
    for row in alone.iter_rows(named=True):
        ways = (row["rank"], row["peer"])[:: 1 if row["direction"] == "send" else -1]
        message = "message from {} to {}".format(*("?" if way is None else way for way in ways))
        problems.append({
            "problem": "missing", "ranks": [] if row["peer"] is None else [row["peer"]],
            "waiting": [row["rank"]], "group": row["party"], "collective": message,
        })  # fmt: skip
    return problems


def _with_states(placed: pl.DataFrame, launches: pl.DataFrame, limit: int) -> pl.DataFrame:
    """Return calls with ``state``: completed or, if they hang, started or scheduled.

    A call hangs if recording went on for at least `limit` ns after it; it is scheduled if its
    process launched earlier work that hangs. ``silent_ns`` is how long nothing was recorded, for
    calls that hang only by the end of the recording.
    """
    began = placed.group_by("process").agg(began=pl.col("start").min())
    first = launches.join(began, on="process").filter(pl.col("start") >= pl.col("began"))
    rows = placed.join(
        first.group_by("process").agg(first=pl.col("start").min()), on="process", how="left"
    )
    call = ["party", "sequence"]
    waited, calm = (
        (pl.col(to) - pl.col("at")).min().over(call) >= limit for to in ("alive", "stop")
    )
    still = (pl.col("stop") - pl.col("alive")).min().over(call)
    hangs = pl.col("at").is_not_null() & calm
    # As many elements of another type are other bytes: the type is what differs.
    one_type = pl.col("element_type").drop_nulls().n_unique().over(call) <= 1
    size = pl.when(one_type).then("size")
    return rows.select(
        "party", "rank", "report", "sequence", "collective", "place", "since", "at", "alive",
        "stop", "iteration", "root", group="party", source=pl.lit(None, pl.Int64), turn=0,
        record="range", backend=pl.lit("nccl"), input_sizes=size, output_sizes=size,
        input_types="element_type", output_types="element_type",
        silent_ns=pl.when(hangs & ~waited).then(still),
        state=pl.when(~hangs).then(pl.lit("completed"))
        .when(pl.col("first") < pl.col("at")).then(pl.lit("scheduled"))
        .otherwise(pl.lit("started")),
    )  # fmt: skip


def _unseen(calls: pl.DataFrame, reports: pl.DataFrame, limit: int) -> pl.DataFrame:
    """Return ``party, rank``: process group, and rank whose recording ends before a hang can show.

    A hang shows once recording has gone on for `limit` ns after the call. Ranks' times count from
    the end of their last common collective; without one they are compared if on one clock.
    """
    hangs = calls.filter(pl.col("state") != "completed")
    first = hangs.group_by("party").agg(hung=pl.col("sequence").min())
    one = pl.col("clock").n_unique().over("party") == 1
    timed = with_clocks(calls.join(first, on="party"), reports).with_columns(
        since=pl.coalesce("since", pl.when(one).then(0))
    )
    is_hung = (pl.col("sequence") == pl.col("hung")) & (pl.col("state") != "completed")
    each = timed.group_by("party", "rank").agg(
        pl.col("hung").first(), last=pl.col("sequence").max(),
        began=(pl.col("at") - pl.col("since")).filter(is_hung).max(),
        reached=(pl.col("stop") - pl.col("since")).max(),
    )  # fmt: skip
    late = pl.col("reached") < pl.col("began").max().over("party") + limit
    short = pl.col("last") + 1 < pl.col("hung")
    is_behind = pl.col("last") < pl.col("hung")
    return each.filter(is_behind & (short | late.fill_null(value=False))).select("party", "rank")
