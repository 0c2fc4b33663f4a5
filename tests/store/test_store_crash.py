"""Processes that are killed, and processes that ingest at the same time."""

from __future__ import annotations

import signal

import pytest
from store_helpers import add, left_over, never, tiny


@pytest.mark.slow
@pytest.mark.parametrize("point", ["make", "staged", "published"])
def test_a_killed_ingest_is_no_run_and_the_next_one_finishes_the_job(store, child, point):
    assert child("aa", "die", point).end() == (-signal.SIGKILL, [])
    assert store.runs() == []
    assert left_over(store) != []

    record, made = add(store, "aa", trace=lambda: tiny(2))
    assert made
    assert store.runs() == [record]
    assert store.open(record).read("devices").height == 2
    assert left_over(store) == []


@pytest.mark.slow
def test_an_ingest_of_anything_clears_what_a_killed_one_left(store, child):
    add(store, "aa")
    child("bb", "die", "published").end()
    assert left_over(store) != []
    add(store, "aa", make=never)
    assert left_over(store) == []


@pytest.mark.slow
def test_what_is_left_over_is_cleared_before_more_is_written(store, child):
    add(store, "aa")
    child("bb", "die", "published").end()
    runs = store.root / "runs"
    assert len(list(runs.iterdir())) == 2
    add(store, "cc", summarise=lambda _: {"runs on disk": len(list(runs.iterdir()))})
    assert store.find("@latest").summary == {"runs on disk": 1}


@pytest.mark.slow
@pytest.mark.parametrize(("point", "devices"), [("published", 1), ("committed", 0)])
def test_a_killed_replacement_leaves_the_old_columns_or_the_new(store, child, point, devices):
    record, _ = add(store, "aa", trace=lambda: tiny(1))
    child("aa", "die", point, "[]").end()
    assert [run.id for run in store.runs()] == [record.id]
    assert store.open(record).read("devices").height == devices
    assert left_over(store) != []
    add(store, "bb")
    assert store.open(record).read("devices").height == devices
    assert left_over(store) == []


@pytest.mark.slow
def test_an_interrupted_ingest_leaves_nothing(store, child):
    ingest = child("aa", "pause", "make")
    ingest.pause()
    ingest.interrupt()
    status, words = ingest.end()
    assert status != 0
    assert words == []
    assert store.runs() == []
    assert left_over(store) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    ["staged", *(pytest.param(each, marks=pytest.mark.nightly) for each in ("make", "published"))],
)
def test_another_ingest_does_not_disturb_one_that_is_alive(store, child, point):
    slow = child("aa", "pause", point)
    slow.pause()
    quick, _ = add(store, "bb")
    store.remove(quick.id)
    status, (identity, made) = slow.end()
    assert (status, made) == (0, "True")
    assert [run.id for run in store.runs()] == [identity]
    assert store.open(store.find(identity)).read("devices").height == 0
    assert left_over(store) == []


@pytest.mark.slow
def test_a_run_can_be_removed_before_its_ingest_has_ended(store, child):
    ingest = child("aa", "pause", "committed")
    ingest.pause()
    store.remove("@latest")
    assert ingest.end()[0] == 0
    assert store.runs() == []
    assert left_over(store) == []


@pytest.mark.slow
def test_two_processes_that_ingest_the_same_make_one_run(store, child):
    ingests = [child("aa", "pause", "published") for _ in range(2)]
    for ingest in ingests:
        ingest.pause()
    ends = [ingest.end() for ingest in ingests]
    assert [status for status, _ in ends] == [0, 0]
    assert len({identity for _, (identity, _) in ends}) == 1
    assert sorted(made for _, (_, made) in ends) == ["False", "True"]
    assert [run.id for run in store.runs()] == [ends[0][1][0]]
    assert store.open(store.runs()[0]).read("devices").height == 0
    assert left_over(store) == []


@pytest.mark.slow
def test_two_processes_that_ingest_different_reports_make_two_runs(store, child):
    # The store itself is new to both.
    ingests = [child(content) for content in ("aa", "bb", "cc")]
    ends = [ingest.end() for ingest in ingests]
    assert [(status, made) for status, (_, made) in ends] == [(0, "True")] * 3
    assert {run.id for run in store.runs()} == {identity for _, (identity, _) in ends}
    assert sorted(run.name for run in store.runs()) == ["run", "run-2", "run-3"]
    assert left_over(store) == []
