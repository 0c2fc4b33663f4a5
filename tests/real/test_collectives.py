"""Collectives of real traces, held against what is known of these."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import tracekit as tk
from tracekit.analysis.calls import collective_calls, nccl_messages
from tracekit.analysis.communication import collectives

RunOf = Callable[[str], tk.Run]


class TestOneRankOfFour:
    @pytest.fixture
    def run(self, real_run: RunOf) -> tk.Run:
        return real_run("ddp_unet_4xa100_rank0")

    def test_each_group_of_one_call_launches_one_kernel(self, run: tk.Run) -> None:
        calls = nccl_messages(run.trace).filter(pl.col("collective") == "all_reduce")
        assert calls.height == calls["group"].n_unique() == calls["op"].n_unique() == 472
        assert calls["op"].null_count() == 0

    def test_kernel_time_is_known_and_size_is_not(self, run: tk.Run) -> None:
        calls = collective_calls(run.trace)
        assert calls.height == 472
        assert (calls["end"] - calls["start"]).sum() == 292_789_300
        assert calls["collective"].unique().to_list() == ["all_reduce"]
        assert calls["api_calls"].unique().to_list() == [1]
        unknown = ("bytes", "message_bytes", "match", "algorithm", "protocol", "ranks")
        assert calls.select(unknown).null_count().row(0) == (472,) * len(unknown)

    def test_no_bandwidth_is_claimed(self, run: tk.Run) -> None:
        (row,) = collectives(run.trace).rows.to_dicts()
        assert row["count"] == 472
        assert row["basis"] == "one participant's kernel time, waiting included"
        assert row["algorithm_bandwidth_gb_s"] is None
        assert row["bus_bandwidth_gb_s"] is None
        assert "--include-blobs=true" in collectives(run.trace).meta["missing"][0]


class TestTwoProcesses:
    @pytest.fixture
    def run(self, real_run: RunOf) -> tk.Run:
        return real_run("sendrecv_2xh100_two_processes")

    def test_sizes_are_not_invented(self, run: tk.Run) -> None:
        calls = collective_calls(run.trace)
        assert calls.height == 66
        unknown = ("bytes", "message_bytes", "sent_bytes", "received_bytes", "bytes_source")
        assert calls.select(unknown).null_count().row(0) == (66,) * len(unknown)
        assert collectives(run.trace).rows["algorithm_bandwidth_gb_s"].null_count() == 2

    def test_kernels_of_sends_are_what_their_ranges_say(self, run: tk.Run) -> None:
        calls = collective_calls(run.trace)
        assert dict(calls.group_by("collective").len().rows()) == {
            "all_to_all": 64, "send_recv": 2
        }  # fmt: skip
        grouped = calls.filter(pl.col("collective") == "all_to_all")
        assert grouped["api_calls"].unique().to_list() == [4]  # a send and a receive for each rank

    def test_both_devices_take_part_in_all(self, run: tk.Run) -> None:
        calls = collective_calls(run.trace)
        pairs = calls.group_by("match").agg(
            pl.col("device").sort(), shared=pl.col("end").min() - pl.col("start").max()
        )
        assert pairs["match"].sort().to_list() == list(range(33))
        assert pairs["device"].to_list() == [[0, 1]] * 33
        assert pairs["shared"].min() > 0


class TestLaunchesOnSeveralDevices:
    """One process drives four GPUs, in communicators of 2, 3, 3 and 4 of them."""

    def test_each_call_is_one_collective(
        self, real_trace: Callable[[str], Path], tmp_path: Path
    ) -> None:
        beside = real_trace("jacobi_p2p_nvlink_8xv100")
        path = beside.with_name("nccl_4xv100_nvlink_topology.nvvp")
        if not path.is_file():
            pytest.skip(f"no {path.name} in {path.parent}")
        run = tk.ingest(path, store=tmp_path)[0]
        launched = run.table("ops").select("op", "correlation").collect()
        calls = collective_calls(run.trace).join(launched, on="op")
        found = calls.group_by("correlation").agg(pl.col("match").unique(), pl.col("device").sort())
        assert found["match"].list.len().to_list() == [1] * 8
        assert calls["match"].n_unique() == 8
        members = [[0, 1], [0, 1], [0, 1, 2], [0, 1, 2], [0, 1, 3], [0, 1, 3]]
        assert sorted(found["device"].to_list()) == sorted([*members, *[[0, 1, 2, 3]] * 2])
