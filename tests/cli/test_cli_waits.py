"""`tracekit stalls` and `bubbles`: the commands that docs/studies.md names give its numbers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from cli_helpers import OTHER, PIPELINE, document, tracekit

from tracekit.cli import _output

if TYPE_CHECKING:
    from pathlib import Path


def test_stalls_of_one_run(stored: Path) -> None:
    found = document("stalls", "ddp")
    assert found["run"] == "ddp"
    assert found["meta"]["sum_over"] == "5 steps of each GPU"
    assert len(found["rows"]) == 4
    for row in found["rows"]:
        assert row["data_stall_ns"] == row["wait_ns"] + row["input_ns"]
        assert row["idle_ns"] == row["wait_ns"] + row["other_idle_ns"]
        assert all(isinstance(row[key], int) for key in row if key.endswith("_ns"))


@pytest.mark.slow
def test_a_terminal_says_what_lies_outside_of_steps(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns may be left out; the line may not, and -v is not asked for."""
    outside = max(row["outside_steps_ns"] for row in document("stalls", "ddp")["rows"])
    monkeypatch.setattr(_output, "_terminal", lambda: (80, None))
    for runs in (["ddp"], ["ddp", OTHER]):
        text = tracekit("stalls", *runs).stdout
        assert f"{outside / 1e6:,.3f} ms (ddp)" in " ".join(text.split())


@pytest.mark.parametrize("words", [["ddp"], ["ddp", OTHER]])
def test_bars_of_stalls_are_as_long_as_windows(
    stored: Path, tmp_path: Path, words: list[str]
) -> None:
    rows = document("stalls", *words, "--figure", tmp_path / "stalls.json")["rows"]
    drawn: dict[int, float] = {}
    for part in json.loads((tmp_path / "stalls.json").read_text())["data"]:
        for place, length in zip(part["y"], part["x"], strict=True):
            drawn[place] = drawn.get(place, 0.0) + length
    assert list(drawn.values()) == pytest.approx([row["window_ns"] / 1e6 for row in rows])


def test_stalls_before_and_after(stored: Path) -> None:
    first, second = document("stalls", "ddp", OTHER)["rows"]
    assert first["run"] == "ddp"
    assert first["speedup"] == 1
    assert second["speedup"] == pytest.approx(first["window_ns"] / second["window_ns"])


def test_what_input_costs() -> None:
    three = ["--preloaded", "100s", "--cached", "130s", "--cold", "170s"]
    found = {row["part"]: row for row in document("stalls", *three)["rows"]}
    assert found["preparation"]["time_ns"] == 30e9
    assert found["fetch"]["time_ns"] == 40e9
    assert 100 * found["data stall"]["share"] == pytest.approx(41.18, abs=0.005)


@pytest.mark.slow
def test_what_input_costs_by_runs(stored: Path) -> None:
    found = document("stalls", "--preloaded", "ddp", "--cached", "ddp", "--cold", OTHER)["rows"]
    assert found[0]["time_ns"] == 0
    assert found[1]["time_ns"] == found[2]["time_ns"] != 0


def test_bubbles_of_a_recorded_pipeline(stored: Path) -> None:
    found = document("bubbles", PIPELINE)
    facts = found["meta"]["pipeline"]
    assert (facts["stages"], facts["micro_batches"], facts["schedule"]) == (2, 4, "1f1b")
    assert facts["theory_share"] == pytest.approx(0.2)
    lost = sum(row["bubble_ns"] for row in found["rows"])
    assert facts["bubble_share"] == pytest.approx(lost / sum(r["window_ns"] for r in found["rows"]))
    steps = document("bubbles", PIPELINE, "--per-step")["rows"]
    assert sum(row["bubble_ns"] for row in steps) == lost
    assert "2 stages, 4 micro-batches, 1f1b: " in tracekit("bubbles", PIPELINE).stdout


def test_bubbles_by_theory() -> None:
    (row,) = document("bubbles", "--stages", "4", "--micro-batches", "8")["rows"]
    assert 100 * row["theory_share"] == pytest.approx(27.27, abs=0.005)
    assert row["theory_ideal_share"] == pytest.approx(0.375)
    (row,) = document("bubbles", "--stages", "4", "--micro-batches", "1")["rows"]
    assert row["theory_share"] == pytest.approx(0.75)


def test_a_run_that_nothing_shows_to_be_a_pipeline_is_refused(stored: Path) -> None:
    done = tracekit("bubbles", "ddp")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "nothing shows that ddp is a pipeline" in done.stderr
    assert "--micro-batches or --schedule" in done.stderr
    for words in (["--micro-batches", "4"], ["--schedule", "gpipe"]):
        assert tracekit("bubbles", "ddp", *words).exit_code == 0


@pytest.mark.parametrize(
    "words",
    [["stalls", "ddp"], ["stalls", "ddp", OTHER], ["bubbles", PIPELINE],
     ["bubbles", PIPELINE, "ddp", "--micro-batches", "4"]],
    ids=lambda words: " ".join(map(str, words[:1])),
)  # fmt: skip
def test_figures(stored: Path, tmp_path: Path, words: list[str | Path]) -> None:
    done = tracekit(*words, "--figure", tmp_path / "figure.json")
    assert done.exit_code == 0, done.stderr
    bars = json.loads((tmp_path / "figure.json").read_text())["data"]
    assert len(bars) > 1
    assert {bar["type"] for bar in bars} == {"bar"}


def test_scalability_before_and_after(tmp_path: Path) -> None:
    """200 s on one GPU; on eight 59.5 s before a change and 30 s after it."""
    times = tmp_path / "times.csv"
    lines = ["before,1,200", "before,8,59.5238", "after,1,200", "after,8,30"]
    rows = "\n".join(f"lenet,16,{gpus},{method},{time}" for method, gpus, time in
                     (line.split(",") for line in lines))  # fmt: skip
    times.write_text(f"network,batch,gpus,method,epoch_s\n{rows}\n")
    found = {
        row["method"]: row
        for row in document("scaling", "--table", times)["rows"]
        if row["gpus"] == 8
    }
    assert found["before"]["speedup"] == pytest.approx(3.36, abs=5e-5)
    assert 100 * found["before"]["efficiency"] == pytest.approx(42.0, abs=5e-4)
    assert found["after"]["speedup"] == pytest.approx(6.667, abs=5e-4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stalls", "--cold", "1s"], "give --preloaded, --cached, --cold"),
        (["stalls", "ddp", "--cold", "1s", "--cached", "1s", "--preloaded", "1s"], "three runs"),
        (["stalls", "--cold", "1s", "--cached", "1s", "--preloaded", "0s"], "not above 0"),
        (["bubbles", "--stages", "4"], "give --micro-batches"),
        (["bubbles", "ddp", "ddp", "--per-step"], "--per-step takes a single run"),
        (["stalls", str(PIPELINE)], "no GPU work"),
    ],
)
def test_wrong_options(stored: Path, words: list[str], said: str) -> None:
    done = tracekit(*words)
    assert done.exit_code == 2
    assert said in done.stderr
