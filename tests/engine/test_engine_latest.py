"""The latest mark before a time, against what a join finds."""

from __future__ import annotations

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.engine import latest
from tracekit.support import compiled as _compiled

OWNERS = ["process", "device"]
# Traces say which numbers devices have, and may say anything.
NUMBERS = st.sampled_from([0, 1, 2, -7, 2**31 - 1])
IDS = st.none() | NUMBERS
TIMES = st.integers(-3, 12)
SCHEMA = {"process": pl.Int32, "device": pl.Int32, "time": pl.Int64}
ROWS = st.lists(st.tuples(IDS, IDS, TIMES), max_size=20)
MARKS = st.lists(st.tuples(NUMBERS, NUMBERS, TIMES), max_size=12)


@pytest.mark.parametrize("few_rows", [0, 1 << 30], ids=["compiled", "as it stands"])
@settings(max_examples=examples(100), deadline=None)
@given(rows=ROWS, marks=MARKS)
def test_latest_finds_what_a_join_finds(
    few_rows: int, rows: list[tuple[int, ...]], marks: list[tuple[int, ...]]
) -> None:
    left, right = (pl.DataFrame(some, schema=SCHEMA, orient="row") for some in (rows, marks))
    numbered = right.with_row_index("mark").sort("time", maintain_order=True)
    expected = (
        left.with_row_index("row")
        .sort("time")
        .join_asof(numbered, on="time", by=OWNERS, check_sortedness=False)
        .sort("row")
    )
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(_compiled, "FEW_ROWS", few_rows)
        changed.setattr(_compiled, "FEWEST_ROWS", few_rows)
        found = latest(left, "time", right, OWNERS)
    assert found.to_list() == expected["mark"].to_list()


def test_times_may_come_in_any_order() -> None:
    marks = pl.DataFrame({"device": [0, 0, 0], "time": [30, 10, 20]})
    rows = pl.DataFrame({"device": [0] * 6, "time": [35, 9, 20, 10, 29, 31]})
    assert latest(rows, "time", marks, ["device"]).to_list() == [0, None, 2, 1, 2, 0]
