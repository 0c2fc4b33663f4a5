"""Plotly figures in HTML pages, with the width, texts and light or dark theme of the page.

Texts from a trace are data that the page parses, never part of a script or of markup.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.present._figures import CONFIG, HEAD, HEAD_HEIGHT, LEAST, LINE, NOTE, SUBTITLE
from tracekit.present.pages._fragments import fragment
from tracekit.present.pages._shell import PageSection, harmless, page_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go
    from markupsafe import Markup

_LEAST_MARGIN = 14


class _Drawn(NamedTuple):
    """A figure as arguments of the template ``blocks.jinja``."""

    key: str
    label: str
    title: str
    subtitle: str
    notes: Sequence[str]
    has_legend: bool
    content: Markup


def figure_page(figure: go.Figure) -> str:
    """Return a figure as a separate HTML page."""
    head = _head(figure)
    body = figure_block(figure, "figure", with_head=False)
    section = PageSection("main", head["title"], "", body)
    return page_of(head["title"], head["subtitle"], [section], what="figure", has_contents=False)


def figure_block(figure: go.Figure, key: str, *, with_head: bool = True) -> Markup:
    """Return a figure as a fragment of a page.

    Parameters
    ----------
    key
        Id of the figure in the page.
    with_head
        Whether title and subtitle are shown above it.
    """
    head = _head(figure)
    content = json.loads(figure.to_json())
    layout = content["layout"]
    has_legend = layout.get("legend", {}).get("yref") == "container"
    if layout.get("meta"):
        _give_texts_away(layout, has_legend=has_legend)
    layout["meta"] = _measures(layout)
    drawn = _Drawn(
        key=key,
        label=head["title"],
        title=head["title"] if with_head else "",
        subtitle=head["subtitle"] if with_head else "",
        notes=head["notes"],
        has_legend=has_legend,
        content=harmless(json.dumps({**content, "config": CONFIG}, separators=(",", ":"))),
    )
    return fragment("figure", drawn)


def _head(figure: go.Figure) -> dict[str, Any]:
    """Return title, subtitle and notes of a figure; only the title of one made by other code."""
    meta = figure.layout.meta
    if meta and HEAD in meta:
        return dict(meta[HEAD])
    title = re.sub("<[^>]*>", "", figure.layout.title.text or "tracekit")
    return {"title": title, "subtitle": "", "notes": []}


def _give_texts_away(layout: dict[str, Any], *, has_legend: bool) -> None:
    """Remove from a layout texts that the page shows around the figure, and the room for them."""
    margin, height = layout["margin"], layout["height"]
    texts = layout.get("annotations", [])
    lines = {name: sum(each.get("name") == name for each in texts) for name in (SUBTITLE, NOTE)}
    layout["annotations"] = [each for each in texts if each.get("name") not in lines]
    layout.pop("title", None)
    if has_legend:
        above = margin["t"] - (1 - layout.pop("legend")["y"]) * height
        layout["showlegend"] = False
    else:
        above = margin["t"] - HEAD_HEIGHT - LINE * (lines[SUBTITLE] - 1)
    kept = {"t": max(above, _LEAST_MARGIN), "b": margin["b"] - LINE * lines[NOTE]}
    layout["height"] = height - sum(margin[side] - kept[side] for side in kept)
    layout["margin"] = {**margin, **kept}


def _measures(layout: dict[str, Any]) -> dict[str, Any]:
    """Return sizes by which a page fits a figure: width, least width, number of plots in a row."""
    meta = layout.get("meta") or {}
    axes = [look for name, look in layout.items() if re.fullmatch(r"[xy]axis\d*", name)]
    across = {tuple(look.get("domain", (0, 1))) for name, look in layout.items()
              if re.fullmatch(r"xaxis\d*", name)}  # fmt: skip
    return {
        "is_fluid": not any("scaleanchor" in look for look in axes),
        "width": layout.get("width", 960),
        "across": len(across) or 1,
        "least": meta.get(LEAST),
    }
