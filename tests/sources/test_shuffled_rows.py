"""The order of rows in an export says nothing: newer versions of nsys no longer keep to one."""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

from tracekit.attribution import Rules, attribute
from tracekit.model import TABLES, Trace
from tracekit.sources import read

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
NUMBERED_BY_ROW = {"op", "call", "range", "parent"}


def shuffled(path: Path, copy: Path, seed: int) -> Path:
    """Write an export again whose tables have their rows in a random order."""
    shutil.copy(path, copy)
    chance = random.Random(seed)
    with sqlite3.connect(copy) as database:
        query = (
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        )
        for table, _ in database.execute(query).fetchall():
            rows = database.execute(f'SELECT * FROM "{table}"').fetchall()
            if not rows:
                continue
            chance.shuffle(rows)
            database.execute(f'DELETE FROM "{table}"')
            marks = ", ".join("?" * len(rows[0]))
            database.executemany(f'INSERT INTO "{table}" VALUES ({marks})', rows)
    database.close()
    return copy


def _attributed(path: Path) -> Trace:
    return attribute(read(path), Rules.load(None, None))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp_4gpu", "p2p_2gpu_start_end", "recorded/mpi_latency_rank0"])
def test_shuffled_rows_change_no_number(name: str, tmp_path: Path) -> None:
    path = SAMPLES / f"{name}.sqlite"
    ordered = _attributed(path)
    other = _attributed(shuffled(path, tmp_path / path.name, 3))
    for table in TABLES:
        one, two = (
            trace.read(table).drop(*NUMBERED_BY_ROW, "size", strict=False)
            for trace in (ordered, other)
        )
        assert_frame_equal(one.sort(one.columns), two.sort(two.columns), categorical_as_str=True)
    assert sorted(ordered.warnings) == sorted(other.warnings)
