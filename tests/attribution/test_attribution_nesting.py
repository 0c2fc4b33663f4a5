"""Which range was open where and when: literal cases, and against looking at every range."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder, stages

from tracekit.attribution import Rules, _nesting
from tracekit.attribution._nesting import look_at_ranges
from tracekit.errors import UsageError
from tracekit.model import KEYS, Recording, Stream, Trace
from tracekit.support.spool import Workspace

Range = tuple[int, int, int]
"""Thread, start, end."""


def _frame(ranges: Sequence[Range], domains: Sequence[str | None] = ()) -> pl.DataFrame:
    """Number ranges; `domains` are those of the ranges in the order of their numbers."""
    numbered = sorted(ranges, key=lambda row: (row[1], -row[2]))
    return pl.DataFrame(
        numbered,
        schema={"thread": pl.Int32, "start": pl.Int64, "end": pl.Int64},
        orient="row",
    ).select(
        pl.int_range(pl.len()).alias("range"),
        pl.all(),
        pl.Series("domain", domains or [None] * len(ranges), pl.String),
        pl.lit("push_pop").alias("style"),
    )


RULES = Rules.load()


def _tree(frame: pl.DataFrame) -> pl.DataFrame:
    """Return ``parent, depth`` of each range."""
    place = {"report": 0, "process": 0, "name": None}
    ranges = frame.with_columns(pl.lit(value).alias(name) for name, value in place.items())
    stream = Recording.of(Trace.of({"ranges": ranges})).streams["ranges"]
    assert isinstance(stream, Stream)
    assert KEYS["ranges"] == "range"
    places = look_at_ranges(stream, 3, RULES, Workspace()).places
    schema = {"parent": pl.Int64, "depth": pl.Int32}
    chunks = [places.read(number, *schema) for number in range(len(places))]
    frames = [pl.DataFrame(dict(zip(schema, chunk, strict=True))).cast(schema) for chunk in chunks]
    found = pl.concat([pl.DataFrame(schema=schema), *frames])
    return found.select(pl.when(pl.all() >= 0).then(pl.all()))


@pytest.mark.parametrize("outer", [None, "forward"])
def test_ranges_of_stages_are_refused_before_they_take_all_memory(
    outer: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_nesting, "_FEW", 3)
    builder = TraceBuilder()
    if outer:
        builder.range(0, 1_000, outer)
        builder.range(1, 999, outer)
    for number in range(8):
        builder.range(10 + 10 * number, 15 + 10 * number, f"layer{number} forward")
    stream = Recording.of(builder.trace()).streams["ranges"]
    look_at_ranges(stream, 1, RULES, Workspace(tmp_path, 1 << 30))
    look_at_ranges(stream, 1, RULES, Workspace())  # what cannot go into files has no limit
    small = Workspace(tmp_path, 1 << 20)
    if outer:  # what lies in two ranges of its own stage is not held
        assert look_at_ranges(stream, 1, RULES, small).skeleton.height == 2
        return
    message = r"about 8 ranges name a stage .* take 300 MiB, of 1 allowed: .* --memory 301MiB"
    with pytest.raises(UsageError, match=message):
        look_at_ranges(stream, 1, RULES, small)


@pytest.mark.parametrize("name", ["forward", "backward", "optimizer"])
def test_of_passes_that_repeat_the_one_around_them_one_is_told(name: str) -> None:
    """And the outermost; where that turns out to say nothing, the next one counts."""
    builder = TraceBuilder()
    for inside in range(4):
        builder.range(10 * inside, 100 - 10 * inside, name)
    stream = Recording.of(builder.trace()).streams["ranges"]
    skeleton = look_at_ranges(stream, 1, RULES, Workspace()).skeleton
    assert skeleton.select("range", "covered").rows() == [(0, False), (1, True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], []),
        ([(0, 0, 9)], [None]),
        ([(0, 0, 9), (0, 1, 5), (0, 2, 3), (0, 5, 9)], [None, 0, 1, 0]),
        ([(0, 0, 5), (0, 5, 9)], [None, None]),
        ([(0, 0, 9), (1, 1, 5)], [None, None]),
        ([(0, 0, 9), (0, 0, 9), (0, 0, 9)], [None, 0, 1]),
        ([(0, 0, 9), (0, 0, 5), (0, 0, 3)], [None, 0, 1]),
        ([(0, 0, 9), (0, 4, 9), (0, 7, 9)], [None, 0, 1]),
        # A range without length is inside what is open at its time, and nothing is inside it.
        ([(0, 0, 9), (0, 4, 6), (0, 4, 4), (0, 4, 4)], [None, 0, 1, 1]),
        ([(0, 0, 4), (0, 4, 4)], [None, None]),
        # Crossing: 1 outlives 0, so it is inside none; 2 is inside both and nearer to 1.
        ([(0, 0, 10), (0, 5, 15), (0, 6, 9)], [None, None, 1]),
        # 2 comes after 0 has ended, inside 1 alone.
        ([(0, 0, 10), (0, 5, 15), (0, 12, 14)], [None, None, 1]),
        # 2 outlives 0 but not 1.
        ([(0, 0, 10), (0, 5, 15), (0, 6, 12)], [None, None, 1]),
        # 2 is inside 0 but outlives 1.
        ([(0, 0, 10), (0, 1, 5), (0, 4, 8)], [None, 0, 0]),
    ],
    ids=str,
)
@pytest.mark.usefixtures("mode")
def test_parents(ranges: list[Range], expected: list[int | None]) -> None:
    assert _tree(_frame(ranges))["parent"].to_list() == expected


def _naive_parents(frame: pl.DataFrame) -> list[int | None]:
    rows = frame.rows()
    return [
        max(
            (
                other
                for other, owner, begin, finish, *_ in rows[:number]
                if owner == thread and begin <= start < finish and end <= finish
            ),
            default=None,
        )
        for number, thread, start, end, *_ in rows
    ]


def _naive_depth(parents: list[int | None], number: int) -> int:
    above = parents[number]
    return 0 if above is None else 1 + _naive_depth(parents, above)


RANGES = st.lists(
    st.builds(
        lambda thread, start, length: (thread, start, start + length),
        st.integers(0, 1),
        st.integers(-3, 12),
        st.integers(0, 12),
    ),
    max_size=12,
)


DOMAINS = st.lists(st.sampled_from((None, "NCCL", "DALI")), min_size=12, max_size=12)


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(ranges=RANGES, domains=DOMAINS)
@pytest.mark.usefixtures("mode")
def test_nesting_is_that_of_every_range(ranges: list[Range], domains: list[str | None]) -> None:
    frame = _frame(ranges, domains[: len(ranges)])
    parents = _naive_parents(frame)
    tree = _tree(frame)
    assert tree["parent"].to_list() == parents
    assert tree["depth"].to_list() == [_naive_depth(parents, n) for n in range(len(ranges))]


NAMES = ("forward", "backward", "optimizer", "validation", "some layer", "aten::mm")
MEANS = {"forward": "FP", "backward": "BP", "optimizer": "WU"}


@settings(max_examples=examples(18, thorough=300), deadline=None)
@given(
    ranges=st.lists(
        st.tuples(
            st.sampled_from((0, 10)),
            st.integers(0, 40),
            st.integers(0, 40),
            st.sampled_from(NAMES),
        ),
        max_size=10,
    ),
    launches=st.lists(
        st.tuples(st.sampled_from((0, 10)), st.integers(-2, 70)), min_size=1, max_size=12
    ),
)
def test_stage_is_that_of_the_nearest_open_range(
    ranges: list[tuple[int, int, int, str]], launches: list[tuple[int, int]]
) -> None:
    builder = TraceBuilder()
    for thread, start, length, name in ranges:
        builder.range(start, start + length, name, thread=thread)
    for number, (thread, at) in enumerate(launches):
        builder.op(f"op {number}", at, thread=thread)
    numbered = sorted(ranges, key=lambda row: (row[1], -row[1] - row[2]))
    expected = {}
    for number, (thread, at) in enumerate(launches):
        near = [name for own, s, n, name in numbered if own == thread and s <= at < s + n]
        known = [MEANS[name] for name in near if name in MEANS]
        stage = "ME" if "validation" in near else known[-1] if known else None
        expected[f"op {number}"] = (stage or "OTHER", "nvtx" if stage else "none")
    assert stages(builder.attributed()) == expected


def test_start_end_ranges_nest_in_nothing() -> None:
    frame = _frame([(0, 0, 9), (0, 1, 8), (0, 2, 7)]).with_columns(
        style=pl.Series(["push_pop", "start_end", "push_pop"])
    )
    assert _tree(frame).rows() == [(None, 0), (None, None), (0, 1)]


@pytest.mark.usefixtures("mode")
def test_a_deep_stack() -> None:
    depth = 700
    tree = _tree(_frame([(0, n, 2 * depth - n) for n in range(depth)]))
    assert tree["parent"].to_list() == [None, *range(depth - 1)]
    assert tree["depth"].to_list() == list(range(depth))


def test_ranges_that_all_cross_each_other() -> None:
    tree = _tree(_frame([(0, n, 400 + n) for n in range(300)]))
    assert tree["parent"].to_list() == [None] * 300
    assert tree["depth"].to_list() == [0] * 300


@pytest.mark.parametrize("domains", [(None, "profiler"), (None, None)])
def test_a_long_chain_of_crossings(domains: tuple[str | None, str | None]) -> None:
    # Each range outlives the one before it by a little.
    count = 3000
    frame = _frame([(0, 10 * n, 10 * n + 12) for n in range(count)], domains * (count // 2))
    began = time.process_time()
    assert _tree(frame)["parent"].null_count() == count
    assert time.process_time() - began < 5


def test_domains_that_interleave() -> None:
    ranges = [(0, 0, 40), (1, 0, 40), (0, 10, 50), (1, 10, 30), (0, 20, 30), (0, 25, 45)]
    domains = ["a", "a", "b", "a", "c", "b"]
    assert _tree(_frame(ranges, domains))["parent"].to_list() == [None, None, None, 1, 2, 2]
