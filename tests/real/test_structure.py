"""Structure, without any range, says of real traces what their ranges say."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from structure_table import Row, on_one_thread, steps_with_work
from structure_works import Known, taken, works_of

import tracekit as tk
from tracekit.attribution.structure import find_structure

MNIST = ("mnist_1xa100_phases.sqlite", "mnist_1xa100_first_optimization.nsys-rep")
UNETS = (
    "ddp_unet_4xa100_rank0.sqlite", "unet_1xa100_4workers.nsys-rep", "unet_1xa100_dali.nsys-rep",
    "unet_1xa100_dali_bf16_fused_jit.nsys-rep", "unet_1xgpu_dali.qdrep",
    "unet_1xgpu_dali_amp.qdrep",
)  # fmt: skip
KINETO = "kineto_ddp_2xa100_rank0.json.gz"
CLOSURE = "closure_1gpu.sqlite"
SAMPLES = ("ddp_4gpu.sqlite", "ddp_4gpu_no_backward_range.sqlite")
TRANSFORMER = "transformer_rtx3070ti.sqlite"
BY_NIGHT = ("unet_1xa100_dali_bf16_fused_jit.nsys-rep", "unet_1xgpu_dali.qdrep")
"""Other recordings of the same program are read by day."""
ANNOTATED = [
    pytest.param(name, marks=[pytest.mark.nightly] if name in BY_NIGHT else [])
    for name in (*MNIST, *UNETS, KINETO, *SAMPLES)
]
NOT_TRAINING = (
    "jacobi_p2p_nvlink_8xv100.sqlite", "jacobi_p2p_staged_8xv100.sqlite",
    "sendrecv_2xh100_two_processes.sqlite", "nccl_4xv100_nvlink_topology.nvvp",
)  # fmt: skip

KnownOf = Callable[[str], list[Known]]


@pytest.fixture(scope="module")
def known(real_run: Callable[[str], tk.Run], tmp_path_factory: pytest.TempPathFactory) -> KnownOf:
    """Give the processes of a trace by its name; skips where it is absent or cannot be read."""
    store = tmp_path_factory.mktemp("store")
    samples = Path(__file__).resolve().parents[2] / "sample_traces"

    @cache
    def read(name: str) -> list[Known]:
        bundled = name in (*SAMPLES, CLOSURE)
        run = tk.open(samples / name, store=store) if bundled else real_run(name)
        return list(works_of(run.trace))

    return read


@pytest.mark.parametrize("name", ANNOTATED)
class TestAgainstRanges:
    def test_a_backward_thread_tells_stages_as_ranges_do(self, known: KnownOf, name: str) -> None:
        for each in known(name):
            row = Row.of(each)
            assert row.found.method == "threads"
            assert row.moved <= 0.01
            assert row.found.steps.height == row.steps
            assert abs(row.error("FP")) <= 0.01
            assert abs(row.error("BP")) <= 0.01
            assert [each for each in row.found.assumptions if each.result == "fails"] == []

    def test_steps_hold_the_same_work(self, known: KnownOf, name: str) -> None:
        for each in known(name):
            found = find_structure(each.work)
            passes = (each.stage >= 0) & (each.stage <= 1) & (found.step >= 0) & (each.step >= 0)
            pairs = np.unique(np.stack([each.step[passes], found.step[passes]]), axis=1)
            assert pairs.shape[1] == steps_with_work(each).size

    def test_one_thread_is_an_estimate(self, known: KnownOf, name: str) -> None:
        for each in known(name):
            row = Row.of(on_one_thread(each))
            assert row.found.method == "order"
            assert abs(row.found.steps.height - row.steps) <= 1
            assert abs(row.error("FP")) <= 0.05
            assert abs(row.error("BP")) <= 0.05

    @pytest.mark.parametrize(
        "end",
        [True, pytest.param(False, marks=pytest.mark.nightly)],
        ids=["end", "beginning"],
    )
    @pytest.mark.parametrize("one_thread", [False, True], ids=["threads", "order"])
    def test_a_cut_changes_no_whole_step(
        self, known: KnownOf, name: str, end: bool, one_thread: bool
    ) -> None:
        for each in known(name)[:1]:
            _check_cuts(on_one_thread(each) if one_thread else each, end)


def _check_cuts(whole: Known, end: bool) -> None:
    """Cut at 10 to 90 % of the time, and compare the steps that are whole with the uncut ones.

    By day every other place is cut at. Of one thread too little for a period may be left; names
    alone are less exact about where a pass begins and ends, and state a doubt of as much time.
    """
    work, full = whole.work, find_structure(whole.work)
    begin, span = work.start.min(), work.end.max() - work.start.min()
    told = 0
    for tenth in range(1, 10, 2 if end else 1):
        at = begin + span * tenth // 10
        rows = np.flatnonzero(work.end <= at if end else work.start >= at)
        cut = find_structure(taken(whole, rows).work)
        if not cut.training:  # too little is left
            assert (cut.stage == -1).all()
            continue
        steps = cut.steps.filter("whole")["step"].to_numpy()
        inside = np.isin(cut.step, steps)
        spent, differ = (work.end - work.start)[rows], cut.stage != full.stage[rows]
        by_names = cut.period is None and full.period is not None
        allowed = min(0.02 * spent[inside].sum(), cut.doubt_ns) if by_names else 0
        assert spent[inside & differ].sum() <= allowed
        pairs = np.stack([cut.step[inside], full.step[rows][inside]])
        assert np.unique(pairs, axis=1).shape[1] == steps.size
        told += 1
    assert told


def test_the_passes_of_a_closure_make_one_step(known: KnownOf) -> None:
    (each,) = known(CLOSURE)
    found = find_structure(each.work)
    assert found.steps.height == steps_with_work(each).size == 6
    passes = (each.stage >= 0) & (each.stage <= 1) & (found.step >= 0) & (each.step >= 0)
    assert (each.step[passes] == found.step[passes]).all()
    assert Row.of(each).moved <= 0.05


class TestTransformer:
    """Its range `Backward` holds the optimizer, and ten of its forwards have no backward."""

    def test_structure_says_what_the_program_does(self, known: KnownOf) -> None:
        (each,) = known(TRANSFORMER)
        row = Row.of(each)
        assert row.found.method == "threads"
        assert row.found.steps.height == row.steps == 5
        # All forwards by ranges are those of training and those without backward.
        forwards = row.told["FP"] + row.told["ME"]
        assert forwards == pytest.approx(row.ranged["FP"], rel=0.01)
        assert row.told["BP"] + row.told["WU"] == pytest.approx(row.ranged["BP"], rel=0.01)

    def test_one_thread_says_the_same(self, known: KnownOf) -> None:
        (each,) = known(TRANSFORMER)
        two, one = Row.of(each), Row.of(on_one_thread(each))
        assert one.found.method == "order"
        assert one.found.steps.height == 5
        for stage in ("FP", "BP", "ME"):
            assert one.told[stage] == pytest.approx(two.told[stage], rel=0.05)


@pytest.mark.parametrize("name", NOT_TRAINING)
def test_no_training_is_claimed_where_there_is_none(known: KnownOf, name: str) -> None:
    for each in known(name):
        found = find_structure(each.work)
        assert (found.method, found.training) == ("none", False)
        assert (found.stage == -1).all()


def test_inference_has_its_iterations(known: KnownOf) -> None:
    for each in known("sendrecv_2xh100_two_processes.sqlite"):
        found = find_structure(each.work)
        assert (found.period, found.steps.height) == (147, 16)


def test_a_single_step_is_refused(known: KnownOf) -> None:
    (each,) = known("lm_pyprof_nvprof.sqlite")
    assert find_structure(each.work).method == "refused"


def test_evaluation_on_batches_nearly_as_large_as_those_of_steps_is_no_acting(
    known: KnownOf,
) -> None:
    (each,) = known("mnist_1xa100_phases.sqlite")
    assert {row.result for row in find_structure(each.work).assumptions} == {"holds"}
