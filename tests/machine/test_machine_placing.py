"""Which GPU of a machine each device of a run is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest

from tracekit.errors import UsageError
from tracekit.machine import Machine, load_preset, place, recognise

UUIDS = [f"0000000{gpu}-0000-0000-0000-00000000000a" for gpu in range(4)]
BUSES = ["0000:06:00.0", "0000:07:00.0", "0000:0a:00.0", "0000:0b:00.0"]


def _machine(**each: Sequence[str | None]) -> Machine:
    nodes: dict[str, dict[str, Any]] = {f"GPU{gpu}": {"type": "gpu"} for gpu in range(4)}
    for key, values in each.items():
        for gpu, value in enumerate(values):
            nodes[f"GPU{gpu}"][key] = value
    return Machine.of("box", nodes, [])


def _devices(*rows: dict[str, Any]) -> pl.DataFrame:
    blank = {"name": None, "uuid": None, "pci_bus": None, "active": True}
    return pl.DataFrame(
        [blank | {"device": number} | row for number, row in enumerate(rows)],
        schema_overrides={"uuid": pl.String, "pci_bus": pl.String, "name": pl.String},
    )


def test_by_uuid_in_any_spelling() -> None:
    machine = _machine(uuid=[f"GPU-{uuid.upper()}" for uuid in UUIDS], pci_bus=BUSES)
    run = _devices({"uuid": UUIDS[3], "pci_bus": BUSES[0]}, {"uuid": UUIDS[1]})
    placing = place(machine, run)
    assert (placing.gpus, placing.by, placing.warnings) == ({0: 3, 1: 1}, "uuid", ())


@pytest.mark.parametrize(
    ("machine", "run"),
    [
        ("00000000:0A:00.0", "0000:0a:00.0"),
        ("0000:0a:00.0", "0A:00.0"),
        ("a:0a:00.0", "000A:0a:00.0"),
    ],
)
def test_by_pci_bus_in_any_spelling(machine: str, run: str) -> None:
    placing = place(_machine(pci_bus=[None, None, machine]), _devices({"pci_bus": run}))
    assert (placing.gpus, placing.by, placing.warnings) == ({0: 2}, "pci_bus", ())


def test_by_number_where_the_machine_has_nothing_else() -> None:
    run = _devices(
        *({"uuid": uuid, "pci_bus": bus} for uuid, bus in zip(UUIDS, BUSES, strict=True))
    )
    placing = place(load_preset("dgx1v"), run)
    assert placing.gpus == {0: 0, 1: 1, 2: 2, 3: 3}
    assert (placing.by, placing.warnings) == ("number", ())


def test_a_topology_of_another_machine_of_the_model() -> None:
    machine = _machine(uuid=UUIDS, pci_bus=BUSES)
    other = "11111111-1111-1111-1111-111111111111"
    placing = place(machine, _devices({"uuid": other, "pci_bus": BUSES[2]}))
    assert (placing.gpus, placing.by) == ({0: 2}, "pci_bus")
    assert "other UUIDs than those of the run" in placing.warnings[0]
    placing = place(machine, _devices({"uuid": other, "pci_bus": "0000:99:00.0"}))
    assert (placing.gpus, placing.by) == ({0: 0}, "number")
    assert "other UUIDs and PCI bus locations than" in placing.warnings[0]


def test_more_gpus_than_the_machine_has() -> None:
    with pytest.raises(
        UsageError, match=r"a topology of 4 GPUs \(box\) cannot carry a run on 8 GPUs"
    ):
        place(_machine(), _devices(*({} for _ in range(8))))


def test_idle_devices_need_no_place() -> None:
    run = _devices(*({"active": number in (1, 3)} for number in range(8)))
    assert place(_machine(), run).gpus == {0: 0, 1: 1, 2: 2, 3: 3}
    assert place(_machine(), run.clear()).gpus == {}


@pytest.mark.parametrize(
    ("machine", "row", "message"),
    [
        (_machine(), {"device": 5}, "run on GPU 5, which is not in it by the numbers"),
        (_machine(uuid=UUIDS[:1]), {"uuid": UUIDS[2]}, "run on GPU 1, .* by the UUIDs"),
    ],
)
def test_an_active_gpu_that_the_machine_has_not(
    machine: Machine, row: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        place(machine, _devices({"uuid": UUIDS[0]}, row))


def test_gpus_of_two_machines_at_one_location() -> None:
    run = _devices({"pci_bus": BUSES[0]}, {"pci_bus": BUSES[0]})
    with pytest.raises(
        UsageError, match=r"GPUs 0 and 1 of the run are GPU 0 .* in several machines"
    ):
        place(_machine(pci_bus=BUSES), run)
    run = _devices({"pci_bus": BUSES[0], "active": False}, {"pci_bus": BUSES[0]})
    assert place(_machine(pci_bus=BUSES), run).gpus == {1: 0}


def test_a_machine_that_was_made_for_a_run_has_its_gpus_in_order() -> None:
    machine = recognise(["Tesla T4", "Tesla T4"])
    assert machine is not None
    placing = place(machine, _devices({"device": 6}, {"device": 2}))
    assert (placing.gpus, placing.by) == ({2: 0, 6: 1}, "number")
