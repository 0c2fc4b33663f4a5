"""What stages rest on is held against the work, and what fails is said of every table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from structure_programs import Program
from trace_builder import default_rules
from training_kinds import simulate
from training_outcomes import trace_of

from tracekit.analysis import verdict_evidence
from tracekit.attribution import attribute
from tracekit.attribution.structure import find_structure
from tracekit.attribution.structure._assumptions import LEADS, LOSS, _others_launch
from tracekit.attribution.structure._sequences import distinct
from tracekit.model import Trace

LAYERS = "an update contains no layer"
ALONE = "a forward pass that no backward pass follows is evaluation"
UPDATE = "an update ends a step"
INPUT = "a thread that copies to the GPU, on separate streams, brings input"
THREADS = "one thread launches forward passes, others launch backward passes"


def _told(name: str, mode: str) -> tuple[Trace, dict[str, dict[str, Any]]]:
    trace = attribute(trace_of(simulate(name, mode)), default_rules())
    return trace, {row["assumption"]: row for row in trace.read("assumptions").to_dicts()}


def test_what_could_be_contradicted_and_is_not_holds() -> None:
    trace, told = _told("cnn", "threads")
    assert {name: (row["result"], row["doubt_ns"]) for name, row in told.items()} == {
        THREADS: ("holds", 0), LAYERS: ("holds", 0), ALONE: ("holds", 0), UPDATE: ("holds", None),
    }  # fmt: skip
    assert not any("assumed" in text for text in trace.warnings)
    lines = verdict_evidence(trace)
    assert any(line.startswith(f"assumption: {LAYERS}: holds, doubt 0.000 ms (") for line in lines)


@pytest.mark.parametrize(
    ("name", "mode", "assumption"),
    [("muon_alone", "threads", LAYERS), ("shampoo", "one_thread", LAYERS),
     ("actor_and_learner", "threads", INPUT), ("lbfgs_resident", "threads", UPDATE)],
)  # fmt: skip
def test_what_fails_is_said_with_its_time(name: str, mode: str, assumption: str) -> None:
    trace, told = _told(name, mode)
    failed = told[assumption]
    assert failed["result"] == "fails"
    if assumption != UPDATE:
        assert failed["doubt_ns"] > 0
    said = [text for text in trace.warnings if "contradicted" in text]
    assert any(f"assumed that {assumption}: {failed['said']}" in text for text in said), said


@pytest.mark.parametrize(
    ("forces", "before", "result"),
    [("", 0, "holds"), ("m:gemm_backward/B m:gemm_backward/B ", 4, "fails")],
)
def test_gradients_before_that_of_the_loss_may_be_of_the_forward_pass(
    forces: str, before: int, result: str
) -> None:
    """Forces are gradients of an energy, and the loss compares them: a kernel between is theirs."""
    forward = "m:h2d/I m:look_up/F " + 9 * "m:gemm#5/F " + forces
    backward = (
        "m:mse_kernel#5/F m:mse_backward#5/B " + 9 * "m:gemm_backward#5/B m:relu_backward#5/B "
    )
    program = Program().run(forward + "m:gemm#5/F " + backward + 3 * "m:adam/W ", 8)
    found = {each.name: each for each in find_structure(program.work()).assumptions}[LOSS]
    assert (found.result, found.doubt_ns) == (result, 8 * 7 * before)
    passes = 8 if before else 0
    assert found.said == f"layers of {passes} of 8 backward passes come before it (0.000 ms)"


@pytest.mark.parametrize(
    ("lead", "result"),
    [
        ("m:normal/F m:uniform/F ", "fails"),
        ("m:h2d/I m:crop/F m:flip/F ", "untested"),
        ("l:h2d@9/I m:crop/F m:flip/F ", "untested"),
        ("m:embedding/F ", None),
        ("m:h2d/I ", None),
    ],
)
def test_kernels_before_the_first_layer_may_make_or_prepare_input(
    lead: str, result: str | None
) -> None:
    layers = "m:gemm/F m:relu/F m:gemm/F b:gemm_backward/B b:relu_backward/B b:gemm_backward/B "
    program = Program().run(f"{lead}{layers}m:adam/W m:adam/W m:adam/W ", 8)
    found = find_structure(program.work())
    told = {each.name: each for each in found.assumptions}.get(LEADS)
    assert (told and told.result) == result
    if told:
        assert told.doubt_ns == 8 * 2 * 7
    assert any("may make it" in each for each in found.contradictions) == (result == "fails")


@pytest.mark.parametrize("name", ["resident_unnamed", "data_parallel"])
def test_what_nothing_could_contradict_has_no_doubt_that_is_known(name: str) -> None:
    _, told = _told(name, "threads")
    untested = {assumption for assumption, row in told.items() if row["result"] == "untested"}
    assert untested == {LAYERS, UPDATE}
    assert all(told[assumption]["doubt_ns"] is None for assumption in untested)


@pytest.mark.parametrize(("update", "doubt"), [(4 * "m:gemm#9/W ", 7 * 7 * 7), ("", None)])
def test_where_no_update_is_found_forward_passes_may_hold_it(
    update: str, doubt: int | None
) -> None:
    """An update of matrix products alone looks like layers, in a recording cut at both ends."""
    passes = "m:gemm#5/F m:relu/F m:gemm/F b:gemm_backward/B b:relu_backward/B b:gemm_backward/B "
    steps = passes.removeprefix("m:gemm#5/F ") + 7 * (update + passes)
    found = find_structure(Program().run(steps).work())
    told = {each.name: each for each in found.assumptions}[LAYERS]
    assert (told.result, told.doubt_ns) == ("untested", doubt)


def test_input_before_some_steps_alone_speaks_for_none() -> None:
    """Others begin with a copy on the device: nothing says which of the two begins a step."""
    layers = "m:gemm/F m:relu/F m:gemm/F b:gemm_backward/B b:relu_backward/B b:gemm_backward/B "
    update = "m:adam/W m:adam/W m:adam/W "
    steps = [f"m:{copy}/I {layers}{update}" for copy in ("h2d", "d2d", "d2d", "h2d", *4 * ["d2d"])]
    found = find_structure(Program().run("".join(steps)).work())
    told = {each.name: each for each in found.assumptions}
    assert told[UPDATE].said == "input is copied before 1 of 7 steps"
    assert told[UPDATE].result == "untested"


def test_a_forward_pass_alone_in_each_step_is_in_doubt_with_all_its_time() -> None:
    trace, told = _told("accuracy", "threads")
    ops = trace.read("ops")
    alone = ops.filter(ops["stage"] == "ME")
    assert told[ALONE]["result"] == "untested"
    assert told[ALONE]["doubt_ns"] == (alone["end"] - alone["start"]).sum() > 0


def test_evaluation_is_in_doubt_where_it_looks_like_acting() -> None:
    """Rollouts feed less than a step does, and fetch from each pass; validation feeds a batch."""
    _, acting = _told("ppo", "threads")
    assert acting[ALONE]["result"] == "untested"
    assert acting[ALONE]["doubt_ns"] == 2_504_906
    assert "at most 65,536 bytes, usual ones of steps 262,144 bytes" in acting[ALONE]["said"]
    _, validating = _told("validation_plain", "threads")
    assert (validating[ALONE]["result"], validating[ALONE]["doubt_ns"]) == ("holds", None)


@pytest.mark.parametrize(
    ("threads", "result", "doubt_ns"),
    [([3, 3, 3, 5], "holds", 0), ([3, 3, 4, 4], "fails", 50), ([3, 3, -1, 4], "untested", None),
     ([-1, -1, -1, -1], "untested", None), ([4, -1, -1, -1], "fails", 100)],
)  # fmt: skip
def test_one_thread_launches_all_layers(
    threads: list[int], result: str, doubt_ns: int | None
) -> None:
    """Layers of 100, 100 and 50 ns, beside other work; unknown threads may be the same or not."""
    start, end = np.zeros(4, np.int64), np.array([100, 100, 50, 900])
    work = SimpleNamespace(start=start, end=end, thread=np.array(threads))
    lane: Any = SimpleNamespace(work=work, layer=np.array([True, True, True, False]))
    told = _others_launch(lane, 3)
    assert (told.result, told.doubt_ns) == (result, doubt_ns)


@pytest.mark.parametrize(
    "numbers", [[], [5], [-1, 3, 3, 0, 7], [-1, 10**6, 2], [10**6, 10**6 + 3, 10**6]]
)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_distinct_numbers_are_those_of_sorting(numbers: list[int], dtype: type[Any]) -> None:
    given = np.array(numbers, dtype)
    for ours, sorted_ in zip(distinct(given), np.unique(given, return_inverse=True), strict=True):
        assert ours.tolist() == sorted_.tolist()
