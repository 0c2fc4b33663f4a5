"""Figures of comparisons of two runs: step time by stage, and the groups that changed most.

A is the base run, B the run compared with it; a change is B - A.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from tracekit.errors import UsageError
from tracekit.model import readable_names
from tracekit.present._charts import Part as Segment
from tracekit.present._charts import Row, Rows, intervals, written_bars
from tracekit.present._figures import (
    GRID,
    INK,
    MINUS,
    MUTED,
    PLAIN_AXIS,
    Heading,
    decimals_of,
    empty_figure,
    figure_layout,
    figure_text,
    legend_above,
    legend_lines,
    named_places,
    signed,
    text_width,
)
from tracekit.present._waterfall import (
    ACROSS,
    MOST_GPUS,
    Part,
    add_gpus,
    first_shown,
    levels_of,
    on_gpus,
    parts_of,
    reaches_of,
    stage_colour,
    stage_name,
    stage_tick,
    step_unit,
    total,
    waterfall,
)
from tracekit.support.wording import count, printable, shorten, shorten_apart

VERDICT_COLOURS = {
    "faster": "#88CCEE",
    "slower": "#882255",
    "too small to matter": "#BBBBBB",
    "no difference shown": "#7A8794",
    "not enough iterations": "#E4E8EC",
    "unknown": "#F3F5F7",
}
"""Colour of each verdict of a comparison; none is a stage's colour."""

_NO_TIME = "no time in any stage"
_NO_CHANGES = "nothing to compare"
_INTERVAL = "95 % interval"
_LEAST_COLUMN = 56
_WIDEST_RUN = 30
_WIDEST_NAME = 46
_WIDEST_KERNEL = 52
_MOST_GROUPS, _FEWEST = 25, 5
_LEAST_SEEN = 0.01
"""Groups whose change is below this share of the largest are left out, beyond the first few."""
_WIDTH = 1080
_BARS, _WATERFALL, _PANEL, _BETWEEN = 102, 276, 150, 78


def comparison_figure(
    contributions: pl.DataFrame,
    *,
    names: tuple[str, str],
    heading: Heading,
    devices: pl.DataFrame | None = None,
) -> go.Figure:
    """Return the steps of A and B as stacked bars, and below a waterfall from A's to B's step time.

    Above, each run is a bar: exposed time by stage, and idle time. Below, each stage adds its
    change to the step time of A until that of B is reached; labels give the change and its share of
    A's step. Panels at the bottom show the same for each GPU.

    Parameters
    ----------
    contributions
        One row per stage, ``idle``, or ``between`` iterations: ``stage``, ``a_ns``, ``b_ns``
        (exposed time per iteration, ns) and ``delta_ns``; null where unknown, drawn as ``?``. With
        ``low_ns`` and ``high_ns`` each change has its interval.
    names
        Plain names of the runs A and B.
    devices
        The same columns and ``device``, one row per stage and GPU; None if not known. At most 16
        GPUs are drawn.
    """
    parts = parts_of(contributions)
    if not parts:
        return empty_figure(heading, _NO_TIME)
    gpus = on_gpus(devices)
    unit = step_unit(max(total(parts, "a"), total(parts, "b")))
    levels = levels_of(parts)
    reaches = reaches_of(parts, levels)
    first = first_shown(reaches)
    labels = [f"A  {shorten(printable(names[0]), _WIDEST_RUN)}"]
    labels.append(f"B  {shorten(printable(names[1]), _WIDEST_RUN)}")
    left = max(text_width(labels, 13) + 24, 88)
    figure, high = _rows(-(-len(gpus[:MOST_GPUS]) // ACROSS))
    layout = figure_layout(
        heading,
        height=high + 166,
        margin={"l": left, "r": 96, "t": 118, "b": 48},
        notes=_comparison_notes(parts, first, len(gpus) - MOST_GPUS),
        least=_LEAST_COLUMN * (len(parts) + 2),
    )
    look = {"barmode": "stack", "bargap": 0.38, "legend": legend_above(layout)}
    figure.update_layout({**layout, **look}, overwrite=True)
    figure.add_traces(_stacks(parts, unit), rows=1, cols=1)
    changes = [*waterfall(parts, levels, unit), _step_labels(parts, reaches, unit)]
    figure.add_traces(changes, rows=2, cols=1)
    _stack_axes(figure, parts, labels, unit)
    _step_axes(figure, parts, reaches, first, unit)
    if gpus:
        add_gpus(figure, gpus[:MOST_GPUS], unit, first_row=3)
    return figure


def _rows(more: int) -> tuple[go.Figure, int]:
    """Return a figure of two wide plots above `more` rows of small ones, and its height, pixels."""
    heights = [_BARS, _WATERFALL, *[_PANEL] * more]
    high = sum(heights) + _BETWEEN * (len(heights) - 1)
    wide = [{"colspan": ACROSS}, *[None] * (ACROSS - 1)]
    figure = make_subplots(
        rows=len(heights), cols=ACROSS, row_heights=heights, vertical_spacing=_BETWEEN / high,
        horizontal_spacing=0.07, specs=[wide, wide, *[[{}] * ACROSS] * more],
    )  # fmt: skip
    return figure, high


def _total_text(parts: Sequence[Part], run: str, unit: tuple[int, str]) -> str:
    """Return a run's step time as text; as a lower bound if a stage's time is unknown."""
    more = "≥ " if any(getattr(part, run) is None for part in parts) else ""
    return f"<b>{more}{total(parts, run) / unit[0]:,.{_decimals(parts, unit)}f} {unit[1]}</b>"


def _stacks(parts: Sequence[Part], unit: tuple[int, str]) -> list[go.Bar]:
    """Return one bar trace per stage, with both runs; long segments show their length."""
    longest = max(total(parts, "a"), total(parts, "b"))
    rows = Rows([Row(0, "A"), Row(1, "B")], [], 1.5)
    stages = [Segment(stage_name(part.stage), stage_colour(part.stage), [part.a, part.b])
              for part in parts]  # fmt: skip
    return [written_bars(stage, rows, unit, longest) for stage in stages]


def _stack_axes(
    figure: go.Figure, parts: Sequence[Part], labels: Sequence[str], unit: tuple[int, str]
) -> None:
    figure.update_yaxes(**named_places(labels), tickfont_size=13, row=1, col=1)
    widest = max(total(parts, "a"), total(parts, "b")) / unit[0]
    figure.update_xaxes(
        title_text=f"exposed time per iteration ({unit[1]})", range=[0, widest], row=1, col=1
    )
    for place, run in enumerate("ab"):
        figure.add_annotation(
            text=_total_text(parts, run, unit), showarrow=False, xanchor="left", xshift=6,
            x=total(parts, run) / unit[0], y=place, row=1, col=1,
        )  # fmt: skip


def _step_labels(
    parts: Sequence[Part], reaches: Sequence[tuple[float, float]], unit: tuple[int, str]
) -> go.Scatter:
    """Return the labels above the bars: step times, and changes with their share of A's step."""
    before, after = total(parts, "a"), total(parts, "b")
    decimals = _decimals(parts, unit)
    tops = [before, *(high for _, high in reaches), after]
    return go.Scatter(
        x=list(range(len(tops))),
        y=[top / unit[0] for top in tops],
        text=[
            _total_text(parts, "a", unit),
            *(_change_text(part.delta, before, unit, decimals) for part in parts),
            _total_text(parts, "b", unit),
        ],
        mode="text",
        textposition="top center",
        cliponaxis=False,
        hoverinfo="skip",
        showlegend=False,
    )


def _change_text(delta: float | None, before: float, unit: tuple[int, str], decimals: int) -> str:
    """Return the change `delta` as text, below it in percent of `before`, the time in A."""
    if delta is None:
        return "?"
    absolute = signed(delta / unit[0], decimals)
    return absolute if before <= 0 else f"{absolute}<br>{signed(100 * delta / before, 1)} %"


def _decimals(parts: Sequence[Part], unit: tuple[int, str]) -> int:
    """Return the number of decimals for step times and changes alike, so that they add up."""
    largest = max(abs(part.delta or 0) for part in parts) / unit[0]
    return min(decimals_of(largest), decimals_of(total(parts, "a") / unit[0]) + 1)


def _step_axes(
    figure: go.Figure,
    parts: Sequence[Part],
    reaches: Sequence[tuple[float, float]],
    first: float,
    unit: tuple[int, str],
) -> None:
    names = ["<b>A</b>", *(stage_tick(part.stage) for part in parts), "<b>B</b>"]
    look = {**PLAIN_AXIS, "tickvals": list(range(len(names))), "ticktext": names}
    figure.update_xaxes(**look, range=[-0.5, len(names) - 0.5], row=2, col=1)
    high = max(total(parts, "b"), *(end for _, end in reaches))
    ends = [first / unit[0], (high + 0.22 * (high - first)) / unit[0]]
    # Labels stand where lines of a grid would cross them.
    figure.update_yaxes(
        title_text=f"step time ({unit[1]})", range=ends, showgrid=False, row=2, col=1
    )


def _comparison_notes(parts: Sequence[Part], first: float, hidden: int) -> list[str]:
    notes = {
        "percent: of the step time of A": True,
        f"whiskers: {_INTERVAL} of each change": any(None not in part for part in parts),
        "between steps: after one, before the next": any(p.stage == "between_steps" for p in parts),
        "the axis of step times does not begin at 0": first > 0,
        f"not shown: {count(hidden, 'more GPU')}": hidden > 0,
        "? unknown in one of the runs": any(None in part[1:4] for part in parts),
    }
    return [note for note, applies in notes.items() if applies]


def changes_figure(
    table: pl.DataFrame,
    *,
    key: str | Sequence[str],
    names: tuple[str, str],
    heading: Heading,
) -> go.Figure:
    """Return bars of the groups (such as kernels) that changed most between two runs.

    One bar per group, with the interval of its change, largest change on top, at most 25; a note
    gives the number left out. On the right is the time of each group in A and in B.

    Parameters
    ----------
    table
        One row per group: the columns `key`, ``a_ns``, ``b_ns`` (time per iteration, ns),
        ``delta_ns``, ``low_ns`` and ``high_ns`` (interval of the change; null if there is none),
        ``verdict``, one of `VERDICT_COLOURS` or null, and optionally ``only_in``: ``A`` or ``B`` if
        only that run has the group, else null.
    key
        The column, or columns, that name a group.
    names
        Plain names of the runs A and B.

    Raises
    ------
    UsageError
        If the table has no times.
    """
    if "delta_ns" not in table.columns:
        raise UsageError("only changes of times can be drawn", "compare by another key")
    if table.is_empty():
        return empty_figure(heading, _NO_CHANGES)
    groups = _largest(table, key)
    unit = step_unit(_reach(groups))
    bars = _change_bars(groups, unit)
    labels = _labels(groups)
    margin = {"l": max(text_width(labels) + 32, 160), "r": 148, "b": 62}
    lines = legend_lines(
        [bar.name for bar in bars] + [_INTERVAL], _WIDTH - margin["l"] - margin["r"]
    )
    layout = figure_layout(
        heading,
        width=_WIDTH,
        height=max(26 * len(groups), 60) + 186 + 20 * lines,
        margin={**margin, "t": 122 + 20 * lines},
        notes=_changes_notes(names, groups, table.height - len(groups)),
    )
    legend = legend_above(layout, gap=34)
    figure = go.Figure(layout={**layout, "barmode": "overlay", "legend": legend})
    figure.add_traces(bars)
    spans = [(y, group["low_ns"] / unit[0], group["high_ns"] / unit[0])
             for y, group in enumerate(groups) if _has_interval(group)]  # fmt: skip
    if spans:
        figure.add_trace(intervals(spans, name=_INTERVAL))
    _changes_axes(figure, groups, labels, unit)
    return figure


def _largest(table: pl.DataFrame, key: str | Sequence[str]) -> list[dict[str, Any]]:
    """Return the groups that changed most; those without a known change are ranked by time."""
    times = [f"{name}_ns" for name in ("a", "b", "delta", "low", "high")]
    keys = [key] if isinstance(key, str) else key
    others = [name for name in keys if name != "name"] if "name" in keys else []
    if table.select(pl.col(keys).exclude("kind")).is_unique().all():
        others = [name for name in others if name != "kind"]
    known = table.select(
        pl.col("name").cast(pl.String) if "name" in keys else pl.lit(None, pl.String).alias("name"),
        pl.concat_str(pl.col(others).cast(pl.String), separator=", ").alias("others")
        if others
        else pl.lit("").alias("others"),
        pl.concat_str(pl.col(keys).cast(pl.String).fill_null("unknown"), separator=", ").alias(
            "key"
        ),
        pl.col("verdict").cast(pl.String),
        *(pl.col(name).cast(pl.Float64).fill_nan(None) for name in times),
        *([pl.col("only_in").cast(pl.String)] if "only_in" in table.columns else []),
    )
    if "only_in" in known.columns:
        missing = {"a_ns": "B", "b_ns": "A"}
        known = known.with_columns(
            pl.when(pl.col("only_in").ne_missing(run)).then(name) for name, run in missing.items()
        )
    size = pl.coalesce(pl.col("delta_ns").abs(), pl.max_horizontal("a_ns", "b_ns"), pl.lit(0.0))
    far = pl.max_horizontal(pl.col("low_ns", "high_ns").abs(), size)
    seen = far >= _LEAST_SEEN * far.max()
    ordered = known.sort(size, descending=True, maintain_order=True)
    return ordered.filter(seen | (pl.int_range(pl.len()) < _FEWEST)).head(_MOST_GROUPS).to_dicts()


def _labels(groups: Sequence[dict[str, Any]]) -> list[str]:
    """Return the labels of groups beside their bars; no two kernels have the same."""
    names = [printable(group["name"] or "") for group in groups]
    short = readable_names(names)
    kernels = shorten_apart([short[name] for name in names], _WIDEST_KERNEL)
    return [
        shorten(printable(group["key"]), _WIDEST_NAME)
        if group["name"] is None
        else ", ".join(filter(None, (kernel, printable(group["others"] or ""))))
        for group, kernel in zip(groups, kernels, strict=True)
    ]


def _has_interval(group: dict[str, Any]) -> bool:
    return group["low_ns"] is not None and group["high_ns"] is not None


def _reach(groups: Sequence[dict[str, Any]]) -> float:
    """Return the largest absolute value among changes and the ends of their intervals, ns."""
    changes = (group[name] for group in groups for name in ("delta_ns", "low_ns", "high_ns"))
    return max((abs(change) for change in changes if change is not None), default=0)


def _change_bars(groups: Sequence[dict[str, Any]], unit: tuple[int, str]) -> list[go.Bar]:
    """Return the bars of the groups' changes, as one trace per verdict (one colour each)."""
    found = {group["verdict"] for group in groups}
    verdicts = [verdict for verdict in (*VERDICT_COLOURS, None) if verdict in found]
    verdicts += sorted(found - set(verdicts))
    bars = []
    for verdict in verdicts:
        of_verdict = [(y, group) for y, group in enumerate(groups) if group["verdict"] == verdict]
        line = {"color": MUTED, "width": 1 if verdict not in list(VERDICT_COLOURS)[:4] else 0}
        bars.append(
            go.Bar(
                x=[group["delta_ns"] and group["delta_ns"] / unit[0] for _, group in of_verdict],
                y=[y for y, _ in of_verdict],
                width=0.66,
                orientation="h",
                name=figure_text(verdict or "no verdict"),
                marker={"color": VERDICT_COLOURS.get(verdict or "", GRID), "line": line},
                hoverinfo="text",
                hovertext=[_change_hover(group, unit) for _, group in of_verdict],
                showlegend=True,
            )
        )
    return bars


def _change_hover(group: dict[str, Any], unit: tuple[int, str]) -> str:
    decimals = decimals_of(_reach([group]) / unit[0])
    delta, low, high = (
        "unknown" if value is None else f"{signed(value / unit[0], decimals)} {unit[1]}"
        for value in (group["delta_ns"], group["low_ns"], group["high_ns"])
    )
    interval = f" ({low} to {high})" if _has_interval(group) else ""
    return "<br>".join(
        [
            f"<b>{figure_text(group['key'])}</b>",
            f"A {_taken(group['a_ns'], unit)}, B {_taken(group['b_ns'], unit)} {unit[1]}",
            f"change {delta}{interval}",
            figure_text(group["verdict"] or "no verdict"),
        ]
    )


def _taken(value: float | None, unit: tuple[int, str]) -> str:
    """Return a group's time in one run as text; `-` if the run lacks the group."""
    return "-" if value is None else f"{value / unit[0]:,.{decimals_of(value / unit[0])}f}"


def _changes_axes(
    figure: go.Figure,
    groups: Sequence[dict[str, Any]],
    labels: Sequence[str],
    unit: tuple[int, str],
) -> None:
    changes = [group[name] or 0 for group in groups for name in ("delta_ns", "low_ns", "high_ns")]
    low, high = min(0, *changes) / unit[0], max(0, *changes) / unit[0]
    room = 0.06 * (high - low) or 1
    figure.update_xaxes(
        title_text=f"change per iteration, B {MINUS} A ({unit[1]})",
        range=[low - room, high + room], zeroline=True, zerolinecolor=INK, zerolinewidth=1,
    )  # fmt: skip
    figure.update_yaxes(named_places(labels))
    _changes_column(figure, groups)


def _changes_column(figure: go.Figure, groups: Sequence[dict[str, Any]]) -> None:
    """Write the time of each group in A and in B at the right of the figure."""
    largest = max((group[name] or 0 for group in groups for name in ("a_ns", "b_ns")), default=0)
    unit = step_unit(largest)
    place = {"xref": "paper", "x": 1, "xanchor": "right", "xshift": 132, "showarrow": False}
    figure.add_annotation(
        text=f"A → B ({unit[1]})", y=1, yref="paper", yanchor="bottom", yshift=2,
        font={"size": 12, "color": MUTED}, **place,
    )  # fmt: skip
    for row, group in enumerate(groups):
        text = f"{_taken(group['a_ns'], unit)} → {_taken(group['b_ns'], unit)}"
        figure.add_annotation(text=text, y=row, yanchor="middle", font={"size": 12}, **place)


def _changes_notes(
    names: tuple[str, str], groups: Sequence[dict[str, Any]], hidden: int
) -> list[str]:
    a, b = (shorten(printable(name), 2 * _WIDEST_RUN) for name in names)
    notes = {
        f"A: {a}; B: {b}": True,
        "- not in this run": any(group[f"{run}_ns"] is None for group in groups for run in "ab"),
        f"not shown: {hidden:,} with smaller changes": hidden,
    }
    return [note for note, applies in notes.items() if applies]
