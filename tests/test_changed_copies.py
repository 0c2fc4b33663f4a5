"""A copy of a recording that is changed where nothing hangs on it gives the same answers."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import tracekit as tk

SAMPLE = Path(__file__).parents[1] / "sample_traces" / "ddp_4gpu_no_backward_range.sqlite"
TEXTS = ("demangledName", "shortName", "nameId", "textId")
"""Columns that name a text by its id."""
STREAMS, IDS = ("streamId",), ("correlationId",)
TIMES = ("start", "end")
FACTOR = 3


def _columns(database: sqlite3.Connection, names: tuple[str, ...]) -> list[tuple[str, str]]:
    query = "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c"
    rows = database.execute(f"{query} WHERE m.type = 'table'").fetchall()
    return [(table, column) for table, column in rows if column in names]


def _set(database: sqlite3.Connection, names: tuple[str, ...], value: str) -> None:
    """Set the columns of these names to an expression of themselves, in all tables."""
    for table, column in _columns(database, names):
        new = value.format(f'"{column}"')
        database.execute(f'UPDATE "{table}" SET "{column}" = {new} WHERE "{column}" IS NOT NULL')


def _relabel(database: sqlite3.Connection) -> None:
    """Give texts, calls and streams (but the default one, 7) other numbers, in another order."""
    (last,) = database.execute("SELECT max(id) FROM StringIds").fetchone()
    _set(database, TEXTS, f"{last} + 1 - {{0}}")
    database.execute("UPDATE StringIds SET id = -1 - id")
    database.execute(f"UPDATE StringIds SET id = {last} + 2 + id")
    _set(database, IDS, "{0} + 1000000")
    _set(database, STREAMS, "CASE WHEN {0} = 7 THEN 7 ELSE 5000 - {0} END")


def _rename_kernels(database: sqlite3.Connection) -> None:
    """Put kernels other than NCCL's into a namespace that says nothing."""
    used = "SELECT demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL"
    others = f"id IN ({used}) AND value NOT LIKE '%nccl%'"
    name = "iif(value LIKE 'void %', 'void xq::' || substr(value, 6), 'xq::' || value)"
    database.execute(f"UPDATE StringIds SET value = {name} WHERE {others}")


def _range_around_all(database: sqlite3.Connection) -> None:
    """Put a range that is named like a step around all that each training thread does."""
    database.execute(
        "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId)"
        " SELECT min(start) - 100, max(end) + 100, 59, 'step 1', globalTid, 0 FROM NVTX_EVENTS"
        " WHERE eventType = 59 GROUP BY globalTid"
    )


def _range_around_calls(database: sqlite3.Connection) -> None:
    database.execute(
        "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId)"
        " SELECT start, end, 59, 'op', globalTid, 0 FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    )


def _unknown(database: sqlite3.Connection) -> None:
    for table in dict(_columns(database, TIMES)):
        database.execute(f"ALTER TABLE \"{table}\" ADD COLUMN aFutureOne TEXT DEFAULT 'x'")
    database.execute("CREATE TABLE FUTURE_EVENTS (start INT, end INT, globalTid INT)")


def _slower(database: sqlite3.Connection) -> None:
    _set(database, TIMES, f"{{0}} * {FACTOR}")
    database.execute(f"UPDATE ANALYSIS_DETAILS SET duration = duration * {FACTOR}")


def _ops(path: Path, store: Path) -> pl.DataFrame:
    run, _ = tk.ingest(path, store=store)
    columns = ("device", "start", "end", "kind", "stage", "stage_source", "iteration")
    return run.table("ops").select(columns).sort(columns).collect()


@pytest.fixture(scope="module")
def ops(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    return _ops(SAMPLE, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    "change",
    [_relabel, _rename_kernels, _range_around_all, _range_around_calls, _unknown, _slower],
    ids=lambda change: change.__name__.strip("_"),
)
def test_stages_and_steps_stay(
    change: Callable[[sqlite3.Connection], None], ops: pl.DataFrame, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.sqlite"
    shutil.copyfile(SAMPLE, copy)
    with sqlite3.connect(copy) as database:
        change(database)
    database.close()
    factor = FACTOR if change is _slower else 1
    assert_frame_equal(
        _ops(copy, tmp_path / "store"), ops.with_columns(pl.col("start", "end") * factor)
    )
