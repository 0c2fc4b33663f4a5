"""Which iterations were recorded whole, and which end of the recording is missing."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_builder import TraceBuilder

from tracekit.attribution._arrays import StepSums
from tracekit.attribution._iterations import cuts, with_work
from tracekit.attribution._launch_loops import NEVER

Row = tuple[int, int]
"""Process, and how many ops were launched in the iteration."""


def _iterations(rows: Sequence[Row]) -> pl.DataFrame:
    """Iterations one after the other, in the order in which attribution holds them."""
    return pl.DataFrame(
        [
            (process, n, f"step {n}", 10 * n, 10 * n + 9, False)
            for n, (process, _) in enumerate(rows)
        ],
        schema={
            "process": pl.Int32, "iteration": pl.Int64, "name": pl.String, "start": pl.Int64,
            "end": pl.Int64, "open": pl.Boolean,
        },
        orient="row",
    )  # fmt: skip


def _sums(counts: Sequence[int], updated: Sequence[bool] = ()) -> StepSums:
    """Sums of steps with so many ops, and an update after the backward pass in some of them."""
    backward = np.array([10 if updated else NEVER] * len(counts))
    update = np.array([20 if has else NEVER for has in updated or [False] * len(counts)])
    return StepSums(np.array(counts, np.int64), np.array(counts, np.int64), backward, update)


def _worked(rows: Sequence[Row], recorded: Sequence[int] = (0, 1)) -> pl.DataFrame:
    counts = _sums([ops for _, ops in rows])
    return with_work(_iterations(rows), counts, pl.Series(recorded, dtype=pl.Int32))


NO_CUTS = pl.Series([], dtype=pl.Int32)


def _whole(*counts: int) -> str:
    """Write a letter for each iteration: whole, torn, or without work."""
    table = _worked([(0, count) for count in counts])
    return "".join(
        "w" if whole else "t" if ops else "-"
        for ops, whole in table.select("ops", "whole").iter_rows()
    )


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([], ""),
        ([5], "w"),
        ([5, 5], "ww"),
        ([5, 1, 5], "www"),  # one between says too little of what is usual
        ([1, 10, 10, 1], "twwt"),
        ([9, 10, 10, 9], "wwww"),  # a tenth less may be
        ([8, 10, 10, 10], "twww"),
        ([8, 10, 8, 10], "wwww"),
        ([8, 10, 10, 9, 10], "twwww"),  # the least of those between is what counts
        ([5, 10, 8, 10], "wwww"),  # those between are not alike: nothing is usual
        ([10, 3, 10, 10], "wwww"),  # what lies between was recorded
        ([0, 0, 0], "---"),
        ([5, 10, 8, 2, 0], "wwwt-"),
        # With iterations beyond that hold nothing, there was a cut: the most of all is wanted.
        ([10, 11, 9, 11, 10, 0], "wwwwt-"),
        ([10, 11, 9, 11, 11, 0], "wwwww-"),
        ([10, 10, 20, 10, 12, 0], "wwwwt-"),  # it may lack eight, for all that is known
        ([10, 10, 10, 9, 0], "wwwt-"),
        ([10, 10, 10, 10, 0], "wwww-"),
        ([0, 9, 10, 10, 10], "-twww"),
        ([0, 9, 10, 10, 9, 0], "-twwt-"),
        ([0, 10, 10, 0], "-tt-"),  # no two between: what is usual is not known
        ([0, 10, 0], "-t-"),
        ([10, 0], "t-"),
        ([10, 10, 0], "wt-"),
        ([10, 0, 10, 10], "w-ww"),  # an empty one between is no cut
    ],
)
def test_which_are_whole(counts: list[int], expected: str) -> None:
    assert _whole(*counts) == expected


def test_the_last_one_that_repetition_tells_is_not_compared() -> None:
    table = _iterations([(0, 0)] * 5).with_columns(name=pl.lit(None, pl.String))
    counts, recorded = _sums([2, 10, 10, 10, 2]), pl.Series([0], dtype=pl.Int32)
    assert with_work(table, counts, recorded)["whole"].to_list() == [False, *[True] * 4]
    counts = _sums([10, 10, 10, 2, 0])
    assert with_work(table, counts, recorded)["whole"].to_list() == [
        *[True] * 3,
        *[False] * 2,
    ]


@pytest.mark.parametrize(
    ("counts", "is_open", "updated", "expected"),
    [
        # The range of the last one was open when the recording ended: it is cut, however few.
        ([10], True, [True], [False]),
        ([10, 10], True, [True, True], [True, False]),
        ([10, 4, 3], True, [True, True, False], [True, True, False]),
        # It ended, but lacks the update that all others have.
        ([10, 8], False, [True, False], [True, False]),
        ([10, 8, 8], False, [True, True, False], [True, True, False]),
        ([10, 8], False, [False, False], [True, True]),
        ([8, 10], False, [False, True], [True, True]),  # a first one is not judged so
        ([8, 10, 8], False, [False, True, False], [True, True, True]),
        # Two unlike ones both stand, the last one of which has its update.
        ([20, 5], False, [True, True], [True, True]),
    ],
)
def test_the_last_one_that_the_recording_ends(
    counts: list[int], is_open: bool, updated: list[bool], expected: list[bool]
) -> None:
    table = _iterations([(0, 0)] * len(counts))
    last = pl.int_range(pl.len()) == len(counts) - 1
    table = table.with_columns(open=pl.when(last).then(pl.lit(is_open)).otherwise("open"))
    found = with_work(table, _sums(counts, updated), pl.Series([0], dtype=pl.Int32))
    assert found["whole"].to_list() == expected


def test_a_recording_that_begins_within_a_step_is_cut_there() -> None:
    table = _worked([(0, 5), (0, 5), (1, 5), (1, 0)])
    torn = pl.Series([0, 1], dtype=pl.Int32)
    assert cuts(table, torn)["cut"].to_list() == ["begin", "both"]


def test_the_only_step_is_cut_at_its_end() -> None:
    table = _iterations([(0, 0)]).with_columns(open=pl.lit(value=True))
    found = with_work(table, _sums([5]), pl.Series([0], dtype=pl.Int32))
    assert cuts(found, NO_CUTS).rows() == [(0, 1, 1, "end", 0)]


def test_processes_are_judged_apart() -> None:
    rows = [*((0, n) for n in (10, 10, 10, 2)), *((1, n) for n in (0, 20, 20, 20, 20))]
    table = _worked(rows)
    assert table["whole"].to_list() == [True] * 3 + [False] * 2 + [True] * 4
    assert cuts(table, NO_CUTS).rows() == [(0, 4, 4, "end", 3), (1, 5, 4, "begin", 4)]


def test_of_a_process_without_gpu_work_nothing_is_known() -> None:
    table = _worked([(0, 0), (0, 0), (1, 4), (1, 4)], recorded=[1])
    assert table["ops"].to_list() == [None, None, 4, 4]
    assert table["whole"].to_list() == [None, None, True, True]
    assert cuts(table, NO_CUTS).rows() == [(1, 2, 2, None, 2)]


def test_other_columns_and_the_order_stay() -> None:
    rows = [(0, 1), (0, 1), (1, 1)]
    assert _worked(rows).drop("ops", "whole").equals(_iterations(rows).drop("open"))


@pytest.mark.parametrize(
    ("counts", "cut", "with_work", "whole"),
    [
        ([10, 10, 10, 10], None, 4, 4),
        ([10, 10, 10, 2], "end", 4, 3),
        ([2, 10, 10, 10], "begin", 4, 3),
        ([2, 10, 10, 2], "both", 4, 2),
        ([10, 10, 10, 10, 0], "end", 4, 4),
        ([0, 10, 10, 10, 10], "begin", 4, 4),
        ([0, 10, 10, 10, 10, 0], "both", 4, 4),
        # Work in one iteration alone is torn at the end that the empty ones lie at.
        ([7, 0, 0], "end", 1, 0),
        ([0, 0, 7], "begin", 1, 0),
        ([0, 7, 0], "both", 1, 0),
        ([7, 3, 0], "end", 2, 1),
        ([0, 3, 7], "begin", 2, 1),
        ([7], None, 1, 1),
        ([0, 0], None, 0, 0),  # nothing that could have been cut
    ],
)
def test_which_end_is_missing(
    counts: list[int], cut: str | None, with_work: int, whole: int
) -> None:
    found = cuts(_worked([(0, count) for count in counts]), NO_CUTS)
    assert found.columns == ["process", "iterations", "with_work", "cut", "whole"]
    assert found.rows() == [(0, len(counts), with_work, cut, whole)]


def _naive(counts: Sequence[int]) -> list[bool]:
    """Tell of the iterations of one process, one by one, whether each was recorded whole."""
    held = [n for n, count in enumerate(counts) if count]
    whole = [bool(count) for count in counts]
    if not held:
        return whole
    between = [counts[n] for n in held[1:-1]]
    for edge, beyond in ((held[0], counts[: held[0]]), (held[-1], counts[held[-1] + 1 :])):
        lacks = bool(beyond)
        if len(between) < 2:
            enough = not lacks
        else:
            usual, least = median(between), min(between)
            if lacks:
                enough = counts[edge] >= max(between)
            else:
                enough = least < 0.9 * usual or counts[edge] >= 0.9 * least
        whole[edge] = whole[edge] and enough
    return whole


COUNTS = st.lists(st.one_of(st.just(0), st.integers(1, 12)), max_size=9)


@given(COUNTS, COUNTS)
def test_against_going_through_one_by_one(first: list[int], second: list[int]) -> None:
    table = _worked([*((0, count) for count in first), *((1, count) for count in second)])
    assert table["whole"].to_list() == _naive(first) + _naive(second)
    assert table["ops"].to_list() == first + second


@given(st.lists(st.integers(1, 12), min_size=2, max_size=9), st.integers(0, 3), st.integers(0, 3))
def test_an_end_that_lacks_iterations_is_always_named(
    counts: list[int], before: int, after: int
) -> None:
    table = _worked([(0, n) for n in [0] * before + counts + [0] * after])
    (row,) = cuts(table, NO_CUTS).to_dicts()
    assert not before or row["cut"] in {"begin", "both"}
    assert not after or row["cut"] in {"end", "both"}
    assert row["with_work"] == len(counts)


def test_a_capture_that_stops_in_a_step() -> None:
    builder = TraceBuilder()
    for step, ops in enumerate((3, 3, 3, 1, 0)):
        builder.range(100 * step, 100 * step + 90, f"step {step}")
        builder.range(100 * step + 1, 100 * step + 89, "forward")
        for n in range(ops):
            builder.op(f"{step} {n}", 100 * step + 10 + 10 * n)
    trace = builder.attributed()
    iterations = trace.read("iterations").select("iteration", "ops", "whole", "source")
    assert iterations.rows() == [
        (0, 3, True, "ranges"), (1, 3, True, "ranges"), (2, 3, True, "ranges"),
        (3, 1, False, "ranges"), (4, 0, False, "ranges"),
    ]  # fmt: skip
    verdict = trace.read("verdicts").select("iterations", "with_work", "whole", "cut")
    assert verdict.rows() == [(5, 4, 3, "end")]
    assert (
        "the recording of GPU work is cut at its end: of 5 iterations 4 have GPU work, 3 of them "
        "whole" in trace.warnings
    )
