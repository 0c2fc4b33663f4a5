"""A report that is split by process and merged again gives the answers of the whole one."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from quick_sqlite import writing

import tracekit as tk

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "ddp_4gpu.sqlite"
OWNERS = ("globalPid", "globalTid")
"""Columns that say whose a row is."""
PROCESS = "(globalPid >> 24 & 16777215)"


def split(path: Path, folder: Path, *kept: Iterable[int]) -> list[Path]:
    """Write one export for each choice of processes, counted from 0."""
    parts = [Path(shutil.copy(path, folder / f"part{n}.sqlite")) for n in range(len(kept))]
    for part, numbers in zip(parts, kept, strict=True):
        with writing(part) as db:
            found = db.execute(f"SELECT DISTINCT {PROCESS} FROM CUPTI_ACTIVITY_KIND_KERNEL")
            pids = sorted(pid for (pid,) in found)
            gone = ", ".join(str(pid) for n, pid in enumerate(pids) if n not in set(numbers))
            for (table,) in db.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'"
            ).fetchall():
                columns = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
                for owner in columns.intersection(OWNERS):
                    owned = PROCESS.replace("globalPid", owner)
                    db.execute(f"DELETE FROM {table} WHERE {owned} IN ({gone})")
            db.commit()
    return parts


@pytest.mark.slow
@pytest.mark.parametrize(
    "kept",
    [((0, 1), (2, 3)), pytest.param(((0, 3), (1,), (2,)), marks=pytest.mark.nightly)],
    ids=["in two", "in three"],
)
def test_the_parts_of_a_report_are_the_report(
    kept: tuple[tuple[int, ...], ...], tmp_path: Path
) -> None:
    whole = tk.ingest(SAMPLE, store=tmp_path / "store")[0]
    parts = split(SAMPLE, tmp_path, *kept)
    merged = tk.ingest(parts, name="merged", store=tmp_path / "store")[0]
    for ask in (
        lambda run: run.breakdown(),
        lambda run: run.breakdown(by="stage,device"),
        lambda run: run.breakdown(by="iteration"),
        lambda run: run.breakdown(by="kernel,rank"),
        lambda run: run.idle(),
        lambda run: run.sql("SELECT kind, count(*) n, sum(bytes) b FROM ops GROUP BY kind"),
        lambda run: run.sql("SELECT pid, count(*) n FROM calls JOIN processes USING (process)"
                            " GROUP BY pid"),
    ):  # fmt: skip
        one, other = ask(whole), ask(merged)
        assert one.height > 0
        assert_frame_equal(_sorted(one), _sorted(other), categorical_as_str=True)


def _sorted(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.sort(rows.columns)
