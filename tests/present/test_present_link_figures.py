from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import polars as pl
import pytest
from present_frames import HOSTILE

from tracekit.present import Heading, matrix_figure, utilisation_figure
from tracekit.present._figures import colour_at

PAIRS = {
    "src_device": pl.Int32, "dst_device": pl.Int32, "bytes": pl.Int64, "transfers": pl.Int64,
    "evidence": pl.String, "method": pl.String,
}  # fmt: skip
BINS = {
    "link": pl.String, "src": pl.String, "dst": pl.String, "start_ns": pl.Int64,
    "end_ns": pl.Int64, "bytes": pl.Int64, "utilisation": pl.Float64, "evidence": pl.String,
    "counted_utilisation": pl.Float64,
}  # fmt: skip
MS = 10**6


def matrix(rows: list[tuple[Any, ...]]) -> go.Figure:
    frame = pl.DataFrame(rows, PAIRS, orient="row")
    return matrix_figure(frame, heading=Heading("Bytes", "run r"))


def timeline(rows: list[tuple[Any, ...]]) -> go.Figure:
    frame = pl.DataFrame([(*row, None)[:9] for row in rows], BINS, orient="row")
    return utilisation_figure(frame, heading=Heading("Utilisation", "run r"))


def texts(figure: go.Figure) -> list[str]:
    return [each.text for each in figure.layout.annotations]


def test_a_matrix_is_square_and_blank_where_nothing_was_sent() -> None:
    figure = matrix([(1, 3, 2_500_000, 10, "measured", "p2p"), (3, 1, 0, 1, "measured", "p2p")])
    assert figure.layout.xaxis.ticktext == figure.layout.yaxis.ticktext
    assert figure.layout.xaxis.ticktext == ("GPU 1", "GPU 2", "GPU 3")
    blank, heat, unknown = figure.data
    assert list(map(list, heat.z)) == [[None, None, 2.5], [None] * 3, [None] * 3]
    assert list(map(list, heat.text)) == [["", "", "2.50"], [""] * 3, [""] * 3]
    assert heat.colorbar.title.text == "sent (MB)<br>&nbsp;"
    assert (heat.zmin, heat.zmax) == (0, 2.5)
    assert "<b>GPU 1 → GPU 3</b><br>2,500,000 bytes<br>10 transfers<br>p2p" in heat.hovertext[0][2]
    assert blank.hovertext[0][1] == "GPU 1 → GPU 2<br>no transfers"
    assert unknown.x == ()
    assert texts(figure) == ["run r"]


def test_rows_of_one_pair_are_added_up() -> None:
    figure = matrix(
        [
            (0, 1, 1000, 1, "measured", "p2p"),
            (0, 1, 2000, 2, "modelled", "nccl"),
            (0, 1, None, 4, "measured", "nccl"),
        ]
    )
    assert figure.data[1].text[0][1] == "≥3.00*"
    assert figure.data[1].hovertext[0][1] == (
        "<b>GPU 0 → GPU 1</b><br>3,000 bytes<br>some unknown<br>7 transfers<br>nccl, p2p"
        "<br>modelled"
    )
    assert texts(figure)[1:] == [
        "* modelled, not measured", "? bytes unknown; ≥ bytes of some transfers unknown"
    ]  # fmt: skip


def test_bytes_between_bounds_are_two_numbers() -> None:
    """Coloured by the most; with what is known besides, each bound is as much larger."""
    rows = [(0, 1, None, 2, "modelled between", "nccl", 1_000, 7_700),
            (1, 0, None, 2, "modelled between", "nccl", 0, 7_700),
            (1, 0, 100, 1, "measured", "p2p", None, None)]  # fmt: skip
    bounds = {"least_bytes": pl.Int64, "most_bytes": pl.Int64}
    frame = pl.DataFrame(rows, PAIRS | bounds, orient="row")
    figure = matrix_figure(frame, heading=Heading("Bytes", "run r"))
    heat = figure.data[1]
    assert list(map(list, heat.text)) == [["", "1.00 to 7.70*"], ["0.10 to 7.80*", ""]]
    assert list(map(list, heat.z)) == [[None, 7.7], [7.8, None]]
    assert "1,000 to 7,700 bytes<br>2 transfers<br>nccl<br>modelled" in heat.hovertext[0][1]
    assert texts(figure)[1:] == [
        "* modelled, not measured",
        "a to b: bounds by the possible algorithms; coloured by the larger",
    ]


def test_unknown_bytes_are_no_zero() -> None:
    figure = matrix([(0, 1, None, 3, "measured", "nccl"), (None, 0, 8, 1, "measured", "h2d")])
    assert figure.layout.xaxis.ticktext == ("GPU 0", "GPU 1", "host")
    unknown = figure.data[2]
    assert (unknown.x, unknown.y, unknown.text) == ((1,), (0,), ("?",))
    assert figure.data[1].z[0][1] is None
    assert "bytes unknown<br>3 transfers" in unknown.hovertext[0]
    assert figure.data[1].text[2][0] == "8"


def test_unknown_counts_are_no_zero() -> None:
    figure = matrix([(0, 1, 5, None, "measured", None)])
    assert figure.data[1].hovertext[0][1] == "<b>GPU 0 → GPU 1</b><br>5 bytes<br>measured"


def test_small_numbers_do_not_read_as_none() -> None:
    figure = matrix([(0, 1, 5, 1, "measured", "p2p"), (1, 0, 10**10, 1, "measured", "p2p")])
    assert figure.data[1].text[0][1] == "&lt;0.1"
    assert figure.data[1].text[1][0] == "10.0"


def test_numbers_that_are_no_gpus_take_no_room() -> None:
    figure = matrix([(0, 2**31 - 1, 5, 1, "measured", "p2p")])
    assert figure.layout.xaxis.ticktext == ("GPU 0", "GPU 2147483647")


def test_nothing_sent() -> None:
    assert texts(matrix([]))[1:] == ["no transfers"]
    assert texts(timeline([]))[1:] == ["no transfers"]


def test_hostile_methods_stay_text() -> None:
    figure = matrix([(0, 1, 5, 1, "measured", HOSTILE)])
    assert "␛[31mred" in figure.data[1].hovertext[0][1]
    assert "<b>&amp;" not in figure.data[1].hovertext[0][1]


def test_a_track_per_link_and_direction_in_order() -> None:
    figure = timeline(
        [
            ("GPU0-GPU10", "GPU0", "GPU10", 0, MS, 10, 0.5, "measured"),
            ("GPU0-GPU2", "GPU2", "GPU0", MS, 2 * MS, 10, 0.25, "measured"),
            ("GPU0-GPU2", "GPU0", "GPU2", MS, 3 * MS, 10, 1.5, "measured"),
        ]
    )
    names = ("GPU0 → GPU10", "GPU2 → GPU0", "GPU0 → GPU2")
    assert figure.layout.yaxis.ticktext == names
    bars = figure.data[0]
    assert bars.base == (0, 1, 2)
    assert bars.y == (0.42, 0.21, 0.84)
    assert bars.x == (0.5, 1.5, 2.0)
    assert bars.width == (1.0, 1.0, 2.0)
    # More than the peak is drawn as the peak, and said as it is.
    assert bars.marker.color == (50.0, 25.0, 100.0)
    assert "150.0 % of the peak" in bars.hovertext[2]
    assert figure.layout.xaxis.title.text == "time (ms)"
    assert figure.layout.xaxis.range == (0.0, 3.0)
    peaks = [text for text in texts(figure) if "%" in text]
    assert peaks[1:] == ["50.0 %", "25.0 %", "150.0 %"]
    assert peaks[0] == "full height: 100 % of the peak of a link, in one direction"


def test_tracks_are_as_high_as_the_least_round_share_that_holds_all() -> None:
    rows = [("GPU0-GPU1", "GPU0", "GPU1", 0, MS, 10, 0.06, "measured"),
            ("GPU0-GPU1", "GPU0", "GPU1", MS, 2 * MS, 10, 0.03, "measured")]  # fmt: skip
    figure = timeline(rows)
    assert figure.data[0].y == pytest.approx((0.6 * 0.84, 0.3 * 0.84))
    assert figure.data[0].marker.color == pytest.approx((6.0, 3.0))
    assert "full height: 10 % of the peak of a link, in one direction" in texts(figure)


def test_rows_of_one_span_are_added_up_and_marked_as_modelled() -> None:
    figure = timeline(
        [
            ("L", "A", "B", 0, 1000, 10, 0.25, "measured"),
            ("L", "A", "B", 0, 1000, 30, 0.5, "modelled"),
            ("L", "A", "B", 1000, 2000, 0, 0.0, "measured"),
        ]
    )
    bars = figure.data[0]
    assert bars.marker.color == (75.0,)
    assert bars.marker.pattern.shape == ("/",)
    assert "40 bytes" in bars.hovertext[0]
    assert "hatched: modelled, not measured" in texts(figure)


def test_unknown_shares_are_crossed_and_never_low() -> None:
    figure = timeline(
        [
            ("L", "A", "B", 0, 1000, 10, None, "measured"),
            ("L", "A", "B", 1000, 2000, 10, float("nan"), "measured"),
            ("L", "A", "B", 2000, 3000, 0, None, "measured"),
            ("L", "A", "B", 3000, 4000, None, None, "measured"),
        ]
    )
    assert figure.data[0].x == ()
    assert figure.data[1].x == (0.5, 1.5, 3.5)
    assert "bytes unknown" in figure.data[1].hovertext[2]
    assert "utilisation unknown" in figure.data[1].hovertext[0]
    assert "unknown" in texts(figure)
    assert "crossed: the link was used, how much of its peak is unknown" in texts(figure)


def test_counted_shares_are_a_line_with_gaps() -> None:
    figure = timeline(
        [
            ("L", "A", "B", 0, 1000, 10, 0.5, "measured", 0.5),
            ("L", "A", "B", 1000, 2000, 10, 0.5, "measured", 1.0),
            ("L", "A", "B", 2000, 3000, 10, 0.5, "measured", None),
            ("L", "A", "B", 3000, 4000, 10, 0.5, "measured", 0.0),
        ]
    )
    line = figure.data[2]
    assert line.x == (0.0, 1.0, 1.0, 2.0, None, 3.0, 4.0)
    assert line.y == pytest.approx((0.42, 0.42, 0.84, 0.84, None, 0.0, 0.0))
    assert "line: counted by the hardware" in texts(figure)


def test_a_short_time_far_from_zero_counts_from_its_start() -> None:
    start = 1_700_000_000 * 10**9
    figure = timeline([("L", "A", "B", start, start + 2000, 10, 0.5, "measured")])
    assert figure.layout.xaxis.title.text == "time since 1,700,000,000.0 s (us)"
    assert figure.data[0].x == (1.0,)


def test_only_the_busiest_tracks_are_drawn_and_the_others_counted() -> None:
    rows = [(f"L{n}", "A", f"B{n}", 0, MS, n, 0.5, "measured") for n in range(45)]
    figure = timeline(rows)
    assert len(figure.layout.yaxis.ticktext) == 40
    assert figure.layout.yaxis.ticktext[-1] == "A → B5"
    assert "not shown: 5 directions of links that carried less" in texts(figure)


def test_hostile_links_stay_text() -> None:
    figure = timeline([(HOSTILE, "<b>x</b>", HOSTILE * 50, 0, MS, 5, 0.5, "measured")])
    (name,) = figure.layout.yaxis.ticktext
    assert name.startswith("&lt;b&gt;x&lt;/b&gt; → ␛[")
    assert len(name) < 100
    assert "<b>x" not in figure.data[0].hovertext[0]
    assert figure.layout.width == 960


def test_colours_of_bars_are_those_of_the_scale() -> None:
    figure = timeline([("L", "A", "B", 0, MS, 5, 0.5, "measured")])
    scale = dict(figure.data[0].marker.colorscale)
    assert scale[0.5] == colour_at(0.5)


def test_what_was_not_recorded_is_not_nothing() -> None:
    """Of GPUs 0 to 2, GPU 1 was not recorded: what it sent is not known, what it got is."""
    columns = ["src_device", "dst_device", "bytes", "transfers", "evidence", "method"]
    frame = pl.DataFrame([(0, 2, 5, 1, "measured", "p2p")], columns, orient="row")
    figure = matrix_figure(frame, heading=Heading("Bytes", "r"), recorded={0, 2}, unplaced=7)
    blank = figure.data[0]
    assert blank.hovertext[1][0].endswith("not recorded")
    assert blank.z[1][0] is None
    assert blank.hovertext[0][1].endswith("no transfers")
    text = str(figure.layout.annotations)
    assert "not recorded, traffic unknown: 1 GPU" in text
    assert "in no cell: 7 collectives of unknown ends or sizes" in text
    for nothing in (
        matrix_figure(frame.clear(), heading=Heading("Bytes", "r"), unplaced=7),
        utilisation_figure(pl.DataFrame(), heading=Heading("Links", "r"), unplaced=7),
    ):
        assert "7 collectives of unknown ends or sizes" in str(nothing.layout.annotations)
