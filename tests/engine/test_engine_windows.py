"""Breakdowns against a second implementation, which looks at every nanosecond of every window."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import polars as pl
import pytest
from compared_traces import compare
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

from tracekit.analysis import breakdown
from tracekit.analysis.idle_account import _idle_ranges
from tracekit.analysis.idle_time import idle_ranges
from tracekit.analysis.step_sums import PARTS, per_iteration
from tracekit.analysis.studies import study_row
from tracekit.engine._windows import iteration_windows
from tracekit.errors import UsageError
from tracekit.model import STAGES, Trace


@dataclass(frozen=True)
class Op:
    process: int
    device: int
    start: int
    end: int
    at: int | None
    stage: str
    kind: str
    own: int | None = None
    """The iteration that its own thread was in, where that is known."""
    by_driver: bool = True
    """Whether the thread launches it that drives the iterations."""


@dataclass(frozen=True)
class Window:
    process: int | None
    device: int
    iteration: int | None
    start: int
    end: int
    is_last: bool = True

    def holds(self, op: Op) -> bool:
        return op.device == self.device and self.process in {None, op.process}

    def covered(self, ops: list[Op]) -> set[int]:
        """Every nanosecond of the window in which one of some ops runs."""
        return {
            t for op in ops if self.holds(op)
            for t in range(max(op.start, self.start), min(op.end, self.end))
        }  # fmt: skip

    def counts(self, op: Op) -> bool:
        """Whether the op starts here; one without length may lie at the end of the last window."""
        at_end = self.is_last and op.start == op.end == self.end
        return self.holds(op) and (self.start <= op.start < self.end or at_end)


Steps = dict[int, list[tuple[int, int]]]
"""Of each process, begin and end of its iterations on the host."""


def _whole(ops: list[Op]) -> list[Window]:
    windows = []
    for device in sorted({op.device for op in ops}):
        own = [op for op in ops if op.device == device]
        begin, end = min(op.start for op in own), max(op.end for op in own)
        windows.append(Window(None, device, None, begin, end))
    return windows


def _parts(steps: list[tuple[int, int]]) -> list[tuple[int, int | None]]:
    """When on the host something begins: an iteration, or the time after one."""
    parts: list[tuple[int, int | None]] = [(-10_000, None)]
    for number, (start, end) in enumerate(steps):
        parts.append((start, number))
        if number + 1 == len(steps) or steps[number + 1][0] != end:
            parts.append((end, None))
    return parts


def _part_of(op: Op, parts: list[tuple[int, int | None]]) -> int:
    """The place of the part that a launched op is of: its own thread's, else its process's."""
    own = [number for number, (_, iteration) in enumerate(parts) if iteration == op.own]
    begun = [number for number, (time, _) in enumerate(parts) if time <= (op.at or 0)]
    return own[0] if own and op.own is not None else begun[-1]


def _begins(ops: list[Op], steps: Steps) -> dict[tuple[int, int], list[tuple[int, int | None]]]:
    """When on each device what was launched in an iteration, or after one (None), begins."""
    found = {}
    for process, device in sorted({(op.process, op.device) for op in ops}):
        own = [op for op in ops if (op.process, op.device) == (process, device)]
        launched: dict[int, list[Op]] = defaultdict(list)
        parts = _parts(steps.get(process, []))
        for op in own:
            if op.at is not None:
                launched[_part_of(op, parts)].append(op)
        begins: list[tuple[int, int | None]] = []
        begin, order = -10_000, sorted(launched)
        taken, lost = _own_input(own, launched, parts)
        every = [op for op in own if op.at is not None]
        for part in order:
            work = [op for op in launched[part] if op.stage != "IO"] + taken[part]
            left = launched[part] if parts[part][1] is not None or part == 0 else []
            if work or left:
                begin = max(begin, min(op.start for op in work or left))
                begins.append((begin, parts[part][1]))
        first = min(op.start for op in own)
        if begins and min(op.start for op in every) >= lost:
            begins[0] = (min(op.start for op in every), begins[0][1])
        if not begins or first < begins[0][0]:
            begins.insert(0, (first, None))
        found[process, device] = begins
    return found


def _own_input(
    ops: list[Op], launched: dict[int, list[Op]], parts: list[tuple[int, int | None]]
) -> tuple[dict[int, list[Op]], int]:
    """By part of a device, the input that it begins with, if all earlier work has ended by then.

    That is what the driver of the steps launched in a step, or between it and the one before.
    And when what ran before all that was launched has ended.
    """
    found: dict[int, list[Op]] = defaultdict(list)
    order = sorted(launched)
    works = [op for part in order for op in launched[part] if op.stage != "IO"]
    begun = min((op.start for op in works), default=-10_000)
    lost = max((op.end for op in ops if op.at is None and op.start < begun), default=-10_000)
    ended = lost
    for place, part in enumerate(order):
        before = order[place - 1] if place else None
        drives = any(number is not None for _, number in parts[part:])
        if parts[part][1] is not None:
            # Before all steps, weights are copied as well.
            given_on = [before] if before and parts[before][1] is None else []
            for of in (*given_on, part):
                own = [op for op in launched[of] if op.stage == "IO" and op.by_driver and drives]
                if own and min(op.start for op in own) >= ended:
                    found[part] += own
        ended = max([ended, *(op.end for op in launched[part] if op.stage != "IO")])
    return found, lost


def _iteration_of(op: Op, steps: Steps) -> int | None:
    """The iteration that an op was launched in."""
    if op.at is None:
        return None
    parts = _parts(steps.get(op.process, []))
    return parts[_part_of(op, parts)][1]


def _last(begins: list[tuple[int, int | None]]) -> int | None:
    """Where in a list the last iteration of a device stands."""
    places = [place for place, (_, iteration) in enumerate(begins) if iteration is not None]
    return places[-1] if places else None


def _is_inside(spans: list[tuple[int, int]], time: int) -> bool:
    """Whether the host is inside an iteration."""
    return any(start <= time < end for start, end in spans)


def _jobs(every: dict[tuple[int, int], list[tuple[int, int | None]]]) -> dict[int, int | None]:
    """Of each process its job: those whose steps share a GPU have one of their own."""
    steps = [owner for owner, begins in every.items() if _last(begins) is not None]
    shared = {process for process, device in steps for other, same in steps
              if same == device and other != process}  # fmt: skip
    return {process: process if process in shared else None for process, _ in every}


def _ends(ops: list[Op], steps: Steps) -> dict[tuple[int | None, int], int]:
    """When the last op of each step of a job ends, on any device; input counts where it is all."""
    ends: dict[tuple[int | None, int], tuple[bool, int]] = {}
    every = _begins(ops, steps)
    jobs = _jobs(every)
    for op in ops:
        if op.stage == "ME":
            continue
        iteration, begins = _iteration_of(op, steps), every[op.process, op.device]
        place = _last(begins)
        if op.at is None and place is not None:
            after = begins[place + 1][0] if place + 1 < len(begins) else 10_000
            iteration = begins[place][1] if begins[place][0] <= op.start < after else None
        if iteration is not None:
            step = jobs[op.process], iteration
            ends[step] = max(ends.get(step, (False, -10_000)), (op.stage != "IO", op.end))
    return {step: end for step, (_, end) in ends.items()}


def _by_iteration(ops: list[Op], steps: Steps) -> list[Window]:
    windows, ends, every = [], _ends(ops, steps), _begins(ops, steps)
    jobs = _jobs(every)
    for (process, device), known in every.items():
        begins = known
        finish = max(op.end for op in ops if (op.process, op.device) == (process, device))
        edges = [*(begin for begin, _ in begins), finish]
        place = _last(begins)
        if place is not None:
            begin, iteration = begins[place]
            # An iteration of evaluation alone has no end of its own.
            whole = ends.get(
                (jobs[process], iteration or 0),
                begins[place + 1][0] if begins[place + 1 :] else finish,
            )
            begins = [*begins[: place + 1], (max(begin, whole), None)]
            edges = [*(begin for begin, _ in begins), max(finish, begin, whole)]
            if edges[-1] == edges[-2]:
                begins.pop(), edges.pop()
        windows += [
            Window(process, device, iteration, start, end, is_last=number == len(begins))
            for number, ((start, iteration), end) in enumerate(
                zip(begins, edges[1:], strict=True), 1
            )
        ]
    return windows


def _steps(windows: list[Window]) -> list[Window]:
    """Number windows by their step: also those between iterations, but not those outside."""
    of_owner: dict[tuple[int | None, int], list[Window]] = defaultdict(list)
    for window in windows:
        of_owner[window.process, window.device].append(window)
    numbers = {
        owner: [window.iteration for window in own if window.iteration is not None]
        for owner, own in of_owner.items()
    }
    most = max(map(len, numbers.values()))
    stepped = []
    for owner, own in of_owner.items():
        step, left = None, len(numbers[owner])
        for window in own:
            step = window.iteration if window.iteration is not None else step if left else None
            left -= window.iteration is not None
            counts = 2 * len(numbers[owner]) >= most
            stepped.append(replace(window, iteration=step if counts else None))
    return stepped


def _of_all_processes(windows: list[Window]) -> set[int]:
    """The steps that all processes have but those with less than half as many as another one."""
    ran: dict[int | None, set[int]] = defaultdict(set)
    for window in windows:
        if window.iteration is not None:
            ran[window.process].add(window.iteration)
    most = max(map(len, ran.values()), default=0)
    taking_part = [own for own in ran.values() if 2 * len(own) >= most]
    return set.intersection(*taking_part) if taking_part else set()


def _skipping(windows: list[Window], skip: int) -> list[Window]:
    """From the first iteration that is kept to the last one, with what lies between them."""
    kept = []
    for owner in {(window.process, window.device) for window in windows}:
        own = [window for window in windows if (window.process, window.device) == owner]
        steps = [window for window in own if window.iteration is not None]
        chosen = [window for window in steps if (window.iteration or 0) >= skip]
        if chosen:
            kept += own[own.index(chosen[0]) : own.index(chosen[-1])]
            kept.append(replace(chosen[-1], is_last=True))
    return kept


def _exposed(window: Window, ops: list[Op]) -> dict[str, int]:
    seen: set[int] = set()
    exposed = {}
    for stage in STAGES:
        covered = window.covered([op for op in ops if op.stage == stage])
        exposed[stage] = len(covered - seen)
        seen |= covered
    return exposed


def _expected(ops: list[Op], windows: list[Window]) -> dict[str, tuple[int, int, int]]:
    """Ops, busy and exposed time by stage."""
    found = {}
    for stage in STAGES:
        own = [op for op in ops if op.stage == stage]
        count = sum(window.counts(op) for op in own for window in windows)
        busy = sum(len(window.covered(own)) for window in windows)
        exposed = sum(_exposed(window, ops)[stage] for window in windows)
        if count or busy:
            found[stage] = (count, busy, exposed)
    return found


def _found(trace: Trace, skip: int = 0) -> dict[str, tuple[int, int, int]]:
    table = breakdown(trace, "stage", skip=skip).rows
    assert (table["overlap_ns"] == table["busy_ns"] - table["exposed_ns"]).all()
    return {
        stage: (ops, busy, exposed)
        for stage, ops, busy, exposed in table.select(
            "stage", "ops", "busy_ns", "exposed_ns"
        ).rows()
    }


OPS = st.lists(
    st.builds(
        lambda process, device, at, delay, length, stage, kind, launched, own, by_driver: Op(
            process,
            device,
            at + delay,
            at + delay + length,
            at if launched else None,
            stage,
            kind,
            own,
            by_driver,
        ),
        st.integers(0, 1),
        st.integers(0, 1),
        st.integers(-5, 45),
        st.integers(0, 15),
        st.integers(0, 12),
        st.sampled_from(STAGES),
        st.sampled_from(("compute", "collective", "memset")),
        st.sampled_from((True, True, True, False)),
        st.sampled_from((None, None, 0, 1)),
        st.booleans(),
    ),
    min_size=1,
    max_size=14,
)
STEPS = st.dictionaries(
    st.integers(0, 1),
    st.lists(st.integers(-3, 45), min_size=2, max_size=7, unique=True).map(
        lambda edges: [
            (a, b if n % 3 else max(a + 1, b - 2))
            for n, (a, b) in enumerate(zip(sorted(edges), sorted(edges)[1:], strict=False))
        ]
    ),
    min_size=1,
)


def _trace(ops: list[Op], steps: Steps) -> Trace:
    builder = TraceBuilder()
    for number, op in enumerate(ops):
        builder.op(
            f"op {number}", op.at, thread=10 * op.process + (not op.by_driver),
            process=op.process, device=op.device,
            start=op.start, end=op.end, stage=op.stage, kind=op.kind,
            iteration=op.own,
        )  # fmt: skip
    for process, spans in steps.items():
        for number, (start, end) in enumerate(spans):
            builder.iteration(number, start, end, thread=10 * process, source="ranges")
    return builder.trace()


@settings(max_examples=examples(15, thorough=300), deadline=None)
@given(ops=OPS)
def test_stages_of_the_whole_run(ops: list[Op]) -> None:
    trace, windows = _trace(ops, {}), _whole(ops)
    assert _found(trace) == _expected(ops, windows)
    assert breakdown(trace).rows["ops"].sum() == len(ops)
    by_device = breakdown(trace, "stage,device").rows
    idle = breakdown(trace, "device").rows
    meta = breakdown(trace).meta
    for window in windows:
        own = by_device.filter(by_device["device"] == window.device)
        row = idle.filter(idle["device"] == window.device).row(0, named=True)
        assert row["window_ns"] == window.end - window.start
        assert row["busy_ns"] == len(window.covered(ops))
        assert own["exposed_ns"].sum() + row["idle_ns"] == row["window_ns"]
    assert meta["window_ns"] == sum(window.end - window.start for window in windows)
    assert meta["idle_ns"] == idle["idle_ns"].sum()
    passes = [op for op in ops if op.stage in {"FP", "BP"}]
    busy = sum(len(window.covered(passes)) for window in windows)
    known = all(
        {"FP", "BP"} <= {op.stage for op in ops if op.process == process}
        for process in {op.process for op in ops}
    )
    assert meta["wu_residual_ns"] == (meta["window_ns"] - busy if known else None)
    assert meta["launched"] == sum(op.at is not None for op in ops) / len(ops)


@settings(max_examples=examples(20, thorough=300), deadline=None)
@given(ops=OPS, steps=STEPS)
def test_stages_of_each_iteration(ops: list[Op], steps: Steps) -> None:
    trace, windows = _trace(ops, steps), _steps(_by_iteration(ops, steps))
    table = breakdown(trace, "iteration,stage").rows
    times = breakdown(trace, "iteration").rows
    for iteration in {window.iteration for window in windows}:
        own = [window for window in windows if window.iteration == iteration]
        rows = table.filter(table["iteration"].eq_missing(iteration))
        without_work = rows["stage"].is_in(["idle", "between_steps"])
        found = {row["stage"]: row for row in rows.filter(~without_work).to_dicts()}
        expected = _expected(ops, own)
        assert {
            stage: (row["ops"], row["busy_ns"], row["exposed_ns"]) for stage, row in found.items()
        } == expected
        total = times.filter(times["iteration"].eq_missing(iteration))
        window_ns = sum(window.end - window.start for window in own)
        assert rows["exposed_ns"].sum() == window_ns
        if not expected:
            assert total.is_empty()
            continue
        assert total["window_ns"].item() == window_ns
        between = [
            t for window in own
            for t in set(range(window.start, window.end)) - window.covered(ops)
            if not _is_inside(steps.get(window.process or 0, []), t)
        ]  # fmt: skip
        assert total["between_steps_ns"].item() == len(between)
        idle = rows.filter(without_work)["exposed_ns"].sum()
        assert idle == total["idle_ns"].item() + len(between)
        assert total["ops"].item() == rows["ops"].sum()
    assert set(table["iteration"]) <= {window.iteration for window in windows}
    assert table["ops"].sum() == len(ops)


@settings(max_examples=examples(20, thorough=300), deadline=None)
@given(ops=OPS, steps=STEPS, skip=st.integers(1, 3))
def test_stages_of_the_iterations_that_are_kept(ops: list[Op], steps: Steps, skip: int) -> None:
    trace = _trace(ops, steps)
    windows = _skipping(_by_iteration(ops, steps), skip)
    if all(len(spans) <= skip for spans in steps.values()):
        with pytest.raises(UsageError, match="all iterations would be skipped"):
            breakdown(trace, skip=skip)
        return
    assert _found(trace, skip=skip) == _expected(ops, windows)
    meta = breakdown(trace, skip=skip).meta
    assert meta["window_ns"] == sum(window.end - window.start for window in windows)
    exposed = breakdown(trace, skip=skip).rows["exposed_ns"].sum()
    assert exposed + meta["idle_ns"] == meta["window_ns"]


@settings(max_examples=examples(20), deadline=None)
@given(ops=OPS, steps=STEPS)
def test_statistics_over_iterations(ops: list[Op], steps: Steps) -> None:
    trace, windows = _trace(ops, steps), _steps(_by_iteration(ops, steps))
    ran = _of_all_processes(windows)
    table = breakdown(trace, "stage", per_iteration=True).rows
    for row in table.to_dicts():
        times = sorted(
            sum(_exposed(w, ops)[row["stage"]] for w in windows if w.iteration == iteration)
            for iteration in ran
        )
        if not times:
            assert row["iterations"] is None
            continue
        assert row["iterations"] == len(times)
        stepping = {(w.process, w.device) for w in windows if w.iteration in ran}
        assert row["devices"] == len(stepping)
        if len(times) == 1:  # no spread
            assert (row["p5_ns"], row["median_ns"], row["p95_ns"]) == (None, times[0], None)
            continue
        assert times[0] <= row["p5_ns"] <= row["median_ns"] <= row["p95_ns"] <= times[-1]
        assert {row["p5_ns"], row["median_ns"], row["p95_ns"]} <= set(times)
        if len(times) % 2:
            assert row["median_ns"] == median(times)


@settings(max_examples=examples(15, thorough=300), deadline=None)
@given(ops=OPS, steps=STEPS)
def test_rows_of_a_step_by_stage_add_up_to_it(ops: list[Op], steps: Steps) -> None:
    trace = _trace(ops, steps)
    parts: dict[int | None, int] = defaultdict(int)
    for row in breakdown(trace, "stage,iteration").rows.to_dicts():
        parts[row["iteration"]] += row["exposed_ns"]
    for row in breakdown(trace, "iteration").rows.to_dicts():
        assert parts[row["iteration"]] == row["window_ns"]


@settings(max_examples=examples(10, thorough=300), deadline=None)
@given(ops=OPS, steps=STEPS)
def test_parts_of_steps_add_up_to_them(ops: list[Op], steps: Steps) -> None:
    """What a comparison and a study make of one process's steps, nanosecond by nanosecond."""
    ops, spans = [replace(op, process=0) for op in ops], next(iter(steps.values()))
    trace = _trace(ops, {0: spans})
    windows = [w for w in _steps(_by_iteration(ops, {0: spans})) if w.iteration is not None]
    row = study_row(trace, {}, "run")
    assert row["iterations"] == len({window.iteration for window in windows})
    if not windows:
        return
    expected = dict.fromkeys(PARTS, 0)
    for window in windows:
        for stage, length in _exposed(window, ops).items():
            expected[stage] += length
        for time in set(range(window.start, window.end)) - window.covered(ops):
            expected["idle" if _is_inside(spans, time) else "between_steps"] += 1
    found = compare(trace, trace)
    assert dict(found.contributions.select("part", "a_total_ns").iter_rows()) == expected
    total = sum(window.end - window.start for window in windows)
    assert found.meta["step"]["a_total_ns"] == row["step_total_ns"] == total
    assert found.table["b_total_ns"].sum() == total
    passes = expected["FP"] + expected["BP"]
    assert (row["fp_bp_total_ns"], row["idle_total_ns"], row["between_steps_total_ns"]) == (
        passes, expected["idle"], expected["between_steps"],
    )  # fmt: skip
    # Together with what lies outside, it is all that was recorded.
    every = breakdown(trace, "stage").rows
    inside_and_out = found.table.filter(found.table["stage"].is_in(list(STAGES)))
    assert set(inside_and_out["stage"]) == set(every["stage"])


def test_idle_time_by_the_range_that_the_host_is_in(builder: TraceBuilder) -> None:
    """Nothing runs from 20 to 60 and from 70 to 100, in step 0, and from 110 to 115 in step 1."""
    for number in range(2):
        at = 100 * number
        builder.iteration(number, at, at + 90)
        builder.range(at, at + 90, f"step {number}")
        builder.range(at + 30, at + 50, "loss.item, seq = 3")
        builder.range(at + 65, at + 80, "optimizer")
        builder.op("fw", at=at + 1, start=at, end=at + 20, stage="FP")
    builder.range(25, 75, "other thread", thread=1)
    builder.op("bw", at=40, start=60, end=70, stage="BP")
    builder.op("bw", at=140, start=125, end=130, stage="BP")
    trace = builder.trace()
    found = idle_ranges(trace, per_iteration(trace, ("stage",)).windows)
    # 20 to 30, 50 to 60 and 80 to 90 in the step itself; 70 to 80 in the optimizer; 120 to 125.
    assert found.rows() == [("step N", 35), ("loss.item", 20), ("optimizer", 10)]
    parts = compare(trace, trace)
    assert parts.contributions.filter(part="idle")["a_total_ns"].item() == 65
    assert parts.contributions.filter(part="between_steps")["a_total_ns"].item() == 10
    assert parts.meta["notes"][0] == (
        "idle in A, by where the host was: step N 18 ns, loss.item 10 ns, optimizer 5 ns"
    )
    windows = per_iteration(trace, ("stage",), skip=1).windows
    assert idle_ranges(trace, windows).rows() == [("step N", 5)]


@settings(max_examples=examples(12, thorough=250), deadline=None)
@given(ops=OPS, steps=STEPS, spans=st.lists(st.tuples(st.integers(-3, 45), st.integers(1, 9))))
def test_idle_ranges_add_up_to_idle_time(
    ops: list[Op], steps: Steps, spans: list[tuple[int, int]]
) -> None:
    trace = _trace(ops, steps)
    builder = TraceBuilder()
    for number, (start, length) in enumerate(sorted(spans)):
        # One after the other on the training thread of process 0.
        at = start + 50 * number
        builder.range(at, at + length, "a range")
    trace = trace.with_tables({"ranges": builder.trace().read("ranges")})
    found = compare(trace, trace)
    if found.meta["a_iterations"]:
        idle = found.contributions.filter(part="idle")["a_total_ns"].item()
        windows = per_iteration(trace, ("stage",)).windows
        ranges = idle_ranges(trace, windows)
        assert ranges["idle_ns"].sum() == idle
        with pytest.MonkeyPatch.context() as changed:  # as if threads were in ranges at once
            changed.setattr(_idle_ranges, "follow", lambda *_: False)
            assert idle_ranges(trace, windows).equals(ranges)


STEP_OPS = [(10, 20, 5, "FP"), (110, 120, 102, "IO"), (130, 140, 103, "IO"), (150, 160, 104, "FP"),
            (170, 180, 105, "BP"), (230, 240, 202, "IO"), (250, 260, 203, "IO")]  # fmt: skip
"""Start, end, launch and stage of ops of three steps, which begin at 0, 100 and 200."""


def _step_begins(
    ops: list[tuple[int, int, int | None, str]], thread: int, beside: int | None = None
) -> list[Any]:
    """When on a device steps begin whose input copies a thread launches; they are of thread 0.

    The op that is launched at `beside` is of thread 9.
    """
    columns, launch = ("start", "end", "launch_start", "stage"), pl.col("launch_start")
    rows = pl.DataFrame(ops, schema=columns, orient="row").with_columns(
        process=0, device=0,
        iteration=pl.when(launch % 100 < 90).then(launch // 100),
        launch_thread=pl.when(pl.col("stage") == "IO").then(thread)
        .when(launch.eq_missing(beside)).then(9).otherwise(0),
    ).cast({"process": pl.Int32, "device": pl.Int32})  # fmt: skip
    steps = pl.DataFrame(
        {"process": 0, "thread": 0, "iteration": n, "start": 100 * n, "end": 100 * n + 90,
         "clock": "a", "source": "ranges"} for n in range(3)
    )  # fmt: skip
    found = iteration_windows(rows, steps.cast({"process": pl.Int32}))
    return found.sort("start").select("iteration", "start").rows()


def test_input_of_another_thread_begins_a_step_only_where_nothing_else_does() -> None:
    assert _step_begins(STEP_OPS, thread=1) == [(0, 10), (1, 150), (2, 230)]


def test_input_that_a_step_launches_itself_begins_it() -> None:
    assert _step_begins(STEP_OPS, thread=0) == [(0, 10), (1, 110), (2, 230)]


def test_input_that_runs_beside_the_step_before_does_not_begin_one() -> None:
    late = [(10, 115, 5, "FP"), *STEP_OPS[1:]]
    assert _step_begins(late, thread=0) == [(0, 10), (1, 150), (2, 230)]


def test_input_that_is_launched_before_the_range_of_its_step_is_of_that_step() -> None:
    ahead = [(10, 20, 5, "FP"), (96, 99, 95, "IO"), (150, 160, 104, "FP")]
    assert _step_begins(ahead, thread=0) == [(0, 10), (1, 96)]
    assert _step_begins(ahead, thread=1) == [(0, 10), (1, 150)]
    evaluated = [(10, 20, 5, "FP"), (93, 95, 92, "ME"), (96, 99, 95, "IO"), (150, 160, 104, "FP")]
    assert _step_begins(evaluated, thread=0) == [(0, 10), (None, 93), (1, 96)]


@pytest.mark.parametrize("stage", ["ME", "OTHER"])
def test_another_thread_s_work_beside_the_step_before_begins_none(stage: str) -> None:
    """A host that is ahead launched evaluation of step 1 while the GPU was still in step 0."""
    ahead = [(10, 60, 5, "FP"), (20, 30, 120, stage), (60, 150, 104, "FP"), (160, 170, 203, "FP")]
    assert _step_begins(ahead, thread=0, beside=120) == [(0, 10), (1, 60), (2, 160)]
    # Its own thread may begin a step on another stream, beside the end of the update.
    assert _step_begins(ahead, thread=0) == [(0, 10), (1, 20), (2, 160)]


@pytest.mark.parametrize("stage", ["FP", "OTHER"])
@pytest.mark.parametrize("launch", [98, 101, 120])
def test_another_thread_s_request_begins_no_step(stage: str, launch: int) -> None:
    """Of a server beside training: nothing else ran on the GPU when it came."""
    ops = [(10, 60, 5, "FP"), (130, 132, launch, stage), (140, 150, 104, "FP")]
    assert _step_begins(ops, thread=0, beside=launch) == [(0, 10), (1, 140)]
    # Nor does it end one, so that input may begin the next step before the request ends.
    ops = [(10, 60, 5, "FP"), (70, 150, launch, stage), (120, 130, 102, "IO"), *ops[2:]]
    assert _step_begins(ops, thread=0, beside=launch) == [(0, 10), (1, 120)]


def test_what_ran_before_all_that_was_launched_is_of_no_step() -> None:
    earlier: list[tuple[int, int, int | None, str]] = [(1, 4, None, "FP"), (4, 8, None, "WU")]
    assert _step_begins([*earlier, *STEP_OPS], thread=0)[:2] == [(None, 1), (0, 10)]


def test_processes_that_share_a_gpu_end_their_last_steps_by_themselves(
    builder: TraceBuilder,
) -> None:
    """The last step of the first took 380 ns, until that of the other one ended, and not 30."""
    for process, length in ((0, 30), (1, 200)):
        for step in range(3):
            begin = 100 + step * length
            builder.iteration(step, begin, begin + 20, thread=10 * process, source="ranges")
            builder.op("gemm", begin, thread=10 * process, start=begin, end=begin + length)
    trace = builder.trace()
    ops, own = trace.read("ops"), pl.col("launch_start")
    length = pl.when(process=0).then(30).otherwise(200)
    ops = ops.with_columns(iteration=((own - 100) / length).cast(pl.Int64))
    steps = trace.read("iterations").with_columns(clock=pl.lit("a"))
    found = iteration_windows(ops, steps).drop_nulls("iteration")
    lengths = found.group_by("process").agg((pl.col("end") - pl.col("start")).unique())
    assert dict(lengths.rows()) == {0: [30], 1: [200]}
