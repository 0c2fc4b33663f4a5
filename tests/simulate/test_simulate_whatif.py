"""Replays with something changed, against the simulator with the same thing changed."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

import tracekit as tk

FOLDER = Path(__file__).resolve().parents[2] / "sample_traces" / "simulated"
TOGETHER: dict[str, Any] = {"stage": ["FP=2x", "BP=2x"]}
ALONE: dict[str, Any] = {
    "stage": ["WU=2x"],
    "speed": ["conv_wgrad=2x"],
    "bandwidth": ["nvlink=2x", "pcie=2x", "socket=2x"],
    "loader": "inf",
    "no_sync": True,
}
CHANGES = {
    "kernels of WU twice as fast": "stage WU=2x",
    "convolutions' wgrad twice as fast": "speed conv_wgrad=2x",
    "nvlink twice as fast": "bandwidth nvlink=2x",
    "pcie twice as fast": "bandwidth pcie=2x",
    "socket twice as fast": "bandwidth socket=2x",
    "loader takes no time": "loader inf",
    "host never waits": "no synchronisation",
}
"""What the simulator changed, and what it is called here."""
QUICK = ("exposed_nccl", "input_bound", "launch_bound")
NIGHTLY = ("clean", "pipeline_1f1b", "pipeline_nccl", "star_8")
ALL = [*QUICK, *(pytest.param(name, marks=pytest.mark.nightly) for name in NIGHTLY)]


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Give a run of a bundled trace."""
    store = tmp_path_factory.mktemp("whatif") / "store"

    @cache
    def run(name: str) -> tk.Run:
        return tk.ingest(FOLDER / f"{name}.sqlite", store=store)[0]

    return run


def _truth(name: str) -> dict[str, Any]:
    with gzip.open(FOLDER / f"{name}.truth.json.gz", "rt", encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_changes_are_predicted_within_five_percent(run_of: Any, name: str) -> None:
    truth = _truth(name)
    made = {each["change"]: each["step_ns"] for each in truth["what_if"]}
    # The first step is left out: its allocations and first launches are not those of others.
    asked = {"skip": 1, "topology": "dgx1v"}
    alone = dict(run_of(name).whatif(**ALONE, **asked).select("change", "step_ns").rows())
    both = run_of(name).whatif(**TOGETHER, **asked)["step_ns"]
    assert both[0] == pytest.approx(mean(truth["step_ns"][1:]))
    assert both[1] == pytest.approx(both[0], rel=0.001)
    found = {change: alone[label] for change, label in CHANGES.items()}
    found["kernels of FP and BP twice as fast"] = both[-1]
    for change, step in found.items():
        assert step == pytest.approx(mean(made[change][1:]), rel=0.05), change


@pytest.mark.parametrize("name", ALL)
def test_paths_of_simulated_steps_are_explained(run_of: Any, name: str) -> None:
    found = run_of(name).critical_path.answer("cause,link", skip=1, topology="dgx1v")
    assert found.rows["path_ns"].sum() == found.meta["steps_ns"] == sum(_truth(name)["step_ns"][1:])
    assert found.meta["unexplained_share"] < 0.01
