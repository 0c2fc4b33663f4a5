"""Drawing of a machine: its GPUs, the links between them, and the utilisation of the links."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go
import polars as pl

from tracekit.machine import Machine
from tracekit.present._figures import (
    INK,
    MUTED,
    Heading,
    colour_at,
    colour_scale,
    empty_figure,
    figure_layout,
    figure_text,
    percent_bar,
)
from tracekit.present._machine_layout import Box, Drawing, Point, Wire, machine_layout
from tracekit.support.wording import count, percent

_UNUSED = "#C3CCD5"
_UNKNOWN = INK
_TYPES = {
    "nvlink": ("NVLink", "#117733", "solid"),
    "xgmi": ("xGMI", "#117733", "solid"),
    "c2c": ("NVLink-C2C", "#AA4499", "solid"),
    "pcie": ("PCIe", "#8494A3", "solid"),
    "socket": ("between sockets", "#DDAA33", "dash"),
    "network": ("network", "#56B4E9", "dot"),
}
_WIDTHS = {"c2c": 5.0, "pcie": 2.0, "socket": 3.0, "network": 2.0}
_FILLS = {
    "gpu": (INK, "white"),
    "nvswitch": ("#D3EBE3", INK),
    "pcie": ("#E9EDF1", INK),
    "host": ("#D5DDE5", INK),
    "nic": ("white", MUTED),
    "fabric": ("#DCEEF9", INK),
}
_ROUND = {"gpu": 9, "nic": 9}
_MOST_LABELLED = 16
_LABEL_AT, _ARROW_AT = 0.36, 0.68
_LEAST_WIDTH, _LEAST_HEIGHT, _LEAST_WITH_BAR = 420, 130, 290
_MARGIN = {"l": 40, "r": 232, "t": 104, "b": 44}
_MOST_NAMED = 4
_BOTH_WAYS = 2


def machine_figure(
    machine: Machine,
    links: pl.DataFrame | None = None,
    *,
    heading: Heading,
    unplaced: int = 0,
) -> go.Figure:
    """Return a drawing of a machine, its links coloured by their utilisation.

    Without `links` the colours show the types of the links. The width of an NVLink shows its number
    of bricks.

    Parameters
    ----------
    links
        Traffic of the links, one or more rows per link and direction: ``link``, ``src`` and ``dst``
        (nodes of the direction), ``utilisation`` (0 to 1, null if unknown), ``bytes``,
        ``achieved_gb_s``, ``peak_gb_s`` and ``evidence``; optionally bounds of bytes and
        utilisation, prefixed ``least_`` and ``most_``. Of several rows for one direction, the
        highest utilisation (or upper bound) gives the colour.
    unplaced
        Number of collectives that are assigned to no link, so that their traffic is unknown.
    """
    drawing = machine_layout(machine)
    if not drawing.boxes:
        return empty_figure(heading, "no machine")
    flows = _flows(drawing, [] if links is None else links.to_dicts())
    left, width, bottom, height = _frame(drawing, _LEAST_WITH_BAR if flows else _LEAST_HEIGHT)
    layout = figure_layout(
        heading,
        width=width + _MARGIN["l"] + _MARGIN["r"],
        height=height + _MARGIN["t"] + _MARGIN["b"],
        margin=_MARGIN,
        notes=_notes(drawing, flows, links, unplaced),
    )
    figure = go.Figure(layout=layout)
    figure.update_xaxes(visible=False, range=[left, left + width], constrain="domain")
    figure.update_yaxes(visible=False, range=[bottom, bottom + height], scaleanchor="x")
    figure.add_traces(_wire_traces(drawing.wires, flows, unplaced, is_plain=links is None))
    figure.add_traces([trace for flow in flows for trace in _flow_traces(flow)])
    note = "" if links is None else "<br>traffic unknown" if unplaced else "<br>not used"
    figure.add_traces([_arrows(flows), _hovers(machine, drawing, flows, note)])
    if flows:
        figure.add_trace(_bar())
    _draw_boxes(figure, dict.fromkeys(drawing.boxes.values()))
    if len(flows) <= _MOST_LABELLED:
        _label_flows(figure, flows)
    figure.update_layout(legend={"x": 1.0, "xanchor": "left", "y": 1.0, "yanchor": "top"})
    return figure


class _Flow(NamedTuple):
    """Traffic in one direction between two boxes (GPUs, switches) that a wire joins."""

    wire: Wire
    points: tuple[Point, ...]
    """The line in the direction of the flow, beside the middle of the wire."""
    rows: list[Mapping[str, Any]]

    @property
    def share(self) -> float | None:
        """Highest utilisation (or upper bound of it) among the flow's rows; None if unknown."""
        return self._fullest("most_utilisation")

    @property
    def least(self) -> float | None:
        """Highest lower bound of utilisation among the flow's rows; None if all are unknown."""
        return self._fullest("least_utilisation")

    def _fullest(self, bound: str) -> float | None:
        shares = [_either(row, "utilisation", bound) for row in self.rows]
        return max((s for s in shares if s is not None and not math.isnan(s)), default=None)

    @property
    def colour(self) -> str:
        return _UNKNOWN if self.share is None else colour_at(self.share)

    @property
    def is_modelled(self) -> bool:
        return any(row["evidence"] != "measured" for row in self.rows)


def _either(row: Mapping[str, Any], name: str, bound: str) -> Any:
    """Return the value `name` of a row or, if it is unknown, the value of its bound `bound`."""
    return row.get(bound) if row[name] is None else row[name]


def _flows(drawing: Drawing, rows: Iterable[Mapping[str, Any]]) -> list[_Flow]:
    """Return the traffic of each wire (line of links between two boxes), by direction."""
    places = {end: place for place, wire in enumerate(drawing.wires) for end in _directions(wire)}
    used: dict[tuple[int, bool], list[Mapping[str, Any]]] = {}
    for row in rows:
        place = places.get((row["src"], row["dst"]))
        if place is not None and (row["bytes"] or row["utilisation"] or row["bytes"] is None):
            is_onward = row["src"] in drawing.wires[place].ends[0].nodes
            used.setdefault((place, is_onward), []).append(row)
    return [
        _Flow(wire := drawing.wires[place], _beside(wire, is_onward=is_onward), group)
        for (place, is_onward), group in sorted(used.items(), key=lambda item: item[0])
    ]


def _directions(wire: Wire) -> list[tuple[str, str]]:
    pairs = [link.ends for link in wire.links]
    return pairs + [(dst, src) for src, dst in pairs]


def _beside(wire: Wire, *, is_onward: bool) -> tuple[Point, ...]:
    """Return the line for traffic beside a wire between boxes, onward (`is_onward`) or back."""
    points = wire.points if is_onward else wire.points[::-1]
    (x0, y0), (x1, y1) = points[0], points[-1]
    length = math.hypot(x1 - x0, y1 - y0) or 1.0
    aside = _lane(wire) / 2 + 0.75
    dx, dy = (y1 - y0) / length * aside, (x0 - x1) / length * aside
    return tuple((x + dx, y + dy) for x, y in points)


def _lane(wire: Wire) -> float:
    """Return the width, in pixels, of the line for traffic in one direction on a wire."""
    return max(0.7 * _width(wire), 3.0)


def _width(wire: Wire) -> float:
    """Return the width, in pixels, of the line for the links between two boxes (a wire)."""
    link = wire.links[0]
    if not link.is_peer:
        return _WIDTHS.get(link.type, 2.0)
    return min(1.0 + 2.0 * _bricks(wire), 9.0)


def _bricks(wire: Wire) -> int:
    return sum(link.bricks or 1 for link in wire.links)


def _frame(drawing: Drawing, least: int) -> tuple[float, int, float, int]:
    """Return left edge, width, lower edge and height of the drawing, with margins."""
    x0, x1, y0, y1 = drawing.bounds
    arcs = [y for wire in drawing.wires for _, y in wire.points]
    y0, y1 = min([y0, *arcs]) - 12, max([y1, *arcs]) + 12
    width, height = max(round(x1 - x0) + 24, _LEAST_WIDTH), max(round(y1 - y0), least)
    return (x0 + x1 - width) / 2, width, y1 - height, height


def _wire_traces(
    wires: Sequence[Wire], flows: Sequence[_Flow], unplaced: int, *, is_plain: bool
) -> list[go.Scatter]:
    """Return the lines of wires that lack traffic in a direction, one trace per type and width.

    A wire is the links between two boxes.
    """
    alike: dict[tuple[str, float], list[Wire]] = {}
    for wire in wires:
        alike.setdefault((_label(wire), _width(wire)), []).append(wire)
    used = Counter(id(flow.wire) for flow in flows)
    groups = sorted(alike.items(), key=lambda item: _order(item[1][0]))
    traces = []
    for rank, ((label, width), group) in enumerate(groups):
        _, colour, dash = _TYPES[group[0].links[0].type]
        line = {"color": colour if is_plain else _UNUSED, "width": width, "dash": dash}
        unused = [wire.points for wire in group if used[id(wire)] < _BOTH_WAYS]
        line |= {"color": MUTED, "dash": "dot"} if unplaced and unused else {}
        x, y = _joined(unused)
        look = {"mode": "lines", "line": line, "hoverinfo": "skip", "legendrank": rank}
        traces.append(go.Scatter(x=x, y=y, name=figure_text(label), showlegend=True, **look))
    return traces[::-1]


def _order(wire: Wire) -> tuple[int, float]:
    return list(_TYPES).index(wire.links[0].type), _width(wire)


def _label(wire: Wire) -> str:
    """Return the legend's text for links between two boxes (a wire): number, type and peak."""
    name = _TYPES[wire.links[0].type][0]
    if wire.links[0].is_peer:
        bricks = _bricks(wire)
        name = f"{bricks} {name}{'' if bricks == 1 else 's'}"
    peaks = [link.bandwidth for link in wire.links]
    known = [peak for peak in peaks if peak]
    return (
        f"{name}, {round(sum(known) / 1e9, 1):,g} GB/s"
        if known and len(known) == len(peaks)
        else name
    )


def _joined(lines: Sequence[Sequence[Point]]) -> tuple[list[float | None], list[float | None]]:
    """Return lines as the coordinates of one trace, with a gap after each line."""
    x = [x for line in lines for x in [*(point[0] for point in line), None]]
    y = [y for line in lines for y in [*(point[1] for point in line), None]]
    # A trace without any point would be left out of the legend.
    return x or [None], y or [None]


def _flow_traces(flow: _Flow) -> list[go.Scatter]:
    """Return a flow as a line in its colour; modelled traffic is dashed."""
    x, y = _joined([flow.points])
    line = {
        "color": flow.colour,
        "width": _lane(flow.wire),
        "dash": "7px,3px" if flow.is_modelled else "solid",
    }
    return [go.Scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", showlegend=False)]


def _at(points: Sequence[Point], part: float) -> tuple[float, float, float]:
    """Return the point at fraction `part` of a line, and its angle there (degrees from up)."""
    place = part * (len(points) - 1)
    first = min(int(place), len(points) - 2)
    (x0, y0), (x1, y1) = points[first : first + 2]
    rest = place - first
    angle = math.degrees(math.atan2(x1 - x0, y1 - y0))
    return x0 + (x1 - x0) * rest, y0 + (y1 - y0) * rest, angle


def _arrows(flows: Sequence[_Flow]) -> go.Scatter:
    spots = [_at(flow.points, _ARROW_AT) for flow in flows]
    marker = {
        "symbol": "triangle-up",
        "size": [9 + 0.6 * _lane(flow.wire) for flow in flows],
        "angle": [angle for _, _, angle in spots],
        "color": [flow.colour for flow in flows],
        "opacity": 1,
        "line": {"width": 1, "color": "white"},
    }
    return go.Scatter(
        x=[x for x, _, _ in spots], y=[y for _, y, _ in spots], mode="markers", marker=marker,
        hoverinfo="skip", showlegend=False,
    )  # fmt: skip


def _hovers(machine: Machine, drawing: Drawing, flows: Sequence[_Flow], note: str) -> go.Scatter:
    """Return invisible markers on lines and boxes, with the hover texts of these."""
    busy = {id(flow.wire) for flow in flows}
    spots = [(*_at(flow.points, 0.5)[:2], _flow_text(flow)) for flow in flows]
    spots += [
        (*_at(wire.points, 0.5)[:2], _wire_text(wire) + note)
        for wire in drawing.wires
        if id(wire) not in busy
    ]
    spots += [
        (box.x, box.y, _box_text(machine, box)) for box in dict.fromkeys(drawing.boxes.values())
    ]
    x, y, text = zip(*spots, strict=True) if spots else ((), (), ())
    return go.Scatter(
        x=x, y=y, hovertext=text, hoverinfo="text", mode="markers", showlegend=False,
        marker={"size": 18, "opacity": 0},
    )  # fmt: skip


def _flow_text(flow: _Flow) -> str:
    texts = [
        f"<b>{_safe(row['src'])} → {_safe(row['dst'])}</b><br>"
        f"{_span(row, 'utilisation', percent, '')} of the peak<br>"
        f"{_span(row, 'bytes', lambda value: f'{value:,}', ' bytes')}<br>"
        f"{_unit(row['achieved_gb_s'], _short, '')} of "
        f"{_unit(row['peak_gb_s'], _short, ' GB/s')}<br>{_safe(row['evidence'])}"
        for row in flow.rows
    ]
    return "<br>".join(texts)


def _span(row: Mapping[str, Any], name: str, form: Callable[[float], str], unit: str) -> str:
    """Return the value `name` of a row as text, or the text of its lower and upper bound."""
    low = row.get(f"least_{name}")
    if row[name] is not None or low is None:
        return _unit(row[name], form, unit)
    return f"{_unit(low, form, '')} to {_unit(row[f'most_{name}'], form, unit)}"


def _short(value: float) -> str:
    return f"{value:.4g}"


def _safe(value: object) -> str:
    return figure_text(str(value))


def _unit(value: float | None, form: Callable[[float], str], unit: str) -> str:
    return (
        f"unknown{unit}"
        if value is None or math.isnan(value)
        else figure_text(f"{form(value)}{unit}")
    )


def _wire_text(wire: Wire) -> str:
    names = "<br>".join(_safe(link.name) for link in wire.links)
    return f"<b>{names}</b><br>{figure_text(_label(wire))}"


def _box_text(machine: Machine, box: Box) -> str:
    """Return the hover text of a box."""
    return "<br>".join(
        f"<b>{_safe(node)}</b>"
        + "".join(
            f"<br>{_safe(key)}: {_safe(value)}"
            for key, value in machine.graph.nodes[node].items()
            if key != "type" and value is not None
        )
        for node in box.nodes
    )


def _bar() -> go.Scatter:
    """Return an empty trace that shows the colour bar."""
    bar = {**percent_bar(2, 160), "y": 0, "yanchor": "bottom"}
    marker = {
        "color": [0], "colorscale": colour_scale(), "cmin": 0, "cmax": 100, "showscale": True,
        "colorbar": bar,
    }  # fmt: skip
    return go.Scatter(x=[None], y=[None], mode="markers", marker=marker, showlegend=False)


def _draw_boxes(figure: go.Figure, boxes: Iterable[Box]) -> None:
    for box in boxes:
        fill, ink = _FILLS.get(box.kind, _FILLS["pcie"])
        figure.add_shape(
            type="path", path=_rounded(box, _ROUND.get(box.kind, 5)), fillcolor=fill,
            line={"width": 1.2, "color": MUTED if fill != INK else INK}, layer="above",
        )  # fmt: skip
        figure.add_annotation(
            x=box.x, y=box.y, text=_name(box), showarrow=False,
            font={"color": ink, "size": 10 if box.kind == "nic" else 12},
        )  # fmt: skip


def _rounded(box: Box, radius: float) -> str:
    """Return the outline of a box with rounded corners, as an SVG path."""
    x0, x1 = box.x - box.width / 2, box.x + box.width / 2
    y0, y1 = box.y - box.height / 2, box.y + box.height / 2
    r = min(radius, box.height / 2)
    return (
        f"M{x0 + r},{y0} L{x1 - r},{y0} Q{x1},{y0} {x1},{y0 + r} L{x1},{y1 - r} "
        f"Q{x1},{y1} {x1 - r},{y1} L{x0 + r},{y1} Q{x0},{y1} {x0},{y1 - r} "
        f"L{x0},{y0 + r} Q{x0},{y0} {x0 + r},{y0} Z"
    )


def _name(box: Box) -> str:
    """Return the text in a box: `GPU` above its number, or the name of one or several nodes."""
    first, last = box.nodes[0], box.nodes[-1]
    if box.kind == "gpu":
        return f"GPU<br><b>{figure_text(first.removeprefix('GPU')[:4])}</b>"
    name = first if first == last else f"{len(box.nodes)} x {first.rstrip('0123456789')}"
    return figure_text(name[: max(int(box.width / 7), 4)])


def _label_flows(figure: go.Figure, flows: Sequence[_Flow]) -> None:
    """Write the utilisation beside each flow."""
    for flow in flows:
        x, y, angle = _at(flow.points, _LABEL_AT)
        number = "?" if flow.share is None else percent(flow.share)
        if flow.least is not None and flow.share is not None and flow.least < flow.share:
            number = f"{percent(flow.least)} to {number}"
        right = math.radians(angle + 90)
        dx, dy = math.sin(right), math.cos(right)
        aside = 3 + _lane(flow.wire) / 2 + 3.2 * len(number) * abs(dx) + 7 * abs(dy)
        figure.add_annotation(
            x=x + aside * dx, y=y + aside * dy, showarrow=False,
            text=figure_text(number), font={"size": 11, "color": INK}, bgcolor="white",
            opacity=0.9, borderpad=0,
        )  # fmt: skip


def _notes(
    drawing: Drawing, flows: Sequence[_Flow], links: pl.DataFrame | None, unplaced: int
) -> list[str]:
    """Return notes on the meaning of the marks, and on traffic missing from the drawing."""
    ends = {end for wire in drawing.wires for end in _directions(wire)}
    rows = [] if links is None else links.select("src", "dst", "link").rows()
    used = Counter(id(flow.wire) for flow in flows)
    is_dotted = any(used[id(wire)] < _BOTH_WAYS for wire in drawing.wires)
    lost = sorted({str(name) for src, dst, name in rows if (src, dst) not in ends})
    notes = {
        "no transfers": links is not None and not (flows or unplaced),
        f"dotted: unknown ({count(unplaced, 'collective')} on no link)": unplaced and is_dotted,
        f"not in it: {count(unplaced, 'collective')}": unplaced and not is_dotted,
        "broken lines: modelled, not measured": any(flow.is_modelled for flow in flows),
        "black: used, how much of the peak is unknown": any(flow.share is None for flow in flows),
        f"not in the drawing: {_listed(drawing.missing)}": drawing.missing,
        f"not links of this machine: {_listed(lost)}": lost,
    }
    return [note for note, applies in notes.items() if applies]


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
