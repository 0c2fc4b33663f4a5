"""Figures of traffic: between pairs of GPUs, on each link over time, and of each NIC."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go
import polars as pl

from tracekit.present._charts import not_shown
from tracekit.present._figures import (
    BLANK,
    MUTED,
    PLAIN_AXIS,
    Heading,
    colour_bar,
    colour_scale,
    decimals_of,
    empty_figure,
    figure_layout,
    figure_text,
    legend_above,
    named_places,
    percent_bar,
    text_width,
)
from tracekit.support.wording import (
    BYTE_UNITS,
    TIME_UNITS,
    count,
    duration,
    percent,
    printable,
    scaled,
    shorten,
    size_text,
    unit_of,
)

NO_TRANSFERS = "no transfers"
"""Text of a figure that has no transfers to show."""

_HOST = -1
_MOST_GPUS = 64
_MOST_NUMBERED = 20
_MOST_UPRIGHT = 10
_MARK = "*"
_COUNTED_COLOUR = "#882255"

_MOST_TRACKS = 40
_TRACK = 0.84
_TOPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares that the full height of a track may mean."""
_WIDEST_NAME = 32
_FAR = 10_000
_DEVICES = ["src_device", "dst_device"]
_ENDS = ("start", "end")
_DIRECTION = ["link", "src", "dst"]
_MODELLED_NOTE = f"{_MARK} modelled, not measured"


def matrix_figure(
    pairs: pl.DataFrame,
    *,
    heading: Heading,
    recorded: Collection[int] | None = None,
    unplaced: int = 0,
) -> go.Figure:
    """Return a heat map of the bytes that each GPU sent to each other GPU.

    Parameters
    ----------
    pairs
        One row per pair of devices, or several that are added up: ``src_device`` and ``dst_device``
        (null is the host), ``bytes`` (null if unknown), ``transfers``, ``evidence`` (``measured``
        or ``modelled``) and ``method``, the way of communication; optionally ``least_bytes`` and
        ``most_bytes``, the bounds of an inexact number.
    recorded
        Numbers of the GPUs that were recorded; None if all were. What other GPUs sent is unknown.
    unplaced
        Number of collectives that are assigned to no link, and so are in no cell.
    """
    if pairs.is_empty():
        return empty_figure(heading, _nothing(unplaced))
    cells = _cells(pairs)
    devices = _devices(cells)
    side = min(max(len(devices) * 84, 240), 680)
    unit = unit_of(max((cell.most for cell in cells), default=0), BYTE_UNITS)
    margin = {"l": 100, "r": 136, "t": 144 if len(devices) <= _MOST_UPRIGHT else 172, "b": 36}
    figure = go.Figure(
        layout=figure_layout(
            heading,
            width=max(side + margin["l"] + margin["r"], 560),
            height=side + margin["t"] + margin["b"],
            margin={**margin, "r": max(margin["r"], 560 - side - margin["l"])},
            notes=[
                *_matrix_notes(cells),
                *_missing_notes(devices, recorded, unplaced),
            ],
        )
    )
    figure.add_traces([_blanks(devices, recorded), _heat(cells, devices, unit)])
    _label_unknown(figure, cells, devices)
    _matrix_axes(figure, devices)
    return figure


def _nothing(unplaced: int) -> str:
    return count(unplaced, "collective of unknown ends or sizes") if unplaced else NO_TRANSFERS


class _Cell(NamedTuple):
    """Bytes that one device sent to another."""

    src: int
    dst: int
    bytes: int
    """Known bytes; the lower bound if only bounds are known."""
    most: int
    unknown: bool
    """Whether some transfers have unknown bytes."""
    transfers: int | None
    modelled: bool
    methods: str


def _cells(pairs: pl.DataFrame) -> list[_Cell]:
    """Return one cell per pair of devices; the host has the number `_HOST`."""
    src, dst = (pl.col(name).cast(pl.Int64).fill_null(_HOST) for name in _DEVICES)
    known, most = (
        pl.coalesce(each for each in ("bytes", name) if each in pairs.columns)
        .cast(pl.Int64)
        .alias(alias)
        for name, alias in (("least_bytes", "bytes"), ("most_bytes", "most"))
    )
    return [
        _Cell(*row)
        for row in pairs.group_by(src, dst)
        .agg(
            known.sum(),
            most.sum(),
            unknown=known.is_null().any(),
            transfers=_sum_of_known("transfers", pl.Int64()),
            modelled=(pl.col("evidence").cast(pl.String) != "measured").any(),
            methods=pl.col("method").cast(pl.String).drop_nulls().unique().sort().str.join(", "),
        )
        .sort(_DEVICES)
        .iter_rows()
    ]


def _devices(cells: Sequence[_Cell]) -> list[int]:
    """Return the devices on both axes: all GPUs from lowest to highest number, then the host."""
    found = {device for cell in cells for device in (cell.src, cell.dst)}
    gpus = sorted(found - {_HOST})
    # Numbers that lie far apart are no row of GPUs.
    if gpus and gpus[-1] - gpus[0] < _MOST_GPUS:
        gpus = list(range(gpus[0], gpus[-1] + 1))
    return gpus + [_HOST] * (_HOST in found)


def _name(device: int) -> str:
    return "host" if device == _HOST else f"GPU {device}"


def _blanks(devices: Sequence[int], recorded: Collection[int] | None) -> go.Heatmap:
    """Return pale cells for all pairs of different devices, drawn below the cells with traffic.

    A GPU that was not recorded gets none as a sender, since its traffic is unknown.
    """

    def is_known(src: int, dst: int) -> bool:
        return recorded is None or (dst if src == _HOST else src) in recorded

    places = range(len(devices))
    return go.Heatmap(
        x=list(places),
        y=list(places),
        z=[
            [None if src == dst or not is_known(src, dst) else 0 for dst in devices]
            for src in devices
        ],
        colorscale=[(0, BLANK), (1, BLANK)],
        showscale=False,
        hoverinfo="text",
        hovertext=[
            [
                f"{_name(src)} → {_name(dst)}<br>"
                f"{NO_TRANSFERS if is_known(src, dst) else 'not recorded'}"
                for dst in devices
            ]
            for src in devices
        ],
        xgap=2,
        ygap=2,
    )


def _heat(cells: Sequence[_Cell], devices: Sequence[int], unit: tuple[int, str]) -> go.Heatmap:
    divisor, name = unit
    shown = [cell for cell in cells if cell.most]
    size = range(len(devices))
    z: list[list[float | None]] = [[None for _ in size] for _ in size]
    text, hover = ([["" for _ in size] for _ in size] for _ in range(2))
    decimals = decimals_of(max((cell.most for cell in shown), default=0) / divisor)
    for cell in shown:
        row, column = devices.index(cell.src), devices.index(cell.dst)
        z[row][column] = cell.most / divisor
        text[row][column] = _cell_text(cell, divisor, decimals)
        hover[row][column] = _cell_hover(cell)
    return go.Heatmap(
        x=list(range(len(devices))),
        y=list(range(len(devices))),
        z=z,
        text=text,
        texttemplate="%{text}" if len(devices) <= _MOST_NUMBERED else None,
        textfont={"size": 13 if len(devices) <= _MOST_UPRIGHT else 10},
        hoverinfo="text",
        hovertext=hover,
        hoverongaps=False,
        colorscale=colour_scale(),
        zmin=0,
        zmax=max((cell.most for cell in shown), default=0) / divisor,
        showscale=bool(shown),
        colorbar=colour_bar(f"sent ({name})"),
        xgap=2,
        ygap=2,
    )


def _cell_text(cell: _Cell, divisor: int, decimals: int) -> str:
    bounds = [cell.bytes, cell.most] if cell.most > cell.bytes else [cell.bytes]
    number = " to ".join(scaled(bounds, divisor, decimals if divisor > 1 else 0))
    more, mark = "≥" if cell.unknown else "", _MARK if cell.modelled else ""
    return f"{more}{figure_text(number)}{mark}"


def _cell_hover(cell: _Cell) -> str:
    upto = f" to {cell.most:,}" if cell.most > cell.bytes else ""
    known = f"{cell.bytes:,}{upto} bytes" if cell.most or not cell.unknown else ""
    unknown = "some unknown" if known else "bytes unknown"
    transfers = None if cell.transfers is None else f"{cell.transfers:,} transfers"
    lines = [
        f"<b>{_name(cell.src)} → {_name(cell.dst)}</b>",
        known,
        unknown if cell.unknown else "",
        transfers,
        figure_text(cell.methods),
        "modelled" if cell.modelled else "measured",
    ]
    return "<br>".join(line for line in lines if line)


def _label_unknown(figure: go.Figure, cells: Sequence[_Cell], devices: Sequence[int]) -> None:
    """Mark cells with transfers of unknown size by a question mark."""
    unknown = [cell for cell in cells if cell.unknown and not cell.most]
    figure.add_trace(
        go.Scatter(
            x=[devices.index(cell.dst) for cell in unknown],
            y=[devices.index(cell.src) for cell in unknown],
            text=[f"?{_MARK if cell.modelled else ''}" for cell in unknown],
            hovertext=[_cell_hover(cell) for cell in unknown],
            hoverinfo="text",
            mode="text",
            showlegend=False,
        )
    )


def _matrix_axes(figure: go.Figure, devices: Sequence[int]) -> None:
    look = named_places([_name(each) for each in devices])
    figure.update_yaxes(**look, title_text="from")
    look["range"] = look["range"][::-1]
    angle = 0 if len(devices) <= _MOST_UPRIGHT else -90
    figure.update_xaxes(**look, side="top", title_text="to", tickangle=angle)


def _matrix_notes(cells: Sequence[_Cell]) -> list[str]:
    notes = {
        _MODELLED_NOTE: any(cell.modelled for cell in cells),
        "a to b: bounds by the possible algorithms; coloured by the larger": any(
            cell.most > cell.bytes for cell in cells
        ),
        "? bytes unknown; ≥ bytes of some transfers unknown": any(cell.unknown for cell in cells),
    }
    return [note for note, applies in notes.items() if applies]


def _missing_notes(
    devices: Sequence[int], recorded: Collection[int] | None, unplaced: int
) -> list[str]:
    """Return notes on traffic missing from the figure: of `unplaced` collectives, of other GPUs."""
    lost = [device for device in devices if device not in {_HOST, *(recorded or devices)}]
    notes = {
        f"not recorded, traffic unknown: {count(len(lost), 'GPU')}": bool(lost),
        f"in no cell: {count(unplaced, 'collective of unknown ends or sizes')}": unplaced > 0,
    }
    return [note for note, applies in notes.items() if applies]


def utilisation_figure(timeline: pl.DataFrame, *, heading: Heading, unplaced: int = 0) -> go.Figure:
    """Return the utilisation of links over time, one track per link and direction.

    In each interval a bar shows the share of the link's peak that was in use, by its darkness and
    its height; the full height of a track is a round percentage that no value exceeds. The forty
    tracks that carried most bytes are drawn; a note gives the number left out.

    Parameters
    ----------
    timeline
        ``link``, ``src`` and ``dst`` (nodes of the direction), ``start_ns``, ``end_ns``, ``bytes``,
        ``utilisation`` (0 to 1, null if unknown), ``evidence``, and optionally
        ``counted_utilisation`` (by hardware counters), drawn as a line. Rows of the same link,
        direction and interval are added up.
    unplaced
        Number of collectives that are assigned to no link.
    """
    if timeline.is_empty():
        return empty_figure(heading, _nothing(unplaced))
    spans, names, hidden = _spans(timeline)
    spans, axis_title = _with_clock(spans)
    top = _top(spans)
    height = round(min(max(560 / len(names), 24), 120))
    layout = figure_layout(
        heading,
        height=height * len(names) + 156,
        margin={"l": 44 + round(7.2 * max(map(len, names))), "r": 176, "t": 94, "b": 62},
        notes=_track_notes(spans, hidden, top),
    )
    figure = go.Figure(layout={**layout, "barmode": "overlay", "showlegend": False})
    bar_length = min(height * len(names), 200)
    figure.add_traces(
        [_bars(spans, names, bar_length, top), _unknown_bars(spans, names), _counted(spans, top)]
    )
    figure.update_xaxes(title_text=axis_title, range=[spans["start"].min(), spans["end"].max()])
    _label_tracks(figure, spans, names)
    return figure


def _spans(timeline: pl.DataFrame) -> tuple[pl.DataFrame, list[str], int]:
    """Return the intervals of the tracks, the names of the tracks, and the number left out.

    An interval has the ``place`` of its track (0 is the lowest), ``start_ns``, ``end_ns``,
    ``bytes``, ``utilisation``, ``counted`` and ``modelled``.
    """
    counted = "counted_utilisation" if "counted_utilisation" in timeline.columns else None
    spans = (
        timeline.with_columns(pl.col(_DIRECTION).cast(pl.String).fill_null("?"))
        .group_by(*_DIRECTION, "start_ns", "end_ns")
        .agg(
            bytes=_sum_of_known("bytes", pl.Int64()),
            utilisation=_sum_of_known("utilisation", pl.Float64()),
            counted=_sum_of_known(counted, pl.Float64()) if counted else pl.lit(None, pl.Float64),
            modelled=(pl.col("evidence").cast(pl.String) != "measured").any(),
        )
    )
    busiest = spans.group_by(_DIRECTION).agg(pl.col("bytes").sum()).sort(
        "bytes", *_DIRECTION, descending=[True, False, False, False]
    )  # fmt: skip
    shown = sorted(busiest.head(_MOST_TRACKS).select(_DIRECTION).iter_rows(), key=_natural)[::-1]
    places = pl.DataFrame(shown, dict.fromkeys(_DIRECTION, pl.String), orient="row")
    spans = spans.join(places.with_row_index("place"), on=_DIRECTION).sort("place", "start_ns")
    names = [shorten(printable(f"{src} → {dst}"), _WIDEST_NAME) for _, src, dst in shown]
    return spans, names, busiest.height - len(shown)


def _top(spans: pl.DataFrame) -> float:
    """Return the upper end of the tracks: the round number just above the highest utilisation."""
    shares = [spans[name].max() for name in ("utilisation", "counted")]
    most = max((float(share) for share in shares if share is not None), default=1.0)  # type: ignore[arg-type]
    return next((top for top in _TOPS if top >= most), 1.0)


def _sum_of_known(column: str, dtype: pl.DataType) -> pl.Expr:
    """Return the sum of a group's known values; null if all are unknown."""
    known = pl.col(column).cast(dtype)
    known = known.fill_nan(None) if dtype.is_float() else known
    return pl.when(known.is_not_null().any()).then(known.sum())


def _natural(names: Sequence[str]) -> list[str]:
    """Return sort keys that order numbers within names by value: GPU2 before GPU10."""
    return [re.sub(r"\d+", lambda digits: digits[0].zfill(12), name) for name in names]


def _with_clock(spans: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Add ``start`` and ``end`` in a unit that suits the intervals; return also the axis title."""
    first, last = spans.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    length = max(last - first, 1)
    divisor, unit = unit_of(length, TIME_UNITS)
    # Far from its zero, the labels of a short time would all be the same long number.
    origin = first if first > _FAR * length else 0
    since = f" since {duration(origin)}" if origin else ""
    start, end = ((pl.col(f"{end}_ns") - origin).cast(pl.Float64) / divisor for end in _ENDS)
    return spans.with_columns(start=start, end=end), f"time{since} ({unit})"


def _bars(spans: pl.DataFrame, names: Sequence[str], length: int, top: float) -> go.Bar:
    """Return the bars of all tracks (full height: `top`), darker with a higher utilisation."""
    used = spans.filter(pl.col("utilisation") > 0)
    share = used["utilisation"].clip(0, 1)
    hatches = {
        "shape": ["/" if each else "" for each in used["modelled"]],
        "fillmode": "overlay", "fgcolor": "white", "size": 7, "solidity": 0.25,
    }  # fmt: skip
    marker = {
        "color": (share * 100).to_list(),
        "colorscale": colour_scale(),
        "cmin": 0,
        "cmax": 100,
        "line": {"width": 0},
        "showscale": True,
        "colorbar": percent_bar(84, length),
        **({"pattern": hatches} if used["modelled"].any() else {}),
    }
    return go.Bar(
        **_placed(used, ((share / top).clip(0, 1) * _TRACK).to_list(), names), marker=marker
    )


def _unknown_bars(spans: pl.DataFrame, names: Sequence[str]) -> go.Bar:
    """Return hatched bars where a link carried data at an unknown utilisation."""
    unknown = spans.filter(_is_unknown())
    pattern = {"shape": "x", "fgcolor": MUTED, "size": 7, "solidity": 0.2}
    marker = {"color": BLANK, "line": {"width": 0}, "pattern": pattern}
    return go.Bar(**_placed(unknown, [_TRACK] * unknown.height, names), marker=marker)


def _is_unknown() -> pl.Expr:
    return pl.col("utilisation").is_null() & (pl.col("bytes").fill_null(1) > 0)


def _placed(spans: pl.DataFrame, heights: list[float], names: Sequence[str]) -> dict[str, Any]:
    """Return positions and hover texts of the bars for the intervals `spans`."""
    lengths = spans["end"] - spans["start"]
    return {
        "x": (spans["start"] + lengths / 2).to_list(),
        "width": lengths.to_list(),
        "base": spans["place"].to_list(),
        "y": heights,
        "hoverinfo": "text",
        "hovertext": [_span_hover(row, names) for row in spans.iter_rows(named=True)],
    }


def _span_hover(span: dict[str, Any], names: Sequence[str]) -> str:
    used, counted = span["utilisation"], span["counted"]
    return "<br>".join(
        [
            f"<b>{figure_text(names[span['place']])}</b>",
            f"{duration(span['start_ns'])} to {duration(span['end_ns'])}",
            "bytes unknown" if span["bytes"] is None else f"{span['bytes']:,} bytes",
            "utilisation unknown" if used is None else f"{figure_text(percent(used))} of the peak",
            *([] if counted is None else [f"counted {figure_text(percent(counted))}"]),
            "modelled" if span["modelled"] else "measured",
        ]
    )


def _counted(spans: pl.DataFrame, top: float) -> go.Scatter:
    """Return the utilisation by counters as a line (full height: `top`), with gaps if unsampled."""
    known = spans.filter(pl.col("counted").is_not_null())
    x: list[float | None] = []
    y: list[float | None] = []
    before = None
    for place, start, end, share in known.select("place", "start", "end", "counted").iter_rows():
        if before is not None and before != (place, start):
            x.append(None)
            y.append(None)
        x += [start, end]
        y += [place + min(max(share / top, 0.0), 1.0) * _TRACK] * 2
        before = place, end
    line = {"color": _COUNTED_COLOUR, "width": 1.5, "simplify": False}
    return go.Scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip")


def _label_tracks(figure: go.Figure, spans: pl.DataFrame, names: Sequence[str]) -> None:
    """Give each track a background, its name on the left, its highest utilisation on the right."""
    peaks = dict(spans.group_by("place").agg(pl.col("utilisation").max()).iter_rows())
    for place in range(len(names)):
        figure.add_shape(
            type="rect", layer="below", fillcolor=BLANK, line_width=0,
            xref="paper", x0=0, x1=1, y0=place, y1=place + _TRACK,
        )  # fmt: skip
        peak = peaks.get(place)
        figure.add_annotation(
            text="unknown" if peak is None else figure_text(percent(peak)), showarrow=False,
            xref="paper", x=1, xanchor="right", xshift=66, y=place + _TRACK / 2, font_size=12,
        )  # fmt: skip
    figure.add_annotation(
        text="highest", showarrow=False, font={"size": 12, "color": MUTED},
        xref="paper", x=1, xanchor="right", xshift=66, y=len(names) - 1 + _TRACK, yanchor="bottom",
    )  # fmt: skip
    figure.update_yaxes(
        tickvals=[place + _TRACK / 2 for place in range(len(names))],
        ticktext=[figure_text(name) for name in names],
        range=[_TRACK - 1, len(names)], **PLAIN_AXIS,
    )  # fmt: skip


def _track_notes(spans: pl.DataFrame, hidden: int, top: float) -> list[str]:
    notes = {
        f"full height: {100 * top:g} % of the peak of a link, in one direction": True,
        "line: counted by the hardware": spans["counted"].is_not_null().any(),
        "hatched: modelled, not measured": spans["modelled"].any(),
        "crossed: the link was used, how much of its peak is unknown": spans.filter(
            _is_unknown()
        ).height,
        f"not shown: {hidden:,} directions of links that carried less": hidden,
    }
    return [note for note, applies in notes.items() if applies]


_MOST = 72
_WIDTH, _RIGHT, _EACH = 960, 120, 20
_LEAST_HIGH, _BAR_LENGTH = 100, 160
_GAP, _ROOM = 0.045, 1.75
_NIC = ["host", "nic", "evidence"]
_SHARES = ("utilisation", "share", "exposed_share")
_DIRECTIONS = {"out": ("sent", "sending"), "in": ("received", "receiving")}
_EXPOSED, _HIDDEN = "#AA4499", "#DDBBD6"
_HATCHED = {"shape": "x", "fgcolor": MUTED, "size": 7, "solidity": 0.2}


def network_figure(nics: pl.DataFrame, *, heading: Heading) -> go.Figure:
    """Return bars of the bytes that each NIC sent and received, and of the time that they took.

    The colour of a bar of bytes is the utilisation while the NIC was busy. Bars of time show the
    share of the recording in which data passed, and the part that no computing hid. The 72 NICs
    that carried most are drawn.

    Parameters
    ----------
    nics
        Rows of `links` by ``nic``: ``host``, ``nic`` (null if unknown), ``direction``,
        ``evidence``, ``bytes`` (or its bounds), ``utilisation``, ``share`` and ``exposed_share``.
    """
    if nics.is_empty():
        return empty_figure(heading, "nothing crossed a network")
    least, most = (
        pl.coalesce(name for name in ("bytes", bound) if name in nics.columns)
        for bound in ("least_bytes", "most_bytes")
    )
    rows = nics.cast({"evidence": pl.String, **dict.fromkeys(_SHARES, pl.Float64)})
    rows = rows.with_columns(least=least, shown=most)
    lines = rows.group_by(_NIC).agg(pl.col("shown").sum()).sort("shown", descending=True)
    kept = lines.head(_MOST).sort(_NIC, nulls_last=True).select(_NIC).with_row_index("place")
    rows = rows.join(kept, on=_NIC, nulls_equal=True).sort("place")
    names = [_end_name(*row) for row in kept.select(_NIC).rows()]
    figure = _panels(names, heading, _notes(rows, lines.height - kept.height))
    largest = max(rows["shown"].drop_nulls().to_list(), default=1)
    divisor, unit = unit_of(largest, BYTE_UNITS)
    for number, (direction, (verb, doing)) in enumerate(_DIRECTIONS.items()):
        of_direction = rows.filter(direction=direction)
        figure.add_traces(_sizes(of_direction, f"x{number + 1}", divisor))
        figure.add_traces(_times(of_direction, f"x{number + 3}", is_first=not number))
        sizes = _axis(number, f"{verb} ({unit})", largest / divisor * _ROOM)
        times = _axis(number + 2, f"time {doing} (%)", 100)
        figure.update_layout({f"xaxis{number + 1}": sizes, f"xaxis{number + 3}": times})
    for bar in [each for each in figure.data if each.marker.showscale][1:]:
        bar.marker.showscale = False
    return figure


def _end_name(host: str | None, nic: str | None, evidence: str) -> str:
    mark = "" if evidence == "measured" else "*"
    return f"{host or 'unknown host'} {nic or 'NIC unknown'}{mark}"


def _panels(names: Sequence[str], heading: Heading, notes: Sequence[str]) -> go.Figure:
    """Return a figure of four empty plots side by side, with the names of NICs on the left."""
    height = max(_EACH * len(names), _LEAST_HIGH)
    layout = figure_layout(
        heading, width=_WIDTH, height=height + 112 + 62,
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
    """Return bars of bytes in units of `divisor`, labelled with size and utilisation."""
    look: dict[str, Any] = {"orientation": "h", "xaxis": axis, "showlegend": False}
    bars = []
    for is_known in (True, False):
        shown = rows.filter(pl.col("utilisation").is_not_null() == is_known)
        marker: dict[str, Any] = {"color": BLANK, "pattern": _HATCHED}
        if is_known:
            marker = {
                "color": (shown["utilisation"].clip(0, 1) * 100).to_list(), "cmin": 0, "cmax": 100,
                "colorscale": colour_scale(), "showscale": True,
                "colorbar": percent_bar(24, _BAR_LENGTH),
            }  # fmt: skip
        bars.append(
            go.Bar(
                **look, y=shown["place"].to_list(), x=(shown["shown"] / divisor).to_list(),
                marker=marker, text=[_label(row) for row in shown.to_dicts()],
                textposition="outside", textfont={"size": 11}, cliponaxis=False,
                hovertext=[_hover(row) for row in shown.to_dicts()], hoverinfo="text",
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
            f"<b>{figure_text(_end_name(row['host'], row['nic'], row['evidence']))}</b>",
            f"{_DIRECTIONS[row['direction']][0]}: {_label(row)}",
            "peak unknown" if full is None else f"{figure_text(percent(full))} full while busy",
            "busy: unknown" if busy is None else f"busy {figure_text(percent(busy))} of the time",
            "exposed: unknown" if exposed is None
            else f"{figure_text(percent(exposed))} of the time exposed",
        ]
    )  # fmt: skip


def _times(rows: pl.DataFrame, axis: str, *, is_first: bool) -> list[go.Bar]:
    """Return bars of the time in which data passed: the exposed part, and the rest."""
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
        "exposed: an upper bound of the network's delay, as kernels also wait for late ranks": True,
        "hatched: how much of the peak was used is unknown": rows["utilisation"].has_nulls(),
        "NICs are assumed to be those nearest to GPUs": (rows["nic_by"] == "nearest").any(),
    }
    return [note for note, applies in notes.items() if applies] + not_shown(hidden, "NICs")
