"""Attribution of tables that come in chunks is that of the tables as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from chunk_helpers import (
    HEIGHTS,
    Plan,
    assert_same_in_chunks,
    mode,
    plans,
    recording_of,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder, default_rules

from tracekit._spool import Workspace
from tracekit.attribution import _following, _loops, _nesting, attribute, attribute_recording
from tracekit.attribution._paths import Labels, Paths
from tracekit.model import Trace
from tracekit.sources import read

__all__ = ["mode"]

FOLDER = Path(__file__).resolve().parents[2] / "sample_traces"
SAMPLES = ("ddp_4gpu", "ddp_4gpu_no_backward_range", "p2p_2gpu_start_end")
QUICK = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class TinyPaths(Paths):
    """Has room for one path."""

    def __init__(self, labels: Labels) -> None:
        super().__init__(labels)
        self._nodes = np.zeros((2, 1), np.int64)
        self._slots = np.full(2, -1, np.int32)


@pytest.fixture
def small_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every loop run out of room early and often."""
    monkeypatch.setattr(_nesting, "_DEPTH", 1)
    monkeypatch.setattr(_following, "_DEPTH", 1)
    monkeypatch.setattr(_following, "Paths", TinyPaths)


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


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("height", [37, 400])
@pytest.mark.usefixtures("mode", "small_rooms")
def test_samples_in_chunks(name: str, height: int, tmp_path: Path) -> None:
    trace, whole = _sample(name)
    folder = tmp_path / "waiting"
    folder.mkdir()
    assert_same_in_chunks(trace, whole, [height, 1, 3 * height], Workspace(folder, memory=1))


@pytest.mark.usefixtures("small_rooms")
def test_all_rooms_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons: Counter[int] = Counter()
    retried: Counter[bool] = Counter()

    def follow(*arguments: Any) -> int:
        reason = _loops.follow(*arguments)
        reasons[reason] += 1
        return reason

    def nest(first: int, ranges: _loops.Arrays, *rest: _loops.Arrays) -> int:
        stopped = _loops.nest(first, ranges, *rest)
        retried[stopped < ranges[0].size] += 1
        return stopped

    monkeypatch.setattr(_following, "follow", follow)
    monkeypatch.setattr(_nesting, "nest", nest)
    builder = TraceBuilder()
    for depth in range(9):
        builder.range(depth, 40 - depth, f"layer {depth}")
        builder.start_end(depth, 60 - depth, "forward" if depth % 2 else "backward")
    builder.op("gemm", 20)
    trace = builder.attributed()
    assert trace.read("ranges")["path"][trace.read("ops")["range"].item()].endswith("layer 8")
    full = {_loops.FULL_STACK, _loops.FULL_PROCESS, _loops.FULL_PATHS}
    assert full <= reasons.keys()
    assert retried[True] >= 3


def test_room_is_made_of_what_has_ended() -> None:
    # One long range under many short ones that cross: those that have ended lie under others.
    builder = TraceBuilder()
    builder.range(0, 100_000, "step 1")
    for number in range(1000):
        builder.range(10 * number + 1, 10 * number + 12, f"piece {number % 3}")
        builder.op(f"op {number}", 10 * number + 11)
    tables = _nesting_tables(builder)
    assert max(table.shape[1] for table in tables) == _nesting._DEPTH


def _nesting_tables(builder: TraceBuilder) -> list[_loops.Array]:
    made: list[_nesting._Nester] = []
    original = _nesting._Nester

    class Kept(original):  # type: ignore[valid-type,misc]
        def __init__(self, *arguments: int) -> None:
            super().__init__(*arguments)
            made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_nesting, "_Nester", Kept)
        builder.attributed()
    return [table for nester in made for table in nester._open]


@QUICK
@given(plan=plans(), heights=HEIGHTS)
@pytest.mark.usefixtures("mode")
def test_ranges_that_are_written_late(plan: Plan, heights: list[int]) -> None:
    """Whoever writes a chunk looks at the paths that were known when it was passed, no others."""
    looked_at: list[int] = []

    class Watched(TinyPaths):
        def column(self, numbers: _loops.Array, count: int) -> pl.Series:
            looked_at.append(count)
            return super().column(numbers, count)

    made: list[Callable[[], pl.DataFrame]] = []

    def write(table: str, make: Callable[[], pl.DataFrame]) -> None:
        if table == "ranges":
            made.append(make)

    trace = plan.trace()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_following, "Paths", Watched)
        recording = recording_of(trace, heights)
        attribute_recording(recording, default_rules(), Workspace(), write, lambda *_: None)
    paths = [make()["path"].cast(pl.String) for make in made]
    assert looked_at == [pl.concat(paths[: n + 1]).n_unique() for n in range(len(paths))]
    whole = attribute(trace, default_rules()).read("ranges")["path"].cast(pl.String)
    assert [path for chunk in paths for path in chunk] == whole.to_list()


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
    paths = builder.attributed().read("ranges")["path"].cast(pl.String)
    assert paths.n_unique() == count
    names = [name for *_, name in _many_paths(count)]
    chains = [" > ".join(names[n - n % 4 : n + 1]) for n in range(count)]
    assert paths.to_list() == chains
