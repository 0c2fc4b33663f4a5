"""Reports that cannot be of one execution of one job, as literal rows."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest
from trace_builder import TraceBuilder

from tracekit.model import TABLES, Trace
from tracekit.runs._foreign import foreign, said, unconnected

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
    names = (f"{letter}.sqlite" for letter in "abc")
    return foreign([said(trace, name) for trace, name in zip(reports, names, strict=False)])


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

    def test_worlds_of_two_jobs(self) -> None:
        told = [report(ranks=2, communicator=self.made(26 + n, n, 2)) for n in range(2)]
        assert found(*told) == {
            1: "NCCL's communicator of all 2 ranks is 0x1a in a.sqlite, and 0x1b in b.sqlite"
        }
        groups = [report(ranks=4, communicator=self.made(26 + n, n, 2)) for n in range(2)]
        assert found(*groups) == {}

    def test_groups_of_one_job_may_differ_in_size(self) -> None:
        assert found(*(report(communicator=self.made(n, 1, n)) for n in (2, 3))) == {}

    def test_a_report_outside_of_the_world_that_most_name(self) -> None:
        of_job = [report(communicator=self.made(26, n, 3)) for n in range(2)]
        other = report(communicator=self.made(27, 0, 3))
        assert found(*of_job, other) == {
            2: "NCCL's communicator 0x1a of 3 ranks is in 2 of 3 reports, and not in c.sqlite,"
            " which names others"
        }

    @pytest.mark.parametrize("more", [{"ranks": 8}, {}])
    def test_a_group_that_not_all_reports_are_in(self, more: dict[str, Any]) -> None:
        """A job that is larger has other groups; a report that names none says nothing."""
        of_group = [report(**more, communicator=self.made(26, n, 3)) for n in range(2)]
        other = {"communicator": self.made(27, 0, 3)} if more else {}
        assert found(*of_group, report(**more, **other)) == {}


class TestOneHost:
    def test_the_same_work_twice(self) -> None:
        here = {"host": "n1", "session_start": 5, "uuid": UUID}
        assert found(report(**here), report(**here, start=SECOND - 1, end=2 * SECOND)) == {
            1: f"a.sqlite and b.sqlite have the same work: of process 7 on GPU {UUID} of n1"
        }

    @pytest.mark.parametrize(
        "other",
        [
            {"host": "n2"},
            {"host": None, "uuid": None},
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

    def test_the_same_work_twice_where_no_host_is_named(self) -> None:
        here = {"session_start": 5, "uuid": UUID}
        assert found(report(**here), report(**here, start=SECOND - 1, end=2 * SECOND)) == {
            1: f"a.sqlite and b.sqlite have the same work: of process 7 on GPU {UUID}"
        }


class TestSessions:
    @pytest.mark.parametrize(
        ("hosts", "gap", "why"),
        [
            (("n1", "n1"), 1, None),
            (("n1", "n1"), 2, " on n1 2 s apart"),
            (("n1", "n2"), 60, None),
            (("n1", "n2"), 61, " 61 s apart, more than clocks of two hosts may differ (60 s)"),
            ((None, None), 60, None),
            (("n1", None), 800, " 800 s apart, more than clocks of two hosts may differ (60 s)"),
            (("n1", "n1"), 172_799, " on n1 172,799 s apart"),
            (("n1", "n1"), 172_800, " on n1 2 days apart"),
        ],
    )
    def test_that_do_not_overlap(self, hosts, gap: int, why: str | None) -> None:
        first, second = (
            report(host=host, session_start=began * SECOND)
            for host, began in zip(hosts, (0, 1 + gap), strict=True)
        )
        expected = {} if why is None else {1: f"a.sqlite and b.sqlite were recorded{why}"}
        assert found(first, second) == expected
        assert found(second, first) == expected

    def test_a_recording_lasts_longer_than_its_work(self) -> None:
        first = report(session_start=0, duration=100 * SECOND)
        assert found(first, report(session_start=99 * SECOND)) == {}

    def test_those_of_no_known_time(self) -> None:
        assert found(report(session_start=0), report()) == {}


class TestTools:
    def test_of_two_tools(self) -> None:
        kineto = report(format="PyTorch Kineto JSON")
        assert found(report(), kineto) == {
            1: "a.sqlite was recorded by nsys, and b.sqlite by torch.profiler, and not both say "
            "which rank of how many they are, and when"
        }
        both = [
            report(rank=n, ranks=2, session_start=SECOND, duration=SECOND, format=name)
            for n, name in enumerate(("nsys SQLite", "PyTorch Kineto JSON"))
        ]
        assert found(*both) == {}
        assert found(report(), report(format="nsys Parquet")) == {}


class TestJobs:
    def test_of_two_jobs(self) -> None:
        reports = [report(job=f"SLURM_JOB_ID={n} MASTER_PORT=1") for n in (1, 1, 2)]
        assert found(*reports) == {2: "a.sqlite and c.sqlite have different SLURM_JOB_ID"}

    def test_what_only_one_says(self) -> None:
        assert found(report(job="SLURM_JOB_ID=1"), report(job="PBS_JOBID=2"), report()) == {}


class TestPrograms:
    def program(self, name: str, **told: Any) -> Trace:
        trace = report(**told)
        processes = trace.read("processes").with_columns(name=pl.lit(name))
        return trace.with_tables({"processes": processes})

    def test_of_two_programs(self) -> None:
        assert found(self.program("jacobi"), self.program("/usr/bin/python3.11")) == {
            1: "a.sqlite is of jacobi, b.sqlite of python, and neither ranks nor groups say that"
            " these are one job"
        }

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ({"rank": 0, "ranks": 2}, {"rank": 1, "ranks": 2}),
            ({"job": "PBS_JOBID=1"}, {"job": "PBS_JOBID=1"}),
        ],
    )
    def test_of_one_job(self, one: dict[str, Any], other: dict[str, Any]) -> None:
        assert found(self.program("actor", **one), self.program("learner", **other)) == {}

    def test_versions_of_one_program(self) -> None:
        assert found(self.program("python3.8"), self.program("/opt/python3.11")) == {}


def test_reports_that_tell_nothing_are_taken() -> None:
    assert found(report(), report(), report()) == {}


class TestConnections:
    """What shows that reports are of one job, where nothing contradicts it."""

    NOTHING = (
        "nothing recorded shows that a.sqlite, b.sqlite are of one job: launcher's job id,"
        " ranks, NCCL's communicators or, in a report without these, collective operations"
    )

    def warned(self, *reports: Trace) -> list[str]:
        assert found(*reports) == {}
        return unconnected(
            [said(each, f"{name}.sqlite") for name, each in zip("abc", reports, strict=False)]
        )

    @pytest.mark.parametrize(
        ("told", "is_connected"),
        [
            ({}, False),
            ({"rank": 1}, True),
            ({"job": "SLURM_JOB_ID=1"}, True),
            ({"file": "x_rank1.sqlite"}, True),
            ({"communicator": {"NCCL communicator ID": 5, "No. of ranks": 4}}, True),
        ],
    )
    def test_what_two_share(self, told: dict[str, Any], is_connected: bool) -> None:
        other = told | ({"rank": 2} if "rank" in told else {})
        expected = [] if is_connected else [self.NOTHING]
        assert self.warned(report(**told), report(**other)) == expected

    def test_operations_count_unless_other_communicators_are_named(self) -> None:
        def doing(operation: str, **told: Any) -> Trace:
            trace = report(**told)
            changed = pl.lit(operation, TABLES["ops"].schema["collective"])
            return trace.with_tables({"ops": trace.read("ops").with_columns(collective=changed)})

        def of_group(identity: int) -> Trace:
            made = {"NCCL communicator ID": identity, "No. of ranks": 4}
            return doing("all_reduce", communicator=made)

        assert self.warned(doing("all_reduce"), doing("all_reduce")) == []
        assert self.warned(doing("all_reduce"), doing("broadcast")) == [self.NOTHING]
        assert self.warned(of_group(5), of_group(6)) == [self.NOTHING]

    def test_two_jobs_of_several_reports(self) -> None:
        reports = [report(rank=0), report(), report(rank=1)]
        assert self.warned(*reports) == [self.NOTHING]
        several = [text.partition(" are")[0] for text in self.warned(*[report() for _ in range(3)])]
        assert several == ["nothing recorded shows that a.sqlite, b.sqlite, c.sqlite"]

    def test_one_that_joins_two(self) -> None:
        tied = report(rank=0, job="PBS_JOBID=1")
        assert self.warned(report(rank=1), report(job="PBS_JOBID=1"), tied) == []

    @pytest.mark.parametrize("apart", [0, SECOND // 2])
    def test_work_of_one_machine_that_does_not_overlap(self, apart: int) -> None:
        here: dict[str, Any] = {"host": "n1", "session_start": 0}
        first, second = report(rank=0, **here), report(
            rank=1, **here, start=SECOND + apart, end=2 * SECOND
        )  # fmt: skip
        ended = "the work of b.sqlite ends 500.000 ms before that of a.sqlite begins"
        expected = [f"{ended}, so that neither waits for the other"] if apart else []
        assert self.warned(second, first) == expected


def test_what_is_foreign_is_not_held_against_others() -> None:
    reports = [report(rank=0, ranks=2), report(rank=1, ranks=3), report(rank=1, ranks=2)]
    assert list(found(*reports)) == [1]
