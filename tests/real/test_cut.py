"""Real captures whose GPU work is cut off at one end, as a profiler that was stopped leaves them.

Ranges and calls stay; kernels, copies and memsets outside of a part of the GPU's time go. A step
that was recorded whole has the stages that it had before.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from trace_builder import default_rules

from tracekit.attribution import attribute
from tracekit.model import Trace
from tracekit.sources import read

EXPORTS = ("ddp_unet_4xa100_rank0", "mnist_1xa100_phases", "transformer_rtx3070ti")
REPORTS = (
    "mnist_1xa100_first_optimization.nsys-rep",
    "unet_1xa100_4workers.nsys-rep",
    "unet_1xa100_dali.nsys-rep",
    "unet_1xa100_dali_bf16_fused_jit.nsys-rep",
    "unet_1xgpu_dali.qdrep",
    "unet_1xgpu_dali_amp.qdrep",
)
ENDS = [(0, percent) for percent in range(10, 100, 10)]
BEGINNINGS = [(percent, 100) for percent in range(10, 100, 10)]
SOME = {
    ("ddp_unet_4xa100_rank0", 0, 50), ("ddp_unet_4xa100_rank0", 90, 100),
    ("mnist_1xa100_phases", 40, 100), ("transformer_rtx3070ti", 0, 10),
    ("transformer_rtx3070ti", 0, 50),
}  # fmt: skip
"""Cuts that every run of the tests looks at; the others take minutes together."""
TABLES = [f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET")]
OP = ["process", "correlation", "start"]
STEP = ["process", "iteration"]
LOST_MUCH = 0.1
"""An iteration at an edge that lost no more of its ops may count as whole."""
Cut = tuple[str, int, int]


def _case(name: str, first: int, last: int) -> Any:
    daily = (name, first, last) in SOME
    return pytest.param((name, first, last), marks=() if daily else pytest.mark.nightly)


@pytest.fixture(
    scope="module",
    params=[_case(name, *part) for name in (*EXPORTS, *REPORTS) for part in (*ENDS, *BEGINNINGS)],
    ids=lambda cut: "{}-{}-{}".format(*cut),
)
def cut(request: pytest.FixtureRequest) -> Cut:
    """A trace, and between which percentages of its GPU time work is kept."""
    made: Cut = request.param
    return made


@dataclass(frozen=True)
class Pair:
    """A trace, and what is left of it."""

    whole: Trace
    cut: Trace

    def ops(self) -> pl.DataFrame:
        """Return the ops that are left, with what was said of each before the cut."""
        before, left = (_ops(trace) for trace in (self.whole, self.cut))
        found = left.join(before, on=OP, how="left", suffix="_before", nulls_equal=True)
        assert found.height == left.height > 0
        assert found["stage_before"].null_count() == 0
        return found

    def kept(self) -> pl.DataFrame:
        """Return of each iteration how many ops it had, and what part of these is left."""
        counts = [_ops(trace).drop_nulls("iteration").group_by(STEP).len() for trace in self.pair()]
        known = self.whole.read("iterations").filter(pl.col("ops") > 0).select(*STEP, "start")
        joined = known.join(counts[0], on=STEP).join(counts[1], on=STEP, how="left", suffix="_left")
        part = pl.col("len_left").fill_null(0) / pl.col("len")
        return joined.sort("start").select(*STEP, part=part)

    def pair(self) -> tuple[Trace, Trace]:
        """Return both."""
        return self.whole, self.cut

    def verdict(self) -> dict[str, Any]:
        """Return what is said of the one process."""
        (found,) = self.cut.read("verdicts").to_dicts()
        return found


def _ops(trace: Trace) -> pl.DataFrame:
    text = (pl.col(name).cast(pl.String) for name in ("stage", "stage_source"))
    length = pl.col("end") - pl.col("start")
    return trace.read("ops").select(*OP, *text, "iteration", "launch_thread", length=length)


@cache
def _whole(path: Path) -> Trace:
    return attribute(read(path, lambda *_: None), default_rules())


@pytest.fixture(scope="module")
def pair(
    cut: Cut,
    nsys_export: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Pair:
    name, first, last = cut
    source = nsys_export(name)
    path = tmp_path_factory.mktemp("cut") / "cut.sqlite"
    shutil.copyfile(source, path)
    _cut(path, first / 100, last / 100)
    made = Pair(_whole(source), attribute(read(path, lambda *_: None), default_rules()))
    path.unlink()
    return made


def _cut(path: Path, first: float, last: float) -> None:
    """Delete the ops that start outside of a part of the time from the first to the last op."""
    with closing(sqlite3.connect(path)) as db:
        names = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        tables = [table for table in TABLES if table in names]
        spans = [db.execute(f"SELECT min(start), max(end) FROM {t}").fetchone() for t in tables]
        begin, end = min(start for start, _ in spans), max(end for _, end in spans)
        edges = (begin + first * (end - begin), begin + last * (end - begin))
        for table in tables:
            db.execute(f"DELETE FROM {table} WHERE start < ? OR start > ?", edges)
        db.commit()


def test_stages_of_whole_steps_are_what_they_were(pair: Pair) -> None:
    """What structure alone told may be untold where too little is left of it, never told wrong."""
    steps = pair.cut.read("iterations").filter("whole").select(STEP)
    ops = pair.ops().join(steps, on=STEP, how="semi")
    assert ops["iteration"].equals(ops["iteration_before"])
    differs = ops.filter(pl.col("stage") != pl.col("stage_before"))
    if not pair.verdict()["decides"]:
        untold = (pl.col("stage_source_before") == "structure") & (pl.col("stage") == "OTHER")
        differs = differs.filter(~untold)
    assert differs.rows() == []


def test_backward_passes_of_the_other_thread_are_found(pair: Pair) -> None:
    """Also in steps that were cut: of what that thread launched nothing goes by kernel names."""
    ops = pair.ops()
    threads = ops.filter(stage_source_before="backward_thread", stage_before="BP")["launch_thread"]
    own = ops.filter(pl.col("launch_thread").is_in(threads.implode()))
    before = own.filter(stage_before="BP")
    assert before.height == own.filter(stage_before="BP", stage="BP").height
    assert own.filter(stage="FP", stage_before="BP").is_empty()
    assert not own.height or before.height > own.height / 2


def test_little_of_all_time_changes_its_stage(pair: Pair) -> None:
    ops = pair.ops()
    changed = ops.filter(pl.col("stage") != pl.col("stage_before"))
    assert changed["length"].sum() <= 0.001 * ops["length"].sum()


def test_the_end_that_is_missing_is_named(pair: Pair, cut: Cut) -> None:
    missing = "end" if cut[1] == 0 else "begin"
    told, parts = pair.verdict()["cut"], pair.kept()["part"]
    assert told in {missing, None}
    held = parts.filter(parts > 0)
    if held.is_empty():
        assert told is None  # which end it is, empty iterations alone do not say
        return
    edge = held[-1 if missing == "end" else 0]
    must_be_told = (parts == 0).any() or edge < 1 - LOST_MUCH
    assert told == missing or not must_be_told


def test_iterations_are_counted_as_they_are_left(pair: Pair) -> None:
    verdict, parts = pair.verdict(), pair.kept()["part"]
    assert verdict["iterations"] == parts.len()
    assert verdict["with_work"] == (parts > 0).sum()
    # The one at the edge may have been whole by chance.
    assert (parts == 1).sum() - 1 <= verdict["whole"] <= (parts >= 1 - LOST_MUCH).sum()


def test_a_warning_says_so(pair: Pair) -> None:
    told = [text for text in pair.cut.warnings if " cut at its " in text]
    verdict = pair.verdict()
    nothing = any(text.startswith("none of ") for text in pair.cut.warnings)
    assert nothing == (verdict["with_work"] == 0)
    if verdict["cut"] is None:
        assert told == []
        return
    if verdict["whole"] == verdict["iterations"]:
        assert len(told) == 1
        assert "within a step" in told[0]
        return
    where = {"begin": "beginning", "end": "end"}[verdict["cut"]]
    is_known = verdict["with_work"] < verdict["iterations"]
    known = "whole" if is_known else "known to be whole"
    counts = f"{verdict['with_work']:,} have GPU work, {verdict['whole']:,} of them {known}"
    cut = f"the recording of GPU work {'is' if is_known else 'may be'} cut at its {where}"
    assert told == [f"{cut}: of {verdict['iterations']:,} iterations {counts}"]
