"""What holds of any work: nothing crashes, claims are consistent, cuts change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structure_programs import Program, letters, work_of

from tracekit.attribution.structure import Structure, Work, find_structure
from tracekit.attribution.structure._work import STEPS
from tracekit.model import COLLECTIVES, KINDS, STAGES

NAMES = ["gemm", "relu", "adam", "softmax_backward", "FillFunctor", "wgrad", "other"]
METHODS = ("threads", "order", "refused", "none")


def columns(size: int, alphabet: int) -> st.SearchStrategy[dict[str, Sequence[int]]]:
    """Columns of ops that say little or much: few threads and names make turns and periods."""

    def some(low: int, high: int) -> st.SearchStrategy[list[int]]:
        return st.lists(st.integers(low, high), min_size=size, max_size=size)

    return st.fixed_dictionaries(
        {
            "kind": some(0, min(alphabet, len(KINDS) - 1)), "device": some(0, 1),
            "thread": some(-1, 2), "context_stream": some(0, 1),
            "name": some(-1, min(alphabet, len(NAMES)) - 1), "size": some(-1, 3),
            "bytes": st.just([1 << 20] * size), "collective": some(0, 1),
            "length": some(0, 20), "wait": some(0, 20),
        }
    )  # fmt: skip


def made(values: dict[str, Any], repeats: int) -> Work:
    """Return work in which the same ops come several times."""
    repeated = {name: list(value) * repeats for name, value in values.items()}
    launch = np.cumsum(repeated.pop("wait"))
    end = launch + 5 + np.array(repeated.pop("length"), np.int64)
    times = {"launch": launch, "start": launch + 5, "end": end}
    return work_of(repeated | times, NAMES, 0)


def check_consistent(work: Work, found: Structure) -> None:
    """Check what every finding keeps to."""
    size, steps = len(work), found.steps
    assert found.method in METHODS
    assert found.training is {"refused": None, "none": False}.get(found.method, True)
    assert found.stage.shape == found.step.shape == (size,)
    assert found.stage.dtype == np.int8
    assert found.step.dtype == np.int32
    assert found.stage.min(initial=-1) >= -1
    assert found.stage.max(initial=-1) < STAGES.index("OTHER")
    assert steps.schema == STEPS
    assert steps["step"].to_list() == list(range(steps.height))
    assert set(np.unique(found.step)) - {-1} == set(range(steps.height))
    assert (steps["end"] >= steps["start"]).all()
    assert steps["end"][:-1].to_list() == steps["start"][1:].to_list()
    assert 0 <= found.usual_gaps <= found.gaps
    assert found.evidence or not size
    for doubt in found.doubts:
        assert min(doubt.before_ns, doubt.after_ns) >= 0
    if found.method in {"refused", "none"}:
        assert (found.stage == -1).all()
    if found.method == "refused":
        assert steps.is_empty()


GRAPH_NAMED_AS_UPDATE = {
    "kind": [0, 0, 0, 0, 9, 0, 0, 0, 0], "device": [0, 0, 0, 0, 1, 0, 0, 0, 0],
    "thread": [0] * 9, "context_stream": [0] * 9, "name": [0, 0, 0, 0, 2, 0, 0, 0, 0],
    "size": [0] * 9, "bytes": [1 << 20] * 9, "collective": [0] * 9, "length": [0] * 9,
    "wait": [0] * 9,
}  # fmt: skip


@settings(max_examples=examples(150))
@example(GRAPH_NAMED_AS_UPDATE, 30)
@given(st.integers(0, 14).flatmap(lambda size: columns(size, 12)), st.integers(1, 30))
def test_any_work_is_told_consistently(values: dict[str, Any], repeats: int) -> None:
    work = made(values, repeats)
    check_consistent(work, find_structure(work))


@settings(max_examples=examples(45, thorough=1500))
@given(st.integers(20, 120).flatmap(lambda size: columns(size, 2)), st.integers(1, 3))
def test_work_of_few_symbols_is_told_consistently(values: dict[str, Any], repeats: int) -> None:
    work = made(values, repeats)
    check_consistent(work, find_structure(work))


def layers(count: int) -> tuple[str, str]:
    """Return the forward and backward passes of a network, by threads `m` and `b`."""
    forward = "".join(f"m:gemm{n}#{n + 100}/F m:relu#{n + 200}/F " for n in range(count))
    backward = "".join(
        f"b:relu_backward#{n + 200}/B b:gemm{n}_wgrad#{n + 100}/B " for n in reversed(range(count))
    )
    return forward, backward


@st.composite
def programs(draw: st.DrawFn, passes: int = 3) -> list[tuple[str, int]]:
    """Training programs with input, accumulation, cleared gradients and evaluation."""
    forward, backward = layers(draw(st.integers(2, 5)))
    batch = draw(st.sampled_from(["m:h2d/I ", "m:d2d/I ", "m:h2d/I m:label/I "]))
    cleared = "m:FillFunctor/W " * draw(st.sampled_from([0, 3, 5]))
    update = "m:adam/W " * draw(st.integers(3, 6))
    micro = batch + cleared + forward + backward
    step = micro + (batch + forward + backward) * draw(st.integers(0, passes - 1)) + update
    evaluation = (batch + forward).replace("/F", "/M").replace("/I", "/M") + "m:d2h/M "
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        parts += [(step, draw(st.integers(4, 8))), (evaluation, draw(st.integers(0, 3)))]
    return parts


def built(parts: list[tuple[str, int]]) -> Program:
    program = Program()
    for text, times in parts:
        program.run(text, times)
    return program


def check_same_in_cut(work: Work, rows: np.ndarray[Any, Any]) -> None:
    """Check that steps that are whole in a cut are told as they are in all of the work."""
    full, cut = find_structure(work), find_structure(work.take(rows))
    check_consistent(work.take(rows), cut)
    if not cut.training or full.method != cut.method:
        return
    whole = cut.steps.filter("whole")["step"].to_numpy()
    inside = np.isin(cut.step, whole)
    assert letters(cut.stage[inside]) == letters(full.stage[rows][inside])
    pairs = np.stack([cut.step[inside], full.step[rows][inside]])
    assert np.unique(pairs, axis=1).shape[1] == whole.size


class TestGeneratedPrograms:
    @settings(max_examples=examples(100))
    @given(programs())
    def test_every_op_is_told(self, parts: list[tuple[str, int]]) -> None:
        program = built(parts)
        found = find_structure(program.work())
        assert found.method == "threads"
        assert letters(found.stage) == letters(program.stages)

    @settings(max_examples=examples(75, thorough=1500))
    @given(programs(), st.floats(0, 1), st.booleans())
    def test_a_cut_changes_no_whole_step(
        self, parts: list[tuple[str, int]], where: float, end: bool
    ) -> None:
        work = built(parts).work()
        place = round(where * len(work))
        check_same_in_cut(work, np.arange(place) if end else np.arange(place, len(work)))

    @settings(max_examples=examples(60))
    @given(programs(passes=1), st.floats(0, 1), st.booleans())
    def test_nor_does_it_by_order(
        self, parts: list[tuple[str, int]], where: float, end: bool
    ) -> None:
        work = built(parts).work()
        work.thread[:] = ord("m")
        place = round(where * len(work))
        check_same_in_cut(work, np.arange(place) if end else np.arange(place, len(work)))


@pytest.mark.parametrize("kind", ["all_reduce", "send_recv", "unknown"])
def test_collectives_of_the_vocabulary_are_known(kind: str) -> None:
    assert kind in COLLECTIVES
    check_consistent(work := Program().run(f"m:{kind}/- ", 40).work(), find_structure(work))
