from __future__ import annotations

import polars as pl

from tracekit.analysis.idle_account import CAUSES
from tracekit.present import CAUSE_COLOURS, Heading
from tracekit.present._waits_figures import idle_figure

MS = 1_000_000


def test_every_cause_has_a_colour() -> None:
    assert list(CAUSE_COLOURS) == list(CAUSES)
    assert len(set(CAUSE_COLOURS.values())) == len(CAUSES)


def test_a_bar_per_device_with_a_part_per_cause() -> None:
    table = pl.DataFrame(
        {"device": [0, 0, 3], "cause": ["host_delay", "input", "host_delay"],
         "idle_ns": [2 * MS, 30 * MS, 5 * MS]}
    )  # fmt: skip
    figure = idle_figure(table, heading=Heading("Why", "run"))
    assert [(trace.name, trace.y, trace.x) for trace in figure.data] == [
        ("input", (0,), (30.0,)), ("host delay", (0, 1), (2.0, 5.0)),
    ]  # fmt: skip
    assert figure.layout.xaxis.title.text == "idle time (ms)"
    assert figure.layout.yaxis.ticktext == ("GPU 0", "GPU 3")


def test_without_any_it_says_so() -> None:
    nothing = pl.DataFrame(schema={"device": pl.Int32, "cause": pl.String, "idle_ns": pl.Int64})
    figure = idle_figure(nothing, heading=Heading("Why", "run"))
    assert "no idle time" in [each.text for each in figure.layout.annotations]


def test_many_devices_are_cut_short() -> None:
    table = pl.DataFrame({"device": range(45), "cause": "launch_latency", "idle_ns": MS})
    figure = idle_figure(table, heading=Heading("Why", "run"))
    assert len(figure.data[0].y) == 40
    assert "not shown: 5 more GPUs" in [each.text for each in figure.layout.annotations]
