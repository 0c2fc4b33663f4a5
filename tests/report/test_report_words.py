"""What the first section of a page says in words, of literal facts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from markupsafe import Markup
from trace_builder import TraceBuilder

from tracekit.analysis.step_sums import Cold
from tracekit.model import KINDS, Answer
from tracekit.present.pages import fragment
from tracekit.report import _gantt
from tracekit.report import _time_sections as _times
from tracekit.report import _verdict_section as _verdict
from tracekit.report._subject import Close


def _subject(*stages: str, cold: int = 0, **close: Any) -> Any:
    by_stage = {"stage": pl.DataFrame({"stage": stages or ("FP", "BP")})}
    run = SimpleNamespace(breakdown=lambda by: by_stage[by])
    return SimpleNamespace(close=SimpleNamespace(cold=Cold(cold), **close), run=run)


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ([], "No stage is known"),
        (["40 % forward"], "Of the mean step 40 % is forward"),
        (["40 % forward", "30 % backward"], "Of the mean step 40 % is forward, 30 % backward"),
    ],
)
def test_what_a_step_is_made_of(told: list[str], text: str) -> None:
    assert _verdict._listed(told) == text


@pytest.mark.parametrize(
    ("wu", "exposed", "text"),
    [
        (None, None, ""), (100, 100, ""),
        (600_000, 100_000, "; 500.00 us more of the weight update hide behind other stages"),
    ],
)  # fmt: skip
def test_what_is_hidden(wu: int | None, exposed: int | None, text: str) -> None:
    facts = {"wu_ns": wu, "wu_exposed_ns": exposed, "step_ns": 1_000_000}
    assert _verdict._hidden(facts) == text


@pytest.mark.parametrize(
    ("exposed", "whole", "value", "raw"), [(0, 0, "none", 0.0), (250, 1000, "25.0 %", 0.25)]
)
def test_communication(exposed: int, whole: int, value: str, raw: float) -> None:
    each = pl.DataFrame(
        {"exposed_ns": [exposed], "communication_ns": [2 * exposed], "step_ns": [whole]}
    )
    tile = _verdict._communication(_subject(work=SimpleNamespace(communication=each)))
    assert (tile.value, tile.raw) == (value, raw)


def test_samples_per_second() -> None:
    facts = {"images_per_s": 1234.4, "batch": 256, "gpus": 2}
    tile = _verdict._rate(facts)
    assert (tile.value, tile.detail, tile.raw) == ("1,234", "batch 256, 2 workers", 1234.4)
    assert _verdict._rate({"images_per_s": None}).value == "unknown"


def test_why_nothing_runs() -> None:
    facts = {"step_ns": 1_000_000, "idle_ns": 150_000, "between_steps_ns": 50_000, "basis": "gpu"}
    none = pl.DataFrame({"cause": [], "step_ns": []}, {"cause": pl.String, "step_ns": pl.Float64})
    idle = SimpleNamespace(rows=none, meta={})
    said = _verdict._idle_sentence(_subject(idle=idle), facts)
    assert said == "Nothing runs for 20.0 % of it."
    some = pl.DataFrame(
        {
            "cause": ["launch_latency", "host_delay"],
            "step_ns": [50_000.0, 150_000.0],
            "rests_on": "API calls",
        }
    )
    said = _verdict._idle_sentence(_subject(idle=SimpleNamespace(rows=some, meta={})), facts)
    assert "the longest part (150.00 us of a step)" in said
    assert said.endswith("(host_delay).")
    beyond = SimpleNamespace(rows=some, meta={"step_outside_window_ns": 160_000.0})
    said = _verdict._idle_sentence(_subject(idle=beyond), facts)
    assert said.endswith("(160.00 us of a step) before or after a GPU's own ops.")
    some = pl.DataFrame({"cause": ["waiting_call"], "step_ns": [1.0], "rests_on": "waits"})
    said = _verdict._idle_sentence(_subject(idle=SimpleNamespace(rows=some, meta={})), facts)
    assert said.endswith("late launches after a wait, which is inferred.")
    host = _verdict._idle_sentence(_subject(), {**facts, "basis": "host"})
    assert host.startswith("These are NVTX ranges on the host")


def test_inference_has_no_backward_pass() -> None:
    both = "the forward and backward passes"
    assert _verdict._passes(_subject("FP", "OTHER"), {"basis": "gpu"}) == "the forward pass"
    assert _verdict._passes(_subject("FP", "BP", "WU"), {"basis": "gpu"}) == both
    assert _verdict._passes(_subject("OTHER"), {"basis": "host"}) == both  # ranges tell there


def test_a_cold_step_in_the_mean_is_told() -> None:
    """Means leave it out, as findings do: a page gave two numbers to the same wait."""
    lengths = _lengths(9_000_000.0, *[1_000_000.0, 1_010_000.0] * 10)
    (said,) = _verdict._without_longest(_subject(lengths=lengths, cold=1))
    assert said == (
        "The first one, which took far longer (9.000 ms), is left out of numbers per step; sums "
        "over the recording include it."
    )
    assert list(_verdict._without_longest(_subject(lengths=lengths[1:]))) == []


def test_a_step_that_moves_the_mean_is_told() -> None:
    lengths = _lengths(*[1_000_000.0] * 5, 9_000_000.0, *[1_000_000.0] * 5)
    (said,) = _verdict._without_longest(_subject(lengths=lengths))
    assert said == "One of them, step 5, takes 9.000 ms; the mean of the others is 1.000 ms."
    assert list(_verdict._without_longest(_subject(lengths=lengths[5:6]))) == []


def test_a_last_step_that_lacks_the_wait_of_the_others_is_told() -> None:
    lengths = _lengths(*[13_000_000.0] * 9, 1_000_000.0)
    (said,) = _verdict._without_longest(_subject(lengths=lengths))
    assert said == (
        "The last one, 1.000 ms, ends with its own GPU work; the mean of the others is 13.000 ms."
    )
    assert list(_verdict._without_longest(_subject(lengths=lengths[:9]))) == []


def _lengths(*lengths: float) -> pl.DataFrame:
    return pl.DataFrame({"iteration": range(len(lengths)), "step_ns": lengths})


@pytest.mark.parametrize(("weak", "told"), [("WU", "is WU on weak evidence."), ("FP", "is WU.")])
def test_a_stage_that_names_of_kernels_tell_is_no_more_than_that(weak: str, told: str) -> None:
    stages = pl.DataFrame({"stage": ["WU"], "ops": [9], "exposed_ns": [550]})
    meta = {"window_ns": 2_000, "idle_ns": 80, "devices": 1, "weak": [{"stage": weak}]}

    class Asked:
        answer = staticmethod(lambda by: SimpleNamespace(rows=stages, meta=meta))

        def __call__(self, by: str) -> pl.DataFrame:
            return pl.DataFrame({"kind": ["compute"], "busy_ns": [550], "share": [0.275]})

    none = pl.DataFrame({"exposed_ns": [], "communication_ns": [], "step_ns": []})
    idle = pl.DataFrame({"cause": ["unexplained"], "idle_ns": [60], "rests_on": [None]})
    subject: Any = SimpleNamespace(
        run=SimpleNamespace(breakdown=Asked(), warnings=()),
        close=SimpleNamespace(
            work=SimpleNamespace(communication=none), idle=SimpleNamespace(rows=idle, meta={})
        ),
    )
    assert f"Of it 27.5 % {told}" in str(_verdict._without_steps(subject))


def test_a_page_without_findings_says_what_was_looked_for() -> None:
    """Nothing of 2 % was found: that is not that nothing could be faster."""
    answer = Answer(rows=pl.DataFrame(), empty="nothing found that takes 2 % of a step or more")
    asked = SimpleNamespace(answer=lambda: answer)
    close = SimpleNamespace(traffic=None)
    subject: Any = SimpleNamespace(run=SimpleNamespace(diagnose=asked), close=close)
    assert "Nothing found that takes 2 % of a step or more." in str(_times.findings(subject))


def test_a_recording_that_copies_says_so_without_steps() -> None:
    kinds = pl.DataFrame(
        {"kind": ["compute", "h2d", "d2h"], "busy_ns": [20, 1_900, 2], "share": [0.01, 0.95, 0.001]}
    )
    stages = pl.DataFrame({"stage": ["OTHER"], "ops": [9], "exposed_ns": [1_920]})
    asked = SimpleNamespace(
        answer=lambda by: SimpleNamespace(
            rows=stages, meta={"window_ns": 2_000, "idle_ns": 80, "devices": 2}
        )
    )

    class Asked:
        answer = staticmethod(asked.answer)

        def __call__(self, by: str) -> pl.DataFrame:
            return kinds

    none = pl.DataFrame({"exposed_ns": [], "communication_ns": [], "step_ns": []})
    idle = pl.DataFrame({"cause": ["allocation"], "idle_ns": [60], "rests_on": ["API calls"]})
    subject: Any = SimpleNamespace(
        run=SimpleNamespace(breakdown=Asked(), warnings=()),
        close=SimpleNamespace(
            work=SimpleNamespace(communication=none), idle=SimpleNamespace(rows=idle, meta={})
        ),
    )
    said = str(_verdict._without_steps(subject))
    assert "the recording of 2 GPUs lasts 1.000 us on each." in said
    assert "copies from the host 95.0 %, computing 1.0 % of that time." in said
    assert "the longest part (3.0 %): the host allocated or freed memory (allocation)" in said
    assert "40 ns" in said  # of each GPU, as the length is
    assert "of a step" not in said


def test_steps_of_two_kinds_are_no_one_median() -> None:
    lengths = [132_000_000, 1_410_000_000] * 28 + [131_000_000] * 3
    steps = pl.DataFrame({"iteration": range(len(lengths)), "step_ns": map(float, lengths)})
    close = Close(SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    close.__dict__["lengths"] = steps
    assert close.of_kinds == "31 of 132.00 ms and 28 of 1.410 s"
    assert list(close.chosen.items()) == [
        ("Typical of 31 steps (0)", 0), ("Typical of 28 steps (1)", 1),
        ("p95 step (7)", 7), ("Fastest step (58)", 58),
    ]  # fmt: skip
    # The median of all, 132 ms here, is that of the kind that takes a tenth of the time.
    assert close.typical == (1, "typical step (of 28 of 1.410 s)")
    assert _times._told(steps.clear(), 1.0, close.of_kinds).startswith("Steps are of several kinds")
    facts = {"devices": 1, "basis": "gpu", "step_ns": 7.5e8, "iterations": 59, "step_p5_ns": 1.3e8,
             "step_p50_ns": 2e8, "step_p95_ns": 1.5e9, "fp_bp_ns": None, "wu_ns": None,
             "wu_exposed_ns": None, "io_exposed_ns": None, "me_exposed_ns": None,
             "idle_ns": 0.0, "between_steps_ns": 0.0}  # fmt: skip
    none = pl.DataFrame({"cause": [], "step_ns": []}, {"cause": pl.String, "step_ns": pl.Float64})
    close.__dict__["idle"] = SimpleNamespace(rows=none, meta={})
    subject = SimpleNamespace(close=close, run=_subject().run)
    said = list(_verdict._sentences(subject, facts))  # type: ignore[arg-type]
    assert said[0] == (
        f"Steps are of several kinds: {close.of_kinds} (medians); the mean of all 59 steps on 1 GPU"
        " is 750.00 ms."
    )
    subject = _subject(of_kinds="", idle=close.idle)
    said = list(_verdict._sentences(subject, {**facts, "iterations": 1}))
    assert said[0] == "The only step takes 750.00 ms on 1 GPU."


def test_a_chart_without_steps_is_of_the_recording() -> None:
    for step, text in ((None, "Whole recording"), (0, "Whole step")):
        views = [_gantt.View("first", step)]
        chart = _gantt.Chart("Ops", "Ops by GPU", views, Markup(""), (), ())
        assert text in fragment("gantt", chart)


def test_findings_on_kernels_lead_to_the_longest_of_them() -> None:
    b = TraceBuilder()
    for number, length in enumerate((900, 300)):
        start = 1_000 * number
        b.range(start, start + 1_000, f"step {number}")
        b.op("nchwToNhwcKernel", at=start + 1, start=start + 10, end=start + 10 + length // 3)
        b.op("nchwToNhwcKernel", at=start + 2, start=start + 400, end=start + 400 + length // 2)
    run = SimpleNamespace(trace=b.attributed())
    found = _gantt.places(Close(SimpleNamespace(), run))  # type: ignore[arg-type]
    assert found["layout_transposes"] == _gantt.Place(
        "step=0&t=0.000000ms-0.001340ms&select=0.000390ms-0.000840ms", "The longest of it in step 0"
    )
    assert found["unfused_elementwise"] is None
    assert found["cold_steps"] == _gantt.Place("step=0", "The first step")


def test_steps_of_one_kind_have_a_median() -> None:
    lengths = [100.0 + place % 3 for place in range(40)]
    close = Close(SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    close.__dict__["lengths"] = pl.DataFrame({"iteration": range(40), "step_ns": lengths})
    assert close.of_kinds == ""
    assert close.typical == (1, "median step")
    assert [what.split(" (")[0] for what in close.chosen] == [
        "Median step", "Slowest step", "p95 step", "Fastest step"
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_op_has_a_word(kind: str) -> None:
    """AMD's copies that are kernels are `unknown`, CUDA graphs recorded as a whole `graph`."""
    alone = pl.DataFrame({"kind": [kind], "busy_ns": [9], "share": [0.9]})
    assert _verdict._does(alone).endswith(" 90.0 %")
