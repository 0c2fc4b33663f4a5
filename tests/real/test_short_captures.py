"""Captures of a few steps that begin or end within one: what is torn is told, and not averaged."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from cut_export import Ends, cut_export

import tracekit as tk

DAILY = "ddp_unet_4xa100_rank0"
REPORTS = ("unet_1xa100_dali_bf16_fused_jit.nsys-rep", "unet_1xa100_1worker.nsys-rep")
Cut = Callable[..., tk.Run]


@pytest.fixture(
    scope="module",
    params=[DAILY, *(pytest.param(name, marks=pytest.mark.nightly) for name in REPORTS)],
)
def source(request: pytest.FixtureRequest, nsys_export: Callable[[str], Path]) -> Path:
    """An export of nsys whose steps have ranges."""
    return nsys_export(request.param)


@pytest.fixture(scope="module")
def ranges(source: Path) -> dict[int, tuple[int, int]]:
    """When the range of each step begins and ends, ns since the recording began."""
    with closing(sqlite3.connect(f"file:{source}?mode=ro&immutable=1", uri=True)) as db:
        rows = db.execute("SELECT text, start, end FROM NVTX_EVENTS WHERE text LIKE 'step %'")
        return {int(text.split()[1]): (start, end) for text, start, end in rows}


@pytest.fixture
def cut(source: Path, tmp_path: Path) -> Cut:
    def make(begin: float, end: float, ends: Ends = "open") -> tk.Run:
        return tk.open(cut_export(source, tmp_path / "cut.sqlite", int(begin), int(end), ends))

    return make


def _within(span: tuple[int, int], part: float) -> float:
    return span[0] + part * (span[1] - span[0])


def _whole(run: tk.Run) -> dict[int, bool]:
    iterations = run.trace.read("iterations").filter(pl.col("ops") > 0)
    return dict(iterations.select("iteration", "whole").iter_rows())


def _verdict(run: tk.Run) -> dict[str, Any]:
    (found,) = run.trace.read("verdicts").to_dicts()
    return found


@pytest.mark.parametrize("ends", ["open", "ended"])
@pytest.mark.parametrize(
    "part", [0.5, *(pytest.param(each, marks=pytest.mark.nightly) for each in (0.2, 0.9))]
)
def test_of_two_steps_the_last_is_torn(
    ranges: dict[int, tuple[int, int]], cut: Cut, ends: Ends, part: float
) -> None:
    run = cut(ranges[2][0], _within(ranges[3], part), ends)
    assert _whole(run) == {2: True, 3: False}
    assert _verdict(run)["cut"] == "end"
    assert any("cut at its end: of 2 iterations" in text for text in run.trace.warnings)


@pytest.mark.parametrize("ends", ["open", "ended"])
def test_of_three_steps_the_last_is_torn(
    ranges: dict[int, tuple[int, int]], cut: Cut, ends: Ends
) -> None:
    run = cut(ranges[2][0], _within(ranges[4], 0.5), ends)
    assert _whole(run) == {2: True, 3: True, 4: False}


def test_two_steps_that_ended_are_whole(ranges: dict[int, tuple[int, int]], cut: Cut) -> None:
    run = cut(ranges[2][0], _within((ranges[3][1], ranges[4][0]), 0.5))
    assert _whole(run) == {2: True, 3: True}
    assert _verdict(run)["cut"] is None


@pytest.mark.parametrize("part", [0.55, 0.7])
def test_a_capture_that_begins_within_a_step(
    ranges: dict[int, tuple[int, int]], cut: Cut, part: float
) -> None:
    """At a time when kernels of the step have run: what lacks only its input is not told."""
    run = cut(_within(ranges[2], part), ranges[5][0] - 1_000)
    assert _whole(run) == {3: True, 4: True}
    assert _verdict(run)["cut"] == "begin"
