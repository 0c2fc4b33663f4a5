"""Canonical tables of small PyTorch traces that were worked out by hand."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import polars as pl
import pytest
from kineto_helpers import PID, TID, WORKER, event, kernel, launch, text_of, trace_of, write
from source_helpers import column, rows

import tracekit as tk
from tracekit.analysis.calls import nccl_messages
from tracekit.analysis.communication import collective_calls
from tracekit.attribution import Rules, attribute
from tracekit.errors import (
    DamagedTraceError,
    InputError,
    MissingDataError,
    NotATraceError,
    UnsupportedTraceError,
)
from tracekit.model import OPS
from tracekit.sources import read
from tracekit.sources._kernel_names import short_name
from tracekit.sources.kineto import is_kineto
from tracekit.sources.kineto import read as read_kineto
from tracekit.support.spool import Workspace

GPU = {
    "id": 3, "name": "NVIDIA A100", "totalGlobalMem": 42297524224, "computeMajor": 8,
    "computeMinor": 0, "numSms": 108,
}  # fmt: skip


def _op(folder, *events, **around):
    return trace_of(folder, *events, **around).read("ops").row(0, named=True)


class TestCategories:
    @pytest.mark.parametrize(
        ("work", "call"),
        [
            ("kernel", "hip_runtime"),
            ("mtia_ccp_events", "mtia_runtime"),
            ("hpu_op", "cuda_driver"),
            ("kernel", "xpu_runtime"),
            ("kernel", "privateuse1_driver"),
            ("KERNEL", "Glow_Runtime"),
        ],
    )
    def test_devices_of_all_makers(self, tmp_path, work: str, call: str):
        gpu = kernel("gemm", 2.5, 1, 9) | {"cat": work}
        trace = trace_of(tmp_path, launch(1, 0.5, 9) | {"cat": call}, gpu)
        assert rows(trace, "ops", "kind", "correlation") == [("compute", 9)]
        assert trace.read("calls").height == 1
        assert not any("category" in text for text in trace.warnings)

    def test_what_is_not_known_is_told(self, tmp_path):
        trace = trace_of(tmp_path, kernel("k", 1, 1, 1), event("npu_op", "a", 1, 1))
        assert "1 events of the category 'npu_op' are not known and were left out" in trace.warnings
        with pytest.raises(MissingDataError, match="events of the category 'npu_op' are not known"):
            trace_of(tmp_path, event("npu_op", "a", 1, 1))

    def test_work_whose_process_or_other_gpu_is_not_recorded_is_told(self, tmp_path):
        """Merged traces of two processes; copies of AMD's profiler between two GPUs, or within."""
        copy = kernel("Memcpy DtoD (Device -> Device)", 5, 1, 2) | {"cat": "gpu_memcpy"}
        ops = kernel("k", 3, 1, 1), kernel("k", 4, 1, 1, device=1), copy
        trace = trace_of(tmp_path, launch(1, 1, 1), *ops)
        assert not {"copies", "calls"} & {word for text in trace.warnings for word in text.split()}
        both = launch(1, 1, 1), launch(2, 1, 2), launch(1, 1, 1, pid=200)
        trace = trace_of(tmp_path, *both, *ops, hip_runtime_version=60443483)
        within = "1 copies count as copies within a GPU: AMD's profiles do not name another one"
        assert within in trace.warnings
        (text,) = (text for text in trace.warnings if text.startswith("2 processes"))
        assert "all of it is taken to be of 100, and launches and stages may be wrong" in text

    def test_a_negative_duration_is_told(self, tmp_path):
        trace = trace_of(tmp_path, kernel("k", 5, -1, 1), kernel("k", 7, 1, 2))
        assert rows(trace, "ops", "start", "end") == [(0, 0), (2000, 3000)]
        assert "1 events end before they begin, and were taken to last 0 ns" in trace.warnings


class TestOps:
    def test_a_kernel(self, tmp_path):
        event = kernel("void a::b<int>(float*)", 2.5, 1.25, 9, device=3, **{"graph node id": 0})
        op = _op(tmp_path, launch(1, 0.5, 9), event)
        known = {name: value for name, value in op.items() if value is not None}
        assert known == {
            "op": 0, "report": 0, "process": 0, "device": 3, "context": 1, "stream": 7,
            "start": 1500, "end": 2750, "name": "void a::b<int>(float*)", "short_name": "b",
            "kind": "compute", "correlation": 9, "stage": "OTHER", "stage_source": "none",
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("grid", "block", "threads"),
        [
            ([512, 2, 1], [256, 1, 1], 262_144),
            ("[512, 2, 1]", "[256,1,1]", 262_144),
            ([512, 2, 1], None, None),
            ([512, 2], [256, 1, 1], None),
            ([0, 1, 1], [256, 1, 1], None),
            ([-1, 1, 1], [256, 1, 1], None),
            ([2.5, 1, 1], [256, 1, 1], None),
            ([4_294_967_295] * 3, [1024] * 3, None),
            (512, 256, None),
        ],
    )
    def test_with_how_many_threads_a_kernel_is_launched(self, tmp_path, grid, block, threads):
        given = {"grid": grid, "block": block}
        known = {name: value for name, value in given.items() if value is not None}
        op = _op(tmp_path, launch(1, 0.5, 9), kernel("k", 2.5, 1.25, 9, **known))
        assert op["launch_size"] == threads

    @pytest.mark.parametrize(
        ("call", "threads"),
        [
            ("cudaLaunchKernel", 229_632 * 256),
            ("hipLaunchKernel", 229_632 * 256),
            ("hipModuleLaunchKernel", 229_632 * 256),
            ("hipExtModuleLaunchKernel", 229_632),  # its grid counts threads
        ],
    )
    def test_what_a_grid_counts_depends_on_the_launch(self, tmp_path, call, threads):
        sized = {"grid": [229_632, 1, 1], "block": [256, 1, 1]}
        launched = [
            event("cuda_runtime", call, 1, 0.5, correlation=9),
            kernel("k", 2, 1, 9, **sized),
        ]
        plain = [launch(4, 0.5, 10), kernel("k", 5, 1, 10, **sized)]
        trace = trace_of(tmp_path, *launched, *plain, kernel("k", 7, 1, 11))
        assert rows(trace, "ops", "launch_size") == [(threads,), (229_632 * 256,), (None,)]

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("__amd_rocclr_copyBufferAligned.kd", "unknown"),
            ("__amd_rocclr_fillBufferAligned", "memset"),
            ("Cijk_Alik_Bljk_S_B_MT64x64x16", "compute"),
        ],
    )
    def test_copies_and_fills_that_are_kernels(self, tmp_path, name, kind):
        op = _op(tmp_path, launch(1, 0.5, 9), kernel(name, 2, 1, 9))
        assert (op["name"], op["kind"], op["bytes"]) == (name, kind, None)

    @pytest.mark.parametrize(
        ("name", "more", "kind", "copy_kind", "ends"),
        [
            ("Memcpy HtoD (Pageable -> Device)", {}, "h2d", "HtoD", (None, 0)),
            ("Memcpy HtoD (Pinned -> Device)", {}, "h2d", "HtoD", (None, 0)),
            ("Memcpy DtoH (Device -> Pinned)", {}, "d2h", "DtoH", (0, None)),
            ("Memcpy DtoD (Device -> Device)", {}, "d2d", "DtoD", (0, 0)),
            ("Memcpy HtoH (Pinned -> Pageable)", {}, "h2h", "HtoH", (None, None)),
            ("Memcpy DtoH (Device -> Device)", {}, "staged", "DtoH", (None, None)),
            ("Memcpy PtoP (Device -> Device)", {}, "p2p", "PtoP", (None, None)),
            ("Memcpy PtoP (Device -> Device)", {"fromDevice": 2, "toDevice": 5, "inDevice": 2},
             "p2p", "PtoP", (2, 5)),
            ("Memcpy Unknown (Pageable -> Device)", {}, "h2d", "Unknown", (None, 0)),
            ("Memcpy Unknown (Managed -> Device)", {}, "unknown", "Unknown", (None, None)),
            ("something", {}, "unknown", None, (None, None)),
        ],
    )  # fmt: skip
    def test_copies(self, tmp_path, name, more, kind, copy_kind, ends):
        copy = event("gpu_memcpy", name, 5, 2, pid=0, tid=7, device=0, stream=7, bytes=64, **more)
        op = _op(tmp_path, copy)
        assert (op["kind"], op["copy_kind"], op["bytes"]) == (kind, copy_kind, 64)
        assert (op["src_device"], op["dst_device"]) == ends
        assert op["name"] == op["short_name"] == f"[CUDA memcpy {copy_kind or 'Unknown'}]"
        side = {"h2d": 0, "d2h": 1}.get(kind)
        memory = None if side is None else re.findall(r"\w+", name.partition("(")[2])[side].lower()
        assert op["host_memory"] == memory

    def test_a_memset(self, tmp_path):
        op = _op(tmp_path, event("gpu_memset", "Memset (Device)", 5, 0, device=1, bytes=8))
        assert (op["kind"], op["name"], op["bytes"]) == ("memset", "[CUDA memset]", 8)
        assert (op["device"], op["dst_device"], op["start"], op["end"]) == (1, 1, 0, 0)

    @pytest.mark.parametrize("cat", ["Kernel", "kernel", "concurrent_kernel"])
    def test_old_traces_name_device_and_stream_as_process_and_thread(self, tmp_path, cat):
        op = _op(tmp_path, event(cat, "k", 5, 1, pid=2, tid="stream 20"))
        assert (op["device"], op["stream"], op["kind"]) == (2, 20, "compute")

    def test_old_categories(self, tmp_path):
        trace = trace_of(
            tmp_path,
            event("Operator", "aten::add", 0, 9),
            event("Runtime", "cudaLaunchKernel", 1, 1, correlation=1),
            event("Kernel", "k", 3, 1, device=0, correlation=1),
            event("Memcpy", "Memcpy HtoD (Pinned -> Device)", 4, 1, device=0),
            event("Memset", "Memset (Device)", 5, 1, device=0),
        )
        assert column(trace, "ops", "kind") == ["compute", "h2d", "memset"]
        assert column(trace, "calls", "name") == ["cudaLaunchKernel"]
        assert column(trace, "ranges", "name") == ["aten::add"]

    def test_other_categories_and_phases_are_none(self, tmp_path):
        shown = event("gpu_user_annotation", "## forward ##", 1, 5, pid=0, tid=7)
        flow = {"ph": "s", "id": 1, "pid": 0, "tid": 7, "ts": 1, "cat": "ac2g", "name": "ac2g"}
        trace = trace_of(
            tmp_path, shown, flow, kernel("k", 1, 1, 1), event("python_function", "f", 1, 1)
        )
        assert [trace.read(name).height for name in ("ops", "calls", "ranges")] == [1, 0, 0]
        contents = dict(trace.read("contents").select("feature", "rows").rows())
        assert contents["Python functions"] == 1
        assert contents["kernels"] == 1

    def test_what_has_no_time_or_device_is_counted(self, tmp_path):
        trace = trace_of(
            tmp_path,
            kernel("k", 1, 1, 1),
            kernel("k", None, 1, 2),
            kernel("open", 1, None, 3),
            event("kernel", "k", 1, 1, pid="GPU", device=-1),
            event("cpu_op", "op", 1, 1, tid="main"),
        )
        assert trace.read("ops").height == 1
        told = [text for text in trace.warnings if "left out" in text]
        assert told == [
            "2 events have no valid times and were left out",
            "1 GPU ops have no device and were left out",
            "1 calls and operators have no thread and were left out",
        ]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("volta_sgemm_128x64_nn", "volta_sgemm_128x64_nn"),
        ("void at::native::f<4, g<int>(a)::{lambda(int)#1}>(int, h<1>)", "f"),
        ("(anonymous namespace)::f(int)", "f"),
        ("void (anonymous namespace)::f<(bool)1>(int)", "f"),
        ("a::b::operator()(int) const", "operator"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long)",
         "ncclKernel_AllReduce_RING_LL_Sum_float"),
        ("<<<", "<<<"),
        ("", ""),
    ],
)  # fmt: skip
def test_short_names(name, short):
    assert short_name(name) == short


class TestHost:
    def test_calls(self, tmp_path):
        trace = trace_of(
            tmp_path,
            kernel("k", 9, 1, 7),
            launch(5, 2.001, 7, tid=WORKER),
            event("cuda_driver", "cuLaunchKernel_v2", 3, 1, correlation=8),
            launch(1, None, 9),
        )
        assert rows(trace, "calls", "call", "thread", "start", "end", "name", "correlation") == [
            (0, 0, 2000, 3000, "cuLaunchKernel", 8),
            (1, 1, 4000, 6001, "cudaLaunchKernel", 7),
        ]

    def test_ranges_carry_sequence_numbers_in_their_names(self, tmp_path):
        trace = trace_of(
            tmp_path,
            event("user_annotation", "ProfilerStep#4", 0, 20, Sequence_number=1),
            event("cpu_op", "aten::mm", 1, 5, Sequence_number=7),
            event("cpu_op", "aten::t", 2, 1, Sequence_number=-1),
            event("cpu_op", "MmBackward0", 9, 5, tid=WORKER, Sequence_number=7),
        )
        assert rows(trace, "ranges", "thread", "name", "start", "end", "style", "open") == [
            (0, "ProfilerStep#4", 0, 20000, "push_pop", False),
            (0, "aten::mm, seq = 7", 1000, 6000, "push_pop", False),
            (0, "aten::t", 2000, 3000, "push_pop", False),
            (1, "MmBackward0, seq = 7", 9000, 14000, "push_pop", False),
        ]

    def test_a_range_without_an_end_was_open(self, tmp_path):
        trace = trace_of(tmp_path, event("cpu_op", "a", 2, None), event("cpu_op", "b", 5, 1))
        assert rows(trace, "ranges", "name", "start", "end", "open") == [
            ("a", 0, 4000, True), ("b", 3000, 4000, False),
        ]  # fmt: skip

    def test_a_negative_length_is_none(self, tmp_path):
        trace = trace_of(tmp_path, event("cpu_op", "a", 2, -1))
        assert rows(trace, "ranges", "start", "end") == [(0, 0)]

    def test_processes_and_threads_have_the_names_that_were_given_last(self, tmp_path):
        def name(what, text, pid=PID, tid=TID):
            return {
                "ph": "M",
                "name": what,
                "pid": pid,
                "tid": tid,
                "ts": 1,
                "args": {"name": text},
            }

        trace = trace_of(
            tmp_path,
            name("process_name", "python3.10", tid=0),
            name("process_name", "python", pid=0, tid=0),
            name("thread_name", "stream 7 ", pid=0, tid=7),
            name("thread_name", "thread 102 (pt_main_thread)", tid=WORKER),
            name("thread_name", "thread 102 (pt_autograd_0)", tid=WORKER),
            launch(1, 1, 1),
            launch(2, 1, 2, tid=WORKER),
            launch(3, 1, 2, tid=-5),
            kernel("k", 3, 1, 1),
        )
        assert rows(trace, "processes", "process", "pid", "name") == [(0, PID, "python3.10")]
        assert rows(trace, "threads", "thread", "process", "tid", "name") == [
            (0, 0, -5, None), (1, 0, TID, None), (2, 0, WORKER, "pt_autograd_0"),
        ]  # fmt: skip

    def test_gpu_work_is_of_the_process_that_makes_most_calls(self, tmp_path):
        trace = trace_of(
            tmp_path,
            launch(1, 1, 1, pid=50), launch(2, 1, 2, pid=60), launch(3, 1, 3, pid=60),
            kernel("k", 5, 1, 3),
        )  # fmt: skip
        assert rows(trace, "processes", "process", "pid") == [(0, 50), (1, 60)]
        assert rows(trace, "ops", "process") == [(1,)]
        assert rows(trace, "calls", "process", "correlation") == [(0, 1), (1, 2), (1, 3)]


def _record(ts, name, **more):
    given = {"Collective name": name, "dtype": "Float", "Group size": 4,
             "Process Group Name": "0", "Process Group Ranks": "[0, 2, 4, 6]", **more}  # fmt: skip
    return event("cpu_op", "record_param_comms", ts, 5, **given)


class TestCollectives:
    @pytest.mark.parametrize(
        ("name", "more", "function", "collective", "size"),
        [
            ("allreduce", {"In msg nelems": 10, "Out msg nelems": 10}, "ncclAllReduce",
             "all_reduce", 40),
            ("allreduce_coalesced", {"In msg nelems": 3, "dtype": "Half"}, "ncclAllReduce",
             "all_reduce", 6),
            ("_allgather_base", {"In msg nelems": 10, "Out msg nelems": 40}, "ncclAllGather",
             "all_gather", 40),
            ("_allgather_base", {"In msg nelems": 10, "Out msg nelems": 41}, "ncclAllGather",
             "all_gather", None),
            ("all_gather_into_tensor_coalesced", {"In msg nelems": 1, "dtype": "Long"},
             "ncclAllGather", "all_gather", 8),
            ("_reduce_scatter_base", {"In msg nelems": 40, "Out msg nelems": 10,
             "dtype": "BFloat16"}, "ncclReduceScatter", "reduce_scatter", 20),
            ("broadcast", {"In msg nelems": 7, "dtype": "Byte"}, "ncclBroadcast", "broadcast", 7),
            ("_reduce_oop", {"In msg nelems": 7}, "ncclReduce", "reduce", 28),
            ("all_to_all", {"In msg nelems": 40, "In split size": "[]", "Out split size": "[]"},
             "ncclAllToAll", "all_to_all", 40),
            ("all_to_all", {"In msg nelems": 41}, "ncclAllToAll", "all_to_all", None),
            ("all_to_allv", {"In msg nelems": 40, "In split size": "[1, 9, 10, 20]"},
             "ncclAllToAll", "all_to_all", None),
            ("send", {"In msg nelems": 5, "Rank": 2}, "ncclSend", "send_recv", 20),
            ("recv", {"In msg nelems": 0, "Out msg nelems": 5, "Rank": 1}, "ncclRecv",
             "send_recv", 20),
            ("allreduce", {"In msg nelems": 10, "dtype": "Unheard"}, "ncclAllReduce", "all_reduce",
             None),
            ("allreduce", {"In msg nelems": -1}, "ncclAllReduce", "all_reduce", None),
            ("allreduce", {"In msg nelems": 1 << 63}, "ncclAllReduce", "all_reduce", None),
        ],
    )  # fmt: skip
    def test_records_with_arguments_are_calls_of_nccl(
        self, tmp_path, name, more, function, collective, size
    ):
        trace = trace_of(tmp_path, _record(1, name, **more))
        assert rows(trace, "ranges", "name", "domain") == [(function, "NCCL")]
        calls = nccl_messages(trace).select("collective", "message_bytes", "communicator").rows()
        assert calls == [(collective, size, "pg 0 [0, 2, 4, 6]")]

    @pytest.mark.parametrize("more", [{"Collective name": "barrier"}, {"Collective name": None}])
    def test_other_records_stay_what_they_are(self, tmp_path, more):
        trace = trace_of(tmp_path, _record(1, "x", **more))
        assert rows(trace, "ranges", "name", "domain", "payload") == [
            ("record_param_comms", None, None)
        ]

    def test_operators_keep_their_arguments_but_views_do_not(self, tmp_path):
        dims = {"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]}
        more = {"Concrete Inputs": ["", ""]}
        trace = trace_of(
            tmp_path,
            event("cpu_op", "aten::mm", 1, 1, **dims, **more),
            event("cpu_op", "aten::view", 3, 1, **dims),
            event("cpu_op", "aten::mm", 5, 1),
            event("Operator", "aten::bmm", 7, 1, **{"Input dims": [[1, 2, 3], [1, 3, 4]]}),
        )
        first, *others = column(trace, "ranges", "payload")
        held = {key: json.loads(value) for key, value in json.loads(first).items()}
        assert held == dims | more
        assert others[:2] == [None, None]
        assert json.loads(json.loads(others[2])["Input Dims"]) == [[1, 2, 3], [1, 3, 4]]

    def test_the_rank_in_the_group_and_the_number_of_the_collective(self, tmp_path):
        sized = {"In msg nelems": 1}
        trace = trace_of(
            tmp_path,
            _record(1, "allreduce", Seq=12, **sized),
            # A place in the group, as NCCL's; "Dst Rank" is that place's rank in the job.
            _record(7, "send", Seq=3, Rank=1, **{"Dst Rank": 2}, **sized),
            _record(9, "broadcast", Seq=13, Rank=3, dtype="Half", **sized),
            _record(20, "allreduce", **{**sized, "Process Group Ranks": "[0, 2, ..., 6]"}),
            _record(30, "allreduce", **{**sized, "Process Group Ranks": "[1, 3]"}),
            distributedInfo={"backend": "nccl", "rank": 4, "world_size": 8},
        )
        calls = nccl_messages(trace).select("rank", "sequence", "peer", "root", "element_type")
        assert calls.rows() == [
            (2, 12, None, None, "float"), (2, None, 1, None, "float"), (2, 13, None, 3, "half"),
            (None, None, None, None, "float"), (None, None, None, None, "float"),
        ]  # fmt: skip
        payload = json.loads(column(trace, "ranges", "payload")[0])
        assert payload["No. of ranks"] == 4

    def test_the_kernel_of_a_call_is_found(self, tmp_path):
        path = write(tmp_path / "t.json", text_of(
            _record(1, "allreduce", **{"In msg nelems": 1000}), launch(2, 1, 5),
            kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", 9, 4, 5),
        ))  # fmt: skip
        run = tk.ingest(path, store=tmp_path / "store")[0]
        found = collective_calls(run.trace).select(
            "collective", "message_bytes", "communicator", "rank"
        )
        assert found.rows() == [("all_reduce", 4000, "pg 0 [0, 2, 4, 6]", None)]

    def test_what_the_program_calls_a_group(self, tmp_path):
        """Collectives are listed by it; one communicator with two descriptions has none."""
        tensor = {"Process Group Description": "mesh_tp", "In msg nelems": 1000}
        other = {"Process Group Name": "3", "In msg nelems": 10}
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)"
        path = write(tmp_path / "t.json", text_of(
            _record(1, "allreduce", **tensor), launch(2, 1, 5), kernel(name, 9, 4, 5),
            _record(20, "allreduce", **tensor), launch(21, 1, 6), kernel(name, 29, 4, 6),
            _record(40, "allreduce", **other), launch(41, 1, 7), kernel(name, 49, 4, 7),
            _record(60, "allreduce", **other, **{"Process Group Description": "mesh_dp"}),
            _record(80, "allreduce", **other, **{"Process Group Description": "mesh_pp"}),
        ))  # fmt: skip
        run = tk.ingest(path, store=tmp_path / "store")[0]
        found = run.collectives(by="group,bytes").select("group", "bytes", "count")
        assert found.rows() == [("mesh_tp", 4000, 2), (None, 40, 1)]


class TestReport:
    def test_what_it_says_of_itself(self, tmp_path):
        trace = trace_of(tmp_path, kernel("k", 1, 1, 1))
        report = trace.read("reports").row(0, named=True)
        assert {name: report[name] for name in ("file", "format", "product", "schema_version")} == {
            "file": "t.json", "format": "PyTorch Kineto JSON", "product": "PyTorch",
            "schema_version": "1",
        }  # fmt: skip
        assert report["size"] == (tmp_path / "t.json").stat().st_size
        assert report["host"] is None

    @pytest.mark.parametrize(
        ("ts", "base", "start"),
        [
            ("1694128201426602.125", None, 1694128201426602125),
            ("4458676388068.751", 1711964646000000000, 1716423322388068751),
            ("1694128201426602.125", 1711964646000000000, 1694128201426602125),
            ("12.5", None, None),
            ("12.5", "soon", None),
        ],
    )
    def test_times_are_from_the_first_event(self, tmp_path, ts, base, start):
        around = {} if base is None else {"baseTimeNanoseconds": base}
        text = text_of(kernel("k", 1.0, 1, 1), **around).replace('"ts": 1.0', f'"ts": {ts}')
        trace = read(write(tmp_path / "t.json", text))
        assert rows(trace, "reports", "session_start") == [(start,)]
        assert rows(trace, "ops", "start", "end") == [(0, 1000)]

    def test_the_profilers_own_span_is_the_recording(self, tmp_path):
        span = event("Trace", "PyTorch Profiler (0)", 10, 90, pid="Spans", tid="PyTorch Profiler")
        trace = trace_of(tmp_path, kernel("k", 15, 5, 1), span)
        assert rows(trace, "reports", "duration") == [(90_000,)]
        assert rows(trace, "ops", "start") == [(5000,)]

    def test_a_recording_that_ends_before_its_events_has_no_known_length(self, tmp_path):
        trace = trace_of(
            tmp_path, kernel("k", 15, 500, 1), event("Trace", "P", 10, 90, pid="Spans")
        )
        assert rows(trace, "reports", "duration") == [(None,)]

    def test_gpus_are_those_that_ops_name(self, tmp_path):
        copy = event("gpu_memcpy", "Memcpy PtoP (Device -> Device)", 5, 1, device=3, fromDevice=3,
                     toDevice=4)  # fmt: skip
        others = {**GPU, "id": 0}, {"id": "x"}, 5
        trace = trace_of(tmp_path, copy, deviceProperties=[GPU, *others])
        columns = ("device", "name", "memory_bytes", "sm_count", "compute_capability", "active",
                   "identity")  # fmt: skip
        assert rows(trace, "devices", *columns) == [
            (3, "NVIDIA A100", 42297524224, 108, "8.0", True, "ordinal"),
            (4, None, None, None, None, False, "unknown"),
        ]

    @pytest.mark.parametrize(
        ("sms", "described", "identity"),
        [
            ((304, 304), ("AMD Instinct MI300X", 304), "assumed"),
            ((304, 38), (None, None), "unknown"),
        ],
    )
    def test_amd_numbers_ops_and_descriptions_apart(self, tmp_path, sms, described, identity):
        """Ops have the number of the driver, which counts CPUs: described only where all agree."""
        given = [{"id": n, "name": "AMD Instinct MI300X", "numSms": count}
                 for n, count in enumerate(sms)]  # fmt: skip
        told = {"deviceProperties": given, "hip_runtime_version": 60443483}
        trace = trace_of(tmp_path, kernel("k", 1, 1, 1, device=9), **told)
        assert rows(trace, "devices", "device", "name", "sm_count", "identity") == [
            (9, *described, identity),
        ]

    def test_a_gpu_with_an_empty_name_has_none(self, tmp_path):
        given = {"deviceProperties": [{"id": 0, "name": "", "numSms": 304}]}
        trace = trace_of(tmp_path, kernel("k", 1, 1, 1), **given)
        assert rows(trace, "devices", "name", "sm_count") == [(None, 304)]

    @pytest.mark.parametrize(
        "around",
        [
            {"deviceProperties": None},
            {"deviceProperties": [{"id": 0, "numSms": "x", "totalGlobalMem": -1, "name": 5}]},
            {"distributedInfo": [1], "schemaVersion": [2]},
            {"distributedInfo": {"rank": "0", "world_size": True}, "baseTimeNanoseconds": [1]},
        ],
    )
    def test_odd_descriptions_cost_only_what_they_say(self, tmp_path, around):
        trace = trace_of(tmp_path, kernel("k", 1, 1, 1), **around)
        assert rows(trace, "devices", "device", "sm_count", "name") == [(0, None, None)]
        assert rows(trace, "reports", "rank", "ranks") == [(None, None)]

    def test_the_rank_and_how_many_there_are(self, tmp_path):
        told = {"distributedInfo": {"rank": 4, "world_size": 8}}
        trace = trace_of(tmp_path, kernel("k", 1, 1, 1), **told)
        assert rows(trace, "reports", "rank", "ranks") == [(4, 8)]

    def test_what_is_missing_is_said(self, tmp_path):
        first, second = trace_of(tmp_path, kernel("k", 1, 1, 1)).warnings
        assert first.startswith("no API calls were recorded, so no op's launch")
        assert second.startswith("no operators or annotations were recorded, so only structure")
        assert "ProfilerActivity.CPU" in second
        assert trace_of(tmp_path, event("cpu_op", "a", 1, 1)).warnings[0].startswith("no GPU work")


class TestFiles:
    @pytest.mark.parametrize("name", ["t.json", "t.pt.trace.json.gz", "holiday.jpg"])
    def test_is_recognised_by_its_content(self, tmp_path, name):
        path = write(tmp_path / name, text_of(kernel("k", 1, 1, 1)))
        assert is_kineto(path)
        assert read(path).read("ops").height == 1

    def test_gzipped_or_not_it_is_the_same(self, tmp_path):
        events = [kernel("k", n, 1, n) for n in range(50)] + [launch(n, 1, n) for n in range(50)]
        plain = trace_of(tmp_path, *events)
        packed = read(write(tmp_path / "t.json.gz", text_of(*events)))
        for name in ("ops", "calls", "ranges", "processes", "threads", "devices"):
            assert plain.read(name).equals(packed.read(name))

    @pytest.mark.parametrize(
        "content",
        [b"", b"\x1f\x8b", b"[1]", b'{"a": 1}', gzip.compress(b"SQLite format 3\x00", mtime=0)],
    )
    def test_is_not_recognised_in_other_files(self, tmp_path, content):
        (tmp_path / "t.json").write_bytes(content)
        assert not is_kineto(tmp_path / "t.json")

    @pytest.mark.parametrize("kernels", [2, 40_000], ids=["small", "scanned"])
    def test_paths_of_windows_whose_backslashes_are_not_escaped(self, tmp_path, kernels):
        r"""A string with an invalid escape escapes nothing: its ``\n`` is no line end."""
        events = [kernel(r"C:|U|new|utf.py(1): f", 1, 1, 1), kernel(r"a\"b", 2, 1, 2)]
        events += [kernel("usual", n, 1, n) for n in range(3, kernels)]
        text = text_of(*events, traceName=r"C:|U|t.json", deviceProperties=[{"id": 0, "name": "A"}])
        run = read(write(tmp_path / "t.json", text.replace("|", "\\")))
        assert run.read("ops")["name"].cast(str)[:2].to_list() == [
            r"C:\U\new\utf.py(1): f", r"a\"b",
        ]  # fmt: skip
        assert run.read("devices")["name"].to_list() == ["A"]

    def test_jaxs_chrome_trace_is_refused_with_what_to_give(self, tmp_path):
        """Its events have no category."""
        jax = {"ph": "X", "name": "fusion", "pid": 1, "tid": 13, "ts": 1, "dur": 2}
        with pytest.raises(MissingDataError) as caught:
            read(write(tmp_path / "t.json", text_of(jax)))
        assert str(caught.value.hint).endswith("of JAX give the .xplane.pb beside it")

    @pytest.mark.parametrize(
        ("text", "error", "says"),
        [
            (text_of(), MissingDataError, "no GPU work and no operators"),
            (text_of({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "x"}}),
             MissingDataError, "no GPU work and no operators"),
            (text_of(launch(1, 1, 1)), MissingDataError, "no GPU work and no operators"),
            (text_of({"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1}),
             MissingDataError, "; 1 GPU ops have no device and were left out"),
            ('{"schemaVersion": 1, "x": []}', NotATraceError, "no traceEvents"),
            (text_of(kernel("k", 1, 1, 1))[:-30], DamagedTraceError, "cut short"),
            (text_of(kernel("k", 1, 1, 1))[:-150], DamagedTraceError, "cut short"),
            (text_of(kernel("k", 1, 1, 1)).replace('"dur"', "dur"), DamagedTraceError, "at byte"),
            ('{"x": 1}', UnsupportedTraceError, "JSON, but not a PyTorch trace"),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("suffix", [".json", ".gz"])
    def test_is_refused_with_the_reason(self, tmp_path, text, error, says, suffix):
        path = write(tmp_path / f"t{suffix}", text)
        with pytest.raises(InputError) as caught:
            read(path)
        assert type(caught.value) is error
        assert says in caught.value.what
        assert str(path) in caught.value.what

    def test_progress_reaches_the_size_of_the_file(self, tmp_path):
        seen = []
        path = write(tmp_path / "t.json", text_of(kernel("k", 1, 1, 1)))
        read_kineto(path, Workspace(), lambda *step: seen.append(step))
        size = path.stat().st_size
        assert seen == sorted(seen, key=lambda step: step[1])
        assert seen[0] == ("read events", 0, size)
        assert seen[-1] == ("read events", size, size)

    def test_events_out_of_order_are_put_in_order(self, tmp_path):
        trace = trace_of(tmp_path, *(kernel("k", ts, 1, ts) for ts in (5, 1, 9, 3)))
        assert column(trace, "ops", "correlation") == [1, 3, 5, 9]
        assert trace.read("ops").schema == OPS.schema
        assert trace.read("ops").select(pl.col("start").is_sorted()).item()


NO_LENGTHS = ("NaN", "Infinity", "-Infinity", "inf", "1e400", '"NaN"', '"long"', "1e17", "[]")


@pytest.mark.parametrize("length", NO_LENGTHS)
def test_events_whose_length_is_none_are_left_out(length: str, tmp_path: Path) -> None:
    faulty = [
        event("cpu_op", "aten::mm", 5, 77777), kernel("gemm", 6, 77777, 1), launch(5, 77777, 1),
    ]  # fmt: skip
    text = text_of(event("cpu_op", "aten::add", 1, 2), kernel("add", 3, 1, 2), *faulty)
    trace = read(write(tmp_path / "t.json", text.replace("77777", length)))
    assert trace.read("ranges")["name"].to_list() == ["aten::add"]
    assert trace.read("ops").height == 1
    assert trace.read("calls").is_empty()
    assert "3 events have no valid times and were left out" in trace.warnings


def test_many_events_without_valid_length_take_no_room(tmp_path: Path) -> None:
    events = [event("cpu_op", "aten::mm", number, 77777) for number in range(3000)]
    text = text_of(kernel("add", 3, 1, 2), *events).replace("77777", "NaN")
    trace = attribute(read(write(tmp_path / "t.json", text)), Rules.load())
    assert trace.read("paths").is_empty()
    assert "3,000 events have no valid times and were left out" in trace.warnings
