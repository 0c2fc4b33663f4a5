"""Which machine is meant, and which one a run was recorded on."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tracekit.errors import InputError, MissingDataError, UsageError
from tracekit.machine import find_machine, is_topology, load_preset, machine_of, machine_toml
from tracekit.model import DEVICES

V100 = "Tesla V100-SXM2-16GB"


def devices(names: list[str | None], active: list[bool] | None = None) -> pl.DataFrame:
    rows = {
        "device": list(range(len(names))), "report": 0, "name": pl.Series(names, dtype=pl.String),
        "active": active or [True] * len(names), "identity": "ordinal",
    }  # fmt: skip
    return DEVICES.conform(pl.DataFrame(rows))


def test_a_preset_a_file_or_neither(tmp_path: Path) -> None:
    file = tmp_path / "any name"
    file.write_text(machine_toml(load_preset("dgx1v")))
    assert is_topology("dgx1v")
    assert is_topology("pcie-3")
    assert is_topology(str(file))
    assert not is_topology("@latest")
    assert find_machine(str(file)).nvlink_matrix() == load_preset("dgx1v").nvlink_matrix()
    assert find_machine("pcie-3").gpus == [0, 1, 2]
    with pytest.raises(UsageError, match="no topology file and no preset 'dgx9'"):
        find_machine("dgx9")


def test_a_trace_is_no_topology(tmp_path: Path) -> None:
    trace = tmp_path / "run.sqlite"
    trace.write_bytes(b"SQLite format 3\0" + bytes(1000))
    assert not is_topology(str(trace))
    with pytest.raises(InputError):
        find_machine(str(trace))


def test_eight_v100_are_recognised() -> None:
    placed = machine_of(devices([V100] * 8))
    assert (placed.machine.name, placed.machine.origin, placed.by) == (
        "dgx1v", "recognised", "number",
    )  # fmt: skip
    assert placed.place == {n: n for n in range(8)}


def test_what_is_known_of_products_fills_a_file(tmp_path: Path) -> None:
    file = tmp_path / "topo.toml"
    file.write_text(
        "version = 1\n[nodes]\nGPU = 4\n[[links]]\ntype = 'nvlink'\nbricks = 2\n"
        "between = 'GPU0-GPU1'\n"
    )
    placed = machine_of(devices([V100, V100]), str(file))
    link = placed.machine.link("GPU0", "GPU1")
    assert link is not None
    assert link.bandwidth == 50_000_000_000
    # The GPUs that the run does not name stand for themselves.
    assert placed.place == {0: 0, 1: 1, 2: 2, 3: 3}


def test_too_small_a_topology() -> None:
    with pytest.raises(UsageError, match=r"a topology of 4 GPUs .* cannot carry a run on 8 GPUs"):
        machine_of(devices([V100] * 8), "pcie-4")
    idle = devices([V100] * 8, [True] * 2 + [False] * 6)
    assert machine_of(idle, "pcie-4").place == {n: n for n in range(4)}


def test_no_gpu_at_all() -> None:
    with pytest.raises(MissingDataError, match="no GPU is in this run"):
        machine_of(DEVICES.empty())
