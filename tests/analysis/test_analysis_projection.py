"""The analytical model: literal numbers that were worked by hand, and a second implementation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.analysis.studies import (
    MEDIA,
    distribution,
    gains,
    jobs_frame,
    load_hardware,
    measured_against,
    project_architectures,
    read_jobs,
    step_times,
    sweep_hardware,
    weighted_means,
)
from tracekit.analysis.studies._job_features import parse_rate
from tracekit.errors import InputError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

PAI = load_hardware("pai")
MS = 1e6
PS = {
    "job": "ps", "architecture": "PS/Worker", "workers": 16, "batch": 32, "flops": 0.77e12,
    "memory_bytes": 70e9, "input_bytes": 70e6, "weight_bytes": 1e9, "measured_s": 0.9,
}  # fmt: skip


def job(**changes: Any) -> pl.DataFrame:
    return jobs_frame([{**PS, **changes}])


def projected(**changes: Any) -> dict[str, dict[str, Any]]:
    rows = project_architectures(job(**changes), PAI).rows(named=True)
    return {row["to"]: row for row in rows}


def test_the_example_that_is_shipped_is_the_one_worked_here() -> None:
    assert read_jobs("worked").equals(job())


def test_a_step_of_the_worked_job() -> None:
    row = step_times(job(), PAI).row(0, named=True)
    times = [row[f"{part}_ns"] / MS for part in ("input", "compute", "memory", "weights")]
    assert times == pytest.approx([10, 100, 100, 600])
    assert row["step_ns"] / MS == pytest.approx(810)
    assert row["overlapped_ns"] / MS == pytest.approx(600)
    shares = [100 * row[f"{part}_share"] for part in ("input", "compute", "memory", "weights")]
    assert shares == pytest.approx([1.23, 12.35, 12.35, 74.07], abs=0.005)
    assert (row["bound"], row["evidence"]) == ("weights", "modelled")
    assert row["samples_per_s"] == pytest.approx(16 * 32 / 0.81)


@pytest.mark.parametrize(
    ("architecture", "weights_ms", "step_ms", "shares"),
    [
        ("1w1g", 0, 210, (4.76, 47.62, 47.62, 0)),
        ("1wng", 142.857, 352.857, (2.83, 28.34, 28.34, 40.49)),
        ("PS/Worker", 600, 810, (1.23, 12.35, 12.35, 74.07)),
        ("AllReduce-Local", 28.571, 238.571, (4.19, 41.92, 41.92, 11.98)),
        ("AllReduce-Cluster", 485.714, 695.714, (1.44, 14.37, 14.37, 69.82)),
        ("PEARL", 28.571, 238.571, (4.19, 41.92, 41.92, 11.98)),
    ],
)
def test_the_worked_job_on_each_architecture(
    architecture: str, weights_ms: float, step_ms: float, shares: tuple[float, ...]
) -> None:
    row = projected()[architecture]
    assert row["weights_ns"] / MS == pytest.approx(weights_ms, abs=0.001)
    assert row["step_ns"] / MS == pytest.approx(step_ms, abs=0.001)
    found = [100 * row[f"{part}_share"] for part in ("input", "compute", "memory", "weights")]
    assert found == pytest.approx(shares, abs=0.006)


def test_speedups_of_the_worked_job() -> None:
    found = projected()
    assert found["AllReduce-Local"]["speedup"] == pytest.approx(3.3952, abs=5e-5)
    assert found["AllReduce-Cluster"]["speedup"] == pytest.approx(1.1643, abs=5e-5)
    # 16 workers are 8 in one server: a step is shorter, and half as many take it.
    assert found["AllReduce-Local"]["workers"] == 8
    assert found["AllReduce-Local"]["throughput_speedup"] == pytest.approx(1.6976, abs=5e-5)
    assert found["AllReduce-Cluster"]["throughput_speedup"] == pytest.approx(1.1643, abs=5e-5)


def test_the_most_that_an_architecture_can_bring() -> None:
    """A job that does nothing but exchange weights: ratios of the media on their way."""
    nothing = {"flops": 0.0, "memory_bytes": 0.0, "input_bytes": 0.0}
    found = projected(**nothing)
    assert found["AllReduce-Local"]["speedup"] == pytest.approx(21)
    assert found["AllReduce-Cluster"]["speedup"] == pytest.approx(1.235, abs=5e-4)
    faster = sweep_hardware(job(**nothing), PAI, {"ethernet": ["100 Gb/s"]})
    assert faster["speedup"].item() == pytest.approx(2.333, abs=5e-4)


@pytest.mark.parametrize(
    ("resource", "value", "speedup"),
    [
        ("ethernet", "100 Gb/s", 1.7339),
        ("ethernet", "25Gb/s", 1),
        ("pcie", "50 GB/s", 1.1778),
        ("compute", "64 TFLOP/s", 1.1139),
        ("memory", "4 TB/s", 1.1020),
    ],
)
def test_the_worked_job_on_other_hardware(resource: str, value: str, speedup: float) -> None:
    row = sweep_hardware(job(), PAI, {resource: [value]}).row(0, named=True)
    assert row["speedup"] == pytest.approx(speedup, abs=5e-5)
    if value == "100 Gb/s":
        assert row["weights_ns"] / MS == pytest.approx(257.143, abs=0.001)
        assert row["step_ns"] / MS == pytest.approx(467.143, abs=0.001)


def test_means_over_jobs_and_over_nodes() -> None:
    table = pl.DataFrame(
        {"architecture": ["a", "b", "b"], "nodes": [1, 8, 64], "share": [0.0, 0.7, 0.8]}
    )
    found = weighted_means(table, ["share"]).filter(architecture="all")
    assert found["share"].to_list() == pytest.approx([0.5, 0.7781], abs=5e-5)
    assert found["nodes"].to_list() == [73, 73]


def test_the_shipped_jobs_have_the_shares_worked_by_hand() -> None:
    jobs = read_jobs("shares")
    times = step_times(jobs, PAI).with_columns(nodes="workers")
    assert times["weights_share"].to_list() == pytest.approx([0, 0.7, 0.8])
    means = weighted_means(times, ["weights_share"]).filter(architecture="all")
    assert means["weights_share"].to_list() == pytest.approx([0.5, 0.7781], abs=5e-5)


def test_estimated_against_measured() -> None:
    timed = job(measured_weights_s=0.84)
    found = {row["component"]: row for row in measured_against(timed, PAI).rows(named=True)}
    assert found["step"]["error_percent"] == pytest.approx(-10.0)
    assert found["step"]["efficiency"] is None
    # .42 s at the peaks of both links took .84 s.
    assert found["weights"]["efficiency"] == pytest.approx(0.5)
    assert found["compute"]["error_percent"] is None


def test_components_of_many_jobs_stay_in_order() -> None:
    timed = pl.concat([job(measured_weights_s=0.84)] * 200)
    found = measured_against(timed, PAI)["component"].to_list()
    first = found[: len(found) // 200]
    assert first[0] == "step"
    assert found == first * 200


def test_what_is_not_known_of_a_job_makes_its_step_unknown() -> None:
    row = step_times(job(flops=None), PAI).row(0, named=True)
    assert (row["compute_ns"], row["step_ns"], row["overlapped_ns"], row["bound"]) == (None,) * 4
    assert row["memory_ns"] / MS == pytest.approx(100)
    # What one worker on one GPU exchanges is nothing, whatever is not known of it.
    assert step_times(job(architecture="1w1g", workers=1, weight_bytes=None), PAI)[
        "step_ns"
    ].item() == pytest.approx(210 * MS)
    assert projected(workers=None)["AllReduce-Local"]["workers"] is None


def test_partitioned_embeddings_exchange_the_rows_that_are_touched() -> None:
    pearl = {"embedding_bytes": 0.9e9, "touched_bytes": 0.1e9}
    assert projected(**pearl)["PEARL"]["weights_ns"] / MS == pytest.approx(200 / 35)
    assert projected(**pearl)["AllReduce-Local"]["weights_ns"] / MS == pytest.approx(1000 / 35)
    assert projected(embedding_bytes=0.9e9)["PEARL"]["step_ns"] is None


def test_replicas_of_a_server_share_the_path_of_their_input() -> None:
    shared = replace(PAI, pcie_share=4)
    own = step_times(job(), shared)
    assert own["input_ns"].item() / MS == pytest.approx(10)  # a worker of a PS has a server
    local = project_architectures(job(), shared, ["AllReduce-Local"])
    assert local["input_ns"].item() / MS == pytest.approx(40)
    few = project_architectures(job(workers=2), shared, ["AllReduce-Local"])
    assert few["input_ns"].item() / MS == pytest.approx(20)


def test_distributions_count_jobs_and_workers() -> None:
    table = pl.DataFrame({"nodes": [1, 8, 64, 27], "v": [0.5, 0.5, 2.0, None]})
    found = distribution(table, "v")
    assert found["value"].to_list() == [0.5, 2.0]
    assert found["job_share"].to_list() == pytest.approx([2 / 3, 1])
    assert found["node_share"].to_list() == pytest.approx([9 / 73, 1])


def test_gains_count_what_is_faster() -> None:
    table = pl.DataFrame(
        {"architecture": "PS/Worker", "to": "x", "nodes": [1, 3], "speedup": [2.0, 1.0]}
    )
    found = gains(table, ["to"]).filter(architecture="all")
    assert found["speedup"].to_list() == pytest.approx([1.5, 1.25])
    assert found["faster_share"].to_list() == pytest.approx([0.5, 0.25])
    assert "throughput_speedup" not in found.columns  # other hardware changes no replicas
    moved = gains(table.with_columns(throughput_speedup=pl.Series([0.5, 2.0])), ["to"])
    found = moved.filter(architecture="all")
    assert found["throughput_speedup"].to_list() == pytest.approx([1.25, 1.625])
    assert found["throughput_faster_share"].to_list() == pytest.approx([0.5, 0.75])


AMOUNT = st.floats(0, 1e15)


@given(
    rows=st.lists(
        st.tuples(st.sampled_from([*MEDIA]), st.integers(1, 64), *[AMOUNT] * 4), min_size=1,
        max_size=8,
    ),
    efficiency=st.floats(0.1, 1),
)  # fmt: skip
def test_times_are_those_of_a_plain_loop(rows: list[tuple[Any, ...]], efficiency: float) -> None:
    hardware = replace(PAI, efficiencies=dict.fromkeys(PAI.peaks, efficiency))
    names = ("architecture", "workers", "flops", "memory_bytes", "input_bytes", "weight_bytes")
    jobs = jobs_frame(
        [{"job": str(n), **dict(zip(names, row, strict=True))} for n, row in enumerate(rows)]
    )
    found = step_times(jobs, hardware)["step_ns"].to_list()
    for value, (architecture, _, flops, memory, data, weights) in zip(found, rows, strict=True):
        seconds = data / 10e9 + flops / 11e12 + memory / 1e12
        for medium in MEDIA[architecture]:
            seconds += weights / {"pcie": 10e9, "ethernet": 3.125e9, "nvlink": 50e9}[medium]
        assert value == pytest.approx(seconds / efficiency * 1e9, rel=1e-9, abs=1e-6)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[job]]\nname='a'", "architecture is None"),
        ("[[job]]\nname='a'\narchitecture='PS'\nworkers=1", "architecture is 'PS'"),
        ("[[job]]\nname='a'\narchitecture='1wng'", "workers is absent"),
        ("[[job]]\narchitecture='1wng'\nworkers=1", "it has no name"),
        ("[[job]]\nname='a'\narchitecture='1wng'\nworkers=0", "workers is 0"),
        ("[[job]]\nname='a'\narchitecture='1wng'\nworkers=1\nflops=-1", "flops is -1"),
        ("[[job]]\nname='a'\narchitecture='1wng'\nworkers=1\nflop=1", "'flop' is unknown"),
        ("[[job]]\nname='a'\narchitecture='1w1g'\nworkers=2", "1w1g has 2 workers"),
        ("[[jobs]]\nname='a'", "unknown key 'jobs'"),
        ("version = 1", r"no \[\[job\]\]"),
        ("job = [1]", "not a list of tables"),
        ("a = ", "is not TOML"),
    ],
)
def test_files_of_jobs_that_are_wrong(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=said):
        read_jobs(str(file))


def test_jobs_as_text(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text("name,architecture,workers,flops,batch\na,1w1g,1,7.7e11,\nb,PS/Worker,4,,32\n")
    found = read_jobs(str(file))
    assert found.select("job", "workers", "flops", "batch").rows() == [
        ("a", 1, 7.7e11, None), ("b", 4, None, 32)
    ]  # fmt: skip
    file.write_text("job,architecture,workers\na,1wng,2\na,1wng,2\n")
    with pytest.raises(InputError, match="two jobs 'a'"):
        read_jobs(str(file))
    file.write_text("job,architecture,workers\na,1wng,two\n")
    with pytest.raises(InputError, match="workers is 'two'"):
        read_jobs(str(file))
    file.write_text("job,name,architecture,workers\na,b,1wng,2\n")
    with pytest.raises(InputError, match="name"):
        read_jobs(str(file))
    file.write_text("job,architecture,workers\na,1wng,2\nb,other,2\n")
    with pytest.raises(InputError, match=r"jobs\.csv, job 2: "):
        read_jobs(str(file))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"11 TFLOP/s"', '"11 TB/s"', "cannot read the rate of compute '11 TB/s'"),
        ('"10 GB/s"', '"0 GB/s"', "the rate of pcie is"),
        ("efficiency = 0.7", "efficiency = 70", "an efficiency is not"),
        ("gpus_per_server = 8", "gpus_per_server = 0", "gpus_per_server"),
        ("version = 1", "version = 2", "version is 2"),
        ("[sweep]", "[swept]", "the key 'swept' is unknown"),
        ('nvlink = "50 GB/s"', "", "no text for nvlink"),
    ],
)
def test_files_of_hardware_that_are_wrong(tmp_path: Path, old: str, new: str, said: str) -> None:
    from tracekit.support.files import schemas

    text = (schemas() / "hardware" / "pai.toml").read_text()
    assert old in text
    file = tmp_path / "mine.toml"
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=said):
        load_hardware(str(file))


def test_what_is_asked_for_that_there_is_not() -> None:
    with pytest.raises(UsageError, match="no hardware 'dgx9': there is pai, v100"):
        load_hardware("dgx9")
    with pytest.raises(UsageError, match="unknown architecture 'Ring'"):
        project_architectures(job(), PAI, ["Ring"])
    with pytest.raises(UsageError, match="unknown resource 'disk'"):
        sweep_hardware(job(), PAI, {"disk": ["1 GB/s"]})
    with pytest.raises(UsageError, match="no hardware to try"):
        sweep_hardware(job(), PAI, {})


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("8 b/s", 1), ("2 B/s", 2), ("3 kB/s", 3e3), ("25 Mb/s", 25e6 / 8), ("50 GB/s", 50e9),
        ("11.5 TFLOP/s", 11.5e12), ("1PFLOP/s", 1e15),
    ],
)  # fmt: skip
def test_rates_as_text(text: str, rate: float) -> None:
    assert parse_rate(text, "compute" if "FLOP" in text else "ethernet") == pytest.approx(rate)
