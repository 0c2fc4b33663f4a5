"""What every table says of processes, and the table of sources: literal rows."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from trace_builder import TraceBuilder

from tracekit.analysis import breakdown, confusion, verdict_evidence, verdict_meta
from tracekit.analysis.facts import unknown_passes
from tracekit.model import TABLES, Trace
from tracekit.present import notes

Opinion = tuple[int, str, str, str, str, int, int]
"""Process; stage and its source; another source and what that says; ops and their time."""


def _verdict(process: int = 0, verdict: str = "training", **row: Any) -> dict[str, Any]:
    told = {
        "report": 0, "process": process, "verdict": verdict, "given": False,
        "evidence": "some sign", "decides": False,
    }  # fmt: skip
    return told | row


def _decided(process: int, stage: str, source: str, length: int, ops: int = 1) -> Opinion:
    return (process, stage, source, source, stage, ops, length)


def _trace(verdicts: list[dict[str, Any]], opinions: list[Opinion]) -> Trace:
    return Trace.of(
        {
            "verdicts": TABLES["verdicts"].conform(
                pl.DataFrame(verdicts, infer_schema_length=None)
            ),
            "opinions": pl.DataFrame(
                [(0, *each) for each in opinions], schema=TABLES["opinions"].schema, orient="row"
            ),
            "processes": pl.DataFrame(
                [(0, 0, 500, 0), (0, 1, 501, 1)],
                schema=["report", "process", "pid", "global_id"],
                orient="row",
            ),
        }
    )


PASSES = [_decided(0, "FP", "nvtx", 400), _decided(0, "BP", "backward_thread", 600)]


class TestMeta:
    def test_verdicts_are_counted_the_most_frequent_first(self) -> None:
        verdicts = [_verdict(0, "other"), _verdict(1), _verdict(2)]
        opinions = [_decided(process, "OTHER", "none", 1) for process in range(3)]
        found = verdict_meta(_trace(verdicts, opinions))
        assert found == {"verdict": {"training": 2, "other": 1}}
        assert list(found["verdict"]) == ["training", "other"]

    def test_processes_that_run_nothing_do_not_count(self) -> None:
        verdicts = [_verdict(0), _verdict(1, "other", given=True, cut="end")]
        assert verdict_meta(_trace(verdicts, PASSES)) == {"verdict": {"training": 1}}

    def test_unless_none_runs_anything(self) -> None:
        assert verdict_meta(_trace([_verdict(0), _verdict(1)], [])) == {"verdict": {"training": 2}}

    def test_of_what_is_given_it_is_said(self) -> None:
        assert verdict_meta(_trace([_verdict(given=True)], PASSES))["given"] is True

    @pytest.mark.parametrize(
        ("cuts", "told"),
        [
            (("end", "end"), "end"), (("begin", None), "begin"), (("begin", "end"), "both"),
            (("both", "end"), "both"), ((None, None), None),
        ],
    )  # fmt: skip
    def test_ends_that_are_missing(self, cuts: tuple[str | None, ...], told: str | None) -> None:
        verdicts = [_verdict(process, cut=cut) for process, cut in enumerate(cuts)]
        opinions = [_decided(process, "FP", "nvtx", 1) for process in range(2)]
        assert verdict_meta(_trace(verdicts, opinions)).get("cut") == told

    def test_notes_do_not_take_for_certain_that_a_recording_is_cut(self) -> None:
        meta = {"verdict": {"training": 1}, "cut": "end"}
        assert notes(meta)[-1] == "the recording of GPU work may lack its end"

    def test_an_attributed_trace_without_work(self, builder: TraceBuilder) -> None:
        builder.range(0, 9, "something")
        assert verdict_meta(builder.judged()) == {"verdict": {"other": 1}}


class TestWeakEvidence:
    def test_more_than_a_tenth_of_gpu_time_on_names_is_weak(self) -> None:
        opinions = [
            _decided(0, "FP", "nvtx", 690), _decided(0, "WU", "kernel_name", 200),
            _decided(0, "IO", "copy_kind", 110),
        ]  # fmt: skip
        weak = verdict_meta(_trace([_verdict()], opinions))["weak"]
        assert weak == [
            {"stage": "WU", "source": "kernel_name", "share": 0.2},
            {"stage": "IO", "source": "copy_kind", "share": 0.11},
        ]
        assert notes({"weak": weak}) == [
            "weak evidence: WU rests on names of kernels alone for 20.0 % of GPU time",
            "weak evidence: IO rests on kinds of copies alone for 11.0 % of GPU time",
        ]

    def test_a_tenth_is_not_more_than_a_tenth(self) -> None:
        opinions = [_decided(0, "FP", "nvtx", 900), _decided(0, "WU", "kernel_name", 100)]
        assert "weak" not in verdict_meta(_trace([_verdict()], opinions))

    def test_other_opinions_are_no_time_of_their_own(self) -> None:
        agreed = [(0, "FP", "nvtx", "kernel_name", "FP", 1, 900)]
        opinions = [_decided(0, "FP", "nvtx", 900), *agreed]
        assert "weak" not in verdict_meta(_trace([_verdict()], opinions))

    @pytest.mark.parametrize(
        ("structure", "decides", "is_weak"),
        [("order", True, True), ("threads", True, False), ("order", False, False)],
    )
    def test_an_estimate_is_weak(self, structure: str, *, decides: bool, is_weak: bool) -> None:
        verdict = _verdict(structure=structure, decides=decides)
        opinions = [_decided(0, "BP", "structure", 500), _decided(0, "FP", "nvtx", 500)]
        weak = verdict_meta(_trace([verdict], opinions)).get("weak", [])
        assert weak == ([{"stage": "BP", "source": "structure", "share": 0.5}] if is_weak else [])

    def test_the_same_stage_of_several_processes_is_added_up(self) -> None:
        opinions = [
            _decided(0, "WU", "kernel_name", 60), _decided(1, "WU", "kernel_name", 90),
            _decided(1, "FP", "nvtx", 850),
        ]  # fmt: skip
        weak = verdict_meta(_trace([_verdict(0), _verdict(1)], opinions))["weak"]
        assert weak == [{"stage": "WU", "source": "kernel_name", "share": 0.15}]


FORWARD_UNKNOWN = "the forward pass is not known by ranges, threads or structure"
BACKWARD_UNKNOWN = "the backward pass is not known by ranges, threads or structure"
NO_ONE_TRAINS = "no process is known to train"


@pytest.mark.parametrize(
    ("verdicts", "opinions", "why"),
    [
        ([_verdict()], PASSES, None),
        ([_verdict()], [], "the forward pass is not known by ranges, threads or structure"),
        ([_verdict(verdict="inference")], PASSES, NO_ONE_TRAINS),
        ([_verdict()], PASSES[:1], BACKWARD_UNKNOWN),
        ([_verdict()], PASSES[1:], FORWARD_UNKNOWN),
        ([_verdict()], [PASSES[1], _decided(0, "FP", "kernel_name", 9)], FORWARD_UNKNOWN),
        ([_verdict()], [PASSES[1], _decided(0, "FP", "structure", 9)], None),
        # What another source says beside the one that decides tells no pass.
        ([_verdict()], [PASSES[1], (0, "ME", "nvtx", "structure", "FP", 1, 9),
                        _decided(0, "ME", "nvtx", 9)], FORWARD_UNKNOWN),
        # Each process that trains has to know its own.
        ([_verdict(0), _verdict(1)], [*PASSES, _decided(1, "FP", "nvtx", 9)], BACKWARD_UNKNOWN),
        ([_verdict(0), _verdict(1, "other")], [*PASSES, _decided(1, "OTHER", "none", 9)], None),
        # One that runs no op at all is no obstacle.
        ([_verdict(0), _verdict(1)], PASSES, None),
    ],
)  # fmt: skip
def test_why_the_update_is_no_residual(
    verdicts: list[dict[str, Any]], opinions: list[Opinion], why: str | None
) -> None:
    assert unknown_passes(_trace(verdicts, opinions)) == why


def test_the_residual_of_a_trace(builder: TraceBuilder) -> None:
    builder.range(0, 100, "forward")
    builder.range(100, 200, "backward")
    builder.op("f", 10, start=10, end=60)
    builder.op("b", 110, start=110, end=180)
    builder.op("u", 200, start=200, end=230)
    meta = breakdown(builder.attributed()).meta
    assert meta["window_ns"] == 220
    assert meta["wu_residual_ns"] == 220 - 50 - 70
    assert "wu_residual_unknown" not in meta


class TestSources:
    def test_of_literal_rows(self) -> None:
        opinions = [
            _decided(0, "FP", "nvtx", 600, ops=6),
            _decided(0, "WU", "kernel_name", 400, ops=4),
            (0, "FP", "nvtx", "structure", "FP", 5, 500),
            (0, "FP", "nvtx", "structure", "BP", 1, 100),
        ]
        table = confusion(_trace([_verdict()], opinions))
        assert table.columns == [
            "stage", "stage_source", "other_source", "other_stage", "agrees", "ops", "total_ns",
            "share",
        ]  # fmt: skip
        assert table.rows() == [
            ("FP", "nvtx", "nvtx", "FP", True, 6, 600, 0.6),
            ("FP", "nvtx", "structure", "FP", True, 5, 500, 0.5),
            ("WU", "kernel_name", "kernel_name", "WU", True, 4, 400, 0.4),
            ("FP", "nvtx", "structure", "BP", False, 1, 100, 0.1),
        ]

    def test_processes_are_added_up(self) -> None:
        opinions = [_decided(0, "FP", "nvtx", 30, ops=1), _decided(1, "FP", "nvtx", 10, ops=2)]
        (row,) = confusion(_trace([_verdict(0), _verdict(1)], opinions)).rows()
        assert row == ("FP", "nvtx", "nvtx", "FP", True, 3, 40, 1.0)

    def test_of_no_ops(self) -> None:
        assert confusion(_trace([_verdict()], [])).is_empty()

    def test_of_an_attributed_trace_each_op_is_once_its_own_sources(
        self, builder: TraceBuilder
    ) -> None:
        builder.range(0, 100, "forward")
        builder.range(100, 200, "backward")
        builder.op("dgrad", 10, start=12, end=22)  # named otherwise than its range says
        builder.op("wgrad", 110, start=112, end=132)
        builder.op("adam", 210, start=212, end=242)
        builder.op("some", 220, start=250, end=290)
        table = confusion(builder.attributed())
        own = table.filter(pl.col("stage_source") == pl.col("other_source"))
        assert own.select("stage", "stage_source", "ops", "total_ns").rows() == [
            ("OTHER", "none", 1, 40), ("WU", "kernel_name", 1, 30),
            ("BP", "nvtx", 1, 20), ("FP", "nvtx", 1, 10),
        ]  # fmt: skip
        named = table.filter(stage_source="nvtx", other_source="kernel_name")
        assert named.select("stage", "other_stage", "agrees", "total_ns").rows() == [
            ("BP", "BP", True, 20), ("FP", "BP", False, 10),
        ]  # fmt: skip


def test_evidence_in_words() -> None:
    verdicts = [
        _verdict(
            0, evidence="1 autograd thread", structure="threads", decides=True,
            structure_evidence="takes turns", contradictions="one all-reduce", gaps=1_200,
            usual_gaps=1_100, doubt_ns=1_234_567, iterations=12, with_work=7, whole=6,
        ),
        _verdict(1, "other", given=True, evidence="no sign of a network"),
    ]  # fmt: skip
    assert verdict_evidence(_trace(verdicts, PASSES)) == [
        "process 500: training: 1 autograd thread",
        "process 500: structure: stages by threads: takes turns",
        "process 500: gaps between backward passes: 1,100 of 1,200 usual",
        "process 500: busy time on one or the other side of a cut between stages: 1.235 ms",
        "process 500: iterations: 12 known, 7 with GPU work, 6 complete",
        "process 500: contradicted: one all-reduce",
        "process 501: other (as given): no sign of a network",
    ]
    assert verdict_evidence(_trace(verdicts[1:], [])) == ["other (as given): no sign of a network"]
    equal = _verdict(2, "other", given=True, evidence="no sign of a network")
    assert verdict_evidence(_trace([*verdicts, equal], PASSES))[-1] == (
        "each of 2 of 3 processes, such as 501: other (as given): no sign of a network"
    )
    assert verdict_evidence(_trace([verdicts[1], equal], [])) == [
        "each of 2 processes: other (as given): no sign of a network"
    ]
