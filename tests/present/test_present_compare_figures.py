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
from tracekit.present import (
    IDLE_COLOUR,
    MINUS,
    STAGE_COLOURS,
    Heading,
    changes_figure,
    comparison_figure,
)
from tracekit.present._compare_figures import VERDICT_COLOURS
from tracekit.present._figures import decimals_of, fitting_ticks, legend_lines, signed
from tracekit.present._waterfall import stage_order, step_unit

MS = 10**6
PARTS = {"stage": pl.String, "a_ns": pl.Float64, "b_ns": pl.Float64, "delta_ns": pl.Float64}
GROUPS = {
    "name": pl.String, "a_ns": pl.Float64, "b_ns": pl.Float64, "delta_ns": pl.Float64,
    "low_ns": pl.Float64, "high_ns": pl.Float64, "verdict": pl.String, "only_in": pl.String,
}  # fmt: skip
STEP = [("idle", 10, 30), ("FP", 30, 20), ("BP", 60, 40), ("ME", 0, 0)]


def compared(rows: list[tuple[Any, ...]], names: tuple[str, str] = ("one", "two")) -> go.Figure:
    frame = pl.DataFrame(rows, PARTS, orient="row")
    return comparison_figure(frame, names=names, heading=Heading("Change", "one, two"))


def steps(rows: list[tuple[str, float, float]]) -> go.Figure:
    return compared([(stage, a * MS, b * MS, (b - a) * MS) for stage, a, b in rows])


def changed(rows: list[tuple[Any, ...]], **options: Any) -> go.Figure:
    frame = pl.DataFrame([(*row, None)[:8] for row in rows], GROUPS, orient="row")
    return changes_figure(
        frame,
        **{"key": "name", **options},
        names=("one", "two"),
        heading=Heading("Changes", "both"),
    )


def texts(figure: go.Figure) -> list[str]:
    return [each.text for each in figure.layout.annotations]


def labels(figure: go.Figure) -> tuple[str, ...]:
    told = next(t.text for t in figure.data if t.type == "scatter" and t.mode == "text")
    return tuple(text.replace(MINUS, "-") for text in told)


def stacks(figure: go.Figure) -> list[go.Bar]:
    return [trace for trace in figure.data if trace.type == "bar" and trace.orientation == "h"]


def test_both_runs_are_stacked_in_the_colours_of_stages() -> None:
    bars = stacks(steps(STEP))
    assert [bar.name for bar in bars] == ["FP", "BP", "idle"]
    assert [bar.marker.color for bar in bars] == [
        STAGE_COLOURS["FP"], STAGE_COLOURS["BP"], IDLE_COLOUR
    ]  # fmt: skip
    assert [bar.x for bar in bars] == [(30.0, 20.0), (60.0, 40.0), (10.0, 30.0)]
    figure = steps(STEP)
    assert figure.layout.yaxis.ticktext == ("A  one", "B  two")
    assert figure.layout.xaxis.title.text == "exposed time per iteration (ms)"


def test_the_parts_lead_from_one_step_time_to_the_other() -> None:
    figure = steps(STEP)
    fall = next(trace for trace in figure.data if trace.type == "bar" and trace.base is not None)
    assert figure.layout.xaxis2.ticktext == ("<b>A</b>", "FP", "BP", "idle", "<b>B</b>")
    assert fall.base == (0, 90.0, 70.0, 70.0, 0)
    assert fall.y == (100.0, 10.0, 20.0, 20.0, 90.0)
    assert labels(figure) == (
        "<b>100.0 ms</b>", "-10.0<br>-10.0 %", "-20.0<br>-20.0 %", "+20.0<br>+20.0 %",
        "<b>90.0 ms</b>",
    )  # fmt: skip


def test_a_change_that_is_not_shown_has_its_whisker() -> None:
    """The largest bar of a real pair is one that may as well be a change the other way."""
    rows = [("FP", 60e6, 40e6, -20e6, -21e6, -19e6), ("idle", 1e6, 21e6, 20e6, -27e6, 66e6)]
    frame = pl.DataFrame(rows, {**PARTS, "low_ns": pl.Float64, "high_ns": pl.Float64}, orient="row")
    figure = comparison_figure(frame, names=("one", "two"), heading=Heading("Change", "one, two"))
    whiskers = next(t for t in figure.data if t.type == "scatter" and t.marker.symbol)
    assert whiskers.x == (1, 1, None, 2, 2, None)
    assert whiskers.y == (40.0, 42.0, None, 14.0, 107.0, None)
    assert figure.layout.yaxis2.range[1] > 107
    assert "whiskers: 95 % interval of each change" in texts(figure)


def test_a_small_change_is_seen_and_the_axis_said_to_be_cut() -> None:
    figure = steps([("FP", 60, 58), ("BP", 40, 41)])
    assert figure.layout.yaxis2.range[0] > 50
    assert "the axis of step times does not begin at 0" in texts(figure)


def test_a_large_change_is_seen_from_zero() -> None:
    figure = steps([("FP", 100, 10)])
    assert figure.layout.yaxis2.range[0] == 0
    assert "the axis of step times does not begin at 0" not in texts(figure)


def test_a_run_against_itself_changes_by_nothing() -> None:
    told = labels(steps([("FP", 30, 30), ("idle", 5, 5)]))
    assert told[1:3] == ("0<br>0 %", "0<br>0 %")


def test_what_is_unknown_is_said_and_no_zero() -> None:
    figure = compared([("FP", 5000.0, None, None), ("idle", 5000.0, 9000.0, 4000.0)])
    assert labels(figure) == ("<b>10.00 us</b>", "?", "+4.00<br>+40.0 %", "<b>≥ 9.00 us</b>")
    assert "? unknown in one of the runs" in texts(figure)
    assert stacks(figure)[0].x == (5.0,)


def test_no_step_without_time() -> None:
    for rows in ([], [("FP", 0, 0)]):
        assert "no time in any stage" in texts(steps(rows))


@settings(max_examples=examples(15, thorough=300), deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 10**10)] * 2), min_size=1, max_size=6))
def test_the_last_part_ends_at_the_step_of_b(times: list[tuple[int, int]]) -> None:
    rows = [(stage, a, b, b - a) for stage, (a, b) in zip(STAGE_COLOURS, times, strict=False)]
    if not any(a or b for a, b in times):
        return
    figure = compared(rows)
    _, unit = step_unit(max(sum(column) for column in zip(*times, strict=True)))
    divisor = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}[unit]
    ends = next(t.y for t in figure.data if t.type == "scatter" and t.line.dash == "dot")
    assert ends[-2] * divisor == pytest.approx(sum(b for _, b in times), abs=1e-3)


def test_the_change_of_each_gpu_stands_below_to_one_scale() -> None:
    rows = [(stage, a * MS, b * MS, (b - a) * MS) for stage, a, b in STEP]
    frame = pl.DataFrame(rows, PARTS, orient="row")
    slower = frame.with_columns(pl.col("b_ns", "delta_ns") + 5.0 * MS)
    devices = pl.concat(
        each.with_columns(device=pl.lit(device)) for device, each in ((3, slower), (1, frame))
    )
    shown = {"names": ("one", "two"), "heading": Heading("Change", "")}
    figure = comparison_figure(frame, devices=devices, **shown)
    titles = [text.replace(MINUS, "-") for text in texts(figure) if "GPU" in text]
    assert titles == [
        "<b>GPU 1</b>  -10.0 ms (-10.0 %)", "<b>GPU 3</b>  +10.0 ms (+10.0 %)"
    ]  # fmt: skip
    assert figure.layout.yaxis3.range == figure.layout.yaxis4.range
    assert figure.layout.xaxis4.ticktext == ("A", "FP", "BP", "ME", "idle", "B")
    alone = comparison_figure(frame, devices=devices.filter(device=1), **shown)
    assert "yaxis3" not in alone.layout.to_plotly_json()
    assert alone.layout.height < figure.layout.height


def test_hostile_names_of_runs_and_stages_stay_text() -> None:
    figure = compared([(HOSTILE, 1e6, 2e6, 1e6)], (HOSTILE, "%{x} $a$"))
    assert "<b>x" not in str(figure.layout.yaxis.ticktext)
    assert "&#36;a&#36;" in figure.layout.yaxis.ticktext[1]
    assert "&lt;b&gt;" in stacks(figure)[0].name


def test_stages_are_in_order_and_time_of_none_is_last() -> None:
    assert stage_order(["between_steps", "idle", "x", "WU", "FP+BP", "x"]) == [
        "FP+BP", "WU", "x", "idle", "between_steps"
    ]  # fmt: skip


def test_the_largest_changes_are_on_top_by_verdict() -> None:
    figure = changed(
        [
            ("small", 5e6, 6e6, 1e6, 0.5e6, 1.5e6, "slower"),
            ("large", 9e6, 5e6, -4e6, -5e6, -3e6, "faster"),
            ("equal", 5e6, 5e6, 0.0, -1e6, 1e6, "no difference shown"),
        ]
    )
    assert figure.layout.yaxis.ticktext == ("large", "small", "equal")
    assert {bar.name: (bar.x, bar.y, bar.marker.color) for bar in stacks(figure)} == {
        name: ((x,), (y,), VERDICT_COLOURS[name])
        for name, x, y in (
            ("faster", -4.0, 0), ("slower", 1.0, 1), ("no difference shown", 0.0, 2)
        )
    }  # fmt: skip
    whiskers = figure.data[-1]
    assert whiskers.x == (-5.0, -3.0, None, 0.5, 1.5, None, -1.0, 1.0, None)
    assert whiskers.name == "95 % interval"
    assert figure.layout.xaxis.title.text == f"change per iteration, B {MINUS} A (ms)"
    assert "9.00 → 5.00" in texts(figure)


def test_changes_without_interval_or_verdict() -> None:
    figure = changed(
        [
            ("few", 5e6, 6e6, 1e6, None, None, "not enough iterations"),
            ("new", 0.0, 3e6, 3e6, None, None, None, "B"),
            ("unknown", 1e6, None, None, None, None, None),
        ]
    )
    assert figure.layout.yaxis.ticktext == ("new", "few", "unknown")
    assert [bar.name for bar in stacks(figure)] == ["not enough iterations", "no verdict"]
    assert all(trace.type == "bar" for trace in figure.data)
    assert {"- → 3.00", "1.00 → -", "- not in this run"} <= set(texts(figure))


def test_only_the_largest_changes_are_drawn_and_the_others_counted() -> None:
    figure = changed([(f"k{n}", 0.0, n * 1e6, n * 1e6, None, None, "slower") for n in range(40)])
    assert len(figure.layout.yaxis.ticktext) == 25
    assert figure.layout.yaxis.ticktext[0] == "k39"
    assert "not shown: 15 with smaller changes" in texts(figure)


def test_groups_of_several_columns() -> None:
    figure = changed([("k", 1e6, 2e6, 1e6, None, None, "slower")], key=["name", "verdict"])
    assert figure.layout.yaxis.ticktext == ("k, slower",)


def test_time_between_steps_is_called_so() -> None:
    figure = steps([("FP", 30, 20), ("between_steps", 60, 5)])
    assert [bars.name for bars in stacks(figure)] == ["FP", "between steps"]
    assert figure.layout.xaxis2.ticktext == ("<b>A</b>", "FP", "between<br>steps", "<b>B</b>")


def test_kinds_are_named_where_names_alone_do_not_tell_groups_apart() -> None:
    named = {"name": ["copy", "gemm", "copy"], "kind": ["h2d", "compute", "staged"]}
    times = [pl.lit(1e6).alias(f"{name}_ns") for name in ("a", "b", "delta", "low", "high")]
    table = pl.DataFrame(named).with_columns(*times, verdict=pl.lit("slower"))
    for rows, labels in (
        (table, ("copy, h2d", "gemm, compute", "copy, staged")), (table.head(2), ("copy", "gemm"))
    ):  # fmt: skip
        figure = changes_figure(rows, key=list(named), names=("a", "b"), heading=Heading("", ""))
        assert figure.layout.yaxis.ticktext == labels


def test_no_line_of_the_grid_crosses_the_labels_of_a_change() -> None:
    assert steps(STEP).layout.yaxis2.showgrid is False


def test_changes_of_nothing_and_of_no_times() -> None:
    assert "nothing to compare" in texts(changed([]))
    table = pl.DataFrame({"device": [0], "delta_bytes": [1]})
    with pytest.raises(UsageError, match="only changes of times"):
        changes_figure(table, key="device", names=("a", "b"), heading=Heading("", ""))


def test_hostile_groups_stay_text() -> None:
    figure = changed([(HOSTILE * 9, 1e6, 2e6, 1e6, 0.0, 2e6, "slower")])
    (name,) = figure.layout.yaxis.ticktext
    assert "<b>" not in name
    assert "\x1b" not in name
    assert len(name) < 150
    assert "<b>&amp;" not in stacks(figure)[0].hovertext[0]


def test_signs_and_decimals() -> None:
    assert [signed(value, 1).replace(MINUS, "-") for value in (1.25, -1234.5, 0, 0.01, -0.01)] == [
        "+1.2", "-1,234.5", "0", "≈ 0", "≈ 0"
    ]  # fmt: skip
    assert [decimals_of(value) for value in (0.5, 1, -10, 99.9, 100)] == [3, 2, 1, 1, 0]


def test_labels_that_do_not_fit_are_steep() -> None:
    flat, low = fitting_ticks(["a", "b"], 100)
    steep, high = fitting_ticks(["a" * 60, "b"], 100)
    assert (flat["tickangle"], steep["tickangle"]) == (0, -60)
    assert low < high
    assert len(steep["ticktext"][0]) == 24
    assert flat["range"] == [-0.5, 1.5]


def test_lines_of_a_legend() -> None:
    assert legend_lines(["a", "b"], 400) == 1
    assert legend_lines(["a" * 20] * 5, 400) == 3
    assert legend_lines(["a" * 200] * 2, 400) == 2
