"""The tables NVLINK, PCIE and DEVICE of nvprof."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tracekit.errors import DamagedTraceError, InputError, MissingDataError
from tracekit.machine import Machine, read_topology

UUIDS = [bytes([number]) * 16 for number in range(1, 9)]

Nvlink = tuple[object, ...]
Pcie = tuple[object, ...]


def write(
    path: Path,
    nvlinks: Sequence[Nvlink] = (),
    pcie: Sequence[Pcie] = (),
    gpus: int = 2,
    dropped: str = "",
) -> Path:
    """Write a database as nvprof does, without the columns that matter to nobody here."""
    columns = [
        "typeDev0", "typeDev1", "idDev0", "idDev1", "physicalNvLinkCount", "bandwidth",
        "nvswitchConnected",
    ]  # fmt: skip
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE StringTable (_id_ INTEGER PRIMARY KEY, value TEXT)")
        file.execute("INSERT INTO StringTable VALUES (2, 'Tesla V100-SXM2-16GB')")
        file.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_DEVICE (id INT, uuid BLOB, name INT)")
        for number in range(gpus):
            row = (number, UUIDS[number], 2)
            file.execute("INSERT INTO CUPTI_ACTIVITY_KIND_DEVICE VALUES (?, ?, ?)", row)
        file.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_NVLINK ({', '.join(columns)})")
        marks = ", ".join("?" * len(columns))
        file.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_NVLINK VALUES ({marks})", nvlinks)
        if dropped:
            file.execute(f"ALTER TABLE CUPTI_ACTIVITY_KIND_NVLINK DROP COLUMN {dropped}")
        file.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_PCIE"
            " (type, id, domain, linkRate, linkWidth, upstreamBus, attr)"
        )
        file.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_PCIE VALUES (?, ?, ?, ?, ?, ?, ?)", pcie)
        file.commit()
    return path


def nvlink(
    one: int, other: int, bricks: int = 1, kb_s: int = 50_000_000, switch: int = 0
) -> Nvlink:
    return (1, 1, UUIDS[one], UUIDS[other], bricks, kb_s, switch)


def gpu(number: int, bus: int, width: int = 16) -> Pcie:
    return (0, struct.pack("<I", number), 0, 8000, width, bus, UUIDS[number] + bytes(128))


def bridge(number: int, above: int, below: int) -> Pcie:
    attributes = struct.pack("<HHHH", below, 0x8764, 0x10B5, 0) + bytes(136)
    return (1, struct.pack("<I", number), 0, 0, 0, above, attributes)


def read(path: Path) -> Machine:
    return read_topology(path)


def test_gpus_are_joined_by_their_uuid(tmp_path: Path) -> None:
    machine = read(write(tmp_path / "a", [nvlink(2, 0, 2, 100_000_000), nvlink(1, 2)], gpus=3))
    assert machine.nvlink_matrix() == [[0, 0, 2], [0, 0, 1], [2, 1, 0]]
    # 50,000,000 kB/s is what a V100's NVLink carries in both directions.
    assert [link.bandwidth for link in machine.links] == [50_000_000_000, 25_000_000_000]
    assert machine.graph.nodes["GPU1"] == {
        "type": "gpu",
        "product": "Tesla V100-SXM2-16GB",
        "uuid": "02020202-0202-0202-0202-020202020202",
    }
    assert machine.origin == "trace"


def test_the_tree_of_bridges(tmp_path: Path) -> None:
    pcie = [
        gpu(0, 6), gpu(1, 7), gpu(2, 0x85), gpu(3, 0x80, width=8),
        # The ports of one switch, and the root port above it.
        bridge(0, 4, 6), bridge(1, 4, 7), bridge(2, 3, 4), bridge(3, 0, 3),
        # A port with nothing else below it.
        bridge(4, 0x80, 0x85),
    ]  # fmt: skip
    machine = read(write(tmp_path / "a", pcie=pcie, gpus=4))
    assert {link.name: link.bandwidth for link in machine.links} == {
        "CPU0-CPU1": None,
        "GPU0-PCIe0": 15_753_846_154,
        "GPU1-PCIe0": 15_753_846_154,
        "GPU2-CPU1": 15_753_846_154,
        "GPU3-CPU1": 7_876_923_077,
        "PCIe0-CPU0": None,
    }
    assert machine.graph.nodes["GPU2"]["pci_bus"] == "0000:85:00.0"
    assert "pci_bus" not in machine.graph.nodes["GPU3"]


def test_many_root_buses(tmp_path: Path) -> None:
    machine = read(write(tmp_path / "a", pcie=[gpu(n, 16 * n) for n in range(3)], gpus=3))
    assert machine.nodes("host") == ["CPU0", "CPU1", "CPU2"]
    assert len(machine.warnings) == 1


def test_gpus_behind_switches(tmp_path: Path) -> None:
    rows = [nvlink(0, 1, 6, 300_000_000, 1), nvlink(0, 2, 6, 300_000_000, 1),
            nvlink(1, 2, 6, 300_000_000, 1)]  # fmt: skip
    machine = read(write(tmp_path / "a", rows, gpus=3))
    assert [machine.switch_bricks(gpu) for gpu in machine.gpus] == [6, 6, 6]
    assert {link.bandwidth for link in machine.links} == {150_000_000_000}


def test_cuda_8_knew_no_switches(tmp_path: Path) -> None:
    machine = read(write(tmp_path / "a", [nvlink(0, 1)], dropped="nvswitchConnected"))
    assert machine.bricks(0, 1) == 1


def test_nvlinks_to_hosts(tmp_path: Path) -> None:
    npus = [struct.pack("<II", 0, domain) + bytes(8) for domain in (6, 7)]
    rows = [(1, 2, UUIDS[0], npus[0], 3, 150_000_000, 0), (2, 1, npus[1], UUIDS[1], 3, 0, 0)]
    machine = read(write(tmp_path / "a", rows, [gpu(0, 1), gpu(1, 1)]))
    assert {link.name: (link.type, link.bricks, link.bandwidth) for link in machine.links} == {
        "CPU0-CPU1": ("socket", None, None),
        "GPU0-CPU0": ("nvlink", 3, 75_000_000_000),
        "GPU1-CPU1": ("nvlink", 3, None),
    }


def test_rows_of_gpus_that_are_not_named(tmp_path: Path) -> None:
    machine = read(write(tmp_path / "a", [nvlink(0, 1), nvlink(0, 5)]))
    assert machine.nvlink_matrix() == [[0, 1], [1, 0]]
    assert machine.warnings == ("1 of the NVLink rows are of devices that the trace does not name",)


@pytest.mark.parametrize(
    ("nvlinks", "pcie", "message"),
    [
        ([nvlink(0, 1), nvlink(1, 0, 2)], [], "different rows for GPU0-GPU1"),
        ([nvlink(0, 1, 0)], [], "a row of 0 NVLinks"),
        ([(*nvlink(0, 1)[:4], "six", 5, 0)], [], "'six' is not a number"),
        ([nvlink(0, 1, -1)], [], "-1 is not a number"),
        ([], [gpu(0, 6), bridge(0, 4, 6), bridge(1, 6, 4)], "hangs below itself"),
        ([], [(*gpu(0, 6)[:-2], None, None)], "None is not a number"),
        ([], [(*bridge(0, 4, 6)[:-1], b"")], "b'' does not have 2 bytes"),
    ],
)
def test_tables_that_are_wrong(
    tmp_path: Path, nvlinks: Sequence[Nvlink], pcie: Sequence[Pcie], message: str
) -> None:
    with pytest.raises(DamagedTraceError, match=message):
        read(write(tmp_path / "a", nvlinks, pcie))


def test_a_pair_told_of_twice_counts_once(tmp_path: Path) -> None:
    machine = read(write(tmp_path / "a", [nvlink(0, 1), nvlink(1, 0)]))
    assert machine.nvlink_matrix() == [[0, 1], [1, 0]]


def test_databases_without_a_topology(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="is a database without a topology"):
        read(write(tmp_path / "a"))
    endless = tmp_path / "endless"
    with closing(sqlite3.connect(endless)) as file:
        file.execute(
            "CREATE VIEW CUPTI_ACTIVITY_KIND_DEVICE AS"
            " WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
            " SELECT x AS id, x AS uuid, x AS name FROM n"
        )
        file.commit()
    with pytest.raises(MissingDataError):
        read(endless)


def test_a_damaged_database(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [nvlink(0, 1)])
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError):
        read(path)
    assert list(tmp_path.iterdir()) == [path]
