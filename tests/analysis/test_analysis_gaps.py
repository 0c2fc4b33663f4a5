"""Gaps, against a walk over the ops of each line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.analysis.idle_account._idle_gaps import AHEAD_NS, gaps_of
from tracekit.model import TABLES, Trace
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
