"""Groups of ranks: names, parallelism and members of communicators."""

from __future__ import annotations

import json

import polars as pl
import pytest
from link_helpers import HERE, machine
from trace_builder import TraceBuilder

from tracekit.analysis.calls import collective_calls, communicator_groups
from tracekit.analysis.communication import Traffic, collectives
from tracekit.analysis.diagnosis import stragglers
from tracekit.analysis.idle_time import idle
from tracekit.machine import Placed
from tracekit.model import TABLES, Trace

NAMES = {
    # PyTorch's meshes, Megatron-LM, vLLM and SGLang
    "mesh_tp": "tensor",
    "mesh_dp_shard": "data",
    "mesh_dp_shard_cp": "data and context",
    "TENSOR_MODEL_PARALLEL_GROUP": "tensor",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pipeline",
    "DATA_PARALLEL_GROUP_WITH_CP": "data and context",
    "EXPERT_DATA_PARALLEL_GROUP": "data and expert",
    "tp:0": "tensor",
    "attn_tp": "tensor",
    "moe_ep": "expert",
    # nothing of these is said, or is a part of another word
    "default_pg": None,
    "MODEL_PARALLEL_GROUP": None,
    "EMBEDDING_GROUP": None,
    "http": None,
    "": None,
}


def job(names: dict[int, str | None], ranks: dict[int, list[int]]) -> Trace:
    """Four ranks, each on its GPU; communicators with a name and the ranks that take part."""
    b = TraceBuilder()
    for rank in range(4):
        text = json.dumps({"NCCL communicator ID": 99, "No. of ranks": 4, "Rank": rank})
        b.range(-100, -90, "ncclCommInitRank", thread=10 * rank, domain="NCCL", payload=text)
    for place, (communicator, members) in enumerate(ranks.items()):
        for rank in members:
            at = 1000 * place + 10 * rank
            said = {"NCCL communicator ID": communicator, "Message size [bytes]": 800}
            if (name := names[communicator]) is not None:
                said["Group description"] = name
            b.range(at, at + 4, "ncclAllReduce", thread=10 * rank, domain="NCCL",
                    payload=json.dumps(said))  # fmt: skip
            b.op("ncclDevKernel_AllReduce_Sum", at + 2, thread=10 * rank, start=at + 100,
                 end=1000 * place + 300, device=rank, kind="collective",
                 collective="all_reduce")  # fmt: skip
    return b.attributed()


def test_what_names_of_groups_say() -> None:
    names = dict(enumerate(NAMES, 1))
    trace = job(names, {each: [0, 1] for each in names})
    rows = communicator_groups(trace, collective_calls(trace))
    assert dict(rows.select("group", "parallelism").iter_rows()) == NAMES


def test_members_of_communicators() -> None:
    trace = job({1: "mesh_tp", 2: None, 3: "mesh_tp"}, {1: [0, 1, 3], 2: [2], 3: [0, 1, 2, 3]})
    found = communicator_groups(trace, collective_calls(trace))
    assert found.rows() == [
        ("0x1", "mesh_tp", "tensor", "0-1, 3"),
        ("0x2", None, None, "2"),
        ("0x3", "mesh_tp", "tensor", "0-3"),
    ]


def test_collectives_by_parallelism() -> None:
    """A row of one communicator has its members; one of several says of how many it is."""
    names = {1: "mesh_tp", 2: "mesh_tp", 3: "mesh_dp", 4: None}
    trace = job(names, {1: [0, 1], 2: [2, 3], 3: [0, 2], 4: [0, 1, 2, 3]})
    rows = collectives(trace, by="parallelism").rows
    columns = ("parallelism", "communicators", "members", "count", "participants")
    assert rows.select(columns).rows() == [
        ("data", 1, "0, 2", 1, 2), ("tensor", 2, None, 2, 2), (None, 1, "0-3", 1, 4),
    ]  # fmt: skip
    by_group = collectives(trace, by="group,communicator").rows
    assert by_group.select("group", "communicator", "members").rows() == [
        ("mesh_dp", "0x3", "0, 2"), ("mesh_tp", "0x1", "0-1"), ("mesh_tp", "0x2", "2-3"),
        (None, "0x4", "0-3"),
    ]  # fmt: skip


def test_links_by_parallelism() -> None:
    """A ring of two sends all 800 bytes each way; copies are of no group."""
    trace = job({1: "mesh_tp", 2: "mesh_dp"}, {1: [0, 1], 2: [1, 2]})
    traffic = Traffic(trace, Placed(machine(), HERE, "number"))
    found = traffic.links("pair,parallelism").select(
        "src_device", "dst_device", "parallelism", "bytes"
    )
    assert sorted(found.rows()) == [
        (0, 1, "tensor", 800), (1, 0, "tensor", 800), (1, 2, "data", 800), (2, 1, "data", 800),
    ]  # fmt: skip
    by_group = traffic.links("group").select("group", "bytes").rows()
    assert sorted(by_group) == [("mesh_dp", 1600), ("mesh_tp", 1600)]
    whole = traffic.links("method").filter(method="nccl")["bytes"].sum()
    assert whole == pl.Series([size for _, size in by_group]).sum()


def late_job() -> Trace:
    """Two steps of three ranks: `mesh_tp` of 0 and 1 before `mesh_dp` of all, and one unnamed.

    In us from the step's begin, rank by rank: from when to when each is in which.
    """
    calls: list[tuple[int, str | None, dict[int, tuple[int, int]]]] = [
        (1, "mesh_tp", {0: (100, 300), 1: (250, 300)}),
        (2, "mesh_dp", {0: (400, 900), 1: (700, 900), 2: (600, 900)}),
        (3, None, {0: (910, 950), 1: (910, 950), 2: (940, 950)}),
    ]
    b = TraceBuilder()
    for rank in range(3):
        text = json.dumps({"NCCL communicator ID": 9, "No. of ranks": 3, "Rank": rank})
        b.range(-100, -90, "ncclCommInitRank", thread=10 * rank, domain="NCCL", payload=text)
    for step in range(2):
        begin = step * 1_000_000
        for rank in range(3):
            b.iteration(step, begin, begin + 10**6, thread=10 * rank, ops=2, whole=True)
            b.op("gemm", begin, thread=10 * rank, start=begin + 1000, end=begin + 99_000,
                 device=rank, stage="BP")  # fmt: skip
        for place, (communicator, name, ranks) in enumerate(calls):
            for rank, (start, end) in ranks.items():
                at = begin + 20_000 * (place + 1)
                said = {"NCCL communicator ID": communicator, "Message size [bytes]": 800}
                if name:
                    said["Group description"] = name
                b.range(at, at + 4, "ncclAllReduce", thread=10 * rank, domain="NCCL",
                        payload=json.dumps(said))  # fmt: skip
                b.op("ncclDevKernel_AllReduce_Sum", at + 2, thread=10 * rank,
                     start=begin + 1000 * start, end=begin + 1000 * end, device=rank,
                     kind="collective", collective="all_reduce", stage="WU", stream=20)  # fmt: skip
    return b.trace().with_tables({"devices": TABLES["devices"].conform(pl.DataFrame([
        {"device": each, "report": 0, "active": True, "identity": "assumed", "uuid": str(each)}
        for each in range(3)
    ]))})  # fmt: skip


@pytest.mark.slow
def test_who_is_late_in_which_groups() -> None:
    """By hand: in mesh_tp 0 waits 150 us for 1; in mesh_dp 0 300 and 2 100 for 1; 30 each for 2."""
    trace = late_job()
    columns = ["parallelism", "members", "ranks", "collectives", "straggler_rank", "last",
               "straggler_share", "caused_ns", "waited_ns"]  # fmt: skip
    rows = stragglers(trace, "parallelism").rows.select(columns).rows()
    assert rows == [
        ("data", "0-2", 3, 2, 1, 2, 1.0, 200_000.0, pytest.approx(400_000 / 3)),
        ("tensor", "0-1", 2, 2, 1, 2, 1.0, 150_000.0, 75_000.0),
        (None, "0-2", 3, 2, 2, 2, 1.0, 30_000.0, 20_000.0),
    ]
    each = stragglers(trace, "group,rank").rows
    of_data = each.filter(group="mesh_dp").select("device", "last", "caused_ns", "waited_ns")
    assert of_data.rows() == [
        (1, 2, 200_000.0, 0.0),
        (0, 0, 0.0, 300_000.0),
        (2, 0, 0.0, 100_000.0),
    ]
    unnamed = job({1: None}, {1: [0, 1, 2, 3]})
    assert "names of groups" in stragglers(unnamed, "group").meta["missing"][0]
    assert "names of groups" in idle(unnamed, "parallelism").meta["missing"][-1]
    assert "missing" not in stragglers(trace, "group").meta
    # What ranks cause in all groups is what they cause in all.
    whole = stragglers(trace).rows.sort("device").select("device", "caused_ns", "waited_ns")
    sums = each.group_by("device").agg(pl.col("caused_ns", "waited_ns").sum()).sort("device")
    assert sums.rows() == whole.rows()


def test_idle_time_before_collectives_of_groups() -> None:
    """In us, GPU 0 waits 1 before mesh_tp and 100 before mesh_dp, GPU 1 151 and 400, GPU 2 501."""
    rows = idle(late_job(), "parallelism").rows
    found = rows.select("parallelism", "members", "gaps", "idle_ns")
    told = {row[0]: row[1:] for row in found.rows()}
    assert told["tensor"] == ("0-1", 4, 2 * (1 + 151) * 1000)
    assert told["data"] == ("0-2", 6, 2 * (100 + 400 + 501) * 1000)
    by_rank = idle(late_job(), "group,device").rows.filter(group="mesh_dp", device=1)
    assert by_rank["idle_ns"].to_list() == [800_000]
