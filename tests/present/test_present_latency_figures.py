from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from present_frames import HOSTILE

from tracekit.errors import UsageError
from tracekit.present import Heading, histogram_figure, latency_figure
from tracekit.present._latency_figures import binary_size

TIMES = {
    "library": pl.String, "operation": pl.String, "size_bytes": pl.Int64, "p50_ns": pl.Int64,
    "min_ns": pl.Int64, "p95_ns": pl.Int64,
}  # fmt: skip
COUNTS = {"library": pl.String, "size_bytes": pl.Int64, "count": pl.Int64}
MPI = [("mpi", "all_reduce", 2**k, 1000 + 2**k, 900, 4000 + 2**k) for k in range(3, 9)]


def timed(rows: list[tuple[Any, ...]]) -> go.Figure:
    frame = pl.DataFrame(rows, TIMES, orient="row")
    return latency_figure(frame, heading=Heading("Latency", "run r"))


def counted(rows: list[tuple[Any, ...]]) -> go.Figure:
    frame = pl.DataFrame(rows, COUNTS, orient="row")
    return histogram_figure(frame, heading=Heading("Messages", "run r"))


def texts(figure: go.Figure) -> list[str]:
    return [each.text for each in figure.layout.annotations]


def test_a_line_of_medians_in_a_band() -> None:
    figure = timed(MPI[::-1])
    band, line = figure.data
    assert line.x == (8, 16, 32, 64, 128, 256)
    assert line.y[0] == 1008
    assert band.x == (*line.x, *line.x[::-1])
    assert band.y[:2] == (4008, 4016)
    assert band.y[-1] == 900
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    assert figure.layout.xaxis.ticktext[0] == "8 B"
    assert {"1 us", "2 us", "5 us"} <= set(figure.layout.yaxis.ticktext)
    assert {"all: mpi, all_reduce", "band: shortest to 95th percentile"} <= set(texts(figure))
    assert figure.layout.showlegend is False


def test_percentiles_are_preferred_to_extremes() -> None:
    frame = pl.DataFrame(MPI, TIMES, orient="row").with_columns(p5_ns=pl.lit(950), max_ns=10**6)
    figure = latency_figure(frame, heading=Heading("", ""))
    assert "band: 5th to 95th percentile" in texts(figure)
    assert figure.data[0].y[-1] == 950
    figure = latency_figure(frame.with_columns(p5_ns=None, p95_ns=None), heading=Heading("", ""))
    assert "band: shortest to longest" in texts(figure)


def test_series_are_told_apart_by_colour_and_marker() -> None:
    figure = timed([*MPI, *(("nccl", *row[1:]) for row in MPI)])
    lines = [trace for trace in figure.data if trace.name]
    assert [line.name for line in lines] == ["mpi", "nccl"]
    assert lines[0].line.color != lines[1].line.color
    assert lines[0].marker.symbol != lines[1].marker.symbol
    many = timed([("mpi", f"op{n}", 8, 1000 + n, 900, 4000) for n in range(14)])
    assert len(many.data) == 12
    assert "not shown: 2 more" in texts(many)


def test_what_has_no_place_on_the_axes_is_counted() -> None:
    figure = timed(
        [*MPI, ("mpi", "all_reduce", 0, 5, 5, 5), ("mpi", "all_reduce", None, 5, 5, 5),
         ("mpi", "all_reduce", 4, None, None, None)]
    )  # fmt: skip
    assert "not drawn: 3 with a size or a time of 0 or unknown" in texts(figure)
    assert figure.data[1].x == (8, 16, 32, 64, 128, 256)
    assert "no messages of a known size" in texts(timed([("mpi", "barrier", None, 5, 5, 5)]))
    assert "no messages of a known size" in texts(timed([]))


def test_one_size_without_a_band() -> None:
    (line,) = timed([("mpi", "all_reduce", 8, 1500, None, None)]).data
    assert (line.x, line.y) == ((8,), (1500,))


def test_classes_of_sizes_are_refused() -> None:
    table = pl.DataFrame({"class": ["small"], "p50_ns": [5]})
    with pytest.raises(UsageError, match="classes of sizes cannot be drawn as a curve"):
        latency_figure(table, heading=Heading("", ""))


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 2**40), st.integers(1, 10**13)), min_size=1))
def test_all_medians_are_within_the_axes(points: list[tuple[int, int]]) -> None:
    figure = timed([("mpi", "all_reduce", size, time, None, None) for size, time in points])
    for axis, values in zip(
        (figure.layout.xaxis, figure.layout.yaxis), zip(*points, strict=True), strict=True
    ):
        low, high = (10**end for end in axis.range)
        assert low <= min(values) * 1.001
        assert max(values) <= high * 1.001
        assert any(low * 0.999 <= tick <= high * 1.001 for tick in axis.tickvals)


def test_messages_by_power_of_two() -> None:
    figure = counted([("mpi", 8, 1200), ("mpi", 0, 2), ("nccl", 32, 7), ("mpi", None, 40)])
    mpi, nccl = figure.data
    assert (mpi.name, mpi.x, mpi.y) == ("mpi", (-1, 3), (2, 1200))
    assert (nccl.name, nccl.x, nccl.y) == ("nccl", (5,), (7,))
    assert mpi.text == ("2", "1,200")
    assert figure.layout.xaxis.ticktext == ("0 B", "1 B", "2 B", "4 B", "8 B", "16 B", "32 B")
    assert "8 B to below 16 B<br>1,200 messages" in mpi.hovertext
    assert "not drawn: 40 messages of an unknown size" in texts(figure)
    assert "no messages of a known size" in texts(counted([]))


def test_buckets_far_apart_have_few_labels() -> None:
    figure = counted([("mpi", 2**k, 3) for k in (0, 20, 40)])
    assert len(figure.layout.xaxis.ticktext) <= 12
    assert figure.layout.yaxis.dtick == 1


def test_sizes_in_binary_units() -> None:
    assert [binary_size(size) for size in (0, 1, 1024, 1536, 2**20, 2**30, 2**41)] == [
        "0 B", "1 B", "1 KiB", "1.5 KiB", "1 MiB", "1 GiB", "2048 GiB"
    ]  # fmt: skip


def test_hostile_names_stay_text() -> None:
    name = f"{HOSTILE}%{{x}}$a$"
    for figure in (
        timed([(name, "op", 8, 5, 5, 5), ("b", "op", 8, 5, 5, 5)]),
        counted([(name, 8, 5), ("b", 8, 5)]),
    ):
        page = figure.to_json()
        assert "\\u001b" not in page
        assert "<b>&amp;" not in page
        assert "$a" not in page
        assert all(trace.hovertemplate is None for trace in figure.data)
