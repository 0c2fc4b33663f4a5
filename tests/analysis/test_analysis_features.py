"""What a run can be asked, by command and by kind of data, and how the rest is recorded."""

from __future__ import annotations

import itertools
import json
from typing import Any

import polars as pl
import pytest
from trace_builder import TraceBuilder

from tracekit.analysis import features
from tracekit.analysis.facts import RECORDERS, REQUIREMENTS
from tracekit.analysis.overview._features import CAPABILITIES
from tracekit.model import TABLES, Trace

COLUMNS = ("command", "feature", "available", "found", "record_with")
Row = tuple[str, str, str | None]


def told(trace: Trace) -> dict[tuple[str | None, str], Row]:
    """Return availability, what was found, and how to record it, by command and feature."""
    table = features(trace)
    assert table.schema == dict.fromkeys(COLUMNS, pl.String())
    rows = {(command, feature): tuple(rest) for command, feature, *rest in table.rows()}
    assert len(rows) == table.height
    return rows  # type: ignore[return-value]


def with_rows(trace: Trace, **tables: list[dict[str, Any]]) -> Trace:
    frames = {
        name: pl.DataFrame(rows, infer_schema_length=None, schema_overrides=_types(name, rows))
        for name, rows in tables.items()
    }
    return trace.with_tables(frames)


def _types(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: dtype for key, dtype in TABLES[name].schema.items() if key in rows[0]}


def report(number: int, kind: str, **more: Any) -> dict[str, Any]:
    return {"report": number, "file": f"{number}.trace", "format": kind, "size": 1} | more


def collectives(*devices: int) -> TraceBuilder:
    builder = TraceBuilder()
    for device in devices:
        builder.op("ncclAllReduce", 5, kind="collective", device=device)
    return builder


class TestNothing:
    def test_nothing_can_be_said_of_nothing(self) -> None:
        rows = told(Trace.of({}))
        assert {available for available, _, _ in rows.values()} == {"no"}
        assert all(hint for _, _, hint in rows.values())

    def test_without_reports_every_recorder_is_named(self) -> None:
        _, found, hint = told(Trace.of({}))["breakdown", "time by stage"]
        assert found == "unknown for all GPU busy time"
        assert hint is not None
        assert [each for each in ("nsys: ", "nvprof: ", "torch.profiler: ") if each in hint] == [
            "nsys: ", "nvprof: ", "torch.profiler: ",
        ]  # fmt: skip


class TestRecorders:
    """Hints name what recorded the run, and nothing else."""

    @pytest.mark.parametrize(
        ("recorded", "hint"),
        [
            ("nsys SQLite", "nsys profile -t cuda, without trimming the export"),
            ("nsys report", "nsys profile -t cuda, without trimming the export"),
            ("nvprof SQLite", "nvprof --profile-api-trace all -o run.nvvp PROGRAM"),
            ("nvprof CSV", "nvprof --profile-api-trace all -o run.nvvp PROGRAM"),
            (
                "PyTorch Kineto JSON",
                "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
            ),
        ],
    )
    def test_of_one(self, recorded: str, hint: str, builder: TraceBuilder) -> None:
        builder.op("gemm")
        trace = with_rows(builder.trace(), reports=[report(0, recorded)])
        assert told(trace)[None, "launching calls"] == (
            "no", "known of 0.0 % of launched ops", hint,
        )  # fmt: skip

    def test_of_two_in_one_run(self) -> None:
        reports = [report(0, "nsys SQLite"), report(1, "PyTorch Kineto JSON")]
        _, _, hint = told(with_rows(Trace.of({}), reports=reports))[
            "breakdown", "time by iteration"
        ]
        assert hint == (
            "nsys: NVTX ranges `step N` around each training step, or --iteration REGEX; "
            "torch.profiler: profiler.step() in each training step, or --iteration REGEX"
        )

    def test_what_the_recorder_cannot_record_names_one_that_can(self) -> None:
        rows = told(with_rows(Trace.of({}), reports=[report(0, "nvprof SQLite")]))
        counters = rows["links", "bytes against counters"][2]
        wanted = "nsys profile --gpu-metrics-devices=all --nic-metrics=true"
        assert counters == f"not recorded by it; use nsys: {wanted}"
        assert "nvidia-smi" in str(rows["memory", "memory before and in training"][2])
        # Samples of nvidia-smi can be given to `memory` alone.
        assert "nvidia-smi" not in str(rows["compare", "memory"][2])


class TestDegrees:
    def test_shares(self, builder: TraceBuilder) -> None:
        builder.iteration(0, 0, 50)
        builder.op("gemm", 5, start=10, end=40, stage="FP", stage_source="nvtx", call=0)
        builder.op("other", start=40, end=70)
        rows = told(builder.trace())
        assert rows["breakdown", "time by stage"][:2] == (
            "partly", "known of 50.0 % of GPU busy time",
        )  # fmt: skip
        assert rows[None, "launching calls"][:2] == (
            "partly", "known of 50.0 % of launched ops",
        )  # fmt: skip
        assert rows["breakdown", "time by iteration"] == ("yes", "1 iteration", None)

    def test_no_call_launches_migrations_of_unified_memory(self, builder: TraceBuilder) -> None:
        builder.op("gemm", 5, call=0)
        builder.op("copy", start=40, kind="h2d", copy_kind="Unified HtoD", correlation=None)
        assert told(builder.trace())[None, "launching calls"] == (
            "yes", "known of 100.0 % of launched ops", None,
        )  # fmt: skip
        assert builder.attributed().warnings == ()

    @pytest.mark.parametrize(
        ("known", "said"),
        [(9995, ">99.9 %"), (9994, "99.9 %"), (10000, "100.0 %"), (1, "0.0 %")],
    )
    def test_what_is_not_quite_all_does_not_read_as_all(
        self, known: int, said: str, builder: TraceBuilder
    ) -> None:
        builder.op("known", 0, start=0, end=known, stage="FP", stage_source="nvtx")
        builder.op("unknown", 0, start=known, end=10000)
        available, found, _ = told(builder.trace())["breakdown", "time by stage"]
        assert found == f"known of {said} of GPU busy time"
        assert available == ("yes" if known >= 9995 else "partly")

    def test_stages_on_the_host_where_there_is_no_gpu_work(self, builder: TraceBuilder) -> None:
        builder.range(0, 9, "forward", stage="FP")
        row = told(builder.trace())["breakdown", "time by stage"]
        assert row[:2] == ("partly", "of ranges on the host: no GPU work was recorded")

    def test_the_least_of_two_needs_counts(self, builder: TraceBuilder) -> None:
        builder.range(0, 9, "forward")
        builder.op("gemm")
        available, found, hint = told(builder.trace())["breakdown", "time by range"]
        assert (available, found) == ("no", "1 range, known of 0.0 % of launched ops")
        assert "NVTX ranges in the program" not in str(hint)

    def test_what_did_not_run_is_not_missing(self, builder: TraceBuilder) -> None:
        builder.op("gemm", 5)
        rows = told(builder.trace())
        assert rows["collectives", "time by operation"] == ("none", "no collectives ran", None)
        assert rows["links", "bytes of NCCL"] == ("none", "no collectives ran", None)
        assert rows["links", "bytes of copies between GPUs"] == (
            "none", "no copies between GPUs ran", None,
        )  # fmt: skip

    @pytest.mark.parametrize("kind", ["p2p", "staged"])
    def test_copies_between_gpus(self, kind: str, builder: TraceBuilder) -> None:
        builder.op("copy", 5, kind=kind)
        rows = told(builder.trace())
        row = rows["links", "bytes of copies between GPUs"]
        assert row == ("yes", "1 copy between GPUs", None)
        late = rows["stragglers", "which rank is late, and what it costs"]
        assert late[:2] == ("partly", "no collectives ran, 1 copy between GPUs")


class TestCollectives:
    def test_sizes_that_no_payload_tells(self) -> None:
        rows = told(collectives(0, 1).trace())
        assert rows["collectives", "time by operation"] == ("yes", "2 collective kernels", None)
        available, found, hint = rows["collectives", "sizes and bandwidths"]
        assert (available, found) == ("no", "sizes of 0 of 0 calls of NCCL and MPI")
        assert "--nccl-log" in str(hint)

    def test_sizes_that_some_payloads_tell(self) -> None:
        builder = collectives(0, 1)
        for start, payload in ((0, json.dumps({"Message size [bytes]": 8})), (20, None)):
            builder.range(start, start + 9, "ncclAllReduce", domain="NCCL", payload=payload)
        found = told(builder.trace())["links", "bytes of NCCL"]
        assert found[:2] == ("partly", "sizes of 1 of 2 calls of NCCL and MPI")

    @pytest.mark.parametrize(
        ("devices", "available", "found"),
        [((0,), "no", "one participant"), ((0, 1, 2), "yes", "3 participants")],
    )
    def test_participants(self, devices: tuple[int, ...], available: str, found: str) -> None:
        row = told(collectives(*devices).trace())["collectives", "waiting and stragglers"]
        assert row[:2] == (available, found)
        assert (row[2] is None) == (available == "yes")

    def test_participants_beside_those_that_the_communicator_has(self) -> None:
        builder = collectives(0, 1)
        made = json.dumps({"No. of ranks": 4, "NCCL communicator ID": 1, "Rank": 0})
        builder.range(0, 9, "ncclCommInitRank", domain="NCCL", payload=made)
        row = told(builder.trace())["collectives", "waiting and stragglers"]
        assert row[:2] == ("partly", "2 participants of 4")
        trace = with_rows(collectives(0, 1).trace(), reports=[report(0, "PyTorch", ranks=4)])
        assert told(trace)["collectives", "waiting and stragglers"][:2] == row[:2]

    def test_participants_on_two_clocks(self) -> None:
        reports = [report(n, "nsys SQLite", clock=f"host {n}") for n in range(2)]
        trace = with_rows(collectives(0, 1).trace(), reports=reports)
        row = told(trace)["collectives", "waiting and stragglers"]
        assert row[:2] == ("partly", "2 participants, on 2 clocks")

    def test_calls_of_mpi(self) -> None:
        call = {
            "report": 0, "thread": 0, "start": 1, "end": 2, "library": "mpi",
            "name": "MPI_Allreduce", "group": "collective",
        }  # fmt: skip
        host = [call | {"process": 0, "bytes": 8}, call | {"process": 1, "bytes": None}]
        rows = told(with_rows(Trace.of({}), host=host))
        assert rows["collectives", "time by operation"][1] == "2 collective calls of MPI"
        assert rows["latency", "collectives by size"][:2] == (
            "partly", "sizes of 1 of 2 calls of NCCL and MPI",
        )  # fmt: skip
        assert rows["collectives", "waiting and stragglers"][:2] == ("yes", "2 participants")


class TestMachines:
    def devices(self, *names: str | None) -> Trace:
        rows = [
            {"device": n, "report": 0, "name": name, "active": True, "identity": "device_table"}
            for n, name in enumerate(names)
        ]
        return with_rows(Trace.of({}), devices=rows)

    def test_recognised_assumed_or_none(self) -> None:
        sxm = ["NVIDIA A100-SXM4-80GB"] * 8
        crossed = ("links", "which links those crossed")
        assert told(self.devices(*sxm))[crossed][0] == "yes"
        assert told(self.devices("GPU", None))[crossed][:2] == ("partly", "pcie-2 (assumed)")
        assert told(Trace.of({}))[crossed][:2] == ("no", "no GPU is in this run")

    def test_gpus_that_are_named(self) -> None:
        row = told(self.devices("A100"))[None, "physical GPUs"]
        assert row == ("yes", "1 of 1 named (device_table)", None)


def test_ranks_and_nodes(builder: TraceBuilder) -> None:
    builder.op("gemm", 5)
    trace = with_rows(builder.trace(), reports=[report(0, "nsys SQLite", rank=3, host="n1")])
    rows = told(trace)
    assert rows["breakdown", "time by rank"] == ("yes", "ranks of 1 of 1 processes", None)
    assert rows["breakdown", "time by node"] == ("yes", "nodes of 1 of 1 processes", None)
    rows = told(with_rows(builder.trace(), reports=[report(0, "nvprof SQLite")]))
    assert rows["breakdown", "time by rank"][:2] == ("no", "ranks of 0 of 1 processes")
    assert "nsys profile" in str(rows["breakdown", "time by node"][2])


def test_what_the_reports_hold() -> None:
    row = {"report": 0, "tells": "where time goes", "record_with": "nsys profile -t cuda"}
    contents = [
        row | {"feature": "kernels", "source_table": "K", "present": True, "rows": 9000},
        row | {"feature": "metrics", "source_table": "M", "present": True, "rows": None},
        row | {"feature": "NICs", "source_table": "N", "present": False, "rows": None},
        row | {"report": 1, "feature": "kernels", "source_table": "K", "present": True, "rows": 30},
        row | {"feature": "memory", "source_table": "U", "present": True, "rows": 5},
        row | {"report": 1, "feature": "memory", "source_table": "U", "present": False, "rows": 0,
               "record_with": "nvprof"},
        row | {"feature": "copies", "source_table": "C", "present": True, "rows": 1},
        row | {"report": 1, "feature": "copies", "source_table": "C", "present": False, "rows": 0},
        row | {"feature": "memsets", "source_table": "S", "present": False, "rows": 0},
    ]  # fmt: skip
    rows = told(with_rows(Trace.of({}), contents=contents))
    names = ("kernels", "metrics", "NICs", "memory", "copies", "memsets")
    assert list(rows)[-6:] == [(None, name) for name in names]
    assert rows[None, "kernels"] == ("yes", "9,030 rows: where time goes", None)
    assert rows[None, "metrics"] == ("yes", "M: where time goes", None)
    assert rows[None, "NICs"] == ("no", "no N", "nsys profile -t cuda")
    # It is the report that lacks it whose recorder is told.
    assert rows[None, "memory"] == ("partly", "5 rows: where time goes", "nvprof")
    # With kernels these would have been recorded.
    assert rows[None, "copies"] == ("yes", "1 row: where time goes", None)
    assert rows[None, "memsets"] == ("none", "no S", None)


def test_only_what_is_a_pipeline_is_asked_for_its_bubbles(builder: TraceBuilder) -> None:
    builder.range(0, 9, "forward", stage="FP")
    builder.op("gemm", 1, stage="FP")
    available, found, _ = told(builder.trace())["bubbles", "bubbles of a pipeline"]
    assert (available, found.split(",")[0]) == ("no", "nothing shows that it is a pipeline")
    builder.iteration(0, 0, 9)
    assert told(builder.trace())["bubbles", "bubbles of a pipeline"][0] == "none"
    builder.op("ncclDevKernel_SendRecv", 2, kind="collective", stage="FP")
    assert told(builder.trace())["bubbles", "bubbles of a pipeline"][0] == "yes"


def test_sizes_of_operators_are_what_flops_take(builder: TraceBuilder) -> None:
    builder.range(0, 9, "aten::mm, seq = 1, sizes = [[2, 3], [3, 4]]")
    builder.range(10, 19, "aten::mm, seq = 2")
    available, found, hint = told(builder.trace())["flops, roofline", "what operators compute"]
    assert (available, found) == ("partly", "sizes of 1 of 2 operators that multiply")
    assert "emit_nvtx(record_shapes=True)" in (hint or "")


def test_every_capability_says_how_each_recorder_records_it() -> None:
    for each in CAPABILITIES:
        for name, recorder in itertools.product(each.requirements, RECORDERS.values()):
            assert REQUIREMENTS[name].record_with([recorder])
    rows = told(Trace.of({}))
    listed = [(each.command, each.feature) for each in CAPABILITIES]
    assert [key for key in rows if key[0] is not None] == listed
