"""Readers in plain Python of what tracekit reads, to hold its numbers against.

They go row by row through `sqlite3`, `csv` and `json`, share no line with tracekit, and know only
the rules that docs/inputs.md states: which rows count, and what of them is unknown.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import sqlite3
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import polars as pl
from amd_builder import EPOCH
from sqlite_corpus import plain_value

from tracekit.model import Trace

Row = dict[str, Any]
INT32, INT64 = 2**31 - 1, 2**63 - 1
NO_ID = 4294967295
FIELD = (1 << 24) - 1
GROUPS = {"compute": "kernel", "memset": "memset", "graph": "graph"}


class UnreadableError(Exception):
    """The plain reader cannot read the file either."""


@dataclass
class Numbers:
    """What a trace says: how often which op, call and range is in it. An open range has no end."""

    ops: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    calls: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    ranges: Counter[tuple[Any, ...]] = field(default_factory=Counter)

    def from_first(self) -> Numbers:
        """Return the same with times that count from the first event."""
        events = [*self.ops, *self.calls, *self.ranges]
        first = min((event[0] for event in events), default=0)

        def moved(event: tuple[Any, ...]) -> tuple[Any, ...]:
            start, end, *rest = event
            return (start - first, None if end is None else end - first, *rest)

        return Numbers(
            *(
                Counter({moved(event): count for event, count in kind.items()})
                for kind in (self.ops, self.calls, self.ranges)
            )
        )


def numbers_of(trace: Trace) -> Numbers:
    """Return what tracekit read; nothing is open in it."""
    ops = trace.read("ops").select(
        "start", "end", pl.col("kind").cast(pl.String), "correlation", "stream", "bytes"
    )
    threads = trace.read("threads").select("thread", "tid")
    processes = trace.read("processes").select("process", "pid")
    calls = trace.read("calls").join(threads, on="thread", how="left")
    calls = calls.join(processes, on="process", how="left")
    return Numbers(
        Counter((s, e, GROUPS.get(kind, "copy"), *rest) for s, e, kind, *rest in ops.rows()),
        Counter(calls.select("start", "end", "correlation", "pid", "tid").rows()),
        Counter(trace.read("ranges").select("start", "end", "name").rows()),
    )


def assert_same(read: Numbers, plain: Numbers) -> None:
    """Hold what tracekit read against what the plain reader did."""
    assert read.ops == plain.ops, _apart(read.ops, plain.ops)
    assert read.calls == plain.calls, _apart(read.calls, plain.calls)
    endless = Counter(
        (s, n) for (s, e, n), k in plain.ranges.items() for _ in range(k) if e is None
    )
    ended = Counter({event: k for event, k in plain.ranges.items() if event[1] is not None})
    assert not ended - read.ranges, _apart(read.ranges, ended)
    more = read.ranges - ended
    assert Counter((s, n) for (s, _, n), k in more.items() for _ in range(k)) == endless


def _apart(one: Counter[Any], other: Counter[Any]) -> str:
    return f"only read: {list((one - other).items())[:4]}, not: {list((other - one).items())[:4]}"


# --- tables


class PlainSqlite:
    """Tables of an SQLite file, value by value."""

    def __init__(self, path: Path) -> None:
        self._uri = f"{path.as_uri()}?mode=ro&immutable=1"

    def _ask(self, query: str) -> list[tuple[Any, ...]]:
        try:
            with closing(sqlite3.connect(self._uri, uri=True)) as db:
                db.text_factory = bytes
                return db.execute(query).fetchall()
        except (sqlite3.Error, OverflowError) as error:
            raise UnreadableError(str(error)) from error

    def columns(self, table: str) -> list[str]:
        named = table.replace("'", "''")
        is_table = f"SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '{named}'"
        if not self._ask(is_table):
            return []
        return [row[1].decode() for row in self._ask(f'PRAGMA table_xinfo("{table}")')]

    def rows(self, table: str, kinds: Mapping[str, str]) -> list[Row]:
        """Return some columns of a table; what is absent, or has no place in its type, is None."""
        known = self.columns(table)
        present = [name for name in kinds if name in known]
        if not present:
            return []
        fields = [f'typeof("{n}"), "{n}", CAST("{n}" AS BLOB)' for n in present]
        found = self._ask(f'SELECT {", ".join(fields)} FROM "{table}" NOT INDEXED')
        return [
            dict.fromkeys(kinds)
            | {n: plain_value(kinds[n], *row[3 * i : 3 * i + 3]) for i, n in enumerate(present)}
            for row in found
        ]


class PlainFolder:
    """Tables of a folder of Parquet files or Arrow streams; a value has the type of its column."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def rows(self, table: str, kinds: Mapping[str, str]) -> list[Row]:
        frame = self._frame(table)
        return [
            {name: self._value(row.get(name)) for name in kinds}
            for row in frame.iter_rows(named=True)
        ]

    def _frame(self, table: str) -> pl.DataFrame:
        for suffix, read in ((".parquet", pl.read_parquet), (".arrow", pl.read_ipc_stream)):
            path = self._path / (table + suffix)
            if path.exists():
                try:
                    return read(path.read_bytes())
                except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
                    raise UnreadableError(str(error)) from None
        return pl.DataFrame()

    @staticmethod
    def _value(value: Any) -> Any:
        if isinstance(value, int) and value > INT64:  # the bits that SQLite holds
            return value - 2**64
        return value


Tables = PlainSqlite | PlainFolder

# --- nsys

NSYS = "CUPTI_ACTIVITY_KIND_"
NSYS_GPU = {
    "KERNEL": "kernel", "MEMCPY": "copy", "MEMSET": "memset", "GRAPH_TRACE": "graph",
}  # fmt: skip


def _integers(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "int")


def plain_nsys(tables: Tables) -> Numbers:
    """Read an export of nsys."""
    numbers = Numbers()
    texts: dict[int, str | None] = {}
    for row in tables.rows("StringIds", {"id": "int", "value": "text"}):
        if row["id"] is not None:
            texts.setdefault(row["id"], row["value"])
    for table, group in NSYS_GPU.items():
        columns = _integers(
            "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes"
        )
        for row in tables.rows(NSYS + table, columns):
            if _is_timed(row, 0) and _is_small(row["deviceId"]) and row["globalPid"] is not None:
                stream = None if row["streamId"] == NO_ID else row["streamId"]
                size = row["bytes"] if group in ("copy", "memset") else None
                numbers.ops[
                    row["start"], row["end"], group, row["correlationId"], stream, size
                ] += 1
    for row in tables.rows(
        f"{NSYS}RUNTIME", _integers("start", "end", "globalTid", "correlationId")
    ):
        if None not in (row["start"], row["end"], row["globalTid"]):
            thread = row["globalTid"]
            owner = thread >> 24 & FIELD, thread & FIELD
            numbers.calls[row["start"], row["end"], row["correlationId"], *owner] += 1
    numbers.ranges = _nsys_ranges(tables, texts)
    return numbers


def _nsys_ranges(tables: Tables, texts: Mapping[int, str | None]) -> Counter[tuple[Any, ...]]:
    ranges: Counter[tuple[Any, ...]] = Counter()
    columns = _integers("start", "end", "eventType", "globalTid", "textId") | {"text": "text"}
    for row in tables.rows("NVTX_EVENTS", columns):
        if row["eventType"] not in (59, 60, 70, 71) or None in (row["start"], row["globalTid"]):
            continue
        name = row["text"]
        if name is None and row["textId"] is not None and row["textId"] >= 0:
            name = texts.get(row["textId"])
        # The greatest number there is says no time either.
        end = None if row["end"] in (None, INT64) else max(row["start"], row["end"])
        ranges[row["start"], end, name] += 1
    return ranges


def _is_timed(row: Row, unknown: int | None) -> bool:
    start, end = row["start"], row["end"]
    return None not in (start, end) and end >= start and not start == end == unknown


def _is_small(value: int | None) -> bool:
    return value is not None and 0 <= value <= INT32


# --- nvprof's database


def plain_nvprof(tables: Tables) -> Numbers:
    """Read a database of nvprof, of one process."""
    numbers = Numbers()
    texts = {}
    for row in tables.rows("StringTable", {"_id_": "int", "value": "text"}):
        if row["_id_"] not in (None, 0):
            texts.setdefault(row["_id_"], row["value"])
    called = set()
    columns = _integers("start", "end", "processId", "threadId", "correlationId")
    for table in ("RUNTIME", "DRIVER"):
        keys = set()
        for row in tables.rows(NSYS + table, columns):
            if _is_recorded(row) and _is_small(row["processId"]) and row["threadId"] is not None:
                key = row["processId"], (row["correlationId"] or 0) & NO_ID
                keys.add(key)
                known = None if table == "DRIVER" and key in called else row["correlationId"]
                owner = row["processId"], row["threadId"] & NO_ID
                numbers.calls[row["start"], row["end"], known, *owner] += 1
        called |= keys
    if len({pid for *_, pid, _ in numbers.calls}) > 1:
        raise UnreadableError("whose ops these are takes more than this reader knows")
    numbers.ops = _nvprof_ops(tables)
    numbers.ranges = _nvprof_ranges(tables, texts)
    return numbers.from_first()


def _is_recorded(row: Row) -> bool:
    return _is_timed(row, None) and row["start"] > 0


def _nvprof_ops(tables: Tables) -> Counter[tuple[Any, ...]]:
    ops: Counter[tuple[Any, ...]] = Counter()
    seen: set[tuple[Any, ...]] = set()
    groups = {
        "CONCURRENT_KERNEL": "kernel", "KERNEL": "kernel", "MEMCPY": "copy", "MEMCPY2": "copy",
        "MEMSET": "memset", "GRAPH_TRACE": "graph",
    }  # fmt: skip
    columns = _integers("start", "end", "deviceId", "streamId", "correlationId", "bytes")
    for table, group in groups.items():
        for row in tables.rows(NSYS + table, columns):
            size = row.pop("bytes")
            identity = tuple(row.values())
            if table == "CONCURRENT_KERNEL" and None not in identity:
                seen.add(identity)
            if table == "KERNEL" and identity in seen:
                continue
            if _is_recorded(row) and _is_small(row["deviceId"]):
                kept = size if group in ("copy", "memset") else None
                stream = row["streamId"]
                ops[row["start"], row["end"], group, row["correlationId"], stream, kept] += 1
    return ops


def _nvprof_ranges(tables: Tables, texts: Mapping[int, str]) -> Counter[tuple[Any, ...]]:
    starts: dict[Any, Row] = {}
    ends: dict[Any, int] = {}
    columns = _integers("flags", "timestamp", "id", "objectKind", "name") | {"objectId": "blob"}
    for row in tables.rows(f"{NSYS}MARKER", columns):
        owner = _object(row["objectKind"], row["objectId"])
        if None in (row["flags"], row["id"], row["timestamp"], owner) or row["timestamp"] <= 0:
            continue
        if row["flags"] & 2:
            starts.setdefault((owner, row["id"]), row)
        if row["flags"] & 4:
            ends.setdefault((owner, row["id"]), row["timestamp"])
    ranges: Counter[tuple[Any, ...]] = Counter()
    for key, row in starts.items():
        begin, end = row["timestamp"], ends.get(key)
        ranges[begin, end if end is None else max(begin, end), texts.get(row["name"])] += 1
    return ranges


def _object(kind: int | None, packed: bytes | None) -> int | None:
    if kind not in (1, 2) or packed is None or len(packed) < 8:
        return None
    pid = struct.unpack("<II", packed[:8])[0]
    return pid if pid <= INT32 else None


# --- RPD


def plain_rpd(tables: Tables) -> Numbers:
    """Read an RPD of one process."""
    numbers = Numbers()
    texts: dict[int, str | None] = {}
    for row in tables.rows("rocpd_string", {"id": "int", "string": "text"}):
        if row["id"] is not None:
            texts.setdefault(row["id"], row["string"])
    sequences = _firsts(tables, "ext_autogradapi", "api_ptr_id", _integers("seq"), needs="seq")
    columns = _integers("id", "pid", "tid", "start", "end", "apiName_id", "args_id")
    is_near = _nearness(tables, ("rocpd_op", "rocpd_api"))
    for row in filter(is_near, tables.rows("rocpd_api", columns)):
        name, text = texts.get(row["apiName_id"]), texts.get(row["args_id"])
        if None in (row["start"], row["end"], row["pid"], row["tid"]):
            continue
        times = row["start"], max(row["start"], row["end"])
        if re.search("^(hip|hsa_|cuda|cu[A-Z])", name or ""):
            numbers.calls[*times, row["id"], row["pid"], row["tid"]] += 1
        elif not re.search(
            r"^(\w+::writeRows|rpdflush|hcc_activity_callback|rpd_\w+)$", name or ""
        ):
            seq = sequences.get(row["id"], {}).get("seq")
            full = text if None in (seq, text) else f"{text}, seq = {seq}"
            numbers.ranges[*times, full if name == "UserMarker" else name] += 1
    numbers.ops = _rpd_ops(tables, texts, is_near)
    return numbers.from_first()


def _nearness(tables: Tables, names: tuple[str, ...]) -> Callable[[Row], bool]:
    """Tell rows whose times are within 2^52 ns of the median of the first ones of some tables."""
    first = [
        row["start"]
        for name in names
        for row in tables.rows(name, _integers("start"))[:1024]
        if row["start"] and abs(row["start"]) < 2**61
    ]
    middle = sorted(first)[(len(first) - 1) // 2] if first else 0
    return lambda row: (
        all(row[name] is None or abs(row[name] - middle) <= 2**52 for name in ("start", "end"))
        or row["start"] == row["end"] == 0
    )


def _firsts(
    tables: Tables, table: str, key: str, columns: Mapping[str, str], needs: str | None = None
) -> dict[int, Row]:
    """Return the first row of each id; a row whose number is below 0 or unknown may be none."""
    found: dict[int, Row] = {}
    for row in tables.rows(table, {key: "int", **columns}):
        if row[key] is not None and (needs is None or (row[needs] is not None and row[needs] >= 0)):
            found.setdefault(row[key], row)
    return found


def _rpd_ops(
    tables: Tables, texts: Mapping[int, str | None], is_near: Callable[[Row], bool]
) -> Counter[tuple[Any, ...]]:
    links: dict[int, int] = {}
    for row in tables.rows("rocpd_api_ops", _integers("api_id", "op_id")):
        if None not in row.values():
            links.setdefault(row["op_id"], row["api_id"])
    per_call = Counter(links.values())
    kernels = _firsts(tables, "rocpd_kernelapi", "api_ptr_id", {"stream": "text"})
    copies = _firsts(tables, "rocpd_copyapi", "api_ptr_id", {"stream": "text", "size": "int"})
    ops: Counter[tuple[Any, ...]] = Counter()
    columns = _integers("id", "gpuId", "queueId", "start", "end", "description_id", "opType_id")
    for row in filter(is_near, tables.rows("rocpd_op", columns)):
        kind, call = texts.get(row["opType_id"]) or "", links.get(row["id"])
        if re.search("(?i)barrier", kind) or not _is_recorded(row) or not _is_small(row["gpuId"]):
            continue
        copied = kind.startswith("Copy")
        group = "copy" if copied else "memset" if kind == "FillBuffer" else "kernel"
        size = (
            copies.get(call, {}).get("size") if group != "kernel" and per_call[call] == 1 else None
        )
        known = (each.get(call, {}).get("stream") or "" for each in (kernels, copies))
        handles = [int(text, 16) for text in known if re.fullmatch("0x[0-9a-fA-F]{1,15}", text)]
        stream = handles[0] if handles else row["queueId"]
        ops[row["start"], row["end"], group, call, stream, size if (size or 0) >= 0 else None] += 1
    return ops


ROCPD_TABLES = ("region", "kernel_dispatch", "memory_copy", "memory_allocate")
ROCPD_PLACE = ("pid", "tid", "agent_id", "queue_id", "stream_id")


def plain_rocpd(tables: Tables, ending: str = "_00aa") -> Numbers:
    """Read a database of rocprofv3 of one process, in either layout."""
    numbers = Numbers()

    def firsts(name: str, /, **columns: str) -> dict[int, Row]:
        return _firsts(tables, f"rocpd_{name}{ending}", "id", columns)

    categories = strings = {k: row["string"] for k, row in firsts("string", string="text").items()}
    if {"id", "name"} <= set(tables.columns(f"rocpd_info_category{ending}")):
        categories = {k: row["name"] for k, row in firsts("info_category", name="text").items()}
    pids = {k: row["pid"] for k, row in firsts("info_process", pid="int").items()}
    tids = {k: row["tid"] for k, row in firsts("info_thread", tid="int").items()}
    tracks = firsts("track", **_integers(*ROCPD_PLACE))
    agents = firsts("info_agent", type="text", type_index="int")
    gpus = {k for k, row in agents.items()
            if row["type"] == "GPU" and 0 <= (row["type_index"] if row["type_index"] is not None
                                              else -1) <= 1 << 30}  # fmt: skip
    events = firsts("event", category_id="int", stack_id="int", extdata="text")
    is_near = _nearness(tables, tuple(f"rocpd_{name}{ending}" for name in ROCPD_TABLES))
    for name in ROCPD_TABLES[:3]:
        table = f"rocpd_{name}{ending}"
        is_apart = "track_id" in tables.columns(table)
        own = ("track_id",) if is_apart else ROCPD_PLACE
        columns = _integers("start", "end", "event_id", "name_id", "size", "src_agent_id",
                            "dst_agent_id", *own)  # fmt: skip
        for row in filter(is_near, tables.rows(table, columns)):
            place = dict(row)
            if is_apart:
                place |= tracks.get(row["track_id"]) or dict.fromkeys(ROCPD_PLACE)
            else:
                for key, values in (("pid", pids), ("tid", tids)):
                    stands_for = values.get(row[key])
                    place[key] = row[key] if stands_for is None else stands_for
            event = events.get(row["event_id"]) or {}
            if name == "region":
                category = categories.get(event.get("category_id")) or ""
                _add_region(numbers, place, event, category, strings.get(row["name_id"]))
                continue
            ends = ("agent_id",) if name == "kernel_dispatch" else ("dst_agent_id", "src_agent_id")
            if (
                _is_recorded(row)
                and place["pid"] is not None
                and any(place[e] in gpus for e in ends)
            ):
                size = row["size"] if name == "memory_copy" and (row["size"] or 0) >= 0 else None
                group = "copy" if name == "memory_copy" else "kernel"
                numbers.ops[row["start"], row["end"], group, event.get("stack_id"),
                            place["stream_id"], size] += 1  # fmt: skip
    return numbers.from_first()


def _add_region(numbers: Numbers, row: Row, event: Row, category: str, name: str | None) -> None:
    if None in (row["start"], row["end"], row["pid"], row["tid"]):
        return
    times = row["start"], max(row["start"], row["end"])
    if category.startswith("HIP_"):
        numbers.calls[*times, event.get("stack_id"), row["pid"], row["tid"]] += 1
    elif category == "RCCL_API":
        numbers.ranges[*times, name] += 1
    elif category.startswith("MARKER") and name not in ("roctxMarkA", "roctxRangePop"):
        try:
            told = json.loads(event.get("extdata") or "{}")
        except ValueError:
            told = {}
        message = told.get("message") if isinstance(told, dict) else None
        numbers.ranges[*times, name if message is None else message] += 1


# --- nvprof's CSV

SIZES = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
NUMBER = r"\d{1,15}(\.\d*)?|\d(\.\d{0,15})?[eE][+-]?\d{1,2}"


def plain_nvprof_csv(path: Path) -> Numbers:
    """Read a GPU trace that nvprof printed, with sizes in bytes."""
    numbers = Numbers()
    header: list[str] = []
    units: dict[str, str] = {}
    for text in path.read_bytes().decode("utf-8-sig", "replace").split("\n"):
        cells = _cells(text.rstrip("\r"))
        if {"Start", "Duration", "Name"} <= set(cells):
            header, units = cells, {}
        elif header and not units:
            units = dict(zip(reversed(header), reversed(cells), strict=False))
            if not {units.get("Start"), units.get("Duration")} <= UNITS.keys():
                raise UnreadableError("no units")
        elif header and '"' in re.sub('(^|,)"[^"]*"(?=,|$)', r"\1", text.rstrip("\r")):
            raise UnreadableError("what a quote within a cell means, nobody says")
        elif header and len(cells) == len(header):
            _add_line(numbers, dict(zip(header, cells, strict=True)), units)
    return numbers.from_first()


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def _add_line(numbers: Numbers, row: Row, units: Mapping[str, str]) -> None:
    start, length = (_printed(row[n], UNITS[units[n]]) for n in ("Start", "Duration"))
    name = row["Name"]
    if None in (start, length) or not re.search(r"\(\d{1,9}\)$", row.get("Device", "")) or not name:
        return
    if name.startswith("[") and not re.match(r"\[CUDA (memcpy \w|memset)", name):
        return
    group = {"[CUDA memcpy": "copy", "[CUDA memset": "memset"}.get(name[:12], "kernel")
    unit = SIZES.get(units.get("Size", ""))
    size = _printed(row.get("Size", ""), unit) if group != "kernel" and unit else None
    bracket = re.search(r" \[(\d{1,18})\]$", name)
    correlation = _digits(row.get("Correlation_ID", ""))
    if correlation is None and bracket:
        correlation = int(bracket[1])
    numbers.ops[
        start, start + length, group, correlation, _digits(row.get("Stream", "")), size
    ] += 1


def _digits(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def _printed(text: str, unit: int) -> int | None:
    if not re.fullmatch(NUMBER, text, re.ASCII):
        return None
    value = (Decimal(text) * unit).to_integral_value(ROUND_HALF_UP)
    return int(value) if Decimal(text).to_integral_value() <= 2**61 // unit else None


# --- PyTorch

KINETO_GROUPS = {
    "kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "memset", "cuda_runtime": "call",
    "cuda_driver": "call", "cpu_op": "operator", "user_annotation": "annotation",
}  # fmt: skip


def plain_kineto(path: Path) -> Numbers:
    """Read a trace of PyTorch; times are texts until they are whole nanoseconds."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        text = content.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
        whole = json.loads(text, strict=False, parse_float=Written, parse_constant=_no_number,
                           object_pairs_hook=_once)  # fmt: skip
    except (ValueError, OSError, EOFError, RecursionError) as error:
        raise UnreadableError(str(error)) from error
    numbers = Numbers()
    events = whole.get("traceEvents") if isinstance(whole, dict) else None
    if not isinstance(events, list):
        raise UnreadableError("no events")
    for event in events:
        if isinstance(event, dict):
            _add_event(numbers, event)
    return numbers.from_first()


def plain_rocprof(path: Path) -> Numbers:
    """Read JSON of rocprofv3 of one process."""
    try:
        content = path.read_bytes().removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
        whole = json.loads(content, strict=False, parse_float=Written, parse_constant=_no_number,
                           object_pairs_hook=_once)  # fmt: skip
        (process,) = whole["rocprofiler-sdk-tool"]
        arrays, strings = process["buffer_records"], process["strings"]
        kinds, texts = strings["buffer_records"], strings["marker_api"]
        agents = {
            agent["id"]["handle"]: agent["logical_node_type_id"]
            for agent in process["agents"]
            if agent["type"] == 2
            and type(agent["logical_node_type_id"]) is int
            and 0 <= agent["logical_node_type_id"] < 2**31  # else no GPU is told
        }
        pid = process["metadata"]["pid"]
        records = {name: arrays[name] for name in ("kernel_dispatch", "memory_copy", "hip_api",
                                                   "rccl_api", "marker_api")}  # fmt: skip
        operations = {(number, place): name for number, kind in enumerate(kinds)
                      for place, name in enumerate(kind["operations"])}  # fmt: skip
        texts = [each for each in texts if isinstance(each, dict)]
        records = {name: [each for each in array if isinstance(each, dict)]
                   for name, array in records.items()}  # fmt: skip
    except (ValueError, OSError, KeyError, TypeError, RecursionError) as error:
        raise UnreadableError(str(error)) from error
    if not all(isinstance(name, str) for name in operations.values()) or not isinstance(pid, int):
        raise UnreadableError("a name that is no text")
    numbers, known = Numbers(), {}
    for text in texts:
        if _whole(text.get("key")) is not None:
            known.setdefault(_whole(text["key"]), _as_text(text.get("value")))
    starts = [_whole(record.get("start_timestamp")) for array in records.values()
              for record in array]  # fmt: skip
    if any(start is not None and abs(start - EPOCH) > 2**51 for start in starts):
        raise UnreadableError("times far from the others")
    for array, some in records.items():
        for record in some:
            _add_record(numbers, array, record, agents, operations, known, pid)
    return numbers.from_first()


def _inner(record: Row, *keys: str) -> Any:
    value: Any = record
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _add_record(
    numbers: Numbers, array: str, record: Row, agents: Row, operations: Row, texts: Row, pid: int
) -> None:
    start, end = (_whole(record.get(f"{edge}_timestamp")) for edge in ("start", "end"))
    correlation = _whole(_inner(record, "correlation_id", "internal"))
    kind, place = _whole(record.get("kind")), _whole(record.get("operation"))
    name = operations.get((kind, place))
    if start is None or end is None or start <= 0 or abs(end - EPOCH) > 2**52:
        return
    if array in ("kernel_dispatch", "memory_copy"):
        paths = (("dispatch_info", "agent_id"),) if array == "kernel_dispatch" else (
            ("dst_agent_id",), ("src_agent_id",))  # fmt: skip
        handles = [_whole(_inner(record, *path, "handle")) for path in paths]
        size = _whole(record.get("bytes")) if array == "memory_copy" else None
        group = "copy" if array == "memory_copy" else "kernel"
        if end >= start and any(handle in agents for handle in handles):
            stream = _whole(_inner(record, "stream_id", "handle"))
            numbers.ops[start, end, group, correlation, stream, size] += 1
    elif (tid := _whole(record.get("thread_id"))) is not None:
        end = max(start, end)
        if array == "hip_api":
            numbers.calls[start, end, correlation, pid, tid] += 1
        elif array == "rccl_api":
            numbers.ranges[start, end, name] += 1
        elif name not in ("roctxMarkA", "roctxGetThreadId", "roctxRangePop", "roctxRangeStop"):
            text = texts.get(correlation)
            numbers.ranges[start, end, name if text is None else text] += 1


class Written(str):
    """A number with a fraction or an exponent, as it is written."""

    __slots__ = ()


def _once(pairs: list[tuple[str, Any]]) -> Row:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("what two values of one name mean, JSON does not say")
    return dict(pairs)


def _no_number(written: str) -> Written:
    return Written(written)


def _add_event(numbers: Numbers, event: Row) -> None:
    category = event.get("cat")
    group = KINETO_GROUPS.get(category.lower()) if isinstance(category, str) else None
    start, length = _microseconds(event.get("ts")), _microseconds(event.get("dur"))
    has_length = event.get("dur") is not None
    if event.get("ph") != "X" or group is None or start is None:
        return
    if has_length and (length is None or length > 2**53):
        return
    end = start + max(length, 0) if length is not None else None
    arguments = event.get("args") if isinstance(event.get("args"), dict) else {}
    pid, tid = _whole(event.get("pid")), _whole(event.get("tid"))
    correlation = _whole(arguments.get("correlation"))
    if group in ("kernel", "copy", "memset"):
        devices = (_whole(arguments.get("device")), _whole(arguments.get("inDevice")), pid)
        device = next((each for each in devices if each is not None), None)
        if end is not None and _is_small(device):
            size = _whole(arguments.get("bytes")) if group != "kernel" else None
            stream = _whole(arguments.get("stream"))
            if stream is None:
                digits = re.search("[0-9]+", _as_text(event.get("tid")) or "")
                stream = _whole(digits[0]) if digits else None
            numbers.ops[start, end, group, correlation, stream, size] += 1
    elif None not in (pid, tid):
        if group == "call" and end is not None:
            numbers.calls[start, end, correlation, pid, tid] += 1
        if group != "call":
            sequence = _whole(arguments.get("Sequence number"))
            name = _as_text(event.get("name"))
            if isinstance(event.get("name"), Written) or "\n" in (name or ""):
                raise UnreadableError("a name that is no text, or no JSON")
            is_numbered = group == "operator" and sequence is not None and sequence >= 0
            known = name if name is None or not is_numbered else f"{name}, seq = {sequence}"
            numbers.ranges[start, end, known] += 1


def _as_text(value: Any) -> str | None:
    if value is None:
        return None
    text = str(value) if isinstance(value, str) else json.dumps(value)
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def _whole(value: Any) -> int | None:
    if isinstance(value, Written | bool):
        return None
    if isinstance(value, str):
        value = int(value) if re.fullmatch(r"[+-]?[0-9]+", value, re.ASCII) else None
    return value if isinstance(value, int) and -INT64 - 1 <= value <= INT64 else None


def _microseconds(value: Any) -> int | None:
    if value is None or isinstance(value, bool | list | dict):
        return None
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        return None
    if not number.is_finite() or number.adjusted() > 18:
        return None
    nanoseconds = int((number * 1000).to_integral_value(ROUND_HALF_UP))
    return nanoseconds if abs(nanoseconds) < 2**61 else None


# --- XLA


def plain_xplane(path: Path) -> Numbers:
    """Read a profile of XLA, message by message."""
    numbers, annotated, functions = Numbers(), Counter[Any](), []
    for which, _, plane in _message(path.read_bytes(), top=True):
        if which != 1:
            continue
        parts = _message(plane)
        name = _last_text(parts, 2) or ""
        names, stat_names = (dict(map(_named, _blocks(parts, number))) for number in (4, 5))
        gpu = re.search(r"^/device:GPU:(\d{1,9})$", name, re.ASCII)
        for line in _blocks(parts, 3):
            said = _message(line)
            title = next((v.decode("utf-8", "replace") for f, k, v in said
                          if f in (2, 11) and k == 2 and v), "")  # fmt: skip
            base = ([0] + [v for f, k, v in said if f == 3 and k == 0])[-1]
            stream = re.search(r"^Stream #(\d{1,18})", title, re.ASCII)
            if not (gpu and stream) and name != "/host:CPU":
                continue
            thread = re.search(r"/(-?\d{1,18})$", title, re.ASCII)
            number = ([0] + [v for f, k, v in said if f == 1 and k == 0])[-1]
            for event in _blocks(said, 4):
                told = _xla_event(event, names, stat_names, base)
                if told is None:
                    continue
                if gpu:
                    _add_xla_op(numbers, told, int(stream[1]))
                else:
                    tid = int(thread[1]) if thread else number
                    _add_xla_call(numbers, annotated, functions, told, tid)
    _add_xla_steps(numbers, annotated, functions)
    return numbers.from_first()


def _message(data: bytes, *, top: bool = False) -> list[tuple[int, int, Any]]:
    """Return the fields of a message: number, kind, and value."""
    found, at = [], 0
    while at < len(data):
        key, at = _varint(data, at, 5)
        field, kind = key >> 3, key & 7
        if field == 0 or kind in (3, 4, 6, 7) or (top and kind != 2):
            raise UnreadableError("no message")
        value: Any = 0
        if kind == 0:
            value, at = _varint(data, at, 10)
            value = value - (1 << 64) if value >= 1 << 63 else value
        else:
            size, at = _varint(data, at, 10) if kind == 2 else ({1: 8, 5: 4}[kind], at)
            if size > len(data) - at:
                raise UnreadableError("cut")
            value, at = data[at : at + size], at + size
        found.append((field, kind, value))
    return found


def _varint(data: bytes, at: int, most: int) -> tuple[int, int]:
    value = 0
    for place in range(most):
        if at + place >= len(data):
            raise UnreadableError("cut")
        value |= (data[at + place] & 127) << 7 * place
        if data[at + place] < 128:
            return value & (1 << 64) - 1, at + place + 1
    raise UnreadableError("no number")


def _blocks(parts: list[tuple[int, int, Any]], field: int) -> list[bytes]:
    return [value for number, kind, value in parts if number == field and kind == 2]


def _last_text(parts: list[tuple[int, int, Any]], field: int) -> str | None:
    return next((v.decode("utf-8", "replace") for v in reversed(_blocks(parts, field))), None)


def _named(entry: bytes) -> tuple[int, str]:
    parts = _message(entry)
    key = ([0] + [value for field, kind, value in parts if field == 1 and kind == 0])[-1]
    texts = [_last_text(_message(inner), 2) for inner in _blocks(parts, 2)]
    return key, next((text for text in reversed(texts) if text is not None), "")


def _xla_event(event: bytes, names: Row, stat_names: Row, base: int) -> Row | None:
    """Return start, end, name and stats of an event that has times."""
    parts = _message(event)
    numbers = {number: value for number, kind, value in parts if kind == 0 and number in (1, 2, 3)}
    offset, length = numbers.get(2, 0), numbers.get(3, 0)
    if not (0 <= offset <= 1 << 61 and 0 <= length <= 1 << 61 and abs(base) < 2**61):
        return None
    start, end = (base + (ps + 500) // 1000 for ps in (offset, offset + length))
    if max(abs(start), abs(end)) > 2**51:
        raise UnreadableError("times far from the others")
    told: Row = {"start": start, "end": end, "event": names.get(numbers.get(1, 0))}
    told.update(_xla_stat(stat, stat_names) for stat in _blocks(parts, 4))
    return told


def _xla_stat(stat: bytes, stat_names: Row) -> tuple[str, str | None]:
    which, value = "", None
    for number, kind, given in _message(stat):
        if number == 1 and kind == 0:
            which = stat_names.get(given, "")
        elif number > 1:
            value = None
            if kind == 0 and number in (3, 4):
                value = str(given)
            elif kind == 0 and number == 7:
                value = stat_names.get(given)
            elif kind == 2 and number == 5:
                value = given.decode("utf-8", "replace")
    return which, value


def _add_xla_op(numbers: Numbers, told: Row, stream: int) -> None:
    name, copied = told["event"] or "", told.get("memcpy_details")
    by_kernel = re.search("^__amd_rocclr_(copy|fill)Buffer", name)
    group, size = "kernel", None
    if told.get("kernel_details") is None and (
        copied is not None
        or re.search("^(?:Copy|Memcpy)(H|Host|D|Device|P)(?:To|2)(H|Host|D|Device|P)", name)
    ):
        group = "copy"
        found = re.search(r"size:(\d{1,18})", copied or "", re.ASCII)
        size = int(found[1]) if found else None
    elif told.get("kernel_details") is None and (
        told.get("memset_details") is not None or name == "Memset"
    ):
        group = "memset"
    elif by_kernel:
        group = {"copy": "copy", "fill": "memset"}[by_kernel[1]]
    numbers.ops[told["start"], told["end"], group, _digits(told.get("correlation_id") or ""),
                stream, size] += 1  # fmt: skip


def _add_xla_call(
    numbers: Numbers, annotated: Counter[Any], functions: list[Any], told: Row, tid: int
) -> None:
    name, times = told["event"], (told["start"], told["end"])
    if (name or "").startswith("$"):
        return
    if told.get("correlation_id") is not None:
        numbers.calls[*times, _digits(told["correlation_id"]), 0, tid] += 1
        if told.get("name") is not None:
            numbers.ranges[*times, told["name"]] += 1
    elif told.get("step_num") is not None:
        annotated[*times, None if name is None else f"{name}#step_num={told['step_num']}#"] += 1
    else:
        numbers.ranges[*times, name] += 1
        if (name or "").startswith("PjitFunction("):
            functions.append((tid, *times, name))


def _add_xla_steps(numbers: Numbers, annotated: Counter[Any], functions: list[Any]) -> None:
    if annotated or not functions:
        numbers.ranges += annotated
        return
    lasted: Counter[str] = Counter()
    for _, start, end, name in functions:
        lasted[name] += end - start
    longest = max(lasted, key=lambda name: (lasted[name], name))
    reached: dict[int, int] = {}
    outer = []
    for tid, start, end, name in sorted(functions, key=lambda each: (each[0], each[1], -each[2])):
        if name == longest:
            if start >= reached.get(tid, start):
                outer.append((start, end))
            reached[tid] = max(reached.get(tid, end), end)
    for count, (start, end) in enumerate(sorted(outer)):
        numbers.ranges[start, end, f"step {count}"] += 1
