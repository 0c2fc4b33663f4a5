"""Map the process, thread and GPU ids of an nsys export to tracekit's indices.

The ``deviceId`` of GPU rows is an ordinal inside one process: if each process can see one GPU, the
ordinal is 0 in all of them. Which physical GPU an ordinal is, is recorded in one of several ways,
or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.model import DEVICES, Maker
from tracekit.sources._export_tables import ExportFile
from tracekit.sources._identities import small
from tracekit.sources._seen import OPEN, WHO, Seen
from tracekit.sources.nsys._ids import pid_of, positions, process_of
from tracekit.sources.nsys._metadata import Metadata
from tracekit.sources.sqlite import SqlType
from tracekit.support.compiled import given

_Pair = tuple[int, int]
"""Global id of a process, and a CUDA ordinal in it."""
_Gpus = Mapping[object, Mapping[str, object]]
"""Id of a GPU in the report -> what is known of it."""

_GPU_TABLE = "TARGET_INFO_GPU"
_OLD_GPU_TABLE = "TARGET_INFO_CUDA_GPU"
_MAP_TABLE = "TARGET_INFO_CUDA_DEVICE"
_ORDINAL_BITS = 32
_ORDINALS = {"ordinal": "device", "src_ordinal": "src_device", "dst_ordinal": "dst_device"}
"""Column of ordinals -> column of the device."""


@dataclass(frozen=True)
class _DeviceMap:
    """The GPUs of an nsys export, and which of them each process's CUDA ordinals mean."""

    devices: pl.DataFrame
    """The canonical table ``devices``, without ``report``."""
    ordinals: pl.DataFrame
    """``process_gid, ordinal, device``: the device of each process's ordinal."""
    numbers: Mapping[int, int]
    """Id of a GPU in the report -> device number."""


def map_devices(
    file: ExportFile, ops: pl.DataFrame, metadata: Metadata, memory: pl.DataFrame
) -> _DeviceMap:
    """Find the physical GPU of every CUDA ordinal that an op runs on, or copies from or to.

    Ordinals that only allocate memory (``process_gid, ordinal`` of `memory`) are included. They are
    left out if the GPUs can be identified only without them.
    """
    active = _pairs(ops, "ordinal")
    needed = {*active, *_pairs(ops, "src_ordinal"), *_pairs(ops, "dst_ordinal")}
    gpus = _described(file) or _described_in_2020(file) or _described_by_processes(file)
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
    return _DeviceMap(
        pl.DataFrame(described, schema=columns),
        pl.DataFrame(mapped, schema=schema, orient="row"),
        {key: number for key, number in numbers.items() if isinstance(key, int)},
    )


def _pairs(ops: pl.DataFrame, ordinal: str) -> list[_Pair]:
    if ordinal not in ops.columns:
        return []
    pairs = zip(ops["process_gid"], ops[ordinal], strict=True)
    return [*dict.fromkeys(pair for pair in pairs if None not in pair)]


def _described(file: ExportFile) -> _Gpus:
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


def _described_in_2020(file: ExportFile) -> _Gpus:
    gpus = _table_of_2020(file).select(
        "name",
        "gpu_id",
        cu_device=small(pl.col("deviceId")),
        uuid=pl.lit(None, pl.String),
        pci_bus="pciBusId",
        sm_count=small(pl.col("numMultiprocessors")),
    )
    return _by_id(gpus)


def _described_by_processes(file: ExportFile) -> _Gpus:
    """Return the GPUs of exports that list only which GPUs each process uses."""
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
    """Return the GPUs of exports that list them by process and CUDA ordinal."""
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


def _by_id(gpus: pl.DataFrame) -> _Gpus:
    distinct = gpus.drop_nulls("gpu_id").unique("gpu_id", keep="first", maintain_order=True)
    return {row["gpu_id"]: row for row in distinct.to_dicts()}


def _physical(
    file: ExportFile,
    pairs: Sequence[_Pair],
    active: Sequence[_Pair],
    gpus: _Gpus,
    metadata: Metadata,
) -> tuple[dict[_Pair, object], str]:
    """Return the GPU of each pair of process and CUDA ordinal, and how it was found.

    The GPU is given by its id in the export; if it is unknown, by the pair itself. `active` are the
    pairs on which ops run.
    """
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


def _agree(active: Sequence[_Pair], gpus: int) -> bool:
    """Test whether a CUDA ordinal is certain to mean the same GPU in all processes.

    That is so if no two processes use the same ordinal, or if each can see all GPUs; if a process
    can see only some GPUs, its ordinals count only these. `active` are the pairs of process and
    ordinal on which ops run, `gpus` is the number of GPUs.
    """
    ordinals = [ordinal for _, ordinal in active]
    last = dict(sorted(active))
    return len(set(ordinals)) == len(ordinals) or all(n == gpus - 1 for n in last.values())


def _by_device_table(file: ExportFile, pairs: Sequence[_Pair]) -> dict[_Pair, object]:
    table = file.read(_MAP_TABLE, {"gpuId": "int", "cudaId": "int", "pid": "int"})
    if table.is_empty():
        table = _table_of_2020(file).select("gpu_id", "deviceId", "pid")
    by_pid = {(pid, cuda): gpu for gpu, cuda, pid in table.rows()}
    pids = _pids(pairs)
    return {pair: by_pid.get((pids[pair[0]], pair[1])) for pair in pairs}


def _pids(pairs: Sequence[_Pair]) -> dict[int, int]:
    processes = pl.DataFrame({"gid": sorted({process for process, _ in pairs})}, {"gid": pl.Int64})
    return dict(processes.select("gid", pid=pid_of(pl.col("gid"))).rows())


def _by_visible_devices(
    pairs: Sequence[_Pair], gpus: _Gpus, metadata: Metadata, *, agreed: bool
) -> dict[_Pair, object]:
    """Look up CUDA ordinals in CUDA_VISIBLE_DEVICES, a list of GPU indices or UUID prefixes.

    `agreed`: whether ordinals mean the same GPU in all processes.

    Indices are used only if nsys lists GPUs that the variable hides; otherwise nsys itself may have
    run under the variable, and have counted only the visible GPUs.
    """
    by_name = {str(gpu["cu_device"]): gpu_id for gpu_id, gpu in gpus.items()}
    if "None" in by_name or by_name.keys() <= {*(metadata.visible_devices or ())}:
        by_name = {}
    chosen = [
        by_name.get(entry, _by_uuid(entry, gpus))
        for entry in metadata.visible_devices or ()
        if entry
    ]
    # The variable is known of the command that nsys ran; what that ran may have set it anew.
    if not agreed and len(chosen) > 1:
        return {}
    return {pair: chosen[pair[1]] for pair in pairs if pair[1] < len(chosen)}


def _by_uuid(entry: str, gpus: _Gpus) -> object | None:
    start = entry.removeprefix("GPU-")
    if not entry.startswith("GPU-") or not start:
        return None
    found = [key for key, gpu in gpus.items() if str(gpu["uuid"] or "").startswith(start)]
    return found[0] if len(found) == 1 else None


def _by_ordinal(
    pairs: Sequence[_Pair], gpus: _Gpus, column: str, *, agreed: bool
) -> dict[_Pair, object]:
    """Take each CUDA ordinal for a GPU's index (in `column`); empty if processes may disagree."""
    if len(gpus) == 1 and {ordinal for _, ordinal in pairs} == {0}:
        return dict.fromkeys(pairs, next(iter(gpus)))
    if not agreed:
        return {}
    by_number = {gpu[column]: key for key, gpu in gpus.items() if gpu[column] is not None}
    return {pair: by_number.get(pair[1]) for pair in pairs}


def _numbers(
    pairs: Sequence[_Pair], found: Mapping[_Pair, object], gpus: _Gpus
) -> dict[object, int]:
    """Assign tracekit's indices to GPUs: the CUDA ordinal if it is unambiguous, else by PCI bus.

    An ordinal is unambiguous if it means the same GPU in all processes. Programs and users speak of
    ordinals, so these are kept where possible.
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


def _bus_order(key: object, gpus: _Gpus) -> tuple[bool, str, tuple[object, ...]]:
    bus = str(gpus[key]["pci_bus"] or "").lower() if key in gpus else ""
    return key not in gpus, bus, key if isinstance(key, tuple) else (key,)


class Places:
    """Lookup of tracekit's indices of processes, threads and GPUs by the ids of an nsys export.

    Parameters
    ----------
    processes
        Processes in order of their indices, with ``process_gid``.
    threads
        Threads in order of their indices, with ``thread_gid`` in rising order.
    devices
        Devices, and the device of each process's ordinals.
    """

    def __init__(self, processes: pl.DataFrame, threads: pl.DataFrame, devices: _DeviceMap) -> None:
        self._processes = given(processes["process_gid"])
        self._threads = given(threads["thread_gid"])
        owner = threads.select(process_of(pl.col("thread_gid"))).to_series()
        self.process_of_thread = self.process(owner)
        """By thread number: number of its process."""
        ordinals = devices.ordinals
        paired = ordinals.with_columns(
            pair=_pair(self.process(ordinals["process_gid"]), ordinals["ordinal"])
        ).sort("pair")
        self._pairs, self._devices = given(paired["pair"]), paired["device"]

    def process(self, global_ids: pl.Series) -> pl.Series:
        """Return the index of the process of each global process id."""
        return _position(global_ids, self._processes)

    def thread(self, global_ids: pl.Series) -> pl.Series:
        """Return the index of the thread of each global thread id."""
        return _position(global_ids, self._threads)

    def process_by_thread(self, global_ids: pl.Series) -> pl.Series:
        """Return the index of the process to which each global thread id belongs."""
        return self.process_of_thread.gather(self.thread(global_ids))

    def device(self, process: pl.Series, ordinals: pl.Series) -> pl.Series:
        """Return the GPU's index for each process (index) and CUDA ordinal in it."""
        if ordinals.null_count():
            found = pl.repeat(None, len(ordinals), dtype=pl.Int32, eager=True)
            if ordinals.null_count() == len(ordinals):
                return found
            named = ordinals.is_not_null()
            some = self.device(process.filter(named), ordinals.filter(named))
            return found.scatter(named.arg_true(), some)
        return self._devices.gather(_position(_pair(process, ordinals), self._pairs))

    def settle(self, ops: Seen, calls: Seen, ranges: Seen) -> None:
        """Replace process, thread and GPU ids in all rows by indices, in the rows' final order."""
        _settle(ops, self._of_ops)
        _settle(calls, self._of_calls)
        _settle(ranges, self._of_ranges)

    def _of_ops(self, ops: pl.DataFrame) -> Iterator[pl.Series]:
        process = self.process(ops["process_gid"])
        yield process.alias("process")
        for ordinal, device in _ORDINALS.items():
            if ordinal in ops.columns:
                yield self.device(process, ops[ordinal]).alias(device)

    def _of_calls(self, calls: pl.DataFrame) -> Iterator[pl.Series]:
        thread = self.thread(calls["thread_gid"])
        yield thread.alias("thread")
        yield self.process_of_thread.gather(thread).alias("process")

    def _of_ranges(self, ranges: pl.DataFrame) -> Iterator[pl.Series]:
        yield from self._of_calls(ranges)
        if "end_thread_gid" in ranges.columns:
            yield self._ended(ranges).alias("end_thread")

    def ranges(
        self, domains: pl.DataFrame, categories: pl.DataFrame, last: int, duration: int | None
    ) -> Mapping[str, Maker]:
        """Return the columns of ranges that are computed on reading: name -> function.

        Parameters
        ----------
        domains, categories
            Names of domains and categories, by process and id.
        last
            End given to ranges that were never closed, ns.
        duration
            Length of the recording, ns; None if unknown. A range that ends at this time or later
            was never closed.
        """
        over = OPEN if duration is None else duration
        closed = pl.max_horizontal(pl.lit(last), "start")
        domains, categories = map(self._by_process, (domains, categories))
        ids = ("domain_id", "category_id")
        return {
            "end": Maker(
                ("start", "end"),
                lambda rows: (
                    rows["end"]
                    if (rows["end"].max() or 0) != OPEN
                    else pl.when(pl.col("end") == OPEN).then(closed).otherwise("end")
                ),
            ),
            "open": Maker(("end",), lambda rows: rows["end"] >= over),
            "domain": Maker(("process", *ids[:1]), lambda rows: _named(rows, domains, *ids[:1])),
            "category": Maker(("process", *ids), lambda rows: _named(rows, categories, *ids)),
        }

    def _by_process(self, names: pl.DataFrame) -> pl.DataFrame:
        """Return the names (of domains, categories) with process indices in place of ids."""
        return names.select(self.process(names["process_gid"]).alias("process"), *names.columns[1:])

    def _ended(self, ranges: pl.DataFrame) -> pl.Series:
        """Return the thread (index) that ended each range; null for one of another process."""
        ended = ranges["end_thread_gid"]
        owners = (process_of(pl.col(name)) for name in ("end_thread_gid", "thread_gid"))
        same = ranges.select(next(owners).eq(next(owners)).fill_null(value=False)).to_series()
        return self.thread(ended.fill_null(0)).set(~same, None)


def _settle(seen: Seen, places: Callable[[pl.DataFrame], Iterator[pl.Series]]) -> None:
    """Replace the ids in the rows of `seen` by indices, computed once per distinct combination."""
    table = pl.DataFrame([column for column in places(seen.distinct) if column.count()])

    def of_rows(rows: pl.DataFrame) -> list[pl.Series]:
        # Which polars takes rows by as they are, all columns at once.
        which = pl.Series(rows[WHO].to_numpy().astype(np.uint32))
        return table[which].get_columns()

    seen.rows.settle((WHO,), of_rows)


_NOWHERE = np.iinfo(np.int64).min
"""An id that nothing has."""


def _position(values: pl.Series, known: NDArray[np.int64]) -> pl.Series:
    """Return the position of each value in `known` (sorted); null if it is not there."""
    places = positions(given(values, np.int64, null=_NOWHERE), known)
    found, is_nowhere = pl.Series(places.astype(np.int32)), places < 0
    return found.set(pl.Series(is_nowhere), None) if is_nowhere.any() else found


def _pair(process: pl.Series, ordinal: pl.Series) -> pl.Series:
    high = process.cast(pl.Int64) * (1 << _ORDINAL_BITS)
    return high + ordinal.cast(pl.Int64)


def _named(ranges: pl.DataFrame, names: pl.DataFrame, *ids: str) -> pl.Series:
    """Return names of NVTX domains or categories of ranges, by process and `ids`; null if none."""
    name = names.columns[-1]
    if names.is_empty() or any(each not in ranges.columns for each in ids):
        return pl.repeat(None, ranges.height, dtype=pl.String, eager=True)
    may_have = ranges[ids[-1]] != 0 if len(ids) == 1 else ranges[ids[-1]].is_not_null()
    rows = may_have.fill_null(value=False).arg_true()
    key = ["process", *ids]
    keys = ranges.select(key)[rows].cast({column: names.schema[column] for column in key})
    found = keys.join(names, on=key, how="left", maintain_order="left").get_column(name)
    if len(rows) == ranges.height:
        return found
    places = np.full(ranges.height, len(found), np.uint32)
    places[rows] = np.arange(len(found))
    return found.append(pl.Series([None], dtype=pl.String)).gather(pl.Series(places))
