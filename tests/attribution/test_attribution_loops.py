"""Launches and what is known of them, against plain second implementations."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest
from chunk_helpers import HEIGHTS, MARKER, Plan, plans, stream
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_builder import default_rules
from trace_builder import training as as_training

from tracekit.attribution import _launches, attribute
from tracekit.attribution._arrays import number_type
from tracekit.attribution._context import autograd_threads, backward_windows
from tracekit.attribution._iterations import find_iterations, training_threads
from tracekit.attribution._launches import Launches, link_launches
from tracekit.attribution._names import classify_ranges, classify_threads, step_names
from tracekit.model import Trace
from tracekit.support import compiled as _compiled
from tracekit.support.spool import Workspace

QUICK = settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


Key = tuple[int, int | None]
"""Process and correlation id."""


def _linked(
    ops: Sequence[Key],
    calls: Sequence[tuple[int, Key]],
    op_heights: Sequence[int] = (1 << 20,),
    call_heights: Sequence[int] = (1 << 20,),
    workspace: Workspace | None = None,
) -> Launches:
    integers = {"process": pl.Int32, "thread": pl.Int32, "correlation": pl.Int64}
    op_rows = pl.DataFrame(
        [(process, 0, correlation) for process, correlation in ops], integers, orient="row"
    )
    op_rows = op_rows.with_columns(
        kind=pl.lit("compute"), device=pl.lit(0, pl.Int32), copy_kind=pl.lit(None, pl.String)
    )
    call_rows = pl.DataFrame(
        [(process, thread, correlation) for thread, (process, correlation) in calls],
        integers,
        orient="row",
    ).with_columns(name=pl.lit("cudaMemcpy"))
    # What starts when does not matter, nor does the order in which ops start.
    streams = (
        stream(table, rows.with_row_index(key).with_columns(start=0, end=0), heights)
        for table, key, rows, heights in (
            ("ops", "op", op_rows, op_heights),
            ("calls", "call", call_rows, call_heights),
        )
    )
    threads = max((thread for thread, _ in calls), default=-1) + 1
    processes = max((process for process, _ in [*ops, *(key for _, key in calls)]), default=-1) + 1
    return link_launches(*streams, threads, processes, workspace or Workspace())


def _assert_linked(found: Launches, ops: Sequence[Key], calls: Sequence[tuple[int, Key]]) -> None:
    first: dict[Key, int] = {}
    repeated = 0
    for number, (_, key) in enumerate(calls):
        repeated += key[1] is not None and key in first
        if key[1] is not None:
            first.setdefault(key, number)
    expected = [first.get(key, -1) for key in ops]
    linked = [found.calls.read(number, "call") for number in range(len(found.calls))]
    assert [call for [chunk] in linked for call in chunk.tolist()] == expected
    launching = [bool(one) for chunk in found.launching for one in chunk]
    assert launching == [number in set(expected) for number in range(len(calls))]
    by_thread = Counter(calls[one][0] for one in expected if one >= 0)
    assert dict(enumerate(found.by_thread.tolist())) == {
        thread: by_thread[thread] for thread in range(found.by_thread.size)
    }
    assert (found.repeated, found.alone) == (repeated, expected.count(-1))


IDS = st.one_of(
    st.none(),
    st.integers(-3, 12),
    st.integers(0, 5).map(lambda number: (1 << 62) - number),
    st.integers(-3, 3).map(lambda number: number << 40),
    st.integers(-(1 << 63), (1 << 63) - 1),
)
OPS = st.lists(st.tuples(st.integers(0, 2), IDS), max_size=25)


@QUICK
@given(
    ops=OPS,
    calls=st.lists(st.tuples(st.integers(0, 3), st.tuples(st.integers(0, 2), IDS)), max_size=25),
    op_heights=HEIGHTS,
    call_heights=HEIGHTS,
)
@pytest.mark.usefixtures("mode")
def test_launches_are_those_of_a_dictionary(
    ops: list[Key],
    calls: list[tuple[int, Key]],
    op_heights: list[int],
    call_heights: list[int],
) -> None:
    # Most ops have the key of some call.
    wanted = [*ops, *(key for _, key in calls[::2]), *(key for _, key in calls[::-3])]
    _assert_linked(_linked(wanted, calls, op_heights, call_heights), wanted, calls)


@pytest.mark.usefixtures("mode")
def test_chunks_that_are_needed_again_are_indexed_again(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_launches, "_KEPT", 1)
    calls = [(number % 3, (number % 2, number % 40)) for number in range(100)]
    ops = [calls[7 * number % 100][1] for number in range(100)]
    found = _linked(ops, calls, (9,), (8,), Workspace(tmp_path, memory=1))
    assert list(tmp_path.iterdir())
    _assert_linked(found, ops, calls)


@pytest.mark.parametrize(
    "ids",
    [
        np.arange(60_000),
        np.arange(60_000) << 34,
        np.arange(60_000) * 4096,
        -np.arange(60_000) * (1 << 40),
        np.arange(60_000) + (1 << 62),
    ],
    ids=["plain", "high", "sparse", "negative", "huge"],
)
def test_no_pattern_of_ids_takes_long(ids: np.typing.NDArray[np.int64]) -> None:
    keys = [(0, one) for one in ids.tolist()]
    calls = [(0, key) for key in keys]
    _linked(keys[:1], calls[:1], workspace=None)
    began = time.process_time()
    found = _linked(keys, calls)
    assert time.process_time() - began < 2
    assert (found.repeated, found.alone) == (0, 0)


@dataclass(frozen=True)
class _Facts:
    """All that is known of the ranges and threads of a trace, row by row, found the slow way."""

    ranges: list[dict[str, object]]
    training: pl.DataFrame
    iterations: pl.DataFrame
    windows: pl.DataFrame
    autograd: set[int]
    thread_stages: dict[int, str | None]


def _meant_ranges(trace: Trace) -> list[dict[str, object]]:
    rules = default_rules()
    meant = classify_ranges(trace.read("ranges"), rules).with_columns(
        base=pl.col("name").str.replace(", seq = .*", "")
    )
    rows = step_names(meant, rules).sort("range").to_dicts()
    for number, row in enumerate(rows):
        row["pushes"] = row["style"] == "push_pop"
        around = [
            other
            for other in rows[:number]
            if row["pushes"] and other["pushes"] and other["thread"] == row["thread"]
            and other["start"] <= row["start"] < other["end"] and row["end"] <= other["end"]
        ]  # fmt: skip
        above = around[-1] if around else {}
        row["parent"] = above.get("range")
        row["evaluates"] = row["stage"] == "ME" or above.get("evaluates", False)
        row["driven"] = row["autograd"] or above.get("driven", False)
        row["apart"] = row["evaluates"] or any(
            other["stage"] == "ME" and other["style"] == "start_end"
            and other["process"] == row["process"]
            and other["start"] <= row["start"] < other["end"]
            for other in rows
        )  # fmt: skip
        row["begins"] = row["apart"] and not above.get("apart", False)
        passing = [other for other in around if other["stage"] in ("FP", "BP", "WU")]
        staged = [other for other in around if other["stage"] is not None]
        row["around"] = passing[-1]["range"] if passing else None
        row["covered"] = bool(
            staged
            and staged[-1]["stage"] == row["stage"]
            and (row["apart"] or not staged[-1]["apart"])
        )
        row["deep"] = len(passing) > 1
    return rows


_SKELETON = {
    "range": pl.Int64, "report": pl.Int32, "process": pl.Int32, "thread": pl.Int32,
    "domain": pl.String, "name": pl.String, "start": pl.Int64, "end": pl.Int64,
    "pushes": pl.Boolean, "base": pl.String, "stage": pl.String, "rule": pl.Int32,
    "number": pl.Int64, "autograd": pl.Boolean, "evaluates": pl.Boolean, "apart": pl.Boolean,
    "begins": pl.Boolean, "driven": pl.Boolean, "around": pl.Int64, "covered": pl.Boolean,
    "deep": pl.Boolean,
}  # fmt: skip


def _facts(trace: Trace, launches: list[dict[str, int]]) -> _Facts:
    """Find what `launches` need to know: training threads, steps, windows, autograd threads."""
    rules = default_rules()
    rows = _meant_ranges(trace)
    skeleton = pl.DataFrame(rows, schema=_SKELETON).with_columns(open=pl.lit(value=False))
    threads = classify_threads(trace.read("threads"), rules)
    counted = pl.DataFrame(launches, schema={"process": pl.Int32, "thread": pl.Int32})
    marks = (
        skeleton.filter(~pl.col("driven") & pl.col("stage").is_in(["FP", "BP", "WU"]))
        .group_by("process", "thread", passes="stage")
        .agg(marks=pl.len().cast(pl.Int64))
    )
    training = training_threads(
        marks, counted.group_by("process", "thread").agg(launches=pl.len().cast(pl.Int64))
    )
    told = skeleton.filter(~(pl.col("covered") & pl.col("deep")))
    none = pl.DataFrame(schema={"thread": pl.Int32, "launch": pl.Int64})
    iterations = find_iterations(told, training, rules, lambda: none)
    windows = backward_windows(told, training, iterations)
    autograd = autograd_threads(
        _served(threads, launches, windows),
        _recorded(threads, training, launches, windows),
        threads,
        skeleton.filter("autograd")["thread"].unique(),
        training,
    )
    return _Facts(
        rows, training, iterations, windows, set(autograd),
        dict(threads.select("thread", "stage").rows()),
    )  # fmt: skip


def _served(
    threads: pl.DataFrame, launches: list[dict[str, int]], windows: pl.DataFrame
) -> pl.DataFrame:
    rows = []
    for thread, process in threads.select("thread", "process").rows():
        own = windows.filter(process=process).sort("start").to_dicts()
        last = max((window["end"] for window in own), default=0)
        times = [one["start"] for one in launches if one["thread"] == thread]
        during = [t for t in times if own and own[0]["start"] <= t <= last]
        begun = [[w for w in own if w["start"] <= t][-1] for t in during]
        inside = [w["unit"] for t, w in zip(during, begun, strict=True) if t < w["end"]]
        rows.append((thread, len(during), len(inside), len(set(inside))))
    schema = {"thread": pl.Int32, "during": pl.Int64, "inside": pl.Int64, "served": pl.Int64}
    return pl.DataFrame(rows, schema, orient="row")


def _recorded(
    threads: pl.DataFrame,
    training: pl.DataFrame,
    launches: list[dict[str, int]],
    windows: pl.DataFrame,
) -> pl.DataFrame:
    """Return the backward windows that were recorded."""
    others = {*threads.drop_nulls("stage")["thread"], *training["thread"]}
    rows = []
    for process in windows["process"].unique():
        own = windows.filter(process=process).sort("start").to_dicts()
        times = [(one["start"], one["thread"]) for one in launches if one["process"] == process]
        fed, used = set(), set()
        for now, thread in times:
            begun = sum(window["start"] <= now for window in own)
            if begun and now < own[begun - 1]["end"]:
                fed.add(begun - 1)
                used |= set() if thread in others else {begun - 1}
            else:
                fed.add(begun)
        for number, window in enumerate(own):
            lies_within = bool(times) and (
                window["start"] >= min(times)[0] and window["end"] <= max(times)[0]
            )
            if number in used or (number in fed and lies_within):
                rows.append((process, window["unit"]))
    return pl.DataFrame(rows, {"process": pl.Int32, "number": pl.Int64}, orient="row")


def _open_on(facts: _Facts, thread: int, now: int) -> list[dict[str, object]]:
    return [
        row
        for row in facts.ranges
        if row["pushes"] and row["thread"] == thread and row["start"] <= now < row["end"]
    ]


def _nearest(rows: list[dict[str, object]]) -> str | None:
    known = [str(row["stage"]) for row in rows if row["stage"] is not None]
    return known[-1] if known else None


def _evaluating(rows: list[dict[str, object]]) -> bool:
    return any(row["stage"] == "ME" for row in rows)


def _backward_stage(facts: _Facts, thread: int, process: int, now: int) -> str | None:
    """Return what the training thread does at `now`, if `thread` runs its backward passes."""
    if thread not in facts.autograd:
        return None
    trainer = dict(facts.training.rows()).get(process)
    there = [] if trainer is None else _open_on(facts, trainer, now)
    if _evaluating(there):
        return "ME"
    own = facts.windows.filter(process=process)
    if own["ranged"].any():
        return _nearest(there)
    begun = own.filter(pl.col("start") <= now).sort("start").to_dicts()
    return "BP" if begun and now < begun[-1]["end"] else None


def _by_evidence(facts: _Facts, call: dict[str, int]) -> dict[str, object]:
    """Return the innermost range, the iteration, and what each rule says of a launch, in order."""
    thread, process, now = call["thread"], call["process"], call["start"]
    inside = _open_on(facts, thread, now)
    of_process = {
        str(row["stage"])
        for row in facts.ranges
        if not row["pushes"] and row["process"] == process and row["stage"] is not None
        and row["start"] <= now < row["end"]
    }  # fmt: skip
    steps = facts.iterations.filter(process=process).sort("start").to_dicts()
    begun = [step for step in steps if step["start"] <= now][-1:]
    evaluation = "ME" if _evaluating(inside) else None
    return {
        "range": inside[-1]["range"] if inside else None,
        "iteration": next((step["iteration"] for step in begun if now < step["end"]), None),
        "before": [("nvtx", evaluation), ("process_range", "ME" if "ME" in of_process else None)],
        "after": [
            ("nvtx", _nearest(inside)),
            ("thread_name", facts.thread_stages[thread]),
            (
                "backward_thread",
                _backward_stage(facts, thread, process, now) if of_process == {"WU"} else None,
            ),
            ("process_range", next(iter(of_process)) if len(of_process) == 1 else None),
            ("backward_thread", _backward_stage(facts, thread, process, now)),
            ("autograd", "BP" if any(row["autograd"] for row in inside) else None),
        ],
    }


def _is_input_by_stream(
    facts: _Facts, op: dict[str, object], launched: list[tuple[dict[str, object], dict[str, int]]]
) -> bool:
    """Tell whether all that is known to be launched on an op's stream is a data loader's."""
    drives = set(facts.training["thread"])
    loads = {row["thread"] for row in facts.ranges if row["stage"] == "IO"}
    loads |= {thread for thread, stage in facts.thread_stages.items() if stage == "IO"}
    place = ("process", "context", "stream")
    on_stream = [
        call["thread"] for other, call in launched if all(other[name] == op[name] for name in place)
    ]
    return bool(on_stream) and set(on_stream) <= loads - drives


def _expected(
    facts: _Facts,
    op: dict[str, object],
    call: dict[str, int] | None,
    launched: list[tuple[dict[str, object], dict[str, int]]],
) -> tuple[object, ...]:
    """Return ``range, iteration, stage, stage_source`` of an op."""
    known = {"range": None, "iteration": None, "before": [], "after": []}
    if call is not None:
        known = _by_evidence(facts, call)
    name = str(op["name"])
    decided = [
        *known["before"],
        ("gradient_exchange", "WU" if "AllReduce" in name else None),
        *known["after"],
        ("kernel_name", "BP" if "dgrad" in name else None),
        ("copy_kind", "IO" if name == "copy" and op["bytes"] >= 1 << 16 else None),
        ("copy_kind", "IO" if call is None and _is_input_by_stream(facts, op, launched) else None),
        ("none", "OTHER"),
    ]
    source, stage = next((source, stage) for source, stage in decided if stage is not None)
    return known["range"], known["iteration"], stage, source


@settings(
    max_examples=examples(8, thorough=200),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(plan=plans())
@pytest.mark.usefixtures("mode")
def test_launches_are_judged_by_all_ranges_around_them(plan: Plan) -> None:
    trace = plan.trace()
    found = attribute(trace, as_training(default_rules()))
    told_by_ranges = found.read("iterations").filter(source="ranges")
    others = found.read("iterations").filter(source="structure")["process"]
    by_structure = pl.col("process").is_in(others.implode())
    ops = found.read("ops").with_columns(
        iteration=pl.when(~by_structure).then("iteration")
    ).to_dicts()  # fmt: skip
    calls = {call["call"]: call for call in trace.read("calls").to_dicts()}
    of_ops = [calls.get(op["call"]) for op in ops]
    facts = _facts(trace, [call for call in of_ops if call is not None])
    for table, columns in (("ranges", ("range", "parent")),):
        assert found.read(table).select(columns).rows() == [
            tuple(row[name] for name in columns) for row in facts.ranges
        ]
    expected = facts.iterations.sort("process", "start").select("process", "iteration", "start")
    assert told_by_ranges.select(expected.columns).rows() == expected.rows()
    told = [tuple(op[k] for k in ("range", "iteration", "stage", "stage_source")) for op in ops]
    pairs = list(zip(ops, of_ops, strict=True))
    launched = [(op, call) for op, call in pairs if call is not None]
    assert told == [_expected(facts, op, call, launched) for op, call in pairs]


def test_the_marker_is_one() -> None:
    rules = default_rules()
    row = pl.DataFrame(
        {"domain": [None], "name": [MARKER]}, {"domain": pl.String, "name": pl.String}
    )
    assert classify_ranges(row, rules)["autograd"].to_list() == [True]


def test_large_inputs_are_compiled_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    original = _compiled.compiled

    def compiled(loop, rows):
        asked.append(rows)
        return original(loop, rows)

    monkeypatch.setattr(_launches, "compiled", compiled)
    keys = [(0, number) for number in range(_compiled.FEW_ROWS)]
    _linked(keys[:5], [(0, key) for key in keys])
    assert set(asked) == {_compiled.FEW_ROWS}


@pytest.mark.parametrize(
    ("rows", "bits"), [(0, 32), ((1 << 31) - 1, 32), (1 << 31, 64), (1 << 40, 64)]
)
def test_numbers_of_rows_take_as_many_bits_as_they_need(rows: int, bits: int) -> None:
    assert np.iinfo(number_type(rows)).bits == bits
