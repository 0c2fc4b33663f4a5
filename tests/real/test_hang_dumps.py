"""Dumps of the flight recorder and answers of RAS that others made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tracekit as tk


@pytest.fixture(scope="module")
def dumps(real_trace: Callable[[str], Path]) -> Path:
    return real_trace("new_formats/kineto_amd/mi210__gpu_only_trace__gpu_only_trace").parents[1]


@pytest.mark.parametrize("kind", ["gloo_recorded", "nccl_adapted"])
def test_the_rank_that_is_missing(dumps: Path, kind: str) -> None:
    assert tk.hang([dumps / "flight_recorder" / kind / "ok"]).is_empty()
    row = tk.hang([dumps / "flight_recorder" / kind / "missing"]).row(0, named=True)
    assert (row["role"], row["problem"], row["ranks"]) == ("cause", "missing", [3])
    assert (row["group"], row["sequence"], row["collective"]) == ("0", 8, "all_reduce")


def test_ras_of_the_documentation(dumps: Path) -> None:
    status = tk.hang([dumps / "nccl/ras_doc_example_1.json"]).row(0, named=True)
    assert (status["problem"], status["ranks"], status["members"]) == ("unresponsive", [1], 2)
    event = tk.hang([dumps / "nccl/ras_doc_example_2.json"]).row(0, named=True)
    assert event["problem"] == "dead"
