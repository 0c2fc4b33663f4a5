"""Find the GPUs in rocprofv3's list of agents (CPUs and GPUs of the machine)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tracekit.sources._json_values import integer, mapping, text_of

GPU = 2
"""Type of the agents that are GPUs."""


def gpus(agents: object) -> list[Mapping[str, Any]]:
    """Return the GPUs in rocprofv3's list of agents (CPUs and GPUs), if their index is known."""
    listed = agents if isinstance(agents, list) else []
    found = [mapping(each) for each in listed if mapping(each).get("type") == GPU]
    return [each for each in found if gpu_number(each) is not None]


def gpu_number(agent: Mapping[str, Any]) -> int | None:
    """Return the index of a GPU among the GPUs of its machine; None if it is not recorded."""
    return integer(agent.get("logical_node_type_id"), 1 << 31)


def handle(agent: Mapping[str, Any]) -> int | None:
    """Return the handle of an agent (CPU or GPU), by which records refer to it; None if absent."""
    return integer(mapping(agent.get("id")).get("handle"), 1 << 63)


def described(processes: list[Mapping[str, Any]]) -> pl.DataFrame:
    """Return GPU descriptions, a row per process and GPU; all processes describe one machine."""
    rows = [_description(gpu) for each in processes for gpu in gpus(each.get("agents"))]
    schema = {
        "device": pl.Int32, "name": pl.String, "uuid": pl.String, "pci_bus": pl.String,
        "memory_bytes": pl.Int64, "sm_count": pl.Int32,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema)


def _description(gpu: Mapping[str, Any]) -> dict[str, object]:
    name = gpu.get("product_name") or gpu.get("name")
    banks = gpu.get("mem_banks")
    bank = mapping(banks[0]) if isinstance(banks, list) and banks else {}
    uuid = mapping(mapping(gpu.get("uuid")).get("bytes"))
    parts = [integer(uuid.get(f"value{place}"), 1 << 8) for place in range(8)]
    known = [part for part in parts if part is not None]
    location, domain = integer(gpu.get("location_id"), 1 << 16), integer(gpu.get("domain"), 1 << 16)
    return {
        "device": gpu_number(gpu),
        "name": text_of(name) if isinstance(name, str) else None,
        "uuid": bytes(known).hex() if len(known) == len(parts) and any(known) else None,
        "pci_bus": None if location is None or domain is None else
        f"{domain:04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.{location & 7}",
        "memory_bytes": integer(bank.get("size_in_bytes")),
        "sm_count": integer(gpu.get("cu_count"), 1 << 31),
    }  # fmt: skip
