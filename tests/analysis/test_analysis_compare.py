"""Comparisons of literal and simulated runs: what differs, by how much, and what may be said."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import data_parallel
import numpy as np
import polars as pl
import pytest
from compared_traces import comparability, compare
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from link_helpers import machine
from trace_builder import TraceBuilder, default_rules

from tracekit.analysis import breakdown, query
from tracekit.analysis.communication import Traffic
from tracekit.analysis.comparison import Comparison, check_limit
from tracekit.analysis.comparison._compare_runs import _readable, numbers_of
from tracekit.analysis.idle_account import CAUSES
from tracekit.analysis.memory import memory_use
from tracekit.analysis.step_sums import PARTS, Measured, parse_compare_keys
from tracekit.analysis.step_sums._per_iteration import COMPARE_KEYS
from tracekit.attribution import attribute
from tracekit.engine import Counted
from tracekit.errors import MissingDataError, UsageError
from tracekit.machine import Placed
from tracekit.model import HOST, MEMORY, NO_KERNELS, REPORTS, TABLES, Trace
from tracekit.model._tables import ITERATIONS
from tracekit.sources import read

STEP = 1000
_BACKWARD = {"A": "B", "B": "A", None: None, "faster": "slower", "slower": "faster"}


def _run(
    forward: Sequence[int],
    *,
    update: Sequence[int] | None = None,
    step: int = STEP,
    gpu: str | None = None,
    devices: int = 1,
    **row: Any,
) -> Trace:
    """A process per device; each step runs FP and WU of the given lengths from its begin on."""
    b = TraceBuilder()
    for device in range(devices):
        place = {"thread": 10 * device, "device": device}
        for number, length in enumerate(forward):
            at = number * step
            b.iteration(number, at, at + step - 100, thread=10 * device)
            b.op("fw", at=at, start=at, end=at + length, stage="FP", stage_source="nvtx",
                 **place, **row)  # fmt: skip
            begin, took = at + length + 10, (update or [20] * len(forward))[number]
            b.op("sgd", at=at + 1, start=begin, end=begin + took, stage="WU", stage_source="nvtx",
                 **place)  # fmt: skip
        b.rows["devices"].append(
            {"device": device, "report": 0, "name": gpu, "active": True, "identity": "ordinal"}
        )
    return b.trace()


A = (500, 502, 498, 501, 499, 500)
B = (450, 452, 448, 451, 449, 450)


def test_stages_side_by_side() -> None:
    found = compare(_run(A), _run(B))
    columns = ("stage", "a_ns", "b_ns", "a_count", "b_count", "delta_ns", "ratio", "verdict",
               "only_in")  # fmt: skip
    assert found.table.select(columns).rows() == [
        ("FP", 500, 450, 1, 1, -50, 0.9, "faster", None),
        ("WU", 20, 20, 1, 1, 0, 1, "too small to matter", None),
        ("idle", 1910 / 6, 2160 / 6, None, None, pytest.approx(250 / 6),
         pytest.approx(216 / 191), "no difference shown", None),
        ("between_steps", 500 / 6, 500 / 6, None, None, 0, 1, "too small to matter", None),
    ]  # fmt: skip
    low, high = found.table.row(0, named=True)["low_ns"], found.table.row(0, named=True)["high_ns"]
    assert -54 < low < -50 < high < -46
    assert found.meta["a_iterations"] == found.meta["b_iterations"] == 6
    assert found.meta["not_comparable"] == []
    # The last step ends with its last op.
    assert found.meta["notes"] == [
        "step 5 of A: 0.53 times the median (470 ns less idle)",
        "step 5 of B: 0.48 times the median (520 ns less idle)",
    ]
    assert "Welch" in found.meta["method"]


def test_what_is_in_one_run_only_is_shown() -> None:
    added = _run(A)
    b = TraceBuilder()
    b.rows = {name: table.to_dicts() for name, table in _tables(_run(A)).items()}
    for number in range(6):
        at = STEP * number + 700
        b.op("new", at=at, start=at, end=at + 50, stage="ME")
    b.thread(0)
    # Evaluation is no part of the last step, which has no next one to end it.
    found = compare(added, b.trace(), "kernel").table
    assert found.row(0, named=True)["name"] == "new"
    columns = ("a_ns", "b_total_ns", "b_outside_steps_ns", "b_outside_steps_count", "ratio",
               "only_in", "verdict")  # fmt: skip
    assert found.select(columns).row(0) == (0, 250, 50, 1, None, "B", "slower")
    back = compare(b.trace(), added, "kernel").table
    assert back.select("name", "b_ns", "ratio", "only_in", "verdict").row(0) == (
        "new", 0, 0, "A", "faster",
    )  # fmt: skip


@pytest.mark.slow
def test_what_ran_outside_of_steps_alone_is_listed_beside_them() -> None:
    """The same evaluation after training in both, setting up in B alone, a kernel moved into it."""
    runs = []
    for side in (0, 1):
        b = TraceBuilder()
        b.rows = {name: table.to_dicts() for name, table in _tables(_run(A)).items()}
        b.thread(0)
        b.op("test", at=9000, start=9000, end=9300, stage="ME")
        if side:
            b.op("sgd", at=-500, start=-500, end=-440, stage="WU")
            b.op("setup", at=-400, start=-400, end=-330, stage="OTHER")
        runs.append(b.trace())
    columns = ("a_ns", "b_ns", "a_outside_steps_ns", "b_outside_steps_ns", "b_outside_steps_count",
               "only_in")  # fmt: skip
    kernels = compare(runs[0], runs[1], "kernel").table.select("name", *columns)
    assert sorted(kernels.rows()) == [
        ("fw", 500, 500, 0, 0, 0, None), ("setup", 0, 0, 0, 70, 1, "B"),
        ("sgd", 20, 20, 0, 60, 1, None), ("test", 0, 0, 300, 300, 1, None),
    ]  # fmt: skip
    stages = compare(runs[0], runs[1]).table.select("stage", *columns)
    # Of two columns that belong together none is shown alone, though one holds nothing.
    alone = _readable(compare(_run(A), runs[1], "kernel").table)
    assert {"a_outside_steps_ns", "b_outside_steps_ns"} <= {*alone.columns}
    alike = _readable(compare(_run(A), _run(A), "kernel").table)
    assert not {"a_outside_steps_ns", "b_outside_steps_ns"} & {*alike.columns}
    assert stages.rows()[:4] == [
        ("FP", 500, 500, 0, 0, 0, None), ("WU", 20, 20, 0, 60, 1, None),
        ("ME", 0, 0, 300, 300, 1, None), ("OTHER", 0, 0, 0, 70, 1, "B"),
    ]  # fmt: skip


def _tables(trace: Trace) -> dict[str, pl.DataFrame]:
    numbers = {"ops": "op", "calls": "call", "ranges": "range"}
    names = ("ops", "calls", "ranges", "iterations", "devices", "reports")
    return {name: trace.read(name).drop(numbers.get(name, []), strict=False) for name in names}


def test_what_steps_are_made_of() -> None:
    """Steps of 1000 ns but the last one, which ends with its last op: 10 ns idle, 20 of WU."""
    found = compare(_run(A), _run(B)).contributions
    assert found["part"].to_list() == list(PARTS)
    rows = {row["part"]: row for row in found.iter_rows(named=True)}
    assert [rows["FP"][name] for name in ("a_total_ns", "b_total_ns", "delta_ns", "verdict")] == [
        3000, 2700, -50, "faster",
    ]  # fmt: skip
    # 5 steps of 1000 ns and one of 530 ns, of which 520 each are busy; 50 ns more are idle in B.
    # Steps of the host take 900 ns: it is in none of them for 100 ns, but after the last one.
    assert rows["idle"]["a_total_ns"] == 5 * 380 + 10
    assert rows["idle"]["b_total_ns"] == 5 * 430 + 10
    assert rows["between_steps"]["a_total_ns"] == rows["between_steps"]["b_total_ns"] == 5 * 100
    step = compare(_run(A), _run(B)).meta["step"]
    assert step["a_ns"] == pytest.approx(5530 / 6)
    assert step["delta_ns"] == pytest.approx(-50 / 6)


def test_time_between_iterations_is_part_of_a_step() -> None:
    """A step lasts until the next one begins, and the last one to its last op, at 5400."""
    b = TraceBuilder()
    for number in range(6):
        at = STEP * number
        b.iteration(number, at, at + 500)
        b.op("fw", at=at, start=at, end=at + 400, stage="FP")
        b.op("log", at=at + 600, start=at + 600, end=at + 650, stage="OTHER")
    found = compare(b.trace(), b.trace())
    totals = dict(found.contributions.select("part", "a_total_ns").rows())
    assert totals == dict.fromkeys(PARTS, 0) | {
        "FP": 2400, "OTHER": 5 * 50, "idle": 5 * 100, "between_steps": 5 * 450,
    }  # fmt: skip
    assert found.meta["step"]["a_ns"] == 5400 / 6
    assert found.table["stage"].to_list() == ["FP", "OTHER", "idle", "between_steps"]
    assert found.table.filter(stage="OTHER")["a_outside_steps_ns"].item() == 50


_LENGTHS = st.lists(st.integers(0, 800), min_size=1, max_size=9)


@settings(max_examples=examples(12, thorough=200), deadline=None)
@given(_LENGTHS, _LENGTHS, st.integers(1, 2))
def test_contributions_add_up(a: list[int], b: list[int], devices: int) -> None:
    runs = [_run(lengths, devices=devices) for lengths in (a, b)]
    found = compare(*runs)
    parts = found.contributions
    steps = []
    for side, run, lengths in zip("ab", runs, (a, b), strict=True):
        window = breakdown(run).meta["window_ns"]
        assert parts[f"{side}_total_ns"].sum() == window
        steps.append(Fraction(window, len(lengths) * devices))
    exact = [
        Fraction(of_b, len(b) * devices) - Fraction(of_a, len(a) * devices)
        for of_a, of_b in parts.select("a_total_ns", "b_total_ns").rows()
    ]
    assert sum(exact) == steps[1] - steps[0]
    assert parts["delta_ns"].to_list() == pytest.approx([float(change) for change in exact])
    assert found.meta["step"]["delta_ns"] == pytest.approx(float(steps[1] - steps[0]))
    if found.meta["step"]["delta_ns"]:
        assert parts["share"].sum() == pytest.approx(1)


@settings(max_examples=examples(8, thorough=150), deadline=None)
@given(_LENGTHS, _LENGTHS)
def test_means_are_those_of_breakdowns(a: list[int], b: list[int]) -> None:
    """Each iteration's time is a row of the breakdown by iteration, and 0 where there is none."""
    found = compare(_run(a), _run(b), "kernel").table
    for side, lengths in (("a", a), ("b", b)):
        each = breakdown(_run(lengths), "kernel,iteration").rows.drop_nulls("iteration")
        for name, mean in found.select("name", f"{side}_ns").rows():
            total = each.filter(pl.col("name").cast(pl.String) == name)["busy_ns"].sum()
            assert mean == pytest.approx(total / len(lengths))


@pytest.mark.parametrize("by", ["stage", "kind", "kernel", "device", "stage,device", "api"])
def test_a_run_does_not_differ_from_itself(by: str) -> None:
    found = compare(_run(A), _run(A), by)
    for table in (found.table, found.contributions):
        assert set(table["verdict"]) == {"too small to matter"}
        for column in ("delta_ns", "low_ns", "high_ns"):
            assert set(table[column]) == {0}
    assert found.meta["step"]["verdict"] == "too small to matter"


@settings(max_examples=examples(8, thorough=200), deadline=None)
@given(
    st.lists(st.integers(400, 500), min_size=5, max_size=9),
    st.lists(st.integers(0, 4), min_size=5, max_size=9),
    st.sampled_from([None, 0.01, 1.0, 20.0]),
)
def test_no_difference_matters_where_the_whole_interval_is_small(
    a: list[int], more: list[int], least: float | None
) -> None:
    runs = _run(a), _run([length + extra for length, extra in zip(a, more, strict=False)])
    found, back = compare(*runs, least=least), compare(*runs[::-1], least=least)
    _assert_mirrored(found, back, ["stage"])
    step = found.meta["step"]
    bound = min(step["a_ns"], step["b_ns"]) * (0.1 if least is None else least) / 100
    rows = found.contributions.select("delta_ns", "low_ns", "high_ns", "verdict").rows()
    named = ("delta_ns", "low_ns", "high_ns", "verdict")
    for delta, low, high, verdict in (*rows, tuple(step[name] for name in named)):
        if low is None:
            assert verdict in ("unknown", "not enough iterations")
            continue
        assert low <= delta <= high
        if verdict not in ("faster", "slower"):
            is_small = -bound < low and high < bound
            told = "too small to matter" if is_small else "no difference shown"
            assert verdict == told


@pytest.mark.parametrize("by", ["stage", "kernel", "api"])
def test_runs_that_change_places_mirror(by: str) -> None:
    keys = parse_compare_keys(by)
    runs = _run(A), _run(B, update=[90, 20, 30, 25, 21, 20], step=900)
    _assert_mirrored(compare(*runs, by), compare(*runs[::-1], by), list(keys))


def _assert_mirrored(there: Comparison, back: Comparison, keys: list[str]) -> None:
    keys = [{"kernel": "name"}.get(key, key) for key in keys]
    for table, mirror, columns in (
        (there.table, back.table, keys),
        (there.contributions, back.contributions, ["part"]),
    ):
        both = table.join(mirror, on=columns, nulls_equal=True, suffix="_of_mirror")
        assert both.height == table.height == mirror.height > 0
        for name, other in (("delta_ns", "delta_ns"), ("low_ns", "high_ns"), ("high_ns", "low_ns")):
            assert (both[name] == -both[f"{other}_of_mirror"]).all()
        assert both["p_value"].equals(both["p_value_of_mirror"])
        turned = [_BACKWARD.get(verdict, verdict) for verdict in both["verdict"]]
        assert turned == both["verdict_of_mirror"].to_list()


def test_few_iterations_carry_no_verdict() -> None:
    found = compare(_run(A[:4]), _run(B))
    for table in (found.table, found.contributions):
        assert set(table["verdict"]) == {"not enough iterations"}
        assert table["low_ns"].null_count() == table["p_value"].null_count() == table.height
    assert found.table["delta_ns"].to_list()[:2] == [450 - 500.25, 0]
    limit = check_limit(found, 5)
    assert limit.outcome == "unknown"
    assert "4 and 6 steps are too few" in limit.sentence


@pytest.mark.parametrize("kind", ["nsys SQLite", "rocprofv3 JSON"])
def test_data_that_one_run_lacks_are_told_within_a_format(kind: str) -> None:
    """Formats name equal data otherwise, such as calls of HIP."""

    def recorded(run: Trace, kind: str, *features: str) -> Trace:
        row = {"report": 0, "present": True, "source_table": "", "tells": "", "record_with": ""}
        told = pl.DataFrame([{**row, "feature": each} for each in features])
        reports = REPORTS.conform(
            pl.DataFrame([{"report": 0, "file": "", "format": kind, "size": 0}])
        )
        return run.with_tables({"contents": TABLES["contents"].conform(told), "reports": reports})

    a = recorded(_run(A), "nsys SQLite", "kernels", "API calls")
    notes = compare(a, recorded(_run(B), kind, "kernels")).meta["notes"]
    told = ["B has no API calls, but A does"] if kind == "nsys SQLite" else []
    assert [text for text in notes if " has no " in text] == told


def test_runs_without_iterations_are_compared_whole() -> None:
    runs = [run.with_tables({"iterations": ITERATIONS.empty()}) for run in (_run(A), _run(B))]
    for by in ("stage", "kernel", "api"):
        table = compare(*runs, by).table
        assert set(table["verdict"]) == {"not enough iterations"}
    assert compare(*runs).table.select("a_ns", "b_ns", "a_count").rows() == [
        (3000, 2700, 6), (120, 120, 6), (2410, 2660, None), (0, 0, None),
    ]  # fmt: skip
    mixed = compare(_run(A), runs[1])
    assert mixed.meta["not_comparable"] == ["B has no iterations"]
    assert (mixed.meta["headline"].split(":")[0], mixed.meta["per"]) == (
        "recording",
        "recording/GPU",
    )
    assert "idle time (" in mixed.meta["headline"]  # which is inside steps only if there are steps
    assert mixed.table["a_ns"].to_list()[:2] == [3000, 120]
    assert set(mixed.table["verdict"]) == {None}
    with pytest.raises(UsageError, match="no iterations to skip"):
        compare(*runs, skip=1)


@pytest.mark.slow
def test_limits() -> None:
    """5 steps of 1000 and one of 530 against 5 of 1100 and one of 530."""
    slow = _run(A, step=1100)
    found = compare(_run(A), slow)
    assert found.meta["step"]["delta_ns"] == pytest.approx(500 / 6)
    change = 100 * 500 / 5530
    # The short last step makes the means uncertain: the change is there, but not shown.
    assert found.meta["step"]["verdict"] == "no difference shown"
    # The limit is judged without it, and says so.
    above = check_limit(found, 5)
    assert above.outcome == "above"
    assert above.sentence.startswith(
        "above 5 %: steps change by +10.0 % without step 5 of A (530 ns), step 5 of B (530 ns), "
    )
    assert check_limit(found, 100).outcome == "within"
    more = compare(_run(A * 20), _run(A * 20, step=1100))
    assert more.meta["step"]["verdict"] == "slower"
    assert check_limit(more, change / 2).outcome == "above"
    assert check_limit(more, 13).outcome == "within"
    assert check_limit(more, 9.9).outcome == "above"
    assert check_limit(more, 10.1).outcome == "within"
    assert check_limit(compare(_run(A * 20, step=1100), _run(A * 20)), 0).outcome == "within"
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="the limit is"):
            check_limit(more, wrong)


@pytest.mark.slow
def test_a_limit_tells_once_there_are_as_many_more_steps_as_it_says() -> None:
    """Steps of 900 to 1100 ns against ones of 940 to 1140: 4 % above, of a limit of 0."""
    pattern = (100, -100, -100, 100, 100, 100, -100, -100, 100, -100)

    def run(steps: int, more: int) -> Trace:
        return _steps_of(*(1000 + more + pattern[number % 10] for number in range(steps)))

    found = check_limit(compare(run(10, 0), run(10, 40)), 0)
    assert found.outcome == "unknown"
    told = re.search(r"about (\d+) more steps", found.sentence)
    assert told is not None
    enough = 10 + 2 * int(told[1])
    assert check_limit(compare(run(enough, 0), run(enough, 40)), 0).outcome == "above"


def test_runs_that_are_not_comparable_say_so() -> None:
    one, two = _run(A, gpu="A100"), _run(A, gpu="V100", devices=2)
    found = compare(
        one, two, names=("old", "new"), labels=({"batch": "16", "x": "1"}, {"batch": "32"})
    )
    assert found.meta["not_comparable"] == [
        "1 GPU in old, 2 GPUs in new",
        "A100 in old, V100 in new",
        "batch 16 in old, batch 32 in new",
    ]
    assert set(found.table["verdict"]) == {None}
    assert found.table["low_ns"].null_count() == 0
    # All are means over devices.
    assert found.table["b_ns"].to_list()[:2] == [500, 20]
    assert found.table["b_total_ns"].to_list()[:2] == [2 * 6 * 500, 2 * 6 * 20]
    assert found.table["b_devices"].to_list() == [2] * 4
    assert found.meta["step"]["a_ns"] == found.meta["step"]["b_ns"]
    assert check_limit(found, 5).outcome == "unknown"
    assert check_limit(found, 100, anyway=True).outcome == "within"
    anyway = compare(one, two, names=("old", "new"), anyway=True)
    assert set(anyway.table["verdict"]) == {"too small to matter"}
    assert "not comparable (1 GPU in old, 2 GPUs in new; A100 in old" in anyway.meta["headline"]
    assert comparability(one, _run(A)) == []  # an unknown model is no other model


def test_launches_that_one_run_lacks_make_it_another_recording() -> None:
    cut = _run(A)
    ops = cut.read("ops").with_columns(call=pl.when(pl.col("op") % 2 == 0).then(pl.col("op")))
    whole = _run(A)
    known = whole.with_tables({"ops": whole.read("ops").with_columns(call=pl.col("op"))})
    cut = cut.with_tables({"ops": ops})
    reason = "launching calls known of 100.0 % of the ops in A, launching calls known of 50.0 %"
    assert comparability(known, cut)[0].startswith(reason)


def test_kernels_that_one_run_lacks_are_no_improvement() -> None:
    whole = _run(A)
    cut = replace(whole, warnings=(f"{NO_KERNELS}: record with `nsys profile`",))
    assert comparability(cut, whole) == ["no kernels recorded in A, kernels recorded in B"]
    assert comparability(cut, cut) == []
    assert set(compare(cut, whole).table["verdict"]) == {None}


def test_stages_that_one_run_lacks_are_compared_by_other_keys_only() -> None:
    plain = _run(A)
    ops = plain.read("ops").with_columns(
        stage=pl.lit("OTHER"), stage_source=pl.lit("none")
    )  # fmt: skip
    unknown = plain.with_tables({"ops": ops})
    assert len(comparability(plain, unknown, by=("stage",))) == 1
    assert comparability(plain, unknown, by=("kernel",)) == []


@pytest.mark.parametrize("by", COMPARE_KEYS)
def test_an_empty_capture_is_no_improvement(by: str) -> None:
    b = TraceBuilder()
    b.iteration(0, 0, 10)
    for runs in ((_run(A), b.trace()), (b.trace(), _run(A))):
        with pytest.raises(MissingDataError, match="has no GPU work"):
            compare(*runs, by)


def test_keys() -> None:
    assert parse_compare_keys(" stage, device ") == ("stage", "device")
    for wrong in ("", "layer", "stage,stage", "api,stage", []):
        with pytest.raises(UsageError):
            parse_compare_keys(wrong)
    with pytest.raises(UsageError, match="needs the traffic of each run"):
        compare(_run(A), _run(B), "link")


def test_iterations_that_not_all_processes_have_are_left_out() -> None:
    """Process 1 lacks the last iteration; what process 0 did in it has nothing to stand beside."""
    both = _run(A, devices=2)
    late = (pl.col("process") == 1) & (pl.col("iteration") == 5)
    cut = both.with_tables({
        "iterations": both.read("iterations").filter(~late),
        "ops": both.read("ops").filter(
            ~((pl.col("process") == 1) & (pl.col("launch_start") >= 5 * STEP))
        ),
    })  # fmt: skip
    found = compare(cut, both)
    assert (found.meta["a_iterations"], found.meta["b_iterations"]) == (5, 6)
    assert found.meta["notes"][:1] == ["left out, as not all processes of A have them: 1 iteration"]
    assert found.table["a_ns"].to_list()[:2] == [500, 20]
    assert found.table["a_outside_steps_ns"].to_list()[:2] == [500, 20]


def test_a_stray_context_has_no_steps() -> None:
    """Process 1 touches GPU 0 once, in its first iteration."""
    b = TraceBuilder()
    b.rows = {name: table.to_dicts() for name, table in _tables(_run(A, devices=2)).items()}
    b.thread(0), b.thread(10)
    b.op("context", at=5, start=5, end=6, thread=10, device=0, stream=99)
    found = compare(b.trace(), _run(A, devices=2))
    assert found.meta["step"]["delta_ns"] == 0


def test_calls_by_name() -> None:
    b = TraceBuilder()
    b.rows = {name: table.to_dicts() for name, table in _tables(_run(A)).items()}
    b.thread(0)
    for number in range(6):
        b.rows["calls"].append(
            {"report": 0, "process": 0, "thread": 0, "start": STEP * number + 50,
             "end": STEP * number + 350 + number, "name": "cudaDeviceSynchronize"}
        )  # fmt: skip
        # Between iterations: in none.
        b.call(STEP * number + 950, STEP * number + 960, correlation=None)
    table = compare(_run(A), b.trace(), "api").table
    columns = ("api", "a_ns", "b_ns", "a_count", "b_count", "verdict", "only_in")
    assert table.select(columns).rows() == [
        ("cudaDeviceSynchronize", 0, 302.5, 0, 1, "slower", "B"),
        ("cudaLaunchKernel", 2, 2, 2, 2, "too small to matter", None),
    ]  # fmt: skip


def test_collectives_of_mpi_whether_in_a_table_or_annotated() -> None:
    def steps() -> TraceBuilder:
        b = TraceBuilder()
        for number in range(6):
            b.iteration(number, STEP * number, STEP * number + 900)
            b.op("fw", at=STEP * number)
        return b

    annotated = steps()
    for number in range(6):
        at = STEP * number + 100
        annotated.range(at, at + 50, "MPI_Allreduce", domain="MPI")
        annotated.range(at + 60, at + 61, "MPI_Ibcast", domain="MPI")
        annotated.range(at + 70, at + 80, "MPI_Send", domain="MPI")
    rows = [
        {"report": 0, "process": 0, "thread": 0, "library": "mpi", "group": "collective",
         "name": name, "start": STEP * number + at, "end": STEP * number + at + length}
        for number in range(6)
        for name, at, length in (("MPI_Allreduce", 100, 50), ("MPI_Ibcast", 160, 1))
    ]  # fmt: skip
    kept = steps().trace().with_tables({"host": HOST.conform(pl.DataFrame(rows))})
    table = compare(annotated.trace(), kept, "collective").table
    assert table.select("collective", "a_ns", "b_ns", "a_count").sort("collective").rows() == [
        ("MPI_Allreduce", 50, 50, 1), ("MPI_Ibcast", 1, 1, 1),
    ]  # fmt: skip


def test_peak_memory() -> None:
    def with_memory(*events: tuple[int, int, int, int]) -> Trace:
        rows = [
            {"report": 0, "process": process, "device": device, "time": time, "change": change,
             "in_use": max(0, change)}
            for process, device, time, change in events
        ]  # fmt: skip
        return _run(A).with_tables({"memory": MEMORY.conform(pl.DataFrame(rows))})

    # Two processes on GPU 0: 100 and 50 at once; GPU 1 is used in B alone.
    a = with_memory((0, 0, 1, 100), (1, 0, 2, 50), (0, 0, 3, -100), (1, 0, 4, 20))
    b = with_memory((0, 0, 1, 60), (0, 1, 2, 7))
    table = compare(a, b, "memory").table
    assert table.columns == ["device", "a_bytes", "b_bytes", "delta_bytes", "ratio", "only_in"]
    assert table.rows() == [(0, 150, 60, -90, 0.4, None), (1, None, 7, None, None, "B")]
    with pytest.raises(MissingDataError, match="B has no events of GPU memory"):
        compare(a, _run(A), "memory")


def test_peak_memory_of_reports_on_one_clock_is_what_the_memory_command_says() -> None:
    """Two ranks share a GPU one after the other: never are both there."""
    reports = [{"report": report, "file": "", "format": "", "size": 0, "clock": "host a"}
               for report in (0, 1)]  # fmt: skip
    rows = [
        {"report": rank, "process": rank, "device": 0, "time": time, "change": change,
         "in_use": max(0, change)}
        for rank, time, change in ((0, 1, 100), (0, 2, -100), (1, 3, 50))
    ]  # fmt: skip
    tables = {
        "memory": MEMORY.conform(pl.DataFrame(rows)),
        "reports": REPORTS.conform(pl.DataFrame(reports)),
    }
    run = _run(A).with_tables(tables)
    assert compare(run, run, "memory").table["a_bytes"].to_list() == [100]
    assert memory_use(run).rows["peak_bytes"].to_list() == [100]


def _copies(size: int) -> Trace:
    b = TraceBuilder()
    for number in range(6):
        at = STEP * number
        b.iteration(number, at, at + 900)
        b.op("fw", at=at, start=at, end=at + 10, stage="FP")
        b.op("PtoP", at=at + 20, start=at + 20, end=at + 20 + size // 10, kind="p2p", bytes=size,
             src_device=0, dst_device=1, stage="WU", iteration=number)  # fmt: skip
    return b.trace()


def test_links() -> None:
    placed = Placed(machine(), {0: 0, 1: 1}, "number", ())
    runs = [_copies(1000), _copies(4000)]
    moved = tuple(Traffic(run, placed) for run in runs)
    table = compare(*runs, "link", traffic=(moved[0], moved[1])).table
    columns = ("link", "src", "dst", "evidence", "a_ns", "b_ns", "a_count", "a_bytes", "b_bytes",
               "verdict")  # fmt: skip
    assert table.select(columns).rows() == [
        ("GPU0-GPU1", "GPU0", "GPU1", "measured", 100, 400, 1, 1000, 4000, "slower"),
    ]


def test_links_of_processes_that_number_their_steps_differently() -> None:
    """Their order tells which steps belong together, for links as for everything else."""
    b = TraceBuilder()
    for process in (0, 1):
        for number in range(3):
            at, own = STEP * number, number + 10 * process
            b.iteration(own, at, at + 900, process=process)
            b.op("fw", at=at, start=at, end=at + 10, stage="FP", process=process, device=process)
            b.op("PtoP", at=at + 20, start=at + 20, end=at + 120, kind="p2p", bytes=1000,
                 src_device=process, dst_device=1 - process, stage="WU", iteration=own,
                 process=process, device=process)  # fmt: skip
    run = b.trace()
    moved = Traffic(run, Placed(machine(), {0: 0, 1: 1}, "number", ()))
    found = compare(run, run, "link", traffic=(moved, moved))
    assert found.meta["a_iterations"] == 3
    columns = ("src", "dst", "a_count", "a_bytes", "a_outside_steps_count")
    assert sorted(found.table.select(columns).rows()) == [
        ("GPU0", "GPU1", 1, 1000, 0), ("GPU1", "GPU0", 1, 1000, 0),
    ]  # fmt: skip


# -- steps that depend on each other -----------------------------------------------------------


def _steps_of(*lengths: int) -> Trace:
    """Steps of such lengths, which one op fills."""
    b = TraceBuilder()
    at = 0
    for number, length in enumerate(lengths):
        b.iteration(number, at, at + length)
        b.op("fw", at=at, start=at, end=at + length, stage="FP")
        at += length
    return b.trace()


def test_steps_that_drift_show_nothing() -> None:
    """24 steps, each 10 ns slower than the one before, are no sample of any mean."""
    calm = [1000 + 7 * (n * 11 % 13) for n in range(24)]
    drifting = [1100 + 10 * n for n in range(24)]
    found = compare(_steps_of(*calm), _steps_of(*drifting))
    step = found.meta["step"]
    assert step["verdict"] == "unknown"
    assert step["low_ns"] is step["high_ns"] is step["p_value"] is None
    # A trend is nearly all in the lowest of 23 frequencies, of which four are measured.
    assert step["b_effective"] == pytest.approx(24 / 23 * 4, rel=0.02)
    assert step["reason"] == (
        "24 steps of B drift through the recording, and have no mean that more of them would "
        "approach"
    )
    assert f"; unknown: {step['reason']}; most of it is" in found.meta["headline"]
    assert found.table.filter(stage="FP")["verdict"].item() == "unknown"
    limit = check_limit(found, 5)
    assert limit.outcome == "unknown"
    assert "steps drift through the recording" in limit.sentence
    _assert_mirrored(found, compare(_steps_of(*drifting), _steps_of(*calm)), ["stage"])


def test_steps_that_take_turns_show_more() -> None:
    """80 and 120 by turns: as independent steps they would not show 4 % more."""
    noise = [3 * (n * 7 % 11) for n in range(40)]
    turns = [8000 + 4000 * (n % 2) + noise[n] for n in range(40)]
    more = [length + 400 for length in turns]
    found = compare(_steps_of(*turns), _steps_of(*more))
    assert found.meta["step"]["verdict"] == "slower"
    assert found.meta["step"]["a_effective"] > 10 * 40
    # The same lengths in an order without turns, as a check.
    order = np.random.default_rng(5).permutation(40)
    mixed = [turns[n] for n in order]
    apart = compare(_steps_of(*mixed), _steps_of(*(length + 400 for length in mixed)))
    assert apart.meta["step"]["verdict"] == "no difference shown"


def test_two_kinds_of_steps_in_long_blocks_show_nothing() -> None:
    quick, slow = ([1000 + n * more % 7 for n in range(12)] for more in (3, 5))
    blocks = [*quick, *(length + 800 for length in slow)]
    found = compare(_steps_of(*blocks), _steps_of(*blocks[:12], *blocks[:12]))
    assert found.meta["step"]["verdict"] == "unknown"
    assert "24 steps of A drift through the recording" in found.meta["headline"]
    # Against itself there is nothing to be told apart.
    same = compare(_steps_of(*blocks), _steps_of(*blocks))
    assert same.meta["step"]["verdict"] == "too small to matter"
    assert same.meta["step"]["reason"] is None


def test_a_small_gain_that_one_outlier_hides() -> None:
    """40 steps that are 1 % quicker, but for one, which takes ten times as long."""
    before = [100_000 + n * n * 13 % 101 for n in range(40)]
    after = [length - 1000 for length in before]
    after[20] *= 10
    a, b = _steps_of(*before), _steps_of(*after)
    found = compare(a, b, metric="median", least=0.5)
    step = found.meta["step"]
    assert step["delta_ns"] > 0 > step["shift_ns"]
    assert step["verdict"] == "no difference shown"
    assert step["shift_verdict"] == "faster"
    assert step["shift_ns"] == pytest.approx(-1000, abs=25)
    assert "the other way than the mean; by median: faster (least 0.5 %)" in found.meta["headline"]
    assert compare(a, b, least=0.5).meta["judged"] == {
        "metric": "mean", "least_percent": 0.5, "verdict": "unknown",
        "sentence": "by mean: unknown (least 0.5 %)",
    }  # fmt: skip
    assert found.meta["notes"][0].startswith("step 20 of B: 10 times the median (")
    for wrong in (0, -1, float("nan")):
        with pytest.raises(UsageError, match="the least change is"):
            compare(a, b, least=wrong)
    with pytest.raises(UsageError, match="unknown metric 'mode': choose mean, median"):
        compare(a, b, metric="mode")  # type: ignore[arg-type]


def test_what_one_run_lacks_is_told_even_if_it_drifts() -> None:
    without = _steps_of(*[1000] * 24)
    b = TraceBuilder()
    for number in range(24):
        at = 2000 * number
        b.iteration(number, at, at + 1000)
        b.op("fw", at=at, start=at, end=at + 1000, stage="FP")
        b.op("new", at=at + 1, start=at + 1000, end=at + 1100 + 10 * number, stage="WU")
    table = compare(without, b.trace(), "kernel").table
    assert table.filter(name="new")["verdict"].item() == "slower"


# -- simulated training ------------------------------------------------------------------------


def _simulate(folder: Path, patch: pytest.MonkeyPatch, **changes: Any) -> Trace:
    folder.mkdir()
    with patch.context() as changed:
        changed.setattr(data_parallel, "ITERATIONS", 12)
        for name, value in changes.items():
            changed.setattr(data_parallel, name, value)
        data_parallel.write(data_parallel.MARKED, folder, "run")
    return attribute(read(folder / "run.sqlite", lambda *_: None), default_rules())


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    with pytest.MonkeyPatch.context() as patch:
        return _simulate(tmp_path_factory.mktemp("plain") / "run", patch)


@pytest.mark.slow
def test_merged_buckets_are_fewer_collectives(
    simulated: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three buckets become one, exchanged when backward has ended: nothing hides it."""
    *later, last = data_parallel.LAYERS
    first = replace(later[0], bucket_us=sum(layer.bucket_us or 0 for layer in (*later, last)))
    merged = (first, *(replace(layer, bucket_us=None) for layer in (*later[1:], last)))
    other = _simulate(tmp_path / "merged", monkeypatch, LAYERS=merged)
    found = compare(simulated, other, "collective", skip=1)
    row = found.table.filter(collective="all_reduce").row(0, named=True)
    assert (row["a_count"], row["b_count"]) == (3, 1)
    parts = {each["part"]: each for each in found.contributions.iter_rows(named=True)}
    assert parts["WU"]["verdict"] == "slower"
    assert parts["FP"]["verdict"] == "no difference shown"
    step = found.meta["step"]
    assert step["verdict"] == "slower"
    assert 0 < step["low_ns"] < step["delta_ns"] < step["high_ns"]
    assert check_limit(found, 1).outcome == "above"


@pytest.mark.slow
def test_slow_loading_is_idle_time(
    simulated: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = data_parallel.Rank._data

    def slowly(rank: Any, stage: str, *, prefetched: bool) -> None:
        rank.main.now += 3_000_000
        load(rank, stage, prefetched=prefetched)

    monkeypatch.setattr(data_parallel.Rank, "_data", slowly)
    other = _simulate(tmp_path / "slow", monkeypatch)
    found = compare(simulated, other, skip=1)
    assert found.table["a_count"].equals(found.table["b_count"])
    changed = found.table.filter(pl.col("verdict").is_in(["faster", "slower"]))
    assert changed["stage"].to_list() == ["idle"]
    parts = {each["part"]: each for each in found.contributions.iter_rows(named=True)}
    told = {name for name, part in parts.items() if part["verdict"] in ("faster", "slower")}
    assert told == {"idle"}
    assert parts["idle"]["delta_ns"] == pytest.approx(3_000_000, rel=0.3)
    assert check_limit(found, 5).outcome == "above"
    kernels = compare(simulated, other, "kernel", skip=1).table.filter(kind="compute")
    assert set(kernels["verdict"]) == {"too small to matter"}


@pytest.mark.slow
def test_a_faster_loader_shows_between_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two iterations the host waits 8 ms for 1 worker, and half a millisecond for 16."""
    iterate = data_parallel.Rank.iterate
    runs = []
    for workers in (1, 16):

        def waiting(rank: Any, *given: Any, workers: int = workers, **options: Any) -> Any:
            rank.main.now += 8_000_000 // workers
            return iterate(rank, *given, **options)

        with monkeypatch.context() as patch:
            patch.setattr(data_parallel.Rank, "iterate", waiting)
            runs.append(_simulate(tmp_path / f"{workers}_workers", monkeypatch))
    found = compare(runs[0], runs[1], skip=1)
    parts = {row["part"]: row for row in found.contributions.iter_rows(named=True)}
    assert parts["between_steps"]["verdict"] == "faster"
    assert parts["between_steps"]["delta_ns"] == pytest.approx(-7_500_000, rel=0.1)
    assert parts["idle"]["verdict"] == "too small to matter"
    step = found.meta["step"]
    line = rf"step: .* faster by .*\({100 * (step['ratio'] - 1):.1f} %\); shown .*; carried by"
    assert re.match(line + " idle time between steps", found.meta["headline"])
    for side, run in zip("ab", runs, strict=True):
        assert step[f"{side}_total_ns"] == _steps_by_sql(run)


def _steps_by_sql(run: Trace) -> int:
    """Return the lengths of all steps but the first, by SQL: from first to last op of each GPU."""
    statement = """
        WITH kept AS (
            SELECT o.device, o.start, o.end, o.stage, o.launch_thread = i.thread AS own
            FROM ops o JOIN iterations i
            ON o.process = i.process AND o.launch_start >= i.start AND o.launch_start < i.end
            WHERE i.iteration >= 1),
        begins AS (SELECT device, MIN(start) AS begin FROM kept
            WHERE stage <> 'IO' OR own GROUP BY device)
        SELECT SUM((SELECT MAX("end") FROM kept WHERE stage <> 'ME') - begin) AS total FROM begins
    """
    return int(query(run, statement)["total"].item())


@pytest.mark.slow
@pytest.mark.parametrize("skip", [1, 5])
def test_steps_of_ranks_add_up_to_the_window(simulated: Trace, skip: int) -> None:
    found = compare(simulated, simulated, skip=skip)
    meta = breakdown(simulated, skip=skip).meta
    assert found.contributions["a_total_ns"].sum() == meta["window_ns"]
    mean = meta["window_ns"] / (meta["iterations"] * meta["devices"])
    assert found.meta["step"]["a_ns"] == mean


def test_stages_that_are_guessed_in_one_run_alone_are_not_compared() -> None:
    known = _run(A)
    source = pl.when(pl.col("stage") == "FP").then(pl.lit("kernel_name")).otherwise("stage_source")
    guessed = known.with_tables({"ops": known.read("ops").with_columns(stage_source=source)})
    assert compare(known, guessed).meta["not_comparable"] == [
        "FP known by nvtx in A, FP known by kernel_name in B"
    ]
    assert compare(known, guessed, "kernel").meta["not_comparable"] == []


def test_kernels_whose_names_differ_in_blanks_are_one() -> None:
    runs = [
        run.with_tables({"ops": run.read("ops").with_columns(
            name=pl.col("name").cast(pl.String).replace({"fw": name}).cast(pl.Categorical())
        )})
        for run, name in (
            (_run(A), "void f<2>(double *, int&)"), (_run(B), "void f<2>(double*,int &)")
        )
    ]  # fmt: skip
    table = compare(runs[0], runs[1], "kernel").table
    assert sorted(table.select("name", "a_ns", "b_ns", "only_in").rows()) == [
        ("sgd", 20, 20, None), ("void f<2>(double *, int&)", 500, 450, None),
    ]  # fmt: skip


def test_annotated_steps_without_work_are_not_compared() -> None:
    run = _run(A)
    cut = run.with_tables({"ops": run.read("ops").filter(pl.col("launch_start") < 4 * STEP)})
    assert compare(run, cut).meta["not_comparable"] == ["2 of 6 annotated steps of B have no work"]
    assert compare(run, cut, skip=4).meta["not_comparable"] == [
        "of no annotated step of B any work is known"
    ]


def test_devices_on_clocks_of_their_own_have_no_last_step() -> None:
    """Where the last step of each ends on the other is not known."""
    run = _run(A, devices=2)
    later = pl.col("process").cast(pl.Int32)
    reports = [
        {"report": report, "file": "", "format": "", "size": 0, "clock": f"host {report}"}
        for report in (0, 1)
    ]
    tables = {name: run.read(name).with_columns(report=later)
              for name in ("ops", "calls", "iterations")}  # fmt: skip
    apart = run.with_tables({**tables, "reports": REPORTS.conform(pl.DataFrame(reports))})
    found = compare(apart, run)
    assert (found.meta["a_iterations"], found.meta["b_iterations"]) == (5, 6)
    assert found.meta["step"]["a_ns"] == 1000
    assert found.table.filter(stage="FP")["a_outside_steps_ns"].item() == 2 * 500
    assert breakdown(apart, "iteration").rows.select("iteration", "window_ns").rows()[-2:] == [
        (4, 2000), (None, 2 * 530),
    ]  # fmt: skip


def test_by_rank_and_node() -> None:
    def run(lengths: Sequence[int], *ranks: int, node: str = "n1") -> Trace:
        trace = _run(lengths, devices=2)
        call = {
            "report": 0, "thread": 0, "start": 0, "end": 1, "library": "mpi", "name": "MPI_Init",
            "group": "other",
        }  # fmt: skip
        host = [call | {"process": process, "rank": rank} for process, rank in enumerate(ranks)]
        reports = {"report": 0, "file": "f", "format": "nsys SQLite", "size": 1, "host": node}
        return trace.with_tables(
            {
                "host": pl.DataFrame(host, schema_overrides={"rank": pl.Int32}),
                "reports": pl.DataFrame([reports]),
            }
        )

    runs = run(A, 0, 1), run(B, 1, 2)
    columns = ("a_ns", "b_ns", "only_in")
    by_rank = compare(*runs, by="rank").table.select("rank", *columns).sort("rank")
    assert by_rank.rows() == [(0, 520, 0, "A"), (1, 520, 470, None), (2, 0, 470, "B")]
    # Where one run alone has ranks, their GPUs are the same all the same.
    bare = compare(runs[0], _run(B, devices=2), by="device,rank")
    assert bare.table.select("device", *columns).rows() == [
        (0, 520, 470, None), (1, 520, 470, None),
    ]  # fmt: skip
    assert "ranks of B are not known: rows are by device" in bare.meta["notes"]
    by_node = compare(*runs, by="node,stage").table.select("node", "stage", *columns)
    assert sorted(by_node.rows()) == [
        ("n1", "FP", 500, 450, None), ("n1", "WU", 20, 20, None),
    ]  # fmt: skip
    # A host is a place and no group: those of other names stand for these.
    moved = compare(run(A, 0, 1), run(B, 0, 1, node="m7"), by="node")
    assert moved.table.select("node", *columns).rows() == [("n1", 520, 470, None)]
    assert "hosts are matched in the order of their names: n1 is m7" in moved.meta["notes"]


def _on_host(*steps: int, processes: int = 1) -> Trace:
    """Return steps of such lengths on the host: FP for half of each."""
    builder = TraceBuilder()
    for thread in range(0, 10 * processes, 10):
        at = 0
        for number, step in enumerate(steps):
            builder.range(at, at + step, f"iteration {number}", thread=thread)
            builder.range(at, at + step // 2, "FP", thread=thread)
            builder.range(at + step // 2, at + step, "WU", thread=thread)
            at += step
    return builder.attributed()


def test_two_runs_on_the_host() -> None:
    apart = (0, 4, 14, 8, 2, 12, 10, 6)
    a = _on_host(*(1000 + more for more in apart))
    b = _on_host(*(500 + more for more in apart))
    found = compare(a, b)
    assert found.meta["not_comparable"] == []
    assert "NVTX ranges" in found.meta["basis"]
    assert found.meta["step"]["verdict"] == "faster"
    assert found.meta["step"]["delta_ns"] == -500
    rows = {row["stage"]: row for row in found.table.iter_rows(named=True)}
    assert rows["FP"]["a_ns"] == 503.5
    assert rows["FP"]["b_ns"] == 253.5
    parts = dict(found.contributions.select("part", "delta_ns").iter_rows())
    assert sum(parts.values()) == -500


def test_runs_on_the_host_of_unlike_numbers_of_processes() -> None:
    reasons = compare(_on_host(100, 100), _on_host(100, 100, processes=2)).meta["not_comparable"]
    assert reasons == ["1 process in A, 2 processes in B"]


def test_a_run_on_the_host_is_not_compared_to_one_on_gpus() -> None:
    builder = TraceBuilder()
    builder.iteration(0, 0, 100)
    builder.op("kernel", 10)
    with pytest.raises(MissingDataError, match="B has no GPU work"):
        compare(builder.trace(), _on_host(100, 100))
    with pytest.raises(MissingDataError, match="nothing by kernel"):
        compare(_on_host(100, 100), _on_host(100, 100), "kernel")


def test_causes_of_idle_time_add_up_to_it() -> None:
    # 300 and 400 ns of work in steps of 1,000: the rest is launched late.
    a, b = _run([300] * 8), _run([400] * 8)
    found = compare(a, b, "cause")
    parts = compare(a, b, "step").rows.filter(pl.col("part").is_in(["idle", "between_steps"]))
    for column in ("a_total_ns", "b_total_ns", "a_ns", "b_ns", "delta_ns"):
        assert found.rows[column].sum() == pytest.approx(parts[column].sum())
    assert set(found.rows["cause"]) <= set(CAUSES)
    assert found.meta["per"] == "step/GPU"


def test_what_changed_on_gpus_is_in_the_mean_what_changed() -> None:
    a, b = _run([300, 310, 290], devices=3), _run([280, 250, 270], update=[30, 20, 40], devices=3)
    found = compare(a, b)
    assert found.on_devices["device"].unique().sort().to_list() == [0, 1, 2]
    means = found.on_devices.group_by("part").agg(pl.col("a_ns", "b_ns", "delta_ns").mean())
    both = found.contributions.join(means, on="part", suffix="_gpus")
    took = found.contributions.filter(pl.max_horizontal("a_ns", "b_ns") > 0)
    assert set(both["part"]) == set(took["part"])
    for name in ("a_ns", "b_ns", "delta_ns"):
        assert both[f"{name}_gpus"].to_list() == pytest.approx(both[name].to_list())
    first = found.on_devices.filter(device=1, part="FP").row(0, named=True)
    assert first == {
        "device": 1, "part": "FP", "a_ns": 300.0, "b_ns": 800 / 3, "delta_ns": 800 / 3 - 300
    }  # fmt: skip


def test_a_gpu_of_one_run_alone_is_compared_with_nothing() -> None:
    found = compare(_run([300, 310], devices=2), _run([280, 250]))
    assert found.on_devices["device"].unique().to_list() == [0]


@pytest.mark.parametrize(
    ("sizes", "expected"), [([None, None], None), ([0, None], 0.0), ([10, 30], 20.0)]
)
def test_bytes_are_per_step_and_unknown_where_none_is_known(
    sizes: list[int | None], expected: float | None
) -> None:
    values = pl.DataFrame(
        {"link": "a", "iteration": [0, 1], "length_ns": 5, "count": 1, "per": 1, "bytes": sizes},
        schema_overrides={"bytes": pl.Int64},
    )
    nothing = pl.DataFrame()
    run = Measured(("link",), values, nothing, nothing, (0, 1), Counted(nothing, 0, 2, 0), 1)
    assert numbers_of(run, "a")["a_bytes"].to_list() == [expected]


def test_idle_time_is_told_alike_where_one_run_does_not_tell_where_the_host_was() -> None:
    """The same GPU work, the host of A known to leave its iterations: no change of idle time."""

    def run(source: str, until: int) -> Trace:
        b = TraceBuilder()
        for number in range(8):
            at = 1000 * number
            b.iteration(number, at, at + until, source=source)
            b.op("fw", at=at, start=at, end=at + 400 + number % 3, stage="FP")
        return b.trace()

    found = compare(run("ranges", 600), run("structure", 1000))
    assert found.table["stage"].to_list() == ["FP", "idle"]
    assert found.contributions["part"].to_list()[-1] == "idle"
    assert found.table.filter(stage="idle")["delta_ns"].item() == 0
    assert any(note.startswith("idle: inside of steps and between") for note in found.meta["notes"])
    told = compare(run("ranges", 600), run("ranges", 600))
    assert told.table["stage"].to_list() == ["FP", "idle", "between_steps"]


def test_time_outside_of_steps_that_differs_is_told() -> None:
    """Equal steps, but after these B evaluates for as long as three steps take."""
    b = TraceBuilder()
    b.rows = {name: table.to_dicts() for name, table in _tables(_run(A)).items()}
    at = STEP * 6 + 100
    b.op("test", at=at, start=at, end=at + 3 * STEP, stage="ME")
    b.thread(0)
    told = [each for each in compare(_run(A), b.trace()).meta["notes"] if "compared" in each]
    assert told == [
        (
            "outside of these steps, and not compared: "
            "0 ns of 5.53 us in A, 3.57 us of 9.10 us in B, mean over devices"
        )
    ]
    assert not any("compared" in each for each in compare(_run(A), _run(B)).meta["notes"])
