"""Sends and receives of NCCL that match beyond doubt, and clocks that they refute."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from test_analysis_clock_messages import HERE, arrivals, counted
from trace_builder import TraceBuilder

import tracekit as tk
from tracekit.analysis.calls import nccl_messages as nccl_calls
from tracekit.analysis.clocks import clock_evidence
from tracekit.analysis.clocks._matches import (
    _NCCL_LANE,
    _is_clear,
    messages,
    nccl_messages,
)
from tracekit.model import Clock, Trace

SAMPLE = (
    Path(__file__).resolve().parents[2] / "sample_traces" / "simulated" / "pipeline_nccl.sqlite"
)
ID = 0xF001
Message = tuple[str, int, int]
"""Send or receive, the peer, and when the kernel starts, which runs for 1 us."""


def _payload(**told: Any) -> str:
    return json.dumps({"NCCL communicator ID": ID} | told)


def rank(number: int, *moves: Message, made: bool = True, **row: Any) -> Trace:
    """A report of a rank, whose calls take 10 ns each and launch one kernel each."""
    b = TraceBuilder()
    if made:
        b.range(0, 5, "ncclCommInitRank", domain="NCCL", payload=_payload(Rank=number))
    for place, (what, peer, start) in enumerate(moves):
        at = 100 * (place + 1)
        told = {"Peer rank": peer, "Message size [bytes]": 64} | row.get("told", {})
        b.range(at, at + row.get("lasts", 10), what, domain="NCCL", payload=_payload(**told))
        b.op(
            "ncclDevKernel_SendRecv", at + 1, start=start, end=start + 1_000, kind="collective",
            collective="send_recv",
        )  # fmt: skip
    return b.trace()


def test_a_call_that_launched_several_kernels_is_no_clear_message() -> None:
    calls = pl.DataFrame(
        {"peer": 1, "message_bytes": 64, "ops": [None, [3], [4, 5]],
         "start": [0, 10, 20], "end": [5, 15, 25]}
    ).with_columns(pl.lit(0).alias(name) for name in _NCCL_LANE if name != "peer")  # fmt: skip
    assert calls.select(_is_clear()).to_series().to_list() == [True, True, False]


SENDS = (("ncclSend", 1, 10_000), ("ncclRecv", 1, 20_000), ("ncclSend", 1, 30_000))
RECEIVES = (("ncclRecv", 0, 9_500), ("ncclSend", 0, 18_000), ("ncclRecv", 0, 31_000))


def test_the_nth_send_is_the_nth_receive() -> None:
    one, other = rank(0, *SENDS), rank(1, *RECEIVES)
    assert nccl_messages(one).drop("communicator").rows() == [
        (0, 1, 0, 64, 10_000, 11_000, True),
        (1, 0, 0, 64, 20_000, 21_000, False),
        (0, 1, 1, 64, 30_000, 31_000, True),
    ]
    # They are there 0.5, 3 and 2 us after their kernels began to send, and 2 us are no violation.
    assert counted(one, other) == (3, 0)
    assert counted(one, other, Clock("", -2_500)) == (3, 0)
    assert counted(one, other, Clock("", -2_501)) == (3, 1)
    assert counted(one, other, Clock("", -4_001)) == (3, 2)
    assert counted(one, other, Clock("", 5_001)) == (3, 1)  # the one that goes the other way
    assert counted(other, one, Clock("", -5_001)) == (3, 1)


@pytest.mark.parametrize(
    "doubtful",
    [
        rank(1, *RECEIVES, made=False),
        rank(1, *RECEIVES, told={"Peer rank": None}),
        rank(1, *RECEIVES, told={"Message size [bytes]": 65}),
        rank(1, *RECEIVES, told={"Message size [bytes]": None}),
        rank(1, *RECEIVES, told={"NCCL communicator ID": 7}),
        rank(1, *RECEIVES, lasts=250),
        rank(1),
    ],
    ids=["joined before", "no peer", "other sizes", "no sizes", "other communicator", "at once",
         "nothing"],
)  # fmt: skip
def test_what_may_be_another_message_is_not_compared(doubtful: Trace) -> None:
    assert counted(rank(0, *SENDS), doubtful) is None


def test_what_graphs_replay_is_not_compared() -> None:
    other = rank(1, *RECEIVES)
    ops = other.read("ops").with_columns(graph_node=pl.lit(5, pl.Int64))
    assert counted(rank(0, *SENDS), other.with_tables({"ops": ops})) is None


@pytest.fixture(scope="module")
def stages(samples_read_once: None, tmp_path_factory: pytest.TempPathFactory) -> list[Trace]:
    """The four processes of a pipeline as reports of their own, its calls naming their peers.

    Activations go to the next stage and gradients to the one before.
    """
    trace = tk.ingest(SAMPLE, store=tmp_path_factory.mktemp("store"))[0].trace
    calls = nccl_calls(trace).select("range", "op", "process", "direction").drop_nulls("op")
    told = calls.join(trace.read("ops").select("op", pl.col("stage").cast(pl.String)), on="op")
    onward = (pl.col("stage") == "FP") == (pl.col("direction") == "send")
    peer = pl.col("process") + pl.when(onward).then(1).otherwise(-1)
    texts = told.select("range", said=peer.map_elements(_message, return_dtype=pl.String))
    ranges = trace.read("ranges").join(texts, on="range", how="left")
    named = ranges.with_columns(payload=pl.coalesce("said", "payload")).drop("said")
    return [_alone(trace, named, process) for process in range(4)]


def _message(peer: int) -> str:
    return _payload(**{"Peer rank": peer, "Message size [bytes]": 4096})


def _alone(trace: Trace, ranges: pl.DataFrame, process: int) -> Trace:
    """Return what one process did, which made its communicator at the begin of the recording."""
    own = ranges.filter(pl.col("process") == process)
    first = own.row(0, named=True) | {
        "range": -1, "name": "ncclCommInitRank", "domain": "NCCL", "start": 0, "end": 1,
        "parent": None, "depth": 0, "style": "push_pop", "payload": _payload(Rank=process),
    }  # fmt: skip
    made = pl.DataFrame([first], schema=own.schema)
    tables = {
        name: trace.read(name).filter(pl.col("process") == process)
        for name in ("ops", "calls", "threads", "processes")
    }
    return trace.with_tables(tables | {"ranges": pl.concat([made, own])})


def _on(host: str, traces: Sequence[Trace], starts: Sequence[int]) -> list[Trace]:
    """Say that reports are of one host, on which their sessions began at some times."""
    return [
        trace.with_tables(
            {
                "reports": trace.read("reports").with_columns(
                    host=pl.lit(host), session_start=pl.lit(start, pl.Int64)
                )
            }
        )
        for trace, start in zip(traces, starts, strict=True)
    ]


class TestPipeline:
    def test_no_message_of_a_pipeline_is_early(self, stages: list[Trace]) -> None:
        """Eight microbatches of four steps, each sent and received by each of three neighbours."""
        found = messages(stages)
        for one in range(4):
            for other in range(one + 1, 4):
                arrive = arrivals(found[one], found[other], HERE)
                if other > one + 1:
                    assert arrive.messages == 0
                else:
                    assert (arrive.messages, arrive.early) == (64, 0)

    def test_they_are_counted_beside_a_clock(self, stages: list[Trace]) -> None:
        right = clock_evidence(_on("a", stages, [0, 0, 0, 0]))
        assert right["clock"].n_unique() == 1
        assert right["messages"].to_list()[1] == 64
        assert right["early_messages"].drop_nulls().sum() == 0

    @pytest.mark.parametrize("index", [1, 2, 3])
    def test_a_neighbour_refutes_what_the_first_one_cannot(
        self, stages: list[Trace], index: int
    ) -> None:
        """Stages that are no neighbours send each other nothing; messages say how far it is off."""
        starts = [50_000_000 * (index == number) for number in range(4)]
        evidence = clock_evidence(_on("a", stages, starts))
        wrong = evidence.row(index, named=True)
        assert (wrong["known_by"], wrong["evidence"]) == ("messages", "64 messages both ways")
        assert evidence["clock"].n_unique() == 1
        assert evidence["early_messages"].drop_nulls().sum() == 0
        # All began together.
        assert (evidence["offset_ns"].abs() <= evidence["bound_ns"]).all()

    @pytest.mark.parametrize("by", [-20_000_000, 20_000_000])
    def test_as_many_are_early_as_a_loop_counts(self, stages: list[Trace], by: int) -> None:
        own, others = messages(stages[:2])
        arrive = arrivals(own, others, Clock("", by))
        early = 0
        for sender, receiver, shift in ((own, others, by), (others, own, -by)):
            sent = sender.filter("sent", pl.col("target") == 1 - (sender is others))
            got = receiver.filter(~pl.col("sent"), pl.col("source") == (sender is others))
            pairs = zip(sent.sort("start")["start"], got.sort("start")["end"], strict=False)
            early += sum(there + shift < begun - 2_000 for begun, there in pairs)
        assert arrive.early == early > 0
