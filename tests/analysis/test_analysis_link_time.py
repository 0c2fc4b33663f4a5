"""Links over time, and counters beside them."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from link_helpers import GB, HERE, machine, on_clocks, table, transfer

from tracekit.analysis.traffic._link_time import link_counters, link_timeline
from tracekit.model import TRANSFERS, Trace


def metrics(*rows: dict[str, Any]) -> Trace:
    made = [
        {"report": 0, "device": 0, "unit": "percent", "recorded_name": "x"} | row for row in rows
    ]
    return Trace.of({"metrics": pl.DataFrame(made)})


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


def test_counted_against_attributed() -> None:
    """10 % of 50 GB/s for 100 ns, then 30 %, are 500 and 1500 bytes."""
    trace = metrics(
        {"metric": "nvlink_tx", "time": 0, "value": 99.0},
        {"metric": "nvlink_tx", "time": 100, "value": 10.0},
        {"metric": "nvlink_tx", "time": 200, "value": 30.0},
    )
    rows = table(
        transfer(0, 1, 0, 100), transfer(0, 1, 150, 250), transfer(1, 0, 0, 100),
        transfer(0, 1, 100, 200, bytes=100, evidence="modelled"),
        transfer(0, 1, 10, 20, bytes=None), transfer(0, 1, 300, 400, bytes=None),
        transfer(0, 3, 0, 100),
    )  # fmt: skip
    assert link_counters(trace, rows, machine(), HERE).to_dicts() == [
        {
            "device": 0, "nic": None, "metric": "nvlink_tx", "samples": 2, "window_ns": 200,
            "mean_percent": 20.0, "max_percent": 30.0, "counted_bytes": 2000,
            "measured_bytes": 1500, "modelled_bytes": 100, "unsized": 1,
            "difference_bytes": -400,
        }
    ]  # fmt: skip


MOVED = st.tuples(
    st.integers(0, 40), st.integers(1, 12), st.integers(1, 9), st.booleans(), st.booleans()
)


@settings(deadline=None)
@given(st.lists(MOVED, max_size=9), st.integers(0, 30), st.integers(1, 20))
def test_attributed_bytes_by_counting_nanoseconds(rows: list[Any], first: int, length: int) -> None:
    """Each transfer moves a whole number of bytes per ns, so that every ns can be added up."""
    trace = metrics(
        *({"metric": "nvlink_tx", "time": t, "value": 1.0} for t in (first, first + length))
    )
    made, expected = [], {"measured": 0, "modelled": 0}
    for at, long, rate, is_modelled, is_back in rows:
        evidence = "modelled" if is_modelled else "measured"
        ends = (1, 0) if is_back else (0, 1)
        made.append(transfer(*ends, at, at + long, bytes=rate * long, evidence=evidence))
        inside = sum(first <= tick < first + length for tick in range(at, at + long))
        expected[evidence] += 0 if is_back else rate * inside
    frame = table(*made) if made else TRANSFERS.empty()
    [found] = link_counters(trace, frame, machine(), HERE).to_dicts()
    assert {name: found[f"{name}_bytes"] for name in expected} == expected
    assert found["difference_bytes"] == sum(expected.values()) - found["counted_bytes"]


def test_several_counters_of_one_metric_add_up() -> None:
    trace = metrics(
        *(
            {"metric": "nvlink_rx", "recorded_name": name, "time": time, "value": 5.0}
            for name in ("requests", "responses")
            for time in (0, 100)
        ),
    )
    done = link_counters(trace, TRANSFERS.empty(), machine(), HERE)
    assert done.select("counted_bytes", "measured_bytes", "difference_bytes").rows() == [
        (500, 0, -500)
    ]


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


def test_counters_count_what_other_reports_of_their_clock_moved() -> None:
    """What rank 1 sends, its own report holds; rank 0's sampled it as it came in."""
    sampled = metrics(*({"metric": "nvlink_rx", "time": t, "value": 10.0} for t in (0, 100)))
    rows = table(transfer(1, 0, 0, 100, report=1))
    apart = link_counters(sampled, rows, machine(), HERE)
    assert apart["measured_bytes"].to_list() == [0]
    together = Trace.of(
        {"metrics": sampled.read("metrics"), "reports": on_clocks("host a", "host a")}
    )
    assert link_counters(together, rows, machine(), HERE)["measured_bytes"].to_list() == [1000]


def test_pcie_and_its_directions() -> None:
    trace = metrics(
        *(
            {"metric": metric, "time": t, "value": 50.0}
            for metric in ("pcie_rx", "pcie_tx")
            for t in (0, 100)
        )
    )
    rows = table(transfer(None, 0, 0, 100, method="h2d"))
    done = link_counters(trace, rows, machine(), HERE)
    assert dict(done.select("metric", "measured_bytes").rows()) == {"pcie_rx": 1000, "pcie_tx": 0}
    assert done["counted_bytes"].to_list() == [800, 800]
    assert machine().link("GPU0", "PCIe0").bandwidth == 16 * GB


def test_a_nic_counts_bytes() -> None:
    trace = metrics(
        {
            "device": None,
            "nic": "mlx5_0",
            "metric": "nic_tx",
            "time": 0,
            "value": 7.0,
            "unit": "bytes",
        },
        {
            "device": None,
            "nic": "mlx5_0",
            "metric": "nic_tx",
            "time": 9,
            "value": 8.0,
            "unit": "bytes",
        },
    )
    [row] = link_counters(trace, TRANSFERS.empty(), machine(), HERE).to_dicts()
    assert (row["nic"], row["counted_bytes"], row["measured_bytes"], row["mean_percent"]) == (
        "mlx5_0", 8, None, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("unit", "counted"),
    [("bytes", 7), ("Bytes", 7), ("bytes/us", 14), ("bytes/s", 0), ("bytes/tick", None)],
)
def test_rates_of_a_nic_are_no_bytes(unit: str, counted: int | None) -> None:
    samples = ({"metric": "nic_tx", "time": t, "value": 7.0} for t in (0, 2000))
    own = {"device": None, "nic": "mlx5_0", "unit": unit}
    trace = metrics(*(each | own for each in samples))
    done = link_counters(trace, TRANSFERS.empty(), machine(), HERE)
    assert done["counted_bytes"].to_list() == [counted]


def test_no_peak_no_bytes() -> None:
    trace = metrics(
        *({"device": 9, "metric": "nvlink_tx", "time": t, "value": 1.0} for t in (0, 1))
    )
    [row] = link_counters(trace, TRANSFERS.empty(), machine(), HERE).to_dicts()
    assert (row["mean_percent"], row["counted_bytes"], row["difference_bytes"]) == (1.0, None, None)


def test_a_run_without_samples() -> None:
    assert link_counters(Trace.of({}), table(transfer(0, 1, 0, 9)), machine(), HERE).is_empty()


def test_unknown_sizes_count_where_they_overlap_the_samples() -> None:
    """The samples last from 100 to 200; what ends or begins at an edge does not overlap."""
    trace = metrics(
        {"metric": "nvlink_tx", "time": 100, "value": 10.0},
        {"metric": "nvlink_tx", "time": 200, "value": 10.0},
    )
    spans = [(0, 100), (200, 300), (0, 101), (199, 300), (120, 130), (0, 300)]
    rows = table(*(transfer(0, 1, start, end, bytes=None) for start, end in spans))
    assert link_counters(trace, rows, machine(), HERE)["unsized"].to_list() == [4]
