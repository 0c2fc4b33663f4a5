from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import polars as pl
import pytest
from present_frames import HOSTILE

from tracekit.present import Heading, memory_figure, memory_fit_figure

GB = 10**9
USE = {
    "network": pl.String, "batch": pl.Int64, "gpu": pl.Int64, "pre_bytes": pl.Int64,
    "training_bytes": pl.Int64, "memory_bytes": pl.Int64,
}  # fmt: skip
FIT = {
    "network": pl.String, "slope_bytes": pl.Float64, "intercept_bytes": pl.Float64,
    "usable_bytes": pl.Int64, "largest_batch": pl.Int64, "predicted_bytes": pl.Int64,
}  # fmt: skip


def used(rows: list[tuple[Any, ...]]) -> go.Figure:
    frame = pl.DataFrame(rows, USE, orient="row")
    return memory_figure(frame, heading=Heading("Memory", "study"))


def fitted(
    points: list[tuple[str, int, int | None]], fit: list[tuple[Any, ...]], **options: Any
) -> go.Figure:
    schema = {"network": pl.String, "batch": pl.Int64, "training_bytes": pl.Int64}
    return memory_fit_figure(
        pl.DataFrame(points, schema, orient="row"), pl.DataFrame(fit, FIT, orient="row"),
        heading=Heading("Largest batch", "study"), **options,
    )  # fmt: skip


def texts(figure: go.Figure) -> list[str]:
    return [each.text for each in figure.layout.annotations]


def test_pairs_of_bars_per_gpu_under_their_configuration() -> None:
    figure = used(
        [("A", b, g, GB, (2 + g) * GB, 16 * GB) for g in (0, 1) for b in (16, 32)]
    )  # fmt: skip
    before, training, capacity = figure.data
    assert (before.name, training.name, capacity.name) == (
        "before training",
        "training",
        "capacity",
    )
    assert before.x == (1.0,) * 4
    assert training.x == (2.0, 3.0, 2.0, 3.0)
    assert figure.layout.yaxis.ticktext == ("GPU 0", "GPU 1") * 2
    assert {"<b>batch 16</b>", "<b>batch 32</b>", "all: A"} <= set(texts(figure))
    assert set(capacity.x) == {16.0, None}
    assert figure.layout.xaxis.title.text == "memory in use (GB)"


def test_unknown_use_is_a_mark() -> None:
    figure = used([("A", 16, 0, None, 2 * GB, None), ("A", 16, 1, None, None, None)])
    before, training = figure.data
    assert before.text == ("?",)
    assert training.text == ("2.00",)
    assert {"? unknown", "the capacity of the GPUs is unknown"} <= set(texts(figure))
    assert "no use of memory" in texts(used([]))


def test_a_capacity_far_beyond_is_said() -> None:
    figure = used([("A", 16, 0, GB, 2 * GB, 80 * GB)])
    assert len(figure.data) == 2
    assert "capacity, beyond the axis: up to 80.00 GB" in texts(figure)
    assert figure.layout.xaxis.range[1] < 3


def test_runs_are_named_where_nothing_else_tells_them_apart() -> None:
    table = pl.DataFrame(
        {"run": ["r1", "r2"], "device": [0, 0], "pre_bytes": [1, 2], "training_bytes": [3, 4]}
    )
    figure = memory_figure(table, heading=Heading("", ""))
    assert figure.layout.yaxis.ticktext == ("r1", "r2")
    figure = memory_figure(table.with_columns(batch=pl.Series([8, 16])), heading=Heading("", ""))
    assert figure.layout.yaxis.ticktext == ("batch 8", "batch 16")


def test_more_than_forty_rows() -> None:
    figure = used([("A", b, 0, GB, GB, None) for b in range(50)])
    assert len(figure.layout.yaxis.ticktext) == 40
    assert "not shown: 10 more" in texts(figure)


def test_the_line_ends_at_the_largest_batch() -> None:
    figure = fitted(
        [("A", 16, 4 * GB), ("A", 32, 6 * GB)],
        [("A", 0.125 * GB, 2.0 * GB, 12 * GB, 80, 12 * GB)],
        capacity_bytes=16 * GB,
    )
    points, line, beyond = figure.data
    assert points.name == "measured; largest batch 80, extrapolated"
    assert (points.x, points.y) == ((16, 32), (4.0, 6.0))
    assert (line.x, line.y, line.line.dash) == ((0, 32), (2.0, 6.0), "solid")
    assert (beyond.x, beyond.y, beyond.line.dash) == ((32, 80), (6.0, 12.0), "dash")
    assert {"capacity<br>16.00 GB", "usable<br>12.00 GB"} <= set(texts(figure))
    assert [shape.y0 for shape in figure.layout.shapes] == [12.0, 16.0]


def test_a_line_that_reaches_far_ends_where_it_crosses_and_has_its_number() -> None:
    figure = fitted(
        [("A", 16, 4 * GB), ("B", 16, 4 * GB)],
        [("A", 1.0, 4.0 * GB, 12 * GB, 9000, 12 * GB)],
    )
    first = "A; largest batch 9,000, extrapolated"
    assert figure.data[2].x == (16, 9000)
    assert [trace.name for trace in figure.data] == [first, None, None, "B"]


def test_points_without_a_line_and_none_at_all() -> None:
    figure = fitted([("A", 16, 4 * GB), ("A", 32, None)], [("A", *[None] * 5)])
    (points,) = figure.data
    assert points.x == (16,)
    assert "no line could be fitted" in texts(figure)
    assert "no use of memory" in texts(fitted([], []))


@pytest.mark.parametrize("name", [HOSTILE, "%{x}$a$"])
def test_hostile_names_stay_text(name: str) -> None:
    figures = [
        used([(name, 16, 0, GB, GB, GB), ("b", 16, 0, GB, GB, GB)]),
        fitted([(name, 16, GB), ("b", 16, GB)], []),
    ]
    for figure in figures:
        page = figure.to_json()
        assert "\\u001b" not in page
        assert "<b>&amp;" not in page
        assert "$a" not in page
        assert all(trace.hovertemplate is None for trace in figure.data)
