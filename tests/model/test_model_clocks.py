"""One clock for the reports of a run: known offsets and drifts are found again."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.model import Trace, combine


def report(
    ends: list[int], *, host: str = "a", start: int | None = 0, kinds: list[str] | None = None
) -> Trace:
    """A report of collectives of 1,000 ns that end at some times."""
    rows: list[dict[str, Any]] = [
        {
            "op": number, "report": 0, "process": 0, "device": 0, "context": 1, "stream": 7,
            "start": end - 1000, "end": end, "kind": "collective", "stage": "WU",
            "stage_source": "gradient_exchange",
            "collective": "all_reduce" if kinds is None else kinds[number],
        }
        for number, end in enumerate(ends)
    ]  # fmt: skip
    place = {"report": 0, "process": 0}
    return Trace.of(
        {
            "reports": pl.DataFrame(
                [{"report": 0, "file": f"{host}.sqlite", "format": "x", "size": 1, "host": host,
                  "session_start": start}],
                schema_overrides={"session_start": pl.Int64},
            ),
            "processes": pl.DataFrame([place | {"pid": 1, "global_id": 1}]),
            "devices": pl.DataFrame(
                [{"report": 0, "device": 0, "active": True, "identity": "ordinal"}]
            ),
            "ops": pl.DataFrame(rows),
        }
    )  # fmt: skip


def ends_of(trace: Trace) -> list[list[int]]:
    ops = trace.read("ops").sort("op")
    return [ops.filter(report=number)["end"].to_list() for number in range(2)]


def test_sessions_of_one_host_are_set_apart_by_their_starts() -> None:
    """Time 100 of a session that began 30 ns later is time 130 of the first one."""
    both = combine([report([100], start=5000), report([100], start=5030)])
    assert ends_of(both) == [[100], [130]]
    told = both.read("reports")
    assert told["clock"].to_list() == ["host a", "host a"]
    assert told["clock_offset"].to_list() == [0, 30]
    assert told["session_start"].to_list() == [5000, 5000]
    assert both.warnings == ()


def test_hosts_are_set_apart_by_their_collectives() -> None:
    ends = [10_000 * n for n in range(1, 21)]
    late = [end - 7_777 + (5_000 if n == 3 else n % 3) for n, end in enumerate(ends)]
    both = combine([report(ends), report(late, host="b", start=123)])
    first, second = ends_of(both)
    assert sorted(abs(one - other) for one, other in zip(first, second, strict=True))[
        :-1
    ] == sorted(abs(n % 3 - 1) for n in range(20) if n != 3)
    told = both.read("reports").row(1, named=True)
    assert (told["clock"], told["clock_source"], told["clock_offset"]) == (
        "host a", "collectives", 7_776,
    )  # fmt: skip
    assert told["clock_drift"] == 0
    assert both.warnings[0].startswith("b.sqlite: its clock is set +7,776 ns by 20 collectives")


@pytest.mark.parametrize(
    "other",
    [
        report([1, 2, 3], host="b", start=9),  # too few
        report([10_000 * n for n in range(1, 20)], host="b", start=9),  # another number
        report([10_000 * n for n in range(1, 21)], host="b", start=9, kinds=["broadcast"] * 20),
    ],
)
def test_what_does_not_match_stays_on_its_own_clock(other: Trace) -> None:
    both = combine([report([10_000 * n for n in range(1, 21)]), other])
    assert both.read("reports")["clock"].to_list() == ["host a", "host b"]
    assert both.warnings[-1].startswith("the clocks of 2 reports are not aligned")


@settings(deadline=None, max_examples=40)
@given(
    st.integers(-(10**12), 10**12),
    st.sampled_from([0.0, 3e-6, -20e-6]),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_a_known_offset_and_drift_come_back(
    offset: int, drift: float, seed: int, epoch: bool
) -> None:
    """Ends differ by up to 2 us; a tenth of them is late by up to a millisecond."""
    chance = random.Random(seed)
    base = 1_700_000_000_000_000_000 if epoch else 0
    true, now = [], base
    for _ in range(200):
        now += chance.randrange(20_000_000, 60_000_000)
        true.append(now)
    late = [chance.randrange(1_000_000) if chance.random() < 0.1 else 0 for _ in true]
    seen = [
        end + round((end - base) * drift) + offset + chance.randrange(-1000, 1000) + extra
        for end, extra in zip(true, late, strict=True)
    ]
    both = combine([report(true), report(seen, host="b", start=None)])
    first, second = ends_of(both)
    left = [other - one for one, other, extra in zip(first, second, late, strict=True) if not extra]
    assert max(map(abs, left)) < 12_000
    told = both.read("reports").row(1, named=True)
    assert told["clock_drift"] == pytest.approx(-drift, abs=4e-7)
