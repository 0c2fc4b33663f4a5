"""Published timelines of two jobs, and what their authors say that stragglers cost them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tracekit as tk

PUBLISHED = {"rank": "dp_rank", "stage": "stage", "kind": "optype"}


@pytest.fixture(scope="module")
def folder(real_trace: Callable[[str], Path]) -> Path:
    return real_trace("straggler_timelines/timeline-ST").parent


def _published(folder: Path, job: str) -> dict[str, Any]:
    return dict(json.loads((folder / f"result-{job}.json").read_text()))


@pytest.mark.parametrize("job", ["ST", pytest.param("SE", marks=pytest.mark.nightly)])
def test_slowdowns_are_those_published(folder: Path, job: str) -> None:
    said = _published(folder, job)
    ideal = json.loads((folder / f"ms-{job}.json").read_text())["tideal"] * 1e9
    steps = [int(step) for step in said["step_t_nodelay"]]  # SE: two of its 45 were left out
    for by, name in PUBLISHED.items():
        answer = tk.straggler_cost.answer(folder / f"timeline-{job}.json.gz", by, steps=steps)
        assert answer.meta["slowdown"] == pytest.approx(said["blocking_slowdown"], rel=1e-3)
        assert answer.meta["ideal_ns"] == pytest.approx(ideal, rel=1e-5)
        key = {"stage": "pipeline_stage"}.get(by, by)
        found = {str(row[key]): row["slowdown"] for row in answer.rows.iter_rows(named=True)}
        published = said[f"blocking_decompose_by_{name}"]
        assert found == pytest.approx(published, rel=2e-3)


def test_the_last_stage_and_the_lengths_of_sequences_are_named(folder: Path) -> None:
    uneven = tk.straggler_cost.answer(folder / "timeline-ST.json.gz")
    worst = uneven.rows.row(0, named=True)
    assert (worst["pipeline_stage"], round(worst["win_share"], 3)) == (3, 1.219)
    assert uneven.meta["causes"][0].startswith("stage 3 takes longer than others")
    causes = tk.straggler_cost.answer(folder / "timeline-SE.json.gz").meta["causes"]
    assert any(cause.startswith("lengths of sequences") for cause in causes)
