from __future__ import annotations

import re

import polars as pl

from tracekit.report._svg_charts import (
    Axis,
    Part,
    heat_level,
    icicle_nodes,
    steps_curve,
    track,
)
from tracekit.report._time_sections import _cause_bars


def test_parts_of_a_bar_follow_each_other() -> None:
    pieces = track([Part("FP", "FP", 20), Part("BP", "BP", 0), Part("WU", "WU", 30)], 100).pieces
    assert [(piece.left, piece.width, piece.look) for piece in pieces] == [
        (0, 20, "FP"),
        (20, 30, "WU"),
    ]
    assert pieces[0].title == "FP: 20 ns (20.0 %)"
    assert track([Part("FP", "FP", 0)], 0).pieces == []


def test_ticks_are_round_and_inside() -> None:
    ticks = Axis("step (ms)", 29.4e6, 34.6e6, 1e6).ticks()
    assert [tick.text for tick in ticks] == ["30", "32", "34"]
    assert all(0 <= tick.at <= 100 for tick in ticks)
    powers = Axis("size", 10, 2000, is_log=True).ticks()
    assert [tick.text for tick in powers] == ["10", "100", "1,000"]


def test_the_distribution_rises_by_steps() -> None:
    assert steps_curve([2.0, 1.0]) == [(1.0, 0.0), (1.0, 0.5), (2.0, 0.5), (2.0, 1.0)]
    assert len(steps_curve(list(range(100_000)))) < 2500


def test_an_icicle_shares_the_width_by_time() -> None:
    times = {"a": 60, "a > b": 30, "a > b > c": 30, "d": 40}
    nodes = {node.title.split(":")[0]: node for node in icicle_nodes(list(times), times, " > ")}
    assert {name: (node.left, node.width, node.depth) for name, node in nodes.items()} == {
        "a": (0, 60, 0), "a > b": (0, 30, 1), "a > b > c": (0, 30, 2), "d": (60, 40, 0),
    }  # fmt: skip


def test_children_that_overlap_stay_inside() -> None:
    times = {"a": 10, "a > b": 10, "a > c": 10}
    nodes = icicle_nodes(list(times), times, " > ")
    assert all(node.left + node.width <= 100.001 for node in nodes)


def test_levels_of_a_map() -> None:
    assert [heat_level(value, 0, 9) for value in (None, 0, 4.6, 9)] == ["x", "0", "4", "8"]
    assert heat_level(5, 5, 5) == "0"


def test_bars_of_idle_time_name_causes_in_words() -> None:
    rows = pl.DataFrame({"device": [0], "cause": ["launch_latency"], "idle_ns": [1_000]})
    drawn = _cause_bars(rows)
    assert drawn is not None
    texts = re.sub("<[^>]*>", " ", drawn)
    assert "launch latency" in texts
    assert "launch_latency" not in texts
