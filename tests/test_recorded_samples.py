"""The recorded sample traces: real programs under a real nsys, and nothing of where they ran."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
import trim
from nsys_builder import NsysBuilder, schema_versions
from trace_builder import default_rules

import tracekit as tk
from tracekit.analysis import breakdown
from tracekit.analysis.communication import collective_calls, latency
from tracekit.analysis.studies import study_row
from tracekit.attribution import attribute
from tracekit.model import Trace
from tracekit.sources import read

FOLDER = Path(__file__).resolve().parents[1] / "sample_traces" / "recorded"
ALONE = ("lenet_p2p", "lenet_gloo", "pipeline_1f1b")
BY_RANK = ("lenet_mpi", "mpi_latency")
FILES = sorted([*ALONE, *(f"{name}_rank{rank}" for name in BY_RANK for rank in (0, 1))])
LENET_BYTES = 4 * 61_706


def _trace(name: str) -> Trace:
    return attribute(read(FOLDER / f"{name}.sqlite", lambda *_: None), default_rules())


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tk.Run]:
    """The runs of two ranks each."""
    store = tmp_path_factory.mktemp("recorded") / "store"
    return {
        name: tk.ingest(
            [FOLDER / f"{name}_rank{rank}.sqlite" for rank in (0, 1)], name=name, store=store
        )[0]
        for name in BY_RANK
    }


def test_these_are_all_and_small() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == FILES
    assert all(path.stat().st_size < 3_000_000 for path in FOLDER.iterdir())


@pytest.mark.parametrize("name", FILES)
def test_nothing_tells_where_they_were_recorded(name: str) -> None:
    path = FOLDER / f"{name}.sqlite"
    with closing(sqlite3.connect(path)) as file:
        strings = [value for (value,) in file.execute("SELECT value FROM StringIds")]
        host = file.execute("SELECT name, value FROM TARGET_INFO_SYSTEM_ENV").fetchall()
    assert host == [("Hostname", "host")]
    labels = re.compile(r"tracekit\.label [a-z0-9_]+=[\w.+-]+")
    assert all(labels.fullmatch(each) or "=" not in each for each in strings)
    assert not any("/" in each for each in strings)
    content = path.read_bytes()
    assert not re.search(rb"(?i)/(home|root|tmp|usr|opt)/|LD_PRELOAD|PWD", content)


@pytest.mark.parametrize(
    ("name", "processes", "stages"),
    [
        ("lenet_p2p", 1, {"FP": 12, "BP": 12, "WU": 48, "IO": 12, "ME": 2}),
        ("lenet_gloo", 2, {"FP": 24, "BP": 24, "WU": 48, "IO": 24}),
        # With 4 micro-batches, each within a range that says its stage as well.
        ("pipeline_1f1b", 2, {"FP": 96, "BP": 96, "WU": 48, "IO": 24}),
    ],
)
def test_stages_and_iterations(name: str, processes: int, stages: dict[str, int]) -> None:
    answer = breakdown(_trace(name))
    table, meta = answer.rows, answer.meta
    found = dict(table.select(pl.col("stage").cast(pl.String), "ranges").iter_rows())
    found["WU"] = stages["WU"]  # of what is inside of it, see below
    assert found == stages
    assert (meta["processes"], meta["iterations"]) == (processes, 10)
    assert sum(table["exposed_ns"]) + meta["idle_ns"] == meta["window_ns"]
    assert (table["busy_ns"] > 0).all()


def test_a_weight_update_holds_exchange_and_optimizer() -> None:
    ranges = _trace("lenet_p2p").read("ranges")
    inside = ranges.join(ranges.filter(name="WU").select(parent="range"), on="parent", how="semi")
    assert inside["name"].value_counts().sort("name").rows() == [
        ("gradient exchange", 12), ("optimizer", 12), ("weight exchange", 12),
    ]  # fmt: skip
    assert (ranges.filter(name="BP")["style"].cast(pl.String) == "start_end").all()
    layers = ranges.filter(pl.col("name").str.starts_with("layer "))
    assert layers["stage"].null_count() == layers.height
    assert layers.filter(name="layer conv1 (Conv2d)").height == 2 * (12 + 2)  # replicas, passes


@pytest.mark.slow
def test_programs_label_their_runs(jobs: dict[str, tk.Run]) -> None:
    labels = jobs["lenet_mpi"].labels
    assert {key: labels[key] for key in ("network", "method", "gpus", "batch", "parameters")} == {
        "network": "lenet", "method": "mpi", "gpus": "2", "batch": "32", "parameters": "61706",
    }  # fmt: skip
    row = study_row(jobs["lenet_mpi"].trace, labels, "lenet_mpi")
    assert (row["basis"], row["iterations"], row["gpus"]) == ("host", 10, 2)
    assert row["images_per_s"] == pytest.approx(64 / row["step_ns"] * 1e9)


@pytest.mark.slow
def test_all_reduces_carry_the_gradients(jobs: dict[str, tk.Run]) -> None:
    """In each step the buckets add up to the bytes of the parameters, on either rank."""
    trace = jobs["lenet_mpi"].trace
    calls = collective_calls(trace).filter(collective="all_reduce", library="mpi")
    inside = calls.drop_nulls("iteration")
    assert inside.height < calls.height  # of warm-up, and of adding losses up
    sums = inside.group_by("process", "iteration").agg(pl.col("bytes").sum())
    assert sums.height == 2 * 10
    assert sums["bytes"].unique().to_list() == [LENET_BYTES]
    assert inside["match"].null_count() == 0
    assert set(inside["bytes_source"]) == {"mpi, not in place"}  # so it is, but no trace says so


@pytest.mark.slow
def test_latency_by_size(jobs: dict[str, tk.Run]) -> None:
    """Of each size 10 calls and 3 of warm-up; a ping-pong sends and receives on both ranks."""
    calls = collective_calls(jobs["mpi_latency"].trace)
    assert calls["match"].null_count() == 0
    table = latency(calls, buckets="exact").rows.filter(
        pl.col("operation").is_in(["all_reduce", "broadcast"])
    )
    sizes = [4 << power for power in range(21)]
    assert table["size_bytes"].to_list() == 2 * sizes
    assert set(table["participants"]) == {2}
    assert (table["count"] == 13).all()
    assert (table["span_ns"] >= table["active_ns"]).all()
    large = table.filter(pl.col("size_bytes") >= 1 << 20)
    small = table.filter(pl.col("size_bytes") <= 1 << 10)
    assert large["p50_ns"].min() > small["p50_ns"].max()


def test_info_knows_all_sizes(jobs: dict[str, tk.Run]) -> None:
    found = jobs["mpi_latency"].info().filter(feature="sizes and bandwidths")
    assert found["available"].to_list() == ["yes"]


def test_ranks_are_on_one_clock(jobs: dict[str, tk.Run]) -> None:
    reports = jobs["mpi_latency"].trace.read("reports")
    assert reports["clock"].n_unique() == 1
    assert reports["rank"].to_list() == [None, None]  # the environment is not in them
    ranks = jobs["mpi_latency"].trace.read("host").filter(library="mpi")
    assert set(ranks.select("process", "rank").unique().rows()) == {(0, 0), (1, 1)}


class TestTrimming:
    @pytest.mark.parametrize("version", ["3.11.1", schema_versions()[-1]])
    def test_what_is_kept(self, tmp_path: Path, version: str) -> None:
        with NsysBuilder(tmp_path / "whole.sqlite", schema=version) as nsys:
            nsys.push_pop(10, 90, "iteration 0", pid=100)
            nsys.launch(20, 30, 40, name="gemm", pid=100)
            nsys.launch(20, 30, 40, name="of another program", pid=200)
            nsys.env("DeviceEnvironment", "SECRET=hidden")
            nsys.env("Hostname", "secret-host")
            nsys.thread_name(100, 100, "python")
            nsys.thread_name(200, 200, "secret daemon")
            nsys.string("PWD=/secret")
        trim.trim(tmp_path / "whole.sqlite", tmp_path / "part.sqlite")
        content = (tmp_path / "part.sqlite").read_bytes().lower()
        assert b"secret" not in content
        assert b"another" not in content
        trace = read(tmp_path / "part.sqlite")
        assert trace.read("ops")["name"].to_list() == ["gemm"]
        assert trace.read("ranges")["name"].to_list() == ["iteration 0"]
        assert trace.read("threads")["name"].to_list() == ["python"]
        if version == "3.11.1":
            assert trace.read("reports")["host"].to_list() == ["host"]

    def test_calls_of_the_os_runtime_in_a_window(self, tmp_path: Path) -> None:
        with NsysBuilder(tmp_path / "whole.sqlite", schema="3.11.1") as nsys:
            nsys.push_pop(10, 90, "iteration 0")
            for start in (5, 20, 80):
                nsys.insert(
                    "OSRT_API", start=start, end=start + 1, globalTid=0x0001_0000_6400_0064,
                    eventClass=27, nameId=nsys.string("read"),
                )  # fmt: skip
        thread = "SELECT globalTid FROM NVTX_EVENTS"
        with closing(sqlite3.connect(tmp_path / "whole.sqlite")) as file:
            file.execute(f"UPDATE OSRT_API SET globalTid = ({thread})")
            file.commit()
        trim.trim(tmp_path / "whole.sqlite", tmp_path / "part.sqlite", begin=10, end=80)
        with closing(sqlite3.connect(tmp_path / "part.sqlite")) as file:
            assert file.execute("SELECT start FROM OSRT_API").fetchall() == [(20,)]
