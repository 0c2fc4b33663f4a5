"""The texts that ids of strings stand for: against a dictionary."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from source_helpers import execute

from tracekit.sources.nsys._ids import Strings, Texts, positions
from tracekit.sources.sqlite import SqliteFile

LEAST, GREATEST = -(1 << 63), (1 << 63) - 1
TABLES = st.one_of(
    st.integers(-2, 4).map(lambda first: range(first, first + 6)),
    st.lists(st.integers(-3, 12) | st.just(GREATEST), max_size=6, unique=True),
)
ASKED = st.integers(-4, 14) | st.sampled_from([None, LEAST, GREATEST])


@settings(max_examples=examples(60), deadline=None)
@given(
    table=TABLES,
    batches=st.lists(st.lists(ASKED, max_size=9), max_size=4),
    narrow=st.booleans(),
    drop=st.booleans(),
)
def test_texts_are_those_of_their_ids(
    table: list[int], batches: list[list[int | None]], narrow: bool, drop: bool
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "strings.db"
        texts = {number: None if number == 3 else f"_text {number}" for number in table}
        insert = "INSERT INTO StringIds VALUES (?, ?)"
        execute(path, "CREATE TABLE StringIds (id, value)", insert, many=list(texts.items()))
        found = Texts(Strings(SqliteFile(path)), pl.Categorical(), "^_" if drop else None)
        for batch in batches:
            small = narrow and not {LEAST, GREATEST} & set(batch)
            ids = pl.Series("id", batch, pl.Int8 if small else pl.Int64)
            wanted = [texts.get(number) if (number or 0) >= 0 else None for number in batch]
            wanted = [text[drop:] if text else None for text in wanted]
            assert found.of(ids).cast(pl.String).to_list() == wanted


IDS = st.integers(-3, 9) | st.integers(-(1 << 63), (1 << 63) - 1)


@settings(max_examples=examples(100), deadline=None)
@given(known=st.sets(IDS, max_size=9), others=st.lists(IDS, max_size=9))
def test_positions_are_those_among_sorted_ids(known: set[int], others: list[int]) -> None:
    order, values = sorted(known), [*others, *known]
    found = positions(np.array(values, np.int64), np.array(order, np.int64))
    assert found.tolist() == [order.index(one) if one in known else -1 for one in values]
