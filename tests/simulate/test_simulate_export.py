"""Rows of a simulated export are those that nsys would write of what happened."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from simulate.export import write_export
from simulate.job import Job
from simulate.run import simulate
from simulate.world import World

PEERS = Job(network="lenet", gpus=2, method="p2p", steps=2, pageable=True, allocate=True)
RINGS = Job(network="lenet", gpus=2, pattern="all_reduce", processes="per_gpu", steps=2)


def _rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as file:
        return file.execute(sql).fetchall()


def _write(folder: Path, job: Job) -> tuple[World, Path]:
    world = simulate(job)
    write_export(world, folder / "t.sqlite")
    return world, folder / "t.sqlite"


@pytest.mark.parametrize("job", [PEERS, RINGS], ids=["peers", "rings"])
def test_every_op_has_its_call(job: Job, tmp_path: Path) -> None:
    world, path = _write(tmp_path, job)
    joined = _rows(
        path,
        "SELECT o.start, r.start, r.globalTid & 0xFFFFFF FROM"
        " (SELECT start, correlationId, globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL UNION ALL"
        " SELECT start, correlationId, globalPid FROM CUPTI_ACTIVITY_KIND_MEMCPY) o"
        " JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = o.correlationId"
        " AND (r.globalTid & -16777216) = o.globalPid",
    )
    assert len(joined) == len(world.books.ops)
    assert all(op >= call + world.parameters.launch_latency_ns for op, call, _ in joined)
    threads = {thread.tid for process in world.processes for thread in process.threads}
    assert {tid for *_, tid in joined} <= threads
    assert len(threads) == 2 * job.gpus


def test_processes_have_their_gpus(tmp_path: Path) -> None:
    _, path = _write(tmp_path, RINGS)
    sql = "SELECT DISTINCT (globalPid >> 24) & 0xFFFFFF, deviceId FROM CUPTI_ACTIVITY_KIND_KERNEL"
    assert sorted(_rows(path, sql)) == [(30_000, 0), (30_200, 1)]


def test_peer_copies_name_both_ends_and_pageable_memory_is_told(tmp_path: Path) -> None:
    _, path = _write(tmp_path, PEERS)
    copies = set(
        _rows(
            path,
            "SELECT copyKind, deviceId, srcDeviceId, dstDeviceId, srcKind, dstKind"
            " FROM CUPTI_ACTIVITY_KIND_MEMCPY",
        )
    )
    assert {row for row in copies if row[0] == 10} == {(10, 1, 1, 0, 2, 2), (10, 0, 0, 1, 2, 2)}
    assert {row[2:] for row in copies if row[0] == 1} == {(None, None, 0, 2)}
    assert {row[2:] for row in copies if row[0] == 2} == {(None, None, 2, 1)}


def test_pageable_copies_hold_the_call_until_they_are_over(tmp_path: Path) -> None:
    _, path = _write(tmp_path, PEERS)
    ends = _rows(
        path,
        "SELECT r.end - m.end FROM CUPTI_ACTIVITY_KIND_MEMCPY m JOIN CUPTI_ACTIVITY_KIND_RUNTIME r"
        " ON r.correlationId = m.correlationId WHERE m.copyKind = 1",
    )
    assert ends
    assert all(late >= 0 for (late,) in ends)


def test_events_and_waits_are_recorded(tmp_path: Path) -> None:
    _, path = _write(tmp_path, RINGS)
    recorded = _rows(path, "SELECT globalPid, eventId FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT")
    waited = _rows(
        path,
        "SELECT globalPid, eventId FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION WHERE syncType = 2",
    )
    assert len(set(recorded)) == len(recorded) > 0
    assert set(waited) <= set(recorded)
    kinds = _rows(
        path, "SELECT DISTINCT syncType, streamId FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
    )
    assert {kind for kind, _ in kinds} == {2, 3, 4}
    assert {stream for kind, stream in kinds if kind == 4} == {0xFFFFFFFF}


def test_nccl_marks_its_calls_in_its_own_domain(tmp_path: Path) -> None:
    world, path = _write(tmp_path, RINGS)
    calls = _rows(
        path,
        "SELECT count(*) FROM NVTX_EVENTS e JOIN StringIds s ON s.id = e.textId"
        " JOIN NVTX_EVENTS d ON d.eventType = 75 AND d.domainId = e.domainId"
        " AND (d.globalTid & -16777216) = (e.globalTid & -16777216)"
        " WHERE s.value = 'ncclAllReduce' AND d.text = 'NCCL' AND e.eventType = 59",
    )
    assert calls == [(sum(op.collective is not None for op in world.books.ops),)]


@pytest.mark.parametrize(
    ("ranges", "steps", "layers"), [("full", 4, True), ("stages", 4, False), ("none", 0, False)]
)
def test_ranges_are_those_asked_for(ranges: str, steps: int, layers: bool, tmp_path: Path) -> None:
    job = Job(network="lenet", gpus=2, steps=2, method="p2p", ranges=ranges)
    _, path = _write(tmp_path, job)
    has = _rows(path, "SELECT count(*) FROM sqlite_master WHERE name = 'NVTX_EVENTS'") == [(1,)]
    names = [name for (name,) in _rows(path, "SELECT text FROM NVTX_EVENTS")] if has else []
    assert sum(name.startswith("step ") for name in names) == steps
    assert ("fc5" in names) is layers
    assert any(name.startswith("tracekit.label ") for name in names) is (ranges != "none")


def test_memory_is_allocated_and_released(tmp_path: Path) -> None:
    _, path = _write(tmp_path, PEERS)
    events = _rows(
        path,
        "SELECT deviceId, address, bytes, memoryOperationType, memKind"
        " FROM CUDA_GPU_MEMORY_USAGE_EVENTS ORDER BY start",
    )
    assert {kind for *_, kind in events} == {2}
    held: dict[tuple[int, int], int] = {}
    for device, address, size, frees, _ in events:
        if frees:
            assert held.pop((device, address)) == size > 0
        else:
            assert (device, address) not in held
            held[device, address] = size
    # What is left was allocated before the first step: 7 blocks, and GPU 0's for the others'.
    assert sorted(device for device, _ in held) == [0] * 7 + [1] * 6
