from __future__ import annotations

import polars as pl

from tracekit.analysis.dependencies._job import CAUSES
from tracekit.model import STAGES
from tracekit.present import PATH_COLOURS, STAGE_COLOURS, Heading
from tracekit.present._waits_figures import path_figure, pipeline_figure, whatif_figure

MS = 1_000_000
PATH = {"iteration": pl.Int64, "part": pl.String, "path_ns": pl.Int64}


def test_every_part_has_a_colour_of_its_own() -> None:
    assert set(PATH_COLOURS) == {*CAUSES, *(f"gpu, {stage}" for stage in STAGES)}
    assert len(set(PATH_COLOURS.values())) == len(PATH_COLOURS)


def test_a_bar_per_step_with_its_parts() -> None:
    rows = [(4, "host", 2 * MS), (4, "gpu, FP", 30 * MS), (5, "gpu, FP", 31 * MS)]
    table = pl.DataFrame(rows, schema=PATH, orient="row")
    figure = path_figure(table, heading=Heading("What", "run"))
    assert [(trace.name, trace.x, trace.y) for trace in figure.data] == [
        ("gpu, FP", (0, 1), (30.0, 31.0)), ("host", (0,), (2.0,)),
    ]  # fmt: skip
    assert figure.layout.xaxis.ticktext == ("4", "5")
    assert figure.layout.yaxis.title.text == "critical path (ms)"
    assert figure.layout.barmode == "stack"


def test_a_run_without_steps_is_one() -> None:
    table = pl.DataFrame([(None, "host", MS)], schema=PATH, orient="row")
    assert path_figure(table, heading=Heading("What", "run")).layout.xaxis.ticktext == ("run",)


def test_many_steps_are_cut_short_and_none_are_said() -> None:
    table = pl.DataFrame({"iteration": range(250), "part": "host", "path_ns": MS})
    figure = path_figure(table, heading=Heading("What", "run"))
    assert len(figure.data[0].x) == 240
    assert "not shown: 10 more steps" in [each.text for each in figure.layout.annotations]
    empty = path_figure(pl.DataFrame(schema=PATH), heading=Heading("What", "run"))
    assert "no steps" in [each.text for each in empty.layout.annotations]


def test_a_bar_per_change_with_what_it_saves() -> None:
    table = pl.DataFrame(
        {"change": ["measured", "unchanged, replayed", "a < b=2x", "slower", "untold"],
         "step_ns": [10.0 * MS, 10.2 * MS, 5.1 * MS, 11.0 * MS, None],
         "low_ns": [None, 10.0 * MS, 5.0 * MS, 10.8 * MS, 4.0 * MS],
         "high_ns": [None, 10.4 * MS, 5.3 * MS, 11.2 * MS, 9.0 * MS],
         "saved_share": [None, 0.0, 0.5, -0.078, None]}
    )  # fmt: skip
    figure = whatif_figure(table, heading=Heading("If", "run"))
    bars, whiskers = figure.data
    assert bars.x == (10.0, 10.2, 5.1, 11.0, 9.0)
    ends = [each.text for each in figure.layout.annotations[-5:]]
    assert ends == [
        "10.0", "10.2", "5.1, \N{MINUS SIGN}50.0 %", "11.0, +7.8 %", "9.0, unknown"
    ]  # fmt: skip
    assert whiskers.x[::3] == (10.0, 5.0, 10.8, 4.0)
    assert whiskers.x[1::3] == (10.4, 5.3, 11.2, 9.0)
    assert figure.layout.yaxis.ticktext[2] == "a &lt; b=2x"


def test_work_of_an_unknown_pass_has_no_colour_of_a_stage() -> None:
    rows = [(0, None, 0, 4), (1, "FP", 4, 9)]
    schema = {"stage": pl.Int64, "part": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64}
    timeline = pl.DataFrame(rows, schema, orient="row")
    figure = pipeline_figure(timeline, heading=Heading("A step", "run"))
    colours = {bars.name: bars.marker.color for bars in figure.data}
    assert colours["forward"] == STAGE_COLOURS["FP"]
    assert colours["work"] not in STAGE_COLOURS.values()
