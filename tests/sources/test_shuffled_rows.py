"""The order of rows in an export says nothing: newer versions of nsys no longer keep to one."""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path

import pytest
from kineto_helpers import event, kernel, launch, text_of, write
from nsys_builder import NsysBuilder
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
    _assert_alike(path, shuffled(path, tmp_path / path.name, 3))


def _assert_alike(path: Path, copy: Path) -> None:
    ordered, other = _attributed(path), _attributed(copy)
    for table in TABLES:
        one, two = (
            trace.read(table).drop(*NUMBERED_BY_ROW, "size", strict=False)
            for trace in (ordered, other)
        )
        assert_frame_equal(one.sort(one.columns), two.sort(two.columns), categorical_as_str=True)
    assert sorted(ordered.warnings) == sorted(other.warnings)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(each, marks=pytest.mark.nightly) for each in (1, 2))]
)
def test_shuffled_waits_records_and_graph_nodes_change_no_number(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with NsysBuilder(path, schema="3.28.0") as nsys:
        for at in range(100, 1_000, 100):
            nsys.push_pop(at, at + 50, "forward" if at % 200 else "backward")
            nsys.call(at + 5, at + 9, correlation=at)
            nsys.graph_node(at + 6, at)
            nsys.graph_node(at + 2_000, at + 1, at)
            nsys.event_record(at % 3, correlation=at, eventSyncId=at)
            nsys.sync(at + 20, at + 30, correlation=at, stream=7, event=at % 3, eventSyncId=at)
            nsys.kernel(at + 5_000, at + 5_050, correlation=1, graph_node=at + 1)
        nsys.call(4_000, 4_010, correlation=1, name="cudaGraphLaunch")
    folder = tmp_path / "copy"
    folder.mkdir()
    copy = shuffled(path, folder / path.name, seed)
    assert read(path).read("syncs")["recorded_by"].null_count() == 0
    assert set(_attributed(copy).read("ops")["stage"]) == {"FP", "BP"}
    _assert_alike(path, copy)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(each, marks=pytest.mark.nightly) for each in (1, 2))]
)
def test_shuffled_events_of_pytorch_change_no_number(seed: int, tmp_path: Path) -> None:
    events = []
    for step in range(4):
        at = 1_000 * step
        events += [event("user_annotation", f"ProfilerStep#{step}", at, 900),
                   event("cpu_op", "aten::mm", at + 10, 80, Sequence_number=step),
                   event("user_annotation", "backward", at + 100, 200)]  # fmt: skip
        for number, begin in enumerate((20, 110, 150)):
            correlation = 10 * step + number
            events += [launch(at + begin, 5, correlation),
                       kernel(f"gemm{number}", at + begin + 6, 20, correlation)]  # fmt: skip
        wait = event("cuda_sync", "Stream Sync", at + 400, 3, pid=0, tid=7)
        wait["args"] = {"cuda_sync_kind": "Stream Sync", "stream": 7, "correlation": at + 7,
                        "device": 0, "context": 1}  # fmt: skip
        events.append(wait)
    mixed = random.Random(seed).sample(events, len(events))
    paths = [tmp_path / name / "t.json" for name in ("ordered", "mixed")]
    for path, some in zip(paths, (events, mixed), strict=True):
        path.parent.mkdir()
        write(path, text_of(*some))
    assert read(paths[1]).read("syncs").height == 4
    _assert_alike(*paths)
