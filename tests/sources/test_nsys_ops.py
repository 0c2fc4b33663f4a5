"""GPU work: kernels, copies, memsets and graphs of every schema version as one table of ops."""

from __future__ import annotations

import pytest
from nsys_builder import NsysBuilder, global_pid
from source_helpers import column, execute, remarks, rows, trace_of, versions_with

from tracekit.sources import read

UNSET = 4294967295
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"


def test_every_column_of_an_op_comes_from_its_row(nsys):
    nsys.kernel(
        110, 120, name="void at::gemm<float>(int)", short_name="gemm", correlation=7, stream=13,
        context=2,
    )  # fmt: skip
    nsys.memcpy(130, 131, kind=1, bytes=4096, correlation=8)
    nsys.memset(140, 142, bytes=64, correlation=9, stream=14)
    trace = trace_of(nsys)
    assert rows(
        trace, "ops",
        "op", "report", "process", "device", "context", "stream", "start", "end", "name",
        "short_name", "kind", "bytes", "copy_kind", "src_device", "dst_device", "correlation",
        "graph_node",
    ) == [
        (0, 0, 0, 0, 2, 13, 110, 120, "void at::gemm<float>(int)", "gemm", "compute", None, None,
         None, None, 7, None),
        (1, 0, 0, 0, 1, 7, 130, 131, "[CUDA memcpy HtoD]", "[CUDA memcpy HtoD]", "h2d", 4096,
         "HtoD", None, 0, 8, None),
        (2, 0, 0, 0, 1, 14, 140, 142, "[CUDA memset]", "[CUDA memset]", "memset", 64, None, None,
         0, 9, None),
    ]  # fmt: skip
    assert remarks(trace) == ()


def test_what_is_not_attributed_yet_is_empty(one):
    one.launch(10, 20, 30)
    trace = trace_of(one)
    [unknown] = rows(
        trace, "ops",
        "collective", "call", "launch_thread", "launch_start", "launch_end", "range", "iteration",
    )  # fmt: skip
    assert unknown == (None,) * 7
    assert rows(trace, "ops", "stage", "stage_source") == [("OTHER", "none")]


def test_ops_are_numbered_by_start_and_the_longer_first(one):
    one.memset(50, 60, correlation=1)
    one.kernel(20, 30, correlation=2)
    one.kernel(20, 40, correlation=3)
    one.memcpy(10, 15, correlation=4)
    one.kernel(-5, 5, correlation=5)
    trace = trace_of(one)
    assert rows(trace, "ops", "op", "start", "end", "correlation") == [
        (0, -5, 5, 5), (1, 10, 15, 4), (2, 20, 40, 3), (3, 20, 30, 2), (4, 50, 60, 1),
    ]  # fmt: skip


def test_kernels_of_one_stream_may_overlap(one):
    one.kernel(10, 30)
    one.kernel(29, 40)
    assert rows(trace_of(one), "ops", "start", "end") == [(10, 30), (29, 40)]


class TestCopies:
    # copyKind, then what it is called and is, and whether the GPU is its source or its target
    KINDS = (
        (0, "Unknown", "unknown", None, None),
        (1, "HtoD", "h2d", None, 0),
        (2, "DtoH", "d2h", 0, None),
        (3, "HtoA", "h2d", None, 0),
        (4, "AtoH", "d2h", 0, None),
        (5, "AtoA", "d2d", 0, 0),
        (6, "AtoD", "d2d", 0, 0),
        (7, "DtoA", "d2d", 0, 0),
        (8, "DtoD", "d2d", 0, 0),
        (9, "HtoH", "h2h", None, None),
        (10, "PtoP", "p2p", None, None),
        (11, "Unified HtoD", "h2d", None, 0),
        (12, "Unified DtoH", "d2h", 0, None),
        (13, "Unified DtoD", "d2d", 0, 0),
        (14, "Unknown", "unknown", None, None),
        (UNSET, "Unknown", "unknown", None, None),
    )

    def test_every_kind_without_named_ends(self, nsys):
        for at, (code, *_) in enumerate(self.KINDS):
            nsys.memcpy(at, at + 1, kind=code, src_kind=7, dst_kind=7)
        trace = trace_of(nsys)
        assert rows(trace, "ops", "copy_kind", "kind", "src_device", "dst_device") == [
            row[1:] for row in self.KINDS
        ]
        assert column(trace, "ops", "name") == [f"[CUDA memcpy {row[1]}]" for row in self.KINDS]

    # kinds of memory at the source and the target, and what a copy of unknown direction is then
    MEMORY = (
        (0, 2, "h2d"),
        (1, 3, "h2d"),
        (1, 5, "h2d"),
        (2, 0, "d2h"),
        (3, 1, "d2h"),
        (2, 5, "d2d"),
        (0, 1, "h2h"),
        (4, 2, "unknown"),
        (2, 4, "unknown"),
        (6, 0, "unknown"),
        (7, 7, "unknown"),
        (7, 2, "unknown"),
    )

    def test_of_unknown_direction_are_told_by_the_memory_at_their_ends(self, one):
        for at, (source, target, _) in enumerate(self.MEMORY):
            one.memcpy(at, at + 1, kind=0, src_kind=source, dst_kind=target)
        trace = trace_of(one)
        assert column(trace, "ops", "kind") == [row[2] for row in self.MEMORY]
        assert set(column(trace, "ops", "copy_kind")) == {"Unknown"}

    def test_a_known_direction_is_not_overruled_by_the_memory(self, one):
        one.memcpy(1, 2, kind=1, src_kind=2, dst_kind=0)
        assert column(trace_of(one), "ops", "kind") == ["h2d"]

    def test_peer_copies_go_from_source_to_target_whichever_ran_them(self, nsys):
        nsys.memcpy(1, 2, kind=10, device=0, src_device=0, dst_device=3)
        nsys.memcpy(3, 4, kind=10, device=0, src_device=3, dst_device=0)
        nsys.memcpy(5, 6, kind=10, device=3, src_device=0, dst_device=3)
        assert rows(trace_of(nsys), "ops", "kind", "device", "src_device", "dst_device") == [
            ("p2p", 0, 0, 3),
            ("p2p", 0, 3, 0),
            ("p2p", 3, 0, 3),
        ]

    @pytest.mark.parametrize("kind", [0, 8])
    def test_a_device_copy_between_two_gpus_is_a_peer_copy(self, one, kind):
        ends = {"src_kind": 2, "dst_kind": 2}
        one.memcpy(1, 2, kind=kind, device=0, src_device=0, dst_device=1, **ends)
        one.memcpy(3, 4, kind=kind, device=0, src_device=0, dst_device=0, **ends)
        one.memcpy(5, 6, kind=kind, device=1, dst_device=0, **ends)
        one.memcpy(7, 8, kind=kind, device=1, src_device=0, **ends)
        assert rows(trace_of(one), "ops", "kind", "device", "src_device", "dst_device") == [
            ("p2p", 0, 0, 1),
            ("d2d", 0, 0, 0),
            ("p2p", 1, 1, 0),
            ("p2p", 1, 0, 1),
        ]

    # direction, kinds of memory at the source and the target, and what such a copy is
    HALVES = (
        (1, 2, 2, "staged", None, 0),
        (2, 2, 2, "staged", 0, None),
        (1, 3, 5, "staged", None, 0),
        (2, 5, 3, "staged", 0, None),
        (1, 1, 2, "h2d", None, 0),
        (1, 7, 2, "h2d", None, 0),
        (2, 2, 4, "d2h", 0, None),
        (2, 2, 6, "d2h", 0, None),
        (8, 2, 2, "d2d", 0, 0),
        (11, 2, 2, "h2d", None, 0),
    )

    def test_with_device_memory_at_both_ends_go_through_the_host_to_another_gpu(self, nsys):
        for at, (code, source, target, *_) in enumerate(self.HALVES):
            nsys.memcpy(at, at + 1, kind=code, src_kind=source, dst_kind=target)
        trace = trace_of(nsys)
        assert rows(trace, "ops", "kind", "src_device", "dst_device") == [
            row[3:] for row in self.HALVES
        ]
        assert column(trace, "ops", "copy_kind")[:2] == ["HtoD", "DtoH"]

    def test_ends_that_are_not_set_are_the_gpu_that_ran_the_copy(self, nsys):
        unset = {"src_device": UNSET, "dst_device": UNSET}
        for at, kind in enumerate((1, 2, 8, 10)):
            nsys.memcpy(at, at + 1, kind=kind, device=2, **unset)
        assert rows(trace_of(nsys), "ops", "kind", "src_device", "dst_device") == [
            ("h2d", None, 2),
            ("d2h", 2, None),
            ("d2d", 2, 2),
            ("p2p", None, None),
        ]

    def test_the_host_is_no_device_even_where_its_end_is_filled_in(self, one):
        one.memcpy(1, 2, kind=1, device=1, src_device=0, dst_device=1)
        one.memcpy(3, 4, kind=2, device=1, src_device=1, dst_device=0)
        assert rows(trace_of(one), "ops", "src_device", "dst_device") == [(None, 1), (1, None)]

    def test_migrations_of_unified_memory_have_no_launch(self, nsys):
        nsys.memcpy(
            1, 2, kind=11, correlation=None, stream=UNSET, context=UNSET, src_kind=4, dst_kind=4
        )
        assert rows(trace_of(nsys), "ops", "kind", "context", "stream", "correlation") == [
            ("h2d", None, None, None)
        ]

    def test_sizes_beyond_32_bits_are_exact(self, one):
        one.memcpy(1, 2, bytes=2**53 + 1)
        one.memset(3, 4, bytes=2**40 + 1)
        assert column(trace_of(one), "ops", "bytes") == [2**53 + 1, 2**40 + 1]


class TestIds:
    def test_correlation_ids_of_processes_stay_apart(self, nsys):
        nsys.call(10, 11, correlation=5, pid=200)
        nsys.call(12, 13, correlation=5, pid=300)
        nsys.kernel(20, 21, correlation=5, pid=300)
        nsys.kernel(22, 23, correlation=5, pid=200)
        trace = trace_of(nsys)
        assert rows(trace, "processes", "process", "pid") == [(0, 200), (1, 300)]
        key = ["process", "correlation"]
        launched = trace.read("ops").select(*key, op="start").join(
            trace.read("calls").select(*key, launch="start"), on=key
        )  # fmt: skip
        assert sorted(launched.select("op", "launch").rows()) == [(20, 12), (22, 10)]

    def test_ids_that_are_not_set_are_null(self, one):
        one.kernel(1, 2, stream=UNSET, context=UNSET)
        assert rows(trace_of(one), "ops", "context", "stream", "correlation") == [(None,) * 3]

    def test_large_ids_are_kept(self, one):
        one.kernel(1, 2, stream=4294967294, context=2**31 - 1, correlation=2**62 + 1)
        assert rows(trace_of(one), "ops", "context", "stream", "correlation") == [
            (2**31 - 1, 4294967294, 2**62 + 1)
        ]

    def test_work_of_no_device_is_left_out_and_said_so(self, one):
        one.kernel(1, 2, device=UNSET)
        one.kernel(3, 4, device=1)
        trace = trace_of(one)
        assert rows(trace, "ops", "op", "start", "device") == [(0, 3, 1)]
        assert remarks(trace) == ("1 GPU ops have no device or process and were left out",)

    def test_work_of_no_process_is_left_out_and_said_so(self, one):
        one.kernel(1, 2)
        one.close()
        execute(
            one.path,
            "CREATE TABLE k AS SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL",
            "INSERT INTO k SELECT * FROM k",
            "UPDATE k SET globalPid = NULL WHERE rowid = 2",
            "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL",
            "ALTER TABLE k RENAME TO CUPTI_ACTIVITY_KIND_KERNEL",
        )
        trace = read(one.path)
        assert rows(trace, "ops", "start", "process") == [(1, 0)]
        assert remarks(trace) == ("1 GPU ops have no device or process and were left out",)

    def test_the_process_of_a_gpu_row_may_have_the_top_bits_set(self, one):
        """An id of 64 bits without sign is stored as a negative number."""
        gid = (0xFE << 56 | 1 << 48 | 4321 << 24) - (1 << 64)
        one.insert(
            "CUPTI_ACTIVITY_KIND_KERNEL", start=1, end=2, deviceId=0, contextId=1, streamId=7,
            globalPid=gid, demangledName=one.string("k"), shortName=one.string("k"),
        )  # fmt: skip
        trace = trace_of(one)
        assert rows(trace, "processes", "pid", "global_id") == [(4321, gid)]
        assert rows(trace, "ops", "process", "device") == [(0, 0)]


class TestNames:
    def test_the_full_name_and_the_short_one(self, one):
        full = "void at::native::<unnamed>::reduce_kernel<(int)512, at::Op<float>>(T3)"
        one.kernel(1, 2, name=full)
        assert rows(trace_of(one), "ops", "name", "short_name") == [(full, "reduce_kernel")]

    def test_a_name_that_is_missing_is_replaced_by_the_other(self, one):
        one.kernel(1, 2, name="k<int>(float)", short_name="k")
        one.kernel(3, 4, name="k<int>(float)", short_name="k")
        one.kernel(5, 6, name="k<int>(float)", short_name="k")
        one.close()
        update = "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET {} = 999 WHERE start IN {}"
        execute(
            one.path,
            update.format("demangledName", "(3, 5)"),
            update.format("shortName", "(1, 5)"),
        )
        assert rows(read(one.path), "ops", "name", "short_name") == [
            ("k<int>(float)", "k<int>(float)"),
            ("k", "k"),
            (None, None),
        ]

    def test_hostile_names_are_text(self, one):
        names = ["", "x'; DROP TABLE StringIds; --", "<script>alert(1)</script>", "a\x00b", "漢🚀"]
        for at, name in enumerate(names):
            one.kernel(at, at + 1, name=name, short_name=name)
        trace = trace_of(one)
        assert column(trace, "ops", "name") == names
        assert column(trace, "ops", "short_name") == names


class TestTimes:
    def test_work_without_times_is_left_out_and_said_so(self, one):
        one.kernel(0, 0, correlation=1)
        one.memcpy(0, 0, correlation=2)
        one.kernel(9, 8, correlation=3)
        one.kernel(0, 5, correlation=4)
        one.kernel(7, 7, correlation=5)
        trace = trace_of(one)
        assert rows(trace, "ops", "start", "end", "correlation") == [(0, 5, 4), (7, 7, 5)]
        assert remarks(trace) == ("3 GPU ops have no valid times and were left out",)

    def test_times_are_exact_beyond_the_precision_of_a_float(self, one):
        epoch = 1_700_000_000_123_456_789
        one.kernel(epoch, epoch + 1)
        assert rows(trace_of(one), "ops", "start", "end") == [(epoch, epoch + 1)]


class TestGraphs:
    def test_nodes_share_the_correlation_of_the_launch(self, nsys):
        node = 2**62 + 3
        nsys.call(1, 2, correlation=5, name="cudaGraphLaunch_v10000")
        nsys.kernel(10, 11, correlation=5, graph_node=node)
        nsys.memcpy(12, 13, correlation=5, graph_node=node + 1)
        nsys.memset(14, 15, correlation=5, graph_node=node + 2)
        nsys.kernel(16, 17, correlation=6)
        trace = trace_of(nsys)
        assert rows(trace, "ops", "correlation", "graph_node") == [
            (5, node),
            (5, node + 1),
            (5, node + 2),
            (6, None),
        ]
        assert remarks(trace) == ()

    @pytest.mark.parametrize("nsys", versions_with(GRAPH), indirect=True)
    def test_a_graph_recorded_as_a_whole_is_one_op(self, nsys):
        nsys.call(1, 2, correlation=5, name="cudaGraphLaunch_v10000")
        nsys.graph_trace(10, 90, graph=4, correlation=5, device=1, stream=3)
        trace = trace_of(nsys)
        assert rows(
            trace, "ops", "start", "end", "name", "kind", "device", "stream", "bytes", "correlation"
        ) == [(10, 90, "[CUDA graph 4]", "graph", 1, 3, None, 5)]
        assert remarks(trace) == ()

    @pytest.mark.parametrize(
        "name", ["cudaGraphLaunch_v10000", "cuGraphLaunch", "cudaGraphLaunch_ptsz_v10000"]
    )
    def test_launches_whose_gpu_time_is_missing_are_counted(self, one, name):
        for correlation in (5, 6, 7):
            one.call(correlation, correlation + 1, correlation=correlation, name=name)
        one.kernel(12, 13, correlation=5, pid=999)
        [warning] = remarks(trace_of(one))
        assert warning.startswith("GPU time of 3 CUDA graph launches was not recorded: record with")

    def test_no_option_is_advised_that_other_launches_show_to_be_given(self, one):
        for correlation in (5, 6, 7):
            one.call(correlation, 8, correlation=correlation, name="cudaGraphLaunch_v10000")
        one.kernel(10, 11, correlation=6)
        assert remarks(trace_of(one)) == (
            "GPU time of 2 CUDA graph launches was not recorded, though that of 1 was",
        )

    @pytest.mark.parametrize("nsys", versions_with(GRAPH), indirect=True)
    def test_a_graph_of_unknown_time_counts_as_not_recorded(self, nsys):
        nsys.call(1, 2, correlation=5, name="cudaGraphLaunch_v10000")
        nsys.graph_trace(0, 0, correlation=5)
        nsys.kernel(10, 11, correlation=6)
        lost, unrecorded = remarks(trace_of(nsys))
        assert lost == "1 GPU ops have no valid times and were left out"
        assert unrecorded.startswith("GPU time of 1 CUDA graph launches was not recorded")

    def test_other_calls_on_graphs_launch_nothing(self, one):
        for at, name in enumerate(("cudaGraphInstantiate_v12000", "cudaGraphExecUpdate_v10020")):
            one.call(at, at + 1, correlation=at, name=name)
        one.kernel(10, 11, correlation=9)
        assert remarks(trace_of(one)) == ()


def test_the_same_trace_is_the_same_in_every_version(nsys):
    for at in range(3):
        nsys.launch(100 * at, 100 * at + 20, 100 * at + 30, pid=100 + at, device=at)
        nsys.memcpy(100 * at + 40, 100 * at + 50, kind=2, pid=100 + at, device=at)
    trace = trace_of(nsys)
    assert rows(trace, "ops", "process", "device", "start", "end", "kind", "copy_kind") == [
        (0, 0, 20, 30, "compute", None), (0, 0, 40, 50, "d2h", "DtoH"),
        (1, 1, 120, 130, "compute", None), (1, 1, 140, 150, "d2h", "DtoH"),
        (2, 2, 220, 230, "compute", None), (2, 2, 240, 250, "d2h", "DtoH"),
    ]  # fmt: skip
    assert rows(trace, "processes", "pid", "global_id") == [
        (pid, global_pid(pid)) for pid in (100, 101, 102)
    ]


class TestPeerCopiesThatNameContexts:
    """Copies between GPUs whose GPUs are null are placed by their contexts."""

    PLACED = "2 copies between GPUs were placed by their CUDA contexts"
    UNKNOWN = "1 copies between GPUs lack their source or target"

    def _copies(self, nsys: NsysBuilder, kind: int = 10) -> None:
        memory = {"src_kind": 2, "dst_kind": 2}
        nsys.memcpy(10, 11, kind=kind, srcContextId=1, dstContextId=2, **memory)
        nsys.memcpy(20, 21, kind=kind, srcContextId=2, dstContextId=1, **memory)

    def test_as_the_contexts_are_declared(self, nsys):
        declares = {"TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_CUDA_NULL_STREAM"}
        if not declares & nsys.schema.tables.keys():
            nsys.kernel(1, 2, device=5, context=2)
        nsys.context(100, 1, 0)
        nsys.context(100, 2, 5)
        nsys.context(200, 2, 6)
        self._copies(nsys)
        trace = trace_of(nsys)
        devices = rows(trace, "ops", "kind", "src_device", "dst_device")
        assert devices[-2:] == [("p2p", 0, 5), ("p2p", 5, 0)]
        assert remarks(trace) == (self.PLACED,)

    def test_as_other_ops_show_the_contexts(self, nsys):
        nsys.memset(1, 2, device=3, context=2)
        nsys.kernel(1, 2, device=6, context=2, pid=200)
        nsys.memcpy(3, 4, device=1, context=1)
        nsys.memcpy(10, 11, kind=10, device=1, srcContextId=1, dstContextId=2)
        nsys.memcpy(20, 21, kind=10, device=1, srcContextId=2, dst_device=1)
        trace = trace_of(nsys)
        assert rows(trace, "ops", "kind", "src_device", "dst_device")[-2:] == [
            ("p2p", 1, 3),
            ("p2p", 3, 1),
        ]
        assert remarks(trace) == (self.PLACED,)

    @pytest.mark.parametrize("kind", [0, 8])
    def test_device_copies_whose_contexts_are_of_two_gpus(self, one, kind):
        one.context(100, 1, 0)
        one.context(100, 2, 1)
        self._copies(one, kind)
        one.memcpy(30, 31, kind=kind, src_kind=2, dst_kind=2, srcContextId=1, dstContextId=1)
        trace = trace_of(one)
        assert rows(trace, "ops", "kind", "src_device", "dst_device") == [
            ("p2p", 0, 1),
            ("p2p", 1, 0),
            ("d2d", 0, 0),
        ]
        assert remarks(trace) == (self.PLACED,)

    def test_the_gpus_of_a_copy_come_before_its_contexts(self, one):
        one.context(100, 1, 6)
        one.context(100, 2, 7)
        one.memcpy(1, 2, kind=10, src_device=0, dst_device=1, srcContextId=1, dstContextId=2)
        trace = trace_of(one)
        assert rows(trace, "ops", "src_device", "dst_device") == [(0, 1)]
        assert remarks(trace) == ()

    def test_contexts_that_are_unknown_or_of_two_gpus_leave_the_ends_unknown(self, one):
        one.kernel(1, 2, device=3, context=1)
        one.kernel(1, 2, device=4, context=1)
        one.memcpy(5, 6, kind=10, device=3, context=9, srcContextId=1, dstContextId=8)
        one.memcpy(7, 8, kind=1, srcContextId=1, dstContextId=8)
        trace = trace_of(one)
        assert rows(trace, "ops", "kind", "src_device", "dst_device")[2:] == [
            ("p2p", None, None),
            ("h2d", None, 0),
        ]
        assert remarks(trace) == (self.UNKNOWN,)

    def test_one_end_may_be_known(self, one):
        one.context(100, 2, 5)
        one.memcpy(5, 6, kind=10, srcContextId=UNSET, dstContextId=2)
        trace = trace_of(one)
        assert rows(trace, "ops", "src_device", "dst_device") == [(None, 5)]
        assert remarks(trace) == (
            "1 copies between GPUs were placed by their CUDA contexts",
            self.UNKNOWN,
        )


def test_memory_on_the_host_that_copies_are_from_and_to(one: NsysBuilder) -> None:
    copies = (
        (1, 0, 2, "pageable"), (1, 1, 2, "pinned"), (2, 2, 1, "pinned"), (2, 2, 0, "pageable"),
        (1, 4, 2, "managed"), (8, 2, 2, None), (1, 7, 2, None), (11, 4, 2, "managed"),
        (13, 2, 2, "managed"),
    )  # fmt: skip
    for at, (kind, source, target, _) in enumerate(copies):
        one.memcpy(at, at + 1, kind=kind, src_kind=source, dst_kind=target)
    assert column(trace_of(one), "ops", "host_memory") == [told for *_, told in copies]
