"""What sentences about a table are made of: its ends, and whether something holds of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl

_UNKNOWN = "an unknown number"


def number_of_gpus(number: object) -> str:
    """Return ``1 GPU``, or more."""
    return f"{number} GPU{'' if number == 1 else 's'}"


def number_of(value: object, form: str) -> str:
    """Return a number as text, such as ``{:.1f} %`` says, or that it is not known."""
    return _UNKNOWN if value is None else form.format(value)


def ends(rows: pl.DataFrame, name: str, form: str) -> str:
    """Return the least and the greatest value of a column, with what each is of; one if alike."""
    known = rows.drop_nulls(name).sort(name)
    if known.is_empty():
        return _UNKNOWN
    low, high = known[[0, -1]].rows(named=True)
    told = [number_of(row[name], form) for row in (low, high)]
    if told[0] == told[1]:
        return told[0]
    return f"{told[0]}{_of(low)} to {told[1]}{_of(high)}"


def _of(row: Mapping[str, object]) -> str:
    """Return what a row is of: network, method and batch, as far as it says."""
    words = [str(row[key]) for key in ("network", "method") if row.get(key) is not None]
    words += [f"batch {row['batch']}"] if row.get("batch") is not None else []
    return f" ({', '.join(words)})" if words else ""


def holds(values: pl.Series, said: Callable[[pl.Series], bool]) -> bool | None:
    """Return whether something that is said of values is so; None where there are none."""
    known = values.drop_nulls()
    return bool(said(known)) if known.len() else None
