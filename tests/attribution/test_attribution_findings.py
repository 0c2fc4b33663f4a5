"""What a user is told of how stages were found: literal sentences with their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from trace_builder import TraceBuilder

from tracekit.attribution import Rules
from tracekit.attribution._findings import findings
from tracekit.model import TABLES

Opinion = tuple[str, str, str, str, int]
"""Stage and its source, another source and what that says, and for how long."""

LOOK = "see `tracekit info --stages`"


def _verdict(process: int = 0, **row: Any) -> dict[str, Any]:
    told = {
        "report": 0, "process": process, "verdict": "training", "given": False,
        "evidence": "2 backward ranges", "decides": False,
    }  # fmt: skip
    return told | row


def _told(
    *verdicts: dict[str, Any],
    opinions: list[Opinion] | None = None,
    process: int = 0,
    iterations: pl.DataFrame | None = None,
) -> tuple[str, ...]:
    """Return the findings; each opinion of a source on itself is how much it decides."""
    rows = [(0, process, *four, 1, length) for *four, length in opinions or []]
    schema = {**TABLES["opinions"].schema}
    processes = {"process": [0, 1], "pid": [500, 501]}
    return findings(
        TABLES["verdicts"].conform(pl.DataFrame(verdicts, infer_schema_length=None)),
        pl.DataFrame(rows, schema=schema, orient="row"),
        pl.DataFrame(processes, schema={"process": pl.Int32, "pid": pl.Int64}),
        TABLES["iterations"].empty() if iterations is None else iterations,
    )


def test_nothing_is_said_of_what_is_in_order() -> None:
    decided: list[Opinion] = [("FP", "nvtx", "nvtx", "FP", 60), ("BP", "nvtx", "nvtx", "BP", 40)]
    agreed: list[Opinion] = [("FP", "nvtx", "structure", "FP", 60)]
    assert _told(_verdict(), opinions=decided + agreed) == ()
    assert _told(_verdict(iterations=9, with_work=9, whole=9)) == ()


@pytest.mark.parametrize(
    ("cut", "where"),
    [("begin", "beginning"), ("end", "end"), ("both", "beginning and end")],
)
def test_a_cut(cut: str, where: str) -> None:
    found = _told(_verdict(cut=cut, iterations=1_200, with_work=1_013, whole=1_012))
    text = f"the recording of GPU work is cut at its {where}"
    assert found == (f"{text}: of 1,200 iterations 1,013 have GPU work, 1,012 of them whole",)


def test_what_structure_cannot_tell_may_be_cut() -> None:
    row = dict.fromkeys(("process", "thread", "iteration", "start", "end"), 0)
    steps = TABLES["iterations"].conform(pl.DataFrame([{**row, "source": "structure"}]))
    (found,) = _told(_verdict(cut="begin", iterations=9, with_work=9, whole=8), iterations=steps)
    assert "may be cut at its beginning: of 9 iterations 9 have GPU work, 8 of them known" in found


def test_steps_that_all_have_work_may_be_all_there() -> None:
    """The last of three ended with the recording, or has less work: that is no proof of a cut."""
    (found,) = _told(_verdict(cut="end", iterations=3, with_work=3, whole=2))
    assert found == (
        "the recording of GPU work may be cut at its end: of 3 iterations 3 have GPU work, 2 of "
        "them known to be whole"
    )


def test_a_cut_before_iterations_that_are_whole() -> None:
    (found,) = _told(_verdict(cut="begin", iterations=3, with_work=3, whole=3))
    assert "within a step whose launches" in found
    assert "3 of them whole" not in found


def test_iterations_without_any_work() -> None:
    assert _told(_verdict(iterations=1_200, with_work=0, whole=0)) == (
        "none of 1,200 iterations has GPU work: all recorded GPU work is outside of them",
    )
    assert _told(_verdict(iterations=None, with_work=None, whole=None)) == ()


@pytest.mark.parametrize(
    ("structure", "named", "how"),
    [
        ("threads", "nvtx", "ranges do not name all stages: the rest is found from threads"),
        (
            "order",
            "kernel_name",
            "no range names a stage: they are estimated from the order of launches",
        ),
    ],
)
def test_stages_that_structure_tells(structure: str, named: str, how: str) -> None:
    found = _told(
        _verdict(structure=structure, decides=True, contradictions="exchanges on another stream"),
        opinions=[("FP", named, named, "FP", 9)],
    )
    assert found == (
        f"{how}; {LOOK}",
        "stages found from structure are contradicted: exchanges on another stream",
    )


def test_of_a_second_opinion_contradictions_are_not_told() -> None:
    assert _told(_verdict(structure="threads", contradictions="exchanges elsewhere")) == ()


def _disagreement(
    length: int, source: str = "nvtx", other: str = "structure", **row: Any
) -> tuple[str, ...]:
    """Let a source decide 1,000 ns, of which another one says something else for `length`."""
    opinions: list[Opinion] = [
        ("FP", source, source, "FP", 600), ("BP", source, source, "BP", 400),
        ("FP", source, other, "BP", length), ("BP", source, other, "BP", 400),
    ]  # fmt: skip
    return _told(_verdict(**row), opinions=opinions)


@pytest.mark.parametrize(
    ("length", "other", "told"),
    [
        (100, "structure", "10 %"),
        (99, "structure", None),
        (456, "structure", "46 %"),
        (499, "kernel_name", None),  # names of kernels say less
        (500, "kernel_name", "50 %"),
        (500, "copy_kind", "50 %"),
        (100, "backward_thread", "10 %"),
    ],
)
def test_a_disagreement(length: int, other: str, told: str | None) -> None:
    sentence = (
        f"nvtx decides stages, and other sources disagree: {other} about {told} (BP for FP {told}) "
        f"of GPU time; {LOOK}"
    )
    assert _disagreement(length, other=other) == (() if told is None else (sentence,))


@pytest.mark.parametrize(
    ("update", "elsewhere", "told"), [(30, 0, True), (9, 0, False), (30, 40, False)]
)
def test_a_range_that_swallows_a_whole_pass_is_told(
    update: int, elsewhere: int, *, told: bool
) -> None:
    """As `forward` around whole steps does: all updates are forward, if only 3 % of GPU time."""
    opinions: list[Opinion] = [
        ("FP", "nvtx", "nvtx", "FP", 600), ("BP", "structure", "structure", "BP", 400),
        ("FP", "nvtx", "structure", "FP", 600 - update), ("FP", "nvtx", "structure", "WU", update),
        ("WU", "structure", "structure", "WU", elsewhere),
    ]  # fmt: skip
    sentences = _told(_verdict(), opinions=opinions)
    assert [f"structure about {update / 10:.0f} % (WU for FP" in s for s in sentences] == (
        [True] * told
    )


@pytest.mark.parametrize("source", ["nvtx", "thread_name", "process_range", "structure"])
@pytest.mark.parametrize(("forward", "is_told"), [(2, False), (3, True), (4, True)])
def test_gradients_that_are_exchanged_in_forward(
    source: str, forward: int, *, is_told: bool
) -> None:
    exchange = "gradient_exchange"
    said = ["FP"] * forward + ["BP"] * (4 - forward)
    told = _told(
        _verdict(),
        opinions=[
            *[("WU", exchange, exchange, "WU", 9)] * 4,
            *[("WU", exchange, source, stage, 9) for stage in said],
        ],
    )
    sentence = (
        f"{forward} of 4 exchanges of gradients are launched where {source} gives FP: gradients "
        "come of backward, so that more than forward is called FP, or forward passes that are "
        f"split over GPUs run without backward passes; {LOOK}"
    )
    assert told == ((sentence,) if is_told else ())


def test_a_thread_that_is_forward_by_name_and_exchanges_gradients(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("version = 1\n[[thread]]\nname = '^worker$'\nstage = 'FP'\n")
    builder = TraceBuilder()
    builder.thread(0, "main")
    builder.thread(1, "worker")
    for begin in range(0, 400, 100):
        builder.range(begin, begin + 20, "forward")
        builder.range(begin + 60, begin + 80, "optimizer")
        builder.op("gemm", begin + 5)
        builder.op("gemm_wgrad", begin + 30, thread=1)
        builder.op("ncclDevKernel_AllReduce_Sum_f32_RING_LL", begin + 40, thread=1)
        builder.op("adam", begin + 65)
    trace = builder.judged(Rules.load(rules))
    assert any(
        text.startswith("4 of 4 exchanges of gradients are launched where thread_name gives FP")
        for text in trace.warnings
    )


@pytest.mark.parametrize(("backward", "is_told"), [(400, False), (399, True), (0, False)])
def test_a_forward_pass_longer_than_the_backward_pass(backward: int, *, is_told: bool) -> None:
    told = _told(
        _verdict(),
        opinions=[("FP", "nvtx", "nvtx", "FP", 600), ("BP", "nvtx", "nvtx", "BP", backward)],
    )
    assert [text.startswith("FP takes 0.001 ms") for text in told] == [True] * is_told
    assert all(text.endswith("or wait in collectives") for text in told)


def test_disagreements_are_added_up_by_pair_and_the_largest_comes_first() -> None:
    opinions: list[Opinion] = [
        ("FP", "nvtx", "nvtx", "FP", 50), ("BP", "nvtx", "nvtx", "BP", 50),
        ("FP", "nvtx", "structure", "BP", 6), ("BP", "nvtx", "structure", "WU", 6),
        ("FP", "nvtx", "autograd", "BP", 30),
    ]  # fmt: skip
    (told,) = _told(_verdict(), opinions=opinions)
    assert "autograd about 30 % (BP for FP 30 %), structure about 12 % (BP for FP 6 %, WU f" in told


def test_disagreements_with_one_source_are_told_together_in_the_order_in_which_sources_decide() -> (
    None
):
    opinions: list[Opinion] = [
        ("FP", "nvtx", "nvtx", "FP", 50),
        *[
            ("FP", decides, differs, "BP", 10)
            for decides, differs in [
                ("thread_name", "nvtx"), ("nvtx", "structure"), ("process_range", "structure"),
                ("nvtx", "autograd"), ("process_range", "autograd"),
            ]
        ],
    ]  # fmt: skip
    said = "autograd about 20 % (BP for FP 20 %), structure about 20 % (BP for FP 20 %)"
    assert [text.partition(" of GPU time")[0] for text in _told(_verdict(), opinions=opinions)] == [
        f"{decides} decides stages, and other sources disagree: {others}"
        for decides, others in [
            ("nvtx", said),
            ("thread_name", "nvtx about 20 % (BP for FP 20 %)"),
            ("process_range", said),
        ]
    ]  # fmt: skip


def test_an_exchange_contradicts_nothing() -> None:
    """It is a weight update by definition, whatever range it was launched in."""
    assert _disagreement(600, source="gradient_exchange", other="nvtx") == ()


def test_where_nothing_trains_sources_do_not_disagree() -> None:
    assert _disagreement(600, verdict="inference") == ()


def test_of_several_processes_each_is_named() -> None:
    cut = {"cut": "end", "iterations": 3, "with_work": 2, "whole": 1}
    found = _told(_verdict(0), _verdict(1, **cut), _verdict(7, **cut))
    assert [text.partition(": ")[0] for text in found] == ["process 501", "process 7"]
    assert found[0] == (
        "process 501: the recording of GPU work is cut at its end: of 3 iterations 2 have GPU "
        "work, 1 of them whole"
    )


@pytest.mark.parametrize(
    ("ops", "said"), [((404, 130), True), ((10, 9), False), ((10, 2, 10), False), ((10,), False)]
)
def test_two_iterations_that_differ(ops: tuple[int, ...], said: bool) -> None:
    same = dict.fromkeys(("report", "process", "thread", "start", "end"), 0)
    rows = [{**same, "iteration": n, "ops": count, "whole": True} for n, count in enumerate(ops)]
    table = TABLES["iterations"].conform(pl.DataFrame(rows))
    expected = (
        "its 2 complete iterations have 404 and 130 ops: neither is known to be the usual one",
    )
    assert _told(_verdict(), iterations=table) == (expected if said else ())
