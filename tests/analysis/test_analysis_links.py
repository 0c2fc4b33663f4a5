"""Which link carried which bytes: literal transfers on small machines."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from link_helpers import GB, HERE, machine, on_clocks, table, transfer
from polars.testing import assert_frame_equal
from trace_builder import TraceBuilder

from tracekit.analysis.traffic import crossings, links
from tracekit.analysis.traffic._links import (
    expected_traffic,
    listed_transfers,
    parse_link_keys,
    placed_share,
    traffic_window,
)
from tracekit.analysis.traffic._routes import Routes
from tracekit.errors import UsageError
from tracekit.machine import Link, Machine
from tracekit.model import TRANSFERS, Stretch, Trace


def by_direction(frame: pl.DataFrame, *columns: str) -> dict[tuple[str, str], Any]:
    picked = frame.select("src", "dst", *columns).rows()
    return {(src, dst): rest[0] if len(rest) == 1 else tuple(rest) for src, dst, *rest in picked}


def test_a_single_and_a_double_edge() -> None:
    """240 MB in 9.6 ms are 25 GB/s: all of one NVLink, half of two."""
    done = links(
        table(
            transfer(0, 1, 0, 9_600_000, bytes=240_000_000),
            transfer(1, 2, 0, 9_600_000, bytes=240_000_000),
        ),
        machine(),
        HERE,
        window_ns=19_200_000,
    )
    assert by_direction(done, "achieved_gb_s", "peak_gb_s", "utilisation", "share") == {
        ("GPU0", "GPU1"): (25.0, 50.0, 0.5, 0.5),
        ("GPU1", "GPU2"): (25.0, 25.0, 1.0, 0.5),
    }


def test_busy_time_is_a_union_and_directions_are_apart() -> None:
    done = links(
        table(transfer(0, 1, 0, 100), transfer(0, 1, 50, 150), transfer(1, 0, 0, 10)),
        machine(), HERE,
    )  # fmt: skip
    assert by_direction(done, "transfers", "bytes", "busy_ns") == {
        ("GPU0", "GPU1"): (2, 2000, 150), ("GPU1", "GPU0"): (1, 1000, 10),
    }  # fmt: skip
    assert done["link"].unique().to_list() == ["GPU0-GPU1"]


def test_what_no_nvlink_joins_goes_through_the_host() -> None:
    done = links(table(transfer(0, 3, 0, 100)), machine(), HERE)
    way = ("GPU0", "PCIe0", "CPU0", "CPU1", "PCIe1", "GPU3")
    assert set(by_direction(done, "bytes")) == set(pairwise(way))
    unknown = done.filter(type="socket")
    assert unknown.select("peak_gb_s", "utilisation").row(0) == (None, None)
    assert unknown["achieved_gb_s"].item() == 10.0


def test_each_copy_of_a_staged_transfer_is_on_its_own_side() -> None:
    staged = transfer(0, 1, 0, 100, method="staged", first_end=40, second_start=60)
    across = transfer(0, 3, 0, 100, method="staged", first_end=40, second_start=60)
    near = links(table(staged), machine(), HERE)
    assert by_direction(near, "busy_ns") == {
        ("GPU0", "PCIe0"): 40, ("PCIe0", "CPU0"): 40, ("CPU0", "PCIe0"): 40, ("PCIe0", "GPU1"): 40,
    }  # fmt: skip
    far = links(table(across), machine(), HERE)
    assert by_direction(far, "busy_ns") == {
        ("GPU0", "PCIe0"): 40, ("PCIe0", "CPU0"): 40, ("CPU0", "CPU1"): 100,
        ("CPU1", "PCIe1"): 40, ("PCIe1", "GPU3"): 40,
    }  # fmt: skip


def test_two_hops_cross_both_links_at_their_times() -> None:
    hop = transfer(0, 2, 0, 100, method="two_hop", via_device=1, first_end=30, second_start=50)
    assert by_direction(links(table(hop), machine(), HERE), "busy_ns") == {
        ("GPU0", "GPU1"): 30, ("GPU1", "GPU2"): 50,
    }  # fmt: skip
    [route] = links(table(hop), machine(), HERE, by="route")["route"]
    assert route == "GPU0>GPU1>GPU2"


def test_host_copies_are_on_pcie_and_in_no_pair() -> None:
    rows = table(
        transfer(None, 1, 0, 10, method="h2d"), transfer(2, None, 0, 10, method="d2h"),
        transfer(0, 1, 0, 10),
    )  # fmt: skip
    assert {("CPU0", "PCIe0"), ("PCIe0", "GPU1"), ("GPU2", "PCIe1"), ("PCIe1", "CPU1")} < set(
        by_direction(links(rows, machine(), HERE), "bytes")
    )
    pairs = links(rows, machine(), HERE, by="pair")
    assert pairs.select("src_device", "dst_device", "bytes", "peak_gb_s").rows() == [
        (0, 1, 1000, 50.0)
    ]


def test_of_all_transfers_it_is_known_how_many_the_rows_count() -> None:
    rows = table(
        transfer(None, 1, 0, 10, method="h2d"), transfer(0, 1, 0, 10), transfer(0, 1, 20, 30),
        transfer(0, 7, 0, 10), transfer(None, 1, 0, 10),
    )  # fmt: skip
    for by, count in (("pair", 3), ("method", 5), ("route", 5), ("pair,stage", 3)):
        assert listed_transfers(rows, Routes(machine(), HERE), by.split(",")) == count
        assert links(rows, machine(), HERE, by=by)["transfers"].sum() == count
    # By link each counts on every link that it crosses: a copy from the host on two.
    assert listed_transfers(rows, Routes(machine(), HERE), ["link"]) == 3
    assert links(rows, machine(), HERE)["transfers"].sum() == 2 + 1 + 1
    assert listed_transfers(rows, Routes(machine(), HERE), ["link", "pair"]) == 2


def test_an_unknown_end_is_not_the_host() -> None:
    rows = table(transfer(None, 1, 0, 10), transfer(0, 7, 0, 10), transfer(0, 1, 0, 10))
    done = links(rows, machine(), HERE)
    assert set(by_direction(done, "bytes")) == {("GPU0", "GPU1")}
    assert placed_share(rows, Routes(machine(), HERE)) == {"transfers": 3, "routed": 1, "sized": 3}
    whole = links(rows, machine(), HERE, by="method")
    assert whole.select("method", "transfers", "bytes").rows() == [("p2p", 3, 3000)]


def test_unknown_sizes_are_counted_and_no_zeros() -> None:
    rows = table(
        transfer(0, 1, 0, 100, bytes=None, evidence="modelled", method="nccl"),
        transfer(1, 2, 0, 100, bytes=None), transfer(1, 2, 200, 300, bytes=5000),
    )  # fmt: skip
    done = links(rows, machine(), HERE)
    columns = ("transfers", "unsized", "bytes", "busy_ns", "achieved_gb_s")
    assert by_direction(done, *columns) == {
        ("GPU0", "GPU1"): (1, 1, None, 100, None), ("GPU1", "GPU2"): (2, 1, 5000, 200, 50.0),
    }  # fmt: skip


def test_what_is_modelled_is_never_added_to_what_is_measured() -> None:
    rows = table(transfer(0, 1, 0, 10), transfer(0, 1, 0, 10, evidence="modelled", method="nccl"))
    done = links(rows, machine(), HERE)
    assert sorted(done.select("evidence", "bytes").rows()) == [
        ("measured", 1000), ("modelled", 1000),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("stage", {("WU",): 2000, ("FP",): 1000}),
        ("iteration", {(1,): 1000, (2,): 2000}),
        ("iteration,stage", {(1, "FP"): 1000, (2, "WU"): 2000}),
        ("route", {("GPU0>GPU1", "nvlink"): 3000}),
        ("pair", {(0, 1, "GPU0>GPU1"): 3000}),
    ],
)
def test_other_keys(by: str, expected: dict[tuple[Any, ...], int]) -> None:
    rows = table(
        transfer(0, 1, 0, 10, stage="FP", iteration=1), transfer(0, 1, 20, 30, iteration=2),
        transfer(0, 1, 40, 50, iteration=2),
    )  # fmt: skip
    done = links(rows, machine(), HERE, by=by)
    keys = done.columns[: done.columns.index("evidence")]
    assert dict(zip(done.select(keys).rows(), done["bytes"], strict=True)) == expected


def test_devices_may_be_other_gpus_of_the_machine() -> None:
    done = links(table(transfer(0, 1, 0, 10)), machine(), {0: 1, 1: 2})
    assert set(by_direction(done, "bytes")) == {("GPU1", "GPU2")}


def test_reports_have_clocks_of_their_own() -> None:
    rows = table(transfer(0, 1, 0, 10), transfer(0, 1, 0, 10, report=1))
    link = links(rows, machine(), HERE)
    assert link.select("busy_ns", "achieved_gb_s", "utilisation", "share").row(0) == (None,) * 4
    assert link["bytes"].sum() > 0
    assert links(rows, machine(), HERE, by="pair")["busy_ns"].to_list() == [20]


def test_reports_on_one_clock_are_one_stretch_of_time() -> None:
    """Two ranks that were recorded side by side: the run lasts 100 ns, and no link 200 %."""
    reports = on_clocks("host a", "host a")
    rows = table(transfer(0, 3, 0, 60), transfer(1, 3, 30, 90, report=1))
    ops = TraceBuilder()
    for report in (0, 1):
        ops.op("gemm", start=report, end=99 + report, report=report)
    tables = {"ops": ops.trace().read("ops"), "reports": reports}
    window = traffic_window(Trace.of(tables))
    assert window == 100
    found = links(rows, machine(), HERE, window_ns=window, reports=reports)
    assert by_direction(found, "busy_ns", "share")["PCIe0", "CPU0"] == (90, 0.9)
    apart = links(rows, machine(), HERE, reports=on_clocks("host a", "host b"))
    assert by_direction(apart, "busy_ns")["PCIe0", "CPU0"] is None


def test_nothing_moved() -> None:
    assert links(TRANSFERS.empty(), machine(), HERE).is_empty()
    assert links(TRANSFERS.empty(), machine(), HERE, by="pair,stage").is_empty()


@pytest.mark.parametrize("by", ["wire", "", "link,link"])
def test_wrong_keys(by: str) -> None:
    with pytest.raises(UsageError, match="link"):
        parse_link_keys(by)


def test_expected_traffic_of_a_star() -> None:
    """AlexNet: 60 M parameters on 8 GPUs are 3,360 MB in each iteration."""
    size = {"bytes": 240_000_000, "iteration": 0}
    root = [transfer(gpu, 0, 0, 1, **size) for gpu in range(1, 8)]
    back = [transfer(0, gpu, 1, 2, **size) for gpu in range(1, 8)]
    # The first weights are sent before the first iteration.
    first = [transfer(0, gpu, 0, 1, bytes=240_000_000) for gpu in range(1, 8)]
    found = expected_traffic(table(*first, *root, *back), 60_000_000, iterations=1)
    assert found == {
        "gpus": 8, "gradient_bytes": 240_000_000, "expected_bytes": 3_360_000_000,
        "observed_bytes": 3_360_000_000.0, "ratio": 1.0, "unsized": 0, "evidence": "measured",
    }  # fmt: skip
    nothing = expected_traffic(TRANSFERS.empty(), 60_000_000, iterations=1)
    assert nothing["expected_bytes"] is None
    assert nothing["ratio"] is None
    assert nothing["evidence"] is None
    outside = expected_traffic(table(*first), 60_000_000, iterations=0)
    assert (outside["gpus"], outside["observed_bytes"], outside["expected_bytes"]) == (
        8,
        None,
        None,
    )


def test_no_gradients_are_expected_of_a_pipeline() -> None:
    """A message of activations forward, and one of their gradients back; a sum of a small loss."""
    rows = [
        transfer(0, 1, 0, 1, iteration=0, stage="FP"),
        transfer(1, 0, 1, 2, iteration=0, stage="BP"),
    ]
    loss = transfer(1, 0, 2, 3, iteration=0, bytes=8)
    found = expected_traffic(table(*rows, loss), 60_000_000, iterations=1)
    assert (found["observed_bytes"], found["expected_bytes"], found["ratio"]) == (2_008, None, None)


def test_expected_traffic_says_what_it_does_not_know() -> None:
    rows = [transfer(0, 1, 0, 1, iteration=n, evidence=how, bytes=size)
            for n, how, size in ((0, "measured", 100), (1, "modelled", 100), (1, "measured", None))
            ]  # fmt: skip
    found = expected_traffic(table(*rows), 25, iterations=2)
    assert (found["observed_bytes"], found["ratio"]) == (100.0, 0.5)
    assert (found["unsized"], found["evidence"]) == (1, "modelled")


ENDS = st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(lambda ends: ends[0] != ends[1])


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(ENDS, st.integers(0, 50), st.integers(0, 20), st.integers(1, 9)), max_size=12
    )
)
def test_every_byte_is_on_every_link_of_its_route(rows: list[Any]) -> None:
    box = machine()
    made = [transfer(*ends, at, at + length, bytes=size) for ends, at, length, size in rows]
    expected: dict[tuple[str, str], list[Any]] = {}
    for row in made:
        route = box.route(row["src_device"], row["dst_device"])
        assert route is not None
        for step in pairwise(route.nodes):
            bytes_, ticks = expected.setdefault(step, [0, set()])
            expected[step] = [bytes_ + row["bytes"], ticks | set(range(row["start"], row["end"]))]
    frame = table(*made) if made else TRANSFERS.empty()
    found = by_direction(links(frame, box, HERE), "bytes", "busy_ns")
    assert found == {step: (size, len(ticks)) for step, (size, ticks) in expected.items()}
    assert crossings(frame, box, HERE).height == sum(
        len(route.split(">")) - 1 for route in Routes(box, HERE).of(frame)["route"]
    )


class TestProcesses:
    """Traffic by the rank or node of the process that moves it."""

    OWNERS = pl.DataFrame(
        {"process": [0, 1, 2], "rank": [4, 5, None], "rank_source": "report",
         "node": ["n1", "n1", "n2"]},
        schema_overrides={"rank": pl.Int32},
    )  # fmt: skip

    def _rows(self, by: str) -> list[Any]:
        moved = table(
            transfer(0, 1, 0, 10, process=0),
            transfer(1, 0, 5, 15, process=1),
            transfer(1, 0, 20, 30, process=1),
            transfer(2, 1, 0, 10, process=2),
        )
        found = links(moved, machine(), HERE, by=by, processes=self.OWNERS)
        key = by.split(",")
        return sorted(found.select(*key, "transfers", "bytes", "busy_ns").rows(), key=str)

    def test_by_rank(self) -> None:
        assert self._rows("rank") == [(4, 1, 1000, 10), (5, 2, 2000, 20), (None, 1, 1000, 10)]

    def test_by_node_time_that_overlaps_counts_once(self) -> None:
        assert self._rows("node") == [("n1", 3, 3000, 25), ("n2", 1, 1000, 10)]

    def test_with_other_keys(self) -> None:
        assert self._rows("method,node") == [
            ("p2p", "n1", 3, 3000, 25), ("p2p", "n2", 1, 1000, 10),
        ]  # fmt: skip

    def test_they_have_to_be_known(self) -> None:
        with pytest.raises(UsageError, match="links by rank need ranks"):
            links(table(transfer(0, 1, 0, 10)), machine(), HERE, by="link,rank")


def two_hosts() -> Machine:
    """Two GPUs and a NIC on each of two hosts."""
    nodes: Any = {
        "Fabric0": {"type": "fabric"},
        **{f"GPU{number}": {"type": "gpu"} for number in range(4)},
        **{f"NIC{number}": {"type": "nic"} for number in range(2)},
    }
    edges = [
        *(Link((f"GPU{gpu}", f"NIC{gpu // 2}"), "pcie", None, 16 * GB) for gpu in range(4)),
        *(Link((f"NIC{nic}", "Fabric0"), "network", None, 20 * GB) for nic in range(2)),
        *(Link((f"GPU{gpu}", f"GPU{gpu + 1}"), "nvlink", 2, 50 * GB) for gpu in (0, 2)),
    ]
    return Machine.of("hosts", nodes, edges)


MOMENTS = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 20), st.integers(0, 12))


@settings(deadline=None)
@given(
    st.lists(st.tuples(MOMENTS, st.sampled_from([None, 7, 90]), st.integers(-1, 2)), min_size=1),
    st.lists(st.integers(0, 25), max_size=3),
    st.sampled_from(["link", "pair", "method", "nic", "hosts", "link,stage"]),
    st.sampled_from([None, (5, 14)]),
)
def test_transfers_in_pieces_add_up_to_the_same(
    moved: Any, borders: list[int], by: str, between: tuple[int, int] | None
) -> None:
    rows = []
    for number, ((src, dst, at, length), size, choice) in enumerate(moved):
        told = {"report": src, "bytes": size, "evidence": "modelled", "stage": ("BP", "WU")[at % 2]}
        if choice >= 0:  # a collective is of one piece
            told |= {"evidence": "modelled between", "bytes": None, "bytes_if": size}
            told |= {"choice": 100 * at + choice, "algorithm": ("ring", "nvls")[number % 2]}
        rows.append(transfer(src, dst, at, at + length, **told))
    frame = table(*rows)
    hosts = {number: f"host {number // 2}" for number in range(4)}
    reports = on_clocks("job", "job", "job", "apart")
    computing = pl.DataFrame(
        {"device": [0, 1, 2, 3], "clock": ["job"] * 4, "start": [0, 3, 8, 8], "end": [6, 9, 9, 15]},
        schema_overrides={"device": pl.Int32},
    )
    options: Any = {"by": by, "reports": reports, "between": between, "hosts": hosts,
                    "computing": computing}  # fmt: skip
    spans = pairwise([-99, *sorted(borders), 99])
    pieces = [(frame.filter(Stretch(span).holds()), span[1]) for span in spans]
    whole, added = (
        links(some, two_hosts(), HERE, window_ns=40, **options) for some in (frame, pieces)
    )
    assert_frame_equal(added, whole)
