"""Reports and tracks of the real traces: whole, small, and adding up to what breakdowns say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import tracekit as tk
from tracekit.analysis import step_detail
from tracekit.present import readable_names

NAMES = (
    "lm_pyprof_nvprof", "mnist_1xa100_phases",
    pytest.param("sendrecv_2xh100_two_processes", marks=pytest.mark.nightly),
)  # fmt: skip
MOST_BYTES = 2_500_000
SECTIONS = ("verdict", "step", "stages", "ranges", "idle", "communication", "unknown")


@pytest.mark.parametrize("name", NAMES)
def test_a_report_is_whole_and_small(
    real_run: Callable[[str], tk.Run], name: str, tmp_path: Path
) -> None:
    real_run(name).report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(page.encode()) < MOST_BYTES
    assert all(f'<section id="{section}"' in page for section in SECTIONS)


@pytest.mark.parametrize("name", NAMES)
def test_tracks_add_up(real_run: Callable[[str], tk.Run], name: str) -> None:
    run = real_run(name)
    spans = step_detail.whole_spans(run.trace)
    length = (pl.col("end") - pl.col("start")).sum()
    stages = step_detail.stage_spans(run.trace, spans).group_by("device", "stage").agg(length)
    wanted = run.breakdown(by="device,stage").select("device", "stage", "busy_ns")
    assert sorted(stages.rows()) == sorted(wanted.rows())
    idle = step_detail.idle_spans(run.trace, spans).select(length).item()
    assert idle == run.idle()["idle_ns"].sum()


@pytest.mark.parametrize("name", NAMES)
def test_no_two_kernels_look_alike(real_run: Callable[[str], tk.Run], name: str) -> None:
    names = real_run(name).trace.read("ops")["name"].cast(pl.String).drop_nulls().unique()
    assert len({*readable_names(names).values()}) == names.len()
