"""What logs of NCCL's inspector say of collectives, by hand."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from effort import examples

from tests.nccl_inspector import Call, write_logs
from tracekit.analysis.communication import nccl_inspector
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import Answer
from tracekit.sources.nccl_inspector import read_inspector_logs

US = 1_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def ask(folder: Path, calls: Sequence[Call], by: str = "size", **how: Any) -> Answer:
    write_logs(folder, calls, **how)
    logs = read_inspector_logs([folder])
    return nccl_inspector(logs.records, logs.dropped, by, logs.warnings)


def rows(answer: Answer, *columns: str) -> list[tuple[object, ...]]:
    return answer.rows.select(columns).rows()


def all_of(sequence: int, *us: float, **more: Any) -> list[Call]:
    return [Call(rank, sequence, each, ranks=len(us), **more) for rank, each in enumerate(us)]


class TestBandwidth:
    @pytest.mark.parametrize(
        ("coll", "traffic", "algorithm", "bus"),
        [
            # 1,000,000 bytes of each of 8 ranks in 1 ms are 1 GB/s.
            ("AllReduce", 1_000_000, 1.0, 1.75),
            ("AllGather", 8_000_000, 8.0, 7.0),
            ("ReduceScatter", 8_000_000, 8.0, 7.0),
            ("Broadcast", 1_000_000, 1.0, 1.0),
            ("Reduce", 1_000_000, 1.0, 1.0),
            ("AlltoAll", None, None, None),
        ],
    )
    def test_of_each_collective(
        self, folder: Path, coll: str, traffic: int, algorithm: float, bus: float
    ) -> None:
        answer = ask(folder, all_of(1, *[1000.0] * 8, coll=coll, size=1_000_000))
        named = ("bytes", "algorithm_bandwidth_gb_s", "bus_bandwidth_gb_s")
        assert rows(answer, *named) == [(traffic, algorithm, bus)]
        assert not any("another bandwidth" in each for each in answer.warnings)

    @pytest.mark.parametrize("coll", ["Send", "Recv"])
    def test_of_messages(self, folder: Path, coll: str) -> None:
        answer = ask(folder, [Call(0, 1, 500, coll, 1_000_000, ranks=8, peer=3)])
        named = ("collective", "bytes", "bus_bandwidth_gb_s", "compared")
        assert rows(answer, *named) == [(coll.lower(), 1_000_000, 2.0, 0)]
        assert answer.meta["collectives"] == 0

    def test_a_difference_to_what_nccl_says_is_said(self, folder: Path) -> None:
        paths = write_logs(folder, all_of(1, 1000.0, 1000.0, size=1_000_000))
        text = paths[0].read_text()
        paths[0].write_text(text.replace('"coll_busbw_gbs": 1.0', '"coll_busbw_gbs": 1.1'))
        logs = read_inspector_logs([folder])
        answer = nccl_inspector(logs.records, logs.dropped)
        assert answer.warnings[0] == (
            "of 1 of 2 records NCCL logs another bandwidth than follows from size and time: tables "
            "show the latter"
        )
        assert rows(answer, "bus_bandwidth_gb_s") == [(1.0,)]

    def test_six_decimals_are_no_difference(self, folder: Path) -> None:
        calls = [
            call
            for n, us in enumerate((3, 7, 999_983))
            for call in all_of(n, us, us, us, coll="AllGather", size=8192)
        ]
        assert not ask(folder, calls).warnings

    def test_no_time_has_no_bandwidth(self, folder: Path) -> None:
        answer = ask(folder, all_of(1, 0, 0))
        assert rows(answer, "duration_p50_ns", "bus_bandwidth_gb_s", "transfer_ns") == [
            (0, None, 0)
        ]
        assert rows(answer, "transfer_bus_bandwidth_gb_s") == [(None,)]


class TestBySize:
    def test_the_shortest_participant_came_last(self, folder: Path) -> None:
        # Ranks 0, 1, 2 of three calls; the last call is shortest on two of them.
        calls = [*all_of(1, 100, 40, 70), *all_of(2, 90, 50, 60), *all_of(3, 30, 30, 80)]
        answer = ask(folder, calls)
        named = ("ranks", "count", "compared", "duration_p50_ns", "duration_max_ns", "transfer_ns",
                 "wait_ns", "straggler_rank", "straggler_share", "basis")  # fmt: skip
        # Waits: 60 0 30, 40 0 10, 0 0 50: their median is 10.
        assert rows(answer, *named) == [
            (3, 3, 3, 90 * US, 100 * US, 40 * US, 10 * US, 1, 2 / 3,
             "longest of 3 of 3 ranks' own times")
        ]  # fmt: skip
        row = answer.rows.row(0, named=True)
        # 1 MiB among 3 ranks: 4/3 of 1,048,576 bytes in 90 and in 40 us.
        assert row["bus_bandwidth_gb_s"] == pytest.approx(15.5344592)
        assert row["transfer_bus_bandwidth_gb_s"] == pytest.approx(34.9525333)
        # Rank 1 makes the others wait 60 + 30 and 40 + 10: half of it for each.
        assert answer.title == (
            "rank 1 of 0xaa comes last alone at 2 of 3 collectives, for which each other rank waits"
            " 0.07 ms"
        )

    def test_numbers_count_each_collective_and_communicator_by_itself(self, folder: Path) -> None:
        calls = [
            *all_of(1, 10, 20),
            *all_of(1, 30, 40, coll="AllGather"),
            *all_of(1, 50, 60, communicator="0xbb"),
        ]
        answer = ask(folder, calls)
        assert rows(answer, "collective", "communicator", "transfer_ns") == [
            ("all_gather", "0xaa", 30 * US),
            ("all_reduce", "0xaa", 10 * US),
            ("all_reduce", "0xbb", 50 * US),
        ]
        assert (answer.meta["collectives"], answer.meta["communicators"]) == (3, 2)

    def test_sizes_apart_or_together(self, folder: Path) -> None:
        calls = [*all_of(1, 10, 20, size=8192), *all_of(2, 30, 40, size=16384)]
        assert rows(ask(folder, calls), "message_bytes", "bytes", "transfer_ns") == [
            (8192, 8192, 10 * US), (16384, 16384, 30 * US)
        ]  # fmt: skip
        together = ask(folder, calls, "collective")
        assert rows(together, "count", "bytes", "bus_bandwidth_gb_s") == [(2, None, None)]

    def test_many_sizes_fall_to_the_power_of_two_below(self, folder: Path) -> None:
        calls = [call for n in range(20) for call in all_of(n, 8, 8, size=8192 + n)]
        answer = ask(folder, calls)
        assert rows(answer, "message_bytes", "count", "bytes") == [(8192, 20, 8202)]

    @pytest.mark.parametrize("coll", ["Broadcast", "Reduce"])
    def test_ranks_that_may_leave_early_did_not_come_last(self, folder: Path, coll: str) -> None:
        answer = ask(folder, all_of(1, 10, 90, coll=coll))
        named = ("compared", "duration_p50_ns", "transfer_ns", "wait_ns", "straggler_rank")
        assert rows(answer, *named) == [(0, 90 * US, None, None, None)]

    def test_time_since_enqueueing_tells_no_waits(self, folder: Path) -> None:
        calls = [Call(0, 1, 10), Call(1, 1, 90, timing="collective_cpu")]
        answer = ask(folder, calls)
        assert rows(answer, "compared", "duration_p50_ns", "wait_ns") == [(0, 90 * US, None)]
        assert "1 of 2 records were timed on the host, not by the GPU" in answer.warnings

    def test_calls_that_lack_a_rank_count_only_where_no_call_is_whole(self, folder: Path) -> None:
        calls = [*all_of(1, 10, 20), Call(0, 2, 500)]
        answer = ask(folder, calls)
        assert rows(answer, "count", "compared", "duration_max_ns") == [(2, 1, 20 * US)]
        assert (
            "who waits in 1 of 2 collectives: not all their ranks have a record timed by the "
            "GPU, or ranks do not wait for all others"
        ) in answer.meta["missing"]
        (folder / "node0-pid101.log").unlink()
        alone = ask(folder, [Call(0, 2, 500)])
        assert rows(alone, "compared", "duration_p50_ns", "transfer_ns", "basis") == [
            (0, 500 * US, None, "one participant's kernel time, waiting included")
        ]
        assert alone.meta["missing"][0] == (
            "ranks without records (1 of 0xaa): give the logs of all hosts"
        )
        assert alone.title == "1 collective, whose last rank is unknown"


class TestTimes:
    def test_skew_of_verbose_logs_of_one_host(self, folder: Path) -> None:
        begin = 1_700_000_000_000_000
        calls = [Call(0, 1, 90, start=begin), Call(1, 1, 60, start=begin + 31)]
        answer = ask(folder, calls)
        assert rows(answer, "skew_ns") == [(31 * US,)]
        assert answer.meta["missing"] == []

    def test_without_times_it_is_null_with_the_reason(self, folder: Path) -> None:
        answer = ask(folder, all_of(1, 90, 60))
        assert rows(answer, "skew_ns") == [(None,)]
        assert answer.meta["missing"] == [
            "when collectives began, and so their skew: NCCL_INSPECTOR_DUMP_VERBOSE=1"
        ]

    def test_clocks_of_hosts_are_not_compared(self, folder: Path) -> None:
        begin = 1_700_000_000_000_000
        calls = [Call(rank, 1, 90, start=begin, host=f"node{rank}") for rank in range(2)]
        answer = ask(folder, calls)
        assert rows(answer, "skew_ns") == [(None,)]
        assert "clocks of hosts are not compared" in answer.meta["missing"][0]


class TestByRank:
    def test_who_waits_and_for_whom(self, folder: Path) -> None:
        calls = [*all_of(1, 100, 40, 70), *all_of(2, 90, 50, 60), *all_of(3, 30, 30, 80)]
        named = ("rank", "host", "pid", "records", "compared", "last", "last_share", "caused_ns",
                 "waited_ns", "duration_p50_ns", "missing")  # fmt: skip
        assert rows(ask(folder, calls, "rank"), *named) == [
            (1, "node0", 101, 3, 3, 2, 2 / 3, 70 * US, 0, 40 * US, 0),
            (0, "node0", 100, 3, 3, 0, 0.0, 0, 100 * US, 90 * US, 0),
            (2, "node0", 102, 3, 3, 0, 0.0, 0, 90 * US, 70 * US, 0),
        ]

    def test_gaps_are_counted_for_each_rank(self, folder: Path) -> None:
        # Numbers 1 to 6: rank 0 lacks 3, 4, 5 and rank 1 lacks 1, 4, 5, 6; both lack 4 and 5.
        calls = [Call(0, n, 10) for n in (1, 2, 6)] + [Call(1, n, 10) for n in (2, 3)]
        answer = ask(
            folder, calls, "rank", version="v4.2", dropped={("0xaa", 0): 1, ("0xaa", 1): 3}
        )
        assert rows(answer, "rank", "records", "missing", "elsewhere", "dropped") == [
            (0, 3, 3, 1, 1),
            (1, 2, 4, 2, 3),
        ]
        assert answer.warnings[0] == (
            "7 of 12 sequence numbers have no record: 3 that other ranks recorded are lost (rings "
            "keep 1,024: NCCL_INSPECTOR_DUMP_COLL_RING_SIZE), 4 that no rank recorded are lost, "
            "smaller than NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES (8,192 by default) or not timed by "
            "the GPU, NCCL counts 4 as overwritten (--by rank)"
        )

    def test_a_rank_without_any_record_of_a_collective_lacks_all(self, folder: Path) -> None:
        calls = [*all_of(1, 10, 20), *[Call(0, n, 5, "AllGather") for n in (4, 5)]]
        assert rows(ask(folder, calls, "rank"), "rank", "missing", "elsewhere") == [
            (0, 0, 0), (1, 2, 2)
        ]  # fmt: skip

    def test_numbers_of_messages_are_no_gaps(self, folder: Path) -> None:
        calls = [*all_of(1, 10, 20), Call(0, 9, 5, "Send", peer=1), Call(0, 9, 5, "Send", peer=1)]
        answer = ask(folder, calls, "rank")
        assert rows(answer, "records", "missing") == [(1, 0), (1, 0)]
        assert answer.warnings == ()


def test_records_with_one_number_are_left_out(folder: Path) -> None:
    calls = [*all_of(1, 10, 20), *all_of(2, 10, 30), Call(0, 2, 99)]
    answer = ask(folder, calls)
    assert rows(answer, "count", "compared", "duration_max_ns") == [(2, 1, 20 * US)]
    assert answer.warnings[0] == (
        "2 records repeat a sequence number of their rank and were left out: give the logs of one "
        "job, each once"
    )


def test_unequal_sizes_of_a_call_are_said(folder: Path) -> None:
    answer = ask(folder, [Call(0, 1, 10, size=8192), Call(1, 1, 10, size=9000)])
    assert rows(answer, "message_bytes") == [(9000,)]
    assert answer.warnings == ("ranks gave 1 collective different sizes: the largest counts",)


def test_what_ran_is_what_nccl_says(folder: Path) -> None:
    calls = [*all_of(1, 10, 20, algo="RING"), *all_of(2, 10, 20, algo="RING", size=8192)]
    answer = ask(folder, [*calls, *all_of(3, 10, 20, algo="TREE", size=8192)])
    assert rows(answer, "message_bytes", "algorithm", "protocol") == [
        (8192, None, "simple"), (1 << 20, "ring", "simple")
    ]  # fmt: skip


@pytest.mark.parametrize("by", ["size", "collective", "rank"])
def test_communicators_have_the_name_that_any_rank_gives_them(folder: Path, by: str) -> None:
    calls = [Call(0, 1, 10), Call(1, 1, 20, name="dp"), *all_of(1, 10, 20, communicator="0xbb")]
    found = ask(folder, calls, by, version="v4.2").rows
    assert found.select("communicator", "group").unique().sort("communicator").rows() == [
        ("0xaa", "dp"), ("0xbb", None)
    ]  # fmt: skip
    place = found.columns.index("communicator")
    assert found.columns[place + 1] == "group"


def test_what_cannot_be_asked(folder: Path) -> None:
    with pytest.raises(UsageError, match="no key 'step': choose one of size, collective, rank"):
        ask(folder, all_of(1, 10, 20), "step")
    with pytest.raises(UsageError, match="logs alone have no stage"):
        ask(folder, all_of(1, 10, 20), "stage")
    logs = read_inspector_logs([folder])
    with pytest.raises(MissingDataError, match="no record of a collective"):
        nccl_inspector(logs.records.clear(), logs.dropped)


def drawn(seed: int) -> list[Call]:
    """Return calls of two communicators of which some records are lost."""
    draw = random.Random(seed)
    return [
        Call(
            rank, number, draw.choice((5, 6, 7, 40, 41)), coll, size, ranks, communicator,
            timing=draw.choice(("kernel_gpu", "kernel_gpu", "kernel_cpu", "collective_cpu")),
        )
        for communicator, ranks in (("0xaa", 2), ("0xbb", 3))
        for coll in ("AllReduce", "AlltoAll", "Broadcast")
        for number in range(draw.randrange(3), 8)
        for size in (draw.choice((8192, 65536)),)
        for rank in range(ranks)
        if draw.random() < 0.8
    ]  # fmt: skip


def nearest(values: list[int]) -> int:
    """Return the median as polars does: of two middles the upper one."""
    return sorted(values)[len(values) // 2]


def plainly(calls: list[Call]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Work out waits and gaps by rank, and medians by size, one call after the other."""
    together: dict[Any, list[Call]] = defaultdict(list)
    numbers: dict[Any, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for call in calls:
        together[call.communicator, call.coll, call.sequence].append(call)
        numbers[call.communicator, call.coll][call.rank].add(call.sequence)
    by_rank: dict[Any, Any] = defaultdict(lambda: dict.fromkeys(("last", "caused", "missing"), 0))
    by_size: dict[Any, Any] = defaultdict(lambda: ([], []))
    for (communicator, coll, _), each in together.items():
        least = min(call.us for call in each)
        late = [call for call in each if call.us == least]
        if (
            len(each) < each[0].ranks
            or coll == "Broadcast"
            or any(call.timing == "collective_cpu" for call in each)
        ):
            continue
        waits = [int(call.us - least) * US for call in each]
        by_size[communicator, coll, each[0].size][0].append(int(least) * US)
        by_size[communicator, coll, each[0].size][1].extend(waits)
        if len(late) == 1:
            by_rank[communicator, late[0].rank]["last"] += 1
            by_rank[communicator, late[0].rank]["caused"] += sum(waits) / (len(each) - 1)
    for communicator, rank in {(call.communicator, call.rank) for call in calls}:
        for (other, _), ranks in numbers.items():
            if other == communicator:
                seen = set().union(*ranks.values())
                own = ranks.get(rank, set())
                span = set(range(min(seen), max(seen) + 1))
                by_rank[communicator, rank]["missing"] += len(span - own)
    return by_rank, {key: tuple(map(nearest, each)) for key, each in by_size.items()}


@pytest.mark.parametrize("seed", range(examples(12)))
def test_as_a_plain_loop_over_calls(folder: Path, seed: int) -> None:
    calls = drawn(seed)
    by_rank, by_size = plainly(calls)
    found = ask(folder, calls, "rank")
    named = ("communicator", "rank", "compared", "last", "caused_ns", "missing")
    for communicator, rank, compared, last, caused, missing in rows(found, *named):
        expected = by_rank[communicator, rank]
        assert (last, missing) == (expected["last"], expected["missing"])
        assert caused == (round(expected["caused"]) if compared else None)
    coll = {"all_reduce": "AllReduce", "alltoall": "AlltoAll", "all_to_all": "AlltoAll"}
    named = ("communicator", "collective", "message_bytes", "transfer_ns", "wait_ns")
    sizes = {
        (communicator, coll[str(kind)], size): (transfer, wait)
        for communicator, kind, size, transfer, wait in rows(ask(folder, calls), *named)
        if transfer is not None
    }
    assert sizes == by_size
