"""Which participants took part in the same collective: literal rows, and generated ranks."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.analysis.calls._matching import _followers, match
from tracekit.model import REPORTS, with_clocks

_SCHEMA = {
    "library": pl.String, "kind": pl.String, "report": pl.Int32, "process": pl.Int32,
    "device": pl.Int32, "context": pl.Int32, "stream": pl.Int64, "start": pl.Int64,
    "end": pl.Int64, "communicator": pl.String, "call_sequence": pl.Int64, "ranks": pl.Int32,
    "correlation": pl.Int64, "graph_node": pl.Int64,
}  # fmt: skip


def row(device: int | None, start: int, end: int, **more: Any) -> dict[str, Any]:
    return {
        "library": "nccl", "kind": "all_reduce", "report": 0, "process": device or 0,
        "device": device, "context": 1, "stream": 7, "start": start, "end": end,
        "communicator": None, "call_sequence": None, "ranks": None, "correlation": None,
        "graph_node": None,
    } | more  # fmt: skip


def reports(*starts_and_hosts: tuple[int | None, str | None]) -> pl.DataFrame:
    return REPORTS.conform(
        pl.DataFrame(
            [
                {
                    "report": report, "file": "f", "format": "x", "size": 1,
                    "session_start": start, "host": host,
                }
                for report, (start, host) in enumerate(starts_and_hosts or [(None, None)])
            ],
            schema_overrides={"session_start": pl.Int64, "host": pl.String},
        )
    )  # fmt: skip


def matched(*rows: dict[str, Any], where: pl.DataFrame | None = None) -> list[int | None]:
    frame = pl.DataFrame(rows, schema=_SCHEMA, orient="row")
    return match(frame, reports() if where is None else where).to_list()


class TestByOrder:
    def test_two_devices_that_overlap(self) -> None:
        assert matched(row(0, 100, 180), row(1, 130, 182)) == [0, 0]

    def test_two_that_do_not_overlap_are_not_matched(self) -> None:
        assert matched(row(0, 100, 130), row(1, 130, 182)) == [None, None]

    def test_one_device_has_no_match(self) -> None:
        assert matched(row(0, 0, 10), row(0, 5, 20, stream=8), row(0, 20, 30)) == [None] * 3

    def test_no_rows(self) -> None:
        assert matched() == []

    def test_captures_that_are_cut_at_both_ends(self) -> None:
        first = [row(0, 100 * n, 100 * n + 50) for n in range(6)]
        second = [row(1, 100 * n + 20, 100 * n + 51) for n in range(2, 9)]
        assert matched(*first, *second) == [None, None, 0, 1, 2, 3, 0, 1, 2, 3, None, None, None]

    def test_a_record_lost_in_the_middle_leaves_all_unknown(self) -> None:
        first = [row(0, 100 * n, 100 * n + 50) for n in range(10)]
        second = [row(1, 100 * n, 100 * n + 50) for n in range(10) if n != 5]
        assert matched(*first, *second) == [None] * 19

    def test_messages_that_end_apart_are_not_one(self) -> None:
        # The middle stage of a pipeline waits for the first, and the last one for another.
        def stages(kind: str) -> list[dict[str, Any]]:
            spans = ((0, 100, 130), (1, 20, 130), (2, 30, 400))
            return [
                row(device, 1000 * n + start, 1000 * n + end, kind=kind)
                for n in range(4)
                for device, start, end in spans
            ]

        found = matched(*stages("send_recv"))
        assert found == [each for n in range(4) for each in (n, n, None)]
        assert matched(*stages("broadcast")) == [n for n in range(4) for _ in range(3)]

    def test_messages_that_end_together_are_one(self) -> None:
        pair = (row(0, 100, 130, kind="send_recv"), row(1, 20, 135, kind="send_recv"))
        assert matched(*pair) == [0, 0]

    def test_streams_go_with_those_they_overlap_most(self) -> None:
        def lane(device: int, stream: int, at: int, length: int) -> list[dict[str, Any]]:
            return [
                row(device, 1000 * n + at, 1000 * n + at + length, stream=stream) for n in range(4)
            ]

        rows = [*lane(0, 7, 0, 100), *lane(0, 8, 90, 300), *lane(1, 17, 80, 309),
                *lane(1, 18, 20, 81)]  # fmt: skip
        assert matched(*rows) == [0, 2, 4, 6, 1, 3, 5, 7, 1, 3, 5, 7, 0, 2, 4, 6]

    def test_a_kind_whose_ends_prove_no_group_is_matched_once_by_another_on_its_streams(
        self,
    ) -> None:
        """Weights of two groups are gathered at the same times, their gradients are not."""
        rng, rows = random.Random(3), []
        for n in range(24):
            at, late = 1_000_000 * n, [rng.randint(0, 8_000) for _ in range(4)]
            rows += [
                row(device, at + rng.randint(0, 300), at + 60_000 + rng.randint(0, 1_500),
                    kind="all_gather")
                for device in range(4)
            ]  # fmt: skip
            for pair in ((0, 1), (2, 3)):
                end = at + 400_000 + 60_000 + max(late[device] for device in pair)
                rows += [
                    row(device, at + 400_000 + late[device], end + rng.randint(0, 600),
                        kind="reduce_scatter")
                    for device in pair
                ]  # fmt: skip
        found = matched(*rows)
        assert len(found) == len(rows)
        pairs = {(found[8 * n], found[8 * n + 2]) for n in range(24)}
        assert len({number for pair in pairs for number in pair}) == 48
        assert all(
            found[8 * n + 2 * k] == found[8 * n + 2 * k + 1] for n in range(24) for k in (0, 1)
        )

    def test_streams_that_change_all_the_time_are_one(self) -> None:
        rows = [
            row(device, 100 * n + device, 100 * n + 60, stream=n)
            for device in range(2)
            for n in range(2 - device, 90)
        ]
        assert matched(*rows) == [*range(88), None, *range(88)]

    def test_kinds_and_communicators_do_not_mix(self) -> None:
        rows = [
            row(0, 0, 100, kind="all_gather"), row(1, 0, 100),
            row(2, 0, 100, communicator="a"), row(3, 0, 100, communicator="b"),
            row(4, 0, 100, communicator="a", stream=9),
        ]  # fmt: skip
        assert matched(*rows) == [None, None, 0, None, 0]

    def test_more_participants_than_ranks_are_no_match(self) -> None:
        rows = [row(device, 10 * device, 100, ranks=2) for device in range(3)]
        assert matched(*rows[:2]) == [0, 0]
        assert matched(*rows) == [None] * 3

    def test_processes_take_part_where_there_is_no_device(self) -> None:
        rows = [row(None, 10 * n, 100, process=n, library="mpi") for n in range(3)]
        assert matched(*rows) == [0, 0, 0]

    def test_slight_contact_is_no_overlap(self) -> None:
        rows = [row(0, 100 * n, 100 * n + 51) for n in range(5)]
        others = [row(1, 100 * n + 50, 100 * n + 99) for n in range(5)]
        assert matched(*rows, *others) == [None] * 10


class TestByNumber:
    def number(self, device: int, at: int, number: int, **more: Any) -> dict[str, Any]:
        return row(device, at, at + 10, communicator="0x1", call_sequence=number, **more)

    def test_numbers_need_no_overlap(self) -> None:
        rows = [self.number(0, 0, 4), self.number(0, 20, 5), self.number(1, 500, 5)]
        assert matched(*rows) == [None, 0, 0]

    def test_numbers_that_were_counted_past_a_lost_call_match_nothing(self) -> None:
        """Device 1 lost its call 3; the two others go on matching, by the times of their calls."""
        whole = [[self.number(device, 100 * n + device, n) for n in range(20)] for device in (0, 2)]
        times = [n for n in range(20) if n != 3]
        lost = [self.number(1, 100 * at + 1, n) for n, at in enumerate(times)]
        found = list(range(20))
        assert matched(*whole[0], *whole[1], *lost) == [*found, *found, *[None] * 19]

    def test_kinds_count_by_themselves(self) -> None:
        rows = [self.number(0, 0, 4), self.number(1, 0, 4, kind="all_gather")]
        assert matched(*rows) == [None, None]

    def test_a_number_that_comes_twice_on_a_device_means_nothing(self) -> None:
        rows = [self.number(0, 0, 4), self.number(0, 20, 4), self.number(1, 0, 4)]
        assert matched(*rows) == [None] * 3

    def test_numbers_of_other_hosts_match(self) -> None:
        rows = [self.number(0, 0, 4), self.number(1, 10**9, 4, report=1)]
        assert matched(*rows, where=reports((5, "a"), (6, "b"))) == [0, 0]


class TestByLaunch:
    def launched(self, device: int, at: int, call: int, **more: Any) -> dict[str, Any]:
        return row(device, at, at + 100, process=0, stream=call, correlation=call) | more

    def test_what_one_call_launched_is_one_collective(self) -> None:
        """Kernels of several communicators that queue up overlap those of others too."""
        rows = [
            self.launched(0, 0, 1), self.launched(1, 0, 1), self.launched(2, 20, 2),
            self.launched(0, 101, 2), self.launched(1, 102, 2),
        ]  # fmt: skip
        assert matched(*rows) == [0, 0, 1, 1, 1]

    def test_other_kinds_and_processes_have_other_calls(self) -> None:
        rows = [self.launched(0, 0, 1), self.launched(1, 900, 1, kind="all_gather"),
                self.launched(2, 1800, 1, process=1)]  # fmt: skip
        assert matched(*rows) == [None] * 3

    def test_a_call_is_not_all_of_a_collective_of_several_processes(self) -> None:
        """They are matched in order, all of them."""
        rows = [
            self.launched(device, 10 * device, 1 + process, process=process, end=100)
            for process, device in ((0, 0), (0, 1), (1, 2), (1, 3))
        ]
        assert matched(*rows) == [0] * 4

    def test_a_graph_launches_whatever_it_holds(self) -> None:
        rows = [self.launched(0, 0, 1, graph_node=5), self.launched(1, 900, 1, graph_node=6)]
        assert matched(*rows) == [None, None]
        plain = [self.launched(0, 0, 1), self.launched(1, 900, 1)]
        assert matched(*plain) == [0, 0]

    def test_a_device_twice_in_a_call_is_no_participant(self) -> None:
        rows = [self.launched(0, 0, 1), self.launched(0, 200, 1), self.launched(1, 900, 1)]
        assert matched(*rows) == [None] * 3


class TestClocks:
    def test_reports_with_one_clock_can_be_compared(self) -> None:
        known = reports((None, "a"), (None, "a"), (None, "b")).with_columns(
            clock=pl.Series(["host a", "host a", None])
        )
        rows = pl.DataFrame({"report": [0, 1, 2]}, schema={"report": pl.Int32})
        assert with_clocks(rows, known)["clock"].to_list() == ["host a", "host a", "report 2"]

    def test_collectives_are_matched_on_one_clock_alone(self) -> None:
        rows = [row(0, 1000, 1100), row(1, 1030, 1101, report=1)]
        known = reports((None, "a"), (None, "a"))
        assert matched(*rows, where=known.with_columns(clock=pl.lit("host a"))) == [0, 0]
        assert matched(*rows, where=known) == [None, None]


@st.composite
def ranks_of_groups(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[tuple[int, int]]]:
    """Give rows, and of each the group and number of the collective that it is part of.

    The groups run one after the other on streams of their own; in each collective the ranks arrive
    at different times, wait for the last one and end within a microsecond. Each rank's capture is
    cut at both ends.
    """
    seed = draw(st.integers(0, 2**32))
    chance = random.Random(seed)
    devices = draw(st.integers(2, 5))
    groups = draw(st.integers(1, 3))
    length = draw(st.integers(8, 30))
    now = 0
    made: list[list[tuple[int, int, int, int]]] = [[] for _ in range(devices)]
    for number in range(length):
        for group in range(groups):
            arrivals = [now + chance.randrange(0, 50_000) for _ in range(devices)]
            done = max(arrivals) + chance.randrange(10_000, 200_000)
            for device, arrival in enumerate(arrivals):
                made[device].append((group, number, arrival, done + chance.randrange(0, 1000)))
            now = done + chance.randrange(2_000, 100_000)
    rows, truth = [], []
    for device, some in enumerate(made):
        first, last = chance.randrange(0, 3 * groups), len(some) - chance.randrange(0, 3 * groups)
        for group, number, start, end in some[first:last]:
            rows.append(row(device, start, end, stream=7 + (group + device) % groups))
            truth.append((group, number))
    order = list(range(len(rows)))
    chance.shuffle(order)
    return [rows[n] for n in order], [truth[n] for n in order]


@settings(max_examples=examples(60), deadline=None)
@given(ranks_of_groups())
def test_generated_ranks_are_found(
    generated: tuple[list[dict[str, Any]], list[tuple[int, int]]],
) -> None:
    """Calls of a group are matched if ends prove it to be one, else none is; none is wrongly."""
    rows, truth = generated
    found = matched(*rows)
    members: dict[tuple[int, int], list[int]] = {}
    for number, key in enumerate(truth):
        members.setdefault(key, []).append(number)
    known = []
    for group in {group for group, _ in truth}:
        calls = [some for (of, _), some in members.items() if of == group]
        shared = [{found[each] for each in some} for some in calls if len(some) > 1]
        assert all({found[each] for each in some} == {None} for some in calls if len(some) == 1)
        assert all(len(numbers) == 1 for numbers in shared)
        if is_proven([[rows[each] for each in some] for some in calls]):
            assert {None} not in shared
        known += [number for [number] in shared if number is not None]
        assert {None} not in shared or all(numbers == {None} for numbers in shared)
    assert sorted(known) == list(range(len(known)))


def is_proven(calls: list[list[dict[str, Any]]]) -> bool:
    """Tell whether all ranks waited for the last one, ten times as long as ends vary, often enough.

    Ends vary by less than 1 us. However ranks are parted, the parts arrive 10 us apart in each
    of these calls: in more than half of the quarter, or the four, in which they differ most.
    """
    ranks = len({each["device"] for some in calls for each in some})
    starts = [sorted(each["start"] for each in some) for some in calls if len(some) == ranks > 1]
    waits = sum(of_call[-1] - of_call[-2] >= 10_000 for of_call in starts)
    return 2 * waits > max(len(calls) // 4, 4)


@pytest.mark.parametrize("is_late", [False, True])
def test_rows_while_the_leading_lane_goes_on_should_have_met_one(is_late: bool) -> None:
    """Two rows meet those of the other lane; three more, early or late, meet none of their own."""
    columns = ("lane", "participant", "number", "start", "end")

    def lane(number: int, *spans: tuple[int, int]) -> pl.DataFrame:
        rows = [(number, number, place, *span) for place, span in enumerate(spans)]
        return pl.DataFrame(rows, schema=columns, orient="row")

    if is_late:
        leading = lane(0, (0, 100), (200, 1000))
        met, more = [(0, 100), (200, 210)], [(300, 301), (400, 401), (500, 501)]
    else:
        leading = lane(0, (0, 1000), (1100, 1200))
        met, more = [(7, 600), (1100, 1200)], [(1, 2), (3, 4), (5, 6)]
    assert _followers(leading, lane(1, *sorted([*met, *more]))).is_empty()
    assert _followers(leading, lane(1, *met)).rows() == [(1, 0)]
