"""The machine that nvprof describes beside what ran on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from nvprof_builder import NvprofBuilder
from source_helpers import remarks

import tracekit
from tracekit.sources import read


@pytest.fixture
def nvprof(tmp_path: Path) -> NvprofBuilder:
    builder = NvprofBuilder(tmp_path / "t.nvvp")
    for number in range(2):
        builder.device(number)
        builder.kernel(10, 20, deviceId=number)
    return builder


def nvlink(nvprof: NvprofBuilder, one: int, other: int, bricks: int = 2) -> Path:
    nvprof.insert(
        "NVLINK", typeDev0=1, typeDev1=1, idDev0=bytes(range(one, one + 16)),
        idDev1=bytes(range(other, other + 16)), physicalNvLinkCount=bricks,
        bandwidth=bricks * 50_000_000,
    )  # fmt: skip
    nvprof.close()
    return nvprof.path


def test_a_run_is_on_the_machine_that_its_report_holds(nvprof, tmp_path: Path) -> None:
    run, _ = tracekit.ingest([nvlink(nvprof, 0, 1)], store=tmp_path / "store")
    machine = run.machine()
    assert (machine.origin, machine.nvlink_matrix()) == ("trace", [[0, 2], [2, 0]])
    assert [link.bandwidth for link in machine.links] == [50_000_000_000]
    assert run.machine("pcie-2").origin == "preset"
    assert run.table("machine").collect()["report"].to_list() == [0]


def test_a_report_without_topology_holds_none(nvprof, tmp_path: Path) -> None:
    nvprof.close()
    run, _ = tracekit.ingest([nvprof.path], store=tmp_path / "store")
    assert run.table("machine").collect().is_empty()
    assert run.machine().origin == "assumed"


def test_a_damaged_topology_loses_nothing_else(nvprof) -> None:
    trace = read(nvlink(nvprof, 0, 1, bricks=-1))
    assert trace.read("machine").is_empty()
    assert trace.read("ops").height == 2
    assert any("the machine is not known" in remark for remark in remarks(trace))
