"""What a method of communication costs beside a baseline."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.analysis.studies import overhead, overhead_matrix
from tracekit.analysis.studies._study import STUDY
from tracekit.errors import UsageError

SLIDES = {
    "LeNet": (16.4, 24.0, 26.7),
    "AlexNet": (21.8, 21.8, 31.8),
    "ResNet": (20.1, 22.9, 19.3),
    "GoogLeNet": (18.7, 17.5, 16.2),
    "Inception-v3": (16.9, 19.4, 18.9),
}
"""Overhead of NCCL over P2P in percent, with batches of 16, 32 and 64."""
KEYS = ("network", "batch", "gpus", "method")


def table(*rows: dict[str, Any]) -> pl.DataFrame:
    usual = {"network": "lenet", "batch": 16, "gpus": 1}
    full = [{name: ({**usual, **row}).get(name) for name in STUDY} for row in rows]
    return pl.DataFrame(full, schema=STUDY)


def pair(base: float, other: float, **row: Any) -> list[dict[str, Any]]:
    return [
        {"method": "p2p", "epoch_ns": base, **row},
        {"method": "nccl", "epoch_ns": other, **row},
    ]


def test_nccl_against_p2p() -> None:
    found = overhead(table(*pair(100e9, 116.4e9))).rows
    assert found.select(
        *KEYS, "time", "time_ns", "baseline_ns", "runs", "baseline_runs"
    ).rows() == [("lenet", 16, 1, "nccl", "epoch", 116.4e9, 100e9, 1, 1)]
    assert found["overhead_percent"].to_list() == pytest.approx([16.4])


def test_runs_that_stand_by_themselves_are_compared_in_pairs() -> None:
    runs = (("p1", "p2p", 100.0), ("p2", "p2p", 80.0), ("n1", "nccl", 120.0))
    rows = table(*({"run": run, "method": method, "step_ns": t} for run, method, t in runs))
    pooled = overhead(rows).rows.row(0, named=True)
    assert (pooled["run"], pooled["baseline_run"], pooled["baseline_runs"]) == ("n1", None, 2)
    assert pooled["overhead_percent"] == pytest.approx(100 / 3)
    assert (pooled["low_percent"], pooled["high_percent"]) == pytest.approx((20, 50))
    apart = overhead(rows, apart=True).rows
    columns = ("run", "baseline_run", "runs", "baseline_runs", "low_percent", "high_percent")
    assert apart.select(columns).rows() == [
        ("n1", "p1", 1, 1, None, None), ("n1", "p2", 1, 1, None, None),
    ]  # fmt: skip
    assert apart["overhead_percent"].to_list() == pytest.approx([20, 50])
    matrix = overhead_matrix(apart)
    assert matrix.columns == [
        "method", "gpus", "scaling", "network", "run", "baseline_run", "16"
    ]  # fmt: skip
    assert matrix["16"].to_list() == pytest.approx([20, 50])
    assert overhead(rows, apart=True).meta["compared"] == 2


def _slides() -> pl.DataFrame:
    rows = []
    for network, percents in SLIDES.items():
        for batch, percent in zip((16, 32, 64), percents, strict=True):
            time = 1e12 * len(network) / batch
            rows += pair(time, time * (1 + percent / 100), network=network, batch=batch)
    return table(*rows)


def test_the_table_of_the_slides() -> None:
    meta = overhead(_slides()).meta
    assert meta == {
        "baseline": "p2p",
        "compared": 15,
        "min_percent": pytest.approx(16.2),
        "max_percent": pytest.approx(31.8),
        "without_partner": 0,
        "untimed": 0,
        "without_method": 0,
    }
    matrix = overhead_matrix(overhead(_slides()).rows)
    assert matrix.columns == ["method", "gpus", "scaling", "network", "16", "32", "64"]
    found = {row[0]: row[1:] for row in matrix.select("network", "16", "32", "64").rows()}
    assert found == {name: pytest.approx(percents) for name, percents in SLIDES.items()}


def test_a_matrix_has_the_intervals_of_what_steps_tell() -> None:
    known = {"step_se_ns": 4e5, "step_effective": 26.0, "iterations": 26}
    found = overhead(
        table(
            {"method": "p2p", "step_ns": 1e8, **known},
            {"method": "nccl", "step_ns": 1.1e8, **known},
            {"method": "p2p", "batch": 32, "step_ns": 1e8},
            {"method": "nccl", "batch": 32, "step_ns": 1.1e8},
        )
    ).rows
    matrix = overhead_matrix(found)
    assert matrix.columns[4:] == ["16", "16 from", "16 to", "32", "32 from", "32 to"]
    row = matrix.row(0, named=True)
    assert row["16"] == pytest.approx(10)
    assert row["16 from"] < row["16"] < row["16 to"]
    assert (row["16 from"], row["16 to"]) == found.select("from_percent", "to_percent").row(0)
    assert (row["32 from"], row["32 to"]) == (None, None)


def test_ratio_of_throughputs() -> None:
    # 180 against 100 images per second; steps of 64 images.
    found = overhead(
        table(
            {"method": "horovod", "batch": 64, "step_ns": 64 / 180 * 1e9},
            {"method": "grpc", "batch": 64, "step_ns": 64 / 100 * 1e9},
        ),
        baseline="grpc",
    ).rows
    assert found["throughput_ratio"].to_list() == pytest.approx([1.8])
    assert found["overhead_percent"].to_list() == pytest.approx([-44.444444])


def test_only_equal_configurations_are_compared() -> None:
    rows = table(
        *pair(100.0, 110.0),
        {"method": "nccl", "epoch_ns": 200.0, "gpus": 2},
        {"method": "p2p", "epoch_ns": 50.0, "gpus": 4},
        {"method": "nccl", "epoch_ns": 50.0, "batch": 32},
        {"method": "nccl", "epoch_ns": 50.0, "network": "alexnet"},
        {"method": "nccl", "epoch_ns": 50.0, "batch": None},
        {"method": "nccl", "epoch_ns": 50.0, "scaling": "weak"},
    )
    found = overhead(rows).rows
    assert found.select(*KEYS, "scaling", "time_ns", "baseline_ns").rows() == [
        ("alexnet", 16, 1, "nccl", None, 50.0, None),
        ("lenet", 16, 1, "nccl", "weak", 50.0, None),
        ("lenet", 16, 1, "nccl", None, 110.0, 100.0),
        ("lenet", 16, 2, "nccl", None, 200.0, None),
        ("lenet", 32, 1, "nccl", None, 50.0, None),
        ("lenet", None, 1, "nccl", None, 50.0, None),
        ("lenet", 16, 4, None, None, None, 50.0),
    ]
    known = found.drop_nulls("overhead_percent")
    assert known["overhead_percent"].to_list() == pytest.approx([10.0])
    meta = overhead(rows).meta
    assert (meta["compared"], meta["without_partner"], meta["untimed"]) == (1, 6, 0)


def test_what_is_unknown_of_both_is_equal() -> None:
    rows = pair(100.0, 150.0, network=None, batch=None, gpus=None)
    found = overhead(table(*rows)).rows
    assert found["overhead_percent"].to_list() == [50.0]
    matrix = overhead_matrix(found)
    assert matrix.rows() == [("nccl", None, None, None, 50.0)]
    assert matrix.columns[-1] == "batch unknown"


def test_medians_of_several_runs() -> None:
    rows = [*pair(100.0, 120.0), *pair(90.0, 130.0), {"method": "p2p", "epoch_ns": 500.0}]
    found = overhead(table(*rows)).rows
    assert found.select("runs", "baseline_runs", "time_ns", "baseline_ns").rows() == [
        (2, 3, 125.0, 100.0)
    ]


def test_a_step_is_never_compared_with_an_epoch() -> None:
    rows = table({"method": "p2p", "epoch_ns": 100.0}, {"method": "nccl", "step_ns": 110.0})
    found = overhead(rows).rows
    assert found.select("time", "time_ns", "baseline_ns", "overhead_percent").rows() == [
        (None,) * 4
    ]
    assert overhead(rows).meta["untimed"] == 1


def test_runs_of_unknown_method_are_counted() -> None:
    rows = table(*pair(100.0, 110.0), {"epoch_ns": 1.0})
    assert overhead(rows).rows.height == 1
    assert overhead(rows).meta["without_method"] == 1


def test_nothing_to_compare_with() -> None:
    with pytest.raises(UsageError, match="no run of the method 'mpi': theirs are 'nccl', 'p2p'"):
        overhead(table(*pair(1.0, 2.0)), baseline="mpi")
    with pytest.raises(UsageError, match="theirs are unknown; record the same program"):
        overhead(table())
    alone = overhead(table({"method": "p2p", "epoch_ns": 1.0})).rows
    assert alone["overhead_percent"].to_list() == [None]
    assert overhead_matrix(alone).is_empty()


@settings(deadline=None)
@given(st.floats(1e6, 1e9), st.floats(1e6, 1e9))
def test_the_other_way_round(one: float, other: float) -> None:
    rows = table(*pair(one, other))
    there, back = (
        overhead(rows).rows.row(0, named=True),
        overhead(rows, baseline="nccl").rows.row(0, named=True),
    )
    product = (1 + there["overhead_percent"] / 100) * (1 + back["overhead_percent"] / 100)
    assert product == pytest.approx(1)
    assert there["throughput_ratio"] * back["throughput_ratio"] == pytest.approx(1)
