"""Stretches of a run: by times against every nanosecond, by steps, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

import tracekit as tk
from tracekit.analysis import breakdown
from tracekit.analysis.idle_time import idle
from tracekit.engine import within
from tracekit.engine._steps import parse_between
from tracekit.errors import MissingDataError, TracekitError, UsageError
from tracekit.model import Stretch, Trace

SAMPLES = Path(__file__).parents[2] / "sample_traces"
Op = tuple[int, int, int, str]
"""Device, start, end and stage."""
OPS = st.lists(
    st.builds(
        lambda device, start, length, stage: (device, start, start + length, stage),
        st.integers(0, 1), st.integers(0, 60), st.sampled_from((1, 2, 7, 40)),
        st.sampled_from(("FP", "BP", "WU", "IO")),
    ),
    min_size=1, max_size=15,
).map(lambda ops: sorted(ops, key=lambda op: op[1]))  # fmt: skip


def _trace(ops: list[Op]) -> Trace:
    builder = TraceBuilder()
    for device, start, end, stage in ops:
        builder.op("k", start=start, end=end, device=device, stage=stage, stage_source="nvtx")
    return builder.trace()


def _naive(ops: list[Op], begin: int, end: int) -> tuple[dict[str, list[int]], int, int]:
    """Return ops and busy time by stage, the length of the windows, and of it what is idle."""
    stages: dict[str, list[int]] = {}
    window = idle_ns = 0
    for device in {op[0] for op in ops}:
        own = [op for op in ops if op[0] == device]
        first, last = min(op[1] for op in own), max(op[2] for op in own)
        for now in range(max(first, begin), min(last, end)):
            running = {op[3] for op in own if op[1] <= now < op[2]}
            window += 1
            idle_ns += not running
            for stage in running:
                stages.setdefault(stage, [0, 0])[1] += 1
        for op in own:
            if begin <= op[1] < end:
                stages.setdefault(op[3], [0, 0])[0] += 1
    return stages, window, idle_ns


@settings(max_examples=examples(60), deadline=None)
@given(ops=OPS, edges=st.sets(st.integers(-5, 110), min_size=2, max_size=2).map(sorted))
def test_times_against_every_nanosecond(ops: list[Op], edges: list[int]) -> None:
    begin, end = edges
    trace = _trace(ops)
    stages, window, idle_ns = _naive(ops, begin, end)
    try:
        stretch = within(trace, between=(begin, end))
    except UsageError:
        assert not window
        return
    found = breakdown(stretch, "stage")
    assert {stage: [n, busy] for stage, n, busy in found.rows.select(
        pl.col("stage").cast(pl.String), "ops", "busy_ns").rows()} == stages  # fmt: skip
    assert (found.meta["window_ns"], found.meta["idle_ns"]) == (window, idle_ns)
    gaps = idle(stretch)
    assert (gaps.meta["window_ns"], gaps.meta["idle_ns"]) == (window, idle_ns)
    assert gaps.rows["idle_ns"].sum() == idle_ns
    by_kernel = breakdown(stretch, "kernel").rows
    assert by_kernel["busy_ns"].sum() == window - idle_ns


@pytest.fixture(scope="module")
def ddp(samples_read_once: None, tmp_path_factory: pytest.TempPathFactory) -> tk.Run:
    store = tmp_path_factory.mktemp("stretch")
    return tk.ingest(SAMPLES / "ddp_4gpu.sqlite", name="ddp", store=store)[0]


def _sums(run: tk.Run, **stretch: Any) -> dict[str, Any]:
    """Return numbers that add up over stretches next to each other."""
    stages, moved = run.breakdown.answer("stage", **stretch), run.links.answer(**stretch)
    key = pl.concat_str("link", "src", "dst")
    carried = moved.rows.select(key, "transfers", "bytes", "busy_ns").rows()
    return {
        "stages": {s: rest for s, *rest in stages.rows.select(
            pl.col("stage").cast(pl.String), "ops", "busy_ns", "exposed_ns").rows()},
        "window": {"": [stages.meta["window_ns"], stages.meta["idle_ns"], moved.meta["window_ns"]]},
        "idle": {"": [run.idle(**stretch)["idle_ns"].sum()]},
        "links": {link: [n, b or 0, busy or 0] for link, n, b, busy in carried},
        "collectives": {"": [run.collectives(by="library", **stretch)["count"].sum()]},
    }  # fmt: skip


def _added(parts: list[dict[str, Any]]) -> dict[str, Any]:
    whole: dict[str, dict[str, list[int]]] = {}
    for part in parts:
        for name, rows in part.items():
            for key, numbers in rows.items():
                known = whole.setdefault(name, {}).setdefault(key, [0] * len(numbers))
                whole[name][key] = [a + b for a, b in zip(known, numbers, strict=True)]
    return whole


@pytest.mark.slow
def test_stretches_next_to_each_other_add_up_to_the_run(ddp: tk.Run) -> None:
    ops = ddp.trace.read("ops")
    first, last = ops["start"].min(), ops["end"].max()
    assert isinstance(first, int)
    assert isinstance(last, int)
    edges = [first - 5, first + 1_234_567, ops["start"][500], last + 1]
    parts = [_sums(ddp, between=pair) for pair in pairwise(sorted(edges))]
    assert _added(parts) == _sums(ddp)


def test_steps_are_as_by_iteration(ddp: tk.Run) -> None:
    by_step = {row["iteration"]: row for row in ddp.breakdown("iteration").iter_rows(named=True)}
    steps = sorted(step for step in by_step if step is not None)
    for first, last in ((steps[0], steps[0]), (steps[1], steps[2])):
        found = ddp.breakdown.answer("device", iterations=(first, last))
        chosen = [by_step[step] for step in range(first, last + 1)]
        for name in ("ops", "busy_ns", "window_ns"):
            assert found.rows[name].sum() == sum(row[name] for row in chosen)
        alone = ddp.breakdown("iteration", iterations=(first, last))
        assert alone["iteration"].to_list() == list(range(first, last + 1))
        calls = ddp.collectives(by="iteration", iterations=(first, last))
        assert set(calls["iteration"]) == set(range(first, last + 1))


def test_what_comes_after_a_chosen_step_is_in_it(builder: TraceBuilder) -> None:
    """Evaluation lasts until the next step begins, which is not chosen."""
    for step in range(3):
        builder.iteration(step, 100 * step, 100 * step + 40, source="ranges")
        builder.op("gemm", 100 * step, end=100 * step + 30, stage="FP", iteration=step)
        builder.op("test", 100 * step + 60, end=100 * step + 80, stage="ME")
    trace = builder.trace()
    whole = {row["iteration"]: row for row in breakdown(trace, "iteration").rows.to_dicts()}
    (row,) = breakdown(within(trace, iterations=(1, 1)), "iteration").rows.to_dicts()
    assert (row["window_ns"], row["ops"]) == (100, 2)
    assert row == whole[1]
    found = idle(within(trace, iterations=(1, 1))).rows
    assert found["step_ns"].sum() == found["idle_ns"].sum() == 100 - 28 - 18


def test_a_step_that_an_edge_cuts_is_none(ddp: tk.Run) -> None:
    windows = ddp.trace.read("iterations").group_by("iteration").agg(
        pl.col("start").min(), pl.col("end").max()
    ).sort("iteration")  # fmt: skip
    begin, end = windows["start"][0] - 1000, (windows["start"][2] + windows["end"][2]) // 2
    numbers = ddp.breakdown("iteration", between=(begin, end))["iteration"].to_list()
    assert windows["iteration"][2] not in numbers
    assert numbers[-1] is None
    assert ddp.breakdown(per_iteration=True, between=(begin, end))["iterations"][0] == 2
    assert ddp.critical_path.answer(between=(begin, end)).meta["steps"] == 2
    with pytest.raises(MissingDataError, match="no complete step"):
        ddp.critical_path(between=(end - 1000, end))


def test_what_follows_the_last_step_may_be_cut(builder: TraceBuilder) -> None:
    for step in range(3):
        builder.iteration(step, 100 * step, 100 * step + 90)
        builder.op("gemm", 100 * step + 5, start=100 * step + 10, end=100 * step + 60, stage="FP")
    builder.op("test", 320, start=330, end=400, stage="ME")  # launched after the last step
    stretch = within(builder.trace(), between=(0, 350))
    found = {
        row["iteration"]: row["busy_ns"] for row in breakdown(stretch, "iteration").rows.to_dicts()
    }
    assert found == {0: 50, 1: 50, 2: 50, None: 20}


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("12.3s:12.9s", (12_300_000_000, 12_900_000_000)),
        ("0ns:1us", (0, 1000)),
        (" 1.5 ms : 0.25s ", (1_500_000, 250_000_000)),
        ("-5.3505ms:-1us", (-5_350_500, -1000)),  # a report on another one's clock began before it
    ],
)
def test_times_as_text(text: str, times: tuple[int, int]) -> None:
    assert parse_between(text) == times


@pytest.mark.parametrize("text", ["1:2", "1s", "1s:2", "--1s:2s", "1s:2m", "1s-2s", "", "1s:2s:3s"])
def test_what_says_no_times(text: str) -> None:
    with pytest.raises(UsageError, match=r"has no two times: write --between 12\.3s:12\.9s"):
        parse_between(text)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"between": "0.19s:0.18s"}, "nothing is between 0.19s and 0.18s"),
        ({"between": "5s:6s"}, r"nothing was recorded between 5s and 6s: the run is from 0\.18"),
        ({"between": "0s:1s", "iterations": (0, 1)}, "give --between or --iterations"),
        ({"iterations": (70, 80)}, "no step from 70 to 80: there are 0 to"),
        ({"between": "0s:1s", "inclusive": True, "by": "range"}, "counts complete ranges"),
    ],
)
def test_what_is_refused(ddp: tk.Run, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(TracekitError, match=message):
        ddp.breakdown(**asked)


def test_a_transfer_over_an_edge_counts_where_it_starts(ddp: tk.Run) -> None:
    moved = ddp.traffic().transfers.filter(pl.col("end") - pl.col("start") > 100).sort("start")
    row = moved.row(0, named=True)
    middle = (row["start"] + row["end"]) // 2
    before = ddp.links(by="method,stage", between=(row["start"], middle))
    after = ddp.links(by="method,stage", between=(middle, row["end"]))
    assert (
        before["transfers"].sum()
        == 1 + moved.filter(pl.col("start").is_between(row["start"] + 1, middle - 1)).height
    )
    assert (
        after["transfers"].sum()
        == moved.filter(pl.col("start").is_between(middle, row["end"] - 1)).height
    )
    assert after["busy_ns"].sum() >= row["end"] - middle


def test_links_refuse_what_is_of_a_whole_run(ddp: tk.Run) -> None:
    with pytest.raises(UsageError, match="compared with a whole run"):
        ddp.links(between="0s:1s", parameters=1000)


def test_what_holds_for_all_stretches_is_found_once() -> None:
    found: list[str] = []

    def edges(trace: Trace) -> int:
        found.append("edges")
        return trace.read("ops").height

    def in_stretch(trace: Trace) -> Stretch:
        found.append("stretch")
        return trace.stretch

    trace = Trace.of({})
    some = Stretch(between=(1, 2))
    for each in (trace, trace.limited_to(some), trace.limited_to(some).limited_to(Stretch())):
        assert each.once(edges, of_all=True) == 0
        assert each.once(in_stretch) == each.stretch
    assert found == ["edges", "stretch", "stretch", "stretch"]
    trace.limited_to(Stretch()).once(in_stretch)
    assert found[4:] == [], "it is limited so already, and knows all that it has found"
    assert trace.with_lazy({}).once(edges, of_all=True) == 0
    assert found[-1] == "edges"
