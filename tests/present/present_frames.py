"""Literal results, as the analyses return them."""

from __future__ import annotations

import polars as pl

from tracekit.model import KIND, STAGE

STAGES = pl.DataFrame(
    {
        "stage": ["FP", "BP", "WU", "OTHER"],
        "ops": [1200, 2400, 30, 1],
        "busy_ns": [40_000_000, 50_000_000, 20_000_000, 900],
        "exposed_ns": [40_000_000, 50_000_000, 5_000_000, 900],
        "overlap_ns": [0, 0, 15_000_000, 0],
        "share": [0.4, 0.5, 0.05, 0.000009],
    },
    schema_overrides={"stage": STAGE},
)

STAGES_META = {
    "window_ns": 100_000_000,
    "idle_ns": 4_999_100,
    "wu_residual_ns": 10_000_000,
    "devices": 1,
    "iterations": 59,
    "skip": 2,
    "coverage": {"none": 0.125, "nvtx": 0.875, "autograd": 0.0},
    "share": "exposed_ns / window_ns",
}

KERNELS = pl.DataFrame(
    {
        "name": [
            "void at::native::elementwise_kernel<4, float>(int, float)",
            "ncclKernel_AllReduce_RING_LL_Sum_float",
        ],
        "kind": ["compute", "collective"],
        "ops": [12_000, 472],
        "total_ns": [500_000_000, 292_789_300],
        "mean_ns": [41_666.7, 620_316.3],
        "median_ns": [41_000.0, None],
        "min_ns": [1000, 50_000],
        "max_ns": [90_000, 999_999],
        "busy_ns": [490_000_000, 292_789_300],
        "share": [0.42, 0.25],
    },
    schema_overrides={"kind": KIND},
)

INFO = pl.DataFrame(
    {
        "feature": ["stages", "collective sizes"],
        "available": ["yes", "no"],
        "found": ["19,118 NVTX ranges", None],
        "record_with": [
            None,
            "nsys profile --trace=cuda,nvtx and export with --include-blobs=true",
        ],
    }
)

HOSTILE = "\x1b[31mred\x1b[0m [bold]x[/bold] a|b\n\x9b2J\u202egnp.exe <b>&amp;</b>"
"""A name with terminal controls, rich and Markdown and HTML markup, and reversed text."""
