"""The rows that a table of stages has beside its own."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.present import terminal, to_markdown

ROWS = pl.DataFrame(
    {"stage": ["FP", "BP"], "ops": [3, 5], "busy_ns": [10, 30], "exposed_ns": [10, 30],
     "share": [0.2, 0.6]}
)  # fmt: skip
META = {"window_ns": 50, "idle_ns": 10, "recomputed": [{"ops": 2, "busy_ns": 8}]}


def test_what_is_computed_again_stands_below_backward_and_in_no_sum() -> None:
    lines = [line.split() for line in terminal(ROWS, META).splitlines() if line.strip()]
    told = [line for line in lines if {*line} & {"FP", "BP", "which", "idle", "window"}][:5]
    assert [line[:2] for line in told] == [
        ["FP", "3"], ["BP", "5"], ["of", "which"], ["idle", "10"], ["window", "8"],
    ]  # fmt: skip
    assert told[2] == ["of", "which", "recomputed", "2", "8"]
    assert "| of which recomputed | 2 | 8 |  |  |" in to_markdown(ROWS, META)


@pytest.mark.parametrize("without", ["busy_ns", "stage"])
def test_a_table_that_cannot_hold_it_is_left_as_it_is(without: str) -> None:
    assert "of which" not in terminal(ROWS.drop(without), META)


def test_each_gpu_has_its_own() -> None:
    rows = pl.concat([ROWS.with_columns(device=pl.lit(n, pl.Int32)) for n in (0, 1)])
    again = {**META, "recomputed": [{"device": 1, "ops": 2, "busy_ns": 8}]}
    [line] = [line for line in terminal(rows, again).splitlines() if "of which" in line]
    assert line.split() == ["of", "which", "recomputed", "2", "8", "1"]
