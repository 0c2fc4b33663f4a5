"""The real nvprof databases, whose facts were counted with plain SQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import tracekit as tk
from tracekit.machine import read_topology

LM, NCCL = "lm_pyprof_nvprof.sqlite", "nccl_4xv100_nvlink_topology.nvvp"

RunOf = Callable[[str], tuple[Path, tk.Run]]


@pytest.fixture(scope="module")
def nvprof_run(
    real_trace: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> RunOf:
    store = tmp_path_factory.mktemp("store")
    runs: dict[str, tk.Run] = {}

    def open_run(name: str) -> tuple[Path, tk.Run]:
        path = real_trace("lm_pyprof_nvprof").with_name(name)
        if not path.is_file():
            pytest.skip(f"no {name}")
        if name not in runs:
            runs[name] = tk.ingest(path, store=store)[0]
        return path, runs[name]

    return open_run


def _sql(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as file:
        return file.execute(query.replace("KIND_", "CUPTI_ACTIVITY_KIND_")).fetchall()


def _kernels(run: tk.Run) -> pl.DataFrame:
    kernel = pl.col("kind").is_in(["compute", "collective"])
    return run.table("ops").filter(kernel).collect()


@pytest.mark.parametrize("name", [LM, NCCL])
def test_times_are_exact(nvprof_run: RunOf, name: str) -> None:
    path, run = nvprof_run(name)
    started = run.table("reports").collect()["session_start"].item()
    kernels = _kernels(run).select(pl.col("start", "end") + started, "device", "correlation")
    query = "SELECT start, end, deviceId, correlationId FROM KIND_CONCURRENT_KERNEL"
    assert sorted(kernels.rows()) == sorted(_sql(path, query))
    [first] = _sql(
        path,
        "SELECT min(t) FROM (SELECT min(start) t FROM KIND_RUNTIME UNION ALL"
        " SELECT min(start) FROM KIND_DRIVER UNION ALL SELECT min(timestamp) FROM KIND_MARKER)",
    )
    assert first == (started,)
    assert started > 1 << 53


@pytest.mark.parametrize("name", [LM, NCCL])
def test_every_op_has_a_launch_before_it(nvprof_run: RunOf, name: str) -> None:
    ops = nvprof_run(name)[1].table("ops").collect()
    assert ops["call"].null_count() == 0
    assert (ops["launch_start"] <= ops["start"]).all()
    assert (ops["end"] >= ops["start"]).all()


def test_a_language_model(nvprof_run: RunOf) -> None:
    path, run = nvprof_run(LM)
    assert _kernels(run).height == 284
    ranges = run.table("ranges").collect()
    assert 2 * ranges.height == 2390
    assert not ranges["open"].any()
    paired = _sql(
        path,
        "SELECT s.timestamp, e.timestamp, n.value FROM KIND_MARKER s JOIN KIND_MARKER e"
        " ON s.id = e.id AND s.flags = 2 AND e.flags = 4 JOIN StringTable n ON n._id_ = s.name",
    )
    started = run.table("reports").collect()["session_start"].item()
    ours = ranges.select(pl.col("start", "end") + started, "name").rows()
    assert sorted(ours) == sorted(paired)
    by_markers = run.table("ops").filter(stage_source="nvtx").collect()
    assert set(by_markers["stage"]) >= {"FP", "BP"}
    assert not _kernels(run)["name"].cast(pl.String).str.starts_with("_Z").any()
    assert run.table("threads").collect().height == 3
    assert run.table("processes").select("pid", "name").collect().rows() == [(29051, "python")]


def test_nccl_on_four_gpus(nvprof_run: RunOf) -> None:
    path, run = nvprof_run(NCCL)
    kernels = _kernels(run)
    assert kernels.height == 24
    assert set(kernels["kind"]) == {"collective"}
    assert set(kernels["collective"]) == {"all_reduce", "broadcast"}
    assert set(kernels["device"]) == {0, 1, 2, 3}
    assert kernels["short_name"].cast(pl.String).unique().sort().to_list() == [
        "ncclAllReduceTreeLLKernel_sum_i32", "ncclBroadcastRingLLKernel_copy_i8"
    ]  # fmt: skip
    devices = run.table("devices").collect()
    assert devices.filter("active")["device"].to_list() == [0, 1, 2, 3]
    assert set(devices["identity"]) == {"ordinal"}
    machine, described = run.machine(), read_topology(path)
    assert machine.origin == "trace"
    assert machine.nvlink_matrix() == described.nvlink_matrix()
    assert machine.links == described.links
    assert set(run.traffic().links()["link"]) <= {link.name for link in described.links}
    assert devices["uuid"][0] == "0457dcbe-d8c5-e5a2-5b99-1a7d86802bdb"
