"""`tracekit compare`, `study`, `scaling`, `overhead`, `memory` and `latency`, and wrong input."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from cli_helpers import MEMORY, OTHER, SAMPLES, TIMES, tracekit

import tracekit as tk
from tracekit.analysis import COMPARE_KEYS
from tracekit.cli._compare import KEYS
from tracekit.cli._memory import What, _rows

P2P = SAMPLES / "p2p_2gpu_start_end.sqlite"


def document(*words: str | Path, code: int = 0) -> dict[str, Any]:
    done = tracekit(*words, "--format", "json")
    assert done.exit_code == code, done.stderr
    content = json.loads(done.stdout)
    assert isinstance(content, dict)
    return content


def test_the_keys_are_those_of_the_analysis() -> None:
    assert ("step", *COMPARE_KEYS) == (KEYS[0], *COMPARE_KEYS)
    assert set(KEYS) == {"step", *COMPARE_KEYS}


def test_a_run_does_not_differ_from_itself(stored: Path) -> None:
    found = document("compare", "ddp", "ddp")
    assert {row["verdict"] for row in found["rows"]} == {"no difference shown"}
    assert {row["delta_ns"] for row in found["rows"]} == {0}
    assert found["meta"]["step"]["delta_ns"] == 0


def test_parts_of_the_step_add_up(stored: Path) -> None:
    """What differs between the two samples is the second run's noise, not what trains."""
    found = document("compare", "ddp", OTHER, "--by", "step", "--skip", "1")
    step = found["meta"]["step"]
    for side in ("a_ns", "b_ns", "delta_ns"):
        assert sum(row[side] for row in found["rows"]) == pytest.approx(step[side])
    back = document("compare", OTHER, "ddp", "--by", "step", "--skip", "1")
    assert [row["delta_ns"] for row in back["rows"]] == [-row["delta_ns"] for row in found["rows"]]


def test_runs_that_are_not_comparable_get_no_verdict(stored: Path) -> None:
    found = document("compare", "ddp", P2P)
    assert found["meta"]["not_comparable"]
    assert {row["verdict"] for row in found["rows"]} == {None}
    text = tracekit("compare", "ddp", P2P).stdout
    assert "not comparable: " in text


def test_a_limit_for_ci(stored: Path) -> None:
    assert tracekit("compare", "ddp", "ddp", "--fail-above", "5%").exit_code == 0
    refused = tracekit("compare", "ddp", P2P, "--fail-above", "5%")
    assert refused.exit_code == 2
    assert "not comparable" in refused.stderr


def test_notes_name_runs_interval_and_method(stored: Path) -> None:
    text = " ".join(tracekit("compare", "ddp", "ddp").stdout.split())
    assert "A A, 6 iterations · B B, 6 iterations" in text
    assert "95 % interval 0 to 0: no difference shown" in text
    assert "bootstrap of the difference of means" in text


def test_tables_measured_elsewhere() -> None:
    """The speedups of the LeNet runs at batch 16 of the slides, and 16.4 % of overhead."""
    rows = document("scaling", "--table", TIMES, "--images", "262144")["rows"]
    p2p = {row["gpus"]: row for row in rows if row["method"] == "p2p"}
    assert {n: round(row["speedup"], 2) for n, row in p2p.items()} == {
        1: 1.0, 2: 1.62, 4: 2.37, 8: 3.36,
    }  # fmt: skip
    assert round(p2p[8]["efficiency"], 3) == 0.420
    assert p2p[8]["iterations_per_epoch"] == 2048
    over = document("overhead", "--table", TIMES)["rows"]
    assert round(next(row for row in over if row["gpus"] == 1)["overhead_percent"], 1) == 16.4


@pytest.mark.parametrize(
    ("what", "column", "values"),
    [
        ("extra", "extra_percent", [8.1, 10.6, 2.1]),
        ("growth", "increase_percent", [0.0, 72.2, 183.0]),
        ("largest-batch", "largest_batch", [86]),
    ],
)
def test_memory_measured_elsewhere(what: str, column: str, values: list[float]) -> None:
    found = document("memory", "--table", MEMORY, "--what", what, "--capacity", "16GB")
    assert [round(row[column], 1) for row in found["rows"]] == values


def test_a_study_of_labelled_runs(stored: Path) -> None:
    tk.ingest(P2P, name="two", labels={"network": "net", "batch": "8", "method": "p2p"})
    tk.ingest(OTHER, name="four", labels={"network": "net", "batch": "8", "method": "nccl"})
    found = document("study", "--where", "network=net")
    assert [(row["run"], row["gpus"], row["method"]) for row in found["rows"]] == [
        ("four", 4, "nccl"), ("two", 2, "p2p"),
    ]  # fmt: skip
    named = document("study", "two", "four")
    assert named["rows"] == found["rows"]
    frame = tk.study(where={"network": "net"})
    assert frame["run"].to_list() == ["four", "two"]
    assert [run.name for run in tk.select_runs(["two"])] == ["two"]
    assert {row["run"] for row in document("overhead", "two", "four", "--api")["rows"]} == {
        "two", "four",
    }  # fmt: skip


def test_samples_and_allocations_are_not_mixed() -> None:
    """Of each batch nvidia-smi saw 1 GB more than was allocated; a line is through either's."""
    points = pl.DataFrame(
        [
            {"network": "net", "method": None, "batch": batch, "gpu": gpu, "source": source,
             "training_bytes": batch * 10**9 + more * 10**9 + (1 - gpu) * 10**8}
            for batch in (1, 2, 4)
            for gpu in (0, 1)
            for source, more in (("allocator", 0), ("nvidia_smi", 1))
        ]
    )  # fmt: skip
    extra, growth, lines = (
        _rows(what, points, 0, 16 * 10**9, 0.0).sort("source")
        for what in (What.EXTRA, What.GROWTH, What.LARGEST_BATCH)
    )
    assert extra["extra_bytes"].unique().to_list() == [10**8]
    assert growth.filter(batch=4)["training_bytes"].to_list() == [4_100_000_000, 5_100_000_000]
    assert lines["slope_bytes"].to_list() == [1e9, 1e9]
    assert lines["largest_batch"].to_list() == [15, 14]


@pytest.mark.parametrize("batch", ["0", "8 GPUs", "9" * 30])
def test_a_label_that_is_no_batch(stored: Path, batch: str) -> None:
    tk.ingest(P2P, name="odd", labels={"batch": batch})
    for command in ("memory", "study"):
        refused = tracekit(command, "odd")
        assert refused.exit_code == 2
        assert "run 'odd' has the label batch=" in " ".join(refused.stderr.split())


def test_latency_of_one_run_and_against_another(stored: Path) -> None:
    alone = document("latency", "--bytes", "all_reduce=8MB")["rows"]
    sized = next(row for row in alone if row["operation"] == "all_reduce")
    assert (sized["size_bytes"], sized["class"]) == (1 << 22, "large")
    both = document("latency", OTHER, "--against", "ddp", "--bytes", "all_reduce=8MB")["rows"]
    row = next(row for row in both if row["operation"] == "all_reduce")
    assert row["speedup"] == pytest.approx(row["base_ns"] / row["new_ns"])
    assert row["base_ns"] == sized["p50_ns"]


def test_figures(stored: Path, tmp_path: Path) -> None:
    drawn = {
        "compare": ["compare", "ddp", OTHER, "--figure"],
        "changes": ["compare", "ddp", OTHER, "--by", "kernel", "--changes"],
        "study": ["study", "--figure"],
        "scaling": ["scaling", "--table", TIMES, "--figure"],
        "efficiency": ["scaling", "--table", TIMES, "--value", "efficiency", "--figure"],
        "overhead": ["overhead", "--table", TIMES, "--figure"],
        "heat": ["overhead", "--table", TIMES, "--heat-map"],
        "memory": ["memory", "--table", MEMORY, "--figure"],
        "fit": ["memory", "--table", MEMORY, "--what", "largest-batch", "--capacity", "16GB",
                "--figure"],
        "latency": ["latency", "--bytes", "all_reduce=8MB", "--figure"],
        "histogram": ["latency", "--what", "histogram", "--figure"],
    }  # fmt: skip
    for name, words in drawn.items():
        done = tracekit(*words, tmp_path / f"{name}.html")
        assert done.exit_code == 0, (name, done.stderr)
        assert "plotly" in (tmp_path / f"{name}.html").read_text().lower()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "ddp"], "Missing argument 'B'"),
        (["compare", "ddp", "nothing"], "nothing"),
        (["compare", "ddp", "ddp", "--by", "wire"], "no comparison by 'wire'"),
        (["compare", "ddp", "ddp", "--by", "memory"], "memory"),
        (["compare", "ddp", "ddp", "--fail-above", "much"], "'much' is not a percentage"),
        (["compare", "ddp", "ddp", "--skip", "99"], "skip"),
        (["study", "--where", "network=none"], "no run with network=none"),
        (["study", "--where", "network"], "not of the form key=value"),
        (["scaling", "--table", "{memory}"], "has no column gpus"),
        (["scaling", "--table", "absent.csv"], "absent.csv"),
        (["scaling", "ddp", "--table", "{times}"], "give either, not both"),
        (["overhead", "--table", "{times}", "--baseline", "mpi"], "no run of the method 'mpi'"),
        (["memory", "--table", "{times}"], "has no column gpu"),
        (["memory", "--table", "{memory}", "--what", "largest-batch"], "give --capacity"),
        (["memory", "--smi", "{times}"], "nvidia-smi"),
        (["latency", "ddp", "--what", "staging", "--figure", "x.html"], "no figure shows staging"),
        (["overhead", "--api", "--table", "{times}"], "leave out --api"),
        (["overhead", "--profiler", "--heat-map", "x.html"], "leave out --api"),
        (["memory", "ddp", "--table", "{memory}"], "give either, not both"),
        (["latency", "ddp", "--against", "ddp"], "are the same run"),
    ],
)
def test_wrong_input_is_one_message(stored: Path, words: list[str], message: str) -> None:
    files = {"times": TIMES, "memory": MEMORY}
    done = tracekit(*(word.format(**files) for word in words))
    assert done.exit_code == 2, done.stdout
    assert "Traceback" not in done.stderr
    assert re.search(message, " ".join(done.stderr.replace("│", " ").split())), done.stderr
