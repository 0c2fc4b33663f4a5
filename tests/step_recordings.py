"""Recordings of a program of which each step takes as long as a test says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nsys_builder import NsysBuilder


def write_recording(
    path: Path, steps_us: Sequence[float], *, update_us: float = 20, first: int = 0
) -> Path:
    """Write a recording of one GPU; each step is a forward pass, and an update of the weights.

    The steps are numbered from `first`.
    """
    with NsysBuilder(path, schema="3.0.0") as nsys:
        at = 1_000
        for number, length in enumerate(steps_us, first):
            end = at + round(length * 1_000)
            nsys.push_pop(at, end - 500, f"iteration {number}")
            nsys.push_pop(at + 10, at + 200, "forward")
            nsys.launch(at + 20, at + 100, end - round(update_us * 1_000) - 400, name="gemm")
            nsys.push_pop(at + 210, at + 400, "optimizer")
            nsys.launch(at + 220, end - round(update_us * 1_000) - 300, end - 600, name="sgd")
            at = end
    return path
