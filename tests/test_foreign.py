"""Reports that cannot be of one execution of one job, as literal rows."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest
from trace_builder import TraceBuilder

from tracekit._foreign import foreign
from tracekit.model import TABLES, Trace

SECOND = 1_000_000_000
UUID = "11111111-2222-3333-4444-555555555555"


def report(
    *,
    pid: int = 7,
    uuid: str | None = None,
    start: int = 0,
    end: int = SECOND,
    communicator: dict[str, Any] | None = None,
    **told: Any,
) -> Trace:
    """Make a report of one op, of what it tells of its job."""
    builder = TraceBuilder()
    builder.pids[0] = pid
    builder.op("gemm", start=start, end=end)
    if communicator is not None:
        payload = json.dumps(communicator)
        builder.range(0, 9, "ncclCommInitRank", domain="NCCL", payload=payload)
    row = {"report": 0, "file": "f", "format": "nsys SQLite", "size": 1} | told
    device = {"report": 0, "device": 0, "uuid": uuid, "active": True, "identity": "device_table"}
    types = TABLES["reports"].schema
    return builder.trace().with_tables(
        {
            "reports": pl.DataFrame([row], schema_overrides={key: types[key] for key in row}),
            "devices": pl.DataFrame([device]),
        }
    )


def found(*reports: Trace) -> dict[int, str]:
    return foreign(reports, [f"{letter}.sqlite" for letter in "abc"[: len(reports)]])


class TestRanks:
    def test_two_of_one_rank(self) -> None:
        assert found(report(rank=3), report(rank=2), report(rank=3)) == {
            2: "a.sqlite and c.sqlite are both rank 3"
        }

    def test_a_rank_that_mpi_tells(self) -> None:
        call = {
            "report": 0, "process": 0, "thread": 0, "start": 1, "end": 2, "library": "mpi",
            "name": "MPI_Send", "group": "p2p", "rank": 1,
        }  # fmt: skip
        host = pl.DataFrame([call], schema_overrides={"rank": pl.Int32})
        mpi = report().with_tables({"host": host})
        assert found(report(rank=1), mpi) == {1: "a.sqlite and b.sqlite are both rank 1"}
        assert found(report(rank=0), mpi) == {}

    def test_jobs_of_two_sizes(self) -> None:
        assert found(report(rank=0, ranks=4), report(rank=1, ranks=8)) == {
            1: "a.sqlite is of a job of 4 ranks, and b.sqlite of one of 8"
        }
        assert found(report(rank=0, ranks=4), report(rank=1, ranks=4), report(rank=2)) == {}


class TestCommunicators:
    def made(self, identity: str | int, rank: int, ranks: int) -> dict[str, Any]:
        return {"NCCL communicator ID": identity, "Rank": rank, "No. of ranks": ranks}

    def test_two_of_one_rank(self) -> None:
        both = [report(communicator=self.made(26, 1, 4)) for _ in range(2)]
        assert found(*both) == {
            1: "a.sqlite and b.sqlite are both rank 1 of NCCL's communicator 0x1a"
        }

    def test_one_of_two_sizes(self) -> None:
        reports = [report(communicator=self.made(26, n, 4 + n)) for n in range(2)]
        assert found(*reports) == {
            1: "NCCL's communicator 0x1a has 4 ranks in a.sqlite, and 5 in b.sqlite"
        }

    @pytest.mark.parametrize("identity", [26, "pg 0"])
    def test_ranks_of_one(self, identity: str | int) -> None:
        assert found(*(report(communicator=self.made(identity, n, 4)) for n in range(3))) == {}

    def test_groups_that_pytorch_names_are_those_of_every_job(self) -> None:
        assert found(*(report(communicator=self.made("pg 0", 1, n)) for n in (2, 3))) == {}

    def test_groups_of_one_job_may_differ_in_size(self) -> None:
        assert found(*(report(communicator=self.made(n, 1, n)) for n in (2, 3))) == {}


class TestOneHost:
    def test_the_same_work_twice(self) -> None:
        here = {"host": "n1", "session_start": 5, "uuid": UUID}
        assert found(report(**here), report(**here, start=SECOND - 1, end=2 * SECOND)) == {
            1: f"a.sqlite and b.sqlite hold the same work: of process 7 on GPU {UUID} of n1"
        }

    @pytest.mark.parametrize(
        "other",
        [
            {"host": "n2"},
            {"host": None},
            {"pid": 8},
            {"uuid": UUID.replace("1", "6")},
            {"uuid": None},
            {"session_start": None},
            {"start": SECOND, "end": 2 * SECOND},
        ],
        ids=str,
    )
    def test_what_may_be_other_work(self, other: dict[str, Any]) -> None:
        here = {"host": "n1", "session_start": 5, "uuid": UUID}
        assert found(report(**here), report(**{**here, **other})) == {}

    @pytest.mark.parametrize(
        ("length", "gap", "is_foreign"),
        [(1, 60, False), (1, 61, True), (100, 99, False), (100, 101, True)],
    )
    def test_recordings_far_apart(self, length: int, gap: int, is_foreign: bool) -> None:
        first, second = (
            report(host="n1", session_start=began * SECOND, end=length * SECOND)
            for began in (0, length + gap)
        )
        why = f"a.sqlite and b.sqlite were recorded on n1 {gap} s apart"
        expected = {1: why} if is_foreign else {}
        assert found(first, second) == expected
        assert found(second, first) == expected
        assert (
            found(first, second.with_tables({"reports": report(host="n2").read("reports")})) == {}
        )


def test_reports_that_tell_nothing_are_taken() -> None:
    assert found(report(), report(), report()) == {}


def test_what_is_foreign_is_not_held_against_others() -> None:
    reports = [report(rank=0, ranks=2), report(rank=1, ranks=3), report(rank=1, ranks=2)]
    assert list(found(*reports)) == [1]
