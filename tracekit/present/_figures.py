"""Common layout of all figures.

A figure has a title, a subtitle that states the measure and its baseline, axes with units, and
notes at its foot. Texts from a trace go through `figure_text`, since plotly reads texts as markup.
plotly is imported when a figure is made, not before.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.present._palette import DARK_COLOURS, ink_on
from tracekit.support.wording import cells, printable, shorten, wrap

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import plotly.graph_objects as go

INK = "#1F2933"
"""Colour of titles and labels."""

MUTED = "#61707F"
"""Colour of secondary texts: subtitles, axes, notes."""

GRID = "#E4E8EC"
"""Colour of grid lines."""

BLANK = "#F3F5F7"
"""Colour of an empty cell or track."""

# The reverse of viridis without its palest end: more is darker, all of it is seen on white, and it
# is told apart by people with any colour vision, and in print without colours.
SCALE = (
    "#BCDF2A", "#74CF54", "#39B977", "#20A088", "#26838E", "#31698E", "#3E4A89", "#482878",
    "#440154",
)  # fmt: skip
"""Colour scale from 0 to 1, evenly spaced."""

DIVERGING = ("#2166AC", "#67A9CF", "#D1E5F0", "#F7F7F7", "#FDDBC7", "#EF8A62", "#B2182B")
"""Colours from below zero over zero to above, evenly spaced; safe for any colour vision."""

# Paul Tol's muted colours, their sand darker so that it is seen on white: told apart by people with
# any colour vision, and none is that of a stage.
SERIES_COLOURS = (
    "#332288", "#CC6677", "#44AA99", "#AA4499", "#117733", "#DDAA33", "#88CCEE", "#882255",
    "#999933",
)  # fmt: skip
"""Colours of lines and bars that are no stage or kind: methods, libraries, runs."""

MINUS = "\N{MINUS SIGN}"
"""Minus sign, as wide as a plus."""

NOTHING = "nothing"
"""Key of ``meta`` in the layout of an empty figure: what there is none of."""

RECORD_WITH = "record with"
"""Key of ``meta`` in the layout of an empty figure: what to record instead, if known."""

PLAIN_AXIS: dict[str, Any] = {
    "showgrid": False, "tickcolor": "white", "ticklen": 6, "fixedrange": True
}  # fmt: skip
"""Settings of an axis with names."""

# These are on every system, or are of the same widths, so that a figure looks the same everywhere.
FONT = "Arial, 'Liberation Sans', Helvetica, 'DejaVu Sans', sans-serif"

DARK = {
    "white": "#14181C", INK: "#E8ECF0", MUTED: "#A6B1BB", GRID: "#3A434C", BLANK: "#1D2329",
    "#D5DDE5": "#33404C", "#E9EDF1": "#2A323B", "#D3EBE3": "#1F4A3D", "#C3CCD5": "#56636F",
    "#A9B4BF": "#6B7782", **DARK_COLOURS,
}  # fmt: skip
"""Dark colours for dark pages: light colour -> dark colour."""

HEAD, SUBTITLE, NOTE = "head", "subtitle", "note"
"""Names in a layout: of its plain texts, and of the lines that show them."""

LEAST = "least"
"""Name in a layout of the least width of its plots in pixels, if a page may narrow them."""

HEAD_HEIGHT = 66
"""Height of the title with a first line below it, in pixels."""

LINE = 18
"""Height of a line of text, in pixels."""

_MARGIN = {"l": 80, "r": 40, "t": 84, "b": 64}
_EDGE = 24
_BELOW_TITLE, _TITLE_LINE = 58, 24
_LARGE, _SMALL, _SMALLEST = 19, 13, 12
_LETTER = 0.55  # of the size of the font, a little more than the mean width of a letter
_LEGEND_MARK = 52
_STEEP_LETTERS = 24
_LEVELS = 240
"""Number of steps in which colours of the scale differ."""
CONFIG = {"displaylogo": False, "toImageButtonOptions": {"format": "svg"}}
"""Configuration of plotly."""


def figure_text(text: str) -> str:
    """Return `text` escaped so that a figure shows it as it is, without markup or formulas."""
    # MathJax, where a page has it, takes what is between dollar signs for a formula.
    return escape(printable(text), quote=False).replace("$", "&#36;")


class Heading(NamedTuple):
    """Title of a figure, and the line below it; plain texts."""

    title: str
    """What is shown."""
    subtitle: str
    """The run, the window, and the base of comparison."""


def figure_layout(
    heading: Heading,
    *,
    width: int = 960,
    height: int = 540,
    margin: dict[str, int] | None = None,
    notes: Sequence[str] = (),
    least: int | None = None,
) -> dict[str, Any]:
    """Return the layout that all figures share.

    Parameters
    ----------
    width, height
        Size in pixels; the height is without the notes.
    margin
        Margins in pixels that differ from the default: side (`l`, `r`, `t`, `b`) -> pixels.
    notes
        Plain texts at the foot of the figure, one line each.
    least
        Least width in pixels at which the plots are readable; None for the default.
    """
    room = {**_MARGIN, **(margin or {})}
    title = _lines(heading.title, width, _LARGE, most=2)
    subtitle = _lines(heading.subtitle, width, _SMALL)
    at_foot = [line for note in notes for line in _lines(note, width, _SMALLEST)]
    head = _BELOW_TITLE + (len(title) - 1) * _TITLE_LINE
    room["t"] += (len(subtitle) - 1) * LINE + head - _BELOW_TITLE
    room["b"] += len(at_foot) * LINE
    return {
        "template": _template(),
        "width": width,
        "height": height + (len(subtitle) - 1 + len(at_foot)) * LINE + head - _BELOW_TITLE,
        "margin": room,
        "meta": {HEAD: {**heading._asdict(), "notes": list(notes)}, LEAST: least},
        "title": {"text": f"<b>{'<br>'.join(title)}</b>"},
        "annotations": [
            _line(line, _EDGE - room["l"], room["t"] - head - row * LINE, SUBTITLE)
            for row, line in enumerate(subtitle)
        ]
        + [
            _line(line, _EDGE - room["l"], (len(at_foot) - row) * LINE - room["b"], NOTE)
            for row, line in enumerate(at_foot)
        ],
    }


def _lines(text: str, width: int, size: int, most: int = 3) -> list[str]:
    """Break a text of font `size` into at most `most` lines for `width` pixels; cut the rest."""
    letters = int((width - 2 * _EDGE) / (_LETTER * size))
    fitting = shorten(printable(text), most * letters - most)
    return [figure_text(line) for line in wrap(fitting, letters)[:most]]


def empty_figure(heading: Heading, text: str) -> go.Figure:
    """Return a figure with a sentence in place of its data, which are missing.

    Parameters
    ----------
    text
        Sentence part that names the missing data, such as ``no transfers``.
    """
    import plotly.graph_objects as go

    figure = go.Figure(layout=figure_layout(heading, height=280))
    figure.layout.meta = {**figure.layout.meta, NOTHING: text}
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    figure.add_annotation(
        text=figure_text(text), showarrow=False, font={"size": 18, "color": MUTED},
        xref="paper", yref="paper", x=0.5, y=0.5,
    )  # fmt: skip
    return figure


def decimals_of(largest: float) -> int:
    """Return the number of decimals that shows `largest` with about three digits."""
    return next((count for count, end in ((3, 1), (2, 10), (1, 100)) if abs(largest) < end), 0)


def signed(value: float, decimals: int) -> str:
    """Return a change as text, always with its sign; a nonzero change never reads as zero."""
    if value == 0:
        return "0"
    text = f"{abs(value):,.{decimals}f}"
    return f"{MINUS if value < 0 else '+'}{text}" if text.strip("0.") else "≈ 0"


def text_width(texts: Iterable[str], size: int = 12) -> int:
    """Return the approximate width in pixels of the widest text."""
    return round(max((cells(printable(text)) for text in texts), default=0) * size * _LETTER)


def fitting_ticks(labels: Sequence[str], each: float) -> tuple[dict[str, Any], int]:
    """Return the settings of a horizontal axis with `labels` at 0, 1, 2 and so on, and its height.

    Parameters
    ----------
    labels
        Plain texts.
    each
        Pixels available for each label; all labels are rotated if one needs more.
    """
    steep = text_width(labels) + 8 > each
    fitting = [shorten(printable(label), _STEEP_LETTERS) for label in labels] if steep else labels
    look = {
        "tickvals": list(range(len(labels))),
        "ticktext": [figure_text(label) for label in fitting],
        "tickangle": -60 if steep else 0,
        "range": [-0.5, len(labels) - 0.5],
        **PLAIN_AXIS,
    }
    return look, round(text_width(fitting) * 0.87) + 20 if steep else 24


def named_places(names: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a vertical axis with `names` at 0, 1, 2 and so on, from the top down.

    A bar is identified by its position, so two bars of the same name stay distinct.
    """
    return {
        "tickvals": list(range(len(names))),
        "ticktext": [figure_text(name) for name in names],
        "range": [len(names) - 0.5, -0.5],
        **PLAIN_AXIS,
    }


def legend_lines(labels: Sequence[str], width: int) -> int:
    """Return the number of lines of a legend above a plot of `width` pixels."""
    entries = [text_width([label]) + _LEGEND_MARK for label in labels]
    if sum(entries) <= width:
        return 1
    # plotly then makes all entries as wide as the widest.
    return -(-len(entries) // max(width // max(entries), 1))


def legend_above(layout: Mapping[str, Any], gap: int = 10) -> dict[str, Any]:
    """Return a legend that ends `gap` pixels above the plot.

    One line of the legend needs a top margin 28 pixels larger; each further line needs 20 more.
    """
    return {
        "orientation": "h", "traceorder": "normal", "xref": "container", "yref": "container",
        "x": (_EDGE - 6) / layout["width"], "xanchor": "left",
        "y": 1 - (layout["margin"]["t"] - gap) / layout["height"], "yanchor": "bottom",
    }  # fmt: skip


def colour_scale() -> list[tuple[float, str]]:
    """Return the colour scale `SCALE` as plotly takes it: (share from 0 to 1, colour) pairs."""
    return [(step / (len(SCALE) - 1), colour) for step, colour in enumerate(SCALE)]


def colour_at(share: float) -> str:
    """Return the colour of a share on the colour scale; the share is first clipped to 0 to 1."""
    place = round(min(max(share, 0.0), 1.0) * _LEVELS) / _LEVELS * (len(SCALE) - 1)
    first = min(int(place), len(SCALE) - 2)
    ends = zip(_channels(SCALE[first]), _channels(SCALE[first + 1]), strict=True)
    mixed = (round(one + (other - one) * (place - first)) for one, other in ends)
    return "#" + "".join(f"{channel:02X}" for channel in mixed)


def _channels(colour: str) -> list[int]:
    return [int(colour[place : place + 2], 16) for place in (1, 3, 5)]


# More is lighter there, and none is still seen.
DARK_SCALES = {
    **dict(zip(DIVERGING, ("#8CC2E6", "#4F86AE", "#2B4A61", "#252C33", "#5E3B2C", "#B8613C",
                           "#FFA07A"), strict=True)),
    **{colour_at(n / _LEVELS): colour_at(0.75 * (1 - n / _LEVELS)) for n in range(_LEVELS + 1)},
}  # fmt: skip
"""Colours of scales on dark pages: light colour -> dark colour."""


def readable_on(colour: str) -> str:
    """Return the colour for a text on background `colour`, readable on dark pages as well."""
    ink = ink_on(colour)
    return "white" if colour in DARK and ink == "#fff" else ink  # `DARK` turns both


def faint(colour: str) -> str:
    """Return a transparent version of a colour."""
    red, green, blue = _channels(colour)
    return f"rgba({red}, {green}, {blue}, 0.18)"


def colour_bar(title: str) -> dict[str, Any]:
    """Return the settings of a colour bar with a title."""
    text = f"{figure_text(title)}<br>&nbsp;"  # apart from the topmost number
    return {
        "title": {"text": text, "side": "top", "font": {"size": 12, "color": MUTED}},
        "thickness": 14,
        "outlinewidth": 0,
        "tickfont": {"size": 11, "color": MUTED},
        "ticklen": 3,
    }


def percent_bar(across: int, length: int) -> dict[str, Any]:
    """Return a colour bar of utilisation, `length` pixels long, `across` pixels beside the plot."""
    marks = [0, 25, 50, 75, 100]
    place = {"x": 1, "xpad": across, "y": 1, "yanchor": "top", "lenmode": "pixels", "len": length}
    ticks = {"tickvals": marks, "ticktext": [f"{mark} %" for mark in marks]}
    return {**colour_bar("utilisation"), **place, **ticks, "ypad": 0}


def _template() -> dict[str, Any]:
    axis = {
        "automargin": False,
        "exponentformat": "none",
        "gridcolor": GRID,
        "linecolor": MUTED,
        "separatethousands": True,
        "tickcolor": MUTED,
        "tickfont": {"size": 12, "color": INK},
        "ticks": "outside",
        "ticklen": 4,
        "title": {"font": {"size": 13, "color": MUTED}, "standoff": 10},
        "zeroline": False,
    }
    return {
        "layout": {
            "font": {"family": FONT, "size": 13, "color": INK},
            "paper_bgcolor": "white",
            "plot_bgcolor": "white",
            "colorway": [SCALE[5]],
            "title": {
                "x": 0, "xanchor": "left", "y": 1, "yanchor": "top", "yref": "container",
                "xref": "container", "pad": {"l": _EDGE, "t": 24}, "font": {"size": _LARGE},
            },
            "xaxis": axis,
            "yaxis": axis,
            "legend": {"font": {"size": 12}, "itemsizing": "trace"},
            "hoverlabel": {
                "align": "left", "bgcolor": "white", "bordercolor": MUTED,
                "font": {"family": FONT, "size": 12, "color": INK},
            },
            "bargap": 0,
        }
    }  # fmt: skip


def _line(text: str, across: int, up: int, name: str) -> dict[str, Any]:
    """Return an annotation at pixels `across` and `up` from the left end of a plot's edge."""
    return {
        "name": name, "text": text, "showarrow": False, "align": "left",
        "xref": "paper", "x": 0, "xanchor": "left", "xshift": across - 2,
        "yref": "paper", "y": int(name == SUBTITLE), "yanchor": "middle", "yshift": up,
        "font": {"size": _SMALL if name == SUBTITLE else _SMALLEST, "color": MUTED},
    }  # fmt: skip
