"""Runs of a study in a figure: labels that differ, labels in common, and rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go
import polars as pl

from tracekit.present._figures import INK, PLAIN_AXIS, figure_text
from tracekit.present._text import printable, shorten

MOST_ROWS = 40
"""How many configurations a figure with one row for each of them draws."""

NO_RUNS = "no runs"
"""What a figure says that has none to show."""

SELF_TOLD = {"batch", "gpus", "gpu", "device"}
"""Columns whose name is in what a label says of them."""

_WIDEST = 40
_WORDS = {"batch": "batch ", "device": "GPU ", "gpu": "GPU "}
_NAMES = {"device": "GPU", "gpu": "GPU", "gpus": "number of GPUs"}
_HEADING = 1.0
_GAP = 0.3


def described(key: str, value: object) -> str:
    """Return what a label of a run says, such as ``4 GPUs``, as plain text that is not too long."""
    if key == "run" and value is None:
        return "median of several"
    if value is None:
        return f"{_NAMES.get(key, key)} unknown"
    if key == "gpus":
        return f"{value} GPU{'' if value == 1 else 's'}"
    return shorten(f"{_WORDS.get(key, '')}{printable(str(value))}", _WIDEST)


def label_of(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return the label of a row, from the columns that distinguish it."""
    return ", ".join(described(key, row[key]) for key in keys)


def varying(table: pl.DataFrame, keys: Sequence[str]) -> list[str]:
    """Return those of some columns that the table has and that differ between its rows."""
    return [key for key in keys if key in table.columns and table[key].n_unique() > 1]


def common_note(table: pl.DataFrame, keys: Sequence[str]) -> list[str]:
    """Return a note of the values that all rows share in some columns, or none."""
    there = [key for key in keys if key in table.columns]
    shared = [key for key in there if table[key].n_unique() == 1 and not table[key].has_nulls()]
    return [f"all: {label_of(table.row(0, named=True), shared)}"] if shared else []


def pooled_note(table: pl.DataFrame, *, ranges: bool = True) -> list[str]:
    """Return a note of over how many runs values are medians, or none where no runs are pooled.

    Parameters
    ----------
    table
        The columns ``runs`` and ``baseline_runs``, as far as it has them.
    ranges
        Whether the least and the greatest are drawn.
    """
    numbers = [name for name in ("runs", "baseline_runs") if name in table.columns]
    if not numbers:
        return []
    pooled = table.select(pl.max_horizontal(numbers)).to_series().drop_nulls()
    several = pooled.filter(pooled > 1).to_list()
    if not several:
        return []
    drawn = ", with least and greatest" if ranges else ""
    return [f"medians of n = {_span(several)} runs{drawn}"]


def with_ends(table: pl.DataFrame, value: str) -> pl.DataFrame:
    """Return a table with the ends of its error bars: ``end_low`` and ``end_high``.

    They are those of the 95 % interval, where it is known; else of pooled runs the least and the
    greatest value.

    Parameters
    ----------
    table
        The columns ``low``, ``high``, ``from`` and ``to`` before or after the value's name, as far
        as it has them: ``speedup_from``, ``from_percent``.
    value
        ``speedup`` or ``percent``.
    """
    ends = {"end_low": ("from", "low"), "end_high": ("to", "high")}
    pairs = {
        end: [
            name for kind in kinds for name in (f"{value}_{kind}", f"{kind}_{value}")
            if name in table.columns
        ]
        for end, kinds in ends.items()
    }  # fmt: skip
    none = pl.lit(None, pl.Float64)
    return table.with_columns(pl.coalesce(*names, none).alias(end) for end, names in pairs.items())


def bars_note(table: pl.DataFrame) -> list[str]:
    """Return notes that explain error bars: intervals, or the ends of pooled runs."""
    notes = []
    is_there = "interval_of" in table.columns
    of = set(table["interval_of"].drop_nulls()) if is_there else set()
    if "steps" in of:
        steps = [
            n for name in ("steps", "baseline_steps") if name in table.columns
            for n in table[name].drop_nulls()
        ]  # fmt: skip
        n = "" if not steps else f" (n = {_span(steps)})"
        notes.append(f"bars of single runs: 95 % intervals by their steps{n}, of these runs alone")
    if "runs" in of:
        notes.append("bars of several runs: 95 % intervals, each run counting as one number")
    return [*notes, *pooled_note(table, ranges="runs" not in of)]


def _span(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{most}" if least == most else f"{least} to {most}"


def error_bars(rows: pl.DataFrame, value: str, low: str, high: str, factor: float = 1) -> Any:
    """Return error bars from the least value to the greatest, or none where no runs are pooled."""
    if not {low, high} <= {*rows.columns} or not rows[low].count():
        return None
    above, below = (
        rows.select((factor * (pl.col(end) - pl.col(value)).abs()).fill_null(0)).to_series()
        for end in (high, low)
    )
    return {
        "type": "data", "symmetric": False, "array": above.to_list(), "arrayminus": below.to_list(),
        "color": INK, "thickness": 1, "width": 3,
    }  # fmt: skip


def not_shown(hidden: int, what: str) -> list[str]:
    """Return a note of how many a figure leaves out, or none."""
    return [f"not shown: {hidden:,} more {what}"] if hidden else []


def distinct(table: pl.DataFrame, key: str) -> list[Any]:
    """Return the values of a column: numbers in their order, others as the table has them."""
    values = table[key].unique(maintain_order=True)
    return (values.sort(nulls_last=True) if values.dtype.is_numeric() else values).to_list()


class Row(NamedTuple):
    """Position and label of a row of a figure."""

    place: float
    label: str


class Rows(NamedTuple):
    """The rows of a figure from the top down, under headings where several have one."""

    rows: list[Row]
    headings: list[Row]
    end: float


def rows_of(table: pl.DataFrame, above: Sequence[str], beside: Sequence[str]) -> Rows:
    """Return one row per row of a table.

    Parameters
    ----------
    table
        One row per configuration; those under one heading are next to each other.
    above
        Columns that a heading names, where there are several headings of several rows.
    beside
        Columns that a row names.
    """
    above, beside = varying(table, above), varying(table, beside)
    records = table.to_dicts()
    titles = [label_of(record, above) for record in records]
    if not (above and beside and len(set(titles)) < len(titles)):
        keys = [*above, *beside]
        rows = [Row(place, label_of(record, keys)) for place, record in enumerate(records)]
        return Rows(rows, [], len(rows) - 0.5)
    placed: list[Row] = []
    headings: list[Row] = []
    place, title = 0.0, None
    for record, heading in zip(records, titles, strict=True):
        if heading != title:
            place += _GAP if headings else 0
            headings.append(Row(place, heading))
            title, place = heading, place + _HEADING
        placed.append(Row(place, label_of(record, beside)))
        place += 1
    return Rows(placed, headings, place - 0.5)


def show_rows(figure: go.Figure, rows: Rows) -> None:
    """Give the axis upwards of a figure its rows, and write their headings into the plot."""
    figure.update_yaxes(
        **PLAIN_AXIS, range=[rows.end, -0.5],
        tickvals=[row.place for row in rows.rows],
        ticktext=[figure_text(row.label) for row in rows.rows],
    )  # fmt: skip
    for heading in rows.headings:
        figure.add_annotation(
            text=f"<b>{figure_text(heading.label)}</b>", showarrow=False, xref="paper", x=0,
            xanchor="left", y=heading.place + 0.15, yanchor="middle", font_size=12,
            bgcolor="white", borderpad=1,
        )  # fmt: skip
