"""What backward passes compute again: forward passes, run again by the thread of backward."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from structure_programs import Program
from trace_builder import default_rules
from training_kinds import KINDS, simulate
from training_later import LATER
from training_outcomes import trace_of
from training_sim import MODES

from tracekit.attribution import attribute
from tracekit.attribution.structure import find_structure
from tracekit.attribution.structure._find import recomputed
from tracekit.attribution.structure._kernel_hints import look_at
from tracekit.attribution.structure._work import BP, FP

WITH_A_THREAD = [mode for mode in MODES if mode != "one_thread"]
AGAIN = ("checkpointing_fused", "checkpointing_plain")


def _shares(name: str, mode: str, seed: int = 1) -> tuple[float, float, float]:
    """Return what is run again, what is told to be, and what of this is: parts of the time."""
    simulated = simulate(name, mode, seed)
    ops = attribute(trace_of(simulated), default_rules()).read("ops").sort("correlation")
    spent = (ops["end"] - ops["start"]).to_numpy()
    told = ops["recomputed"].fill_null(value=False).to_numpy()
    again = np.array([op["again"] for op in simulated.ops])
    return tuple(float(spent[mask].sum() / spent.sum()) for mask in (again, told, again & told))


@pytest.mark.parametrize("mode", WITH_A_THREAD)
@pytest.mark.parametrize("name", AGAIN)
def test_layers_that_backward_computes_again_are_told(name: str, mode: str) -> None:
    again, told, right = _shares(name, mode)
    assert told == right
    assert right > 0.7 * again  # the others are segments of two kernels


@pytest.mark.parametrize("name", ["cnn", "gan_plain", "maml", "gradient_penalty", "shampoo"])
def test_nothing_is_told_to_run_again_that_does_not(name: str) -> None:
    assert _shares(name, "threads")[1] == 0


@pytest.mark.nightly
@pytest.mark.parametrize("mode", WITH_A_THREAD)
@pytest.mark.parametrize("name", sorted({*KINDS} | LATER))
def test_what_is_told_to_run_again_does_by_night(name: str, mode: str) -> None:
    for seed in (1, datetime.now(tz=UTC).toordinal()):
        _, told, right = _shares(name, mode, seed)
        assert told == right, seed


def test_it_is_known_of_backward_passes_of_a_thread_of_their_own_alone() -> None:
    ops = attribute(trace_of(simulate("checkpointing_fused", "threads")), default_rules())
    is_backward = ops.read("ops")["stage"] == "BP"
    known = ops.read("ops")["recomputed"]
    assert set(known.filter(is_backward)) == {True, False}
    assert known.filter(~is_backward).is_null().all()
    alone = attribute(trace_of(simulate("checkpointing_fused", "one_thread")), default_rules())
    assert alone.read("ops")["recomputed"].is_null().all()


@pytest.mark.parametrize(
    ("forward", "backward", "found"),
    [
        ("gemm_a norm gelu gemm_b", "gemm_a norm gelu gemm_b", 4),
        ("gemm_a norm gelu gemm_b", "gemm_b gelu norm gemm_a", 0),  # as gradients come
        ("gemm_a norm gelu gemm_b", "gemm_a norm gelu", 0),  # too few
        ("gemm_a gemm_a gemm_a gemm_a", "gemm_a gemm_a gemm_a gemm_a", 0),  # any pass may
        ("add mul gelu sub gemm_b", "add mul gelu sub", 0),  # no layer
        # A transposed convolution runs what a convolution's backward does.
        ("cast dgrad_a dgrad_b add", "cast dgrad_a dgrad_b add", 0),
        ("gemm_a norm gelu gemm_b", "gemm_a memset norm FillFunctor gelu gemm_b", 6),
    ],
)
def test_a_run_of_forward_kernels_in_their_order_is_computed_again(
    forward: str, backward: str, found: int
) -> None:
    step = [
        "m:h2d/I", *(f"m:{name}/F" for name in forward.split()), "m:softmax/F", "b:loss_bwd/B",
        *(f"b:{name}/B" for name in backward.split()), "b:gemm_wgrad/B", "m:multi_tensor_apply/W",
    ]  # fmt: skip
    program = Program().run(" ".join(step), 6)
    structure = find_structure(program.work())
    assert structure.method == "threads"
    assert int(structure.again.sum()) == 6 * found


def test_places_of_runs_are_those_of_a_plain_search() -> None:
    seed = int(np.random.default_rng().integers(1 << 31))
    rng = np.random.default_rng(seed)
    for _ in range(40):
        program, names = Program(), ["gemm_a", "gelu", "add", "x_wgrad", "FillFunctor"]
        program.run(" ".join(f"m:{name}/-" for name in rng.choice(names, 60)))
        lane = look_at(program.work())
        stage = rng.choice([FP, BP], 60, p=[0.5, 0.5])
        assert recomputed(lane, stage).tolist() == _plainly(lane, stage), seed


def _plainly(lane: Any, stage: Any) -> list[bool]:
    work = lane.work
    names = [work.names[n] for n in work.name]
    computes = [n for n, name in enumerate(names) if "Fill" not in name]
    sides = [[n for n in computes if stage[n] == side] for side in (FP, BP)]
    runs = [[side[n : n + 4] for n in range(len(side) - 3)] for side in sides]
    ran = {tuple((names[n], work.size[n]) for n in run) for run in runs[0]}
    found = [False] * len(names)
    for run in runs[1]:
        what = [(names[n], work.size[n]) for n in run]
        told = any("wgrad" in name for name, _ in what)
        layer = any("gemm" in name for name, _ in what)
        if tuple(what) in ran and len(set(what)) > 2 and layer and not told:
            for n in range(run[0], run[-1] + 1):
                found[n] = found[n] or stage[n] == BP
    return found
