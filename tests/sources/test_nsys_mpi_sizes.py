"""Sizes of MPI's collectives, as nsys 2023.4 counted calls of known size by three ranks."""

from __future__ import annotations

import polars as pl
import pytest
from source_helpers import rows, trace_of, versions_with

from tracekit.sources.nsys._mpi import buffers

RANKS = 3

MEASURED = [
    # function, what each rank's row says (size, recvSize), and its buffers (send, receive).
    ("MPI_Allreduce", [(3000, 3000)] * 3, [(1000, 1000)] * 3),
    ("MPI_Allreduce", [(2000, 2000)] * 3, [(1000, 1000)] * 3),  # in place
    ("MPI_Allgather", [(6000, 6000)] * 3, [(2000, 6000)] * 3),
    ("MPI_Allgather", [(4004, 4004)] * 3, [(2002, 6006)] * 3),  # in place
    ("MPI_Allgatherv", [(300, 600), (600, 600), (900, 600)], [(100, 600), (200, 600), (300, 600)]),
    ("MPI_Alltoall", [(9000, 9000)] * 3, [(9000, 9000)] * 3),
    ("MPI_Alltoallv", [(33, 60), (63, 63), (93, 66)], [(33, 60), (63, 63), (93, 66)]),
    ("MPI_Reduce_scatter_block", [(12000, 12000)] * 3, [(12000, 4000)] * 3),
    (
        "MPI_Reduce_scatter",
        [(600, 300), (600, 600), (600, 900)],
        [(600, 100), (600, 200), (600, 300)],
    ),
    (
        "MPI_Bcast",
        [(None, 5000), (15000, 5000), (None, 5000)],
        [(None, 5000), (5000, 5000), (None, 5000)],
    ),
    (
        "MPI_Reduce",
        [(6000, None), (6000, 18000), (6000, None)],
        [(6000, None), (6000, 6000), (6000, None)],
    ),
    (  # the root in place
        "MPI_Reduce",
        [(6100, None), (None, 12200), (6100, None)],
        [(6100, None), (6100, 6100), (6100, None)],
    ),
    (
        "MPI_Gather",
        [(7000, None), (7000, 21000), (7000, None)],
        [(7000, None), (7000, 21000), (7000, None)],
    ),
    (
        "MPI_Gather",
        [(7100, None), (None, 14200), (7100, None)],
        [(7100, None), (7100, 21300), (7100, None)],
    ),
    (
        "MPI_Scatter",
        [(None, 8000), (24000, 8000), (None, 8000)],
        [(None, 8000), (24000, 8000), (None, 8000)],
    ),
    (
        "MPI_Gatherv",
        [(100, None), (200, 600), (300, None)],
        [(100, None), (200, 600), (300, None)],
    ),
    (
        "MPI_Scatterv",
        [(None, 100), (600, 200), (None, 300)],
        [(None, 100), (600, 200), (None, 300)],
    ),
]
Sizes = list[tuple[int | None, int | None]]


def _buffers(name: str, counted: Sizes, ranks: int | None) -> Sizes:
    sent, received = buffers()
    table = pl.DataFrame(counted, ["size", "recvSize"], orient="row").cast(pl.Int64)
    told = table.with_columns(name=pl.lit(name), ranks=pl.lit(ranks, pl.Int64))
    return told.select(sent.alias("sent"), received.alias("received")).rows()


@pytest.mark.parametrize(("name", "counted", "expected"), MEASURED)
def test_buffers_of_calls_of_known_size(name: str, counted: Sizes, expected: Sizes) -> None:
    assert _buffers(name, counted, RANKS) == expected
    assert _buffers(name.replace("MPI_", "PMPI_I").lower() + "_c", counted, RANKS) == expected


@pytest.mark.parametrize("name", ["MPI_Allreduce", "MPI_Allgather"])
def test_one_rank_alone(name: str) -> None:
    assert _buffers(name, [(8, 8)], 1) == [(8, 8)]


def test_what_is_not_known_is_null() -> None:
    assert _buffers("MPI_Allreduce", [(3000, 3000)], None) == [(None, None)]
    assert _buffers("MPI_Allreduce", [(7, 7)], 3) == [(None, None)]  # no count of three, nor of two
    assert _buffers("MPI_Scan", [(12000, 4000)], 3) == [(None, None)]
    assert _buffers("MPI_Neighbor_allgather", [(8, 8)], 3) == [(None, None)]
    assert _buffers("MPI_Barrier", [(None, None)], 3) == [(None, None)]
    assert _buffers("MPI_Reduce", [(None, 12)], 1) == [(None, None)]


@pytest.mark.parametrize("nsys", versions_with("MPI_COMMUNICATORS"), indirect=True)
def test_the_communicator_of_a_call_tells_how_many_ranks(nsys) -> None:
    def made(pid: int, rank: int, at: int, handle: int, size: int) -> None:
        nsys.insert(
            "MPI_COMMUNICATORS", rank=rank, timestamp=at, commHandle=handle, localRank=rank,
            size=size,
        )  # fmt: skip

    for pid, rank in ((100, 0), (200, 1)):
        nsys.mpi_rank(pid, rank)
        made(pid, rank, 5, 77, 4)
    made(100, 0, 50, 78, 2)
    made(200, 1, 50, 78, 3)  # handles mean something in their process only
    made(100, 0, 60, 77, 2)  # and again once the first one is freed
    for pid, at, handle in (
        (100, 10, 77), (200, 20, 77), (100, 55, 78), (200, 56, 78), (100, 65, 77), (100, 70, 1)
    ):  # fmt: skip
        nsys.mpi("COLLECTIVES", at, at + 1, "MPI_Allreduce", pid=pid, size=1200, recvSize=1200,
                 commHandle=handle)  # fmt: skip
    nsys.mpi("P2P", 90, 91, "MPI_Send", size=8, commHandle=77)
    found = rows(trace_of(nsys), "host", "start", "ranks", "bytes", "recv_bytes")
    assert sorted(found) == [
        (10, 4, 300, 300),
        (20, 4, 300, 300),
        (55, 2, 600, 600),
        (56, 3, 400, 400),
        (65, 2, 600, 600),
        (70, None, None, None),
        (90, 2, 8, None),
    ]


@pytest.mark.parametrize("nsys", versions_with("MPI_COMMUNICATORS"), indirect=True)
def test_two_jobs_in_one_report_share_ranks_and_handles(nsys) -> None:
    for pid, at, size in ((100, 5, 2), (200, 6, 4)):
        nsys.mpi_rank(pid, 0)
        nsys.insert("MPI_COMMUNICATORS", rank=0, timestamp=at, commHandle=7, localRank=0, size=size)
        nsys.mpi("COLLECTIVES", 10, 11, "MPI_Allreduce", pid=pid, size=8, recvSize=8, commHandle=7)
    assert rows(trace_of(nsys), "host", "ranks", "bytes") == [(None, None)] * 2
