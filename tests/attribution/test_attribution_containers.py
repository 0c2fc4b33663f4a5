"""Ranges around passes: a step that a rule calls an update, and optimizers that call a closure."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from trace_builder import TraceBuilder, default_rules, iterations_of, stages, steps

from tracekit.attribution import Rules
from tracekit.model import Trace

STEPS = 4
EVALUATIONS = 3
LBFGS = "Optimizer.step#LBFGS.step"
LIGHTNING = "[pl][module]Net.optimizer_step"
UPDATE = ("WU", "nvtx")


@pytest.fixture
def step_is_update(tmp_path: Path) -> Rules:
    """The rules with one that gives each step the stage of the update."""
    path = tmp_path / "rules.toml"
    path.write_text('version = 1\n[[range]]\nname = "^step [0-9]+$"\nstage = "WU"\n')
    return Rules.load(path)


def _steps(*, backward: bool, thread: int, start_end: bool = False) -> TraceBuilder:
    """Steps with work before, in, between and after their passes."""
    builder = TraceBuilder()
    add = builder.start_end if start_end else builder.range
    for n in range(STEPS):
        at = 1_000 * n
        add(at, at + 900, f"step {n}")
        builder.op(f"before {n}", at + 5)
        add(at + 10, at + 200, "forward")
        builder.op(f"forward {n}", at + 50)
        if backward:
            add(at + 300, at + 600, "backward")
        for k in range(3):
            builder.op(f"backward {n} {k}", at + 400 + 50 * k, thread=thread)
        add(at + 700, at + 800, "optimizer")
        builder.op(f"update {n}", at + 750)
        builder.op(f"after {n}", at + 850)
        builder.op(f"outside {n}", at + 950)
    return builder


def _unchanged(before: Trace, after: Trace, *words: str) -> None:
    """Hold that ops named so have the stages and iterations that they had."""
    was, found = stages(before), stages(after)
    at, now = iterations_of(before), iterations_of(after)
    names = [name for name in was if name.startswith(words)]
    assert len(names) >= STEPS
    assert {name: found[name] for name in names} == {name: was[name] for name in names}
    assert {name: now[name] for name in names} == {name: at[name] for name in names}


class TestAStepThatIsCalledAnUpdate:
    @pytest.mark.parametrize(("backward", "thread"), [(True, 0), (True, 1), (False, 1)])
    def test_moves_only_what_nothing_inside_it_explains(
        self, step_is_update: Rules, *, backward: bool, thread: int
    ) -> None:
        builder = _steps(backward=backward, thread=thread)
        before, after = builder.attributed(), builder.attributed(step_is_update)
        told = "nvtx" if thread == 0 else "backward_thread"
        assert stages(before)["backward 2 1"] == ("BP", told)
        assert stages(before)["before 2"] == stages(before)["after 2"] == ("OTHER", "none")
        _unchanged(before, after, "forward", "backward", "update")
        found = stages(after)
        for n in range(STEPS):
            assert found[f"before {n}"] == found[f"after {n}"] == UPDATE
            assert found[f"outside {n}"] == ("OTHER", "none")

    def test_leaves_as_many_iterations(self, step_is_update: Rules) -> None:
        builder = _steps(backward=True, thread=1)
        assert len(steps(builder.attributed(step_is_update))) == STEPS
        assert builder.attributed(step_is_update).warnings == ()

    def test_leaves_the_iterations_where_they_are(self, step_is_update: Rules) -> None:
        builder = _steps(backward=True, thread=1)
        assert steps(builder.attributed(step_is_update)) == steps(builder.attributed())

    @pytest.mark.parametrize("backward", [True, False])
    def test_of_start_end_ranges(self, step_is_update: Rules, *, backward: bool) -> None:
        builder = _steps(backward=backward, thread=1, start_end=True)
        before, after = builder.attributed(), builder.attributed(step_is_update)
        _unchanged(before, after, "forward", "backward", "update")


def _closures(
    name: str,
    *,
    backward: bool = True,
    thread: int = 1,
    start_end: bool = False,
    clears: str | None = "zero_grad",
    numbered: bool = True,
    evaluations: int = EVALUATIONS,
) -> TraceBuilder:
    """Optimizers that run forward and backward passes inside of their range."""
    builder = TraceBuilder()
    add = builder.start_end if start_end else builder.range
    for n in range(STEPS):
        at = 10_000 * n
        if numbered:
            builder.range(at, at + 9_900, f"step {n}")
        builder.op(f"input {n}", at + 5, kind="h2d", bytes=1 << 20)
        add(at + 10, at + 9_000, name)
        for call in range(evaluations):
            begin, mark = at + 20 + 1_000 * call, f"{n} {call}"
            if clears:
                add(begin, begin + 50, clears)
                builder.op(f"zeros {mark}", begin + 10)
            add(begin + 100, begin + 300, "forward")
            builder.op(f"forward {mark}", begin + 150)
            builder.op(f"loss {mark}", begin + 250)
            if backward:
                add(begin + 350, begin + 800, "backward")
            for k in range(3):
                builder.op(f"gradient {mark} {k}", begin + 400 + 50 * k, thread=thread)
            builder.op(f"direction {mark}", begin + 900)
        builder.op(f"apply {n}", at + 8_900)
        builder.op(f"log {n}", at + 9_500)
    return builder


def _said(trace: Trace) -> dict[str, set[tuple[str, str]]]:
    """Return what is said of ops by the first word of their names."""
    found: dict[str, set[tuple[str, str]]] = {}
    for name, told in stages(trace).items():
        found.setdefault(name.split()[0], set()).add(told)
    return found


@pytest.mark.parametrize(
    ("name", "clears", "numbered"),
    [(LBFGS, "zero_grad", True), (LBFGS, None, False), (LIGHTNING, "zero_grad", False)],
)
@pytest.mark.parametrize(
    ("backward", "thread", "source", "evaluations"),
    [(True, 0, "nvtx", EVALUATIONS), (True, 1, "backward_thread", 1),
     (False, 1, "backward_thread", EVALUATIONS)],
)  # fmt: skip
def test_an_optimizer_hides_no_pass_of_its_closure(
    name: str,
    clears: str | None,
    source: str,
    *,
    backward: bool,
    thread: int,
    evaluations: int,
    numbered: bool,
) -> None:
    trace = _closures(
        name, backward=backward, thread=thread, clears=clears, numbered=numbered,
        evaluations=evaluations,
    ).attributed()  # fmt: skip
    assert _said(trace) == {
        "input": {("IO", "copy_kind")},
        **({"zeros": {UPDATE}} if clears else {}),
        "forward": {("FP", "nvtx")},
        "loss": {("FP", "nvtx")},
        "gradient": {("BP", source)},
        "direction": {UPDATE},
        "apply": {UPDATE},
        "log": {("OTHER", "none")},
    }
    assert trace.warnings == ()
    assert len(steps(trace)) == STEPS


@pytest.mark.parametrize("backward", [True, False])
def test_the_calls_of_a_closure_are_one_iteration(*, backward: bool) -> None:
    found = iterations_of(_closures(LBFGS, backward=backward, numbered=False).attributed())
    for n in range(STEPS):
        for call in range(EVALUATIONS):
            assert found[f"forward {n} {call}"] == found[f"gradient {n} {call} 2"] == n
        assert found[f"apply {n}"] == n


def _unnamed_passes() -> TraceBuilder:
    builder = TraceBuilder()
    for n in range(STEPS):
        at = 1_000 * n
        builder.range(at + 10, at + 900, LBFGS)
        builder.range(at + 20, at + 40, "Optimizer.zero_grad#LBFGS.zero_grad")
        builder.op(f"zeros {n}", at + 30)
        builder.op(f"gemm {n}", at + 100)
        builder.op(f"dot {n}", at + 300, thread=1)
    return builder


def test_a_closure_whose_passes_no_range_names_is_no_update() -> None:
    """What runs in it may be forward passes: unknown, and a warning says so."""
    trace = _unnamed_passes().attributed()
    said = _said(trace)
    (evidence,) = trace.read("verdicts")["evidence"]
    assert evidence.startswith(f"{STEPS} weight update ranges, ")  # those that clear gradients
    assert said["gemm"] == said["dot"] == {("OTHER", "none")}
    assert said["zeros"] == {UPDATE}
    assert [text for text in trace.warnings if "L-BFGS" in text]


def test_a_stage_that_the_user_gives_to_a_closure_stays(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text('version = 1\n[[range]]\nname = "LBFGS[.]step$"\nstage = "WU"\n')
    trace = _unnamed_passes().attributed(Rules.load(path))
    assert _said(trace)["gemm"] == {UPDATE}
    assert not [text for text in trace.warnings if "L-BFGS" in text]


def test_of_one_thread_without_backward_ranges_the_optimizer_holds_what_is_left() -> None:
    """No range and no thread tells gradients from directions: they lie in the optimizer's range."""
    said = _said(_closures(LBFGS, backward=False, thread=0).attributed())
    assert said["forward"] == {("FP", "nvtx")}
    assert said["gradient"] == said["direction"] == {UPDATE}


@pytest.mark.parametrize("backward", [True, False])
def test_a_closure_in_start_end_ranges(*, backward: bool) -> None:
    said = _said(_closures(LBFGS, backward=backward, start_end=True).attributed())
    assert {stage for stage, _ in said["forward"]} == {"FP"}
    assert {stage for stage, _ in said["gradient"]} == {"BP"}


def test_an_update_beside_passes_is_no_container() -> None:
    """Ranges of an optimizer that hold none of the passes are ends of steps as ever."""
    trace = _steps(backward=False, thread=1).attributed(default_rules())
    found = trace.read("iterations").select("iteration", pl.col("name")).rows()
    assert found == [(n, f"step {n}") for n in range(STEPS)]
