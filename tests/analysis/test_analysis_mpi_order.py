"""MPI's collectives that do not overlap in time, matched by their order on a communicator."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from tracekit.analysis.calls._collective_calls import _NO_MPI_CALLS, _mpi_calls
from tracekit.analysis.communication import collective_calls, latency
from tracekit.model import HOST, REPORTS, Trace
from tracekit.model._tables import PROCESSES

WORLD = {0: 77, 1: 78, 2: 79}
"""The handle of the communicator of all ranks in each process."""


def call(rank: int, start: int, end: int, name: str = "MPI_Bcast", **row: Any) -> dict[str, Any]:
    group = "other" if name.startswith("MPI_Init") else "collective"
    return {
        "report": 0, "process": rank, "thread": rank, "library": "mpi", "group": group,
        "name": name, "start": start, "end": end, "rank": rank, "root_rank": 0, "bytes": 8,
        "recv_bytes": 8, "communicator": WORLD[rank], "ranks": 2,
    } | row  # fmt: skip


def trace(*calls: dict[str, Any], ranks: int = 2) -> Trace:
    processes = [
        {"process": rank, "report": 0, "pid": 100 + rank, "global_id": rank}
        for rank in range(ranks)
    ]
    reports = [{"report": 0, "file": "a", "format": "x", "size": 1, "host": "h"}]
    return Trace.of(
        {
            "host": HOST.conform(pl.DataFrame(calls, infer_schema_length=None)),
            "processes": PROCESSES.conform(pl.DataFrame(processes)),
            "reports": REPORTS.conform(pl.DataFrame(reports)),
        }
    )


def inits(ranks: int = 2) -> list[dict[str, Any]]:
    return [call(rank, 0, 1, "MPI_Init_thread", communicator=None) for rank in range(ranks)]


def matches(found: Trace) -> dict[tuple[int, int], int | None]:
    rows = collective_calls(found).select("process", "start", "match")
    return {(process, start): number for process, start, number in rows.rows()}


# The root has left before the other rank enters.
BROADCASTS = [call(0, 10, 12), call(0, 13, 14), call(1, 20, 30), call(1, 31, 32)]


def test_no_calls_have_the_columns_of_calls() -> None:
    assert _mpi_calls(trace(call(0, 0, 1)), []).schema == _NO_MPI_CALLS.schema
    assert _mpi_calls(trace(call(0, 0, 1, library="os")), []) is _NO_MPI_CALLS


def test_broadcasts_that_do_not_overlap() -> None:
    run = trace(*inits(), *BROADCASTS)
    assert matches(run) == {(0, 10): 0, (1, 20): 0, (0, 13): 1, (1, 31): 1}
    assert collective_calls(run)["communicator"].unique().to_list() == ["all 2 ranks"]
    (row,) = latency(collective_calls(run), buckets="exact").rows.to_dicts()
    assert (row["count"], row["participants"]) == (2, 2)
    assert row["span_ns"] in (20, 19)  # last end - first start, of either
    assert row["skew_ns"] in (10, 18)


@pytest.mark.parametrize(
    "calls",
    [
        BROADCASTS,
        [*inits()[:1], *BROADCASTS],
        [*inits(), *(each | {"ranks": None} for each in BROADCASTS)],
        # A second communicator of as many ranks: which is which in the other process?
        [*inits(), *BROADCASTS, call(0, 40, 41, communicator=5), call(1, 50, 51, communicator=6)],
        # Other functions in the same place: calls are missing.
        [*inits(), *BROADCASTS, call(0, 40, 41, "MPI_Reduce"), call(1, 50, 51, "MPI_Bcast")],
    ],
    ids=["no init", "one init", "ranks unknown", "two communicators", "calls missing"],
)
def test_order_that_is_not_known(calls: list[dict[str, Any]]) -> None:
    assert set(matches(trace(*calls)).values()) == {None}


def test_calls_that_do_not_block_count() -> None:
    begun = [call(0, 10, 11, "MPI_Ibcast"), call(1, 18, 19, "MPI_Ibcast")]
    found = matches(trace(*inits(), *begun, call(0, 12, 13), call(1, 20, 22)))
    assert found == {(0, 12): 0, (1, 20): 0}
    # The variants of a function are one: a rank may be in one or the other.
    large = [call(0, 14, 15, "MPI_Bcast_c"), call(1, 25, 26)]
    assert set(matches(trace(*inits(), *large)).values()) == {0}


def test_a_smaller_communicator_is_left_to_overlap() -> None:
    small = [
        call(0, 200, 220, communicator=1, ranks=None),
        call(1, 205, 221, communicator=2, ranks=None),
    ]
    found = matches(trace(*inits(), *BROADCASTS, *small))
    assert found == {
        (0, 10): 0, (1, 20): 0, (0, 13): 1, (1, 31): 1, (0, 200): 2, (1, 205): 2,
    }  # fmt: skip


def test_part_of_the_ranks() -> None:
    """Two of three ranks, which may be of one communicator or of two."""
    of_three = [each | {"ranks": 3} for each in BROADCASTS]
    assert set(matches(trace(*inits(), *of_three)).values()) == {None}


def test_communicators_of_two_of_four_ranks() -> None:
    """Ranks 0 and 2 never meet: each has a communicator of its own with another rank."""
    ranks = {0: 0, 1: 2}
    calls = [each | {"rank": ranks[each["process"]]} for each in (*inits(), *BROADCASTS)]
    assert set(matches(trace(*calls)).values()) == {None}


def test_two_jobs_in_one_run_are_left_to_overlap() -> None:
    second = [call(rank, 1000, 1001, "MPI_Init", process=2 + rank) for rank in (0, 1)]
    calls = [call(0, 10, 20), call(1, 11, 21)]
    later = [call(0, 1010, 1020, process=2), call(1, 1011, 1021, process=3)]
    found = matches(trace(*inits(), *second, *calls, *later, ranks=4))
    assert found == {(0, 10): 0, (1, 11): 0, (2, 1010): 1, (3, 1011): 1}
