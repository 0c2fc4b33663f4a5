"""Groups of ranks that no payload names: hybrid-parallel jobs whose members are known."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pytest
from effort import by_day
from test_analysis_matching import reports, row

from tracekit.analysis.calls import _groups
from tracekit.analysis.calls._matching import match
from tracekit.analysis.communication._collectives import describe_groups, rank_groups


@dataclass
class Job:
    """Ranks that run collectives in groups; each call is known by its group and number."""

    ranks: int
    chance: random.Random
    jitter: float
    """By how much the computing before a call varies, in ns."""
    now: list[float] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    truth: list[tuple[Any, ...]] = field(default_factory=list)
    calls: dict[Any, int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        self.now = [0.0] * self.ranks

    def compute(self, length: float, ranks: Any = None) -> None:
        for rank in range(self.ranks) if ranks is None else ranks:
            self.now[rank] += length + abs(self.chance.gauss(0, self.jitter))

    def call(self, kind: str, members: tuple[int, ...], stream: int, length: int) -> None:
        """Run a collective: all wait for the last, and end within a microsecond of each other."""
        number = self.calls[kind, members]
        self.calls[kind, members] += 1
        done = max(self.now[rank] for rank in members) + length
        for rank in members:
            end = done + self.chance.randrange(1000)
            span = int(self.now[rank]), int(end)
            self.rows.append(row(rank, *span, kind=kind, stream=stream, report=rank))
            self.truth.append((kind, members, number))
            self.now[rank] = end + 500

    def matched(self, notes: list[str] | None = None) -> list[int | None]:
        where = reports(*[(0, "a")] * self.ranks).with_columns(clock=pl.lit("one"))
        return match(pl.DataFrame(self.rows, infer_schema_length=None), where, notes).to_list()


def hybrid(seed: int, tensor: int, data: int, jitter: float, steps: int = 3) -> Job:
    """Tensor parallelism in each layer, gradients of each layer to the ranks of other replicas."""
    job = Job(tensor * data, random.Random(seed), jitter)
    replicas = [tuple(range(at, at + tensor)) for at in range(0, job.ranks, tensor)]
    for _ in range(steps):
        for _ in range(8):
            job.compute(300_000)
            for members in replicas:
                job.call("all_reduce", members, 20, 90_000)
        for _ in range(4):
            job.compute(50_000)
            for rank in range(tensor):
                job.call("all_reduce", tuple(range(rank, job.ranks, tensor)), 24, 200_000)
    return job


def three_ways(seed: int, jitter: float, tensor: int, data: int, steps: int = 3) -> Job:
    """Tensor parallelism in the layers of two pipeline stages, and data parallelism around both."""
    half = tensor * data
    job = Job(2 * half, random.Random(seed), jitter)
    stages = [tuple(range(half)), tuple(range(half, 2 * half))]
    groups = [tuple(range(at, at + tensor)) for at in range(0, job.ranks, tensor)]
    replicas = [
        tuple(range(at + rank, at + half, tensor)) for at in (0, half) for rank in range(tensor)
    ]
    for members in replicas:
        job.compute(10_000, members)
        job.call("broadcast", members, 24, 60_000)
    for _ in range(steps):
        for stage in (0, 1, 1, 0) * 4:
            inside = [members for members in groups if members[0] in stages[stage]]
            for _ in range(3):
                job.compute(200_000, stages[stage])
                for members in inside:
                    job.call("all_reduce", members, 20, 90_000)
            for rank in range(half):
                job.call("send_recv", (rank, rank + half), 28, 30_000)
        for _ in range(4):
            job.compute(50_000)
            for members in replicas:
                job.call("all_reduce", members, 24, 200_000)
    return job


def judged(job: Job, *kinds: str) -> tuple[int, int, int]:
    """Return how many calls are matched as they were, not at all, and wrongly."""
    found, members = job.matched(), defaultdict(list)
    for number, key in enumerate(job.truth):
        members[key].append(number)
    right = unknown = wrong = 0
    for (kind, *_), numbers in members.items():
        told = {found[number] for number in numbers}
        if kinds and kind not in kinds:
            continue
        if told == {None}:
            unknown += 1
        elif len(told) == 1 and found.count(told.pop()) == len(numbers):
            right += 1
        else:
            wrong += 1
    return right, unknown, wrong


@pytest.mark.parametrize(("tensor", "data"), [(4, 2), (2, 4), (8, 2), (4, 4), (2, 2)])
@pytest.mark.parametrize("jitter", [20_000, 200_000])
def test_groups_in_step_are_told_apart(tensor: int, data: int, jitter: int) -> None:
    right, unknown, wrong = judged(hybrid(1, tensor, data, jitter))
    assert (unknown, wrong) == (0, 0)
    assert right == 3 * (8 * data + 4 * tensor)


@pytest.mark.slow
@pytest.mark.parametrize("jitter", by_day([0, 300, 1_000, 3_000], 0, 1_000))
def test_what_no_end_tells_apart_is_unknown(jitter: int) -> None:
    """Ends differ by up to a microsecond themselves; a match is right, or there is none."""
    for seed in range(3):
        assert judged(hybrid(seed, 4, 2, jitter))[2] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tensor", "data"), [(4, 2), pytest.param(4, 8, marks=pytest.mark.nightly)]
)
def test_groups_of_three_kinds_are_found(tensor: int, data: int) -> None:
    """Broadcasts, whose root may end early, are those of the groups on their streams.

    Messages of ranks that left an all_reduce together begin together: their pairs are not known.
    """
    for seed in range(3):
        job = three_ways(seed, 30_000, tensor, data)
        right, unknown, wrong = judged(job, "all_reduce", "broadcast")
        assert (unknown, wrong) == (0, 0)
        assert right == 2 * tensor + 3 * (2 * data * 4 * 6 + 2 * tensor * 4)
        assert judged(job, "send_recv")[2] == 0


def test_ranks_that_were_not_recorded_join_no_other_group() -> None:
    """Of each tensor-parallel group of four, half of the ranks are in the recording."""
    for seed in range(3):
        job = hybrid(seed, 4, 2, 30_000)
        kept = [n for n, each in enumerate(job.rows) if each["device"] % 4 < 2]
        job.rows, job.truth = [job.rows[n] for n in kept], [job.truth[n] for n in kept]
        assert judged(job)[2] == 0


def test_lanes_in_step_are_linked_once_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that begin and end together prove nothing, whichever of them is asked about."""
    linked, searched = _groups._linked_groups, []
    monkeypatch.setattr(
        _groups, "_linked_groups", lambda *times: searched.append(1) or linked(*times)
    )
    job = Job(24, random.Random(1), 0)
    for at in range(20):
        for rank in range(24):
            job.rows.append(row(rank, 1000 * at, 1000 * at + 500, stream=7, report=rank))
    notes: list[str] = []
    assert set(job.matched(notes)) == {None}
    assert (len(searched), notes) == (1, [])


def test_a_search_for_groups_stops_at_a_bound_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    job, notes = hybrid(1, 4, 2, 20_000), list[str]()
    found = [each for each in job.matched() if each is not None]
    monkeypatch.setattr(_groups, "MOST_WORK", 8 * 8 * 40)
    some = [each for each in job.matched(notes) if each is not None]
    assert len(some) < len(found) == len(job.rows)
    assert [note.split(",")[0] for note in notes] == ["collectives of 8 ranks name no communicator"]
    monkeypatch.setattr(_groups, "MOST_WORK", 1)
    assert set(job.matched()) == {None}


def test_what_was_found_is_said() -> None:
    job = hybrid(1, 4, 2, 20_000)
    stages = {20: "FP", 24: "WU"}
    calls = pl.DataFrame(job.rows, infer_schema_length=None).with_columns(
        match=pl.Series(job.matched()),
        collective="kind",
        stage=pl.col("stream").replace_strict(stages),
        rank=pl.lit(None),
    )
    groups = rank_groups(calls, pl.DataFrame({"process": range(8), "rank": range(8)}))
    assert groups.select("size", "members", "calls", "parallelism", "of").rows()[:3] == [
        (4, [0, 1, 2, 3], 24, "tensor", "rank"),
        (4, [4, 5, 6, 7], 24, "tensor", "rank"),
        (2, [0, 4], 12, "data", "rank"),
    ]
    assert 10 * groups["ends_ns"].max() < groups["arrivals_ns"].min()
    [said] = describe_groups(groups)
    assert said.startswith(
        "no communicator is named: 2 tensor-parallel groups of 4 ranks (0, 1, 2, 3) (4, 5, 6, 7); "
        "4 data-parallel groups of 2 ranks (0, 4) (1, 5) (2, 6) (3, 7) were found by the ends"
    )
    assert describe_groups(groups.head(1)) == []
