"""Figures of steps, and of a history: what they draw, point by point."""

from __future__ import annotations

import polars as pl

from tracekit.present import Heading
from tracekit.present._steps_figures import history_figure, steps_figure


def _steps(side: str | None, run: str, *lengths: float, far: int | None = None) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "side": [side] * len(lengths),
            "run": [run] * len(lengths),
            "iteration": list(range(len(lengths))),
            "step_ns": [1e6 * each for each in lengths],
            "is_outlier": [place == far for place in range(len(lengths))],
        },
        schema_overrides={"side": pl.String},
    )


def test_steps_over_time_and_their_distribution() -> None:
    figure = steps_figure(_steps(None, "one", 9, 3, 4, 3, far=0), heading=Heading("t", "s"))
    over, spread = figure.data
    assert not over.showlegend  # the subtitle names the run
    assert (list(over.x), list(over.y)) == ([0, 1, 2, 3], [9, 3, 4, 3])
    assert list(over.marker.symbol) == ["circle-open", "circle", "circle", "circle"]
    # Half of the steps take up to 3 ms, three quarters up to 4.
    assert (list(spread.x), list(spread.y)) == ([3, 3, 3, 4, 9], [0, 25, 50, 75, 100])
    texts = [note.text for note in figure.layout.annotations]
    assert "4 steps" in texts
    assert "rings: steps unlike the others (1)" in texts


def test_recordings_of_a_side_have_one_colour() -> None:
    parts = [_steps("A", "a1", 1, 2), _steps("A", "a2", 1, 2), _steps("B", "<b>", 1, 2)]
    figure = steps_figure(pl.concat(parts), heading=Heading("t", "s"))
    over = figure.data[::2]
    assert over[0].line.color == over[1].line.color != over[2].line.color
    assert [trace.name for trace in over if trace.showlegend] == ["A, several", "B  &lt;b&gt;"]


def test_a_run_without_steps() -> None:
    figure = steps_figure(_steps(None, "one").clear(), heading=Heading("t", "s"))
    assert "no steps" in [note.text for note in figure.layout.annotations]


def test_many_runs_are_not_all_drawn() -> None:
    parts = [_steps(None, f"r{n}", 1, 2) for n in range(14)]
    figure = steps_figure(pl.concat(parts), heading=Heading("t", "s"))
    assert len(figure.data) == 24
    assert "not shown: 2 more runs" in [note.text for note in figure.layout.annotations]


def test_levels_of_a_history() -> None:
    points = pl.DataFrame(
        {
            "value": ["1", "2", "3", "4"],
            "runs": [1, 2, 1, 1],
            "step_ns": [1e6, 1e6, 2e6, 2e6],
            "low_ns": [None, 0.9e6, None, None],
            "high_ns": [None, 1.2e6, None, None],
            "level": [1, 1, 2, 2],
            "level_ns": [1e6, 1e6, 2e6, 2e6],
            "change_percent": [None, None, 100.0, None],
        }
    )
    figure = history_figure(points, label="night", heading=Heading("t", "s"))
    first, second, dots = figure.data
    assert (list(first.x), list(first.y)) == ([-0.5, 1.5], [1, 1])
    assert (list(second.x), list(second.y)) == ([1.5, 3.5], [2, 2])
    assert list(dots.y) == [1, 1, 2, 2]
    assert list(dots.error_y.array)[1] > 0
    texts = [note.text for note in figure.layout.annotations]
    assert "+100.0 %" in texts
    assert "means of up to 2 runs, with least and greatest" in texts
    nothing = history_figure(points.clear(), label="night", heading=Heading("t", "s"))
    assert "no runs" in [note.text for note in nothing.layout.annotations]
