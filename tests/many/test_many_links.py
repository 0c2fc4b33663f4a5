"""Links that reports share: their use is known once the reports are on one clock."""

from __future__ import annotations

from pathlib import Path

import pytest
from nsys_builder import NsysBuilder

import tracekit

MACHINE = """
version = 1
[nodes]
GPU = 2
PCIe = 1
CPU = 1
[[links]]
type = "pcie"
between = ["GPU*-PCIe0", "PCIe0-CPU0"]
bandwidth = 16_000_000_000
"""
NOON = 1_700_000_000_000_000_000
WORD = "11111111-2222-3333-4444-55555555555{}"


def _rank(path: Path, rank: int, *, begins: int, names_gpus: bool) -> Path:
    """Write an export that names no host: a process copies 8,000 bytes to its GPU from 1,000 ns on.

    The session of rank 1 begins 250 ns later, so that the two copies overlap for 750 of 1,000 ns.
    """
    with NsysBuilder(path, schema="3.0.0") as nsys:
        nsys.process(100 + rank, "python")
        for gpu in range(2 if names_gpus else 0):
            nsys.gpu(gpu, name="Tesla T4", uuid=WORD.format(gpu))
        nsys.session(NOON + 250 * rank, 10_000)
        nsys.call(900, 905, correlation=1, pid=100 + rank)
        nsys.memcpy(begins, begins + 1_000, kind=1, bytes=8_000, correlation=1, pid=100 + rank,
                    device=rank)  # fmt: skip
    return path


@pytest.mark.slow
@pytest.mark.parametrize("names_gpus", [True, False])
def test_an_uplink_that_two_ranks_share(tmp_path: Path, names_gpus: bool) -> None:
    """16,000 bytes in 1,250 ns are 12.8 GB/s, 80 % of it; added over clocks it would be 50 %."""
    files = [
        _rank(tmp_path / f"rank{rank}.sqlite", rank, begins=1_000, names_gpus=names_gpus)
        for rank in range(2)
    ]
    (tmp_path / "machine.toml").write_text(MACHINE)
    run, _ = tracekit.ingest(files, name="job", store=tmp_path / "store")
    links = run.links("link", topology=tmp_path / "machine.toml")
    [uplink] = links.filter(link="PCIe0-CPU0").to_dicts()
    assert uplink["bytes"] == 16_000
    if names_gpus:
        assert (
            run.info(clocks=True)["evidence"][1] == f"one machine: both list GPU {WORD.format(0)}"
        )
        assert (uplink["busy_ns"], uplink["utilisation"]) == (1_250, pytest.approx(0.8))
    else:
        assert (uplink["busy_ns"], uplink["utilisation"]) == (None, None)
        own = links.filter(link="GPU0-PCIe0").to_dicts()
        assert own[0]["utilisation"] == pytest.approx(0.5)


def test_a_run_of_one_host_knows_no_network(tmp_path: Path) -> None:
    path = _rank(tmp_path / "rank0.sqlite", 0, begins=1_000, names_gpus=True)
    run = tracekit.open(path)
    for key in ("nic", "hosts", "nic,stage"):
        answer = run.links.answer(key)
        assert answer.rows.is_empty()
        assert answer.empty.startswith("all GPUs of the run are on one host")
