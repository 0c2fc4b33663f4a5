"""One clock for the reports of a run: known offsets and drifts come back, or are refused."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import numpy as np
import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

from tracekit.analysis.clocks import _align, align, aligned, clock_evidence
from tracekit.analysis.clocks._fit import _drift_of, _width
from tracekit.analysis.clocks._matches import joint_calls
from tracekit.model import TABLES, Trace, combine

SECOND = 1_000_000_000
UUID = "11111111-2222-3333-4444-555555555555"
_CHANCE = random.Random(5)
ENDS = list(itertools.accumulate(_CHANCE.randrange(50_000, 150_000) for _ in range(20)))
"""Ends of 20 collectives of 1,000 ns whose order fits in one way only."""


def report(
    ends: list[int],
    *,
    host: str | None = "a",
    start: int | None = 0,
    kinds: list[str] | None = None,
    uuid: str | None = None,
    length: int = 1000,
) -> Trace:
    """A report of collectives that end at some times."""
    rows: list[dict[str, Any]] = [
        {
            "op": number, "report": 0, "process": 0, "device": 0, "context": 1, "stream": 7,
            "start": end - length, "end": end, "kind": "collective", "stage": "WU",
            "stage_source": "gradient_exchange",
            "collective": "all_reduce" if kinds is None else kinds[number],
        }
        for number, end in enumerate(ends)
    ]  # fmt: skip
    place = {"report": 0, "process": 0}
    types = TABLES["reports"].schema
    told = {"report": 0, "file": f"{host}.sqlite", "format": "x", "size": 1, "host": host,
            "session_start": start}  # fmt: skip
    return Trace.of(
        {
            "reports": pl.DataFrame([told], schema_overrides={key: types[key] for key in told}),
            "processes": pl.DataFrame([place | {"pid": 1, "global_id": 1}]),
            "devices": pl.DataFrame(
                [{"report": 0, "device": 0, "uuid": uuid, "active": True, "identity": "ordinal"}],
                schema_overrides={"uuid": pl.String},
            ),
            "ops": pl.DataFrame(rows),
        }
    )


def test_unlike_reports_are_not_each_compared_with_each(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[object] = []

    def nothing(*both: object) -> str:
        compared.append(both)
        return "they have no calls in common that all ranks make together"

    monkeypatch.setattr(_align, "best_fit", nothing)
    monkeypatch.setattr(_align, "_MOST_CLOCKS", 3)
    reports = [report([1], host=f"h{number}", start=None) for number in range(12)]
    clocks = [each.clock for each in align(reports)]
    assert len({clock.name for clock in clocks}) == 12
    # With the first report, and with two that were on their own after it.
    assert len(compared) == 11 + 10 + 9


NAMED = st.frozensets(st.sampled_from("abcdef"), max_size=4)
PLACE = st.sampled_from(["host 1", "host 2", "host 3"])
REPORT = st.tuples(PLACE, NAMED, st.sampled_from([0.0, 1.0, float("inf")]))


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(REPORT, min_size=1, max_size=40))
def test_the_nearest_are_those_that_a_look_at_all_finds(
    reports: list[tuple[str, frozenset[str], float]],
) -> None:
    known = _align._Aligned()
    for index, (host, named, off) in enumerate(reports[1:]):
        known.add(index, {host}, named, off)
    host, named, _ = reports[0]

    def away(index: int) -> tuple[int, bool, float]:
        other, others, off = reports[1 + index]
        return -len(named & others), other != host, off

    expected = sorted(range(len(reports) - 1), key=away)[: _align._MOST_TRIES]
    assert sorted(known.near({host}, named), key=away)[: _align._MOST_TRIES] == expected


def mixed(groups: dict[str, list[int]]) -> Trace:
    """A report of all_reduces of some communicators of NCCL, launched in calls that name these."""
    builder = TraceBuilder()
    for number, (group, ends) in enumerate(groups.items()):
        for end in ends:
            payload = json.dumps({"NCCL communicator ID": group})
            at = end - 1_500
            builder.range(at, at + 100, "ncclAllReduce", domain="NCCL", payload=payload)
            builder.op("ncclDevKernel_AllReduce_Sum", at + 5, start=end - 1_000, end=end,
                       kind="collective", collective="all_reduce", stream=number)  # fmt: skip
    reports = pl.DataFrame([{"report": 0, "file": "f", "format": "x", "size": 1}])
    return builder.trace().with_tables({"reports": reports})


def numbered(ends: list[int], first: int, count: int) -> Trace:
    """A report of all_reduces that advanced tracing numbers in their communicator."""
    builder = TraceBuilder()
    for number, end in enumerate(ends, first):
        told = {"commHash": "0x1a", "seqNumber": number, "count": count, "datatype": "float32"}
        at = end - 1_500
        builder.range(at, at + 100, "AllReduce", domain="NCCL", payload=json.dumps(told))
        builder.op("ncclDevKernel_AllReduce_Sum", at + 5, start=end - 1_000, end=end,
                   kind="collective", collective="all_reduce")  # fmt: skip
    reports = pl.DataFrame([{"report": 0, "file": "f", "format": "x", "size": 1}])
    return builder.trace().with_tables({"reports": reports})


def together(*reports: Trace) -> Trace:
    return combine(aligned(reports))


def ends_of(trace: Trace) -> list[list[int]]:
    ops = trace.read("ops").sort("op")
    numbers = trace.read("reports")["report"]
    return [ops.filter(report=number)["end"].to_list() for number in numbers]


@pytest.mark.parametrize(
    ("host", "start", "clock"),
    [("a", 5, "host a"), ("a", None, "report 0"), (None, 5, "report 0"), (None, None, "report 0")],
)
def test_a_clock_is_a_host_s_where_it_is_known_when_its_session_began(
    host: str | None, start: int | None, clock: str
) -> None:
    [own] = align([report([100], host=host, start=start)])
    assert own.clock.name == clock


class TestOneMachine:
    def test_sessions_are_set_apart_by_their_starts(self) -> None:
        """Time 100 of a session that began 30 ns later is time 130 of the first one."""
        both = together(report([100], start=5000), report([100], start=5030))
        assert ends_of(both) == [[100], [130]]
        told = both.read("reports")
        assert told["clock"].to_list() == ["host a", "host a"]
        assert told["clock_offset"].to_list() == [0, 30]
        assert told["session_start"].to_list() == [5000, 5000]
        assert told["clock_reason"].to_list() == [None, "one machine: both name host a"]
        assert both.warnings == ()

    @pytest.mark.parametrize(
        ("hosts", "uuids", "starts", "is_one"),
        [
            ((None, None), (UUID, UUID), (5, 6), True),
            (("a", None), (UUID, UUID), (5, 6), True),
            ((None, None), (UUID, None), (5, 6), False),
            (("a", "b"), (UUID, UUID), (5, 6), False),
            (("a", "b"), (None, None), (5, 5), True),
            (("a", "a"), (None, None), (5, None), False),
            (("a", "a"), (None, None), (None, None), False),
        ],
    )
    def test_what_tells_one_machine(self, hosts, uuids, starts, is_one: bool) -> None:
        both = together(
            *(
                report([100], host=host, uuid=uuid, start=start)
                for host, uuid, start in zip(hosts, uuids, starts, strict=True)
            )
        )
        assert (both.read("reports")["clock"].n_unique() == 1) == is_one

    def test_calls_that_contradict_win(self) -> None:
        """Two machines are called alike, but each collective ends 5 ms before it begins there."""
        both = together(report(ENDS), report(ENDS, start=5_000_000))
        assert ends_of(both) == [ENDS, ENDS]
        assert both.read("reports")["clock_source"].to_list() == [None, "collectives"]


class TestCollectives:
    def test_hosts_are_set_apart_by_them(self) -> None:
        late = [end - 7_777 + (1_000 if n == 3 else n % 3) for n, end in enumerate(ENDS)]
        both = together(report(ENDS), report(late, host="b", start=123))
        told = both.read("reports").row(1, named=True)
        assert (told["clock"], told["clock_source"], told["clock_offset"]) == (
            "host a", "collectives", 7_776,
        )  # fmt: skip
        assert (told["clock_calls"], told["clock_drift"]) == (20, 0)
        assert both.warnings[0].startswith(
            "b.sqlite: its clock is set +7,776 ns by collectives that end together: "
            "the ends of 20 then differ by"
        )

    @pytest.mark.parametrize(
        ("first", "last"), [(0, 20), (3, 20), (0, 15), (2, 17)], ids="{}".format
    )
    def test_recordings_may_be_cut_anywhere(self, first: int, last: int) -> None:
        both = together(
            report(ENDS), report([end - 999 for end in ENDS[first:last]], host="b", start=9)
        )
        assert ends_of(both)[1] == ENDS[first:last]

    def test_a_third_joins_by_the_second(self) -> None:
        """The first and the third have nothing in common: they are in different groups."""
        later = [end + 10**8 for end in ENDS]
        middle = mixed({"0x1": ENDS, "0x2": later})
        reports = [mixed({"0x1": ENDS}), middle, mixed({"0x2": [end - 50 for end in later]})]
        evidence = clock_evidence(reports)
        assert evidence["clock"].n_unique() == 1
        assert evidence["against"].to_list() == [None, 0, 1]
        assert evidence["offset_ns"].to_list() == [0, 0, 50]

    @pytest.mark.parametrize(
        ("other", "why"),
        [
            ([1, 2, 3], "only 3 calls could be matched"),
            (
                [end + 2_000 * (n % 5) for n, end in enumerate(ENDS)],
                "ends of 20 matched calls differ by",
            ),
        ],
    )
    def test_what_is_not_proven_is_refused(self, other: list[int], why: str) -> None:
        both = together(report(ENDS), report(other, host="b", start=9))
        assert both.read("reports")["clock"].to_list() == ["host a", "host b"]
        assert why in both.read("reports")["clock_reason"][1]
        assert both.warnings[0].startswith(
            f"b.sqlite: its clock is not aligned with the first report's: {why}"
        )
        assert both.warnings[-1].startswith("the clocks of 2 reports are not aligned")

    def test_other_operations_are_none_in_common(self) -> None:
        kinds = ["all_gather"] * 20
        both = together(report(ENDS), report(ENDS, host="b", start=9, kinds=kinds))
        assert both.read("reports")["clock_reason"][1] == "their calls are not the same ones"

    @pytest.mark.parametrize(("first", "size", "calls"), [(0, 8, 30), (5, 8, 25), (5, 9, None)])
    def test_numbers_tell_what_order_does_not(
        self, first: int, size: int, calls: int | None
    ) -> None:
        """Of collectives as regular as a clock, each says its number in the communicator."""
        ticks = [10_000 * n for n in range(1, 31)]
        later = [end - 777 for end in ticks[first:]]
        both = [numbered(ticks, 0, 8), numbered(later, first, size)]
        row = clock_evidence(both).row(1, named=True)
        assert row["calls"] == calls
        assert (row["known_by"], row["offset_ns"]) == (("collectives", 777) if calls else (None, 0))

    def test_numbers_that_lack_the_first_calls_give_way_to_an_order_that_fits(self) -> None:
        """The second report lost three calls of a communicator, and counts the others from 0."""
        row = clock_evidence([numbered(ENDS, 0, 8), numbered(ENDS[3:], 0, 8)]).row(1, named=True)
        assert (row["known_by"], row["calls"], row["offset_ns"]) == ("collectives", 17, 0)

    def test_an_order_that_fits_in_several_ways_is_refused(self) -> None:
        """Collectives that come as a clock ticks match shifted by one just as well."""
        ticks = [10_000 * n for n in range(1, 31)]
        both = together(report(ticks), report(ticks, host="b", start=9))
        assert both.read("reports")["clock_reason"][1] == (
            "the order of their calls fits in several ways"
        )

    def test_a_residual_has_to_be_well_under_the_median_call(self) -> None:
        jitter = [end + (n % 5 - 2) * 200 for n, end in enumerate(ENDS)]  # 400 ns either way
        long, short = (
            together(report(ENDS, length=length), report(jitter, host="b", start=9, length=length))
            for length in (1_300, 1_100)
        )
        assert long.read("reports")["clock"].n_unique() == 1
        assert short.read("reports")["clock"].n_unique() == 2


def shaken(
    offset: int, drift: float, chance: random.Random, base: int, step: int
) -> tuple[list[int], list[int], list[int]]:
    """Return true ends, those that a clock tells that is off, and by how much some are late."""
    true, now = [], base
    for _ in range(200):
        now += chance.randrange(step, 3 * step)
        true.append(now)
    late = [chance.randrange(1_000_000) if chance.random() < 0.02 else 0 for _ in true]
    seen = [
        end + round((end - base) * drift) + offset + chance.randrange(-1000, 1000) + extra
        for end, extra in zip(true, late, strict=True)
    ]
    return true, seen, late


@settings(deadline=None, max_examples=examples(12, thorough=200))
@given(
    st.integers(-(10**12), 10**12),
    st.sampled_from([0.0, 3e-6, -20e-6]),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_a_known_offset_and_drift_come_back(
    offset: int, drift: float, seed: int, epoch: bool
) -> None:
    """Ends differ by up to 1 us; 2 % of them are late by up to a millisecond."""
    base = 1_700_000_000 * SECOND if epoch else 0
    true, seen, late = shaken(offset, drift, random.Random(seed), base, 60_000_000)
    both = together(report(true, length=60_000), report(seen, host="b", start=None, length=60_000))
    first, second = ends_of(both)
    left = [other - one for one, other, extra in zip(first, second, late, strict=True) if not extra]
    assert max(map(abs, left)) < 5_000
    told = both.read("reports").row(1, named=True)
    assert told["clock_drift"] == pytest.approx(-drift, abs=2e-7)


def test_a_drift_is_told_in_parts_of_a_million() -> None:
    true, seen, _ = shaken(0, 20e-6, random.Random(1), 0, 60_000_000)
    reports = [report(true, length=60_000), report(seen, host="b", start=None, length=60_000)]
    assert clock_evidence(reports)["drift_ppm"].to_list() == pytest.approx([0, -20], abs=0.2)


def test_no_drift_is_told_of_less_than_ten_seconds() -> None:
    true, seen, _ = shaken(0, 20e-6, random.Random(1), 0, 20_000_000)
    both = together(report(true, length=10**6), report(seen, host="b", length=10**6, start=9))
    assert true[-1] - true[0] < 10 * SECOND
    assert both.read("reports")["clock_drift"].to_list() == [0, 0]


def streams(host: str, start: int, lanes: dict[int, list[tuple[int, int]]]) -> Trace:
    """A report of all_reduces on some streams, which name no communicator."""
    rows = [
        {
            "op": number, "report": 0, "process": 0, "device": 0, "context": 1, "stream": stream,
            "start": begin, "end": end, "kind": "collective", "stage": "WU",
            "stage_source": "gradient_exchange", "collective": "all_reduce",
        }
        for number, (stream, begin, end) in enumerate(
            (stream, *span) for stream, spans in lanes.items() for span in spans
        )
    ]  # fmt: skip
    return report([1], host=host, start=start).with_tables({"ops": pl.DataFrame(rows)})


class TestSeveralStreams:
    def test_the_stream_tells_a_clock_that_both_wait_on(self) -> None:
        """On stream 20 the reports have most calls, each in a group of its own, nearly in step."""
        chance = random.Random(3)
        own: dict[int, list[tuple[int, int]]] = {20: [], 24: []}
        other: dict[int, list[tuple[int, int]]] = {20: [], 24: []}
        now = 0
        for number in range(120):
            now += 400_000 + chance.randrange(300_000)
            for lanes in (own, other):
                at = now + chance.randrange(3_000)
                lanes[20].append((at, at + 40_000))
            if number % 5 == 0:
                arrivals = [now + 60_000 + chance.randrange(90_000) for _ in range(2)]
                done = max(arrivals) + 20_000
                own[24].append((arrivals[0], done))
                other[24].append((arrivals[1], done + chance.randrange(300)))
        moved = {
            stream: [(begin - 7_000, end - 7_000) for begin, end in spans]
            for stream, spans in other.items()
        }
        row = clock_evidence([streams("a", 0, own), streams("b", 9, moved)]).row(1, named=True)
        assert (row["known_by"], row["calls"]) == ("collectives", 24)
        assert row["offset_ns"] == pytest.approx(7_000, abs=300)

    def test_a_stream_of_each_may_be_all_that_they_share(self) -> None:
        """Nothing says of calls of one length that they end together, but they are no others."""
        row = clock_evidence([report(ENDS), report(ENDS, host="b", start=9)]).row(1, named=True)
        assert row["known_by"] == "collectives"


class TestStarts:
    def test_one_that_calls_contradict_leaves_none_of_its_machine_to_be_believed(self) -> None:
        """The second session is 300 us off, and the third 100 ns, which refutes nothing."""
        reports = [report(ENDS), report(ENDS, start=300_000), report(ENDS, start=100)]
        found = clock_evidence(reports)
        assert found["known_by"].to_list() == [None, "collectives", "collectives"]
        assert found["offset_ns"].to_list() == [0, 0, 0]
        found = clock_evidence([reports[0], reports[2]])
        assert (found["known_by"][1], found["offset_ns"][1]) == ("session_start", 100)

    def test_where_they_are_not_believed_what_shares_no_calls_is_on_its_own(self) -> None:
        reports = [report(ENDS), report(ENDS, start=300_000), report([1], start=100)]
        row = clock_evidence(reports).row(2, named=True)
        assert (row["clock"], row["known_by"], row["bound_ns"]) == ("report 2", None, None)
        assert row["evidence"].startswith("calls show that recorded session starts of its machine")


class TestBound:
    def test_it_is_how_far_calls_let_a_clock_be_off(self) -> None:
        """Calls of 1,000 ns: by more, a call would end before it began in the other report."""
        found = clock_evidence([report(ENDS), report(ENDS, start=300), report(ENDS, host="b")])
        assert found["bound_ns"].to_list() == [0, 1_300, 1_000]

    def test_bounds_add_up(self) -> None:
        later = [end + 10**8 for end in ENDS]
        middle = mixed({"0x1": ENDS, "0x2": later})
        reports = [mixed({"0x1": ENDS}), middle, mixed({"0x2": later})]
        assert clock_evidence(reports)["bound_ns"].to_list() == [0, 1_000, 2_000]

    def test_without_calls_none_is_known(self) -> None:
        assert clock_evidence([report([1]), report([1], start=30)])["bound_ns"].to_list() == [
            0,
            None,
        ]


@pytest.mark.parametrize("drift", [0.0, 2e-5])
@pytest.mark.parametrize("step", [-3_000_000, 700_000])
def test_a_step_comes_back(step: int, drift: float) -> None:
    """Both parts are where they were, with what began before the step as long as it was."""
    true, seen, late = shaken(9_000, drift, random.Random(2), 0, 60_000_000)
    stepped = [end + step * (number >= 90) for number, end in enumerate(seen)]
    reports = [report(true, length=60_000), report(stepped, host="b", length=60_000)]
    both = together(*reports)
    first, second = ends_of(both)
    left = [other - one for one, other, extra in zip(first, second, late, strict=True) if not extra]
    assert max(map(abs, left)) < 5_000
    row = clock_evidence(reports).row(1, named=True)
    told = both.read("reports").row(1, named=True)
    [(at, by)] = [tuple(map(int, said.split(":"))) for said in told["clock_steps"].split()]
    assert seen[89] < at < stepped[90] or stepped[90] < at < seen[89]
    assert by == pytest.approx(-step, abs=1_000)
    assert row["steps"] == 1
    lengths = both.read("ops").select(pl.col("end") - pl.col("start")).to_series()
    assert lengths.is_between(59_000, 61_000).all()
    assert "set anew" in both.warnings[0]


class TestGiven:
    def test_the_users_word_wins(self) -> None:
        reports = [report(ENDS, start=0), report(ENDS, host="b", start=400)]
        both = combine(aligned(reports, {1: 1_500}))
        assert ends_of(both)[1] == [end + 1_900 for end in ENDS]
        told = both.read("reports").row(1, named=True)
        assert (told["clock"], told["clock_source"], told["clock_offset"]) == (
            "host a", "given", 1_900,
        )  # fmt: skip

    def test_evidence_is_told_beside_it(self) -> None:
        reports = aligned([report(ENDS), report(ENDS, host="b", start=0)], {1: 1_500})
        row = clock_evidence(reports).row(1, named=True)
        assert (row["known_by"], row["offset_ns"], row["calls"]) == ("given", 1_500, 20)
        assert (row["p5_ns"], row["p95_ns"], row["violations"]) == (-1_500, -1_500, 0)
        third = align([report(ENDS, host=host, start=0) for host in "abc"], {2: 1_500})[2]
        assert third.against == 0

    @pytest.mark.parametrize("first", [None, (-40, -20e-6, 2_000_000)])
    def test_a_drift_turns_where_the_user_says(self, first: tuple[int, float, int] | None) -> None:
        """Clock b loses 80 us a second, and is 1 us late at its 3 ms."""
        seen = [1_000 * end for end in ENDS]
        true = [at + 1_000 + round((at - 3_000_000) * 80e-6) for at in seen]
        offset, drift, since = first or (0, 0.0, 0)
        wrong = [round(since + (at - offset - since) / (1 + drift)) for at in true]
        reports = [report(wrong), report(seen, host="b", start=0)]
        given = {1: (1_000, 80e-6, 3_000_000)} | ({} if first is None else {0: first})
        traces = aligned(reports, given)
        one, other = ends_of(combine(traces))
        assert other == true
        assert one == pytest.approx(true, abs=1)
        row = clock_evidence(traces).row(1, named=True)
        assert (row["known_by"], row["offset_ns"]) == ("given", 1_000)
        assert row["drift_ppm"] == pytest.approx(80)
        assert max(abs(row["p5_ns"]), abs(row["p95_ns"])) <= 2
        assert row["violations"] == 0


@pytest.mark.parametrize("first", [0, 1])
def test_a_report_without_calls_has_none_in_common(first: int) -> None:
    """Its table of calls is that of any other report, without rows."""
    quiet = report(ENDS, host="b", start=9)
    quiet = quiet.with_tables({"ops": quiet.read("ops").with_columns(kind=pl.lit("compute"))})
    busy = report(ENDS)
    assert joint_calls(quiet).is_empty()
    assert joint_calls(quiet).schema == joint_calls(busy).schema
    both = clock_evidence([quiet, busy] if first else [busy, quiet])
    assert both["evidence"][1] == "they have no calls in common that all ranks make together"


def test_evidence_of_a_lone_report() -> None:
    assert clock_evidence([report(ENDS)])["known_by"].to_list() == [None]


@pytest.mark.parametrize(("share", "percents"), [(0.5, [25, 75]), (0.8, [10, 90])])
def test_the_middle_of_values_is_as_wide_as_percentiles_say(share: float, percents: Any) -> None:
    rng = np.random.default_rng(1)
    for size in (2, 3, 11, 41, 101, 256):
        values = rng.integers(-(10**12), 10**12, size)
        low, high = np.percentile(values, percents)
        assert _width(values, share) == pytest.approx(high - low, rel=1e-12)
    assert _width(np.array([7] * 9), share) == 0


def test_a_drift_of_collectives_of_which_half_end_at_one_time() -> None:
    """Where a clock stood still no slope is known; the others rise by 100 in a million."""
    times = np.array([0] * 51 + [n * SECOND for n in range(1, 50)])
    apart = times // 10_000
    assert _drift_of([(times, apart)]) == pytest.approx(1e-4)
