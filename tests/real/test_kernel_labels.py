"""Short names of kernels on real traces: all different, at any width, and short."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

import tracekit as tk
from tracekit.present import readable_names
from tracekit.support.wording import shorten_apart

TRACES = (
    "ddp_unet_4xa100_rank0", "mnist_1xa100_phases", "sendrecv_2xh100_two_processes",
    "transformer_rtx3070ti", "lm_pyprof_nvprof", "jacobi_p2p_nvlink_8xv100",
    "jacobi_p2p_staged_8xv100",
)  # fmt: skip
LONGEST = 80


@pytest.mark.parametrize("trace", TRACES)
def test_labels_of_kernels_are_unique(real_run: Callable[[str], tk.Run], trace: str) -> None:
    names = real_run(trace).breakdown(by="kernel")["name"].cast(pl.String).to_list()
    short = readable_names(names)
    assert len({*short.values()}) == len({*names})
    assert max(map(len, short.values())) <= LONGEST
    for width in (24, 30, 45):
        assert len({*shorten_apart([*short.values()], width)}) == len(short)
