"""A breakdown as bars, by stage where its rows are; and its steps as a curve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.present._figures import (
    TIME_UNITS,
    empty_figure,
    figure_layout,
    figure_text,
    legend_above,
    legend_lines,
    named_places,
    text_width,
    unit_of,
)
from tracekit.present._kernel_names import readable_names
from tracekit.present._palette import ACCENT, IDLE_COLOUR, KIND_COLOURS
from tracekit.present._text import printable, shorten_apart
from tracekit.present._waterfall import stage_colour, stage_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import plotly.graph_objects as go
    import polars as pl

_WIDTH = 960
_RIGHT = 72
_MOST_BARS = 40
_WIDEST = 52
_IDLE = "idle"
_HIDDEN = " hidden"
_MEASURES = ("exposed_ns", "busy_ns")
_NUMBERS = ("ops", "ranges")
_NOTHING = "nothing ran"
_SEVERAL = 2


def breakdown_figure(
    table: pl.DataFrame, meta: Mapping[str, Any], *, title: str, subtitle: str
) -> go.Figure:
    """Return the rows of a breakdown as bars.

    By stage there is one bar for each group of the other keys: exposed time solid, the time that is
    hidden behind other stages hatched beside it, idle time grey where it is known. Otherwise each
    row is a bar of its busy time. At most 40 bars are drawn.

    Parameters
    ----------
    table
        The rows, with the keys' columns first.
    meta
        What is said of them: ``idle_ns`` of a breakdown by stage alone, ``per`` or ``sum_over``.
    title, subtitle
        Plain texts; see `figure_layout`.
    """
    keys = _keys(table)
    if table.is_empty() or not keys:
        return empty_figure(title, subtitle, _NOTHING)
    if "stage" in keys and "exposed_ns" in table.columns:
        return _by_stage(table, keys, meta, title=title, subtitle=subtitle)
    return _plain(table, keys, meta, title=title, subtitle=subtitle)


def _keys(table: pl.DataFrame) -> list[str]:
    """Return the columns of a breakdown's keys, which stand before the number of ops."""
    names = table.columns
    ends = [names.index(name) for name in (*_NUMBERS, *_MEASURES) if name in names]
    return [name for name in names[: min(ends, default=0)] if name != "iteration_name"]


def _by_stage(
    table: pl.DataFrame, keys: Sequence[str], meta: Mapping[str, Any], *, title: str, subtitle: str
) -> go.Figure:
    import polars as pl

    others = [key for key in keys if key != "stage"]
    rows = table.select(
        _label(others), pl.col("stage").cast(pl.String), "exposed_ns", pl.col("overlap_ns")
    )
    idle = meta.get("idle_ns")
    if not others and idle is not None:
        whole = {"label": rows["label"][0], "stage": _IDLE, "exposed_ns": idle, "overlap_ns": 0}
        rows = pl.concat([rows, pl.DataFrame([whole]).match_to_schema(rows.schema,
                          integer_cast="upcast")], how="vertical_relaxed")  # fmt: skip
    labels = rows["label"].unique(maintain_order=True)
    places = pl.DataFrame({"label": labels[:_MOST_BARS]}).with_row_index("place")
    shown = rows.join(places, on="label", maintain_order="left")
    stages = stage_order(shown["stage"].to_list())
    traces = []
    divisor, unit = _unit(shown.group_by("label").agg(pl.col("exposed_ns", "overlap_ns").sum()))
    for column, ending in (("exposed_ns", ""), ("overlap_ns", _HIDDEN)):
        for stage in stages:
            own = shown.filter(pl.col("stage") == stage, pl.col(column) > 0)
            if own.height:
                traces.append(_bar(own, column, stage, ending, divisor, unit))
    names = shorten_apart([printable(label) for label in places["label"]], _WIDEST)
    return _figure(traces, names, unit, len(labels), meta, title=title, subtitle=subtitle)


def _bar(
    rows: pl.DataFrame, column: str, stage: str, ending: str, divisor: int, unit: str
) -> go.Bar:
    import plotly.graph_objects as go

    colour = IDLE_COLOUR if stage == _IDLE else stage_colour(stage)
    pattern = {"shape": "/", "fillmode": "overlay", "size": 6, "solidity": 0.4} if ending else {}
    name = figure_text(stage + ending)
    return go.Bar(
        x=(rows[column] / divisor).to_list(),
        y=rows["place"].to_list(),
        orientation="h",
        name=name,
        showlegend=True,
        offsetgroup=ending or "exposed",
        marker={"color": colour, "line": {"color": "white", "width": 0.5}, "pattern": pattern},
        hovertemplate=f"<b>{name}</b><br>%{{x:,.3f}} {unit}<extra></extra>",
    )


def _plain(
    table: pl.DataFrame, keys: Sequence[str], meta: Mapping[str, Any], *, title: str, subtitle: str
) -> go.Figure:
    import plotly.graph_objects as go
    import polars as pl

    value = next(name for name in _MEASURES[::-1] if name in table.columns)
    ordered = table if {"iteration", "device", "rank"} & {*keys} else table.sort(-pl.col(value))
    rows = ordered.select(_label(keys), value, *(["kind"] if "kind" in keys else []))
    shown = rows.head(_MOST_BARS)
    names = _short(ordered.head(_MOST_BARS), keys, shown["label"])
    divisor, unit = unit_of(float(shown[value].max() or 0), TIME_UNITS)  # type: ignore[arg-type]
    kinds = shown["kind"].cast(pl.String).to_list() if "kind" in keys else []
    bar = go.Bar(
        x=(shown[value] / divisor).to_list(),
        y=list(range(shown.height)),
        orientation="h",
        showlegend=False,
        marker={"color": [KIND_COLOURS.get(kind, ACCENT) for kind in kinds] or ACCENT},
        hovertext=[figure_text(label) for label in shown["label"]],
        hovertemplate=f"%{{hovertext}}<br>busy %{{x:,.3f}} {unit}<extra></extra>",
    )
    return _figure([bar], names, unit, rows.height, meta, title=title, subtitle=subtitle)


def _short(table: pl.DataFrame, keys: Sequence[str], labels: pl.Series) -> list[str]:
    """Return unique names of bars, shortened where long."""
    import polars as pl

    if "name" not in keys:
        return shorten_apart([printable(label) for label in labels], _WIDEST)
    names = [printable(str(name)) for name in table["name"].cast(pl.String)]
    short = readable_names(names)
    kernels = shorten_apart([short[name] for name in names], _WIDEST)
    others = [key for key in keys if key not in {"name", "kind"}]
    if not others:
        return kernels
    rest = table.select(_label(others))["label"]
    return [f"{kernel}, {more}" for kernel, more in zip(kernels, rest, strict=True)]


def _label(keys: Sequence[str]) -> pl.Expr:
    import polars as pl

    if not keys:
        return pl.lit("").alias("label")
    named = [
        pl.format(f"{_word(key)}{{}}", pl.col(key).cast(pl.String).fill_null("unknown"))
        for key in keys
    ]
    return pl.concat_str(named, separator=", ").alias("label")


def _word(key: str) -> str:
    return {"device": "GPU ", "iteration": "step ", "rank": "rank ", "stream": "stream "}.get(
        key, ""
    )


def _unit(sums: pl.DataFrame) -> tuple[int, str]:
    import polars as pl

    most = sums.select(pl.max_horizontal("exposed_ns", "overlap_ns").max()).item()
    return unit_of(float(most or 0), TIME_UNITS)


def _figure(
    traces: Sequence[go.Bar],
    names: Sequence[str],
    unit: str,
    number: int,
    meta: Mapping[str, Any],
    *,
    title: str,
    subtitle: str,
) -> go.Figure:
    """Return a figure of bars one below the other, the first on top."""
    import plotly.graph_objects as go

    left = min(max(text_width(names) + 24, 72), _WIDTH // 2)
    legend = [trace.name for trace in traces if trace.showlegend]
    lines = legend_lines(legend, _WIDTH - left - _RIGHT) if legend else 0
    hidden = number - len(names)
    layout = figure_layout(
        title,
        subtitle,
        width=_WIDTH,
        height=170 + 20 * lines + 26 * len(names),
        margin={"l": left, "r": _RIGHT, "t": 92 + 20 * lines, "b": 60},
        notes=[f"{hidden} more are not shown"] if hidden > 0 else [],
    )
    look = {"barmode": "stack", "bargap": 0.2, "legend": legend_above(layout)}
    figure = go.Figure(layout={**layout, **look})
    figure.add_traces(list(traces))
    figure.update_yaxes(**named_places(names))
    figure.update_xaxes(title_text=figure_text(f"time ({unit}){_of(meta)}"))
    return figure


def _of(meta: Mapping[str, Any]) -> str:
    """Return what times are means or sums over."""
    if meta.get("per"):
        return f" per {meta['per']}"
    return f", sum over {meta['sum_over']}" if meta.get("sum_over") else ""
