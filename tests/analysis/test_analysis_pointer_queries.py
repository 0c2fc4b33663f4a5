"""Pointer queries within MPI calls, and what MPI collectives do with GPU memory."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

from tracekit.analysis.communication import pointer_queries, staging
from tracekit.analysis.communication._pointer_queries import staging_calls
from tracekit.model import Trace

US = 1000
SIZE = 1 << 20


class Builder(TraceBuilder):
    """Adds MPI calls of the table `host`, and pointer queries."""

    def __init__(self) -> None:
        super().__init__()
        self.host: list[dict[str, Any]] = []

    def mpi(
        self, start: int, end: int, name: str = "MPI_Allreduce", *, thread: int = 0, **row: Any
    ) -> None:
        self.thread_names.setdefault(thread, None)
        self.host.append(
            {
                "report": 0, "process": thread // 10, "thread": thread, "start": start, "end": end,
                "library": "mpi", "name": name, "group": "collective", "bytes": SIZE,
                "rank": thread // 10,
            } | row
        )  # fmt: skip

    def query(
        self, start: int, end: int, name: str = "cuPointerGetAttribute", thread: int = 0
    ) -> None:
        self.call(start, end, thread=thread, correlation=None)
        self.rows["calls"][-1]["name"] = name

    def copy(self, kind: str, start: int, size: int = SIZE, **row: Any) -> None:
        self.op(kind, start=start, kind=kind, bytes=size, **row)

    def trace(self) -> Trace:
        host = pl.DataFrame(self.host, infer_schema_length=None)
        return super().trace().with_tables({"host": host} if self.host else {})


@pytest.fixture
def b() -> Builder:
    return Builder()


def only(frame: pl.DataFrame, *names: str) -> list[tuple[Any, ...]]:
    return frame.select(names).rows()


class TestPointerQueries:
    def test_40_of_200_us_are_20_percent(self, b: Builder) -> None:
        b.mpi(0, 100 * US)
        b.mpi(150 * US, 250 * US)
        b.query(10 * US, 20 * US)
        b.query(30 * US, 40 * US)
        b.query(160 * US, 180 * US)
        row = pointer_queries(b.trace()).rows.row(0, named=True)
        assert row == {
            "function": "MPI_Allreduce", "calls": 2, "mpi_ns": 200 * US, "queries": 3,
            "query_ns": 40 * US, "share": 0.2, "queries_per_call": 1.5, "calls_with_queries": 2,
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("name", "counts"),
        [
            ("cuPointerGetAttribute", True), ("cuPointerGetAttributes", True),
            ("cudaPointerGetAttributes", True), ("cuPointerGetAttribute_v2", True),
            ("cudaLaunchKernel", False), ("cuPointerSetAttribute", False),
            ("cuMemGetAddressRange", False),
        ],
    )  # fmt: skip
    def test_names(self, name: str, counts: bool, b: Builder) -> None:
        b.mpi(0, 100)
        b.query(10, 20, name)
        b.query(200, 201)
        assert pointer_queries(b.trace()).rows["queries"].to_list() == [int(counts)]

    def test_what_is_not_within_a_call_of_its_thread_is_not_counted(self, b: Builder) -> None:
        b.mpi(100, 200)
        b.mpi(300, 400)
        for start, end, thread in [(50, 60, 0), (95, 105, 0), (195, 205, 0), (120, 130, 1)]:
            b.query(start, end, thread=thread)
        b.query(300, 400)
        assert only(pointer_queries(b.trace()).rows, "queries", "query_ns") == [(1, 100)]
        assert pointer_queries(b.trace()).meta == {"queries": 5, "inside": 1, "missing": []}

    def test_the_driver_within_the_runtime_and_calls_within_calls_count_once(
        self, b: Builder
    ) -> None:
        b.mpi(0, 100)
        b.mpi(1, 99, "PMPI_Allreduce")
        b.query(10, 20, "cudaPointerGetAttributes")
        b.query(11, 19, "cuPointerGetAttributes")
        b.query(30, 40)
        b.query(30, 40)  # as recorded twice, by two names of one function
        assert only(
            pointer_queries(b.trace()).rows, "function", "calls", "queries", "query_ns"
        ) == [("MPI_Allreduce", 1, 2, 20)]

    def test_by_function(self, b: Builder) -> None:
        b.mpi(0, 100)
        b.mpi(200, 500, "MPI_Send", group="p2p")
        b.mpi(0, 100, thread=10)
        b.query(10, 30)
        b.query(40, 50, thread=10)
        trace = b.trace()
        columns = ("calls", "mpi_ns", "query_ns")
        assert only(pointer_queries(trace).rows, "function", *columns) == [
            ("MPI_Allreduce", 2, 200, 30),
            ("MPI_Send", 1, 300, 0),
        ]

    def test_none_recorded_is_not_none_made(self, b: Builder) -> None:
        b.mpi(0, 100)
        b.call(10, 20, correlation=1)
        names = ("calls", "queries", "query_ns", "share", "queries_per_call", "calls_with_queries")
        assert only(pointer_queries(b.trace()).rows, *names) == [(1, *[None] * 5)]
        assert "--cuda-trace-all-apis=true" in pointer_queries(b.trace()).meta["missing"][0]

    def test_a_run_without_mpi(self, b: Builder) -> None:
        b.query(10, 20)
        trace = b.trace()
        assert pointer_queries(trace).rows.is_empty()
        assert "no MPI calls" in pointer_queries(trace).meta["missing"][0]

    def test_mpi_calls_that_are_ranges(self, b: Builder) -> None:
        b.range(0, 100, "MPI_Allreduce", domain="MPI")
        b.query(10, 30)
        assert only(pointer_queries(b.trace()).rows, "function", "share") == [
            ("MPI_Allreduce", 0.2)
        ]

    @settings(deadline=None)
    @given(
        st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(0, 1)), max_size=8),
        st.lists(
            st.tuples(st.integers(0, 80), st.integers(0, 10), st.integers(0, 1)),
            min_size=1, max_size=15,
        ),
    )  # fmt: skip
    def test_containment_by_brute_force(
        self, raw: list[tuple[int, int, int]], queries: list[tuple[int, int, int]]
    ) -> None:
        """Calls of a thread follow each other; queries are in any place."""
        b, spans = Builder(), []
        clock = {0: 0, 1: 0}
        for gap, length, thread in raw:
            start = clock[thread] + gap % 7
            clock[thread] = start + length + 1
            spans.append((thread, start, clock[thread]))
            b.mpi(start, clock[thread], thread=thread)
        asked: dict[int, int] = {0: 0, 1: 0}
        inside, length_inside = 0, 0
        for gap, length, thread in queries:
            start = asked[thread] + gap % 5
            asked[thread] = start + length + 1
            b.query(start, asked[thread], thread=thread)
            hits = [s for s in spans if s[0] == thread and s[1] <= start and asked[thread] <= s[2]]
            inside += bool(hits)
            length_inside += (length + 1) * bool(hits)
        expected = [(len(spans), inside, length_inside)] if spans else []
        found = pointer_queries(b.trace()).rows
        assert only(found, "calls", "queries", "query_ns") == expected


class TestStaging:
    def test_copies_to_and_from_the_host(self, b: Builder) -> None:
        b.mpi(0, 100)
        b.copy("d2h", 10)
        b.copy("h2d", 80)
        b.mpi(200, 300)
        b.op("void reduce_sum_kernel<float>(float*)", start=210)
        b.op("gemm", start=220)
        b.mpi(400, 500)
        trace = b.trace()
        assert only(staging_calls(trace), "d2h_bytes", "h2d_bytes", "kernels", "reduce_kernels",
                    "staged", "gpu_reduce") == [
            (SIZE, SIZE, 0, 0, True, False),
            (0, 0, 2, 1, False, True),
            (0, 0, 0, 0, False, False),
        ]  # fmt: skip
        assert staging(trace).rows.row(0, named=True) == {
            "function": "MPI_Allreduce", "calls": 3, "staged": 1, "staged_unknown": 0,
            "gpu_reduce": 1, "d2h_bytes": SIZE, "h2d_bytes": SIZE, "reduce_kernels": 1,
        }  # fmt: skip

    def test_a_broadcast_from_who_knows_whom_is_staged_if_both_copies_are_seen(self) -> None:
        for kinds, staged in ((("h2d",), False), (("d2h",), False), (("d2h", "h2d"), True)):
            b = Builder()
            b.mpi(0, 100, "MPI_Bcast", root_rank=None)
            for number, kind in enumerate(kinds):
                b.copy(kind, 10 + 40 * number)
            assert staging_calls(b.trace())["staged"].to_list() == [staged], kinds

    def test_copies_in_pieces_add_up(self, b: Builder) -> None:
        b.mpi(0, 100)
        for n in range(4):
            b.copy("d2h", 10 + 10 * n, SIZE // 4)
            b.copy("h2d", 15 + 10 * n, SIZE // 4)
        assert staging_calls(b.trace())["staged"].to_list() == [True]

    @pytest.mark.parametrize(
        ("to_host", "from_host"), [(SIZE - 1, SIZE), (SIZE, SIZE - 1), (0, SIZE), (SIZE, 0)]
    )
    def test_less_than_the_message_is_not_staging(
        self, to_host: int, from_host: int, b: Builder
    ) -> None:
        b.mpi(0, 100)
        b.copy("d2h", 10, to_host)
        b.copy("h2d", 80, from_host)
        assert staging_calls(b.trace())["staged"].to_list() == [False]

    def test_what_is_launched_outside_is_not_its(self, b: Builder) -> None:
        """The copies run within the call, but were launched before it."""
        b.copy("d2h", 30, at=5)
        b.copy("h2d", 40, at=7)
        b.mpi(20, 100)
        b.copy("d2h", 120, thread=10)
        b.copy("h2d", 130, thread=10)
        b.mpi(120, 200)
        assert staging_calls(b.trace())["staged"].to_list() == [False, False]

    def test_another_thread_of_the_process_may_do_it(self, b: Builder) -> None:
        b.mpi(0, 100)
        b.copy("d2h", 12, at=10, thread=1)
        b.copy("h2d", 82, at=80, thread=1)
        assert staging_calls(b.trace())["staged"].to_list() == [True]

    def test_a_short_call_of_one_thread_does_not_hide_a_long_one_of_another(
        self, b: Builder
    ) -> None:
        b.mpi(0, 100)
        b.mpi(20, 30, thread=1)
        b.copy("d2h", 52, at=50, thread=2)
        b.copy("h2d", 82, at=80, thread=2)
        assert only(staging_calls(b.trace()), "thread", "staged") == [(0, True), (1, False)]

    def test_of_two_calls_that_last_it_is_the_later_ones(self, b: Builder) -> None:
        b.mpi(0, 100)
        b.mpi(20, 90, thread=1)
        b.copy("d2h", 52, at=50, thread=2)
        b.copy("h2d", 82, at=80, thread=2)
        assert only(staging_calls(b.trace()), "thread", "staged") == [(0, False), (1, True)]

    def test_a_threads_own_call_comes_first(self, b: Builder) -> None:
        b.mpi(0, 100)
        b.mpi(5, 100, thread=1)
        b.copy("d2h", 12, at=10)
        b.copy("h2d", 82, at=80)
        assert only(staging_calls(b.trace()), "thread", "staged") == [(0, True), (1, False)]

    @pytest.mark.parametrize(
        ("name", "rank", "kinds", "staged"),
        [
            ("MPI_Bcast", 0, ["d2h"], True), ("MPI_Bcast", 0, ["h2d"], False),
            ("MPI_Bcast", 1, ["h2d"], True), ("MPI_Bcast", 1, ["d2h"], False),
            ("MPI_Reduce", 1, ["d2h"], True), ("MPI_Reduce", 0, ["d2h"], False),
            ("MPI_Reduce", 0, ["d2h", "h2d"], True), ("MPI_Allreduce", 1, ["d2h"], False),
            ("MPI_Reduce_scatter", 1, ["d2h"], False),
        ],
    )  # fmt: skip
    def test_rooted_collectives_take_one_way(
        self, name: str, rank: int, kinds: list[str], staged: bool, b: Builder
    ) -> None:
        b.mpi(0, 100, name, rank=rank, root_rank=0)
        for n, kind in enumerate(kinds):
            b.copy(kind, 10 + 10 * n)
        assert staging_calls(b.trace())["staged"].to_list() == [staged]

    def test_without_a_size_it_is_known_only_that_nothing_was_copied(self, b: Builder) -> None:
        b.mpi(0, 100, bytes=None)
        b.copy("d2h", 10)
        b.copy("h2d", 20)
        b.mpi(200, 300, bytes=None)
        trace = b.trace()
        assert staging_calls(trace)["staged"].to_list() == [None, False]
        assert only(staging(trace).rows, "calls", "staged", "staged_unknown") == [(2, 0, 1)]

    def test_a_process_without_ops_says_nothing(self, b: Builder) -> None:
        b.mpi(0, 100)
        trace = b.trace()
        assert only(staging_calls(trace), "d2h_bytes", "staged", "gpu_reduce") == [(None,) * 3]
        assert only(staging(trace).rows, "staged", "staged_unknown", "gpu_reduce") == [
            (None, 1, None)
        ]

    def test_what_does_not_block_and_barriers_are_left_out(self, b: Builder) -> None:
        b.mpi(0, 10, "MPI_Iallreduce")
        b.mpi(20, 30, "MPI_Barrier", bytes=None)
        b.mpi(40, 50, "MPI_Send", group="p2p")
        assert staging(b.trace()).rows.is_empty()

    @settings(deadline=None)
    @given(
        st.lists(st.tuples(st.integers(0, 9), st.integers(1, 30), st.integers(0, 2)), max_size=6),
        st.lists(
            st.tuples(st.integers(0, 120), st.integers(0, 2), st.booleans()), max_size=10
        ),
    )  # fmt: skip
    def test_ops_by_brute_force(
        self, raw: list[tuple[int, int, int]], ops: list[tuple[int, int, bool]]
    ) -> None:
        """Threads 0 and 1 are of one process, thread 10 of another; calls of two may overlap."""
        threads = (0, 1, 10)
        b, clock, spans = Builder(), dict.fromkeys(threads, 0), []
        for gap, length, which in raw:
            thread = threads[which]
            start, end = clock[thread] + gap, clock[thread] + gap + length
            clock[thread] = end + 1
            b.mpi(start, end, thread=thread)
            spans.append((thread // 10, start, end, thread))
        spans.sort()
        expected = [0] * len(spans)
        for at, which, is_launched in ops:
            thread = threads[which]
            row = {"at": at} if is_launched else {"start": at, "end": at + 1}
            b.op("d2h", thread=thread, kind="d2h", bytes=1, **row)
            # The launch takes 1 ns, as the op does that has none.
            near = [
                n
                for n, (process, start, _, _) in enumerate(spans)
                if process == thread // 10 and start <= at
            ]
            own = [n for n in near if spans[n][3] == thread and is_launched][-1:]
            own = [n for n in own if at + 1 <= spans[n][2]]
            others = [n for n in near if at + 1 <= spans[n][2]]
            for n in (own or others)[-1:]:
                expected[n] += 1
        traced = {threads[which] // 10 for _, which, _ in ops}
        found = staging_calls(b.trace())
        assert found["d2h_bytes"].to_list() == [
            count if span[0] in traced else None
            for count, span in zip(expected, spans, strict=True)
        ]
