"""Ops of CUDA graphs are of the ranges that were open when their nodes were captured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from nsys_builder import NsysBuilder, schema_versions
from trace_builder import default_rules, training

from tracekit.attribution import attribute, attribute_recording
from tracekit.model import Trace
from tracekit.sources import open_report, read
from tracekit.support.spool import Workspace

SCHEMAS = sorted(schema_versions())


def captured(nsys: NsysBuilder, *, copied: bool = True) -> None:
    """A step that is captured at 100 to 200, and replayed in two steps from 1,000 on.

    Nodes 1, 2 and 3 are captured in forward, backward and optimizer; 11, 12 and 13 are their
    copies in the graph that is replayed. Node 4 is captured in no range with a stage.
    """
    for start, name in ((100, "forward"), (130, "backward"), (160, "optimizer_step")):
        nsys.push_pop(start, start + 20, name)
        nsys.call(start + 5, start + 9, correlation=start)
    nsys.push_pop(185, 199, "something")
    nsys.call(190, 194, correlation=190)
    for node, at in ((1, 106), (2, 136), (3, 166), (4, 191)):
        nsys.graph_node(at, node)
    for node in (1, 2, 3, 4) if copied else ():
        for at, copy, original in ((210, 100, 0), (220, 10, 100)):
            nsys.graph_node(
                at + 2 * node, copy + node
            )  # nsys tells that a copy is made, then of what
            nsys.graph_node(at + 2 * node + 1, copy + node, original + node)
    for step in range(2):
        at = 1_000 * (step + 1)
        nsys.push_pop(at, at + 900, f"step {step}")
        nsys.call(at + 10, at + 20, correlation=at, name="cudaGraphLaunch_v10000")
        for place in range(4):
            node = place + (11 if copied else 1)
            start = at + 30 + 100 * place
            nsys.kernel(start, start + 50, correlation=at, graph_node=node, name=f"node{place}")


def attributed(nsys: NsysBuilder) -> Trace:
    nsys.close()
    return attribute(read(nsys.path), training(default_rules()))


def told(trace: Trace, *columns: str) -> list[tuple[object, ...]]:
    ranges = trace.read("ranges").select("range", in_range="name")
    ops = trace.read("ops").join(ranges, on="range", how="left", maintain_order="left")
    return ops.select(pl.col(columns).cast(pl.String)).rows()


@pytest.mark.parametrize("schema", SCHEMAS)
def test_each_replay_is_of_the_ranges_of_its_capture(schema: str, tmp_path: Path) -> None:
    nsys = NsysBuilder(tmp_path / "t.sqlite", schema=schema)
    captured(nsys)
    trace = attributed(nsys)
    one_step = [
        ("FP", "nvtx", "forward"), ("BP", "nvtx", "backward"), ("WU", "nvtx", "optimizer_step"),
        ("OTHER", "none", "something"),
    ]  # fmt: skip
    assert told(trace, "stage", "stage_source", "in_range") == one_step * 2
    ops = trace.read("ops")
    assert ops["iteration"].to_list() == [0] * 4 + [1] * 4
    assert ops["launch_start"].to_list() == [1_010] * 4 + [2_010] * 4
    assert trace.read("graph_nodes").height == 12


def test_nodes_that_are_replayed_as_they_were_captured(tmp_path: Path) -> None:
    nsys = NsysBuilder(tmp_path / "t.sqlite")
    captured(nsys, copied=False)
    assert [row[0] for row in told(attributed(nsys), "stage")] == ["FP", "BP", "WU", "OTHER"] * 2


def test_nodes_of_another_process_and_thread_are_others(tmp_path: Path) -> None:
    nsys = NsysBuilder(tmp_path / "t.sqlite")
    nsys.push_pop(0, 300, "backward")
    nsys.call(5, 9, correlation=1)
    nsys.push_pop(0, 300, "forward", pid=200, tid=201)
    nsys.call(5, 9, correlation=1, pid=200, tid=201)
    nsys.graph_node(6, 7)
    nsys.graph_node(6, 7, pid=200, tid=201)
    for pid in (100, 200):
        nsys.call(400, 410, correlation=5, pid=pid, name="cudaGraphLaunch")
        nsys.kernel(420, 430, correlation=5, pid=pid, graph_node=7)
    assert sorted(told(attributed(nsys), "process", "stage")) == [("0", "BP"), ("1", "FP")]


@pytest.mark.parametrize(
    ("captured_in", "created", "replayed_in", "stage", "in_range"),
    [
        pytest.param("backward", 20, "forward", "FP", "forward", id="no call made the node"),
        pytest.param("layer1", 6, "forward", "FP", "layer1", id="captured without a stage"),
        pytest.param("forward", 6, "validation", "ME", "forward", id="replayed in evaluation"),
    ],
)
def test_where_capture_and_replay_differ(
    captured_in: str, created: int, replayed_in: str, stage: str, in_range: str, tmp_path: Path
) -> None:
    nsys = NsysBuilder(tmp_path / "t.sqlite")
    nsys.push_pop(0, 50, captured_in)
    nsys.call(5, 9, correlation=1)
    nsys.graph_node(created, 7)
    nsys.push_pop(390, 500, replayed_in)
    nsys.call(400, 410, correlation=5, name="cudaGraphLaunch")
    nsys.kernel(420, 430, correlation=5, graph_node=7)
    assert told(attributed(nsys), "stage", "in_range") == [(stage, in_range)]


def test_chunks_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nsys = NsysBuilder(tmp_path / "t.sqlite")
    captured(nsys)
    whole = attributed(nsys).read("ops")
    monkeypatch.setattr("tracekit.sources._ordering._SAMPLED", 1)
    workspace = Workspace()
    workspace.rows = 1
    parts: list[pl.DataFrame] = []

    def write(table: str, make: Callable[[], pl.DataFrame]) -> None:
        frame = make()
        if table == "ops":
            parts.append(frame)

    recording = open_report(nsys.path, workspace)
    assert len(recording.streams["calls"]) > 1
    rules = training(default_rules())
    attribute_recording(recording, rules, workspace, write, lambda *_: None)
    assert len(parts) > 1
    told_of = ["range", "stage", "iteration", "call"]
    assert pl.concat(parts).select(told_of).equals(whole.select(told_of))
