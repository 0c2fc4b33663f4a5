"""What is attributed to links, beside what counters of GPUs and NICs counted."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from link_helpers import GB, HERE, machine, on_clocks, table, transfer

from tracekit.analysis.traffic._counters import link_counters
from tracekit.machine import Link, Machine
from tracekit.model import TRANSFERS, Trace


def metrics(*rows: dict[str, Any]) -> Trace:
    made = [
        {"report": 0, "device": 0, "unit": "percent", "recorded_name": "x"} | row for row in rows
    ]
    return Trace.of({"metrics": pl.DataFrame(made)})


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
            "device": 0, "host": None, "nic": None, "metric": "nvlink_tx", "samples": 2,
            "window_ns": 200, "sampled_share": None, "mean_percent": 20.0, "max_percent": 30.0,
            "counted_bytes": 2000, "measured_bytes": 1500, "modelled_bytes": 100, "unsized": 1,
            "difference_bytes": -400, "difference_share": -0.2,
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


def test_a_sample_after_a_gap_covers_no_more_than_others() -> None:
    """10 % of 50 GB/s for 2 x 300 ns are 3,000 bytes; between lie 9,700 ns without samples."""
    times = [0, 100, 200, 300, 10_000, 10_100, 10_200]
    trace = metrics(*({"metric": "nvlink_tx", "time": at, "value": 10.0} for at in times))
    [found] = link_counters(trace, table(transfer(0, 1, 0, 300)), machine(), HERE).to_dicts()
    assert (found["counted_bytes"], found["mean_percent"], found["samples"]) == (3000, 10.0, 6)


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


# -- NICs of several hosts ---------------------------------------------------------------------


def hosts_of_nics(*names: str | None) -> Machine:
    """Two hosts of a GPU and a NIC of this name each; None for one without a known NIC."""
    nodes: dict[str, dict[str, object]] = {"Fabric0": {"type": "fabric"}}
    links = []
    for host, name in enumerate(names):
        gpu, nic = f"GPU{host}", f"NIC{host}"
        nodes[gpu] = {"type": "gpu"}
        if name is None:
            links.append(Link((gpu, "Fabric0"), "network"))
            continue
        nodes[nic] = {"type": "nic", "name": name}
        links += [Link((nic, "Fabric0"), "network", None, 25 * GB),
                  Link((gpu, nic), "pcie", None, 16 * GB)]  # fmt: skip
    return Machine.of("pair", nodes, links)


PAIR = {0: 0, 1: 1}
HOSTS = {0: "one", 1: "two"}


def nic_metrics(*rows: dict[str, Any], clocks: tuple[str, ...] = ("job", "job")) -> Trace:
    """Report 0 is of host one and report 1 of host two, on one clock; ops run from 0 to 1,000."""
    own = {"device": None, "nic": "mlx5_0", "metric": "nic_tx", "unit": "bytes", "report": 0}
    reports = on_clocks(*clocks).with_columns(host=pl.Series(["one", "two"]))
    ops = pl.DataFrame({"report": 0, "op": 0, "process": 0, "device": 0, "kind": "compute",
                        "start": 0, "end": 1000})  # fmt: skip
    return Trace.of(
        {"metrics": metrics(*(own | row for row in rows)).read("metrics"),
         "reports": reports, "ops": ops}
    )  # fmt: skip


def nic_rows(found: pl.DataFrame) -> list[tuple[Any, ...]]:
    columns = ("host", "nic", "metric", "counted_bytes", "measured_bytes", "modelled_bytes")
    return found.select(*columns).rows()


def test_nics_of_two_hosts_by_direction() -> None:
    """Host one sends 1,000 bytes in 200 ns; samples of it cover the first half, and count 520."""
    trace = nic_metrics(
        {"start": 0, "time": 50, "value": 20},
        {"start": 50, "time": 200, "value": 500},
        {"metric": "nic_rx", "start": 0, "time": 400, "value": 7},
        {"report": 1, "metric": "nic_rx", "start": 0, "time": 400, "value": 1_010},
    )
    rows = table(
        transfer(0, 1, 100, 300, evidence="modelled"),
        transfer(1, 0, 500, 600, evidence="modelled"),  # when no sample was taken
        transfer(0, 1, 100, 300, bytes=None),
    )
    found = link_counters(trace, rows, hosts_of_nics("mlx5_0", "mlx5_0"), PAIR, HOSTS)
    assert nic_rows(found) == [
        ("one", "mlx5_0", "nic_rx", 7, 0, 0),
        ("one", "mlx5_0", "nic_tx", 520, 0, 500),
        ("two", "mlx5_0", "nic_rx", 1010, 0, 1000),
    ]
    assert found["difference_bytes"].to_list() == [-7, -20, -10]
    assert found["difference_share"].to_list() == [-1.0, -20 / 520, -10 / 1010]
    assert found["sampled_share"].to_list() == [0.4, 0.2, 0.4]
    assert found["unsized"].to_list() == [0, 1, 1]
    assert found["samples"].to_list() == [1, 2, 1]


def test_a_nic_that_the_machine_does_not_have_is_held_against_nothing() -> None:
    trace = nic_metrics(
        {"start": 0, "time": 400, "value": 5},
        {"nic": "mlx5_9", "start": 0, "time": 400, "value": 6},
    )
    rows = table(transfer(0, 1, 100, 300, evidence="modelled"))
    found = link_counters(trace, rows, hosts_of_nics("mlx5_0", "mlx5_0"), PAIR, HOSTS)
    assert nic_rows(found) == [
        ("one", "mlx5_0", "nic_tx", 5, 0, 1000), ("one", "mlx5_9", "nic_tx", 6, None, None),
    ]  # fmt: skip
    assert found["difference_bytes"].to_list() == [995, None]


def test_nics_of_a_host_that_are_not_known_are_held_against_all_that_it_exchanges() -> None:
    """Of host two the NIC is known; of a host whose report names none nothing is said."""
    trace = nic_metrics(
        *({"nic": nic, "start": at, "time": at + 200, "value": 300}
          for nic in ("mlx5_0", "mlx5_1") for at in (0, 200)),
        {"report": 1, "metric": "nic_rx", "start": 0, "time": 400, "value": 900},
    )  # fmt: skip
    rows = table(transfer(0, 1, 100, 300, evidence="modelled"))
    found = link_counters(trace, rows, hosts_of_nics(None, "mlx5_0"), PAIR, HOSTS)
    assert nic_rows(found) == [
        ("one", "mlx5_0", "nic_tx", 600, None, None),
        ("one", "mlx5_1", "nic_tx", 600, None, None),
        ("one", None, "nic_tx", 1200, 0, 1000),
        ("two", "mlx5_0", "nic_rx", 900, 0, 1000),
    ]
    assert found["sampled_share"].to_list() == [0.4] * 4


def test_of_reports_that_sampled_one_nic_that_with_most_samples_counts() -> None:
    trace = nic_metrics(
        {"start": 0, "time": 400, "value": 9},
        *({"report": 1, "start": at, "time": at + 200, "value": 5} for at in (0, 200)),
    )
    same = trace.read("reports").with_columns(host=pl.lit("one"))
    found = link_counters(
        trace.with_tables({"reports": same}), TRANSFERS.empty(), hosts_of_nics("mlx5_0"), {0: 0},
        {0: "one"},
    )  # fmt: skip
    assert nic_rows(found) == [("one", "mlx5_0", "nic_tx", 10, 0, 0)]


def test_hosts_without_a_name_are_not_taken_for_one() -> None:
    trace = nic_metrics(
        *({"report": report, "start": 0, "time": 400, "value": 9} for report in range(2))
    )
    unnamed = trace.read("reports").with_columns(host=pl.lit(None, pl.String))
    found = link_counters(
        trace.with_tables({"reports": unnamed}), TRANSFERS.empty(), machine(), HERE
    )
    assert nic_rows(found) == [(None, "mlx5_0", "nic_tx", 9, None, None)] * 2


def test_samples_on_a_clock_without_traffic_are_held_against_none_of_it() -> None:
    trace = nic_metrics(
        {"report": 1, "metric": "nic_rx", "start": 0, "time": 400, "value": 9},
        clocks=("one", "two"),
    )
    rows = table(transfer(0, 1, 100, 300, evidence="modelled"))
    found = link_counters(trace, rows, hosts_of_nics("mlx5_0", "mlx5_0"), PAIR, HOSTS)
    assert nic_rows(found) == [("two", "mlx5_0", "nic_rx", 9, 0, 0)]
    assert found["sampled_share"].to_list() == [None]


def test_a_gpu_reaches_an_unknown_nic_by_its_pcie_link() -> None:
    """8 GB/s of 16 for 100 ns are 800 bytes; a NIC that a log names is no second link."""
    trace = metrics(*({"metric": "pcie_tx", "time": t, "value": 50.0} for t in (0, 100)))
    box = machine()
    nodes = {**dict(box.graph.nodes(data=True)), "NIC0": {"type": "nic"},
             "Fabric0": {"type": "fabric"}, "GPU9": {"type": "gpu"}}  # fmt: skip
    for ends in (("GPU0", "Fabric0"), ("NIC0", "Fabric0")):
        more = [Link(ends, "network"), Link(("GPU9", "Fabric0"), "network"),
                *([Link(("GPU0", "NIC0"), "pcie")] if "NIC0" in ends else [])]  # fmt: skip
        over = Machine.of("box", nodes, [*box.links, *more])
        rows = table(transfer(0, 9, 0, 100, evidence="modelled"))
        [found] = link_counters(trace, rows, over, HERE | {9: 9}).to_dicts()
        assert (found["counted_bytes"], found["modelled_bytes"]) == (800, 1000)


SAMPLES = st.tuples(st.integers(0, 40), st.integers(-2, 9), st.integers(-3, 99))


@settings(deadline=None)
@given(st.lists(SAMPLES, min_size=1, max_size=9), st.lists(MOVED, max_size=6))
def test_samples_with_gaps_by_counting_nanoseconds(
    samples: list[tuple[int, int, int]], rows: list[Any]
) -> None:
    """Samples that overlap cover a ns once; reversed, empty and negative ones count nothing."""
    by_end: dict[int, list[tuple[int, int]]] = {}
    for at, length, value in samples:
        by_end.setdefault(at + length, []).append((at, value))
    # Samples of one end are of several ports, and one sample together.
    whole = [(min(at for at, _ in own), end, sum(value for _, value in own))
             for end, own in by_end.items()]  # fmt: skip
    kept = [(at, end, value) for at, end, value in whole if at < end and value >= 0]
    trace = nic_metrics(
        *({"start": at, "time": at + length, "value": float(value)}
          for at, length, value in samples)
    )  # fmt: skip
    made, expected = [], {"measured": 0, "modelled": 0}
    covered = {tick for at, end, _ in kept for tick in range(at, end)}
    for at, long, rate, is_modelled, is_back in rows:
        evidence = "modelled" if is_modelled else "measured"
        made.append(transfer(*((1, 0) if is_back else (0, 1)), at, at + long,
                             bytes=rate * long, evidence=evidence))  # fmt: skip
        expected[evidence] += 0 if is_back else rate * len(covered & {*range(at, at + long)})
    frame = table(*made) if made else TRANSFERS.empty()
    pair = hosts_of_nics("mlx5_0", "mlx5_0")
    found = link_counters(trace, frame, pair, PAIR, HOSTS).to_dicts()
    assert len(found) == bool(kept)
    for row in found:
        assert row["counted_bytes"] == sum(value for *_, value in kept)
        assert {name: row[f"{name}_bytes"] for name in expected} == expected
        assert row["sampled_share"] == len(covered) / 1000
        assert row["samples"] == len(kept)


def test_counts_beyond_what_a_table_holds_are_unknown() -> None:
    trace = nic_metrics(*({"start": at, "time": at + 10, "value": 9e18} for at in range(0, 90, 10)))
    [row] = link_counters(
        trace, TRANSFERS.empty(), hosts_of_nics("mlx5_0", "mlx5_0"), PAIR, HOSTS
    ).to_dicts()
    assert (row["counted_bytes"], row["difference_bytes"]) == (None, None)
