"""All that a run moved: copies, messages and collectives together, each byte once."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest
from link_helpers import HERE, machine, on_clocks
from trace_builder import TraceBuilder

from tracekit.analysis.communication import Traffic
from tracekit.machine import Placed

RANKS = 2


class Exchange(TraceBuilder):
    """Process n is rank n, on device n."""

    def __init__(self) -> None:
        super().__init__()
        for rank in range(RANKS):
            self._call(rank, -100, "ncclCommInitRank", {"No. of ranks": RANKS, "Rank": rank})

    def _call(
        self, rank: int, at: int, name: str, more: dict[str, Any] | None, last: int = 4
    ) -> None:
        text = None if more is None else json.dumps({"NCCL communicator ID": 1} | more)
        self.range(at, at + last, name, thread=10 * rank, domain="NCCL", payload=text)

    def all_to_all(self, rank: int, size: int) -> None:
        """As PyTorch does it: each rank sends a part to each, itself too."""
        self.range(0, 100, "nccl:all_to_all", thread=10 * rank)
        self._call(rank, 2, "ncclGroupStart", None, last=1)
        for peer in range(RANKS):
            for turn, name in enumerate(("ncclSend", "ncclRecv")):
                told = {"Message size [bytes]": size, "Peer rank": peer}
                self._call(rank, 4 + 4 * peer + 2 * turn, name, told, last=1)
        self._call(rank, 22, "ncclGroupEnd", None, last=30)
        self.op(
            "ncclDevKernel_SendRecv(args)", 27, thread=10 * rank, start=29, end=62, device=rank,
            kind="collective", collective="send_recv", short_name="ncclDevKernel_SendRecv",
        )  # fmt: skip


@pytest.fixture
def traffic() -> Traffic:
    b = Exchange()
    for rank in range(RANKS):
        b.all_to_all(rank, 50)
    return Traffic(b.attributed(), Placed(machine(), HERE, "number"))


def test_what_was_recorded_is_not_modelled_too(traffic: Traffic) -> None:
    assert traffic.calls.select("collective", "bytes").rows() == [("all_to_all", 100)] * RANKS
    columns = ("src_device", "dst_device", "bytes", "evidence", "source")
    assert sorted(traffic.transfers.select(columns).rows()) == [
        (0, 1, 50, "measured", "payload"), (1, 0, 50, "measured", "payload"),
    ]  # fmt: skip


def test_what_stays_on_a_gpu_crosses_nothing(traffic: Traffic) -> None:
    pairs = traffic.links("pair")
    assert pairs.select("src_device", "dst_device", "bytes").rows() == [(0, 1, 50), (1, 0, 50)]


def test_a_model_is_held_against_counters() -> None:
    """A ring of two sends 800 bytes each way; 10 % of 50 and of 75 GB/s for 200 ns are 2,500."""
    b = TraceBuilder()
    for rank in range(RANKS):
        b.op("ncclDevKernel_AllReduce_Sum", 10, thread=10 * rank, start=100 + 20 * rank, end=200,
             device=rank, kind="collective", collective="all_reduce")  # fmt: skip
    samples = [
        {"report": 0, "device": device, "unit": "percent", "recorded_name": "x",
         "metric": "nvlink_tx", "time": time, "value": 10.0}
        for device in range(RANKS) for time in (50, 250)
    ]  # fmt: skip
    trace = b.attributed().with_tables({"metrics": pl.DataFrame(samples)})
    found = Traffic(trace, Placed(machine(), HERE, "number"), sizes={"all_reduce": 800})
    assert (
        "modelled traffic held against nvlink_tx of 2 GPUs: 1,600 bytes are attributed, 1,600 of"
        " them by a model, and 2,500 were counted (-36.0%)"
    ) in found.meta()["warnings"]


def test_a_size_without_ranks_gives_a_hint() -> None:
    """One rank of a job was recorded: without the number of ranks nothing is on a link."""
    b = TraceBuilder()
    b.op("ncclDevKernel_AllReduce_Sum", 10, start=100, end=200, kind="collective",
         collective="all_reduce")  # fmt: skip
    here = Placed(machine(), HERE, "number")
    hint = (
        "1 NCCL kernels of the size that was given are on no link, since it is not known how many"
        " ranks take part: give --ranks too"
    )
    alone = Traffic(b.attributed(), here, sizes={"all_reduce": 800})
    assert alone.meta()["warnings"] == [hint]
    told = Traffic(b.attributed(), here, sizes={"all_reduce": 800}, ranks=4)
    assert told.transfers.height
    assert told.meta()["warnings"] == []


def test_reports_on_other_clocks_are_not_on_the_timeline() -> None:
    b = TraceBuilder()
    for report in range(3):
        b.op("copy", 10 + report, start=100, end=200, kind="p2p", bytes=8, src_device=0,
             dst_device=1, report=report)  # fmt: skip
    reports = on_clocks("host a", "host a", "report 2")
    trace = b.attributed().with_tables({"reports": reports})
    traffic = Traffic(trace, Placed(machine(), HERE, "number"))
    assert traffic.timeline_note() == "1 of 3 reports are left out: their clocks are not aligned"
    one = trace.with_tables({"reports": on_clocks("host a", "host a", "host a")})
    assert Traffic(one, Placed(machine(), HERE, "number")).timeline_note() is None


@pytest.mark.parametrize(
    ("op", "options", "why"),
    [
        ({"kind": "p2p", "bytes": 10**6, "src_device": 0, "dst_device": 1}, {},
         "is not that of this machine"),
        ({"kind": "collective", "collective": "all_reduce"}, {"sizes": {"all_reduce": 10**9}},
         "the model, the sizes or the peak are wrong"),
    ],
)  # fmt: skip
def test_of_links_that_would_be_fuller_than_full_it_is_said_what_may_be_wrong(
    op: dict[str, Any], options: dict[str, Any], why: str
) -> None:
    b = TraceBuilder()
    for rank in range(RANKS):
        b.op("ncclDevKernel_AllReduce_Sum", 10, thread=10 * rank, start=100 + 20 * rank, end=200,
             device=rank, **op)  # fmt: skip
    found = Traffic(b.attributed(), Placed(machine(), HERE, "number"), **options)
    [said] = [text for text in found.meta()["warnings"] if "fuller than full" in text]
    assert why in said
