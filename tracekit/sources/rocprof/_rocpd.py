"""Convert rocpd, rocprofv3's SQLite files, to tracekit's tables of GPU work, calls and ranges.

A file has a set of tables for each recorded process, whose names end in the set's guid; ids are
valid within a set. Rows are read from the tables, not from the views beside them, which leave out
rows without a thread, a queue or an event. In a newer layout ``rocpd_track`` has the process and
thread of a row; columns show which layout a set has, since versions do not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath

import polars as pl

from tracekit.model import Recording
from tracekit.sources._amd import (
    BLOCK,
    GRID,
    LOST,
    OP,
    PUSH_POP,
    absent,
    copies,
    is_range,
    kernels,
    nothing,
    of_host,
    range_style,
    threads_launched,
)
from tracekit.sources._export_tables import check_columns, coercions
from tracekit.sources._identities import HOST, Gathered, Identities, contents, report, steps
from tracekit.sources._json_values import mapping
from tracekit.sources._labels import VARIABLES, Launch, launch_of
from tracekit.sources._seen import counted
from tracekit.sources._times import Times
from tracekit.sources.rocprof._agents import described
from tracekit.sources.sqlite import SqliteFile, SqlType
from tracekit.support.progress import Progress
from tracekit.support.spool import Workspace

FORMAT = "rocprofv3 SQLite"
_RECORD = "rocprofv3 --kernel-trace --memory-copy-trace --hip-runtime-trace --marker-trace"
_FEATURES = (
    ("kernels", "rocpd_kernel_dispatch", "GPU time by stage and kernel", _RECORD),
    ("copies", "rocpd_memory_copy", "input data and peer copies", _RECORD),
    ("HIP calls", "rocpd_region", "which thread launched an op, and when", _RECORD),
    ("markers", "rocpd_region", "stages, layers and iterations",
     f"{_RECORD}, with roctx ranges in the program"),
    ("RCCL calls", "rocpd_region", "which collective a kernel is", f"{_RECORD} --rccl-trace"),
    ("allocations", "rocpd_memory_allocate", "memory before and in training",
     f"{_RECORD} --memory-allocation-trace"),
    ("HSA and other calls", "rocpd_region", "nothing: they are beneath calls of HIP", _RECORD),
)  # fmt: skip
_DISPATCH, _REGION, _COPY, _ALLOCATE = (
    "kernel_dispatch", "region", "memory_copy", "memory_allocate",
)  # fmt: skip
_TIMED = (_REGION, _DISPATCH, _COPY, _ALLOCATE)
_PLACE = ("pid", "tid", "agent_id", "queue_id", "stream_id")
_SIZES = dict(zip(
    (f"{of}_size_{axis}" for of in ("grid", "workgroup") for axis in "xyz"),
    (*GRID, *BLOCK), strict=True,
))  # fmt: skip
_GPU = "GPU"
_PACKED = "lz4-frame-v1"
_LARGEST = 1 << 50


def is_rocpd(file: SqliteFile) -> bool:
    """Test whether an SQLite file is a database of rocprofv3 (rocpd)."""
    return bool(_endings(file))


def _endings(file: SqliteFile) -> list[str]:
    """Return the suffixes of table names, one per set of tables (recorded process)."""
    found = (re.fullmatch(r"rocpd_info_node(\w*)", name) for name in file.names)
    endings = [each[1] for each in found if each]
    return sorted(e for e in endings if file.has(f"rocpd_{_DISPATCH}{e}", "start", "end"))


def read_rocpd(
    file: SqliteFile, workspace: Workspace, progress: Progress = lambda *_: None
) -> Recording:
    """Read a rocpd database into tracekit's tables; ops get stage and launching call later.

    Times come from a clock of the machine and count from the first event. An op and the call that
    launched it share rocprofiler's internal correlation id. The stream is HIP's, not the hardware
    queue; the GPU is the number of an agent among the machine's GPUs. Of the environment only the
    launcher's variables for rank and job are used.

    Raises
    ------
    MissingDataError
        If the file contains no GPU work and no markers.
    DamagedTraceError
        If a table cannot be read.
    """
    endings = _endings(file)
    starts = {f"rocpd_{name}{ending}": "start" for ending in endings for name in _TIMED}
    check_columns(file, dict.fromkeys(starts, ("start", "end")), f"record again with {_RECORD}")
    file.times = Times(file.path, file.first_times(starts))
    sets = [_Set(file, ending) for ending in endings]
    gathered = _Gathered(file, workspace)
    for _, each in zip(steps(progress, *endings), sets, strict=False):
        gathered.add(each, workspace.rows)
    return gathered.recording(sets)


@dataclass(frozen=True)
class _Set:
    """The tables of one recorded process in a rocpd file; a file may contain several such sets."""

    file: SqliteFile
    ending: str

    def read(self, name: str, /, **columns: SqlType) -> pl.DataFrame:
        """Return ``id`` and `columns` (name -> type) of a table of this process."""
        return self.file.read(f"rocpd_{name}{self.ending}", columns)

    def batches(
        self, name: str, rows: int, /, *columns: str, **texts: SqlType
    ) -> Iterator[pl.DataFrame]:
        """Yield rows of a table, at most `rows` at a time, with their process and thread ids."""
        table = f"rocpd_{name}{self.ending}"
        numbers: dict[str, SqlType] = dict.fromkeys((*columns, "event_id"), "int")
        if not self.file.has(table, "track_id"):
            numbers |= dict.fromkeys(_PLACE, "int")
            for batch in self.file.batches(table, {**numbers, **texts}, rows):
                named = batch.with_columns(_known(batch["pid"], self.pids).alias("pid"))
                yield named.with_columns(_known(batch["tid"], self.tids).alias("tid"))
            return
        for batch in self.file.batches(table, {**numbers, "track_id": "int", **texts}, rows):
            yield batch.join(self._tracks, on="track_id", how="left", maintain_order="left")

    @cached_property
    def _tracks(self) -> pl.DataFrame:
        columns: dict[str, SqlType] = dict.fromkeys(("id", *_PLACE), "int")
        tracks = self.read("track", **columns)
        return _once(tracks).rename({"id": "track_id"})

    @cached_property
    def processes(self) -> pl.DataFrame:
        """Processes: ``id, pid, command``, and the launcher's environment variables."""
        rows = self.read("info_process", id="int", pid="int", command="text", environment="text")
        names = [
            pl.col("environment").str.json_path_match(f"$.{name}").alias(name) for name in VARIABLES
        ]
        return _once(rows).with_columns(names).drop("environment")

    @cached_property
    def pids(self) -> pl.DataFrame:
        """Process id of each process row: ``id`` (of the row), ``value`` (process id)."""
        return self.processes.select("id", value="pid")

    @cached_property
    def tids(self) -> pl.DataFrame:
        """Thread id of each thread row: ``id`` (of the row), ``value`` (thread id)."""
        return _once(self.read("info_thread", id="int", tid="int")).select("id", value="tid")

    @cached_property
    def threads(self) -> pl.DataFrame:
        """``pid, tid, name`` of threads with a name."""
        rows = self.read("info_thread", pid="int", tid="int", name="text").drop_nulls()
        return rows.with_columns(_known(rows["pid"], self.pids).alias("pid"))

    @cached_property
    def strings(self) -> pl.DataFrame:
        """Text of each string id: ``id, value``."""
        return _once(self.read("string", id="int", string="text")).rename({"string": "value"})

    @cached_property
    def symbols(self) -> pl.DataFrame:
        """Kernel name of each symbol id: ``id, value``."""
        rows = self.read("info_kernel_symbol", id="int", display_name="text", kernel_name="text")
        name = pl.coalesce("display_name", "kernel_name").str.strip_suffix(".kd")
        return _once(rows).select("id", value=name)

    @cached_property
    def agents(self) -> pl.DataFrame:
        """Agents (CPUs and GPUs): ``id, type, type_index``, names, other attributes as JSON."""
        names: dict[str, SqlType] = dict.fromkeys(("type", "name", "product_name"), "text")
        rows = self.read("info_agent", id="int", type_index="int", extdata=self._texts, **names)
        return _once(rows.with_columns(self._text(rows["extdata"])))

    @cached_property
    def metadata(self) -> dict[str, str]:
        """Tag -> value of the file's metadata."""
        return dict(self.read("metadata", tag="text", value="text").drop_nulls().iter_rows())

    @property
    def _texts(self) -> SqlType:
        """Type in which the database stores JSON: ``blob`` if compressed, else ``text``."""
        return "blob" if self.metadata.get("compression") == _PACKED else "text"

    def _text(self, stored: pl.Series) -> pl.Series:
        """Return stored JSON as text, decompressed if necessary."""
        return unpacked(stored) if self._texts == "blob" else stored

    @cached_property
    def devices(self) -> pl.DataFrame:
        """Index of each GPU among the machine's GPUs: ``id`` (of the agent), ``value``."""
        gpus = self.agents.filter(
            pl.col("type") == _GPU, pl.col("type_index").is_between(0, 1 << 30)
        )
        return gpus.select("id", value="type_index")

    @cached_property
    def events(self) -> pl.DataFrame:
        """``event_id, correlation, category, text`` of events, to which rows of calls refer."""
        columns: dict[str, SqlType] = dict.fromkeys(("id", "category_id", "stack_id"), "int")
        categories = self.strings
        if self.file.has(f"rocpd_info_category{self.ending}", "id", "name"):
            categories = _once(self.read("info_category", id="int", name="text"))
            categories = categories.rename({"name": "value"})
        marked = categories.filter(pl.col("value").str.starts_with("MARKER"))["id"].implode()
        parts = [pl.DataFrame(schema={
            "event_id": pl.Int64, "correlation": pl.Int64, "category": pl.String, "text": pl.String,
        })]  # fmt: skip
        columns["extdata"] = self._texts
        for batch in self.file.batches(f"rocpd_event{self.ending}", columns):
            is_marker = pl.col("category_id").is_in(marked)
            of_markers = batch.select(pl.when(is_marker).then("extdata")).to_series()
            text = self._text(of_markers).str.json_path_match("$.message")
            category = _known(batch["category_id"], categories, known_only=True)
            parts.append(batch.with_columns(category.alias("category")).select(
                "category", event_id="id", correlation="stack_id", text=text,
            ))  # fmt: skip
        events = pl.concat(parts, how="diagonal_relaxed").drop_nulls("event_id")
        return events.unique("event_id", keep="first", maintain_order=True)

    def launch(self) -> Launch:
        """Return rank, number of ranks and job of the process, as its launcher set them."""
        known = self.processes.select(name for name in VARIABLES if name in self.processes.columns)
        row = known.row(0, named=True) if known.height == 1 else {}
        return launch_of({name: value for name, value in row.items() if value is not None})


class _Gathered(Gathered):
    """Ops, calls, ranges and memory of all processes in a rocpd file; counts of dropped rows."""

    def __init__(self, file: SqliteFile, workspace: Workspace) -> None:
        self._file = file
        super().__init__(workspace)
        self._pids: dict[tuple[str, int], int] = {}
        self._memory: list[pl.DataFrame] = []

    def add(self, tables: _Set, rows: int) -> None:
        """Add the rows of one process's tables, at most `rows` at a time."""
        for batch in tables.batches(_REGION, rows, "start", "end", "name_id"):
            self._add_regions(tables, batch)
        for batch in tables.batches(
            _DISPATCH, rows, "start", "end", "kernel_id", "graph_node_id", *_SIZES
        ):
            self._ops.add(self._kernels(tables, batch))
        for batch in tables.batches(
            _COPY, rows, "start", "end", "name_id", "size", "src_agent_id", "dst_agent_id"
        ):
            self._ops.add(self._copies(tables, batch))
        for batch in tables.batches(
            _ALLOCATE, rows, "start", "address", "size", type="text", level="text"
        ):
            self._memory.append(self._allocations(tables, batch))

    def _placed(self, tables: _Set, rows: pl.DataFrame) -> pl.DataFrame:
        """Replace process ids by indices: processes on two machines may have the same id."""
        for pid in rows["pid"].drop_nulls().unique().sort().to_list():
            self._pids.setdefault((tables.ending, pid), len(self._pids))
        numbers = {pid: n for (ending, pid), n in self._pids.items() if ending == tables.ending}
        pids = pl.col("pid").replace_strict(numbers, default=None, return_dtype=pl.Int64)
        return rows.with_columns(pids)

    def _add_regions(self, tables: _Set, batch: pl.DataFrame) -> None:
        placed = self._placed(tables, of_host(batch, self._lost))
        named = placed.join(tables.events, on="event_id", how="left", maintain_order="left")
        named = named.with_columns(
            _known(named["name_id"], tables.strings, known_only=True).alias("name")
        )
        category = pl.col("category").fill_null("")
        parts = {
            "HIP calls": category.str.starts_with("HIP_"),
            "RCCL calls": category == "RCCL_API",
            "markers": category.str.starts_with("MARKER"),
        }
        for feature, is_part in parts.items():
            part = named.filter(is_part)
            self._counts[feature] += part.height
            self._add_part(feature, part)
        self._counts["HSA and other calls"] += named.filter(
            ~pl.any_horizontal(parts.values())
        ).height

    def _add_part(self, feature: str, part: pl.DataFrame) -> None:
        head = ("start", "end", *HOST)
        if feature == "HIP calls":
            name = pl.col("name").cast(pl.Categorical())
            self._calls.add(part.select(*head, name, "correlation"))
        elif feature == "RCCL calls":
            self._ranges.add(part.select(*head, "name", domain=pl.lit("NCCL"), style=PUSH_POP))
        else:
            marked = part.filter(is_range(pl.col("name")))
            self._ranges.add(marked.select(
                *head, name=pl.coalesce("text", "name"), domain=pl.lit(None, pl.String),
                style=range_style(pl.col("name")),
            ))  # fmt: skip

    def _work(self, tables: _Set, batch: pl.DataFrame, device: pl.Series) -> pl.DataFrame:
        """Return the ops of a batch that have times and a GPU; count the others as lost."""
        ops = batch.with_columns(device.cast(pl.Int32).alias("device"), stream="stream_id")
        timed = ops.filter((pl.col("start") > 0) & (pl.col("end") >= pl.col("start")))
        placed = self._placed(tables, timed.drop_nulls(["device", "pid"]))
        self._lost["untimed"] += ops.height - timed.height
        self._lost["unplaced"] += timed.height - placed.height
        events = tables.events.select("event_id", "correlation")
        return placed.join(events, on="event_id", how="left", maintain_order="left")

    def _kernels(self, tables: _Set, batch: pl.DataFrame) -> pl.DataFrame:
        device = _known(batch["agent_id"], tables.devices, known_only=True)
        ops = self._work(tables, batch, device).rename(_SIZES)
        self._counts["kernels"] += batch.height
        names = _known(ops["kernel_id"], tables.symbols, known_only=True).alias("name")
        self._lost["unnamed"] += names.null_count()
        sized = ops.with_columns(threads_launched(ops, pl.lit(value=True)), names)
        node = pl.when(pl.col("graph_node_id") != 0).then("graph_node_id").alias("graph_node")
        return kernels(sized.with_columns(node), self._names).select(
            *OP, "launch_size", "graph_node"
        )

    def _copies(self, tables: _Set, batch: pl.DataFrame) -> pl.DataFrame:
        ends = [
            _known(batch[f"{end}_agent_id"], tables.devices, known_only=True)
            .cast(pl.Int32)
            .alias(f"{end}_device")
            for end in ("src", "dst")
        ]
        ops = batch.with_columns(ends)
        device = ops.select(pl.coalesce("dst_device", "src_device")).to_series()
        ops = self._work(tables, ops, device)
        self._counts["copies"] += batch.height
        size = pl.when(pl.col("size") >= 0).then("size").alias("bytes")
        direction = _known(ops["name_id"], tables.strings, known_only=True).alias("direction")
        made = copies(ops.with_columns(size, direction), pl.col("direction"))
        return made.select(*OP, "bytes", "copy_kind", "src_device", "dst_device")

    def _allocations(self, tables: _Set, batch: pl.DataFrame) -> pl.DataFrame:
        """Return memory events: ``pid, device, time`` (ns), ``address, size`` (null: a release)."""
        real = batch.filter(pl.col("level") == "REAL", pl.col("type").is_in(["ALLOC", "FREE"]))
        device = _known(real["agent_id"], tables.devices, known_only=True).cast(pl.Int32)
        placed = self._placed(tables, real.with_columns(device.alias("device")))
        allocates = pl.col("type") == "ALLOC"
        on_host = allocates & pl.col("agent_id").is_not_null() & pl.col("device").is_null()
        placed = placed.filter(~on_host)
        clear = placed.drop_nulls(["pid", "start", "address"]).filter(
            ~allocates | (pl.col("size").is_between(0, _LARGEST) & pl.col("device").is_not_null())
        )
        self._counts["allocations"] += clear.height
        self._lost["unclear"] += placed.height - clear.height
        return clear.select(
            "pid", "device", "address", time="start", size=pl.when(allocates).then("size")
        )

    def recording(self, sets: list[_Set]) -> Recording:
        """Return the recording (tracekit's tables) from all rows added."""
        ops, calls, ranges, file = self._ops, self._calls, self._ranges, self._file
        if not len(ops) and not len(ranges):
            raise nothing(file.path, "rocprofv3", calls, self._lost["untimed"], file.times, _RECORD)
        identities = Identities(ops, calls, ranges)
        real = {number: pid for (_, pid), number in self._pids.items()}
        threads = [self._placed(each, each.threads) for each in sets]
        launches = {each.launch() for each in sets}
        launch = launches.pop() if len(launches) == 1 else Launch(None, None, None)
        hosts = {h for each in sets for h in each.read("info_node", hostname="text")["hostname"]}
        self._lost["hosts"] = len(hosts) * (len(hosts) > 1)
        table = identities.processes(self._programs(sets))
        pids = pl.col("pid").replace_strict(real, return_dtype=pl.Int64)
        return Recording(
            tables={
                "processes": table.with_columns(pid=pids, global_id="pid"),
                "threads": identities.threads(pl.concat(threads).select("pid", "tid", "name")),
                "devices": identities.devices(_devices(sets), "device_table"),
                "reports": report(
                    file.path, FORMAT, product="rocprofv3", rank=launch.rank, ranks=launch.ranks,
                    job=launch.job, host=next(iter(hosts)) if len(hosts) == 1 else None,
                    schema_version=sets[0].metadata.get("schema_version"),
                ),
                "contents": contents(_FEATURES, self._counts),
                "memory": self._changes(identities),
            },
            streams=identities.streams(),
            warnings=(
                *absent(ops, calls, ranges, _RECORD, _RECORD),
                *counted(self._lost, LOST),
                *coercions(file),
                *file.times.losses,
                *file.warnings,
            ),
        )  # fmt: skip

    def _programs(self, sets: list[_Set]) -> dict[int, str | None]:
        """Return process index -> name of its program, without arguments, which may be private."""
        lines = {
            (each.ending, pid): command
            for each in sets
            for pid, command in each.processes.select("pid", "command").drop_nulls().iter_rows()
        }
        first = {key: command.split()[:1] for key, command in lines.items()}
        return {
            number: PurePath(first[key][0]).name
            for key, number in self._pids.items()
            if first.get(key)
        }

    def _changes(self, identities: Identities) -> pl.DataFrame:
        """Return the table ``memory``: changes of GPU memory in use, in bytes.

        A release frees the allocation at its address.
        """
        schema = {"pid": pl.Int64, "device": pl.Int32, "address": pl.Int64, "time": pl.Int64,
                  "size": pl.Int64}  # fmt: skip
        events = pl.concat([pl.DataFrame(schema=schema), *self._memory], how="diagonal_relaxed")
        allocation = pl.col("size", "device").shift().over("pid", "address").name.prefix("held_")
        events = events.sort("time", maintain_order=True).with_columns(allocation).with_columns(
            device=pl.when(pl.col("size").is_null()).then("held_device").otherwise("device"),
            change=pl.coalesce("size", -pl.col("held_size")),
        )  # fmt: skip
        known = events.drop_nulls(["change", "device"])
        return known.select(
            "device", "change",
            process=identities.process(known["pid"]),
            time=pl.col("time") - identities.origin,
            in_use=pl.col("change").cum_sum().over("pid", "device"),
        ).drop_nulls("process")  # fmt: skip


def _once(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.drop_nulls("id").unique("id", keep="first", maintain_order=True)


def _known(numbers: pl.Series, values: pl.DataFrame, *, known_only: bool = False) -> pl.Series:
    """Replace each id by its value in `values` (``id, value``).

    An unknown id stays as it is, or becomes null with `known_only`.
    """
    wanted = numbers.alias("id").to_frame().cast(pl.Int64)
    found = wanted.join(values, on="id", how="left", maintain_order="left")
    return found["value"] if known_only else found.select(pl.coalesce("value", "id")).to_series()


def _devices(sets: list[_Set]) -> pl.DataFrame:
    """Return descriptions of the GPUs in the file; all processes of a machine see the same ones."""
    rows = pl.concat([each.agents for each in sets]).filter(pl.col("type") == _GPU)
    agents = []
    for index, name, product, text in rows.select(
        "type_index", "name", "product_name", "extdata"
    ).iter_rows():
        try:
            known: Mapping[str, object] = mapping(json.loads(text or "{}"))
        except (ValueError, RecursionError):
            known = {}
        names = {"product_name": product, "name": name}
        agents.append({**names, **known, "type": 2, "logical_node_type_id": index})
    return described([{"agents": agents}])


# -- texts that rocprofv3 packs with LZ4: a mark, their length, and an LZ4 frame
#
# Frame and blocks are read as https://github.com/lz4/lz4/tree/dev/doc describes them; checksums are
# ignored, since the length must match.


_MARK, _FRAME = b"LZ4F", b"\x04\x22\x4d\x18"
_HAS_BLOCK_SUMS, _HAS_SIZE, _HAS_DICTIONARY = 0x10, 0x08, 0x01
_STORED = 1 << 31
_LONGEST = 1 << 20
"""Largest length of a text, bytes; larger claims are invalid."""
_SHORTEST_MATCH, _MORE = 4, 15


def unpacked(packed: pl.Series) -> pl.Series:
    """Return texts decompressed (LZ4); null if a text is empty, damaged or not compressed."""
    distinct = packed.drop_nulls().unique()
    texts = [_text(each) for each in distinct]
    return packed.replace_strict(distinct, texts, default=None, return_dtype=pl.String)


def _text(packed: bytes) -> str | None:
    length, frame = int.from_bytes(packed[4:8], "little"), packed[8:]
    if not packed.startswith(_MARK) or not frame.startswith(_FRAME) or length > _LONGEST:
        return None
    try:
        text = _of_frame(frame, length)
    except IndexError:
        return None
    return text.decode(errors="replace") if len(text) == length else None


def _of_frame(frame: bytes, length: int) -> bytes:
    flags, text = frame[4], bytearray()
    block_sum = 4 if flags & _HAS_BLOCK_SUMS else 0
    at = 7 + (8 if flags & _HAS_SIZE else 0) + (4 if flags & _HAS_DICTIONARY else 0)
    while (size := int.from_bytes(frame[at : at + 4], "little")) and len(text) <= length:
        at, size_stored = at + 4, size % _STORED
        block = frame[at : at + size_stored]
        if size >= _STORED:
            text += block
        else:
            _add_block(text, block, length)
        at += size_stored + block_sum
    return bytes(text)


def _add_block(text: bytearray, block: bytes, length: int) -> None:
    """Decompress an LZ4 block of `length` bytes onto the end of `text`.

    It is a sequence of literals, each followed by a copy of earlier text.
    """
    at = 0
    while at < len(block) and len(text) <= length:
        token = block[at]
        literals, at = _count(block, at + 1, token >> 4)
        text += block[at : at + literals]
        at += literals
        if at >= len(block):
            return
        back = block[at] | block[at + 1] << 8
        matched, at = _count(block, at + 2, token & _MORE)
        begin, matched = len(text) - back, matched + _SHORTEST_MATCH
        if not 0 < back <= len(text) or matched > _LONGEST:
            raise IndexError
        repeated = bytes(text[begin : begin + matched])
        text += (repeated * (matched // len(repeated) + 1))[:matched]


def _count(block: bytes, at: int, count: int) -> tuple[int, int]:
    """Return an LZ4 length, `count` plus any bytes that extend it, and the offset after these."""
    if count == _MORE:
        while (more := block[at]) == 0xFF:  # noqa: PLR2004 - the largest byte: another follows
            count, at = count + more, at + 1
        count, at = count + more, at + 1
    return count, at
