"""Ops alike in what decides their stages, and the numbers of names: against dictionaries."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import default_rules

from tracekit.attribution import _names, _stages
from tracekit.attribution._arrays import CaseKeys, CaseRows, KindPlaces
from tracekit.attribution._evidence import KIND_PLACE
from tracekit.attribution._names import RangeNames, base_name
from tracekit.attribution._op_loops import describe
from tracekit.attribution._stages import Cases, grouped_cases

LARGE = (1 << 31) - 1
NUMBERS = st.sampled_from([-1 << 62, -1, 0, 1, 2, LARGE, LARGE << 31])
ROWS = st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(0, 9)), max_size=60)


def _arrays(rows: list[tuple[int, ...]]) -> CaseKeys:
    columns = list(zip(*rows, strict=True))[:-1] or [(), ()]
    return CaseKeys(*(np.array(column, np.int64) for column in columns))


@settings(max_examples=examples(100), deadline=None)
@given(rows=ROWS, repeated=st.integers(1, 3))
def test_cases_are_those_of_a_dictionary(rows: list[tuple[int, ...]], repeated: int) -> None:
    rows = rows * repeated
    numbers: dict[tuple[int, ...], int] = {}
    cases = [numbers.setdefault(row[:-1], len(numbers)) for row in rows]
    lengths = [row[-1] for row in rows]
    told = grouped_cases(_arrays(rows), np.array(lengths, np.int64), len(rows))
    assert told.case.tolist() == cases
    assert list(zip(*map(np.ndarray.tolist, told.keys), strict=True)) == list(numbers)
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
        patch.setattr(_stages, "_ROOM", room)
        for chunk in chunks:
            rows, lengths = _arrays(chunk), np.array([row[-1] for row in chunk], np.int64)
            told = grouped_cases(rows, lengths, len(chunk))
            found += cases.add(told)[told.case].tolist()
    every = [row for chunk in chunks for row in chunk]
    numbers: dict[tuple[int, ...], int] = {}
    assert found == [numbers.setdefault(row[:-1], len(numbers)) for row in every]
    assert [tuple(row) for row in zip(*cases.keys, strict=True)] == list(numbers)
    counts, sums = [0] * len(numbers), [0] * len(numbers)
    for row in every:
        counts[numbers[row[:-1]]] += 1
        sums[numbers[row[:-1]]] += row[-1]
    assert (cases.ops.tolist(), cases.total_ns.tolist()) == (counts, sums)


MOST = CaseRows(
    code=(1 << 13) - 1, thread=LARGE, process=LARGE, name=40, kind=2, size=(1 << 17) - 1,
    structure=5, on_input_stream=True, relayed=True, place=6,
)  # fmt: skip
"""The most that each may be."""
LEAST = CaseRows(0, -1, 0, -1, 0, 0, -1, on_input_stream=False, relayed=False, place=0)
DTYPES = CaseRows(
    np.int32,
    np.int32,
    np.int32,
    np.int32,
    np.uint8,
    np.int32,
    np.int8,
    np.bool_,
    np.bool_,
    np.int8,
)


def _described(rows: list[CaseRows], known: list[int]) -> tuple[list[tuple[int, int]], int]:
    columns = zip(*rows, strict=True) if rows else [()] * len(DTYPES)
    arrays = CaseRows(*(np.array(c, d) for c, d in zip(columns, DTYPES, strict=True)))
    keys = CaseKeys(*np.empty((2, len(rows)), np.int64))
    unknown = describe(arrays, KindPlaces(3, np.array(known, np.int64)), keys)
    return list(zip(*map(np.ndarray.tolist, keys), strict=True)), unknown


@settings(max_examples=examples(50), deadline=None)
@given(
    names=st.lists(st.tuples(st.integers(-1, 5), st.integers(0, 2))),
    known=st.lists(st.integers(-1, 3), max_size=20),
)
def test_kinds_are_looked_up_as_far_as_they_are_known(
    names: list[tuple[int, int]], known: list[int]
) -> None:
    rows = [LEAST._replace(name=name, kind=kind) for name, kind in names]
    keys = [(name + 1) * 3 + kind for name, kind in names]
    wanted = [known[key] if key < len(known) else -1 for key in keys]
    found, unknown = _described(rows, known)
    assert [what >> KIND_PLACE for _, what in found] == wanted
    assert unknown == wanted.count(-1)


@pytest.mark.parametrize("field", CaseRows._fields)
def test_ops_are_alike_that_agree_in_all_that_decides_their_stages(field: str) -> None:
    known = [*range(3 * 41), 200, 201, (1 << 25) - 1]
    least, most = getattr(LEAST, field), getattr(MOST, field)
    for around in (LEAST, MOST):
        some = [around._replace(**{field: value}) for value in (least, least + 1, most)]
        found, _ = _described([around, *some], known)
        assert len(set(found)) == len(set(some))


def test_ops_of_names_that_mean_the_same_are_alike() -> None:
    rows = [MOST._replace(name=name) for name in (1, 2, 3)]
    found, _ = _described(rows, [0] * 14 + [7])
    assert found[0] == found[1] != found[2]


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
