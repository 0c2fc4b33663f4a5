"""Links over time, and counters beside them."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from link_helpers import HERE, machine, on_clocks, table, transfer

from tracekit.analysis.traffic._link_time import link_timeline
from tracekit.model import TRANSFERS


def test_bytes_are_spread_over_bins() -> None:
    done = link_timeline(
        table(transfer(0, 1, 0, 100), transfer(0, 1, 50, 100)), machine(), HERE, bins=4
    )
    assert done["start_ns"].to_list() == [0, 25, 50, 75]
    assert done["bytes"].round(6).to_list() == [250.0, 250.0, 750.0, 750.0]
    # 250 bytes in 25 ns are 10 GB/s of 50.
    assert done["utilisation"].round(6).to_list() == [0.2, 0.2, 0.6, 0.6]


def test_directions_and_evidence_are_lines_of_their_own() -> None:
    rows = table(
        transfer(0, 1, 0, 100), transfer(1, 0, 0, 100), transfer(0, 1, 0, 100, evidence="modelled"),
    )  # fmt: skip
    done = link_timeline(rows, machine(), HERE, bins=1)
    assert sorted(done.select("src", "evidence").rows()) == [
        ("GPU0", "measured"), ("GPU0", "modelled"), ("GPU1", "measured"),
    ]  # fmt: skip


def test_nothing_and_unknown_sizes_make_no_timeline() -> None:
    assert link_timeline(TRANSFERS.empty(), machine(), HERE).is_empty()
    assert link_timeline(table(transfer(0, 1, 0, 100, bytes=None)), machine(), HERE).is_empty()


ROWS = st.tuples(st.integers(0, 10**6), st.integers(0, 1000), st.integers(0, 10**9))


@settings(deadline=None)
@given(st.integers(0, 10**18), st.lists(ROWS, min_size=1, max_size=9), st.integers(1, 17))
def test_no_byte_is_lost_between_bins(base: int, rows: list[tuple[int, ...]], bins: int) -> None:
    made = [transfer(0, 1, base + at, base + at + length, bytes=size) for at, length, size in rows]
    done = link_timeline(table(*made), machine(), HERE, bins=bins)
    whole = sum(size for _, _, size in rows)
    assert done["bytes"].sum() == pytest.approx(whole, rel=1e-6, abs=1)


def test_reports_on_one_clock_are_one_time_line() -> None:
    rows = table(transfer(0, 1, 0, 100), transfer(1, 0, 100, 200, report=1))
    done = link_timeline(rows, machine(), HERE, bins=2, reports=on_clocks("host a", "host a"))
    assert done.select("src", "start_ns", "bytes").rows() == [
        ("GPU0", 0, 1000.0), ("GPU0", 100, 0.0), ("GPU1", 0, 0.0), ("GPU1", 100, 1000.0),
    ]  # fmt: skip
    # Of a report on another clock, which comes later, it is not known when that was.
    apart = pl.concat([rows, table(transfer(0, 1, 500, 600, report=2))])
    clocks = on_clocks("host a", "host a", "host b")
    assert link_timeline(apart, machine(), HERE, bins=2, reports=clocks).equals(done)
