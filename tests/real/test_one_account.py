"""Waiting of the real traces: commands give the same time one name and number, whatever changed."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import tracekit as tk
from tracekit.analysis.diagnosis import diagnose
from tracekit.analysis.diagnosis._facts import facts_of
from tracekit.analysis.idle_time import idle
from tracekit.analysis.step_sums import per_iteration
from tracekit.model import TABLES, Trace

NAMES = (
    "ddp_unet_4xa100_rank0", "jacobi_p2p_nvlink_8xv100", "llm_2_7b_forward",
    "lm_pyprof_nvprof", "mnist_1xa100_phases", "sendrecv_2xh100_two_processes",
    "transformer_rtx3070ti",
)  # fmt: skip
FEW = ("sendrecv_2xh100_two_processes", "transformer_rtx3070ti")
EVERY = [*FEW, *(pytest.param(name, marks=pytest.mark.nightly)
                 for name in NAMES if name not in FEW)]  # fmt: skip
"""The dear ones by night."""
REPORTS = ("jax_compile", "unet_1xa100_1worker", "unet_1xa100_16workers")
CONFIDENCES = ("hint", "likely", "measured")


@pytest.mark.parametrize("name", NAMES)
def test_commands_agree(real_run: Callable[[str], tk.Run], name: str) -> None:
    run = real_run(name)
    trace = run.trace
    if not trace.read("iterations").height:
        by_cause = dict(idle(trace).rows.select("cause", "idle_ns").rows())
        assert tk.stalls([run])["wait_ns"].sum() == by_cause.get("input", 0)
        return
    compared = per_iteration(trace, ("cause",)).values.drop_nulls("iteration")
    steps = compared["iteration"].unique()
    by_step = idle(trace, "iteration,cause").rows
    told = by_step.filter(pl.col("iteration").is_in(steps.implode()))
    assert _sums(compared, "length_ns") == _sums(told, "idle_ns")
    assert tk.stalls([run], skip=0)["wait_ns"].sum() == _sums(told, "idle_ns").get("input", 0)
    facts = facts_of(trace)
    usual = told.filter(pl.col("iteration").is_in(facts.steps["iteration"].unique().implode()))
    assert _sums(facts.idle, "time") == _sums(usual, "idle_ns")


def _sums(rows: pl.DataFrame, length: str) -> dict[str, int]:
    return dict(rows.group_by("cause").agg(pl.col(length).sum()).rows())


def _first(run: tk.Run) -> tuple[str, int] | None:
    rows = run.diagnose()
    return (rows["rule"][0], CONFIDENCES.index(rows["confidence"][0])) if rows.height else None


def _without_ranges(path: Path, folder: Path) -> tk.Run:
    copy = Path(shutil.copy(path, folder / "without.sqlite"))
    copy.chmod(0o644)
    with closing(sqlite3.connect(copy)) as file:
        file.execute("DROP TABLE IF EXISTS NVTX_EVENTS")
        file.commit()
    return tk.ingest(copy, store=folder / "store")[0]


def _same_without_ranges(with_ranges: tk.Run, without: tk.Run) -> None:
    first, changed = _first(with_ranges), _first(without)
    assert (first is None) == (changed is None)
    if first is not None and changed is not None:
        assert changed[0] == first[0]
        assert changed[1] <= first[1]
    shares = [tk.stalls([run], skip=0)["data_stall_share"][0] for run in (with_ranges, without)]
    assert shares[1] == pytest.approx(shares[0], abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_ranges_deleted(
    real_run: Callable[[str], tk.Run], real_trace: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    _same_without_ranges(real_run(name), _without_ranges(real_trace(name), tmp_path))


@pytest.mark.slow
def test_sources_removed(real_trace: Callable[[str], Path], tmp_path: Path) -> None:
    """A loader that nothing names is waited for asleep: by either source; by none it is unknown."""
    trace = _without_ranges(real_trace("mnist_1xa100_phases"), tmp_path).trace
    host = trace.read("host")

    def findings(*removed: str) -> dict[str, str]:
        left = host.filter(~pl.col("group").is_in(removed))
        found = diagnose(trace.with_tables({"host": left}), top=None).rows
        return dict(found.select("rule", "confidence").rows())

    for removed in ((), ("off_cpu",), ("wait",)):
        assert next(iter(findings(*removed).items())) == ("input_bound", "likely")
    unseen = findings("off_cpu", "wait")
    assert "launch_bound" not in unseen
    assert set(unseen.values()) == {"hint"}


@pytest.mark.nightly
@pytest.mark.parametrize("name", REPORTS)
def test_a_report_changed(
    real_run: Callable[[str], tk.Run],
    nsys_export: Callable[[str], Path],
    tmp_path: Path,
    name: str,
) -> None:
    report = f"{name}.nsys-rep"
    run = real_run(report)
    _same_without_ranges(run, _without_ranges(nsys_export(report), tmp_path))
    _same_doubled(run.trace)
    _same_renumbered(run.trace)


def _changed(trace: Trace, change: Callable[[str, pl.Expr], pl.Expr]) -> Trace:
    """Return a trace with columns changed; `change` is given a column's unit or name."""
    tables: dict[str, Any] = {}
    for name in ("ops", "calls", "ranges", "iterations", "host", "syncs", "devices", "threads",
                 "processes", "event_records", "verdicts"):  # fmt: skip
        table = TABLES[name]
        frame = trace.read(name)
        columns = [
            change("ns" if column.unit == "ns" else column.name, pl.col(column.name))
            .cast(column.dtype)
            .alias(column.name)
            for column in table.columns
        ]
        tables[name] = frame.select(columns)
    return trace.with_tables(tables)


def _wins(trace: Trace) -> dict[str, float | None]:
    return dict(diagnose(trace, top=None).rows.select("rule", "win_ns").rows())


@pytest.mark.parametrize("name", EVERY)
def test_times_doubled(real_run: Callable[[str], tk.Run], name: str) -> None:
    _same_doubled(real_run(name).trace)


def _same_doubled(trace: Trace) -> None:
    """Some thresholds are times of machines, such as 100 us of a call: not all is double.

    Who waits for Python's lock is told by sleeping 5 ms at a time, which are the interpreter's: at
    10 ms it is asleep, before input if that follows. Both findings together win the same.
    """
    doubled = _changed(trace, lambda kind, column: 2 * column if kind == "ns" else column)
    wins, twice = (_together(_wins(each)) for each in (trace, doubled))
    for rule, win in wins.items():
        if win is not None:
            assert twice[rule] == pytest.approx(2 * win, rel=0.05)
    before, after = (idle(each).meta["idle_ns"] for each in (trace, doubled))
    assert after == 2 * before


@pytest.mark.parametrize("name", EVERY)
def test_devices_threads_and_processes_renumbered(
    real_run: Callable[[str], tk.Run], name: str
) -> None:
    _same_renumbered(real_run(name).trace)


def _together(wins: dict[str, float | None]) -> dict[str, float | None]:
    """Add up what sleep costs, where some of it is told to be for Python's lock."""
    asleep = sum(wins.get(rule) or 0.0 for rule in ("input_bound", "off_cpu"))
    others = {rule: win for rule, win in wins.items() if rule not in ("input_bound", "off_cpu")}
    return {**others, "asleep": asleep}


def _same_renumbered(trace: Trace) -> None:
    most = {"thread": trace.read("threads").height, "process": trace.read("processes").height,
            "device": 8}  # fmt: skip

    def renumber(kind: str, column: pl.Expr) -> pl.Expr:
        whose = kind.rpartition("_")[2]
        return most[whose] - 1 - column if whose in most else column

    changed = _changed(trace, renumber)
    assert _wins(changed) == pytest.approx(_wins(trace))
    causes = [dict(idle(each).rows.select("cause", "idle_ns").rows()) for each in (trace, changed)]
    assert causes[1] == causes[0]
