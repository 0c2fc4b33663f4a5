"""Step time of a program over many recordings, and the points at which it changed."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from tracekit.analysis.comparison._headline import Metric, check_metric
from tracekit.analysis.facts import verdicts_note
from tracekit.analysis.statistics import Floats, Skip
from tracekit.analysis.step_sums import per_iteration, steps_of
from tracekit.engine import begun_in_steps, numbered_alike, step_windows
from tracekit.errors import UsageError
from tracekit.model import Answer, Trace
from tracekit.support.wording import count, skipped_text, summary, text_of

if TYPE_CHECKING:
    from tracekit.analysis.comparison._prepared import Recorded

_LEAST = 3
"""Minimum number of points of a level; fewer are outliers."""
_FAR, _FAR_SHARE = 5, 0.01
"""A point this far from its level is named: robust standard deviations, and share of the level."""
_MOST_FAR = 3
_FED = 0.2
"""Bytes of input of a step that differ by up to half of this (logarithms) count as alike: 10 %."""
_COPY = ["process", "device", "start", "end", "bytes"]
_CELL = ["process", "device", "iteration"]
_SURE = 0.01
_ALIKE = 1.0
"""Correlation of neighbouring points within levels, in standard errors, from which on changes may
be a drift: they then are false in up to 60 % of series (docs/evidence/recordings.md)."""
_ORDERS = 1_999
METHOD = (
    f"levels: binary segmentation by ranks (Pettitt 1979), {_LEAST} points of a level or more; "
    f"p_value by {_ORDERS:,} random orders, a change where it is at most {_SURE}"
)

HISTORY = pl.Schema(
    {
        "value": pl.String,
        "run": pl.String,
        "runs": pl.Int64,
        "step_ns": pl.Float64,
        "low_ns": pl.Float64,
        "high_ns": pl.Float64,
        "level": pl.Int64,
        "level_ns": pl.Float64,
        "change_percent": pl.Float64,
        "p_value": pl.Float64,
    }
)
"""Columns of a history, described in `history`."""


@dataclass(frozen=True)
class Change:
    """A change point of a series: the first point at the new level, and the p value."""

    place: int
    p_value: float


def history(recordings: pl.DataFrame, *, label: str, metric: Metric = "mean") -> Answer:
    """Return the step time of a program over the values of a label, and where its level changes.

    Recordings with the same value of the label form one point: the mean of their steps. Points are
    sorted by value if all values are numbers, dates (30.11.2026), or texts that differ in numbers
    only (2026-11-30, build-9, v2.10), else by the time of their first ingest. Where values can be
    read in several ways (2.10 is a decimal or a version), the times of ingest decide, and the
    title states that.

    Parameters
    ----------
    recordings
        One row per recording: ``value`` (of the label, text), ``run`` (name), ``created`` (time)
        and ``step_ns`` (null if no step is known).
    metric
        Statistic in ``step_ns``: the mean or the median of the recording's steps.

    Raises
    ------
    UsageError
        If no recording has steps.
    """
    check_metric(metric)
    timed = recordings.drop_nulls("step_ns")
    if timed.is_empty():
        raise UsageError(f"no run with the label {label!r} has steps", "choose others with --where")
    points, order = _points(timed)
    changes = change_points(points["step_ns"].to_numpy())
    rows = _with_levels(points, changes).select(HISTORY.names()).cast(HISTORY)
    return Answer(
        rows=rows,
        meta={
            "headline": _headline(rows, label) + _drift(rows) + _far_off(rows),
            "label": label,
            "metric": metric,
            "points": rows.height,
            "changes": len(changes),
            "untimed": recordings.filter(pl.col("step_ns").is_null())["run"].to_list(),
            "method": METHOD,
        },
        title=f"history by {label}{order}",
        readable=_readable(rows),
        command="history",
        figures={"figure": "history"},
    )


def typical_step(trace: Trace, *, skip: Skip = "auto", metric: Metric = "mean") -> float | None:
    """Return mean (or median: `metric`) step, ns per device, after `skip`; None without steps."""
    if trace["iterations"].head(1).collect().is_empty():
        return None
    found = per_iteration(trace, ("stage",), skip=skip)
    if not found.iterations:
        return None
    steps = steps_of(found)
    value = steps.mean() if metric == "mean" else np.median(steps)
    return float(value) / max(1, found.devices)


def unlike(runs: Sequence[Recorded]) -> list[str]:
    """Return notes on runs whose steps copy more or less input to a GPU than the first run's do.

    If only some runs contain evaluation, a further note names a run with and a run without.
    """
    bytes_, stages = pl.col("bytes").sum(), ["IO", "OTHER"]  # the latter of inference
    is_fed = (pl.col("kind") == "h2d") & pl.col("stage").is_in(stages)
    copies = [run.trace["ops"].filter(is_fed).select(_COPY).collect() for run in runs]
    steps = [step_windows(numbered_alike(run.trace)) for run in runs]
    fed = [each.drop_nulls("iteration") for each in map(begun_in_steps, copies, steps)]
    of_steps = [each.group_by(_CELL).agg(bytes_) for each in fed]
    amounts = [each.select(pl.col("bytes").median()).item() for each in of_steps]
    unlike = {
        about: f"a step copies {amounts[0] / 1e6:,.3f} MB of input to a GPU in {runs[0].name} and "
        f"{amount / 1e6:,.3f} in {run.name}: batches may differ"
        for run, amount in reversed(list(zip(runs, amounts, strict=True)))
        if amount and amounts[0] and (about := round(math.log(amount / amounts[0]) / _FED))
    }  # fmt: skip
    evaluated = [run.trace["ops"].filter(stage="ME").head(1).collect().height for run in runs]
    if len({*evaluated}) > 1:
        one, none = (runs[evaluated.index(has_evaluation)].name for has_evaluation in (1, 0))
        unlike[0] = f"{one} has evaluation, which counts in the step before it, {none} does not"
    return [*reversed(unlike.values())]


def _readable(rows: pl.DataFrame) -> pl.DataFrame:
    empty = [name for name in ("run", "low_ns", "high_ns") if rows[name].null_count() == len(rows)]
    return rows.drop(empty)


def _points(timed: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Return a row per value of the runs' label, in order; and, for the title, which order."""
    several = pl.len() > 1
    points = timed.group_by("value").agg(
        run=pl.when(~several).then(pl.col("run").first()),
        runs=pl.len().cast(pl.Int64),
        low_ns=pl.when(several).then(pl.col("step_ns").min()),
        high_ns=pl.when(several).then(pl.col("step_ns").max()),
        step_ns=pl.col("step_ns").mean(),
        created=pl.col("created").min(),
    ).sort("created", "value")  # fmt: skip
    orders = _orders(points["value"].to_list())
    if not orders:
        return points, ", in the order of ingest"
    # Points that were ingested one after the other and follow each other in the order, too.
    following = {
        name: sum(one <= other for one, other in itertools.pairwise(keys))
        for name, keys in orders.items()
    }
    best = max(orders, key=lambda name: following[name])
    ways = {name: sorted(range(len(keys)), key=keys.__getitem__) for name, keys in orders.items()}
    others = [name for name, way in ways.items() if way != ways[best]]
    note = f", as {best} (as {' or '.join(others)} in another order)" if others else ""
    return points[ways[best]], note


def _orders(values: Sequence[str]) -> dict[str, list[Any]]:
    """Return possible readings of the values -> sort keys, such as numbers, dates; likeliest first.

    Texts that differ only in the integers in them are sorted by these, from left to right.
    """
    orders: dict[str, list[Any]] = {}
    with suppress(ValueError):
        decimals = [float(value) for value in values]
        if len({*decimals}) == len(values) or any(map(_SIGNED.search, values)):
            orders["decimals"] = decimals
    if len({_DIGITS.sub("0", value) for value in values}) > 1 or any(map(_SIGNED.search, values)):
        return orders
    numbers = [(*map(int, _DIGITS.findall(value)),) for value in values]
    are_dates = all(map(_DATE.fullmatch, values))
    if len({*numbers}) == len(values) and not are_dates:
        orders["versions"] = numbers
    if are_dates or all(map(_SHORT_DATE.fullmatch, values)):
        for name, month, day in (("days before months", 1, 0), ("months before days", 0, 1)):
            keys = [(each[2], each[month], each[day], *each[3:]) for each in numbers]
            if all(1 <= each[1] <= _MONTHS and 1 <= each[2] <= _DAYS for each in keys):
                orders[name] = keys
    return orders


_DIGITS = re.compile(r"[0-9]+")
_SIGNED = re.compile(r"^\s*[-+][0-9.]|^[0-9.]+[eE]")
_DATE = re.compile(r"\D*\d{1,2}\D+\d{1,2}\D+(?:19[789]|20\d)\d(?:\D.*)?")
_SHORT_DATE = re.compile(r"\D*\d{2}\D+\d{2}\D+\d{2}(?:\D.*)?")
_MONTHS, _DAYS = 12, 31


def change_points(values: Floats) -> list[Change]:
    """Return the points at which a series changes its level.

    The series is split where the ranks of the points before and after differ most, if that is
    significant: in at most 1 % of 1,999 random orders of the points, ranks differ as much at any
    split. Both halves are split likewise (binary segmentation). Ranks are robust against single
    outliers.

    Parameters
    ----------
    values
        The points of the series, in order.
    """
    found: list[Change] = []
    parts = [(0, len(values))]
    while parts:
        begin, end = parts.pop()
        cut = _cut(values[begin:end])
        if cut is not None and cut.p_value <= _SURE:
            found.append(Change(begin + cut.place, cut.p_value))
            parts += [(begin, begin + cut.place), (begin + cut.place, end)]
    return sorted(found, key=lambda change: change.place)


def _cut(values: Floats) -> Change | None:
    """Return the best split of a series and its p value; None if it cannot be split."""
    number = len(values)
    if number < 2 * _LEAST or values.min() == values.max():
        return None
    ordered = np.sort(values)
    ranks = np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")
    centred = ranks - ranks.mean()
    at, distance = _farthest(centred[np.newaxis, :])
    random = np.random.default_rng(number)
    orders = random.permuted(np.tile(centred, (_ORDERS, 1)), axis=1)
    as_far = int((_farthest(orders)[1] >= distance[0] * (1 - 1e-12)).sum())
    return Change(int(at[0]), (1 + as_far) / (1 + _ORDERS))


def _can_show(points: int) -> bool:
    """Test whether a series of `points` points is long enough for a significant change.

    In the clearest change, one half of the n points lies above the other half: its p value is 2 /
    ``comb(n, n / 2)``, the chance that a random order separates the same halves.
    """
    return 2 / math.comb(points, points // 2) <= _SURE


def _farthest(centred: Floats) -> tuple[np.ndarray[Any, Any], Floats]:
    """Return, for each row of centred ranks, the best split of the row and its test statistic.

    It is the split with the largest difference in mean rank between both sides.
    """
    number = centred.shape[1]
    places = np.arange(_LEAST, number - _LEAST + 1)
    sums = centred.cumsum(axis=1)[:, places - 1]
    far = np.abs(sums) / np.sqrt(places * (number - places) / number)
    return places[far.argmax(axis=1)], far.max(axis=1)


def _with_levels(points: pl.DataFrame, changes: Sequence[Change]) -> pl.DataFrame:
    """Add each point's level, the median between two change points, and the level's change.

    ``change_percent`` is the change from the level before, at the first point of each level.
    """
    begins = {change.place: change.p_value for change in changes}
    place = pl.int_range(pl.len())
    levelled = points.with_columns(
        level=1 + place.is_in(list(begins)).cum_sum().cast(pl.Int64),
        p_value=place.replace_strict(begins, default=None, return_dtype=pl.Float64),
    ).with_columns(level_ns=pl.col("step_ns").median().over("level"))
    change = 100 * (pl.col("level_ns") / pl.col("level_ns").shift(1) - 1)
    return levelled.with_columns(
        change_percent=pl.when(pl.col("p_value").is_not_null()).then(change)
    )


def _headline(rows: pl.DataFrame, label: str) -> str:
    changes = rows.drop_nulls("change_percent")
    if changes.is_empty():
        number = f"{rows.height} {'point' if rows.height == 1 else 'points'}"
        if not _can_show(rows.height):
            needed = next(count for count in itertools.count(rows.height) if _can_show(count))
            return f"{number}: too few to show a change, which takes {needed}"
        return f"{number}: no change found"
    texts = [
        f"{change:+.1f} % from {label} {value} on"
        for value, change in changes.select("value", "change_percent").iter_rows()
    ]
    return f"{count(rows.height, 'point')}: {'; '.join(texts)}"


def _drift(rows: pl.DataFrame) -> str:
    """Return a caveat on changes: a straight line fits no worse, or neighbouring points are alike.

    The line is compared with the levels by the Bayesian information criterion: it has two
    parameters, k levels have 2 k - 1. Points within levels are alike by their rank correlation.
    """
    number, changes = rows.height, rows["level"].n_unique() - 1
    if not changes:
        return ""
    values, places = rows["step_ns"].to_numpy(), np.arange(number)
    slope, begin = np.polyfit(places, values, 1)
    left = values - slope * places - begin
    within = rows.select(pl.col("step_ns") - pl.col("step_ns").mean().over("level")).to_series()
    if (left**2).sum() <= (within**2).sum() * number ** ((2 * changes - 1) / number):
        return f"; a steady {100 * slope / values.mean():+.2g} % a point fits no worse"
    ranks = within.rank().to_numpy() - (number + 1) / 2
    is_alike = (ranks[1:] * ranks[:-1]).sum() * number**0.5 > _ALIKE * (ranks**2).sum()
    return ", if no drift" if is_alike else ""


def _far_off(rows: pl.DataFrame) -> str:
    """Return a clause naming points far from their level; consecutive ones as `first to last`."""
    off = (rows["step_ns"] / rows["level_ns"] - 1).to_numpy()
    size = np.abs(off)
    signs = np.sign(off) * (size > max(_FAR * 1.4826 * float(np.median(size)), _FAR_SHARE))
    groups = [[*places] for sign, places in itertools.groupby(range(len(off)), signs.item) if sign]
    if not groups or len(off) < 2 * _LEAST:
        return ""
    shown = sorted(sorted(groups, key=lambda group: size[group].mean())[-_MOST_FAR:])
    texts = [
        " to ".join(dict.fromkeys(rows["value"][places[:1] + places[-1:]]))
        + f" ({100 * off[places].mean():+.1f} %)"
        for places in shown
    ]
    more = f" and {len(groups) - _MOST_FAR} more" * (len(groups) > _MOST_FAR)
    return f"; far from their level: {', '.join(texts)}{more}"


@summary(
    "label",
    "metric",
    "points",
    "changes",
    "untimed",
    "method",
    optional=["skip", "verdicts", "warnings", "simulated"],
)
def _history_notes(meta: Mapping[str, Any]) -> list[str]:
    """Return notes on a history: number of points, and runs left out."""
    of = f"{text_of(meta['metric'])} steps" + skipped_text(meta.get("skip"))
    untimed = ", ".join(map(text_of, meta["untimed"]))
    return [
        f"{count(meta['points'], 'point')}, {of}",
        *([f"left out, without steps: {untimed}"] if untimed else []),
        *verdicts_note(meta.get("verdicts", {})),
        text_of(meta["method"]),
        *(f"warning: {text_of(warning)}" for warning in meta.get("warnings", ())),
    ]
