"""Gaps, against a walk over the ops of each line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.analysis.idle_account import _idle_gaps, _idle_pieces, last_to_work, own_pieces_in
from tracekit.analysis.idle_account._idle_gaps import AHEAD_NS, gaps_of
from tracekit.model import TABLES, Stretch, Trace
from tracekit.support import batches

_OPS = st.tuples(
    st.integers(0, 1), st.integers(0, 1), st.integers(0, 40), st.integers(0, 6),
    st.sampled_from([None, 0, 1, 2]), st.sampled_from(["FP", "IO"]), st.booleans(),
)  # fmt: skip


def _ops(rows: list[tuple[int, int, int, int, int | None, str, bool]]) -> pl.DataFrame:
    """Return ops of two processes on two GPUs; some were queued for long."""
    made = [
        {
            "op": op, "report": 0, "process": process, "device": device, "start": start,
            "end": start + length,
            "launch_thread": thread, "stage": stage, "kind": "compute", "stage_source": "none",
            "launch_start": None if thread is None else start - 2 - is_queued * AHEAD_NS,
            "launch_end": None if thread is None else start - 1 - is_queued * AHEAD_NS,
        }
        for op, (process, device, start, length, thread, stage, is_queued) in enumerate(rows)
    ]  # fmt: skip
    return pl.DataFrame(made, infer_schema_length=None)


def _walked(ops: pl.DataFrame, key: Callable[[dict[str, Any]], Any], until: int) -> list[Any]:
    """Return the gaps of each line, op by op."""
    rows = ops.sort("start", "op").rows(named=True)
    drivers = {op["launch_thread"] for op in rows if op["stage"] != "IO"}
    found = []
    for line in {key(op) for op in rows}:
        own = [op for op in rows if key(op) == line]
        for turn, op in enumerate(own):
            op["by_loader"] = op["launch_thread"] is not None and (
                op["stage"] == "IO" and op["launch_thread"] not in drivers
            )
            op["ahead"] = max(
                (o["launch_end"] for o in own[:turn]
                 if o["launch_end"] is not None and o["start"] - o["launch_end"] > AHEAD_NS),
                default=None,
            )  # fmt: skip
        for turn, op in enumerate(own):
            before = max(own[:turn], key=lambda o: (o["end"], own.index(o)), default=None)
            if before is None or op["start"] <= before["end"]:
                continue
            after = next((o for o in own[turn:] if not o["by_loader"]), op)
            found.append((
                after["process"], op["device"], before["end"], op["start"], before["op"], op["op"],
                after["op"], after["launch_thread"], after["launch_start"], op["ahead"],
                op["by_loader"],
            ))  # fmt: skip
        last = max(own, key=lambda o: (o["end"], own.index(o)))
        if last["end"] < until:
            found.append((
                last["process"], last["device"], last["end"], until, last["op"], None, None, None,
                None, None, False,
            ))  # fmt: skip
    return sorted(found, key=repr)


@pytest.mark.parametrize("by_process", [False, True])
@settings(max_examples=examples(25, thorough=600), deadline=None)
@given(rows=st.lists(_OPS, min_size=1, max_size=14), until=st.integers(0, 60))
def test_gaps_are_those_of_a_walk_over_ops(
    rows: list[tuple[int, int, int, int, int | None, str, bool]], until: int, by_process: bool
) -> None:
    ops = _ops(rows)
    trace = Trace.of({"ops": TABLES["ops"].conform(ops)})
    owners = ["process", "device"] if by_process else ["device"]
    windows = (
        ops.select(owners)
        .unique()
        .with_columns(start=pl.lit(0, pl.Int64), end=pl.lit(until, pl.Int64))
    )
    if not by_process:
        windows = windows.with_columns(process=pl.lit(None, pl.Int32))
    windows = windows.cast({"process": pl.Int32, "device": pl.Int32})
    expected = _walked(ops, lambda op: tuple(op[name] for name in owners), until)
    for batch in (2, 1 << 20):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(batches, "ROWS", batch)
            gaps = gaps_of(trace, windows)
        assert gaps["gap"].to_list() == list(range(gaps.height))
        assert gaps.select("device", "start", "end").equals(
            gaps.select("device", "start", "end").sort("device", "start", "end")
        )
        found = gaps.select(
            "process", "device", "start", "end", "before", "ended_by", "after", "launch_thread",
            "launch_start", "ahead", "by_loader",
        )  # fmt: skip
        assert sorted(found.rows(), key=repr) == expected


def test_a_run_without_ops_has_no_gaps() -> None:
    windows = pl.DataFrame(
        schema={name: TABLES["ops"].schema[name] for name in ("process", "device", "start", "end")}
    )
    assert gaps_of(Trace.of({}), windows).is_empty()


@pytest.mark.parametrize("by_process", [False, True])
@settings(max_examples=examples(25, thorough=600), deadline=None)
@given(
    rows=st.lists(_OPS, min_size=1, max_size=30),
    waits=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 9)), max_size=4),
    start=st.integers(0, 30),
    length=st.integers(1, 20),
)
def test_idle_time_rests_on_the_ops_near_it_alone(
    rows: list[tuple[int, int, int, int, int | None, str, bool]],
    waits: list[tuple[int, int, int]],
    start: int,
    length: int,
    by_process: bool,
) -> None:
    ops = TABLES["ops"].conform(_ops(rows))
    calls = [
        {"call": number, "report": 0, "process": 0, "thread": thread, "start": start,
         "end": start + length, "name": "cudaDeviceSynchronize"}
        for number, (thread, start, length) in enumerate(waits)
    ]  # fmt: skip
    known = {"calls": TABLES["calls"].conform(pl.DataFrame(calls))} if calls else {}
    trace = Trace.of({"ops": ops, **known})
    owners = ops.select("process", "device").unique().sort("process", "device")
    if not by_process:
        owners = owners.select("device", process=pl.lit(None, pl.Int32)).unique().sort("device")
    windows = owners.with_columns(start=start, end=start + length, iteration=None).cast(
        dict.fromkeys(("start", "end", "iteration"), pl.Int64)
    )
    found = []
    for is_whole in (False, True):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(_idle_gaps, "_REACH_NS", 1)
            if is_whole:
                patched.setattr(_idle_pieces, "near", lambda trace, *_: trace)
            own = own_pieces_in(trace.limited_to(Stretch()), windows, last_to_work(trace, windows))
        pieces = own.pieces.drop("gap", "pair", "window", strict=False)
        found.append(sorted(pieces.rows(), key=repr))
    assert found[0] == found[1]


def test_ops_far_from_windows_are_not_read() -> None:
    thread: int | None = 0
    queued = [(0, 0, 10 * number, 8, thread, "FP", True) for number in range(1_000)]
    trace = Trace.of({"ops": TABLES["ops"].conform(_ops(queued))})
    windows = pl.DataFrame(
        {"process": [None], "device": [0], "start": [5_003], "end": [5_046]},
        schema={"process": pl.Int32, "device": pl.Int32, "start": pl.Int64, "end": pl.Int64},
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_idle_gaps, "_REACH_NS", 1)
        ops = _idle_gaps.near(trace, windows, last_to_work(trace, windows)).read("ops")
    # One is the last before which the host was ahead, and one ends the last gap.
    assert ops["start"].to_list() == [5_000, 5_010, 5_020, 5_030, 5_040, 5_050]
