"""Replays with something changed, against the simulator with the same thing changed."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import polars as pl
import pytest
from simulate.pairs import PAIRS, SKIPPED, SLOW, write_pair

import tracekit as tk
from tracekit.errors import UndecidedError

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
def run_of(samples_read_once: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
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
def test_ranges_hold_what_changes_really_make(run_of: Any, name: str) -> None:
    truth = _truth(name)
    made = {each["change"]: mean(each["step_ns"][1:]) for each in truth["what_if"]}
    # The first step is left out: its allocations and first launches are not those of others.
    asked = {"skip": 1, "topology": "dgx1v"}
    alone = _ranges(run_of(name).whatif(**ALONE, **asked))
    both = _ranges(run_of(name).whatif(**TOGETHER, loader="1x", **asked))
    low, high = both["unchanged, replayed"]
    assert low < mean(truth["step_ns"][1:]) < high
    low, high = both["all of these"]
    assert low <= made["kernels of FP and BP twice as fast"] <= high
    for change, label in CHANGES.items():
        low, high = alone[label]
        # Transfers that meet where they did not before are what no replay knows.
        assert low <= made[change] <= high * (1.03 if "socket" in label else 1), change


def _ranges(rows: pl.DataFrame) -> dict[str, tuple[float, float]]:
    return {row[0]: row[1:] for row in rows.select("change", "low_ns", "high_ns").rows()[1:]}


PAIRS_TRIED = (
    "jitter-bound-two", "slow-1",
    *(pytest.param(name, marks=pytest.mark.nightly) for name in (
        "slow-0", "workers-1-4", "item-kernels-lenet", "hidden-65-alexnet", "jitter-bound",
        "kernels-alexnet", "straggler-kernels",
    )),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS_TRIED)
def test_ranges_hold_what_comes_of_pairs(name: str, tmp_path: Path) -> None:
    pair = next(each for each in (*PAIRS, *SLOW) if each.name == name)
    times = write_pair(pair, tmp_path)
    run = tk.ingest(tmp_path / f"{name}.sqlite", store=tmp_path / "store")[0]
    rows = run.whatif(**pair.asked, skip=SKIPPED, topology="dgx1v")
    assert rows["step_ns"][0] == pytest.approx(times["before_ns"])
    low, high = rows.select("low_ns", "high_ns").row(-1)
    assert low <= times["after_ns"] <= high
    assert rows["step_ns"][-1] is not None
    assert high - low <= 0.2 * times["before_ns"]


@pytest.mark.slow
def test_what_cannot_be_told_is_refused_with_its_ends(tmp_path: Path) -> None:
    pair = next(each for each in PAIRS if each.name == "hidden-93-alexnet")
    write_pair(pair, tmp_path)
    run = tk.ingest(tmp_path / f"{pair.name}.sqlite", store=tmp_path / "store")[0]
    with pytest.raises(UndecidedError, match=r"between 5\.7.* and 10\.\d+ ms: how") as found:
        run.whatif(speed=[".=2x"], skip=SKIPPED)
    assert found.value.exit_code == 3
    fed = run.whatif(speed=[".=2x"], loader="inf", skip=SKIPPED)
    assert fed["step_ns"][-1] == pytest.approx(5.76e6, rel=0.02)


@pytest.mark.parametrize("name", ALL)
def test_paths_of_simulated_steps_are_explained(run_of: Any, name: str) -> None:
    found = run_of(name).critical_path.answer("cause,link", skip=1, topology="dgx1v")
    assert found.rows["path_ns"].sum() == found.meta["steps_ns"] == sum(_truth(name)["step_ns"][1:])
    assert found.meta["unexplained_share"] < 0.01
