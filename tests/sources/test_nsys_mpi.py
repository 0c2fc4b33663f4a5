"""MPI calls: who made them, how long they took, and what they moved between which ranks."""

from __future__ import annotations

import polars as pl
import pytest
from nsys_builder import global_tid
from source_helpers import column, execute, remarks, rows, trace_of, versions_with

from tracekit.errors import MissingDataError
from tracekit.sources import read
from tracekit.sources.nsys import read as read_nsys
from tracekit.sources.sqlite import SqliteFile
from tracekit.support.spool import GIB, Workspace

MPI = versions_with("MPI_P2P_EVENTS")
UNSET = 4294967295
pytestmark = pytest.mark.parametrize("nsys", MPI, indirect=True)
CALL = ("thread", "start", "end", "name", "group")


def test_every_column_of_a_call_comes_from_its_row(nsys):
    nsys.kernel(1, 2)
    nsys.mpi("P2P", 10, 20, "MPI_Send", tag=7, remoteRank=1, size=8000, commHandle=-5)
    nsys.mpi("P2P", 30, 40, "MPI_Recv", tag=7, remoteRank=0, size=16, commHandle=9, pid=200)
    nsys.mpi("COLLECTIVES", 50, 60, "MPI_Bcast", rootRank=0, size=64, recvSize=32, commHandle=9)
    nsys.mpi("START_WAIT", 70, 80, "MPI_Wait", requestHandle=1)
    nsys.mpi("OTHER", 90, 99, "MPI_Finalize", pid=200)
    nsys.mpi_rank(100, 0)
    nsys.mpi_rank(200, 1)
    trace = trace_of(nsys)
    assert rows(
        trace, "host", "report", "process", "thread", "start", "end", "library", "name", "group",
        "bytes", "recv_bytes", "tag", "rank", "remote_rank", "root_rank", "communicator",
    ) == [
        (0, 0, 0, 10, 20, "mpi", "MPI_Send", "p2p", 8000, None, 7, 0, 1, None, -5),
        (0, 1, 1, 30, 40, "mpi", "MPI_Recv", "p2p", 16, None, 7, 1, 0, None, 9),
        (0, 0, 0, 50, 60, "mpi", "MPI_Bcast", "collective", 32, 32, None, 0, None, 0, 9),
        (0, 0, 0, 70, 80, "mpi", "MPI_Wait", "start_wait", None, None, None, 0, None, None, None),
        (0, 1, 1, 90, 99, "mpi", "MPI_Finalize", "other", None, None, None, 1, None, None, None),
    ]  # fmt: skip
    assert rows(trace, "threads", "process", "tid") == [(0, 100), (1, 200)]
    assert column(trace, "processes", "pid") == [100, 200]


def test_calls_alone_are_read(nsys):
    nsys.mpi("COLLECTIVES", 10, 20, "MPI_Barrier")
    nsys.process(100, "solver")
    trace = trace_of(nsys)
    assert rows(trace, "host", *CALL, "bytes") == [(0, 10, 20, "MPI_Barrier", "collective", None)]
    assert column(trace, "processes", "name") == ["solver"]
    assert trace.read("ops").is_empty()
    assert trace.warnings == ("no GPU work was recorded: record with `nsys profile -t cuda,nvtx`",)


def test_tables_without_calls_are_nothing_to_analyse(nsys):
    nsys.mpi("OTHER", 10, 20, "MPI_Init")
    nsys.close()
    execute(nsys.path, "DELETE FROM MPI_OTHER_EVENTS")
    with pytest.raises(MissingDataError, match="no GPU work and no NVTX ranges"):
        read(nsys.path)


def test_a_wait_for_several_requests_is_one_call(nsys):
    for request in (1, 2, 3):
        nsys.mpi("START_WAIT", 10, 20, "MPI_Waitall", requestHandle=request)
    nsys.mpi("START_WAIT", 10, 20, "MPI_Waitall", requestHandle=4, tid=101)
    nsys.mpi("START_WAIT", 10, 30, "MPI_Waitall", requestHandle=5)
    nsys.mpi("START_WAIT", 40, None, "MPI_Waitall", requestHandle=6)
    nsys.mpi("START_WAIT", 40, None, "MPI_Waitall", requestHandle=7)
    nsys.push_pop(1, 90, "x")
    assert rows(trace_of(nsys), "host", *CALL) == [
        (0, 10, 20, "MPI_Waitall", "start_wait"),
        (1, 10, 20, "MPI_Waitall", "start_wait"),
        (0, 10, 30, "MPI_Waitall", "start_wait"),
        (0, 40, 90, "MPI_Waitall", "start_wait"),
    ]


def test_a_wait_is_one_call_however_few_rows_are_worked_on_at_once(nsys):
    for request in range(9):
        nsys.mpi("START_WAIT", 10, 20, "MPI_Waitall", requestHandle=request)
    nsys.mpi("START_WAIT", 30, 40, "MPI_Wait", requestHandle=1)
    nsys.close()
    workspace = Workspace(memory=GIB)
    workspace.rows = 2
    host = read_nsys(SqliteFile(nsys.path), workspace).trace().read("host")
    assert host["start"].to_list() == [10, 30]


def test_equal_calls_of_other_groups_are_not_one(nsys):
    for _ in range(2):
        nsys.mpi("P2P", 10, 20, "MPI_Isend", size=4)
    assert column(trace_of(nsys), "host", "bytes") == [4, 4]


def test_what_is_not_set_is_null(nsys):
    nsys.mpi("P2P", 1, 2, "MPI_Recv", remoteRank=-1, tag=-1, size=-1)
    nsys.mpi("P2P", 3, 4, "MPI_Recv", remoteRank=UNSET, tag=UNSET, size=0)
    nsys.mpi("COLLECTIVES", 5, 6, "MPI_Reduce", rootRank=-2, size=2**40)
    assert rows(trace_of(nsys), "host", "remote_rank", "tag", "bytes", "root_rank", "rank") == [
        (None, None, None, None, None),
        (None, None, 0, None, None),
        (None, None, 2**40, None, None),
    ]


def test_calls_without_a_thread_are_left_out_and_those_without_a_name_are_not(nsys):
    nsys.insert("MPI_OTHER_EVENTS", start=1, end=2, globalTid=None, textId=nsys.string("MPI_Init"))
    nsys.mpi("OTHER", 3, 4, None)
    nsys.insert("MPI_OTHER_EVENTS", start=5, end=6, globalTid=global_tid(100), textId=999_999)
    assert rows(trace_of(nsys), "host", "start", "name") == [
        (3, "MPI call of unknown name"),
        (5, "MPI call of unknown name"),
    ]


def test_the_rank_of_a_process_is_that_of_its_threads(nsys):
    nsys.mpi_rank(100, 3, tid=100)
    nsys.mpi_rank(200, 4, tid=200)
    nsys.mpi_rank(200, 5, tid=201)  # two ranks in one process
    for pid, tid in ((100, 101), (200, 200), (200, 201), (200, 202), (300, 300)):
        nsys.mpi("OTHER", tid, tid + 1, "MPI_Init", pid=pid, tid=tid)
    assert column(trace_of(nsys), "host", "rank") == [3, 4, 5, None, None]


def test_a_call_that_was_still_running_ends_with_the_last_thing_that_happened(nsys):
    nsys.mpi("P2P", 10, None, "MPI_Recv")
    nsys.mpi("P2P", 20, 70, "MPI_Send")
    nsys.push_pop(5, None, "open")
    trace = trace_of(nsys)
    assert column(trace, "host", "end") == [70, 70]
    assert rows(trace, "ranges", "end", "open") == [(70, True)]


def test_times_are_counted_from_the_start_of_the_session(nsys):
    nsys.meta("EXPORT_CONFIG_TIME_SHIFT", "1000")
    nsys.mpi("P2P", 1010, 1020, "MPI_Send")
    nsys.mpi("START_WAIT", 1030, None, "MPI_Wait")
    assert rows(trace_of(nsys), "host", "start", "end") == [(10, 20), (30, 30)]


def test_the_contents_count_them(nsys):
    nsys.mpi("P2P", 1, 2, "MPI_Send")
    nsys.mpi("OTHER", 1, 2, "MPI_Init")
    trace = trace_of(nsys)
    contents = trace.read("contents").filter(pl.col("feature") == "MPI calls")
    assert contents.select("source_table", "present", "rows").rows() == [
        ("MPI_P2P_EVENTS, MPI_OTHER_EVENTS", True, 2)
    ]
    assert remarks(trace) == ()


def test_calls_of_ucx_are_beside_those_of_mpi(nsys):
    """A message is of both, with the same bytes; its tag is a word of UCX, not MPI's."""
    nsys.mpi("P2P", 10, 40, "MPI_Send", tag=7, remoteRank=1, size=4096)
    nsys.mpi_rank(100, 0)
    nsys.mpi_rank(200, 1)
    tag = 7 << 40
    for pid, worker in ((100, 11), (200, 12), (100, 13), (200, 13)):
        nsys.insert("UCP_WORKERS", globalTid=global_tid(pid, None), workerUid=worker)
    nsys.ucx("UCP_SUBMIT", 12, 20, "ucp_tag_send_nbx", packedSize=4096, peerWorkerUid=12, tag=tag)
    nsys.ucx("UCP_SUBMIT", 21, 22, "ucp_tag_send_nbx", packedSize=-1, peerWorkerUid=13)
    nsys.ucx("UCP_PROGRESS", 25, 30, "ucp_worker_progress", pid=200, packedSize=4096,
             peerWorkerUid=11, tag=tag)  # fmt: skip
    nsys.ucx("UCP", 31, None, "ucp_worker_flush_nbx")
    nsys.ucx("UCP", 32, 33, None, pid=200)
    nsys.session(0, 1000)
    trace = trace_of(nsys)
    of_ucx = trace.read("host").filter(pl.col("library") == "ucx")
    columns = ("start", "end", "name", "group", "bytes", "recv_bytes", "tag", "rank", "remote_rank")
    assert of_ucx.select(columns).rows() == [
        (12, 20, "ucp_tag_send_nbx", "submit", 4096, None, tag, 0, 1),
        (21, 22, "ucp_tag_send_nbx", "submit", None, None, None, 0, None),
        (25, 30, "ucp_worker_progress", "progress", 4096, None, tag, 1, 0),
        (31, 1000, "ucp_worker_flush_nbx", "other", None, None, None, 0, None),
        (32, 33, "UCX call of unknown name", "other", None, None, None, 1, None),
    ]
    assert trace.read("host").filter(pl.col("library") == "mpi")["bytes"].to_list() == [4096]
    contents = trace.read("contents").filter(pl.col("feature") == "UCX calls")
    assert contents.select("present", "rows").row(0) == (True, 5)
