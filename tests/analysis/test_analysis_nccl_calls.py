"""NCCL's API calls and the kernels they launched, on literal ranges."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest
from trace_builder import TraceBuilder

from tracekit.analysis.calls import communicators, hex_ids, nccl_messages
from tracekit.analysis.calls._nccl_calls import _TYPE_BYTES
from tracekit.model import Trace

ID = 0xF000_0000_0000_0001
NAME = "0xf000000000000001"


def payload(size: int | None = None, communicator: int | str | None = ID, **more: Any) -> str:
    keys = {"Message size [bytes]": size, "NCCL communicator ID": communicator}
    return json.dumps({key: value for key, value in keys.items() if value is not None} | more)


class Builder(TraceBuilder):
    """Adds NCCL's ranges and kernels."""

    def nccl(self, start: int, end: int, name: str, text: str | None = None, **row: Any) -> None:
        self.range(start, end, name, domain="NCCL", payload=text, **row)

    def kernel(self, collective: str, at: int | None, **row: Any) -> None:
        self.op(f"{collective} kernel", at, kind="collective", collective=collective, **row)


@pytest.fixture
def b() -> Builder:
    return Builder()


def rows(trace: Trace, *columns: str) -> list[tuple[Any, ...]]:
    return nccl_messages(trace).drop_nulls("collective").select(columns).rows()


class TestCalls:
    def test_a_payload_is_read(self, b: Builder) -> None:
        b.nccl(0, 10, "ncclAllReduce", payload(4096, **{"Reduction operation": "Sum"}))
        b.nccl(20, 30, "ncclReduce", payload(8, **{"Reduction operation": 4, "Root": 3}))
        b.nccl(40, 50, "ncclSend", payload(16, **{"Peer rank": 5}))
        b.nccl(60, 70, "ncclRecv", payload(16, None, **{"Peer rank": 5}))
        columns = ("collective", "direction", "message_bytes", "peer", "root", "reduction",
                   "communicator")  # fmt: skip
        assert rows(b.trace(), *columns) == [
            ("all_reduce", None, 4096, None, None, "Sum", NAME),
            ("reduce", None, 8, None, 3, "Avg", NAME),
            ("send_recv", "send", 16, 5, None, None, NAME),
            ("send_recv", "receive", 16, 5, None, None, None),
        ]

    def test_advanced_tracing_is_read(self, b: Builder) -> None:
        text = {"commHash": NAME, "commRank": 2, "count": 10, "seqNumber": 7}
        for at, kind in enumerate(("ncclFloat32", "bfloat16", 8, "what")):
            b.nccl(20 * at, 20 * at + 9, "AllReduce", json.dumps({**text, "dataType": kind}))
        columns = ("collective", "message_bytes", "communicator", "rank", "sequence")
        assert rows(b.trace(), *columns) == [
            ("all_reduce", 40, NAME, 2, 7),
            ("all_reduce", 20, NAME, 2, 7),
            ("all_reduce", 80, NAME, 2, 7),
            ("all_reduce", None, NAME, 2, 7),
        ]

    @pytest.mark.parametrize(
        "text",
        [
            None, "", "7", "not json {", "[1]", '{"Message size [bytes]": -1}',
            '{"Message size [bytes]": 1e300}', '{"Message size [bytes]": {"a": 1}}',
            '{"count": 9223372036854775807, "dataType": "float64"}', '{"count": 3}',
        ],
    )  # fmt: skip
    def test_a_payload_that_says_no_size_gives_none(self, text: str | None, b: Builder) -> None:
        b.nccl(0, 10, "ncclAllReduce", text)
        assert rows(b.trace(), "message_bytes") == [(None,)]

    def test_what_is_no_call_of_nccl_is_left_out(self, b: Builder) -> None:
        b.range(0, 1, "nccl:all_reduce")
        b.range(2, 3, "AllReduce")
        b.range(4, 5, None)
        b.range(6, 7, "ncclAllGather")  # the domain's name was lost
        b.nccl(8, 9, "ncclCommCount")
        found = nccl_messages(b.trace()).select("name", "collective").rows()
        assert found == [("ncclAllGather", "all_gather"), ("ncclCommCount", None)]

    def test_what_a_call_calls_itself_is_part_of_it(self, b: Builder) -> None:
        b.nccl(0, 100, "ncclAllToAll", payload(64))
        b.nccl(10, 11, "ncclGroupStart")
        b.nccl(20, 21, "ncclSend", payload(64))
        b.nccl(30, 31, "ncclRecv", payload(64))
        b.nccl(40, 60, "ncclGroupEnd")
        b.kernel("send_recv", 50)
        found = nccl_messages(b.trace()).select("name", "group", "op").rows()
        assert found == [("ncclAllToAll", None, 0)]

    def test_an_empty_trace_has_the_same_columns(self, b: Builder) -> None:
        b.nccl(0, 1, "ncclAllReduce")
        assert nccl_messages(TraceBuilder().trace()).schema == nccl_messages(b.trace()).schema


class TestGroups:
    def group(self, b: Builder, at: int, *names: str, size: int = 8, **row: Any) -> None:
        b.nccl(at, at + 1, "ncclGroupStart", **row)
        for turn, name in enumerate(names):
            b.nccl(at + 2 + turn, at + 3 + turn, name, payload(size), **row)
        b.nccl(at + 50, at + 90, "ncclGroupEnd", **row)

    def test_the_outermost_group_counts_and_threads_have_their_own(self, b: Builder) -> None:
        b.nccl(0, 1, "ncclGroupStart")
        self.group(b, 100, "ncclSend")
        b.nccl(155, 156, "ncclSend", thread=1)
        b.nccl(300, 390, "ncclGroupEnd")
        self.group(b, 400, "ncclSend")
        found = nccl_messages(b.trace()).select("start", "group").sort("start")
        assert found.rows() == [
            (0, 0), (100, 0), (102, 0), (150, 0), (155, None), (300, 0), (400, 6), (402, 6),
            (450, 6),
        ]  # fmt: skip

    def test_a_group_that_is_open_at_the_end_goes_on_after_those_in_it(self, b: Builder) -> None:
        b.nccl(0, 1, "ncclGroupStart")
        self.group(b, 100, "ncclSend")
        b.nccl(300, 301, "ncclSend")
        found = nccl_messages(b.trace()).sort("start")
        assert found["group"].to_list() == [0] * 5

    def test_a_group_of_which_the_start_is_lost_does_not_hurt_the_next(self, b: Builder) -> None:
        b.nccl(0, 1, "ncclSend")
        b.nccl(10, 30, "ncclGroupEnd")
        b.kernel("send_recv", 20)
        self.group(b, 100, "ncclSend")
        b.kernel("send_recv", 160)
        assert rows(b.trace(), "start", "group", "ops") == [(0, None, None), (102, 2, [1])]

    def test_a_group_that_stays_open_is_one(self, b: Builder) -> None:
        b.nccl(0, 1, "ncclGroupStart")
        b.nccl(2, 3, "ncclSend")
        assert rows(b.trace(), "group", "ops") == [(0, None)]

    def test_a_call_outside_launches_its_own_kernel(self, b: Builder) -> None:
        for at in (0, 100):
            b.nccl(at, at + 20, "ncclAllReduce", payload(at + 1))
            b.kernel("all_reduce", at + 10)
        b.kernel("all_reduce", 60)  # launched between the calls
        b.kernel("all_reduce", 110, thread=1)  # launched by another thread
        b.kernel("all_reduce", None, start=500)  # of unknown launch
        assert rows(b.trace(), "message_bytes", "ops", "op") == [(1, [0], 0), (101, [2], 2)]

    def test_one_kernel_carries_all_calls_of_its_group(self, b: Builder) -> None:
        self.group(b, 0, "ncclAllReduce", "ncclAllReduce", "ncclAllReduce")
        b.kernel("all_reduce", 60)
        self.group(b, 200, "ncclSend", "ncclRecv")
        b.kernel("send_recv", 260)
        assert rows(b.trace(), "ops") == [([0],)] * 3 + [([1],)] * 2

    def test_as_many_kernels_as_calls_are_matched_by_kind(self, b: Builder) -> None:
        self.group(b, 0, "ncclAllReduce", "ncclAllGather", "ncclAllReduce")
        b.kernel("all_gather", 60)
        b.kernel("all_reduce", 65)
        b.kernel("all_reduce", 70)
        assert rows(b.trace(), "collective", "op") == [
            ("all_reduce", 1), ("all_gather", 0), ("all_reduce", 2),
        ]  # fmt: skip

    def test_of_calls_of_several_sizes_the_kernels_are_not_known(self, b: Builder) -> None:
        # NCCL launches the kernels of a group by communicator and size, not in order of calls.
        b.nccl(0, 1, "ncclGroupStart")
        b.nccl(2, 3, "ncclAllReduce", payload(1))
        b.nccl(4, 5, "ncclAllReduce", payload(2))
        b.nccl(10, 50, "ncclGroupEnd")
        b.kernel("all_reduce", 20)
        b.kernel("all_reduce", 30)
        assert rows(b.trace(), "ops") == [(None,), (None,)]

    def test_neither_more_kernels_than_calls_nor_several_of_sends_are_matched(
        self, b: Builder
    ) -> None:
        self.group(b, 0, "ncclAllReduce")
        self.group(b, 200, "ncclSend", "ncclSend")
        for at in (60, 70):
            b.kernel("all_reduce", at)
            b.kernel("send_recv", 200 + at)
        assert rows(b.trace(), "op") == [(None,)] * 3

    def test_a_group_of_advanced_tracing_is_one_range(self, b: Builder) -> None:
        b.nccl(0, 100, "API Group")
        b.nccl(10, 20, "AllReduce", json.dumps({"apiId": 1, "count": 1, "dataType": "int8"}))
        b.nccl(30, 90, "GroupLaunch")
        # The same operation once more, with its number: the call above is its record in the API.
        b.nccl(40, 41, "AllReduce", json.dumps({"seqNumber": 3, "count": 1, "dataType": "int8"}))
        b.kernel("all_reduce", 60)
        assert rows(b.trace(), "start", "sequence", "group", "op") == [(40, 3, 0, 0)]


class TestCommunicators:
    def test_what_a_communicator_is_made_with(self, b: Builder) -> None:
        made = {"No. of ranks": 8, "Rank": 3, "CUDA device": 1}
        b.nccl(0, 9, "ncclCommInitRank", payload(**made))
        b.nccl(20, 29, "ncclCommInitRankConfig", payload(communicator=None, **made), thread=10)
        b.nccl(30, 39, "ncclCommSplit", None)
        b.nccl(40, 49, "ncclAllReduce", payload(1))
        assert communicators(b.trace()).rows() == [
            (NAME, 0, 0, 3, 8, 1),
            (None, 0, 0, None, None, None),
            (None, 0, 1, 3, 8, 1),
        ]

    def test_ids_have_one_spelling(self) -> None:
        ids = ["17", "0x11", "0X0011", str(-1), str((1 << 64) - 1), "0", "0x0", None, "a:1:0x2"]
        highest = "0x" + 16 * "f"
        assert hex_ids(pl.Series(ids)).to_list() == [
            "0x11", "0x11", "0x11", highest, highest, None, None, None, "a:1:0x2"
        ]  # fmt: skip
        assert hex_ids(pl.Series([None], dtype=pl.String)).to_list() == [None]


@pytest.mark.parametrize(
    ("bytes_", "types"),
    [
        (1, ("0", "1", "10", "11", "int8", "uint8", "float8e4m3")),
        (2, ("6", "9", "half", "bfloat16")),
        (4, ("2", "3", "7", "int32", "float")),
        (8, ("4", "5", "8", "int64", "uint64", "double")),
    ],
)
def test_how_many_bytes_a_value_of_a_type_takes(bytes_: int, types: tuple[str, ...]) -> None:
    """Numbers are those of `ncclDataType_t`, of which 0 is int8 and 11 a float of 8 bits."""
    assert {_TYPE_BYTES[each] for each in types} == {bytes_}
