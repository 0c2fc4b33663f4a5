"""Figures of collectives and messages by size: latency, and number of messages."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log2, log10
from typing import Any

import plotly.graph_objects as go
import polars as pl

from tracekit.errors import UsageError
from tracekit.present._charts import SYMBOLS, common_note, label_of, series, series_figure, varying
from tracekit.present._figures import (
    SERIES_COLOURS,
    Heading,
    empty_figure,
    faint,
    figure_text,
    text_width,
)
from tracekit.support.wording import TIME_UNITS, count, duration, unit_of

NO_MESSAGES = "no messages of a known size"
"""Text of a figure that has no messages to show."""

_KEYS = ("run", "library", "operation")
_BANDS = (
    ("p5_ns", "p95_ns", "band: 5th to 95th percentile"),
    ("min_ns", "p95_ns", "band: shortest to 95th percentile"),
    ("min_ns", "max_ns", "band: shortest to longest"),
)
_BINARY = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
_MOST_SERIES = 12
_MOST_TICKS = 12
_FEW = 100
_MOST_BANDS = 4
_WIDEST_BAR = 90
_FEW_MESSAGES = 8
_WIDTH = 960
_SIDES = {"l": 84, "r": 40}


def latency_figure(table: pl.DataFrame, *, heading: Heading) -> go.Figure:
    """Return the latency of collectives by message size.

    One line per run, library and collective, at most 12, through the medians. If there are at most
    4 lines, each has a band from the 5th percentile (else the minimum) to the 95th percentile (else
    the maximum), as far as the table has these columns. Both axes are logarithmic.

    Parameters
    ----------
    table
        One row per line and size. Optional columns ``run``, ``library`` and ``operation`` identify
        the line. ``size_bytes`` is the size, or the lower end of its bucket; ``p50_ns`` the median;
        optionally ``p5_ns`` or ``min_ns`` and ``p95_ns`` or ``max_ns`` are the ends of the band.
        Rows whose size or median is null or not above 0 are not drawn; a note counts them.

    Raises
    ------
    UsageError
        If the table has size classes (ranges of sizes) instead of sizes.
    """
    if "size_bytes" not in table.columns:
        raise UsageError("classes of sizes cannot be drawn as a curve", "choose buckets of a size")
    drawn = table.filter(pl.col("size_bytes") > 0, pl.col("p50_ns") > 0)
    if drawn.is_empty():
        return empty_figure(heading, NO_MESSAGES)
    series, names, hidden = _series(drawn)
    low, high, band = _band(drawn) if len(series) <= _MOST_BANDS else (None, None, None)
    hollow = table.height - drawn.height
    figure = series_figure(
        names,
        heading=heading,
        notes=[
            *common_note(drawn, _KEYS),
            *([band] if band else []),
            *([f"not drawn: {hollow:,} with a size or a time of 0 or unknown"] if hollow else []),
            *hidden,
        ],
    )
    shown = pl.concat(series)
    if low and high:
        figure.add_traces([_spread(rows, place, low, high) for place, rows in enumerate(series)])
    figure.add_traces([_medians(rows, names, place) for place, rows in enumerate(series)])
    figure.update_xaxes(title_text="message size", **_size_axis(shown["size_bytes"].to_list()))
    times = [shown[name].drop_nulls().to_list() for name in ("p50_ns", low, high) if name]
    figure.update_yaxes(
        title_text="median latency", **_time_axis([each for row in times for each in row])
    )
    return figure


def _series(drawn: pl.DataFrame) -> tuple[list[pl.DataFrame], list[str], list[str]]:
    """Return the rows of each series drawn, names of the series, and a note on those left out."""
    keys = varying(drawn, _KEYS)
    if not keys:
        return [drawn.sort("size_bytes")], [], []
    series = [each.sort("size_bytes") for each in drawn.partition_by(keys, maintain_order=True)]
    names = [label_of(each.row(0, named=True), keys) for each in series[:_MOST_SERIES]]
    hidden = len(series) - len(names)
    return series[:_MOST_SERIES], names, [f"not shown: {hidden:,} more"] if hidden else []


def _band(drawn: pl.DataFrame) -> tuple[str, str, str] | tuple[None, None, None]:
    """Return the two columns of the band around the lines and its description; None if none."""
    for low, high, text in _BANDS:
        if {low, high} <= {*drawn.columns} and not drawn.drop_nulls([low, high]).is_empty():
            return low, high, text
    return None, None, None


def _colour(place: int) -> str:
    return SERIES_COLOURS[place % len(SERIES_COLOURS)]


def _medians(rows: pl.DataFrame, names: Sequence[str], place: int) -> go.Scatter:
    """Return the line through the median latencies of one series."""
    return series(
        rows["size_bytes"], rows["p50_ns"], colour=_colour(place), mode="lines+markers",
        marker={"symbol": SYMBOLS[place % len(SYMBOLS)]}, is_named=bool(names),
        name=names[place] if names else "median", group=str(place),
        hover=[
            f"{binary_size(size)}<br>median {duration(time)}"
            for size, time in rows.select("size_bytes", "p50_ns").iter_rows()
        ],
    )  # fmt: skip


def _spread(rows: pl.DataFrame, place: int, low: str, high: str) -> go.Scatter:
    """Return the band between two percentiles of one series; for a single size, a vertical line."""
    known = rows.filter((rows[low] > 0) & (rows[high] > 0))
    sizes, single = known["size_bytes"].to_list(), known.height == 1
    return go.Scatter(
        x=sizes + sizes[::-1],
        y=[*known[high], *known[low].reverse()],
        mode="lines",
        fill="none" if single else "toself",
        fillcolor=faint(_colour(place)),
        line={"width": 2 if single else 0, "color": _colour(place)},
        legendgroup=str(place),
        hoverinfo="skip",
        showlegend=False,
    )


def binary_size(size: int) -> str:
    """Return a message size in bytes as text with a binary unit, such as ``64 KiB``."""
    name, unit = next((each for each in _BINARY if size >= each[1]), _BINARY[-1])
    return f"{size / unit:.4g} {name}"


def _size_axis(sizes: Sequence[int]) -> dict[str, Any]:
    """Return a logarithmic axis of sizes, with labels at a limited number of powers of two."""
    first, last = floor(log2(min(sizes))), ceil(log2(max(sizes)))
    step = ceil((last - first + 1) / _MOST_TICKS)
    ticks = [2**power for power in range(first, last + 1, step)]
    room = 0.03 * (last - first) * log10(2) or 0.1
    return {
        "type": "log",
        "tickvals": ticks,
        "ticktext": [binary_size(tick) for tick in ticks],
        "range": [first * log10(2) - room, log10(max(sizes)) + room],
    }


def _time_axis(times: Sequence[float]) -> dict[str, Any]:
    """Return a logarithmic axis of times, each label with its unit."""
    known = [time for time in times if time > 0]
    low, high = min(known), max(known)
    few = high / low <= _FEW
    steps = (1, 2, 5) if few else (1,)
    powers = range(floor(log10(low)) - 1, ceil(log10(high)) + 2)
    ticks = [step * 10.0**power for power in powers for step in steps]
    first = max(tick for tick in ticks if tick < low)
    last = min(tick for tick in ticks if tick > high)
    room = 0.05 * (log10(high) - log10(low))
    ends = (first, last) if few else (low / 10**room, high * 10**room)
    return {
        "type": "log",
        "tickvals": ticks,
        "ticktext": [_round_time(tick) for tick in ticks],
        "range": [log10(end) for end in ends],
    }


def _round_time(time: float) -> str:
    divisor, unit = unit_of(time, TIME_UNITS)
    return f"{time / divisor:g} {unit}"


def histogram_figure(histogram: pl.DataFrame, *, heading: Heading) -> go.Figure:
    """Return a histogram of message sizes, with buckets from 2^k to below 2^(k+1).

    Parameters
    ----------
    histogram
        One row per series and bucket. Optional columns ``run``, ``library`` and ``operation``
        identify the series; ``size_bytes`` is the lower end of the bucket (0 for empty messages,
        null for messages of unknown size, which a note counts); ``count`` is the number of
        messages. At most 12 series are drawn.
    """
    drawn = histogram.filter(pl.col("size_bytes") >= 0, pl.col("count") > 0)
    if drawn.is_empty():
        return empty_figure(heading, NO_MESSAGES)
    series, names, hidden = _series(drawn)
    unknown = histogram.filter(pl.col("size_bytes").is_null())["count"].sum()
    figure = series_figure(
        names,
        heading=heading,
        notes=[
            *common_note(drawn, _KEYS),
            *(
                [f"not drawn: {count(int(unknown), 'message of an unknown size')}"]
                if unknown
                else []
            ),
            *hidden,
        ],
    )
    shown = pl.concat(series)["size_bytes"].to_list()
    first, last = min(map(_bucket, shown)), max(map(_bucket, shown))
    each = (_WIDTH - _SIDES["l"] - _SIDES["r"]) / (last - first + 1)
    gap = max(0.15, 1 - _WIDEST_BAR * len(series) / each)
    figure.update_layout(barmode="group", bargap=gap, bargroupgap=0.04)
    wide = each * (1 - gap) / len(series)
    for place, rows in enumerate(series):
        figure.add_trace(_counts(rows, names, place, wide))
    step = ceil((last - first + 1) / _MOST_TICKS)
    ticks = list(range(first, last + 1, step))
    figure.update_xaxes(
        title_text="message size, from", tickvals=ticks, showgrid=False,
        ticktext=[binary_size(2**tick if tick >= 0 else 0) for tick in ticks],
        range=[first - 0.5, last + 0.5],
    )  # fmt: skip
    integer_ticks = {"dtick": 1} if max(drawn["count"].to_list()) <= _FEW_MESSAGES else {}
    figure.update_yaxes(title_text="messages", rangemode="tozero", **integer_ticks)
    return figure


def _bucket(size: int) -> int:
    """Return the exponent k of the bucket [2^k, 2^(k+1)) of a size; below 0 for size 0."""
    return size.bit_length() - 1


def _counts(rows: pl.DataFrame, names: Sequence[str], place: int, wide: float) -> go.Bar:
    """Return the bars of one series, `wide` pixels wide."""
    counts, sizes = rows["count"].to_list(), rows["size_bytes"].to_list()
    texts = [f"{count:,}" for count in counts]
    return go.Bar(
        x=[_bucket(size) for size in sizes],
        y=counts,
        text=texts if text_width(texts, 11) <= wide else None,
        textposition="outside",
        textfont_size=11,
        constraintext="none",
        cliponaxis=False,
        marker={"color": _colour(place), "line": {"width": 0}},
        hoverinfo="text",
        hovertext=[
            f"{binary_size(size)} to below {binary_size(2 * size or 1)}<br>{text} messages"
            for size, text in zip(sizes, texts, strict=True)
        ],
        name=figure_text(names[place]) if names else "median",
        legendgroup=str(place),
    )
