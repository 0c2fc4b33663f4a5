"""What a run holds, in a few numbers, and what it lacks."""

from __future__ import annotations

import polars as pl
import pytest
from trace_builder import TraceBuilder

from tracekit.analysis import features, summarise
from tracekit.model import Trace


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
        "iterations": 2,
        "launched": 0.5,
        "coverage": 40 / 70,
    }


def test_numbers_of_nothing() -> None:
    assert summarise(Trace.of({})) == {
        "devices": 0, "gpus": None, "processes": 0, "ops": 0, "kernels": 0, "ranges": 0,
        "iterations": 0, "launched": None, "coverage": None,
    }  # fmt: skip


def _features(trace: Trace) -> dict[str, tuple[str, str, str | None]]:
    table = features(trace)
    assert table.schema == dict.fromkeys(
        ("feature", "available", "found", "record_with"), pl.String()
    )
    return {name: tuple(rest) for name, *rest in table.rows()}


def test_how_far_attribution_went() -> None:
    found = _features(_trace())
    assert list(found) == ["launching calls", "stages", "iterations", "physical GPUs"]
    assert found["launching calls"][:2] == ("partly", "known of 50.0 % of the ops")
    assert found["stages"][:2] == ("partly", "known of 57.1 % of GPU busy time")
    assert found["iterations"] == ("yes", "2 found", None)
    assert found["physical GPUs"][:2] == ("partly", "1 of 2 named (device_table, unknown)")
    for name in ("launching calls", "stages", "physical GPUs"):
        assert "nsys" in str(found[name][2])


def test_how_far_attribution_went_without_gpu_work() -> None:
    found = _features(Trace.of({}))
    assert {available for available, _, _ in found.values()} == {"no"}
    assert found["iterations"][1] == "0 found"
    assert all(hint for _, _, hint in found.values())


@pytest.mark.parametrize(
    ("known", "said"), [(9995, ">99.9 %"), (9994, "99.9 %"), (10000, "100.0 %"), (1, "0.0 %")]
)
def test_what_is_not_quite_all_does_not_read_as_all(known: int, said: str) -> None:
    builder = TraceBuilder()
    builder.op("known", 0, start=0, end=known, stage="FP", stage_source="nvtx")
    builder.op("unknown", 0, start=known, end=10000)
    available, found, _ = _features(builder.trace())["stages"]
    assert found == f"known of {said} of GPU busy time"
    assert available == ("yes" if known == 10000 else "partly")


def test_what_the_reports_hold() -> None:
    row = {"report": 0, "tells": "where time goes", "record_with": "nsys profile -t cuda"}
    contents = pl.DataFrame(
        [
            row | {"feature": "kernels", "source_table": "K", "present": True, "rows": 12},
            row | {"feature": "metrics", "source_table": "M", "present": True, "rows": None},
            row | {"feature": "NICs", "source_table": "N", "present": False, "rows": None},
            row | {"report": 1, "feature": "kernels", "source_table": "K", "present": True,
                   "rows": 30},
            row | {"feature": "memory", "source_table": "U", "present": True, "rows": 5},
            row | {"report": 1, "feature": "memory", "source_table": "U", "present": False,
                   "rows": 0},
        ],
        infer_schema_length=None,
    )  # fmt: skip
    found = _features(Trace.of({"contents": contents}))
    assert list(found)[4:] == ["kernels", "metrics", "NICs", "memory"]
    assert found["memory"] == ("partly", "5 rows: where time goes", "nsys profile -t cuda")
    assert found["kernels"] == ("yes", "42 rows: where time goes", None)
    assert found["metrics"] == ("yes", "M: where time goes", None)
    assert found["NICs"] == ("no", "no N", "nsys profile -t cuda")
