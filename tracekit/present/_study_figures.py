"""Tables over many runs as figures: scaling, overhead, stages, and any value as a heat map."""

from __future__ import annotations

from math import log10
from typing import TYPE_CHECKING, Any

from tracekit.errors import UsageError
from tracekit.present._compare_figures import stage_colour, stage_order, step_unit
from tracekit.present._configurations import (
    MOST_ROWS,
    SELF_TOLD,
    Rows,
    common_note,
    described,
    distinct,
    label_of,
    rows_of,
    show_rows,
    varying,
)
from tracekit.present._figures import (
    INK,
    MINUS,
    MUTED,
    PLAIN_AXIS,
    SERIES_COLOURS,
    colour_at,
    colour_bar,
    colour_scale,
    decimals_of,
    empty_figure,
    figure_layout,
    figure_text,
    fitting_ticks,
    legend_above,
    legend_lines,
    text_width,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go
    import polars as pl

DIVERGING = ("#2166AC", "#67A9CF", "#D1E5F0", "#F7F7F7", "#FDDBC7", "#EF8A62", "#B2182B")
"""Colours from below zero over zero to above, evenly spaced; safe for any colour vision."""

NO_RUNS = "no runs"
"""What a figure says that has none to show."""

_MOST_FACETS = 12
_MOST_ACROSS = 3
_FACET_HEIGHTS = {1: 400, 2: 320, 3: 250}
_MOST_PANELS = 6
_MOST_GROUPS = 24
_MOST_CELLS = 50
_MOST_WIDE = 16
_LINEAR_GPUS = 4
_MOST_COUNTS = 8
_LONE = 1.5
_WIDEST_BAR = 90
_LEAST_LABELLED = 26
_WIDTH = 960
_SCALING = {"speedup": "speedup", "efficiency": "efficiency (%)"}
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x")
_PANELS = {"l": 72, "r": 32}
_STUDY = ("network", "batch", "gpus", "method")


def scaling_figure(
    table: pl.DataFrame, *, value: str = "speedup", title: str, subtitle: str
) -> go.Figure:
    """Return scaling curves over the number of GPUs, and what would be ideal.

    One panel per network, at most 12; one colour per method; one dash and marker per batch size.
    From more than four GPUs on, the axes are logarithmic, so that the ideal speedup stays straight.

    Parameters
    ----------
    table
        One row per configuration: ``network``, ``batch``, ``method``, ``gpus``, and ``speedup``
        or ``efficiency`` (a fraction: 0.42 is 42 %); rows without a value are not drawn.
    value
        ``speedup`` or ``efficiency``.
    title, subtitle
        Plain texts; see `figure_layout`.

    Raises
    ------
    UsageError
        If `value` is another.
    """
    if value not in _SCALING:
        raise UsageError(f"no scaling curves of {value!r}", "choose speedup or efficiency")
    known = _known(table, value).filter(_is_positive("gpus"), _is_positive(value))
    if known.is_empty():
        return empty_figure(title, subtitle, NO_RUNS)
    networks = distinct(known, "network")
    shown, keys = networks[:_MOST_FACETS], _curve_keys(known)
    across = min(len(shown), _MOST_ACROSS)
    figure = _paneled(
        [described("network", network) for network in shown],
        [key.name for key in keys],
        across=across,
        each=_FACET_HEIGHTS[across],
        below=56,
        title=title,
        subtitle=subtitle,
        notes=[
            *common_note(known, ("batch",)),
            *_not_shown(len(networks) - len(shown), "networks"),
        ],
    )
    figure.add_traces(keys)
    gpus = distinct(known, "gpus")
    axis = _padded(gpus[0], gpus[-1], far=gpus[-1] > _LINEAR_GPUS)
    for place, network in enumerate(shown):
        own = known.filter(known["network"].eq_missing(network))
        for curve in [_ideal(axis, value), *_curves(own, known, value)]:
            figure.add_trace(curve, **_cell(place, across))
    _scaling_axes(figure, known, value, len(shown))
    return figure


def _known(table: pl.DataFrame, value: str) -> pl.DataFrame:
    """Return the rows of which a value is known."""
    import polars as pl

    return table.with_columns(pl.col(value).cast(pl.Float64)).filter(pl.col(value).is_finite())


def _is_positive(column: str) -> pl.Expr:
    import polars as pl

    return pl.col(column) > 0


def _not_shown(hidden: int, what: str) -> list[str]:
    return [f"not shown: {hidden:,} more {what}"] if hidden else []


def _cell(place: int, across: int) -> dict[str, int]:
    """Return the row and the column of one of some panels."""
    return {"row": place // across + 1, "col": place % across + 1}


def _paneled(
    titles: Sequence[str],
    legend: Sequence[str],
    *,
    across: int,
    each: int,
    below: int,
    title: str,
    subtitle: str,
    notes: Sequence[str],
) -> go.Figure:
    """Return a figure of panels, so many across and each so high, under a legend.

    Parameters
    ----------
    titles
        Plain titles of the panels.
    legend
        Plain texts of the legend.
    across, each, below
        Panels beside each other, the height of each, and the room below it, in pixels.
    title, subtitle, notes
        As of `figure_layout`.
    """
    from plotly.subplots import make_subplots

    down = -(-len(titles) // across)
    gap = below + 34
    wide, high = _WIDTH - _PANELS["l"] - _PANELS["r"], each * down + gap * (down - 1)
    titled = 24 if any(titles) else 0
    top = 84 + titled + (8 + 20 * legend_lines(legend, wide) if legend else 0)
    margin = {**_PANELS, "t": top, "b": below}
    layout = figure_layout(
        title, subtitle, width=_WIDTH, height=high + top + below, margin=margin, notes=notes
    )
    figure = make_subplots(
        rows=down, cols=across, horizontal_spacing=44 / wide, vertical_spacing=gap / high
    )
    figure.update_layout({**layout, "legend": legend_above(layout, gap=8 + titled)})
    for place, text in enumerate(titles):
        figure.add_annotation(
            text=f"<b>{figure_text(text)}</b>", showarrow=False, font_size=13,
            xref="x domain", x=0, xanchor="left", yref="y domain", y=1, yanchor="bottom", yshift=4,
            **_cell(place, across),
        )  # fmt: skip
    return figure


def _methods(known: pl.DataFrame) -> dict[Any, str]:
    return {
        method: SERIES_COLOURS[place % len(SERIES_COLOURS)]
        for place, method in enumerate(distinct(known, "method"))
    }


def _batches(known: pl.DataFrame) -> dict[Any, dict[str, Any]]:
    """Return dash and marker of each batch size."""
    return {
        batch: {"dash": _DASHES[place % len(_DASHES)], "symbol": _MARKERS[place % len(_MARKERS)]}
        for place, batch in enumerate(distinct(known, "batch"))
    }


def _curve_keys(known: pl.DataFrame) -> list[go.Scatter]:
    """Return the entries of the legend: methods by colour, batch sizes by dash, and the ideal."""
    import plotly.graph_objects as go

    def entry(name: str, colour: str, dash: str, symbol: str | None) -> go.Scatter:
        return go.Scatter(
            x=[None], y=[None], mode="lines+markers" if symbol else "lines",
            name=figure_text(name), line={"color": colour, "dash": dash, "width": 2},
            marker={"symbol": symbol, "size": 7, "color": colour},
        )  # fmt: skip

    batches = _batches(known)
    return [
        *(
            entry(described("method", method), colour, "solid", None)
            for method, colour in _methods(known).items()
        ),
        *(
            entry(described("batch", batch), MUTED, look["dash"], look["symbol"])
            for batch, look in batches.items()
            if len(batches) > 1
        ),
        entry("ideal", INK, "5px,4px", None),
    ]


def _curves(own: pl.DataFrame, known: pl.DataFrame, value: str) -> list[go.Scatter]:
    """Return the curves of one network."""
    import plotly.graph_objects as go

    colours, looks = _methods(known), _batches(known)
    curves = []
    for (method, batch), rows in own.sort("gpus").group_by("method", "batch", maintain_order=True):
        look, name = looks[batch], f"{described('method', method)}, {described('batch', batch)}"
        curves.append(
            go.Scatter(
                x=rows["gpus"].to_list(),
                y=(rows[value] * (100 if value == "efficiency" else 1)).to_list(),
                mode="lines+markers",
                line={"color": colours[method], "dash": look["dash"], "width": 2},
                marker={"symbol": look["symbol"], "size": 7, "color": colours[method]},
                hoverinfo="text",
                hovertext=[
                    f"<b>{figure_text(name)}</b><br>{described('gpus', gpus)}<br>"
                    + (f"{100 * number:.1f} %" if value == "efficiency" else f"{number:.2f}")
                    for gpus, number in rows.select("gpus", value).iter_rows()
                ],
                showlegend=False,
            )
        )
    return curves


def _ideal(axis: Sequence[float], value: str) -> go.Scatter:
    """Return what would be ideal from one end of the axis across to the other."""
    import plotly.graph_objects as go

    return go.Scatter(
        x=list(axis),
        y=[100, 100] if value == "efficiency" else list(axis),
        mode="lines",
        line={"color": INK, "dash": "5px,4px", "width": 1},
        hoverinfo="skip",
        showlegend=False,
    )


def _scaling_axes(figure: go.Figure, known: pl.DataFrame, value: str, panels: int) -> None:
    gpus, values = distinct(known, "gpus"), known[value].to_list()
    far = gpus[-1] > _LINEAR_GPUS
    told = [count for count in gpus if len(gpus) <= _MOST_COUNTS or count.bit_count() == 1]
    labels = {"tickvals": told, "ticktext": [str(count) for count in told]}
    figure.update_xaxes(**labels, **_scaled(*_padded(gpus[0], gpus[-1], far=far), far=far))
    if value == "efficiency":
        figure.update_yaxes(range=[0, 100 * max(1.08, *(1.05 * each for each in values))])
    elif far:
        ends = _padded(min(1, *values), max(gpus[-1], *values), far=True)
        ticks = [2.0**power for power in range(-6, 13)]
        texts = [f"{tick:g}" for tick in ticks]
        figure.update_yaxes(tickvals=ticks, ticktext=texts, **_scaled(*ends, far=True))
    else:
        figure.update_yaxes(range=[0, 1.06 * max(gpus[-1], *values)])
    across = min(panels, _MOST_ACROSS)
    for place in range(panels):
        cell = _cell(place, across)
        if place + across >= panels:
            figure.update_xaxes(title_text="GPUs", **cell)
        if cell["col"] == 1:
            figure.update_yaxes(title_text=_SCALING[value], **cell)


def _padded(low: float, high: float, *, far: bool) -> tuple[float, float]:
    """Return the ends of an axis a little beyond those of what it shows."""
    if far:
        room = (high / low) ** 0.05 if high > low else _LONE
        return low / room, high * room
    room = 0.05 * (high - low) or 0.1
    return low - room, high + room


def _scaled(low: float, high: float, *, far: bool) -> dict[str, Any]:
    """Return an axis from one value to another, logarithmic where it goes far."""
    ends = [log10(low), log10(high)] if far else [low, high]
    return {"type": "log" if far else "linear", "range": ends}


def overhead_figure(table: pl.DataFrame, *, title: str, subtitle: str) -> go.Figure:
    """Return the overhead of a method over its baseline, by network and batch size.

    One panel per method, number of GPUs and kind of scaling, at most 6; one group of bars per
    network, at most 24; one colour per batch size, darker for larger ones.

    Parameters
    ----------
    table
        One row per configuration: ``network``, ``batch``, ``gpus``, ``method``, optionally
        ``scaling``, and ``overhead_percent``, null where unknown.
    title, subtitle
        Plain texts; see `figure_layout`. The subtitle says what the baseline is.
    """
    known = _known(table, "overhead_percent")
    if known.is_empty():
        return empty_figure(title, subtitle, NO_RUNS)
    by = [key for key in ("method", "gpus", "scaling") if key in known.columns]
    panels = known.partition_by(by, maintain_order=True)
    shown, keys = panels[:_MOST_PANELS], varying(known, by)
    networks, batches = distinct(known, "network"), distinct(known, "batch")
    groups = networks[:_MOST_GROUPS]
    each = (_WIDTH - _PANELS["l"] - _PANELS["r"]) / len(groups)
    ticks, below = fitting_ticks([described("network", network) for network in groups], each)
    gap = max(0.24, 1 - _WIDEST_BAR * len(batches) / each)
    same = by if len(batches) > 1 else ["batch", *by]
    figure = _paneled(
        [label_of(panel.row(0, named=True), keys) for panel in shown],
        [described("batch", batch) for batch in batches] if len(batches) > 1 else [],
        across=1,
        each=300 if len(shown) == 1 else 200,
        below=below + 12,
        title=title,
        subtitle=subtitle,
        notes=[
            *common_note(known, same),
            *_not_shown(len(networks) - len(groups), "networks"),
            *_not_shown(len(panels) - len(shown), "panels"),
        ],
    )
    for place, panel in enumerate(shown):
        bars = _overhead_bars(panel, groups, batches, first=place == 0, wide=each * (1 - gap))
        figure.add_traces(bars, rows=[place + 1] * len(bars), cols=[1] * len(bars))
    figure.update_layout(barmode="group", bargap=gap, bargroupgap=0.06)
    figure.update_xaxes(ticks)
    figure.update_yaxes(
        title_text="overhead (%)", range=_overhead_range(known),
        zeroline=True, zerolinecolor=INK, zerolinewidth=1.5, zerolinelayer="above traces",
    )  # fmt: skip
    return figure


def _overhead_bars(
    panel: pl.DataFrame,
    networks: Sequence[Any],
    batches: Sequence[Any],
    *,
    first: bool,
    wide: float,
) -> list[go.Bar]:
    """Return one trace per batch size, the larger the darker; a group is so many pixels wide."""
    import plotly.graph_objects as go
    import polars as pl

    bars = []
    for place, batch in enumerate(batches):
        own = panel.filter(pl.col("batch").eq_missing(batch))
        values = dict(own.select("network", "overhead_percent").iter_rows())
        known = [(x, values[name]) for x, name in enumerate(networks) if name in values]
        texts = [f"{value:.1f}".replace("-", MINUS) for _, value in known]
        bars.append(
            go.Bar(
                x=[x for x, _ in known],
                y=[value for _, value in known],
                name=figure_text(described("batch", batch)),
                legendgroup=str(place),
                showlegend=first and len(batches) > 1,
                marker={"color": colour_at(0.15 + 0.7 * place / max(len(batches) - 1, 1))},
                text=texts if wide / len(batches) >= _LEAST_LABELLED else None,
                constraintext="none",
                textposition="outside",
                textangle=0,
                textfont_size=11,
                cliponaxis=False,
                hoverinfo="text",
                hovertext=[
                    f"<b>{figure_text(described('network', networks[x]))}</b><br>"
                    f"{figure_text(described('batch', batch))}<br>{text} %"
                    for (x, _), text in zip(known, texts, strict=True)
                ],
            )
        )
    return bars


def _overhead_range(known: pl.DataFrame) -> list[float]:
    """Return the ends of the axis, with room for what the bars say."""
    values = known["overhead_percent"].to_list()
    low, high = min(0, *values), max(0, *values)
    room = 0.14 * (high - low) or 1
    return [low - room if low < 0 else 0, high + room if high > 0 else 0]


def stage_bars_figure(
    study: pl.DataFrame, *, title: str, subtitle: str, per: str = "iteration"
) -> go.Figure:
    """Return the exposed time of each stage, and idle time, of each configuration as one bar.

    One bar per configuration in the order of the table, at most 40, under the names of the
    networks; at its end stands the sum.

    Parameters
    ----------
    study
        One row per configuration and stage: ``network``, ``batch``, ``gpus``, ``method``,
        ``stage`` (one of the stages, ``FP+BP`` or ``idle``) and ``exposed_ns``, null where
        unknown, in which case the sum is said to be more than what is known. Of the columns that
        name the configuration some may be missing.
    title, subtitle
        Plain texts; see `figure_layout`.
    per
        What the time is spent in, such as ``epoch``.
    """
    import plotly.graph_objects as go

    runs, times = _stage_times(study)
    if not runs.height:
        return empty_figure(title, subtitle, NO_RUNS)
    shown = runs.head(MOST_ROWS)
    rows = rows_of(shown, ("network",), ("batch", "gpus", "method"))
    stages = stage_order(times["stage"].to_list())
    left = text_width(row.label for row in rows.rows) + 28
    layout = figure_layout(
        title,
        subtitle,
        height=round(26 * (rows.end + 0.5)) + 172,
        margin={"l": max(left, 72), "r": 104, "t": 112, "b": 60},
        notes=[
            *common_note(runs, _STUDY),
            *(["≥ the time of some stages is unknown"] if times["exposed_ns"].has_nulls() else []),
            *_not_shown(runs.height - shown.height, "configurations"),
        ],
    )
    figure = go.Figure(layout={**layout, "barmode": "stack", "legend": legend_above(layout)})
    _add_stages(figure, times, stages, rows, per)
    show_rows(figure, rows)
    return figure


def _stage_times(study: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the configurations, those of a network together, and their times by ``row``."""
    import polars as pl

    keys = [key for key in _STUDY if key in study.columns]
    runs = study.select(keys or pl.lit(0).alias("run")).unique(maintain_order=True)
    parts = runs.partition_by(keys[:1], maintain_order=True) if keys else [runs]
    runs = pl.concat(parts) if parts else runs
    times = study.with_columns(pl.lit(0).alias("run")).join(
        runs.with_row_index("row").head(MOST_ROWS), on=runs.columns, nulls_equal=True
    )
    return runs, times.select(
        "row",
        pl.col("stage").cast(pl.String).fill_null("?"),
        pl.col("exposed_ns").cast(pl.Float64).fill_nan(None),
    )


def _add_stages(
    figure: go.Figure, times: pl.DataFrame, stages: Sequence[str], rows: Rows, per: str
) -> None:
    """Add one trace per stage, the sums at the ends of the bars, and the axis across."""
    import plotly.graph_objects as go
    import polars as pl

    time = pl.col("exposed_ns")
    sums = times.group_by("row").agg(time.sum(), unknown=time.is_null().any()).sort("row")
    divisor, unit = step_unit(max(sums["exposed_ns"].to_list()))
    for stage in stages:
        own = times.filter(time.is_not_null(), stage=stage)
        figure.add_trace(
            go.Bar(
                x=(own["exposed_ns"] / divisor).to_list(),
                y=[rows.rows[row].place for row in own["row"]],
                width=0.7,
                orientation="h",
                name=figure_text(stage),
                showlegend=True,
                marker={"color": stage_colour(stage), "line": {"color": "white", "width": 0.5}},
                hoverinfo="text",
                hovertext=[
                    f"<b>{figure_text(stage)}</b><br>{length / divisor:,.3f} {unit}"
                    for length in own["exposed_ns"]
                ],
            )
        )
    ends = (sums["exposed_ns"] / divisor).to_list()
    decimals = min(decimals_of(min(ends)), 2)
    figure.add_trace(
        go.Scatter(
            x=ends,
            y=[rows.rows[row].place for row in sums["row"]],
            text=[
                f" {'≥ ' if unknown else ''}{end:,.{decimals}f}"
                for end, unknown in zip(ends, sums["unknown"], strict=True)
            ],
            mode="text",
            textposition="middle right",
            textfont_size=12,
            cliponaxis=False,
            hoverinfo="skip",
            showlegend=False,
        )
    )
    figure.update_xaxes(
        title_text=f"exposed time per {figure_text(per)} ({unit})", range=[0, max(ends) or 1]
    )


def heat_figure(
    table: pl.DataFrame,
    rows: str,
    columns: str,
    value: str,
    unit: str,
    *,
    title: str,
    subtitle: str,
) -> go.Figure:
    """Return a value by two things as a heat map with numbers.

    Numbers are in their order, other names as the table has them. Where a value can be below zero,
    colours go two ways from zero. At most 50 rows and columns are drawn.

    Parameters
    ----------
    table
        One row per cell, with the columns that the next three parameters name; a value that is
        null is drawn as ``?``, and a cell that has no row stays blank.
    rows, columns, value
        Names of the columns: what the rows and the columns of the map are, and the numbers.
    unit
        Unit of the numbers, such as ``%``; may be empty.
    title, subtitle
        Plain texts; see `figure_layout`.

    Raises
    ------
    UsageError
        If the table has a cell twice.
    """
    import plotly.graph_objects as go

    if table.is_empty():
        return empty_figure(title, subtitle, NO_RUNS)
    if table.select(rows, columns).is_duplicated().any():
        raise UsageError(
            f"a heat map by {rows} and {columns} has a cell twice",
            "choose columns that tell all rows apart, or fewer rows",
        )
    values = _without_nan(table.select(rows, columns, value))
    downs, acrosses = distinct(values, rows), distinct(values, columns)
    hidden = max(len(downs) - _MOST_CELLS, 0), max(len(acrosses) - _MOST_CELLS, 0)
    downs, acrosses = downs[:_MOST_CELLS], acrosses[:_MOST_CELLS]
    names = [described(rows, each) for each in downs]
    left = text_width(names) + 52
    each = min(max((960 - left - 136) / len(acrosses), 40), 120)
    ticks, below = fitting_ticks([described(columns, across) for across in acrosses], each)
    high = 36 if len(downs) <= _MOST_WIDE else 24
    plot = round(each * len(acrosses))
    layout = figure_layout(
        title,
        subtitle,
        width=max(plot + left + 136, 560),
        height=max(high * len(downs), 120) + 92 + below + 30,
        margin={"l": left, "r": max(136, 560 - plot - left), "t": 92, "b": below + 30},
        notes=[
            *(["? unknown"] if values[value].has_nulls() else []),
            *_not_shown(hidden[0], f"rows ({rows})"),
            *_not_shown(hidden[1], f"columns ({columns})"),
        ],
    )
    figure = go.Figure(layout=layout)
    _add_cells(figure, values, downs, acrosses, unit)
    figure.update_xaxes(ticks)
    if columns not in SELF_TOLD:
        figure.update_xaxes(title_text=figure_text(columns))
    figure.update_yaxes(
        **PLAIN_AXIS, tickvals=list(range(len(downs))), range=[len(downs) - 0.5, -0.5],
        ticktext=[figure_text(name) for name in names],
    )  # fmt: skip
    return figure


def _without_nan(values: pl.DataFrame) -> pl.DataFrame:
    import polars.selectors as cs

    return values.with_columns(cs.float().fill_nan(None))


def _add_cells(
    figure: go.Figure,
    table: pl.DataFrame,
    downs: Sequence[Any],
    acrosses: Sequence[Any],
    unit: str,
) -> None:
    """Add the map of a table of rows, columns and values, and marks where a value is unknown."""
    import plotly.graph_objects as go

    values = {(down, across): value for down, across, value in table.iter_rows()}
    known = [value for value in values.values() if value is not None]
    whole = all(isinstance(value, int) for value in known)
    decimals = 0 if whole else decimals_of(max(map(abs, known), default=0))
    cells = [[values.get((down, across)) for across in acrosses] for down in downs]
    texts = [[_cell_text(value, decimals) for value in line] for line in cells]
    suffix = f" {figure_text(unit)}" if unit else ""
    figure.add_trace(
        go.Heatmap(
            x=list(range(len(acrosses))),
            y=list(range(len(downs))),
            z=cells,
            text=texts,
            texttemplate="%{text}",
            textfont={"size": 12 if len(acrosses) <= _MOST_WIDE else 10},
            hoverinfo="text",
            hovertext=[[text and f"{text}{suffix}" for text in line] for line in texts],
            hoverongaps=False,
            colorbar=colour_bar(unit),
            showscale=bool(known),
            xgap=2,
            ygap=2,
            **_cell_colours(known),
        )
    )
    unknown = [
        (x, y)
        for y, down in enumerate(downs)
        for x, across in enumerate(acrosses)
        if values.get((down, across), 0) is None
    ]
    figure.add_trace(
        go.Scatter(
            x=[x for x, _ in unknown],
            y=[y for _, y in unknown],
            text=["?"] * len(unknown),
            mode="text",
            hoverinfo="skip",
            showlegend=False,
        )
    )


def _cell_text(value: float | None, decimals: int) -> str:
    return "" if value is None else f"{value:,.{decimals}f}".replace("-", MINUS)


def _cell_colours(known: Sequence[float]) -> dict[str, Any]:
    """Return the colours of some values: two ways from zero where some are below it."""
    low, high = min(known, default=0), max(known, default=1)
    if low < 0:
        ends = max(-low, high)
        scale = [(place / (len(DIVERGING) - 1), each) for place, each in enumerate(DIVERGING)]
        return {"colorscale": scale, "zmin": -ends, "zmax": ends}
    return {"colorscale": colour_scale(), "zmin": low if low < high else 0, "zmax": high or 1}
