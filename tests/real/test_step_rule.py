"""A rule that calls whole steps of a real run an update moves only what nothing else explains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from trace_builder import default_rules

from tracekit.attribution import Rules, attribute
from tracekit.model import Trace
from tracekit.sources import read

TOLD = ["stage", "stage_source"]


@pytest.fixture(scope="module")
def both(
    real_trace: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Trace, Trace]:
    path = tmp_path_factory.mktemp("rules") / "rules.toml"
    path.write_text('version = 1\n[[range]]\nname = "^step [0-9]+$"\nstage = "WU"\n')
    raw = read(real_trace("ddp_unet_4xa100_rank0"), lambda *_: None)
    return attribute(raw, default_rules()), attribute(raw, Rules.load(path))


def _ops(trace: Trace) -> pl.DataFrame:
    return trace.read("ops").select("op", "iteration", pl.col(TOLD).cast(pl.String))


def test_no_op_of_another_stage_moves(both: tuple[Trace, Trace]) -> None:
    before, after = (_ops(trace) for trace in both)
    moved = before.join(after, on="op", suffix="_after", how="full").filter(
        pl.col("stage").ne_missing(pl.col("stage_after"))
    )
    assert 0 < moved.height < 0.02 * before.height
    kinds = moved.select("stage", "stage_source", "stage_after", "stage_source_after").unique()
    by_names = ("kernel_name", "copy_kind", "none")
    assert {(row[2], row[3]) for row in kinds.rows()} == {("WU", "nvtx")}
    assert {row[1] for row in kinds.rows()} <= set(by_names)


def test_passes_keep_their_counts(both: tuple[Trace, Trace]) -> None:
    counts = [
        dict(_ops(trace).filter(pl.col("stage").is_in(["FP", "BP"])).group_by("stage").len().rows())
        for trace in both
    ]
    assert counts[0] == counts[1]
    assert counts[1]["BP"] > 11_000


def test_there_are_as_many_iterations(both: tuple[Trace, Trace]) -> None:
    assert [trace.read("iterations").height for trace in both] == [59, 59]
