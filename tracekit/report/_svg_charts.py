"""Charts that the page draws as HTML and SVG, without plotly: bars, curves, icicles, maps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import polars as pl
from markupsafe import Markup

from tracekit.present import BYTE_UNITS, TIME_UNITS, duration, unit_of
from tracekit.present.pages import fragment, joined

_LABELLED = 7.0
"""Least width of a bar's segment, in percent, from which it shows its name."""
_MOST_POINTS = 1200
_ROW = 24
_LEAST_NODE = 0.25
_LEAST_TEXT = 3.0
_DEEPEST = 8
_LEVELS = 9


class Entry(NamedTuple):
    """One entry of a legend: a style (CSS class) and its meaning."""

    look: str
    text: str


class Piece(NamedTuple):
    """A segment of a bar, positioned in percent of the bar's width."""

    left: float
    width: float
    look: str
    title: str
    text: str = ""


class Track(NamedTuple):
    """Segments of one bar, side by side."""

    pieces: Sequence[Piece]
    kind: str = ""


class Bar(NamedTuple):
    """One bar of a chart, with its name and value."""

    name: str
    tracks: Sequence[Track]
    amount: str


class Part(NamedTuple):
    """A length of time, drawn as one segment of a bar."""

    look: str
    name: str
    length: float


def track(parts: Sequence[Part], whole: float, kind: str = "") -> Track:
    """Lay out parts as segments of a bar, side by side, in percent of the length `whole`."""
    pieces, left = [], 0.0
    for part in parts:
        width = 100 * part.length / whole if whole else 0.0
        if part.length > 0:
            title = f"{part.name}: {duration(part.length)} ({width:.1f} %)"
            fits = width >= _LABELLED and not kind
            pieces.append(
                Piece(round(left, 3), round(width, 3), part.look, title, part.name if fits else "")
            )
        left += width
    return Track(pieces, kind)


class Bars(NamedTuple):
    """Chart of horizontal bars with segments, as HTML."""

    title: str
    label: str
    legend: Sequence[Entry]
    bars: Sequence[Bar]

    def html(self) -> Markup:
        """Return the bars as HTML."""
        return fragment("bars", self)


class Tick(NamedTuple):
    """A mark of an axis, in percent of its length."""

    at: float
    text: str


class Tag(NamedTuple):
    """A text beside a point."""

    x: float
    y: float
    text: str


class Link(NamedTuple):
    """A ring around a point of a chart, which links to another place of the page."""

    x: float
    y: float
    target: str
    title: str


class Line(NamedTuple):
    """A line, or points, as an SVG path in a square of 1000 by 1000."""

    look: str
    path: str


class Axis(NamedTuple):
    """A numeric axis with its two ends, in a unit."""

    name: str
    low: float
    high: float
    divisor: float = 1.0
    is_log: bool = False

    def share(self, value: float) -> float:
        """Return the position of a value between the ends, from 0 to 1."""
        if self.is_log:
            low, high, value = (
                math.log10(max(each, 1e-9)) for each in (self.low, self.high, value)
            )
        else:
            low, high = self.low, self.high
        return (value - low) / (high - low) if high > low else 0.5

    def ticks(self) -> list[Tick]:
        """Return marks at round values."""
        if self.is_log:
            powers = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            values = [10.0**power for power in powers]
        else:
            values = _round_values(self.low / self.divisor, self.high / self.divisor)
            values = [value * self.divisor for value in values]
        return [
            Tick(round(100 * self.share(value), 2), f"{value / self.divisor:,.6g}")
            for value in values
        ]


def size_axis(name: str, most: float) -> Axis:
    """Return an axis of bytes from 0 to `most`, its name followed by a suitable unit."""
    divisor, unit = unit_of(most, BYTE_UNITS)
    return Axis(f"{name} ({unit})", 0.0, 1.05 * most, divisor)


def _round_values(low: float, high: float) -> list[float]:
    if high <= low:
        return [low]
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def time_axis(name: str, low: float, high: float, *, is_tagged: bool = False) -> Axis:
    """Return an axis of times in ns, its name with the unit; `is_tagged` leaves room for tags."""
    divisor, unit = unit_of(high, TIME_UNITS)
    room = (high - low) * (0.16 if is_tagged else 0.06) or high * 0.05 or 1.0
    return Axis(f"{name} ({unit})", max(low - room, 0.0), high + room, divisor)


class Plot(NamedTuple):
    """A chart of lines and points in two axes."""

    title: str
    label: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    tags: Sequence[Tag] = ()
    legend: Sequence[Entry] = ()
    links: Sequence[Link] = ()

    def html(self) -> Markup:
        """Return the plot as HTML with SVG paths."""
        return fragment("plot", self)


def step_tag(text: str, across: float, up: float) -> Tag:
    """Return a text above a point, placed so that it stays inside the chart."""
    return Tag(round(min(max(100 * across, 8), 92), 2), round(min(100 * up, 92), 2), text)


def pair(*pieces: Markup) -> Markup:
    """Return charts side by side if there is room, else one below the other."""
    return Markup('<div class="pair">{}</div>').format(joined(*pieces))


def dots(look: str, points: Sequence[tuple[float, float]], x: Axis, y: Axis) -> Line:
    """Return points as an SVG path; points at the same rounded place are drawn once."""
    places = dict.fromkeys(_place(point, x, y) for point in points)
    return Line(look, "".join(f"M{across} {down}h0" for across, down in places))


def curve(look: str, points: Sequence[tuple[float, float]], x: Axis, y: Axis) -> Line:
    """Return a line through points."""
    places = list(dict.fromkeys(_place(point, x, y) for point in points))
    return Line(look, "M" + "L".join(f"{across} {down}" for across, down in places))


def _place(point: tuple[float, float], x: Axis, y: Axis) -> tuple[int, int]:
    return round(1000 * x.share(point[0])), 1000 - round(1000 * y.share(point[1]))


def steps_curve(values: Sequence[float]) -> list[tuple[float, float]]:
    """Return the corners of the empirical cumulative distribution of `values`, a step function."""
    ordered = sorted(values)
    count = len(ordered)
    corners = []
    for place, value in enumerate(ordered):
        corners += [(value, place / count), (value, (place + 1) / count)]
    stride = max(1, len(corners) // _MOST_POINTS)
    return corners if stride == 1 else [*corners[::stride], corners[-1]]


class Node(NamedTuple):
    """A rectangle of an icicle chart, placed in percent of the width and pixels from the top."""

    left: float
    width: float
    top: int
    depth: int
    text: str
    title: str


class Icicle(NamedTuple):
    """Icicle chart: times of nested items, each below its parent."""

    title: str
    label: str
    nodes: Sequence[Node]

    @property
    def height(self) -> int:
        """Height of the chart, pixels."""
        return max((node.top for node in self.nodes), default=0) + _ROW + 2

    def html(self) -> Markup:
        """Return the icicle chart as HTML."""
        return fragment("icicle", self)


def icicle_nodes(paths: Sequence[str], times: Mapping[str, int], separator: str) -> list[Node]:
    """Return the rectangles of nested items: children share their parent's width by their times.

    Parameters
    ----------
    paths
        Paths in the order of layout, parents before children.
    times
        Time of each path, ns, nested paths included: path -> time.
    separator
        Text between the labels of a path.
    """
    children: dict[str, list[str]] = {}
    known = set(paths)
    for path in paths:
        above = path.rpartition(separator)[0]
        children.setdefault(above if above in known else "", []).append(path)
    whole = sum(times[path] for path in children.get("", []))
    nodes: list[Node] = []
    waiting = [("", 0.0, 100.0, 0)]
    while waiting:
        above, left, width, depth = waiting.pop()
        inside = sum(times[path] for path in children.get(above, []))
        room = max(inside, times.get(above, whole)) or 1
        for path in children.get(above, []):
            own = width * times[path] / room
            if own >= _LEAST_NODE and depth < _DEEPEST:
                text = path.rpartition(separator)[2]
                share = f"{100 * times[path] / whole:.1f} %" if whole else ""
                title = f"{path}: {duration(times[path])} ({share})"
                place = round(left, 3), round(own, 3), depth * _ROW, depth
                nodes.append(Node(*place, text if own >= _LEAST_TEXT else "", title))
                waiting.append((path, left, own, depth + 1))
            left += own
    return nodes


class HeatCell(NamedTuple):
    """A cell of a heat map: a colour level from 0 to 8; `x` if the value is unknown."""

    level: str
    text: str
    title: str


class HeatRow(NamedTuple):
    """A row of a heat map, with its name and cells."""

    name: str
    cells: Sequence[HeatCell]


class Heat(NamedTuple):
    """Heat map of values by two keys, darker for larger values."""

    title: str
    columns: Sequence[str]
    rows: Sequence[HeatRow]
    note: str

    def html(self) -> Markup:
        """Return the heat map as HTML."""
        return fragment("heat", self)


def heat_level(value: float | None, low: float, high: float) -> str:
    """Return the colour level, 0 to 8, of a value from `low` to `high`; `x` if it is None."""
    if value is None:
        return "x"
    share = (value - low) / (high - low) if high > low else 0.0
    return str(min(int(share * _LEVELS), _LEVELS - 1))


def thinned(frame: pl.DataFrame, most: int) -> pl.DataFrame:
    """Return every n-th row, so that at most `most` rows are left."""
    return frame.gather_every(max(1, -(-frame.height // most)))
