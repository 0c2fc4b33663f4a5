"""Roofline figure: FLOP/s over FLOP per byte, with the GPU's peaks, both axes logarithmic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
import polars as pl

from tracekit.present._figures import (
    MUTED,
    SERIES_COLOURS,
    Heading,
    empty_figure,
    figure_layout,
    figure_text,
    legend_above,
)
from tracekit.support.wording import duration, shorten

_COLOURS = dict(zip(("computing", "memory", "launch"), SERIES_COLOURS[1:], strict=False))
_LARGEST = 48
"""Diameter in pixels of the point with the most time; areas are proportional to time."""
_LEAST = 5
_NAMED = 6
_APART = (0.9, 0.25)
"""Least distance of labels in decades, across and up."""
_TERA = 10**12
_LETTERS = 32
_TOP = 112


def roofline_figure(rows: pl.DataFrame, meta: Mapping[str, Any], *, heading: Heading) -> go.Figure:
    """Return the rows of a roofline as points, sized by kernel time.

    Rows without FLOPs or bytes are not drawn; a note gives their time.

    Parameters
    ----------
    rows
        Rows of `Run.roofline`: key columns first, then ``kernel_ns``, ``flops_per_byte``,
        ``achieved_flops_s``, ``bound``.
    meta
        Meta of the answer, with ``peaks`` and ``memory_peaks`` of the GPUs.
    """
    placed = rows.filter((pl.col("flops_per_byte") > 0) & (pl.col("achieved_flops_s") > 0))
    if placed.is_empty():
        return empty_figure(heading, "no operators whose FLOPs and bytes are known")
    keys = rows.columns[: rows.columns.index("operators")]
    names = pl.concat_str([pl.col(key).cast(pl.String).fill_null("-") for key in keys],
                          separator=", ")  # fmt: skip
    placed = placed.sort("kernel_ns", descending=True).with_columns(text=names)
    left_out = int(rows["kernel_ns"].sum()) - int(placed["kernel_ns"].sum())
    note = f"Not drawn: {duration(left_out)} of kernels that multiply nothing, or of unknown sizes."
    figure = go.Figure(layout=figure_layout(
        heading, height=560, margin={"t": _TOP},
        notes=["The area of a point is the time of its kernels.", note],
    ))  # fmt: skip
    low, high = (math.log10(each) for each in _ends(placed["flops_per_byte"]))
    _add_roofs(figure, meta, 10**low, 10**high)
    most = int(placed["kernel_ns"][0])
    labelled = placed.with_columns(label=pl.Series(_labels(placed)))
    for bound, points in labelled.group_by("bound", maintain_order=True):
        _add_points(figure, points, bound[0], most)
    figure.update_xaxes(type="log", range=[low, high], title_text="FLOP per byte", dtick=1)
    figure.update_yaxes(type="log", title_text="TFLOP/s", dtick=1)
    figure.update_layout(legend=legend_above(figure.layout))
    return figure


def _ends(values: pl.Series) -> tuple[float, float]:
    """Return the ends of an axis: a decade beyond the points."""
    least, most = float(values.min()), float(values.max())  # type: ignore[arg-type]
    return 10 ** (math.floor(math.log10(least)) - 0.5), 10 ** (math.ceil(math.log10(most)) + 0.5)


def _labels(points: pl.DataFrame) -> list[str]:
    """Return a text per point: its name for the largest points not near a labelled one, else ""."""
    taken: list[tuple[float, float]] = []
    texts = []
    for text, x, y in points.select(
        pl.col(points.columns[0]).cast(pl.String).fill_null("-"),
        "flops_per_byte",
        "achieved_flops_s",
    ).iter_rows():
        at = math.log10(x), math.log10(y)
        is_free = all(abs(at[0] - a) > _APART[0] or abs(at[1] - b) > _APART[1] for a, b in taken)
        shown = is_free and len(taken) < _NAMED
        taken += [at] if shown else []
        texts.append(figure_text(shorten(text, _LETTERS)) if shown else "")
    return texts


def _add_points(figure: go.Figure, points: pl.DataFrame, bound: str | None, most: int) -> None:
    sizes = [max(_LARGEST * math.sqrt(each / most), _LEAST) for each in points["kernel_ns"]]
    hover = [
        f"{figure_text(text)}<br>{duration(ns)}, {flops / _TERA:,.4g} TFLOP/s, {ratio:,.4g} FLOP/B"
        for text, ns, flops, ratio in points.select(
            "text", "kernel_ns", "achieved_flops_s", "flops_per_byte"
        ).iter_rows()
    ]  # fmt: skip
    figure.add_scatter(
        x=points["flops_per_byte"].to_list(), y=(points["achieved_flops_s"] / _TERA).to_list(),
        mode="markers+text", name=figure_text(bound or "unknown"),
        text=points["label"].to_list(),
        textposition="bottom center", hoverinfo="text", hovertext=hover,
        marker={"size": sizes, "color": _COLOURS.get(bound or "", MUTED), "opacity": 0.75},
    )  # fmt: skip


def _add_roofs(figure: go.Figure, meta: Mapping[str, Any], low: float, high: float) -> None:
    """Add a line per peak: slanted for memory bandwidth, flat for each precision."""
    for product, bandwidth in meta["memory_peaks"].items():
        peaks = meta["peaks"].get(product) or meta["peaks"].get("given") or {}
        for precision, peak in peaks.items():
            ridge = min(max(peak / bandwidth, low), high)
            along = [low, ridge, high]
            figure.add_scatter(
                x=along, y=[min(each * bandwidth, peak) / _TERA for each in along], mode="lines",
                name=figure_text(f"{precision} of {product}"), hoverinfo="name",
                line={"color": MUTED, "width": 1.5, "dash": _DASHES.get(precision, "solid")},
            )  # fmt: skip


_DASHES = {"fp32": "dot", "tf32": "dash", "fp16": "dashdot", "fp64": "longdash"}
