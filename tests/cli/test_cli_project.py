"""`tracekit project`: the commands that docs/studies.md names give the numbers it names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from cli_helpers import tracekit

if TYPE_CHECKING:
    from pathlib import Path


def rows(*words: str | Path) -> list[dict[str, Any]]:
    done = tracekit("project", *words, "--format", "json")
    assert done.exit_code == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return found


def test_components_and_the_bound_of_overlap() -> None:
    (row,) = rows("--jobs", "worked")
    assert row["step_ns"] == pytest.approx(810e6)
    assert row["overlapped_ns"] == pytest.approx(600e6)
    assert 100 * row["weights_share"] == pytest.approx(74.07, abs=0.005)


def test_architectures() -> None:
    found = {row["to"]: row for row in rows("--jobs", "worked", "--what", "architectures")}
    assert found["AllReduce-Local"]["speedup"] == pytest.approx(3.3952, abs=5e-5)
    assert found["AllReduce-Local"]["throughput_speedup"] == pytest.approx(1.6976, abs=5e-5)
    assert found["AllReduce-Cluster"]["speedup"] == pytest.approx(1.1643, abs=5e-5)


def test_hardware() -> None:
    found = {
        (row["resource"], row["value"]): row["speedup"]
        for row in rows("--jobs", "worked", "--what", "hardware")
    }
    expected = {
        ("ethernet", "100 Gb/s"): 1.7339, ("pcie", "50 GB/s"): 1.1778,
        ("compute", "64 TFLOP/s"): 1.1139, ("memory", "4 TB/s"): 1.1020,
    }  # fmt: skip
    assert {key: found[key] for key in expected} == pytest.approx(expected, abs=5e-5)


def test_means_and_distributions() -> None:
    found = {
        (row["architecture"], row["weighting"]): row["weights_share"]
        for row in rows("--jobs", "shares", "--what", "means")
    }
    assert found["all", "job"] == pytest.approx(0.5)
    assert found["all", "node"] == pytest.approx(0.7781, abs=5e-5)
    moved = rows("--jobs", "worked", "--what", "means", "--to", "AllReduce-Local")
    assert [row["faster_share"] for row in moved if row["architecture"] == "all"] == [1, 1]
    swept = rows("--jobs", "worked", "--what", "distribution", "--sweep", "ethernet=100Gb/s")
    assert swept[0]["measure"] == "speedup, ethernet 100Gb/s"
    assert swept[0]["value"] == pytest.approx(1.7339, abs=5e-5)


def test_a_shorter_step_is_no_gain_where_fewer_replicas_take_it() -> None:
    """64 replicas become 8: each step is 4.2 times as short, and 0.525 times as much is done."""
    asked = ("--jobs", "shares", "--to", "AllReduce-Local")
    (mean,) = (
        row for row in rows(*asked, "--what", "means")
        if (row["architecture"], row["weighting"]) == ("PS/Worker", "job")
    )  # fmt: skip
    assert mean["speedup"] == pytest.approx(4.2)
    assert mean["throughput_speedup"] == pytest.approx(0.525)
    assert (mean["faster_share"], mean["throughput_faster_share"]) == (1, 0)
    curve = [
        (row["measure"], pytest.approx(row["value"]), row["job_share"])
        for row in rows(*asked, "--what", "distribution")
    ]
    assert curve == [
        ("speedup, AllReduce-Local", 1.0, pytest.approx(2 / 3)),
        ("speedup, AllReduce-Local", 4.2, 1.0),
        ("throughput_speedup, AllReduce-Local", 0.525, pytest.approx(1 / 3)),
        ("throughput_speedup, AllReduce-Local", 1.0, 1.0),
    ]
    said = tracekit("project", *asked, "--what", "means").stdout
    assert "33.3 % of 3 jobs have a shorter step, and 0.0 % handle more samples per second" in said


def test_measured_against_estimated() -> None:
    step = rows("--jobs", "worked", "--what", "measured")[0]
    assert step["error_percent"] == pytest.approx(-10)


def test_a_run_is_asked_for_what_its_trace_does_not_hold(stored: Path) -> None:
    done = tracekit("project", "ddp", "--what", "jobs")
    assert "flops of ddp is not known: give it with --flops" in done.stdout
    told = ["--flops", "10G", "--memory-bytes", "1GB", "--weight-bytes", "25MB"]
    done = tracekit("project", "ddp", *told)
    assert done.stdout.startswith(" A step of ddp takes ")
    assert done.stdout.splitlines()[1].startswith(" modelled · ")
    assert "warning" not in done.stdout
    (row,) = rows("ddp", *told)
    assert row["step_ns"] > 0


@pytest.mark.parametrize("what", ["components", "architectures", "hardware", "distribution"])
@pytest.mark.parametrize("jobs", ["worked", "shares"])
def test_figures(tmp_path: Path, what: str, jobs: str) -> None:
    file = tmp_path / "figure.html"
    done = tracekit("project", "--jobs", jobs, "--what", what, "--figure", file)
    assert done.exit_code == 0, done.stderr
    assert "modelled" in file.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--jobs", "worked", "--flops", "1T"], "--jobs contains the jobs"),
        (["--jobs", "worked", "--to", "1wng", "--sweep", "pcie=1GB/s"], "give one"),
        (["--jobs", "worked", "--sweep", "pcie"], "cannot read the sweep"),
        (["--jobs", "worked", "--sweep", "pcie=1GB/s", "--sweep", "pcie=2GB/s"], "swept twice"),
        (["--jobs", "worked", "--what", "means", "--figure", "x.html"], "no figure"),
        (["--jobs", "nothing.toml"], "nothing.toml cannot be read"),
        (["--jobs", "nothing.csv"], "nothing.csv cannot be read"),
        (["--jobs", "worked", "--hardware", "none"], "no hardware 'none'"),
    ],
)
def test_wrong_options(words: list[str], said: str) -> None:
    done = tracekit("project", *words)
    assert done.exit_code == 2
    assert said in done.stderr
