"""Messages of MPI that match beyond doubt, and clocks under which they arrive before they left."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest
from effort import examples

from tracekit.analysis.clocks import clock_evidence
from tracekit.analysis.clocks._fit import Fit, Pairs, held_to
from tracekit.analysis.clocks._matches import messages, passed
from tracekit.model import HOST, TABLES, Clock, Trace

Call = dict[str, Any]
HERE = Clock("")


def call(name: str, start: int, end: int, peer: int | None = None, **more: Any) -> Call:
    """A call of MPI on the communicator of two ranks, by default with tag 3 and 8 bytes."""
    group = "p2p" if peer is not None or "group" not in more else more.pop("group")
    return {
        "name": name, "start": start, "end": end, "remote_rank": peer, "group": group, "tag": 3,
        "bytes": 8, "communicator": 77, "ranks": 2, **more,
    }  # fmt: skip


def init(**more: Any) -> Call:
    return call("MPI_Init", -9, -1, group="other", tag=None, bytes=None, communicator=None,
                ranks=None, **more)  # fmt: skip


def report(rank: int, *calls: Call, start: int | None = 0, host: str = "a") -> Trace:
    """A report of one rank."""
    place = {"report": 0, "process": 0, "thread": 0, "library": "mpi", "rank": rank}
    types = TABLES["reports"].schema
    told = {"report": 0, "file": f"rank{rank}.sqlite", "format": "x", "size": 1, "host": host,
            "session_start": start}  # fmt: skip
    return Trace.of(
        {
            "reports": pl.DataFrame([told], schema_overrides={key: types[key] for key in told}),
            "processes": pl.DataFrame([{"report": 0, "process": 0, "pid": 1, "global_id": 1}]),
            "host": HOST.conform(
                pl.DataFrame([place | each for each in calls], infer_schema_length=None)
            ),
        }
    )


def arrivals(own: pl.DataFrame, others: pl.DataFrame, clock: Clock) -> Fit:
    """How messages arrive under a clock."""
    return held_to(Pairs.none(), passed(own, others), clock)


def counted(one: Trace, other: Trace, clock: Clock = HERE) -> tuple[int, int] | None:
    """How many messages match, and how many of these are early."""
    own, others = messages([one, other])
    found = arrivals(own, others, clock)
    return (found.messages, found.early) if found.messages else None


SENDER = (init(), call("MPI_Send", 10_000, 11_000, 1), call("MPI_Isend", 30_000, 30_100, 1))
RECEIVER = (init(), call("MPI_Recv", 5_000, 12_000, 0), call("MPI_Recv", 13_000, 33_000, 0))


def test_the_nth_message_sent_is_the_nth_received() -> None:
    one, other = report(0, *SENDER), report(1, *RECEIVER)
    assert counted(one, other) == (2, 0)
    # They are received 2 and 3 us after their sending began, and times may be off by 2 us.
    assert counted(one, other, Clock("", -4_000)) == (2, 0)
    assert counted(one, other, Clock("", -5_000)) == (2, 1)
    assert counted(one, other, Clock("", -5_001)) == (2, 2)
    assert counted(other, one, Clock("", 5_001)) == (2, 2)
    assert counted(one, other, Clock("", 0, -0.5, 0)) == (2, 2)


def test_receives_that_do_not_wait_are_matched_but_say_nothing() -> None:
    receiver = (init(), call("MPI_Irecv", 1, 2, 0), call("MPI_Recv", 13_000, 33_000, 0))
    assert counted(report(0, *SENDER), report(1, *receiver)) == (1, 0)


def test_messages_of_other_tags_have_an_order_of_their_own() -> None:
    sender = (*SENDER, call("MPI_Send", 20_000, 21_000, 1, tag=4))
    receiver = (init(), call("MPI_Recv", 1_000, 20_500, 0, tag=4), *RECEIVER[1:])
    assert counted(report(0, *sender), report(1, *receiver)) == (3, 0)


@pytest.mark.parametrize(
    ("sender", "receiver"),
    [
        (SENDER[1:], RECEIVER),  # begun later
        (SENDER, (*RECEIVER, call("MPI_Recv", 40_000, 41_000, None, group="p2p"))),  # of any source
        (SENDER, (*RECEIVER, call("MPI_Recv", 40_000, 41_000, 0, tag=None))),
        (SENDER, (*RECEIVER, call("MPI_Sendrecv", 40_000, 41_000, 0))),
        (SENDER, (*RECEIVER, call("MPI_Start", 40_000, 41_000, group="start_wait"))),
        (SENDER, (*RECEIVER, call("MPI_Recv", 40_000, 41_000, 0, communicator=78))),
        (SENDER, (init(), *(each | {"bytes": 9} for each in RECEIVER[1:]))),
        (SENDER, (init(), *(each | {"bytes": None} for each in RECEIVER[1:]))),
        (SENDER, (init(), *(each | {"ranks": 4} for each in RECEIVER[1:]))),
        (SENDER, (init(),)),
    ],
)
def test_what_may_be_another_message_is_not_matched(
    sender: tuple[Call, ...], receiver: tuple[Call, ...]
) -> None:
    assert counted(report(0, *sender), report(1, *receiver)) is None


def test_a_rank_that_is_not_there_or_twice_leaves_all_in_doubt() -> None:
    assert counted(report(0, *SENDER), report(0, *RECEIVER)) is None
    assert counted(report(0, *SENDER), report(2, *RECEIVER)) is None


def test_probes_receive_nothing() -> None:
    receiver = (*RECEIVER, call("MPI_Probe", 1, 2, None, group="p2p", tag=None))
    assert counted(report(0, *SENDER), report(1, *receiver)) == (2, 0)


def ping_pong(number: int, seed: int) -> tuple[list[Call], list[Call]]:
    """Messages there and back on one clock, of many tags and sizes."""
    chance = random.Random(seed)
    calls: tuple[list[Call], list[Call]] = ([init()], [init()])
    at = 0
    for _ in range(number):
        sender, tag, size = chance.randrange(2), chance.randrange(3), chance.randrange(100)
        began, took = at + chance.randrange(1_000), chance.randrange(1, 5_000)
        more = {"tag": tag, "bytes": size}
        calls[sender].append(call("MPI_Send", began, began + took, 1 - sender, **more))
        end = began + chance.randrange(1, 9_000)
        calls[1 - sender].append(call("MPI_Recv", at, end, sender, **more))
        at = max(end, began + took) + 1
    return calls


@pytest.mark.parametrize("seed", range(examples(5)))
def test_as_a_naive_count_does(seed: int) -> None:
    """Every message by itself, as the program that made them knows it."""
    calls = ping_pong(60, seed)
    traces = report(0, *calls[0]), report(1, *calls[1])
    for offset in (0, -3_000, 4_000, 100_000):
        early = 0
        for index in (0, 1):
            sent = [each for each in calls[index] if each["name"] == "MPI_Send"]
            received = [each for each in calls[1 - index] if each["name"] == "MPI_Recv"]
            shift = offset if index == 0 else -offset
            early += sum(
                two["end"] + shift < one["start"] - 2_000
                for one, two in zip(sent, received, strict=True)
            )
        assert counted(*traces, Clock("", offset)) == (60, early)


class TestClocks:
    def test_messages_are_told_beside_a_clock(self) -> None:
        calls = ping_pong(40, 1)
        evidence = clock_evidence([report(0, *calls[0]), report(1, *calls[1])])
        assert evidence["known_by"].to_list() == [None, "session_start"]
        assert evidence.select("messages", "early_messages").rows() == [(None, None), (40, 0)]

    def test_a_start_under_which_they_arrive_before_they_left_is_set_by_them(self) -> None:
        """Two hosts of one name, whose sessions say that they began 1 ms apart."""
        calls = ping_pong(40, 1)
        traces = report(0, *calls[0]), report(1, *calls[1], start=1_000_000)
        row = clock_evidence(traces).row(1, named=True)
        assert (row["clock"], row["known_by"], row["calls"]) == ("host a", "messages", None)
        assert (row["messages"], row["early_messages"]) == (40, 0)
        assert row["evidence"] == "40 messages both ways"
        assert abs(row["offset_ns"]) <= row["bound_ns"] < 10_000  # they began together

    def test_messages_one_way_tell_no_clock(self) -> None:
        """They bound it on one side only, and refute what is beyond."""
        one = report(0, init(), *(call("MPI_Send", n, n + 9, 1) for n in range(0, 900, 90)))
        others = [init(), *(call("MPI_Recv", n + 1, n + 80, 0) for n in range(0, 900, 90))]
        row = clock_evidence([one, report(1, *others, start=-1_000_000)]).row(1, named=True)
        assert (row["clock"], row["known_by"], row["bound_ns"]) == ("report 1", None, None)
        assert row["evidence"] == (
            "10 of 10 messages whose match is certain are received before they are sent"
        )
        row = clock_evidence([one, report(1, *others, start=50)]).row(1, named=True)
        assert (row["known_by"], row["offset_ns"], row["bound_ns"]) == ("session_start", 50, None)

    @pytest.mark.parametrize(("early", "refused"), [(0, False), (2, False), (3, True)])
    def test_a_few_may_be_off(self, early: int, refused: bool) -> None:
        assert (_fit(40, early).contradicts is not None) == refused
        assert _fit(7, 7).contradicts is None


def _fit(number: int, early: int) -> Fit:
    return Fit(HERE, 0, number, 0, None, 0, early, None)
