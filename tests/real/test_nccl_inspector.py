"""Examples of NCCL's documentation of its inspector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tracekit as tk


@pytest.fixture(scope="module")
def log(real_trace: Callable[[str], Path]) -> Path:
    folder = real_trace("new_formats/kineto_amd/mi210__gpu_only_trace__gpu_only_trace").parents[1]
    return folder / "nccl" / "inspector_doc_example.jsonl"


def test_bandwidths_are_those_that_nccl_says(log: Path) -> None:
    answer = tk.nccl_inspector.answer([log])
    named = ("collective", "ranks", "duration_p50_ns", "bytes", "algorithm_bandwidth_gb_s",
             "bus_bandwidth_gb_s", "skew_ns", "transfer_ns")  # fmt: skip
    assert [
        tuple(round(each, 6) if isinstance(each, float) else each for each in row)
        for row in answer.rows.select(named).rows()
    ] == [
        ("all_reduce", 8, 61_974_000, 2**34, 277.210914, 485.119099, None, None),
        ("reduce_scatter", 8, 41_057_000, 2**34, 418.439467, 366.134533, None, None),
    ]
    assert answer.warnings == ()
    assert answer.meta["missing"][0] == (
        "ranks without records (7 of 0x7f8c496ae9f661, 7 of 0xe62dedaa97644a): give the logs of "
        "all hosts"
    )


def test_logs_lie_beside_other_files(log: Path) -> None:
    assert tk.nccl_inspector([log.parent], by="rank").height == 2
