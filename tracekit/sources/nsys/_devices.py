"""Find the physical GPU of a process's CUDA ordinal.

The ``deviceId`` of GPU rows is an ordinal inside one process: with one GPU made visible to each
process, all of them call theirs 0. The report says in one of several ways, or not at all, which
physical GPU that is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from tracekit.model import DEVICES
from tracekit.sources._tables import ExportFile
from tracekit.sources.nsys._ids import pid_of, small
from tracekit.sources.nsys._metadata import Metadata
from tracekit.sources.sqlite import SqlType

Pair = tuple[int, int]
"""Global id of a process, and a CUDA ordinal in it."""
Gpus = Mapping[object, Mapping[str, object]]
"""What is known of each GPU of the machine, by the id that the report gives it."""

_GPU_TABLE = "TARGET_INFO_GPU"
_OLD_GPU_TABLE = "TARGET_INFO_CUDA_GPU"
_MAP_TABLE = "TARGET_INFO_CUDA_DEVICE"


@dataclass(frozen=True)
class DeviceMap:
    """The GPUs of a report, and which of them each process's ordinals are.

    Parameters
    ----------
    devices
        The canonical table ``devices``, without ``report``.
    ordinals
        ``process_gid, ordinal, device``.
    numbers
        The device of each GPU that the report gives an id.
    """

    devices: pl.DataFrame
    ordinals: pl.DataFrame
    numbers: Mapping[int, int]


def map_devices(
    file: ExportFile, ops: pl.DataFrame, metadata: Metadata, memory: pl.DataFrame
) -> DeviceMap:
    """Find the physical GPU of every ordinal that an op runs on or copies from or to.

    That of one where memory is only allocated (``process_gid, ordinal`` of `memory`) is found too,
    unless it would make that of others unknown.
    """
    active = _pairs(ops, "ordinal")
    needed = {*active, *_pairs(ops, "src_ordinal"), *_pairs(ops, "dst_ordinal")}
    gpus = _gpus(file)
    pairs = sorted({*needed, *_pairs(memory, "ordinal")})
    found, identity = _physical(file, pairs, active, gpus, metadata)
    if identity == "unknown" and len(pairs) > len(needed) > 0:
        fewer = sorted(needed)
        by_ops, how = _physical(file, fewer, active, gpus, metadata)
        if how != "unknown":
            pairs, found, identity = fewer, by_ops, how
    numbers = _numbers(pairs, found, gpus)
    rows = [
        {
            **gpus.get(key, {}),
            "device": number,
            "active": any(found[pair] == key for pair in active),
            "identity": identity if key in gpus else "unknown",
        }
        for key, number in sorted(numbers.items(), key=lambda item: item[1])
    ]
    schema = {"process_gid": pl.Int64, "ordinal": pl.Int64, "device": pl.Int32}
    mapped = [(*pair, numbers[found[pair]]) for pair in pairs]
    columns = {name: dtype for name, dtype in DEVICES.schema.items() if name != "report"}
    described = [{name: row.get(name) for name in columns} for row in rows]
    return DeviceMap(
        pl.DataFrame(described, schema=columns),
        pl.DataFrame(mapped, schema=schema, orient="row"),
        {key: number for key, number in numbers.items() if isinstance(key, int)},
    )


def _pairs(ops: pl.DataFrame, ordinal: str) -> list[Pair]:
    if ordinal not in ops.columns:
        return []
    return ops.select("process_gid", ordinal).drop_nulls().unique().rows()


def _gpus(file: ExportFile) -> Gpus:
    return _described(file) or _described_in_2020(file) or _described_by_processes(file)


def _described(file: ExportFile) -> Gpus:
    numbers = (
        "id", "cuDevice", "totalMemory", "memoryBandwidth", "smCount", "computeMajor",
        "computeMinor", "numaNodeId",
    )  # fmt: skip
    frame = file.read(
        _GPU_TABLE,
        {
            **dict.fromkeys(numbers, "int"),
            **dict.fromkeys(("name", "busLocation", "uuid"), "text"),
        },
    ).drop_nulls("id")
    gpus = frame.select(
        "name",
        gpu_id="id",
        cu_device=small(pl.col("cuDevice")),
        uuid=_bare_uuid(),
        pci_bus="busLocation",
        memory_bytes="totalMemory",
        peak_memory_bandwidth="memoryBandwidth",
        sm_count=small(pl.col("smCount")),
        compute_capability=pl.format("{}.{}", "computeMajor", "computeMinor"),
        numa=small(pl.col("numaNodeId")),
    )
    return _by_id(gpus)


def _described_in_2020(file: ExportFile) -> Gpus:
    gpus = _table_of_2020(file).select(
        "name",
        "gpu_id",
        cu_device=small(pl.col("deviceId")),
        uuid=pl.lit(None, pl.String),
        pci_bus="pciBusId",
        sm_count=small(pl.col("numMultiprocessors")),
    )
    return _by_id(gpus)


def _described_by_processes(file: ExportFile) -> Gpus:
    """Return the GPUs of exports that say no more than which ones each process uses."""
    columns: dict[str, SqlType] = {"gpuId": "int", "numMultiprocessors": "int", "uuid": "text"}
    gpus = file.read(_MAP_TABLE, columns).select(
        gpu_id="gpuId",
        cu_device=pl.lit(None, pl.Int64),
        uuid=_bare_uuid(),
        pci_bus=pl.lit(None, pl.String),
        sm_count=small(pl.col("numMultiprocessors")),
    )
    return _by_id(gpus)


def _table_of_2020(file: ExportFile) -> pl.DataFrame:
    """Return the GPUs of exports that list them for each process and its CUDA ordinals."""
    frame = file.read(
        _OLD_GPU_TABLE,
        {
            **dict.fromkeys(("pid", "deviceId", "numMultiprocessors"), "int"),
            **dict.fromkeys(("name", "pciBusId"), "text"),
        },
    )
    return frame.with_columns(gpu_id=pl.coalesce("pciBusId", pl.col("deviceId").cast(pl.String)))


def _bare_uuid() -> pl.Expr:
    return pl.col("uuid").str.strip_prefix("GPU-")


def _by_id(gpus: pl.DataFrame) -> Gpus:
    distinct = gpus.drop_nulls("gpu_id").unique("gpu_id", keep="first", maintain_order=True)
    return {row["gpu_id"]: row for row in distinct.to_dicts()}


def _physical(
    file: ExportFile,
    pairs: Sequence[Pair],
    active: Sequence[Pair],
    gpus: Gpus,
    metadata: Metadata,
) -> tuple[dict[Pair, object], str]:
    """Return the GPU id of each pair (the pair itself where none is known) and how it was found."""
    agreed = _agree(active, len(gpus))
    candidates = (
        (_by_device_table(file, pairs), "device_table"),
        (_by_visible_devices(pairs, gpus, metadata, agreed=agreed), "visible_devices"),
        (_by_ordinal(pairs, gpus, "cu_device", agreed=agreed), "ordinal"),
        (_by_ordinal(pairs, gpus, "gpu_id", agreed=agreed), "assumed"),
    )
    for found, identity in candidates:
        if pairs and all(found.get(pair) in gpus for pair in pairs):
            return {pair: found[pair] for pair in pairs}, identity
    return {pair: pair for pair in pairs}, "unknown"


def _agree(active: Sequence[Pair], gpus: int) -> bool:
    """Tell whether all processes mean the same GPU by an ordinal.

    They need not when each was shown GPUs of its own; but they do when no two run on the same
    ordinal, or when every one of them can see all GPUs.
    """
    ordinals = [ordinal for _, ordinal in active]
    last = dict(sorted(active))
    return len(set(ordinals)) == len(ordinals) or all(n == gpus - 1 for n in last.values())


def _by_device_table(file: ExportFile, pairs: Sequence[Pair]) -> dict[Pair, object]:
    table = file.read(_MAP_TABLE, {"gpuId": "int", "cudaId": "int", "pid": "int"})
    if table.is_empty():
        table = _table_of_2020(file).select("gpu_id", "deviceId", "pid")
    by_pid = {(pid, cuda): gpu for gpu, cuda, pid in table.rows()}
    pids = _pids(pairs)
    return {pair: by_pid.get((pids[pair[0]], pair[1])) for pair in pairs}


def _pids(pairs: Sequence[Pair]) -> dict[int, int]:
    processes = pl.DataFrame({"gid": sorted({process for process, _ in pairs})}, {"gid": pl.Int64})
    return dict(processes.select("gid", pid=pid_of(pl.col("gid"))).rows())


def _by_visible_devices(
    pairs: Sequence[Pair], gpus: Gpus, metadata: Metadata, *, agreed: bool
) -> dict[Pair, object]:
    """Follow CUDA_VISIBLE_DEVICES, which lists indices or beginnings of UUIDs."""
    by_name = {str(gpu_id): gpu_id for gpu_id in gpus}
    chosen = [
        by_name.get(entry, _by_uuid(entry, gpus))
        for entry in metadata.visible_devices or ()
        if entry
    ]
    # The variable is known of the command that nsys ran; what that ran may have set it anew.
    if not agreed and len(chosen) > 1:
        return {}
    return {pair: chosen[pair[1]] for pair in pairs if pair[1] < len(chosen)}


def _by_uuid(entry: str, gpus: Gpus) -> object | None:
    start = entry.removeprefix("GPU-")
    if not entry.startswith("GPU-") or not start:
        return None
    found = [key for key, gpu in gpus.items() if str(gpu["uuid"] or "").startswith(start)]
    return found[0] if len(found) == 1 else None


def _by_ordinal(
    pairs: Sequence[Pair], gpus: Gpus, column: str, *, agreed: bool
) -> dict[Pair, object]:
    """Take the ordinal as the GPU's own number, unless processes may disagree on what it means."""
    if len(gpus) == 1 and {ordinal for _, ordinal in pairs} == {0}:
        return dict.fromkeys(pairs, next(iter(gpus)))
    if not agreed:
        return {}
    by_number = {gpu[column]: key for key, gpu in gpus.items() if gpu[column] is not None}
    return {pair: by_number.get(pair[1]) for pair in pairs}


def _numbers(pairs: Sequence[Pair], found: Mapping[Pair, object], gpus: Gpus) -> dict[object, int]:
    """Give the GPUs numbers: the CUDA ordinal where it means one GPU in all processes, else by bus.

    Programs and people speak of ordinals, so these are kept wherever they are unambiguous.
    """
    by_ordinal = {ordinal: found[(process, ordinal)] for process, ordinal in pairs}
    clear = all(by_ordinal[ordinal] == found[(process, ordinal)] for process, ordinal in pairs)
    clear = clear and len(set(by_ordinal.values())) == len(by_ordinal)
    numbers = {key: ordinal for ordinal, key in by_ordinal.items()} if clear else {}
    rest = sorted({*found.values(), *gpus} - set(numbers), key=lambda key: _bus_order(key, gpus))
    for key in rest:
        wanted = gpus[key]["cu_device"] if key in gpus else None
        taken = set(numbers.values())
        if not clear or not isinstance(wanted, int) or wanted in taken:
            wanted = next(
                n for n in range(len(numbers) + 1 + max(taken, default=0)) if n not in taken
            )
        numbers[key] = wanted
    return numbers


def _bus_order(key: object, gpus: Gpus) -> tuple[bool, str, tuple[object, ...]]:
    bus = str(gpus[key]["pci_bus"] or "").lower() if key in gpus else ""
    return key not in gpus, bus, key if isinstance(key, tuple) else (key,)
