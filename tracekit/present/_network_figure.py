"""What crossed the network, NIC by NIC: how much, how full it was, and what nothing hid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl

from tracekit.present._columns import percent
from tracekit.present._configurations import not_shown
from tracekit.present._figures import (
    BLANK,
    BYTE_UNITS,
    MUTED,
    colour_scale,
    empty_figure,
    figure_layout,
    figure_text,
    legend_above,
    named_places,
    percent_bar,
    text_width,
    unit_of,
)
from tracekit.present._headlines import size_text

_MOST = 72
_WIDTH, _RIGHT, _EACH = 960, 120, 20
_LEAST_HIGH, _BAR_LENGTH = 100, 160
_GAP, _ROOM = 0.045, 1.75
_NIC = ["host", "nic", "evidence"]
_SHARES = ("utilisation", "share", "exposed_share")
_DIRECTIONS = {"out": ("sent", "sending"), "in": ("received", "receiving")}
_EXPOSED, _HIDDEN = "#AA4499", "#DDBBD6"
_HATCHED = {"shape": "x", "fgcolor": MUTED, "size": 7, "solidity": 0.2}


def network_figure(nics: pl.DataFrame, *, title: str, subtitle: str) -> go.Figure:
    """Return bars of what each NIC sent and received, and of how long.

    Bars of bytes have the colour of the utilisation while the NIC was busy; bars of time show the
    share of the recording in which data passed, and of that what no computing hid. The 72 NICs
    that carried most are drawn.

    Parameters
    ----------
    nics
        Rows of `links` by ``nic``: ``host``, ``nic`` (null where unknown), ``direction``,
        ``evidence``, ``bytes`` (or bounds of them), ``utilisation``, ``share`` and
        ``exposed_share``.
    title, subtitle
        Plain texts; see `figure_layout`.
    """
    if nics.is_empty():
        return empty_figure(title, subtitle, "nothing crossed a network")
    least, most = (
        pl.coalesce(name for name in ("bytes", bound) if name in nics.columns)
        for bound in ("least_bytes", "most_bytes")
    )
    rows = nics.cast({"evidence": pl.String, **dict.fromkeys(_SHARES, pl.Float64)})
    rows = rows.with_columns(least=least, shown=most)
    lines = rows.group_by(_NIC).agg(pl.col("shown").sum()).sort("shown", descending=True)
    kept = lines.head(_MOST).sort(_NIC, nulls_last=True).select(_NIC).with_row_index("place")
    rows = rows.join(kept, on=_NIC, nulls_equal=True).sort("place")
    names = [_name(*row) for row in kept.select(_NIC).rows()]
    figure = _panels(names, title, subtitle, _notes(rows, lines.height - kept.height))
    largest = max(rows["shown"].drop_nulls().to_list(), default=1)
    divisor, unit = unit_of(largest, BYTE_UNITS)
    for number, (direction, (verb, doing)) in enumerate(_DIRECTIONS.items()):
        own = rows.filter(direction=direction)
        figure.add_traces(_sizes(own, f"x{number + 1}", divisor))
        figure.add_traces(_times(own, f"x{number + 3}", is_first=not number))
        sizes = _axis(number, f"{verb} ({unit})", largest / divisor * _ROOM)
        times = _axis(number + 2, f"time {doing} (%)", 100)
        figure.update_layout({f"xaxis{number + 1}": sizes, f"xaxis{number + 3}": times})
    for bar in [each for each in figure.data if each.marker.showscale][1:]:
        bar.marker.showscale = False
    return figure


def _name(host: str | None, nic: str | None, evidence: str) -> str:
    mark = "" if evidence == "measured" else "*"
    return f"{host or 'unknown host'} {nic or 'NIC unknown'}{mark}"


def _panels(names: Sequence[str], title: str, subtitle: str, notes: Sequence[str]) -> go.Figure:
    """Return four panels beside each other, which share the names of NICs at the left."""
    height = max(_EACH * len(names), _LEAST_HIGH)
    layout = figure_layout(
        title, subtitle, width=_WIDTH, height=height + 112 + 62,
        margin={"l": text_width(names) + 40, "r": _RIGHT, "t": 112, "b": 62}, notes=notes,
    )  # fmt: skip
    figure = go.Figure(layout={**layout, "barmode": "stack", "bargap": 0.25})
    figure.update_layout(legend=legend_above(layout))
    figure.update_yaxes(named_places(names))
    return figure


def _axis(number: int, title: str, most: float) -> dict[str, Any]:
    each = (1 - 3 * _GAP) / 4
    start = number * (each + _GAP)
    place = {"domain": [start, start + each], "anchor": "y"}
    return {**place, "range": [0, most], "title": {"text": title}, "nticks": 4}


def _sizes(rows: pl.DataFrame, axis: str, divisor: int) -> list[go.Bar]:
    """Return bars of bytes, with the size and the utilisation beside them."""
    look: dict[str, Any] = {"orientation": "h", "xaxis": axis, "showlegend": False}
    bars = []
    for is_known in (True, False):
        own = rows.filter(pl.col("utilisation").is_not_null() == is_known)
        marker: dict[str, Any] = {"color": BLANK, "pattern": _HATCHED}
        if is_known:
            marker = {
                "color": (own["utilisation"].clip(0, 1) * 100).to_list(), "cmin": 0, "cmax": 100,
                "colorscale": colour_scale(), "showscale": True,
                "colorbar": percent_bar(24, _BAR_LENGTH),
            }  # fmt: skip
        bars.append(
            go.Bar(
                **look, y=own["place"].to_list(), x=(own["shown"] / divisor).to_list(),
                marker=marker, text=[_label(row) for row in own.to_dicts()],
                textposition="outside", textfont={"size": 11}, cliponaxis=False,
                hovertext=[_hover(row) for row in own.to_dicts()], hoverinfo="text",
            )
        )  # fmt: skip
    return [bar for bar in bars if len(bar.y)]


def _label(row: Mapping[str, Any]) -> str:
    if row["shown"] is None:
        return "?"
    size = size_text(row["shown"])
    if row["least"] is not None and row["least"] < row["shown"]:
        size = f"{size_text(row['least'])} to {size}"
    full = row["utilisation"]
    return figure_text(size if full is None else f"{size}, {full:.0%}")


def _hover(row: Mapping[str, Any]) -> str:
    full, busy, exposed = row["utilisation"], row["share"], row["exposed_share"]
    return "<br>".join(
        [
            f"<b>{figure_text(_name(row['host'], row['nic'], row['evidence']))}</b>",
            f"{_DIRECTIONS[row['direction']][0]}: {_label(row)}",
            "peak unknown" if full is None else f"{figure_text(percent(full))} full while busy",
            "busy: unknown" if busy is None else f"busy {figure_text(percent(busy))} of the time",
            "exposed: unknown" if exposed is None
            else f"{figure_text(percent(exposed))} of the time exposed",
        ]
    )  # fmt: skip


def _times(rows: pl.DataFrame, axis: str, *, is_first: bool) -> list[go.Bar]:
    """Return bars of the time in which data passed: what nothing hid, and the rest."""
    known = rows.drop_nulls(["share", "exposed_share"])
    exposed = known["exposed_share"] * 100
    parts = {
        "exposed: GPUs compute nothing meanwhile": (_EXPOSED, exposed),
        "hidden behind computing": (_HIDDEN, known["share"] * 100 - exposed),
    }
    return [
        go.Bar(
            orientation="h", xaxis=axis, y=known["place"].to_list(), x=values.to_list(),
            marker_color=colour, name=name, legendgroup=name, showlegend=is_first,
            hovertext=[_hover(row) for row in known.to_dicts()], hoverinfo="text",
        )
        for name, (colour, values) in parts.items()
    ]  # fmt: skip


def _notes(rows: pl.DataFrame, hidden: int) -> list[str]:
    notes = {
        "* modelled, not measured": (rows["evidence"] != "measured").any(),
        "exposed: at most what the network holds up, for kernels also wait for late ranks": True,
        "hatched: how much of the peak was used is unknown": rows["utilisation"].has_nulls(),
        "NICs are assumed to be those nearest to GPUs": (rows["nic_by"] == "nearest").any(),
    }
    return [note for note, applies in notes.items() if applies] + not_shown(hidden, "NICs")
