from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import plotly.graph_objects as go
import polars as pl
import pytest
from present_frames import HOSTILE

from tracekit.errors import UsageError
from tracekit.present import (
    IDLE_COLOUR,
    MINUS,
    STAGE_COLOURS,
    Heading,
    heat_figure,
    overhead_figure,
    scaling_figure,
    stage_bars_figure,
)

KEYS = {"network": pl.String, "batch": pl.Int64, "gpus": pl.Int64, "method": pl.String}
SCALING = {**KEYS, "speedup": pl.Float64, "efficiency": pl.Float64}
OVERHEAD = {**KEYS, "overhead_percent": pl.Float64}
STAGES = {**KEYS, "stage": pl.String, "exposed_ns": pl.Float64}
MS = 10**6
LENET = [("LeNet", 16, gpus, "p2p", speedup, speedup / gpus)
         for gpus, speedup in ((1, 1.0), (2, 1.62), (4, 2.37), (8, 3.36))]  # fmt: skip


def scaled(rows: list[tuple[Any, ...]], **options: Any) -> go.Figure:
    frame = pl.DataFrame(rows, SCALING, orient="row")
    return scaling_figure(frame, heading=Heading("Scaling", "study"), **options)


def over(rows: list[tuple[Any, ...]]) -> go.Figure:
    frame = pl.DataFrame(rows, OVERHEAD, orient="row")
    return overhead_figure(frame, heading=Heading("Overhead", "against p2p"))


def staged(rows: list[tuple[Any, ...]], **options: Any) -> go.Figure:
    frame = pl.DataFrame(rows, STAGES, orient="row")
    return stage_bars_figure(frame, heading=Heading("Stages", "study"), **options)


def heat(rows: list[tuple[Any, ...]], dtype: Any = pl.Float64) -> go.Figure:
    frame = pl.DataFrame(rows, {"network": pl.String, "batch": pl.Int64, "v": dtype}, orient="row")
    return heat_figure(frame, "network", "batch", "v", heading=Heading("Heat", "study"))


def texts(figure: go.Figure) -> list[str]:
    return [each.text for each in figure.layout.annotations]


def curves(figure: go.Figure) -> list[go.Scatter]:
    return [trace for trace in figure.data if trace.mode == "lines+markers" and trace.x != (None,)]


def legend(figure: go.Figure) -> list[str]:
    return [trace.name for trace in figure.data if trace.name and trace.showlegend is not False]


def test_speedup_of_the_paper_over_gpus_with_the_ideal() -> None:
    figure = scaled(LENET[::-1])
    (curve,) = curves(figure)
    assert curve.x == (1, 2, 4, 8)
    assert curve.y == (1.0, 1.62, 2.37, 3.36)
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    assert figure.layout.xaxis.tickvals == (1, 2, 4, 8)
    ideal = next(trace for trace in figure.data if trace.mode == "lines" and trace.x != (None,))
    assert ideal.x == ideal.y
    assert legend(figure) == ["p2p", "ideal"]
    assert "all: batch 16" in texts(figure)
    assert "<b>LeNet</b>" in texts(figure)


def test_efficiency_is_in_percent_of_the_ideal() -> None:
    figure = scaled(LENET, value="efficiency")
    assert curves(figure)[0].y == pytest.approx((100, 81, 59.25, 42))
    assert figure.layout.yaxis.title.text == "efficiency (%)"
    assert figure.layout.yaxis.range[0] == 0
    assert "42.0 %" in curves(figure)[0].hovertext[3]


def test_few_gpus_are_on_a_linear_axis() -> None:
    figure = scaled(LENET[:3])
    assert figure.layout.xaxis.type == "linear"
    assert figure.layout.yaxis.type is None


def test_panels_colours_and_dashes_tell_curves_apart() -> None:
    each = product(("A", "B"), (16, 32), (1, 2), ("p2p", "nccl"))
    rows = [(*key, 1.0 * key[2], 1.0) for key in each]
    figure = scaled(rows)
    assert legend(figure) == ["p2p", "nccl", "batch 16", "batch 32", "ideal"]
    drawn = curves(figure)
    assert [curve.xaxis for curve in drawn] == ["x"] * 4 + ["x2"] * 4
    looks = {(curve.line.color, curve.line.dash, curve.marker.symbol) for curve in drawn}
    assert len(looks) == 4


def test_configurations_without_a_value_are_not_drawn() -> None:
    figure = scaled([*LENET[:2], ("LeNet", 16, 4, "p2p", None, None)])
    assert curves(figure)[0].x == (1, 2)
    for rows in ([], [("LeNet", 16, 4, "p2p", None, None)]):
        assert "no runs" in texts(scaled(rows))
    assert curves(scaled([("N", None, 8, None, 4.3, 0.54)]))[0].y == (4.3,)
    with pytest.raises(UsageError, match="no scaling curves of 'speed'"):
        scaled(LENET, value="speed")


def test_many_networks_and_gpus() -> None:
    rows = [(f"N{n}", 16, g, "p2p", 1.0 * g, 1.0) for n in range(14) for g in range(1, 17)]
    figure = scaled(rows)
    assert "not shown: 2 more networks" in texts(figure)
    assert figure.layout.xaxis.tickvals == (1, 2, 4, 8, 16)
    assert len(curves(figure)) == 12


def test_overhead_by_network_and_batch() -> None:
    figure = over(
        [
            ("LeNet", 32, 4, "nccl", 24.0), ("LeNet", 16, 4, "nccl", 16.4),
            ("AlexNet", 16, 4, "nccl", -3.2), ("AlexNet", 32, 4, "nccl", None),
        ]
    )  # fmt: skip
    small, large = figure.data
    assert (small.name, large.name) == ("batch 16", "batch 32")
    assert (small.x, small.y) == ((0, 1), (16.4, -3.2))
    assert (large.x, large.y) == ((0,), (24.0,))
    assert small.text == ("16.4", f"{MINUS}3.2")
    assert small.marker.color != large.marker.color
    assert figure.layout.xaxis.ticktext == ("LeNet", "AlexNet")
    assert figure.layout.yaxis.zeroline
    assert figure.layout.yaxis.range[0] < -3.2
    assert "all: nccl, 4 GPUs" in texts(figure)


def test_overheads_of_several_methods_have_panels_of_one_scale() -> None:
    figure = over([("L", 16, gpus, "nccl", 10.0 * gpus) for gpus in (1, 2)])
    assert {"<b>1 GPU</b>", "<b>2 GPUs</b>", "all: batch 16, nccl"} <= set(texts(figure))
    assert [bar.yaxis for bar in figure.data] == ["y", "y2"]
    assert figure.layout.yaxis.range == figure.layout.yaxis2.range


def test_overheads_of_strong_and_weak_runs_are_apart() -> None:
    rows = [("L", 16, 4, "nccl", 10.0), ("L", 16, 4, "nccl", 30.0)]
    frame = pl.DataFrame(rows, OVERHEAD, orient="row")
    frame = frame.with_columns(scaling=pl.Series(["strong", "weak"]))
    figure = overhead_figure(frame, heading=Heading("", ""))
    assert [bar.y for bar in figure.data] == [(10.0,), (30.0,)]


def test_pooled_runs_show_how_many_they_are_and_their_spread() -> None:
    rows = [("L", 16, 1, "p2p", 1.0, 1.0), ("L", 16, 2, "p2p", 1.6, 0.8)]
    frame = pl.DataFrame(rows, SCALING, orient="row").with_columns(
        runs=pl.Series([1, 3]),
        speedup_low=pl.Series([None, 1.2]),
        speedup_high=pl.Series([None, 2.4]),
    )
    for value, factor in (("speedup", 1), ("efficiency", 50)):
        figure = scaling_figure(frame, value=value, heading=Heading("", ""))
        bars = curves(figure)[0].error_y
        assert bars.array == pytest.approx((0, 0.8 * factor))
        assert bars.arrayminus == pytest.approx((0, 0.4 * factor))
        assert figure.layout.yaxis.range[1] > 2.4 * factor
        assert any("medians of n = 3 runs, with least and greatest" in text
                   for text in texts(figure))  # fmt: skip
    assert curves(scaled(LENET))[0].error_y.array is None


def test_overheads_of_pooled_runs_show_their_spread() -> None:
    rows = [("L", 16, 4, "nccl", 10.0), ("A", 16, 4, "nccl", 20.0)]
    frame = pl.DataFrame(rows, OVERHEAD, orient="row").with_columns(
        runs=pl.Series([2, 1]), baseline_runs=pl.Series([4, 1]),
        low_percent=pl.Series([-5.0, None]), high_percent=pl.Series([40.0, None]),
    )  # fmt: skip
    figure = overhead_figure(frame, heading=Heading("", ""))
    (bar,) = figure.data
    assert (bar.error_y.array, bar.error_y.arrayminus) == ((30, 0), (15, 0))
    assert figure.layout.yaxis.range[0] < -5
    assert figure.layout.yaxis.range[1] > 40
    assert any("medians of n = 4 runs" in text for text in texts(figure))


def test_overheads_of_runs_that_are_not_pooled_are_in_panels_of_their_own() -> None:
    rows = [("L", 16, 4, "nccl", 10.0), ("L", 16, 4, "nccl", 30.0)]
    frame = pl.DataFrame(rows, OVERHEAD, orient="row").with_columns(
        run=pl.Series(["a", "b"]), baseline_run=pl.lit("base")
    )
    figure = overhead_figure(frame, heading=Heading("", ""))
    assert [bar.y for bar in figure.data] == [(10.0,), (30.0,)]
    assert {"<b>a</b>", "<b>b</b>"} <= set(texts(figure))


def test_no_overhead() -> None:
    for rows in ([], [("L", 16, 4, "nccl", None)]):
        assert "no runs" in texts(over(rows))


def test_stages_are_stacked_by_configuration_under_networks() -> None:
    rows = [(n, 16, g, "p2p", s, 1.0 * MS * g) for n in ("L", "A") for g in (1, 2)
            for s in ("idle", "WU", "FP+BP")]  # fmt: skip
    figure = staged(rows)
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert [(bar.name, bar.marker.color) for bar in bars] == [
        ("FP+BP", STAGE_COLOURS["FP"]), ("WU", STAGE_COLOURS["WU"]), ("idle", IDLE_COLOUR)
    ]  # fmt: skip
    assert figure.layout.yaxis.ticktext == ("1 GPU", "2 GPUs") * 2
    places = figure.layout.yaxis.tickvals
    assert all(after - before >= 1 for before, after in pairwise(places))
    assert {"<b>L</b>", "<b>A</b>", "all: batch 16, p2p"} <= set(texts(figure))
    assert bars[0].x == (1.0, 2.0, 1.0, 2.0)
    assert [text for text in texts(figure) if text in {"3.00", "6.00"}] == ["3.00", "6.00"] * 2
    assert figure.layout.xaxis.title.text == "exposed time per iteration (ms)"


def test_a_configuration_of_each_network_needs_no_headings() -> None:
    figure = staged([("L", 16, 1, "p2p", "FP", 1.0), ("A", 16, 2, "p2p", "FP", 1.0)], per="epoch")
    assert figure.layout.yaxis.ticktext == ("L, 1 GPU", "A, 2 GPUs")
    assert figure.layout.xaxis.title.text == "exposed time per epoch (ns)"


def test_rows_of_a_network_stand_together() -> None:
    rows = [(n, 16, g, None, "FP", 1.0) for g in (1, 2) for n in ("L", "A")]
    assert staged(rows).layout.yaxis.ticktext == ("1 GPU", "2 GPUs") * 2


def test_stages_of_unknown_time_make_the_sum_more_than_known() -> None:
    figure = staged([("L", 16, 1, "p2p", "FP", 2.0 * MS), ("L", 16, 1, "p2p", "WU", None)])
    assert "≥ 2.00" in texts(figure)
    assert "≥ the time of some stages is unknown" in texts(figure)
    assert "no runs" in texts(staged([]))


def test_forty_configurations_are_drawn_and_the_others_counted() -> None:
    figure = staged([("L", 16, gpus, "p2p", "FP", 1.0 * MS) for gpus in range(1, 51)])
    assert len(figure.layout.yaxis.ticktext) == 40
    assert "not shown: 10 more configurations" in texts(figure)


def test_a_heat_map_has_numbers_and_tells_unknown_from_missing() -> None:
    figure = heat([("B", 32, 31.8), ("B", 16, 21.8), ("A", 32, None)])
    cells, unknown = figure.data
    assert figure.layout.xaxis.ticktext == ("batch 16", "batch 32")
    assert figure.layout.yaxis.ticktext == ("B", "A")
    assert list(map(list, cells.z)) == [[21.8, 31.8], [None, None]]
    assert list(map(list, cells.text)) == [["21.8", "31.8"], ["", ""]]
    assert (unknown.x, unknown.y, unknown.text) == ((1,), (1,), ("?",))
    assert cells.hovertext[0][1] == "31.8 %"
    assert (cells.zmin, cells.zmax) == (21.8, 31.8)
    assert cells.colorbar.title.text == "%<br>&nbsp;"


def test_a_heat_map_of_values_below_zero_goes_two_ways() -> None:
    cells = heat([("B", 32, -10.0), ("B", 16, 40.0)]).data[0]
    assert (cells.zmin, cells.zmax) == (-40.0, 40.0)
    assert list(cells.text[0]) == ["40.0", f"{MINUS}10.0"]


def test_heat_maps_of_whole_numbers_of_one_cell_and_of_nothing() -> None:
    cells = heat([("B", 32, 1200)], pl.Int64).data[0]
    assert list(cells.text[0]) == ["1,200"]
    assert (cells.zmin, cells.zmax) == (0, 1200)
    assert "no runs" in texts(heat([]))
    assert heat([("B", 32, float("nan"))]).data[1].text == ("?",)
    with pytest.raises(UsageError, match="by network and batch has a cell twice"):
        heat([("B", 32, 1.0), ("B", 32, 2.0)])


def test_a_heat_map_of_ranks_says_so() -> None:
    ranks = pl.DataFrame({"rank": [0, 1], "iteration": [7, 7], "v": [1.0, -1.0]})
    figure = heat_figure(ranks, "rank", "iteration", "v", heading=Heading("Heat", "run"))
    assert figure.layout.yaxis.ticktext == ("rank 0", "rank 1")
    assert figure.layout.xaxis.title.text == "step"


def test_large_heat_maps_are_cut() -> None:
    figure = heat([(f"N{n}", b, 1.0) for n in range(60) for b in range(3)])
    assert len(figure.layout.yaxis.ticktext) == 50
    assert "not shown: 10 more rows (network)" in texts(figure)


def test_hostile_names_stay_text() -> None:
    name = f"{HOSTILE}%{{x}}$a$"
    figures = [
        scaled([(name, 16, 1, name, 1.0, 1.0)]),
        over([(name, 16, 1, name, 1.0), (name, 16, 2, name, 1.0)]),
        staged([(name, 16, 1, name, name, 1.0), ("b", 16, 1, name, "FP", 1.0)]),
        heat([(name, 16, 1.0)]),
    ]
    for figure in figures:
        page = figure.to_json()
        assert "\\u001b" not in page
        assert "<b>&amp;" not in page
        assert "[bold]x[/bold] a|b<" not in page
        assert all(trace.hovertemplate is None for trace in figure.data)
