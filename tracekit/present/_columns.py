"""Columns as displayed: labels, units, and the text of each cell.

Times (`*_ns`) and sizes (`bytes`, `*_bytes`) are shown in one unit per column, which is written
beside the label; message sizes, which span many powers of two, each in a suitable unit. Shares are
percent; unknown values are `-`. Terminal, Markdown and notebook tables are all made of these
columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, NamedTuple, cast

import polars as pl

from tracekit.model import traits
from tracekit.support.wording import (
    NULL,
    SCALES,
    Number,
    decimals,
    message_size,
    percent,
    printable,
    scaled,
    text_of,
)

_TIME = re.compile(r"_ns(?=_|$)")
_COMPARED = re.compile(
    r"(?:^|_)(?:(?P<statistic>mean|median|min|max|p\d+)(?:_|$)"
    r"|(?P<window>window|idle|between|host|projected)_ns$|(?P<outside>outside_steps)_ns$)"
)
"""Names of columns of times that readers compare with each other, and not with other times."""
_SHARE = re.compile(r"(^|_)(share|mfu|hfu|coverage|launched|utilisation|efficiency)(_|$)")
_RATE = re.compile(r"_gb_s$")
_FLOPS = re.compile(r"(^|_)flops(_s)?$")
_PERCENT = re.compile(r"_percent$")
_BYTES = re.compile(r"(^|_)bytes($|_between_gpus$|_per_epoch$)")
_SEPARATOR = " > "
"""Separator between the parts of a path."""
_DEEPEST = 12
"""Depth beyond which ranges are not indented further."""

_FLOP_UNITS = (
    (10**12, 10**12, "TFLOP"), (10**9, 10**9, "GFLOP"), (10**6, 10**6, "MFLOP"), (0, 1, "FLOP"),
)  # fmt: skip
_BYTE_UNITS = ((10**9, 10**9, "GB"), (10**6, 10**6, "MB"), (10**3, 10**3, "kB"), (0, 1, "B"))


class Scale(NamedTuple):
    """How a column's values are written: unit, divisor and decimals."""

    divisor: int
    unit: str
    decimals: int


@dataclass(frozen=True)
class ShownColumn:
    """A column of a table as it is displayed: label, unit, and the text of each cell."""

    name: str
    """Name of the column in the frame."""
    label: str
    """Displayed name, without the unit."""
    texts: list[str]
    """Text of each row, safe to print."""
    unit: str | None = None
    """Unit of the texts, or None."""
    numeric: bool = True
    """Whether the values are numbers, which are right-aligned."""

    @property
    def header(self) -> str:
        """Label and unit in one line."""
        return self.label if self.unit is None else f"{self.label} ({self.unit})"


def shown(frame: pl.DataFrame, height: int | None = None) -> list[ShownColumn]:
    """Return the columns of `frame` as displayed.

    `height` is the number of first rows whose values decide the units; None takes all rows.
    """
    scales = _time_scales(frame.head(frame.height if height is None else height))
    columns = [
        _shown_number(series, scales.get(series.name))
        if series.dtype.is_numeric()
        else _shown_text(series)
        for series in frame.get_columns()
    ]
    return _indented(columns, frame) if {"range", "depth"} <= {*frame.columns} else columns


def with_values(columns: Sequence[ShownColumn]) -> tuple[list[ShownColumn], list[str]]:
    """Drop columns with only nulls, except the first; return the rest, and labels (or names)."""
    unknown = [each for each in columns[1:] if each.texts and {*each.texts} <= {NULL, ""}]
    known = [each for each in columns if each not in unknown]
    labels = {each.label for each in known}
    return known, [each.name if each.label in labels else each.label for each in unknown]


def unknown_note(labels: Sequence[str]) -> list[str]:
    """Return a note that names the columns that `with_values` left out; empty if none."""
    return [f"unknown or none: {', '.join(dict.fromkeys(labels))}"] if labels else []


def _indented(columns: Sequence[ShownColumn], frame: pl.DataFrame) -> list[ShownColumn]:
    """Show paths of nested ranges as a tree: only the last name of each, indented by its depth."""
    depths = frame["depth"].to_list()
    return [
        replace(column, texts=[*map(_branch, column.texts, depths)])
        if column.name == "range"
        else column
        for column in columns
        if column.name != "depth"
    ]


def _branch(path: str, depth: int | None) -> str:
    if depth is None:
        return path
    return "  " * min(depth, _DEEPEST) + path.rsplit(_SEPARATOR, 1)[-1]


def time_unit(frame: pl.DataFrame) -> str | None:
    """Return the unit in which most times of a frame are shown; None if it has no times."""
    scales = [scale.unit for scale in _time_scales(frame).values()]
    return max(scales, key=scales.count, default=None) if frame.height else None


def time_scale(frame: pl.DataFrame, name: str) -> Scale:
    """Return unit, divisor and decimals with which a column of times is displayed."""
    return _time_scales(frame)[name]


def _shown_text(series: pl.Series) -> ShownColumn:
    texts = [NULL if value is None else text_of(value) for value in series.to_list()]
    return ShownColumn(series.name, printable(series.name), texts, numeric=False)


def _shown_number(series: pl.Series, time_scale: Scale | None) -> ShownColumn:
    name, special, values = series.name, traits(series.name), _numbers(series)
    label = special.label or printable(name)
    if special.exact:
        return ShownColumn(name, label.removesuffix("_bytes"), [*map(message_size, values)])
    scale = time_scale or (_scale(values, _BYTE_UNITS) if _BYTES.search(name) else None)
    if scale is not None:
        texts = scaled(values, scale.divisor, scale.decimals, in_full=time_scale is not None)
        return ShownColumn(name, _TIME.sub("", label), texts, scale.unit)
    for unit, pattern, places in (("%", _PERCENT, 1), ("GB/s", _RATE, 3)):
        if pattern.search(name):
            return ShownColumn(name, pattern.sub("", label), scaled(values, 1, places), unit)
    if _FLOPS.search(name):
        return _shown_flops(name, label, values)
    if _SHARE.search(name) and series.dtype.is_float():
        texts = [NULL if value is None else percent(value).removesuffix(" %") for value in values]
        return ShownColumn(name, label, texts, "%")
    texts = [
        NULL if value is None else _number(value, grouped=not special.names) for value in values
    ]
    return ShownColumn(name, label, texts)


def _shown_flops(name: str, label: str, values: Sequence[Number | None]) -> ShownColumn:
    scale, rate = _scale(values, _FLOP_UNITS), name.endswith("_s")
    texts = scaled(values, scale.divisor, scale.decimals)
    unit = f"{scale.unit}/s" if rate else scale.unit
    return ShownColumn(name, label.removesuffix("_s") if rate else label, texts, unit)


def _time_scales(frame: pl.DataFrame) -> dict[str, Scale]:
    """Choose one unit for all time columns that readers compare, such as all statistics.

    It suits the largest value in these columns; in tables by message size, the median of the
    values.
    """
    by_size = any(traits(name).exact for name in frame.columns)
    typical = _median if by_size else _largest
    groups: dict[str, list[pl.Series]] = {}
    for series in frame.get_columns():
        if _TIME.search(series.name) and series.dtype.is_numeric():
            kind = _COMPARED.search(series.name)
            groups.setdefault((kind and kind.lastgroup) or "total", []).append(series)
    scales = {
        key: _scale([value for series in group for value in _numbers(series)], SCALES, typical)
        for key, group in groups.items()
    }
    return {series.name: scales[key] for key, group in groups.items() for series in group}


def _numbers(series: pl.Series) -> list[Number | None]:
    """Return the values as ints and floats, also of decimals; NaN becomes null."""
    values = series.fill_nan(None) if series.dtype.is_float() else series
    listed: list[Number | Decimal | None] = values.to_list()
    if not series.dtype.is_decimal():
        return cast("list[Number | None]", listed)
    return [None if value is None else float(value) for value in listed]


def _largest(values: Sequence[Number]) -> Number:
    return max(values, default=0)


def _median(values: Sequence[Number]) -> Number:
    return sorted(values)[len(values) // 2] if values else 0


def _scale(
    values: Sequence[Number | None],
    units: tuple[tuple[int, int, str], ...],
    typical: Callable[[Sequence[Number]], Number] = _largest,
) -> Scale:
    suited = typical([abs(value) for value in values if value is not None])
    divisor, unit = next((divisor, unit) for least, divisor, unit in units if suited >= least)
    return Scale(divisor, unit, decimals(suited, divisor))


def _number(value: Number, *, grouped: bool) -> str:
    if isinstance(value, int):
        return f"{value:,}" if grouped else str(value)
    return f"{value:,.3f}" if abs(value) >= 1 else f"{value:.4g}"


def shown_with_totals(
    frame: pl.DataFrame, meta: Mapping[str, Any], *, is_whole: bool = True
) -> list[ShownColumn]:
    """Return the columns of `frame` as displayed; a breakdown by stage gets closing rows.

    The closing rows are `idle` (for ranges on the host `no stage`) and `window`. Only a breakdown
    by stage adds up to its window, and only with all its rows (`is_whole`). Cells of closing rows
    and of rows that `with_parts` adds are empty where they have no value.
    """
    totalled = with_totals(frame, meta) if is_whole else frame
    if "a_ns" in frame.columns and totalled.height > frame.height:
        scale = time_scale(_with_typical(totalled, meta), "a_ns")
        columns = shown(_with_typical(_with_remainder(totalled, scale), meta))
    else:
        columns = shown(totalled, frame.height)
    parts = _are_parts(frame)
    return [
        replace(column, texts=_blank_below(column.texts, frame.height, parts)) for column in columns
    ]


OF_WHICH = "of which recomputed"


def with_parts(frame: pl.DataFrame, meta: Mapping[str, Any]) -> pl.DataFrame:
    """Add below each BP row of a breakdown a row for its recomputation of the forward pass."""
    import polars as pl

    if not meta.get("recomputed") or not {"stage", "ops", "busy_ns"} <= {*frame.columns}:
        return frame
    parts = pl.DataFrame(meta["recomputed"]).with_columns(stage=pl.lit("BP"))
    keys = [name for name in parts.columns if name not in ("ops", "busy_ns")]
    rows = frame.with_row_index("place").cast({"stage": pl.String})
    if not {*keys} <= {*frame.columns}:
        return frame
    parts = parts.cast({name: rows.schema[name] for name in keys})
    below = rows.select("place", *keys).join(parts, on=keys).with_columns(stage=pl.lit(OF_WHICH))
    both = pl.concat([rows, below], how="diagonal_relaxed")
    return both.sort("place", maintain_order=True).drop("place")


def _are_parts(frame: pl.DataFrame) -> list[bool]:
    """Test for each row whether `with_parts` added it, as a part of the row above it."""
    if "stage" not in frame.columns:
        return [False] * frame.height
    return [stage == OF_WHICH for stage in frame["stage"].cast(str).to_list()]


def with_totals(frame: pl.DataFrame, meta: Mapping[str, Any]) -> pl.DataFrame:
    """Add rows to a breakdown by stage: idle time and window, or (in a comparison) the step."""
    window, idle = meta.get("window_ns"), meta.get("idle_ns")
    if frame.columns[:1] in (["stage"], ["part"]) and "a_ns" in frame.columns:
        return _with_step(frame, meta)
    number = "ranges" if "basis" in meta else "ops"
    by_stage = frame.columns[:2] == ["stage", number]
    if not by_stage or not {"exposed_ns", "share"} <= {*frame.columns}:
        return frame
    if not window or idle is None:
        return frame
    totals = pl.DataFrame(
        {
            "stage": ["no stage" if "basis" in meta else "idle", "window"],
            number: [None, frame.filter(pl.col("stage").cast(pl.String) != OF_WHICH)[number].sum()],
            "exposed_ns": [idle, window],
            "share": [idle / window, 1.0],
        },
    )
    return pl.concat([frame.cast({"stage": pl.String}), totals], how="diagonal_relaxed")


def _with_step(frame: pl.DataFrame, meta: Mapping[str, Any]) -> pl.DataFrame:
    """Add a last row, the whole step (or recording), to a comparison of two runs by its parts."""
    step = meta.get("step")
    if not step or step["a_ns"] is None:
        return frame
    known = {name: step[name] for name in frame.columns if name in step and name != "p_value"}
    whole = meta["per"].partition("/")[0]
    total = pl.DataFrame({frame.columns[0]: whole, **known}, infer_schema_length=None)
    return pl.concat([frame, total], how="diagonal_relaxed")


def _with_typical(frame: pl.DataFrame, meta: Mapping[str, Any]) -> pl.DataFrame:
    """Add a row for the median step of both runs, and its change; it is no sum of other rows."""
    step = meta["step"]
    if step.get("shift_low_ns") is None:
        return frame
    known = {
        "a_ns": step["a_median_ns"],
        "b_ns": step["b_median_ns"],
        "delta_ns": step["shift_ns"],
        "low_ns": step["shift_low_ns"],
        "high_ns": step["shift_high_ns"],
        "verdict": step["shift_verdict"],
    }
    values = {name: value for name, value in known.items() if name in frame.columns}
    typical = pl.DataFrame({frame.columns[0]: "median", **values}, infer_schema_length=None)
    return pl.concat([frame, typical], how="diagonal_relaxed")


def _with_remainder(frame: pl.DataFrame, scale: Scale) -> pl.DataFrame:
    """Add, before the last row (the total), a row with the rounding error of the displayed sum.

    With it, the displayed rows add up to the displayed total.
    """
    quantum = scale.divisor / 10**scale.decimals
    shown_as = [(pl.col(name) / quantum).round() for name in ("a_ns", "b_ns")]
    left = frame.select(each.last() - each.head(pl.len() - 1).sum() for each in shown_as)
    if not any(left.row(0)):
        return frame
    row = left.select(pl.lit("rounding").alias(frame.columns[0]), pl.all() * quantum)
    return pl.concat([frame.head(-1), row, frame.tail(1)], how="diagonal_relaxed")


def _blank_below(texts: list[str], height: int, parts: list[bool]) -> list[str]:
    """Blank the null cells of rows that `with_parts` or `with_totals` added.

    `parts` marks the rows that `with_parts` added; those from row `height` on are of `with_totals`.
    """
    may_be = [*parts, *(True for _ in texts[height:])]
    return [
        "" if blank and text == NULL else text for text, blank in zip(texts, may_be, strict=True)
    ]
