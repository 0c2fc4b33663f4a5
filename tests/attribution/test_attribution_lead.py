"""A clock of the GPUs that is behind by one time throughout is set right, and no other one."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest
from trace_builder import TraceBuilder, default_rules

from tracekit.attribution import attribute
from tracekit.model import Trace

US = 1000
QUICKEST = 7 * US
SAID = "ops start before the call that launched them, by as much throughout the recording"


def _trace(lead: Callable[[int, int], int], waits: Callable[[int], int] = lambda _: 0) -> Trace:
    """Calls of 100 ops every 100 us on two GPUs by turns, each early by what `lead` says."""
    builder = TraceBuilder()
    for number in range(100):
        called, device = 100 * US * number, number % 2
        start = called + QUICKEST + waits(number) - lead(number, device)
        builder.op("gemm", called, start=start, end=start + 10 * US, device=device)
    return builder.trace()


def _leads(trace: Trace) -> list[int]:
    ops = attribute(trace, default_rules()).read("ops")
    return (ops["start"] - ops["launch_start"] - QUICKEST).unique().sort().to_list()


@pytest.mark.parametrize("lead", [60 * US, 5_000 * US])
def test_a_steady_lead_is_set_right_and_said(lead: int) -> None:
    found = attribute(_trace(lambda *_: lead), default_rules())
    ops = found.read("ops")
    assert (ops["start"] - ops["launch_start"]).unique().to_list() == [QUICKEST]
    assert (ops["end"] - ops["start"]).unique().to_list() == [10 * US]
    [said] = [text for text in found.warnings if "start before" in text]
    assert said.startswith(f"{SAID}: {lead / US:,.1f} us were added")


def test_it_is_set_right_once() -> None:
    once = attribute(_trace(lambda *_: 60 * US), default_rules())
    twice = attribute(once, default_rules())
    assert twice.read("ops").equals(once.read("ops"))
    assert [text.startswith(SAID) for text in twice.warnings].count(True) == 1


def test_ops_that_wait_longer_do_not_hide_a_lead() -> None:
    """Half of the time the GPU is 200 us behind, and elsewhere some ops start up to 9 us later."""
    waits = [0 if number % 3 else 9 * US for number in range(100)]
    waits[20:70] = [200 * US] * 50
    assert _leads(_trace(lambda *_: 60 * US, lambda number: waits[number])) == [0, 9 * US, 200 * US]


@pytest.mark.parametrize(
    ("lead", "least", "most"),
    [
        (lambda *_: 0, 0, 0),
        (lambda *_: QUICKEST + 9 * US, -16 * US, -16 * US),  # less than is worth it
        (lambda number, _: 60 * US + number * US, -159 * US, -60 * US),  # a drift
        (lambda number, _: 60 * US if number < 60 else 0, -60 * US, 0),  # the first part alone
        (lambda _, device: (60 + 20 * device) * US, -80 * US, -60 * US),  # each GPU another one
    ],
    ids=["none", "little", "drift", "part", "one GPU"],
)
def test_what_is_not_one_steady_lead_stays(
    lead: Callable[[int, int], int], least: int, most: int
) -> None:
    found = _leads(_trace(lead))
    assert (found[0], found[-1]) == (least, most)


def test_ops_without_calls_move_with_the_others() -> None:
    trace = _trace(lambda *_: 60 * US)
    ops = trace.read("ops")
    some = pl.when(pl.col("op") % 10 == 0).then(None).otherwise("correlation")
    alone = trace.with_tables({"ops": ops.with_columns(correlation=some)})
    moved = attribute(alone, default_rules()).read("ops")["start"] - ops["start"]
    assert moved.unique().to_list() == [60 * US]
