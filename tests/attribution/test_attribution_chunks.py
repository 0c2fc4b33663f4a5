"""Attribution of tables that come in chunks is that of the tables as a whole."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from chunk_helpers import (
    HEIGHTS,
    Plan,
    assert_same_in_chunks,
    attributed_in_chunks,
    plans,
)
from effort import by_day, examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from trace_builder import TraceBuilder, default_rules, paths_of

from tracekit.attribution import _context, _loops, _nesting, _verdict, attribute
from tracekit.attribution._arrays import NestedRows
from tracekit.model import PathTree, Trace
from tracekit.sources import read
from tracekit.support.spool import Workspace

FOLDER = Path(__file__).resolve().parents[2] / "sample_traces"
SAMPLES = ("ddp_4gpu", "ddp_4gpu_no_backward_range", "p2p_2gpu_start_end")
QUICK = settings(
    max_examples=examples(6, thorough=120),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def small_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every loop run out of room early and often."""
    monkeypatch.setattr(_nesting, "_ROOM", 1)
    monkeypatch.setattr(_verdict, "_PARTS", 1)
    monkeypatch.setattr(_context, "PathTree", lambda: PathTree(room=1))


@QUICK
@given(plan=plans(), heights=HEIGHTS)
@pytest.mark.usefixtures("mode")
def test_random_traces_in_chunks(plan: Plan, heights: list[int]) -> None:
    trace = plan.trace()
    assert_same_in_chunks(trace, attribute(trace, default_rules()), heights)


@QUICK
@given(data=st.data(), plan=plans())
@pytest.mark.usefixtures("mode")
def test_random_traces_in_small_rooms(
    data: st.DataObject, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = plan.trace()
    whole = attribute(trace, default_rules())
    with monkeypatch.context() as patch:
        small_rooms.__wrapped__(patch)  # type: ignore[attr-defined]
        assert_same_in_chunks(trace, whole, data.draw(HEIGHTS))


@cache
def _sample(name: str) -> tuple[Trace, Trace]:
    trace = read(FOLDER / f"{name}.sqlite")
    return trace, attribute(trace, default_rules())


BY_DAY = {"as it stands": "ddp_4gpu_no_backward_range", "compiled": "p2p_2gpu_start_end"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "name", "height"),
    [
        pytest.param(
            *case, marks=[] if (BY_DAY[case[0]], 37) == case[1:] else [pytest.mark.nightly]
        )
        for case in itertools.product(BY_DAY, SAMPLES, (37, 400))
    ],
    indirect=["mode"],
)
@pytest.mark.usefixtures("mode", "small_rooms")
def test_samples_in_chunks(name: str, height: int, tmp_path: Path) -> None:
    trace, whole = _sample(name)
    folder = tmp_path / "waiting"
    folder.mkdir()
    assert_same_in_chunks(trace, whole, [height, 1, 3 * height], Workspace(folder, memory=1))


@cache
def _without_ranges() -> tuple[Trace, Trace]:
    trace = _sample("ddp_4gpu")[0]
    trace = trace.with_tables({"ranges": trace.read("ranges").clear()})
    return trace, attribute(trace, default_rules())


@pytest.mark.slow
@pytest.mark.parametrize("memory", by_day([1, 1 << 30], 1))
def test_processes_without_ranges_in_pieces(tmp_path: Path, memory: int) -> None:
    trace, whole = _without_ranges()
    workspace = Workspace(tmp_path, memory)
    workspace.rows = 24  # and so six times as many ops of a process, three steps, in a piece
    tables, _ = attributed_in_chunks(trace, [50], workspace)
    evidence = tables["verdicts"]["structure_evidence"]
    assert evidence.str.contains("pieces of up to 144 ops, for --memory").all()
    for name in ("ops", "iterations"):
        assert_frame_equal(tables[name], whole.read(name), categorical_as_str=True)


@pytest.mark.usefixtures("small_rooms")
def test_all_rooms_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons: Counter[int] = Counter()
    retried: Counter[bool] = Counter()

    def follow(*arguments: Any) -> int:
        reason = _loops.follow(*arguments)
        reasons[reason] += 1
        return reason

    def nest(first: int, ranges: NestedRows, *others: Any) -> int:
        stopped = _loops.nest(first, ranges, *others)
        retried[stopped < len(ranges.start)] += 1
        return stopped

    monkeypatch.setattr(_context, "follow", follow)
    monkeypatch.setattr(_nesting, "nest", nest)
    builder = TraceBuilder()
    for depth in range(9):
        builder.range(depth, 40 - depth, f"layer {depth}")
        builder.start_end(depth, 60 - depth, "forward" if depth % 2 else "backward")
    builder.op("gemm", 20)
    trace = builder.attributed()
    assert str(paths_of(trace)[trace.read("ops")["range"].item()]).endswith("layer 8")
    full = {_loops.FULL_STACK, _loops.FULL_PATHS}
    assert full <= reasons.keys()
    assert retried[True] >= 3


def _crossing(builder: TraceBuilder) -> None:
    """One long range under many short ones that cross: what ends first lies under the others."""
    builder.range(0, 100_000, "step 1")
    for number in range(2000):
        builder.range(10 * number + 1, 10 * number + 12, f"piece {number % 3}")
        builder.op(f"op {number}", 10 * number + 11)


def _one_deep(builder: TraceBuilder) -> None:
    """Many threads with a range each, and one that never ends its own."""
    for thread in range(200):
        builder.range(0, 100_000, "work", thread=thread)
    for depth in range(1500):
        builder.range(depth + 1, 100_000, f"layer {depth}")


@pytest.mark.parametrize(("fill", "most"), [(_crossing, 1024), (_one_deep, 2048)])
def test_room_is_made_for_what_is_open_at_once(
    fill: Callable[[TraceBuilder], None], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[_nesting.Stacks[Any]] = []
    original = _nesting.Stacks.__init__

    def kept(self: _nesting.Stacks[Any], lines: int, kind: type[Any]) -> None:
        made.append(self)
        original(self, lines, kind)

    monkeypatch.setattr(_nesting.Stacks, "__init__", kept)
    builder = TraceBuilder()
    fill(builder)
    builder.attributed()
    assert max(stacks.arrays().stack.until.size for stacks in made) == most


def _many_paths(count: int) -> Iterator[tuple[int, int, str]]:
    """Chains of distinct names, so that there are as many paths as ranges."""
    for number in range(count):
        inside = number % 4
        begin = 100 * (number // 4) + inside
        yield begin, 100 * (number // 4) + 90 - inside, f"name {chr(97 + number % 26)}-{number:x}"


@pytest.mark.parametrize("count", [5000])
@pytest.mark.usefixtures("mode")
def test_many_paths(count: int) -> None:
    builder = TraceBuilder()
    for begin, end, name in _many_paths(count):
        builder.range(begin, end, name)
    trace = builder.attributed()
    assert trace.read("ranges")["path"].n_unique() == count
    names = [name for *_, name in _many_paths(count)]
    chains = [" > ".join(names[n - n % 4 : n + 1]) for n in range(count)]
    assert paths_of(trace) == chains
