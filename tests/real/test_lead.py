"""GPU times of real trainings that are moved ahead of their calls, or behind, come back."""

from __future__ import annotations

import polars as pl
import pytest
from nsys_stats import TRACES
from trace_builder import default_rules

from tracekit.attribution import attribute

ABOUT = 10_000
"""How far off what is set right may be, ns."""


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize(
    "by",
    [
        -50_000,
        50_000,
        pytest.param(-3_000_000, marks=pytest.mark.nightly),
        pytest.param(3_000_000, marks=pytest.mark.nightly),
    ],
)
def test_a_clock_that_is_off_is_set_right(real_run, name, by):
    trace = real_run(name).trace
    ops = trace.read("ops")
    moved = ops.with_columns(pl.col("start", "end") + by)
    found = attribute(trace.with_tables({"ops": moved}), default_rules()).read("ops")
    assert (found["start"] - ops["start"]).abs().max() <= ABOUT
    for column in ("stage", "iteration", "range"):
        assert found[column].equals(ops[column])


def test_what_real_traces_show_is_no_lead(real_run):
    """The quickest op of each starts 4 to 17 us after its call."""
    for name in ("mnist_1xa100_phases", "transformer_rtx3070ti"):
        trace = real_run(name).trace
        ops = trace.read("ops")
        found = attribute(trace, default_rules()).read("ops")
        assert found["start"].equals(ops["start"])
        assert 4_000 < (ops["start"] - ops["launch_start"]).min() < 17_000


@pytest.mark.parametrize(
    "name", ["mnist_1xa100_phases", "transformer_rtx3070ti", "sendrecv_2xh100_two_processes"]
)
def test_held_back_launches_of_real_traces_are_no_lag(real_run, name):
    """As if the driver had handed over each launch 3 ms late: calls are earlier, waits are not."""
    trace = real_run(name).trace
    ops, calls = trace.read("ops"), trace.read("calls")
    correlated = pl.col("correlation").is_in(ops["correlation"].implode())
    earlier = pl.when(correlated).then(3_000_000).otherwise(0)
    held = calls.with_columns(pl.col("start", "end") - earlier).sort("start")
    keyed = held.with_columns(pl.int_range(pl.len(), dtype=calls.schema["call"]).alias("call"))
    found = attribute(trace.with_tables({"calls": keyed}), default_rules()).read("ops")
    assert found["start"].equals(ops["start"])
