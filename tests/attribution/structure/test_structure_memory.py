"""A process that is looked at piece by piece is told as it is at once."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from structure_programs import Program, letters

from tracekit.attribution.structure import Pieces, Structure, find_structure
from tracekit.attribution.structure._work import Array

THREADS = (
    "m:h2d/I m:gemm/F m:relu/F m:softmax/F "
    "b:softmax_backward/B b:relu_backward/B b:gemm_backward/B m:adam/W m:adam/W m:adam/W "
)
ORDER = (
    "m:h2d/I m:gemm#100/F m:relu#200/F m:gemm#300/F m:relu#400/F m:softmax#500/F "
    "m:softmax_backward#500/B m:relu_backward#400/B m:gemm_backward#300/B m:relu_backward#200/B "
    "m:gemm_backward#100/B m:adam/W m:adam/W "
)
NO_STEP = "m:gemm/- m:relu/- " * 40


def told(program: Program, most: int) -> tuple[Structure, Array, Array, int]:
    """Return what pieces of up to so many new ops say, of the process and of each op."""
    work, pieces, held = program.work(), Pieces(), 0
    size = -(-len(work) // -(-len(work) // most))
    stage, step = np.full((2, len(work)), -9)
    ops = pl.DataFrame({"op": np.arange(len(work)), "launch": work.launch})
    for first in range(0, len(work), size):
        own = pl.concat([*pieces.open, ops[first : first + size]]).sort("launch", "op")
        held = max(held, own.height)
        found = find_structure(work.take(own["op"].to_numpy()))
        op, values = pieces.add(own, found, is_last=first + size >= len(work))
        stage[op], step[op] = values["stage"], values["step"]
    return pieces.joined(most), stage, step, held


@pytest.mark.parametrize(("steps", "method"), [(THREADS, "threads"), (ORDER, "order")])
@pytest.mark.parametrize("most", [97, 120, 143])
def test_pieces_say_what_the_whole_says(steps: str, method: str, most: int) -> None:
    program = Program().run(steps, 60)
    whole = find_structure(program.work())
    found, stage, step, held = told(program, most)
    assert (found.method, found.training) == (method, True)
    assert letters(stage) == letters(whole.stage)
    assert step.tolist() == whole.step.tolist()
    assert found.steps.drop("ops").equals(whole.steps)
    assert found.steps["ops"].to_list() == np.bincount(whole.step).tolist()
    assert (found.period, found.cut_begin, found.cut_end) == (whole.period, 0, 0)
    assert held <= most + 3 * len(steps.split())
    assert f" pieces of up to {most} ops" in found.evidence[-1]


def test_what_tells_no_step_is_not_looked_at_twice() -> None:
    program = Program().run(NO_STEP, 1)
    found, stage, _, held = told(program, 30)
    assert (found.method, found.steps.height, held) == ("none", 0, 27)
    assert set(stage) == {-1}


def test_all_in_one_piece_is_said_as_it_is() -> None:
    program = Program().run(ORDER, 12)
    whole, (found, stage, step, _) = find_structure(program.work()), told(program, 1000)
    assert (found.evidence, found.doubts) == (whole.evidence, whole.doubts)
    assert (stage.tolist(), step.tolist()) == (whole.stage.tolist(), whole.step.tolist())
