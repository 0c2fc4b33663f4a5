"""Real reports that are of no one execution are no run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from effort import by_day

import tracekit as tk
from tracekit.errors import InputError

DLRM = "kineto_dlrm_8xv100/worker0_step_12.1694128201545.pt.trace.json"
DDP = "kineto_ddp_2xa100_rank0.json.gz"
MIXES = {
    "programs that ran one after the other on one machine": (
        "jacobi_p2p_nvlink_8xv100.sqlite", "jacobi_p2p_staged_8xv100.sqlite",
        "were recorded 51 s apart",
    ),
    "trainings of other machines and months": (
        "mnist_1xa100_phases.sqlite", "ddp_unet_4xa100_rank0.sqlite", "84 days apart",
    ),
    "another tool": ("transformer_rtx3070ti.sqlite", DDP, "was recorded by torch.profiler"),
    "rank 0 of two jobs": (DLRM, DDP, "are both rank 0"),
    "nvprof of two years": (
        "lm_pyprof_nvprof.sqlite", "nccl_4xv100_nvlink_topology.nvvp", "66,763,806 s apart",
    ),
}  # fmt: skip


# The others are refused by the same rule, or by one that the tests of many jobs hold to by day.
@pytest.mark.parametrize("mix", by_day(MIXES, next(iter(MIXES))))
def test_reports_of_two_executions_are_refused(
    mix: str, real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    one, other, why = MIXES[mix]
    folder = real_trace("ddp_unet_4xa100_rank0").parent
    files = [folder / one, folder / other]
    if missing := [path.name for path in files if not path.exists()]:
        pytest.skip(f"no {missing[0]} in {folder}")
    with pytest.raises(InputError, match=why):
        tk.ingest(files, name="mix", store=tmp_path / "store")
    assert not (tmp_path / "store").exists()
