"""Collectives of real traces, held against what is known of these."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

import tracekit as tk
from tracekit.analysis._collectives import collective_calls, collectives, collectives_meta
from tracekit.analysis._nccl_calls import nccl_calls

RunOf = Callable[[str], tk.Run]


class TestOneRankOfFour:
    @pytest.fixture
    def run(self, real_run: RunOf) -> tk.Run:
        return real_run("ddp_unet_4xa100_rank0")

    def test_each_group_of_one_call_launches_one_kernel(self, run: tk.Run) -> None:
        calls = nccl_calls(run.trace).filter(pl.col("collective") == "all_reduce")
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
        (row,) = collectives(run.trace).to_dicts()
        assert row["count"] == 472
        assert row["basis"] == "one participant's kernel time, waiting included"
        assert row["algorithm_bandwidth_gb_s"] is None
        assert row["bus_bandwidth_gb_s"] is None
        assert "--include-blobs=true" in collectives_meta(run.trace)["missing"][0]


class TestTwoProcesses:
    @pytest.fixture
    def run(self, real_run: RunOf) -> tk.Run:
        return real_run("sendrecv_2xh100_two_processes")

    def test_sizes_are_not_invented(self, run: tk.Run) -> None:
        calls = collective_calls(run.trace)
        assert calls.height == 66
        unknown = ("bytes", "message_bytes", "sent_bytes", "received_bytes", "bytes_source")
        assert calls.select(unknown).null_count().row(0) == (66,) * len(unknown)
        assert collectives(run.trace)["algorithm_bandwidth_gb_s"].null_count() == 2

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
