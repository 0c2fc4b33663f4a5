"""Ranks and nodes of processes."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest
from trace_builder import TraceBuilder

from tracekit.analysis import breakdown
from tracekit.analysis.breakdowns._breakdown import outlier_ranks
from tracekit.analysis.calls import process_ranks
from tracekit.model import HOST, Trace


def traced(
    file: str, processes: int = 1, mpi: dict[int, int] | None = None, rank: int | None = None
) -> Trace:
    builder = TraceBuilder()
    for process in range(processes):
        builder.op("gemm", 10 + process, thread=10 * process)
    builder.rows["reports"].append(
        {"report": 0, "file": file, "format": "x", "size": 1, "host": "node7", "rank": rank}
    )
    trace = builder.trace()
    rows: list[dict[str, Any]] = [
        {
            "report": 0, "process": process, "thread": 10 * process, "start": 0, "end": 1,
            "library": "mpi", "name": "MPI_Barrier", "group": "collective", "rank": rank,
        }
        for process, rank in (mpi or {}).items()
    ]  # fmt: skip
    return trace.with_tables({"host": pl.DataFrame(rows) if rows else HOST.empty()})


@pytest.mark.parametrize(
    ("file", "rank"),
    [
        ("rank3.sqlite", 3), ("run-rank_12.nsys-rep", 12), ("job.Rank.0.sqlite", 0),
        ("worker5_step_4.json", 5),
        ("crank3.sqlite", None), ("ranks.sqlite", None), ("rank.sqlite", None),
    ],
)  # fmt: skip
def test_the_name_of_a_file_tells_the_rank(file: str, rank: int | None) -> None:
    [row] = process_ranks(traced(file)).rows()
    assert row == (0, rank, None if rank is None else "file", "node7")


def test_a_file_of_several_processes_does_not() -> None:
    assert process_ranks(traced("rank3.sqlite", 2))["rank"].to_list() == [None, None]


def test_mpi_knows_better() -> None:
    found = process_ranks(traced("rank3.sqlite", 2, {0: 5, 1: 4}))
    assert found.select("rank", "rank_source").rows() == [(5, "mpi"), (4, "mpi")]


def test_processes_say_their_ranks(builder: TraceBuilder) -> None:
    """As workers that a program has spawned itself; what two marks say differently, none says."""
    said = {0: ["1 of 3"], 1: ["0 of 3", "0 of 3"], 2: ["2 of 3", "1 of 3"], 3: ["x of 3"]}
    for process, ranks in said.items():
        builder.op("gemm", 10 + process, thread=10 * process)
        for rank in ranks:
            builder.range(1, 1, f"tracekit.rank {rank}", thread=10 * process)
    found = process_ranks(builder.trace())
    assert found["rank"].to_list() == [1, 0, None, None]
    assert found["rank_source"].to_list() == ["program", "program", None, None]


def test_nccl_knows_the_rank_in_its_largest_communicator(builder: TraceBuilder) -> None:
    builder.op("gemm", 10)
    for start, rank, ranks in ((1, 0, 2), (3, 5, 8)):
        payload = json.dumps(
            {"NCCL communicator ID": start, "No. of ranks": ranks, "Rank": rank, "CUDA device": 0}
        )
        builder.range(start, start + 1, "ncclCommInitRank", domain="NCCL", payload=payload)
    builder.rows["reports"].append({"report": 0, "file": "rank1.sqlite", "format": "x", "size": 1})
    [row] = process_ranks(builder.trace()).rows()
    assert row == (0, 5, "nccl", None)


def test_a_rank_in_a_part_of_the_job_is_not_the_rank_in_the_job(builder: TraceBuilder) -> None:
    payload = json.dumps({"No. of ranks": 2, "Rank": 1})
    builder.range(0, 5, "ncclCommInitRank", domain="NCCL", payload=payload)
    builder.op("gemm", 10)
    builder.rows["reports"].append(
        {"report": 0, "file": "a", "format": "x", "size": 1, "rank": 5, "ranks": 8}
    )
    assert process_ranks(builder.trace()).select("rank", "rank_source").rows() == [(5, "report")]


def test_ranks_in_groups_of_fewer_than_all_processes_are_not_those_in_the_job(
    builder: TraceBuilder,
) -> None:
    """GPU 3 was called rank 1: it has this one in its tensor-parallel and data-parallel group."""
    for process in range(4):
        for start, rank in ((0, process % 2), (9, process // 2)):
            payload = json.dumps({"No. of ranks": 2, "Rank": rank})
            place = {"thread": 10 * process, "domain": "NCCL", "payload": payload}
            builder.range(start, start + 5, "ncclCommInitRank", **place)
    assert process_ranks(builder.trace())["rank"].to_list() == [None] * 4


def test_time_by_rank_and_node() -> None:
    trace = traced("job.sqlite", 2, {0: 1, 1: 0})
    assert breakdown(trace, "rank").rows.select("rank", "ops").rows() == [(0, 1), (1, 1)]
    assert breakdown(trace, "node,kernel").rows.select("node", "ops").rows() == [("node7", 2)]


def test_what_the_environment_said_is_surer_than_a_name() -> None:
    [row] = process_ranks(traced("rank3.sqlite", rank=2)).rows()
    assert row == (0, 2, "report", "node7")


def busy(*values: int) -> pl.DataFrame:
    return pl.DataFrame({"rank": range(len(values)), "busy_ns": values})


def test_a_rank_that_stands_out_is_named() -> None:
    """Of 5 ranks one stands out beyond 14.7 median deviations, of 8 beyond 8.7."""
    assert outlier_ranks(busy(99, 100, 101, 100, 150)) == [{"rank": 4, "ratio": 1.5}]
    assert outlier_ranks(busy(98, 99, 101, 102, 88)) == []
    assert outlier_ranks(busy(99, 99, 99, 100, 101, 101, 101, 91)) == []
    assert outlier_ranks(busy(99, 99, 99, 100, 101, 101, 101, 90)) == [
        {"rank": 7, "ratio": 90 / 99.5}
    ]
    assert outlier_ranks(busy(100, 100, 100, 100, 100)) == []
    assert outlier_ranks(busy(1, 100, 100, 100)) == []  # too few to tell
