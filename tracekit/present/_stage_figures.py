"""Stages as bars: a breakdown, and the parts of a step per configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import plotly.graph_objects as go
import polars as pl

from tracekit.model import readable_names
from tracekit.present._charts import (
    MOST_BARS,
    MOST_UPRIGHT,
    NO_RUNS,
    Part,
    bars_figure,
    common_note,
    not_shown,
    parts_by,
    rows_of,
)
from tracekit.present._figures import Heading, decimals_of, empty_figure
from tracekit.present._palette import ACCENT, IDLE_COLOUR, KIND_COLOURS, STAGE_COLOURS
from tracekit.present._waterfall import stage_colour, stage_name, stage_order, step_unit
from tracekit.support.wording import duration, printable, shorten_apart

_WIDEST = 52
_IDLE = "idle"
_MEASURES = ("exposed_ns", "total_ns", "busy_ns", "window_ns")
_NUMBERS = ("ops", "ranges", "instances", "launching")
_NO_KEYS = {"iteration_name", "style", "depth"}
"""Columns before the measures that only describe a key."""
_PLACES = {"iteration", "device", "rank"}
"""Keys whose rows keep the order of the table."""
_WORDS = {"device": "GPU ", "iteration": "step ", "rank": "rank ", "stream": "stream "}
_STUDY = ("network", "batch", "gpus", "method", "run")


def breakdown_figure(
    table: pl.DataFrame, meta: Mapping[str, Any], *, heading: Heading
) -> go.Figure:
    """Return the rows of a breakdown as bars.

    A breakdown by stage has one bar per group of the other keys. Exposed time is solid; time hidden
    behind other stages is hatched beside the bar; idle time, if known, is grey. In other breakdowns
    each row is a bar of its busy time; for steps or GPUs its idle time is added. Bars of steps are
    vertical. Of many bars the longest are drawn.

    Parameters
    ----------
    table
        The rows, key columns first.
    meta
        Meta of the answer: ``idle_ns`` of a breakdown by stage alone, ``per`` or ``sum_over``.
    """
    keys = _keys(table)
    if table.is_empty() or not keys:
        why = "no layers are known" if "layer" in table.columns else "nothing ran"
        return empty_figure(heading, why)
    is_stacked = "stage" in keys and "exposed_ns" in table.columns
    value = "exposed_ns" if is_stacked else next(m for m in _MEASURES[::-1] if m in table.columns)
    label_keys = [key for key in keys if key != "stage"] if is_stacked else keys
    upright = "step" if label_keys == ["iteration"] else None
    rows = table.with_columns(label=_label(label_keys), length=pl.col(value))
    notes: list[str] = []
    if upright and rows["iteration"].count():  # what is of no step dwarfs each of many
        outside = rows.filter(pl.col("iteration").is_null())
        rows = rows.drop_nulls("iteration")
        if length := float(outside["length"].sum()):
            notes.append(f"not shown: {duration(length)} outside of steps")
    bars = rows.group_by("label", maintain_order=True).agg(pl.col("length").sum())
    if not (is_stacked or _PLACES & {*label_keys}):
        bars = bars.sort("length", descending=True, maintain_order=True)
    shown = _longest(bars, MOST_UPRIGHT if upright else MOST_BARS)
    rows = shown.with_row_index("place").drop("length").join(
        rows, on="label", maintain_order="left_right"
    )  # fmt: skip
    parts = _stages(rows, shown.height, label_keys, meta) if is_stacked else _busy(rows, keys)
    return bars_figure(
        _names(rows.unique("place", maintain_order=True), label_keys), parts,
        axis=f"time{_of(meta)}", heading=heading, upright=upright,
        notes=[*notes, *not_shown(bars.height - shown.height, "that are shorter")],
    )  # fmt: skip


def _keys(table: pl.DataFrame) -> list[str]:
    """Return the key columns of a breakdown, which precede the number of ops."""
    names = table.columns
    ends = [names.index(name) for name in (*_NUMBERS, *_MEASURES) if name in names]
    keys = names[: min(ends, default=0)]
    key_columns = [name for name in keys if name not in _NO_KEYS]
    is_style_needed = "style" in keys and table.select(key_columns).is_duplicated().any()
    return [*key_columns, "style"] if is_style_needed else key_columns


def _longest(bars: pl.DataFrame, most: int) -> pl.DataFrame:
    """Return the `most` longest bars, in their original order."""
    kept = bars.with_row_index("at").sort("length", "at", descending=[True, False]).head(most)
    return kept.sort("at").drop("at")


def _stages(
    rows: pl.DataFrame, number: int, label_keys: Sequence[str], meta: Mapping[str, Any]
) -> list[Part]:
    """Return segments of bars: exposed time by stage, idle time if known, then hidden time."""
    stages = rows["stage"].cast(str)
    found = []
    for column, ending in (("exposed_ns", ""), ("overlap_ns", " hidden")):
        for stage in stage_order(stages.to_list()):
            of_stage = rows.filter(stages == stage)
            times = dict(of_stage.select("place", column).iter_rows())
            if any(times.values()):
                lengths = [times.get(place) for place in range(number)]
                found.append(
                    Part(stage_name(stage) + ending, stage_colour(stage), lengths, bool(ending))
                )
        if not (label_keys or ending) and meta.get("idle_ns"):
            found.append(Part(_IDLE, IDLE_COLOUR, [meta["idle_ns"]]))
    return found


def _busy(rows: pl.DataFrame, keys: Sequence[str]) -> list[Part]:
    """Return segments of bars: busy time, by stage or kind; idle time where bars are steps or GPUs.

    If the table has no busy times, sums of durations are drawn instead.
    """
    labels = rows["label"].to_list()
    busy = "busy_ns" if "busy_ns" in rows.columns else "total_ns"
    coloured = next((key for key in ("stage", "kind") if key in keys), None)
    if coloured:
        colours = {**KIND_COLOURS, **STAGE_COLOURS}
        parts = parts_by(rows, "place", range(rows.height), coloured, busy, colours)
        is_told = keys == [coloured]  # beside each bar
        return [replace(part, name="" if is_told else part.name, hover=labels) for part in parts]
    idle = [name for name in ("idle", "between_steps") if f"{name}_ns" in rows.columns]
    return [
        Part("busy" * bool(idle), ACCENT, rows[busy].to_list(), hover=labels),
        *(
            Part(stage_name(name), stage_colour(name), rows[f"{name}_ns"].to_list())
            for name in idle
        ),
    ]


def _names(rows: pl.DataFrame, keys: Sequence[str]) -> list[str]:
    """Return the labels of bars; kernels get short names."""
    if keys == ["iteration"]:
        return ["outside" if step is None else str(step) for step in rows["iteration"]]
    if "name" not in keys:
        return rows["label"].to_list()
    names = [printable(str(name)) for name in rows["name"].cast(str)]
    short = readable_names(names)
    kernels = shorten_apart([short[name] for name in names], _WIDEST)
    others = [key for key in keys if key not in {"name", "kind"}]
    if not others:
        return kernels
    rest = rows.select(_label(others))["label"]
    return [f"{kernel}, {more}" for kernel, more in zip(kernels, rest, strict=True)]


def _label(keys: Sequence[str]) -> pl.Expr:
    if not keys:
        return pl.lit("").alias("label")
    named = [
        pl.format(f"{_WORDS.get(key, '')}{{}}", pl.col(key).cast(pl.String).fill_null("unknown"))
        for key in keys
    ]
    return pl.concat_str(named, separator=", ").alias("label")


def _of(meta: Mapping[str, Any]) -> str:
    """Return a phrase: whether times are means or sums, and over what (such as steps, GPUs)."""
    if meta.get("per"):
        return f" per {meta['per']}"
    over = meta.get("sum_over", "1 GPU")
    return "" if over == "1 GPU" else f", sum over {over}"


def stage_bars_figure(
    study: pl.DataFrame, *, heading: Heading, per: str = "iteration"
) -> go.Figure:
    """Return one bar per configuration: exposed time of each stage, and idle time.

    The bars are in the order of the table, at most 40, grouped by network; the sum is at the
    end.

    Parameters
    ----------
    study
        One row per configuration and stage: ``network``, ``batch``, ``gpus``, ``method``, ``stage``
        (one of the stages, ``FP+BP`` or ``idle``) and ``exposed_ns``, null if unknown, in which
        case the sum is shown as a lower bound. Columns that name the configuration may be missing.
        Optionally ``run``, the name of a run if values are not medians; or ``runs``, ``low_ns`` and
        ``high_ns``: the number of runs behind a median, and the range of their steps, drawn around
        the sum.
    per
        Unit of work that the times are per, such as ``epoch``.
    """
    runs, times = _stage_times(study)
    if not runs.height:
        return empty_figure(heading, NO_RUNS)
    shown = runs.head(MOST_BARS)
    time = pl.col("exposed_ns")
    sums = (
        times.group_by("row")
        .agg(time.sum(), pl.col("runs", "low_ns", "high_ns").first(), unknown=time.is_null().any())
        .sort("row")
    )
    lengths = sums["exposed_ns"].to_list()
    divisor, unit = step_unit(max(lengths))
    decimals = min(decimals_of(min(lengths) / divisor), 2)
    colours = {stage: stage_colour(stage) for stage in stage_order(times["stage"].to_list())}
    parts = parts_by(times, "row", range(shown.height), "stage", "exposed_ns", colours)
    return bars_figure(
        rows_of(shown, ("network",), ("batch", "gpus", "method", "run")),
        [replace(part, name=stage_name(part.name)) for part in parts],
        axis=f"exposed time per {per}", heading=heading, unit=(divisor, unit),
        ends=[
            f"{'≥ ' if row['unknown'] else ''}{row['exposed_ns'] / divisor:,.{decimals}f}"
            + (f" (n = {row['runs']:,})" if (row["runs"] or 1) > 1 else "")
            for row in sums.iter_rows(named=True)
        ],
        whiskers=[_interval(row) for row in sums.iter_rows(named=True)],
        notes=[
            *_whisker_notes(sums),
            *common_note(runs, _STUDY),
            *(["≥ the time of some stages is unknown"] if times["exposed_ns"].has_nulls() else []),
            *not_shown(runs.height - shown.height, "configurations"),
        ],
    )  # fmt: skip


def _stage_times(study: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the configurations, grouped by network, and stage times with their index, ``row``."""
    keys = [key for key in _STUDY if key in study.columns]
    runs = study.select(keys or pl.lit(0).alias("bar")).unique(maintain_order=True)
    parts = runs.partition_by(keys[:1], maintain_order=True) if keys else [runs]
    runs = pl.concat(parts) if parts else runs
    pooled = [
        (pl.col(name) if name in study.columns else pl.lit(None, pl.Float64)).alias(name)
        for name in ("runs", "low_ns", "high_ns")
    ]
    times = study.with_columns(pl.lit(0).alias("bar"), *pooled).join(
        runs.with_row_index("row").head(MOST_BARS), on=runs.columns, nulls_equal=True
    )
    return runs, times.select(
        "row",
        "runs",
        "low_ns",
        "high_ns",
        pl.col("stage").cast(pl.String).fill_null("?"),
        pl.col("exposed_ns").cast(pl.Float64).fill_nan(None),
    )


def _interval(row: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the lowest and highest step time of a configuration; None if unknown or equal."""
    ends = row["low_ns"], row["high_ns"]
    return None if None in ends or row["runs"] is None or ends[0] == ends[1] else ends


def _whisker_notes(sums: pl.DataFrame) -> list[str]:
    of = {(row["runs"] or 1) > 1 for row in sums.iter_rows(named=True) if _interval(row)}
    notes = {
        "whiskers of a run: 95 % interval of its mean step": False in of,
        "whiskers of several (n): the least and the greatest of them": True in of,
    }
    return [note for note, applies in notes.items() if applies]
