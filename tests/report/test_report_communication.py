"""Pictures of what moved between GPUs, from literal tables."""

from __future__ import annotations

import polars as pl

from tracekit.machine import Link, Machine
from tracekit.report._communication import _machine, _matrix

PAIRS = pl.DataFrame(
    {"src_device": [0, 1, 1], "dst_device": [1, 0, 0], "bytes": [None, None, 1_000],
     "least_bytes": [2_000, 0, None], "most_bytes": [3_000, 5_000, None]}
)  # fmt: skip


def test_a_matrix_has_what_pairs_sent() -> None:
    found = _matrix(PAIRS.drop("least_bytes", "most_bytes").fill_null(4_000))
    assert found is not None
    assert "0 to 1: 4 kB" in found
    assert "1 to 0: 5 kB" in found
    assert _matrix(PAIRS.clear()) is None


def test_bounds_are_two_numbers() -> None:
    found = _matrix(PAIRS)
    assert found is not None
    assert "0 to 1: 2 kB to 3 kB" in found
    assert "1 to 0: 1 kB to 6 kB" in found
    nodes = {"GPU0": {"type": "gpu"}, "GPU1": {"type": "gpu"}}
    machine = Machine.of("m", nodes, [Link(("GPU0", "GPU1"), "nvlink", 1, 25 * 10**9)])
    links = PAIRS.with_columns(src=pl.format("GPU{}", "src_device"),
                               dst=pl.format("GPU{}", "dst_device"))  # fmt: skip
    drawn = _machine(machine, links, unplaced=0)
    assert drawn is not None
    # The bytes of both directions are no bytes from one to the other.
    assert "between GPU0 and GPU1: nvlink, 3 kB to 9 kB carried" in drawn
    assert "unknown" not in drawn
    none = _machine(machine, links.clear(), unplaced=3)
    assert none is not None
    assert "nvlink, traffic unknown" in none
    assert "unknown: collectives on no link" in none
