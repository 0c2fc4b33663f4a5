"""What a run holds, in a few numbers."""

from __future__ import annotations

import polars as pl
from trace_builder import TraceBuilder

from tracekit.analysis import summarise
from tracekit.analysis.facts import identify
from tracekit.model import REPORTS, Trace


def _trace() -> Trace:
    builder = TraceBuilder()
    builder.range(0, 100, "step 0")
    builder.iteration(0, 0, 50)
    builder.iteration(1, 50, 90)
    builder.iteration(0, 0, 50, thread=10)
    builder.op("gemm", 5, start=10, end=40, stage="FP", stage_source="nvtx")
    builder.op("ncclAllReduce", start=20, end=50, kind="collective", stage="WU",
               stage_source="gradient_exchange")  # fmt: skip
    builder.op("copy", 7, start=45, end=60, kind="h2d", call=1)
    builder.op("memset", 8, start=70, end=90, kind="memset", device=1, call=2)
    raw = builder.trace()
    devices = pl.DataFrame(
        {
            "device": [0, 1, 2],
            "report": 0,
            "name": ["A100", "A100", "V100"],
            "active": [True, True, False],
            "identity": ["device_table", "unknown", "device_table"],
        }
    )
    return raw.with_tables({"devices": devices})


def test_numbers() -> None:
    assert summarise(_trace()) == {
        "devices": 2,
        "gpus": "A100",
        "processes": 2,
        "ops": 4,
        "kernels": 2,
        "ranges": 1,
        "verdict": None,
        "iterations": 2,
        "launched": 0.5,
        "coverage": 40 / 70,
    }


def test_numbers_of_nothing() -> None:
    assert summarise(Trace.of({})) == {
        "devices": 0, "gpus": None, "processes": 0, "ops": 0, "kernels": 0, "ranges": 0,
        "verdict": None, "iterations": 0, "launched": None, "coverage": None,
    }  # fmt: skip


def test_what_reports_are_is_listed_once_in_their_order() -> None:
    hosts = [f"node{7 * number % 31}" for number in range(31)]
    reports = pl.DataFrame(
        {"report": range(62), "file": "f", "format": "x", "size": 1, "host": [*hosts, *hosts]}
    )
    found = identify(Trace.of({"reports": REPORTS.conform(reports)}))
    assert found["host"] == ", ".join(hosts)
    assert (found["file"], found["product"]) == ("f", None)
