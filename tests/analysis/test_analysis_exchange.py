"""What must be exchanged beside what was, and where one way overtakes another."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from tracekit.analysis.studies import crossovers, exchange, overhead, study_iterations
from tracekit.analysis.studies._epochs import parameter_count, parameters_label
from tracekit.analysis.studies._study import STUDY
from tracekit.errors import UsageError


def _study(*rows: dict[str, Any]) -> pl.DataFrame:
    usual = {"network": "alexnet", "batch": 16, "gpus": 4, "method": "p2p"}
    full = [{name: ({**usual, **row}).get(name) for name in STUDY} for row in rows]
    return pl.DataFrame(full, schema=STUDY)


def test_observed_beside_expected() -> None:
    """10 M parameters on 4 GPUs: 40 MB of gradients, 240 MB in all; 60 MB by each of a ring."""
    rows = [
        {"run": "a", "parameters": 10_000_000, "bytes_between_gpus": 252e6},
        {"run": "b", "gpus": 1, "parameters": 10_000_000},
        {"run": "c"},
        {"run": "pipeline", "parameters": 10_000_000, "basis": "gpu", "data_parallel": False},
        {"run": "one", "parameters": 10_000_000, "basis": "gpu", "gpus": 1},
    ]  # fmt: skip
    found = exchange(_study(*rows))
    columns = ("expected_bytes", "star_root_bytes", "ring_gpu_bytes", "ratio", "epoch_bytes")
    assert found.rows.select(columns).rows() == [
        (240_000_000, 120_000_000, 60_000_000, 1.05, None), (0, 0, 0, None, None), (None,) * 5,
        (None,) * 5, (0, 0, 0, None, None),
    ]  # fmt: skip
    assert found.meta["warnings"] == [
        "number of parameters not known of c: label parameters=60M",
        "expected bytes of pipeline unknown: most are not shown to be gradients of all GPUs",
    ]  # fmt: skip
    # What a run says counts before what is given.
    given = exchange(_study(*rows), parameters=1_000_000).rows["gradient_bytes"].to_list()
    assert given == [40_000_000, 40_000_000, 4_000_000, 40_000_000, 40_000_000]


def test_iterations_of_runs_of_either_kind_of_scaling() -> None:
    study = _study({"scaling": "strong"}, {"scaling": "weak"}, {})
    found = study.select(study_iterations(6400, "gpu").alias("n"))["n"].to_list()
    assert found == [100, 400, 100]
    with pytest.raises(UsageError, match="number of images"):
        exchange(study, images=0)


@pytest.mark.parametrize(
    ("text", "number"),
    [("60M", 60_000_000), (" 1.3b ", 1_300_000_000), ("60000", 60_000), ("7k", 7000), ("0", None),
     ("-1", None), ("many", None), ("1e6", None), ("9" * 15 + "b", None)],
)  # fmt: skip
def test_numbers_of_parameters(text: str, number: int | None) -> None:
    assert parameter_count(text) == number


def test_a_label_that_is_no_number_of_parameters() -> None:
    assert parameters_label({}, "run") is None
    with pytest.raises(UsageError, match="run 'run' has the label parameters=many"):
        parameters_label({"parameters": "many"}, "run")


def _pairs(shares: dict[int, float], error: float = 0.0) -> pl.DataFrame:
    """Overheads in percent by batch, of steps of 1,000 that are known to so much."""
    rows = []
    for batch, share in shares.items():
        for method, step in (("p2p", 1000.0), ("nccl", 1000.0 * (1 + share / 100))):
            known = {"step_se_ns": error * step, "step_effective": 40.0, "iterations": 40}
            rows.append({"batch": batch, "method": method, "step_ns": step, **known})
    return overhead(_study(*rows)).rows


def test_the_interval_of_a_crossing() -> None:
    """Known to 1.4 %, 5 % and 1 % slower and 1 % quicker: only 5 % and -6 % are shown."""
    found = crossovers(_pairs({16: 5, 32: 1, 64: -1, 128: -6}, error=0.01)).rows.row(0, named=True)
    assert 45 < found["crossing"] < 46
    assert (found["crossing_from"], found["crossing_to"]) == (16, 128)
    sure = crossovers(_pairs({16: 5, 32: 1, 64: -1, 128: -6}, error=0.001)).rows.row(0, named=True)
    assert (sure["crossing_from"], sure["crossing_to"]) == (32, 64)
    never = crossovers(_pairs({16: 1, 32: -1}, error=0.01)).rows.row(0, named=True)
    assert never["crossing_from"] is never["crossing_to"] is None


def test_runs_of_few_steps_show_no_ends_of_a_crossing() -> None:
    few = _pairs({16: 5, 32: -5}).with_columns(
        from_percent=pl.lit(None, pl.Float64), to_percent=pl.lit(None, pl.Float64)
    )
    runs = crossovers(few).rows.row(0, named=True)
    assert (runs["crossing_from"], runs["crossing_to"], runs["found"]) == (None, None, "overtakes")
    table = crossovers(few.with_columns(steps=pl.lit(None, pl.Int64))).rows.row(0, named=True)
    assert (table["crossing_from"], table["crossing_to"]) == (16, 32)


@pytest.mark.parametrize(
    ("shares", "found"),
    [
        ({16: 5}, "slower at one size"),
        ({16: 0}, "not slower at one size"),
        ({16: 5, 32: 1}, "always slower"),
        ({16: -5, 32: 0}, "never slower"),
        ({16: -5, 32: 5}, "falls behind"),
        ({16: 5, 32: -5, 64: 5}, "several times"),
    ],
)
def test_what_is_found_as_batches_grow(shares: dict[int, float], found: str) -> None:
    assert crossovers(_pairs(shares)).rows["found"].item() == found
