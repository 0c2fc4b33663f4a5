"""Small exports that nsys itself made, of programs whose ranges are known."""

from __future__ import annotations

import polars as pl
import pytest
from source_helpers import column, remarks, rows

from tracekit.sources import read

# What a C program pushes that uses everything of NVTX. In the recording nothing else tells apart
# what was open at its end: nsys gives such ranges the end of the session.
C_PROGRAM = [
    # thread, domain, name, style, open, payload
    (0, None, "plain", "push_pop", False, None),
    (0, None, "plain_child", "push_pop", False, None),
    (0, "DomA", "with_payload_u64", "push_pop", False, "18446744073709551615"),
    (0, "DomB", "with_double", "push_pop", False, "3.5"),
    (0, None, "wide_ümlaut", "push_pop", False, None),
    (0, "DomA", "registered", "push_pop", False, None),
    (0, None, "se_same_thread", "start_end", False, None),
    (0, None, "se_never_ended", "start_end", True, None),
    (0, "DomA", None, "push_pop", False, None),
    (1, None, "thread_push", "push_pop", False, None),
    (1, None, "thread_open_at_exit", "push_pop", True, None),
    (0, None, "open_at_exit", "push_pop", True, None),
]

# What two ranks that exchange messages call, and how often each does.
MPI_CALLS = [
    ("collective", "MPI_Allreduce", 3, 3),
    ("collective", "MPI_Barrier", 3, 3),
    ("collective", "MPI_Bcast", 1, 1),
    ("other", "MPI_Finalize", 1, 1),
    ("other", "MPI_Init", 1, 1),
    ("p2p", "MPI_Irecv", 1, 1),
    ("p2p", "MPI_Isend", 1, 1),
    ("p2p", "MPI_Recv", 0, 3),
    ("p2p", "MPI_Send", 3, 0),
    ("start_wait", "MPI_Waitall", 1, 1),
]


@pytest.mark.parametrize(
    ("version", "schema", "duration"),
    [("2022_4", "3.0.0", 143_346_920), ("2024_2", "3.11.1", 112_067_167)],
)
def test_a_c_program(real_sample, version, schema, duration):
    trace = read(real_sample(f"nvtx_c_{version}"))
    assert (
        rows(trace, "ranges", "thread", "domain", "name", "style", "open", "payload") == C_PROGRAM
    )
    ends = trace.read("ranges").filter("open")["end"].to_list()
    assert ends == [duration] * 3
    assert rows(trace, "reports", "schema_version", "duration") == [(schema, duration)]
    assert rows(trace, "threads", "thread", "name") == [(0, "parent"), (1, None)]
    assert column(trace, "processes", "name") == ["./nvc"]
    assert remarks(trace) == ()


def test_a_python_program_with_a_range_across_threads(real_sample):
    trace = read(real_sample("nvtx_py_2024_2"))
    assert rows(
        trace, "ranges", "thread", "domain", "name", "category", "style", "end_thread"
    ) == [
        (0, None, "default_push", None, "push_pop", None),
        (0, None, "deco", None, "push_pop", None),
        (0, None, "with_default", None, "push_pop", None),
        (0, "mydom", "with_domain", "cat1", "push_pop", None),
        (0, "mydom", "dom_push", None, "push_pop", None),
        (0, "mydom", "startend", None, "start_end", None),
        (0, None, "cross_thread", None, "start_end", 1),
        (1, None, "in_thread", None, "push_pop", None),
    ]  # fmt: skip


def test_two_mpi_ranks_of_2022(real_sample):
    trace = read(real_sample("mpi_2022_4"))
    assert set(column(trace, "ranges", "domain")) == {"MPI"}
    assert trace.read("ranges").height == 30
    assert rows(trace, "threads", "process", "name") == [(0, None), (1, None)]
    assert column(trace, "ranges", "name")[:4] == ["MPI_Init"] * 2 + ["MPI_Allreduce"] * 2


def test_two_mpi_ranks_of_2024(real_sample):
    trace = read(real_sample("mpi_2024_2"))
    assert trace.read("ranges").is_empty()
    assert rows(trace, "threads", "process", "tid", "name") == [(0, 29403, None), (1, 29404, None)]
    assert column(trace, "processes", "name") == ["mc", "mc"]
    host = trace.read("host").filter(library="mpi")
    calls = host.group_by("group", "name").agg(
        *((pl.col("rank") == rank).sum().alias(f"{rank}") for rank in (0, 1))
    )
    assert calls.sort("group", "name").rows() == MPI_CALLS
    allreduce = host.filter(name="MPI_Allreduce")
    assert set(allreduce.select("bytes", "recv_bytes", "root_rank").rows()) == {
        (8_000, 8_000, None)  # as the messages are: nsys counts them for each of two ranks
    }
    isend = host.filter(name="MPI_Isend").sort("rank")
    assert isend.select("thread", "bytes", "tag", "remote_rank").rows() == [
        (0, 8_000, 3, 1),
        (1, 8_000, 3, 0),
    ]
    assert remarks(trace) == ()


def test_names_from_before_a_delayed_start(real_sample):
    trace = read(real_sample("delayed_start_2024_2"))
    assert set(rows(trace, "ranges", "domain", "name", "category")) == {
        ("LateDom", "regname", "catname")
    }
    assert rows(trace, "ranges", "start", "end")[0] == (94_092_582, 194_193_331)
    assert trace.read("ranges").height == 18


def test_times_normalised_to_the_epoch_are_those_of_the_same_report_without(real_sample):
    plain = read(real_sample("delayed_start_2024_2"))
    normalised = read(real_sample("ts_normalized_2024_2"))
    for name in ("ranges", "threads", "processes"):
        assert normalised.read(name).equals(plain.read(name)), name
    assert rows(normalised, "reports", "session_start", "duration") == rows(
        plain, "reports", "session_start", "duration"
    )


def test_an_export_of_a_part_of_the_time(real_sample):
    whole = read(real_sample("delayed_start_2024_2")).read("ranges")
    trace = read(real_sample("times_filtered_2024_2"))
    inside = whole.filter((whole["start"] >= 500_000_000) & (whole["end"] <= 1_000_000_000))
    assert rows(trace, "ranges", "start", "end") == inside.select("start", "end").rows()
    assert len(inside) == 4
    assert set(rows(trace, "ranges", "domain", "category")) == {("domain 1", None)}
    [warning] = remarks(trace)
    assert "--times [500000000,1000000000]" in warning
