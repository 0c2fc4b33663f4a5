"""The sample traces: every op gets the stage and the iteration that it was launched for."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

import generate
import polars as pl
import pytest
from trace_builder import default_rules

from tracekit.analysis import breakdown
from tracekit.attribution import attribute
from tracekit.model import Trace
from tracekit.sources import read

FOLDER = Path(__file__).resolve().parents[1] / "sample_traces"
NAMES = (
    "ddp_4gpu",
    "ddp_4gpu_no_backward_range",
    "p2p_2gpu_start_end",
    "p2p_4gpu_star",
    "closure_1gpu",
)


@cache
def _raw(name: str) -> Trace:
    return read(FOLDER / f"{name}.sqlite", lambda *_: None)


@cache
def _trace(name: str) -> Trace:
    return attribute(_raw(name), default_rules())


def _truth(name: str) -> pl.DataFrame:
    return pl.read_csv(
        FOLDER / f"{name}.truth.csv", schema_overrides={"stage": pl.String, "iteration": pl.Int64}
    )


def test_these_are_all() -> None:
    assert {path.name for path in FOLDER.glob("*.sqlite")} == {f"{n}.sqlite" for n in NAMES}
    assert {path.name for path in FOLDER.glob("*.csv")} == {f"{n}.truth.csv" for n in NAMES}


def _wrong(trace: Trace, name: str) -> list[tuple[object, ...]]:
    """Return the ops of which the trace says something else than the truth."""
    kind = pl.col("kind").cast(pl.String)
    table = (
        pl.when(kind.is_in(["compute", "collective"])).then(pl.lit("KERNEL"))
        .when(kind == "memset").then(pl.lit("MEMSET"))
        .otherwise(pl.lit("MEMCPY"))
    )  # fmt: skip
    found = (
        trace.read("ops")
        .join(trace.read("processes").select("process", "pid"), on="process", how="left")
        .select(
            "pid",
            "correlation",
            pl.col("stage").cast(pl.String),
            "iteration",
            table=pl.format("CUPTI_ACTIVITY_KIND_{}", table),
        )
    )
    truth = _truth(name)
    assert found.height == truth.height
    keys, told = ["pid", "correlation"], ["table", "stage", "iteration"]
    assert not truth.select(keys).is_duplicated().any()
    both = truth.join(found, on=keys, how="full", suffix="_found")
    differs = (pl.col(each).ne_missing(pl.col(f"{each}_found")) for each in (*keys, *told))
    return both.filter(pl.any_horizontal(differs)).rows()


@pytest.mark.parametrize("name", NAMES)
def test_every_op_has_its_true_stage_and_iteration(name: str) -> None:
    assert _wrong(_trace(name), name) == []


@pytest.mark.parametrize("markers", [True, False])
@pytest.mark.parametrize("thread_names", [True, False])
@pytest.mark.parametrize("backward", [True, False])
def test_the_truth_needs_no_one_of_its_clues(
    *, backward: bool, thread_names: bool, markers: bool
) -> None:
    raw = _raw("ddp_4gpu")
    ranges, threads = raw.read("ranges"), raw.read("threads")
    is_marker = pl.col("name").str.contains("evaluate_function|Backward0|AccumulateGrad|^aten::")
    if not markers:
        ranges = ranges.filter(~is_marker)
    if not backward:
        ranges = ranges.filter(pl.col("name") != "backward")
    if not thread_names:
        threads = threads.with_columns(name=pl.lit(None, pl.String))
    ranges = ranges.drop("range").with_row_index("range")
    trace = attribute(raw.with_tables({"ranges": ranges, "threads": threads}), default_rules())
    assert _wrong(trace, "ddp_4gpu") == []


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_warned_of(name: str) -> None:
    assert _trace(name).warnings == ()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_but_the_truths_other_is_unexplained(name: str) -> None:
    ops = _trace(name).read("ops")
    unexplained = ops.filter(pl.col("stage_source") == "none").height
    assert unexplained == _truth(name).filter(pl.col("stage") == "OTHER").height


@pytest.mark.parametrize(
    ("name", "sources"),
    [
        # DDP hands out weights before it begins.
        ("ddp_4gpu", {"nvtx", "weight_exchange", "gradient_exchange", "backward_thread", "none"}),
        (
            "ddp_4gpu_no_backward_range",
            {"nvtx", "weight_exchange", "gradient_exchange", "backward_thread", "none"},
        ),
        ("p2p_2gpu_start_end", {"process_range", "gradient_exchange", "none"}),
        ("p2p_4gpu_star", {"nvtx", "gradient_exchange"}),
        ("closure_1gpu", {"nvtx", "backward_thread", "none"}),
    ],
)
def test_how_the_stages_were_found(name: str, sources: set[str]) -> None:
    assert set(_trace(name).read("ops")["stage_source"]) == sources


@pytest.mark.parametrize("name", NAMES)
def test_times_add_up_on_each_device(name: str) -> None:
    trace = _trace(name)
    for skip in (0, 1, 5):
        stages = breakdown(trace, "stage,device", skip=skip).rows
        devices = breakdown(trace, "device", skip=skip).rows
        exposed = stages.group_by("device").agg(pl.col("exposed_ns").sum())
        sums = devices.join(exposed, on="device")
        assert sums.height == devices.height > 0
        assert (sums["exposed_ns"] + sums["idle_ns"]).equals(sums["window_ns"])
        assert breakdown(trace, skip=skip).meta["window_ns"] == sums["window_ns"].sum()
    assert breakdown(trace).rows["ops"].sum() == _truth(name).height


@pytest.mark.parametrize("name", NAMES)
def test_skipped_iterations_are_the_first(name: str) -> None:
    table = breakdown(_trace(name), "iteration", skip=2).rows
    number = 12 if name == "p2p_4gpu_star" else 6
    assert [n for n in table["iteration"] if n is not None] == list(range(2, number))
    assert breakdown(_trace(name), skip=2).meta["iterations"] == number - 2


def _content(path: Path) -> dict[str, object]:
    """Everything a trace holds; its pages on disk depend on the SQLite that wrote them."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        schema = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        rows = {
            name: connection.execute(f'SELECT * FROM "{name}" ORDER BY rowid').fetchall()
            for name, sql in schema
            if sql and sql.startswith("CREATE TABLE")
        }
    return {"schema": schema, **rows}


@pytest.mark.slow
def test_the_same_rows_are_made_again(tmp_path: Path) -> None:
    generate.generate(tmp_path)
    for name in NAMES:
        truth = f"{name}.truth.csv"
        assert (tmp_path / truth).read_bytes() == (FOLDER / truth).read_bytes()
        trace = f"{name}.sqlite"
        assert _content(tmp_path / trace) == _content(FOLDER / trace)
