"""Ops alike in what decides their stages, and the numbers of names: against dictionaries."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import default_rules

from tracekit.attribution import _cases, _names
from tracekit.attribution._cases import Cases, told_apart
from tracekit.attribution._columns import CaseRows
from tracekit.attribution._loops import kinds_of
from tracekit.attribution._names import RangeNames, base_name

LARGE = (1 << 31) - 1
NUMBERS = st.sampled_from([-1, 0, 1, 2, LARGE])
FLAGS = st.booleans()
ROWS = st.lists(
    st.tuples(*[NUMBERS] * 5, st.integers(-1, 6), FLAGS, FLAGS, st.integers(0, 9)), max_size=60
)


def _arrays(rows: list[tuple[int, ...]]) -> CaseRows:
    dtypes = (np.int32, np.int32, np.int32, np.int64, np.int64, np.int8, np.bool_, np.bool_)
    columns = list(zip(*rows, strict=True))[:-1] or [()] * len(dtypes)
    return CaseRows(*(np.array(c, d) for c, d in zip(columns, dtypes, strict=True)))


@settings(max_examples=examples(100), deadline=None)
@given(rows=ROWS, repeated=st.integers(1, 3))
def test_cases_are_those_of_a_dictionary(rows: list[tuple[int, ...]], repeated: int) -> None:
    rows = rows * repeated
    numbers: dict[tuple[int, ...], int] = {}
    cases = [numbers.setdefault(row[:-1], len(numbers)) for row in rows]
    lengths = [row[-1] for row in rows]
    told = told_apart(_arrays(rows), np.array(lengths, np.int64), len(rows))
    assert told.case.tolist() == cases
    assert told.example.tolist() == [cases.index(number) for number in range(len(numbers))]
    for number in range(len(numbers)):
        own = [length for case, length in zip(cases, lengths, strict=True) if case == number]
        assert (told.ops[number], told.total_ns[number]) == (len(own), sum(own))
    assert told.ops.size == told.total_ns.size == len(numbers)


@pytest.mark.parametrize("room", [1 << 10, 1])
@settings(max_examples=examples(50), deadline=None)
@given(chunks=st.lists(ROWS, max_size=4))
def test_cases_of_chunks_are_those_of_all(room: int, chunks: list[list[tuple[int, ...]]]) -> None:
    found, cases = [], Cases()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_cases, "_ROOM", room)
        for chunk in chunks:
            rows, lengths = _arrays(chunk), np.array([row[-1] for row in chunk], np.int64)
            told = told_apart(rows, lengths, len(chunk))
            found += cases.add(rows, told)[told.case].tolist()
    every = [row for chunk in chunks for row in chunk]
    numbers: dict[tuple[int, ...], int] = {}
    assert found == [numbers.setdefault(row[:-1], len(numbers)) for row in every]
    assert [tuple(row) for row in zip(*cases.rows, strict=True)] == list(numbers)
    counts, sums = [0] * len(numbers), [0] * len(numbers)
    for row in every:
        counts[numbers[row[:-1]]] += 1
        sums[numbers[row[:-1]]] += row[-1]
    assert (cases.ops.tolist(), cases.total_ns.tolist()) == (counts, sums)


@settings(max_examples=examples(50), deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(-1, 5), st.integers(0, 2))),
    known=st.lists(st.integers(-1, 3), max_size=20),
)
def test_kinds_are_looked_up_as_far_as_they_are_known(
    rows: list[tuple[int, int]], known: list[int]
) -> None:
    names, kinds = (np.array([row[place] for row in rows], np.int64) for place in range(2))
    found, places = np.empty(len(rows), np.int64), np.array(known, np.int64)
    unknown = kinds_of(names, kinds, 3, places, found)
    keys = [(name + 1) * 3 + kind for name, kind in rows]
    wanted = [known[key] if key < len(known) else -1 for key in keys]
    assert found.tolist() == wanted
    assert unknown == wanted.count(-1)


TEXTS = st.sampled_from([None, "", "forward", "aten::mm, seq = 1", "aten::mm, seq = 2", "step 3"])


@pytest.mark.parametrize(
    ("dense", "kept"),
    [(1 << 22, 1 << 18), (1 << 22, 1), (0, 1)],
    ids=["table", "forgotten", "join"],
)
@settings(max_examples=examples(30), deadline=None)
@given(chunks=st.lists(st.lists(st.tuples(TEXTS, TEXTS), max_size=12), max_size=3))
def test_each_range_has_the_number_of_its_name(
    chunks: list[list[tuple[str | None, str | None]]], dense: int, kept: int
) -> None:
    names = RangeNames(default_rules())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_names, "_DENSE", dense)
        patch.setattr(_names, "_KEPT", kept)
        for chunk in chunks:
            schema = {"domain": pl.String, "name": pl.String}
            ranges = pl.DataFrame(chunk, schema, orient="row")
            ids = names.of(ranges)
            assert ids.dtype == pl.UInt32
            told = names.table.select("domain", "base")[ids]
            assert told["domain"].to_list() == ranges["domain"].to_list()
            wanted = ranges.select(base_name(pl.col("name"))).to_series()
            assert told["base"].to_list() == wanted.to_list()
    assert names.table.select("domain", "base").is_unique().all()
