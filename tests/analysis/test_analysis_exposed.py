"""Traffic between hosts that no computing hides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from link_helpers import GB, on_clocks, table, transfer

from tracekit.analysis.traffic import links
from tracekit.analysis.traffic._link_time import computing_times
from tracekit.machine import Link, Machine
from tracekit.model import Trace

PAIR = {0: 0, 1: 1}
HOSTS = {0: "one", 1: "two"}
JOB = on_clocks("job", "job")


def pair() -> Machine:
    """Two hosts of a GPU and a NIC each."""
    nodes = {
        "Fabric0": {"type": "fabric"},
        **{f"{kind.upper()}{n}": {"type": kind} for n in range(2) for kind in ("gpu", "nic")},
    }
    edges = [
        link
        for n in range(2)
        for link in (Link((f"GPU{n}", f"NIC{n}"), "pcie", None, 16 * GB),
                     Link((f"NIC{n}", "Fabric0"), "network", None, 20 * GB))
    ]  # fmt: skip
    return Machine.of("pair", nodes, edges)


def computes(
    *times: tuple[int, int, int], kind: str = "compute", reports: pl.DataFrame = JOB
) -> pl.DataFrame:
    """Return when GPUs compute: GPU, start and end; GPU n is of report n."""
    ops = [
        {"report": gpu, "op": op, "process": gpu, "device": gpu, "kind": kind, "start": start,
         "end": end}
        for op, (gpu, start, end) in enumerate(times)
    ]  # fmt: skip
    devices = [{"device": n, "report": n, "identity": "none", "active": True} for n in range(2)]
    tables = {"reports": reports, "devices": pl.DataFrame(devices)}
    if ops:
        tables["ops"] = pl.DataFrame(ops)
    return computing_times(Trace.of(tables))


def exposed(rows: pl.DataFrame, computing: pl.DataFrame, by: str = "nic", **more: Any) -> Any:
    options = {"window_ns": 1000, "reports": JOB, "hosts": HOSTS} | more
    found = links(rows, pair(), PAIR, by=by, computing=computing, **options)
    columns = {"nic": ["host", "direction"], "hosts": ["src_host", "dst_host"]}[by]
    return {tuple(key): time for *key, time in found.select(*columns, "exposed_ns").rows()}


def test_by_what_the_gpu_at_this_end_computes() -> None:
    """From 100 to 300 GPU 0 computes for 50 ns, GPU 1 for 130, of which kernels overlap."""
    computing = computes((0, 150, 200), (1, 0, 120), (1, 110, 150), (1, 220, 300), (1, 300, 400))
    rows = table(transfer(0, 1, 100, 300, evidence="modelled"))
    assert exposed(rows, computing) == {("one", "out"): 150, ("two", "in"): 70}
    assert exposed(rows, computing, "hosts") == {("one", "two"): 150}
    found = links(rows, pair(), PAIR, by="nic", computing=computing, window_ns=1000, reports=JOB)
    assert found["exposed_share"].sort().to_list() == [0.07, 0.15]
    # Ops that do not compute hide nothing, and a GPU that does nothing has nothing to hide behind.
    assert exposed(rows, computes((0, 100, 300), kind="collective")) == {
        ("one", "out"): 200, ("two", "in"): 200,
    }  # fmt: skip


def test_transfers_at_one_time_count_once_and_a_stretch_is_cut() -> None:
    rows = table(*(transfer(0, 1, start, 300, evidence="modelled") for start in (100, 100, 150)))
    assert exposed(rows, computes((0, 0, 120))) == {("one", "out"): 180, ("two", "in"): 200}
    assert exposed(rows, computes((0, 0, 120)), between=(110, 160)) == {
        ("one", "out"): 40, ("two", "in"): 50,
    }  # fmt: skip


def test_of_a_gpu_on_another_clock_it_is_not_known() -> None:
    apart = on_clocks("one", "two")
    rows = table(transfer(0, 1, 100, 300, evidence="modelled"))
    found = exposed(rows, computes((0, 0, 120), reports=apart), reports=apart)
    assert found == {("one", "out"): 180, ("two", "in"): None}


@pytest.mark.parametrize("by", ["link", "pair", "method"])
def test_traffic_within_hosts_has_none(by: str) -> None:
    rows = table(transfer(0, 1, 100, 300))
    assert "exposed_ns" not in links(rows, pair(), PAIR, by=by, computing=computes()).columns


SPANS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40), st.integers(0, 12)), max_size=8)


@settings(deadline=None)
@given(SPANS, SPANS.filter(bool), st.integers(0, 10**18))
def test_by_counting_nanoseconds(
    kernels: list[tuple[int, int, int]], moved: list[tuple[int, int, int]], base: int
) -> None:
    ticks: tuple[set[int], set[int]] = (set(), set())
    for gpu, at, length in kernels:
        ticks[gpu].update(range(at, at + length))
    expected: dict[tuple[str, str], set[int]] = {}
    made = []
    for src, at, length in moved:
        made.append(transfer(src, 1 - src, base + at, base + at + length, evidence="modelled"))
        for gpu, direction in ((src, "out"), (1 - src, "in")):
            alone = {*range(at, at + length)} - ticks[gpu]
            expected.setdefault((HOSTS[gpu], direction), set()).update(alone)
    computing = computes(*((gpu, base + at, base + at + n) for gpu, at, n in kernels))
    assert exposed(table(*made), computing) == {key: len(time) for key, time in expected.items()}


def test_nics_that_read_and_write_host_memory() -> None:
    """PCIe of the first host is crossed twice; what the log does not tell is null."""
    nodes = {
        "Fabric0": {"type": "fabric"}, "CPU0": {"type": "host"}, "PCIe0": {"type": "pcie"},
        "GPU0": {"type": "gpu"}, "NIC0": {"type": "nic"}, "GPU1": {"type": "gpu"},
        "NIC1": {"type": "nic"},
    }  # fmt: skip
    edges = [("GPU0", "PCIe0"), ("PCIe0", "CPU0"), ("NIC0", "PCIe0"), ("GPU1", "NIC1")]
    fabric = [("NIC0", "Fabric0"), ("NIC1", "Fabric0")]
    machine = replace(
        Machine.of("pair", nodes, [*(Link(ends, "pcie", None, 16 * GB) for ends in edges),
                                   *(Link(ends, "network", None, 20 * GB) for ends in fabric)]),
        through_host=frozenset({("GPU0", "NIC0")}),
    )  # fmt: skip
    rows = table(
        transfer(0, 1, 100, 300, evidence="modelled", src_nic=0),
        transfer(1, 0, 100, 300, evidence="modelled", src_nic=0, dst_nic=0, bytes=10),
    )
    found = links(rows, machine, PAIR, by="nic", hosts=HOSTS)
    assert sorted(found.select("host", "direction", "memory", "bytes").rows()) == [
        ("one", "in", "gpu", 10), ("one", "out", "host", 1000),
        ("two", "in", None, 1000), ("two", "out", "gpu", 10),
    ]  # fmt: skip
    by_link = {
        (src, dst): size
        for src, dst, size in links(rows, machine, PAIR).select("src", "dst", "bytes").rows()
    }
    assert by_link["PCIe0", "CPU0"] == by_link["CPU0", "PCIe0"] == 1000
    assert by_link["PCIe0", "NIC0"] == 1000
    assert by_link["NIC0", "PCIe0"] == by_link["PCIe0", "GPU0"] == 10
