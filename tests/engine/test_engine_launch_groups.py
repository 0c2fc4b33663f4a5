"""Launches of a run, grouped and cached."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracekit
from tracekit.engine._launch_groups import groups_of_parts
from tracekit.model import Stretch

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "ddp_4gpu.sqlite"


def test_launches_are_read_once_whichever_time_is_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracekit.model._trace._LONG", 0)
    run = tracekit.ingest(SAMPLE, store=tmp_path)[0]
    before = {*tmp_path.rglob("kept/*")}
    for between in ((0, 1_000_000), (1_000_000, 2_000_000)):
        opened = tracekit.open(run.id, store=tmp_path)
        groups_of_parts(opened.trace.limited_to(Stretch(between=between)))
    assert len({*tmp_path.rglob("kept/*")} - before) == 1
