"""Compare findings with those of a base run: new, grown, shrunk or gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from tracekit.analysis.diagnosis._diagnose import for_people
from tracekit.analysis.diagnosis._facts import WORTH
from tracekit.model import Answer

NOTICED = WORTH / 2
"""The base is searched for what takes this share of a step; a win that moves by less stays."""
_PART = 0.1
"""A win that moves by less than this part of itself stays."""
WORSE = ("new", "grown")
"""States of findings that a change of the program may be held responsible for."""
_ORDER = {"new": 0, "grown": 1, "unchanged": 2, "shrunk": 3, "gone": 4}


def against(found: Sequence[Answer], base: Sequence[Answer], *, top: int | None = None) -> Answer:
    """Return the findings of both sides, each with its change.

    Of several recordings a side a finding is new only if it is in all of these and in no earlier
    one: its win is the least of the new side, and the greatest of the base.

    Parameters
    ----------
    found
        Diagnoses, asked for all findings.
    base
        Diagnoses of the base, asked for whatever takes `NOTICED` of a step.
    top
        How many findings to list; None lists all.

    Returns
    -------
    The first diagnosis with ``state`` (``new``, ``grown``, ``shrunk``, ``unchanged`` or ``gone``),
    ``base_win_ns`` and ``base_share`` added to its findings, the new ones first. What is gone is as
    the base has it. A win moves if it does by more than `NOTICED` of the base's step, and by a
    tenth of itself.
    """
    now, before = _side(found, greatest=False), _side(base, greatest=True)
    pairs = [(now.get(rule), before.get(rule)) for rule in {**now, **before}]
    own = found[0].tables["findings"].schema
    more = {"state": pl.String(), "base_win_ns": pl.Float64(), "base_share": pl.Float64()}
    order = pl.col("state").replace_strict(_ORDER, return_dtype=pl.Int8)
    rows = pl.DataFrame(
        [_row(*pair) for pair in pairs if _is_listed(*pair)], schema={**own, **more}
    ).sort(order, "share", descending=[False, True], nulls_last=True, maintain_order=True)
    listed = rows if top is None else rows.head(top)
    return replace(
        found[0], rows=listed, tables={"findings": rows}, people=for_people(listed),
        empty="nothing found in either run",
    )  # fmt: skip


def _side(diagnoses: Sequence[Answer], *, greatest: bool) -> dict[str, dict[str, Any]]:
    """Return the finding of each rule: the largest of any recording, or the smallest of all."""
    every: dict[str, list[dict[str, Any]]] = {}
    for diagnosis in diagnoses:
        for row in diagnosis.tables["findings"].iter_rows(named=True):
            every.setdefault(row["rule"], []).append(row)
    least = 1 if greatest else len(diagnoses)
    choose = max if greatest else min
    return {
        rule: choose(rows, key=lambda row: row["share"] or 0.0)
        for rule, rows in every.items()
        if len(rows) >= least
    }


def _is_listed(now: dict[str, Any] | None, before: dict[str, Any] | None) -> bool:
    """Tell whether a finding takes enough to be spoken of, in either side."""
    shares = [row["share"] for row in (now, before) if row is not None]
    return any(share is None or share >= WORTH for share in shares)


def _row(now: dict[str, Any] | None, before: dict[str, Any] | None) -> dict[str, Any]:
    own = now or before or {}
    return {
        **own,
        "state": _state(now, before),
        "base_win_ns": before and before["win_ns"],
        "base_share": before and before["share"],
    }


def _state(now: dict[str, Any] | None, before: dict[str, Any] | None) -> str:
    if before is None or now is None:
        return "new" if before is None else "gone"
    if before["share"] is None or now["share"] is None:
        return "unchanged"
    # A step of the base is the measure: its share would move with whatever else changed.
    is_timed = before["win_ns"] and now["win_ns"]
    share = before["share"] * (now["win_ns"] / before["win_ns"]) if is_timed else now["share"]
    moved = share - before["share"]
    if abs(moved) <= max(NOTICED, _PART * before["share"]):
        return "unchanged"
    return "grown" if moved > 0 else "shrunk"
