"""Convert an XLA profile to tracekit's tables of GPU work (ops), calls and ranges."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl

from tracekit.errors import DamagedTraceError, MissingDataError
from tracekit.model import Recording
from tracekit.sources._amd import BLOCK, GRID, OP, PUSH_POP, WITHIN, copies, kernels
from tracekit.sources._copies import memsets
from tracekit.sources._identities import HOST, Gathered, Identities, contents, report
from tracekit.sources._launch_size import launch_size
from tracekit.sources._seen import absences, counted, no_work
from tracekit.sources._times import FARTHEST, Times
from tracekit.sources.sqlite import decoded
from tracekit.sources.xplane._wire import (
    REFERENCE,
    STRING,
    UNSIGNED,
    Bytes,
    Ints,
    WireError,
    fields,
    read_events,
    split,
    varint,
)
from tracekit.support.compiled import compiled
from tracekit.support.progress import Progress
from tracekit.support.spool import Workspace

FORMAT = "XLA profile"
_RECORD = "jax.profiler.trace(FOLDER) around some steps"
_STEPS = "jax.profiler.StepTraceAnnotation around each step"
_FEATURES = (
    ("kernels", "/device:GPU", "GPU time by stage and kernel", _RECORD),
    ("copies", "/device:GPU", "input data and peer copies", _RECORD),
    ("memsets", "/device:GPU", "GPU time of memsets", _RECORD),
    ("calls", "/host:CPU", "which thread launched an op, and when", _RECORD),
    ("operators", "/host:CPU", "which pass an op is of: jvp, transpose(jvp", _RECORD),
    ("annotations", "/host:CPU", "iterations", _STEPS),
    ("Python functions", "/host:CPU", "nothing that is read yet", _RECORD),
)
_BEGIN = re.compile(
    rb"\n[\x80-\xff]{0,9}[\x00-\x7f](?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?\x12.(?:/[a-z]|Task Env)",
    re.DOTALL,
)
_GPU = re.compile(r"/device:GPU:(\d{1,9})$")
_STREAM = re.compile(r"Stream #(\d{1,18})")
_THREAD = re.compile(r"/(-?\d{1,18})$")
_HOST_PLANE, _ENVIRONMENT = "/host:CPU", "Task Environment"
_YEAR_2001 = 10**18
_SIZES = r"grid:(\d{1,10}),(\d{1,10}),(\d{1,10}) block:(\d{1,10}),(\d{1,10}),(\d{1,10})"
_DIRECTION = r"^(?:Copy|Memcpy)(H|Host|D|Device|P)(?:To|2)(H|Host|D|Device|P)"
_PEER, _RESIDENCY = "MemcpyP2P", "memory_residency_details"
_PID = 0
_PS = 1000


def is_xplane(path: Path) -> bool:
    """Test whether a file begins like a profile of XLA, by its first plane."""
    with path.open("rb") as file:
        return _BEGIN.match(file.read(64)) is not None


def read(path: Path, workspace: Workspace, progress: Progress = lambda *_: None) -> Recording:
    """Read an XLA profile into tracekit's tables; ops get stage and launching call later.

    One plane is in memory at a time. Times are whole picoseconds, rounded to ns after offsets were
    added, and count from the first event. The path of an operation in the program, such as
    ``jit(f)/transpose(jvp(g))/dot_general``, becomes a range around the call that launches it.

    Raises
    ------
    MissingDataError
        If the profile contains no GPU work and nothing of the host.
    DamagedTraceError
        If it is cut short or corrupt.
    """
    gathered = _Gathered(path, workspace)
    size, at = path.stat().st_size, 0
    progress("read planes", 0, size)
    for done, plane in planes(path):
        try:
            gathered.add(plane)
        except WireError as error:
            raise damaged(path, at) from error
        at = done
        progress("read planes", done, size)
    return gathered.recording()


class _Gathered(Gathered):
    """Ops, calls and ranges of an XLA profile, with times in ns, and counts of dropped events."""

    def __init__(self, path: Path, workspace: Workspace) -> None:
        self._path = path
        super().__init__(workspace)
        self._devices: list[dict[str, object]] = []
        self._threads: list[tuple[int, int, str]] = []
        self._hosts: list[str] = []
        self._begun = 0
        self._executions = pl.DataFrame(schema=_EXECUTION)
        self._annotated = pl.DataFrame(schema=_EXECUTION)
        self._times: Times | None = None

    def add(self, plane: Plane | str) -> None:
        """Add the events of a plane (a GPU or the host), stream by stream or thread by thread."""
        if isinstance(plane, str):
            self._hosts.append(plane)
        elif gpu := _GPU.match(plane.name):
            self._devices.append(_described(int(gpu[1]), plane))
            for line in plane.lines():
                if stream := _STREAM.match(line.name):
                    self._add_work(plane, line, int(gpu[1]), int(stream[1]))
        elif plane.name == _HOST_PLANE:
            for line in plane.lines():
                self._add_thread(plane, line)
        elif plane.name.startswith("/device:TPU"):
            self._lost["devices"] += 1
        elif plane.name == _ENVIRONMENT:
            begun = plane.stats.get("profile_start_time")
            self._begun = begun if isinstance(begun, int) else 0

    def _add_work(self, plane: Plane, line: Line, device: int, stream: int) -> None:
        statistics = (
            "correlation_id",
            "kernel_details",
            "memcpy_details",
            "memset_details",
            _RESIDENCY,
        )
        events = plane.events(line, *statistics)
        work = events.filter(pl.col(_RESIDENCY).is_null())
        self._lost["allocations"] += events.height - work.height
        ops = self._timed(work, line, "untimed").with_columns(
            pid=pl.lit(_PID, pl.Int64),
            device=pl.lit(device, pl.Int32),
            stream=pl.lit(stream, pl.Int64),
            correlation=pl.col("correlation_id").cast(pl.Int64, strict=False),
        )
        is_copy = pl.col("memcpy_details").is_not_null() | pl.col("name").str.contains(_DIRECTION)
        is_memset = pl.col("memset_details").is_not_null() | (pl.col("name") == "Memset")
        no_kernel = pl.col("kernel_details").is_null()
        group = (
            pl.when(no_kernel & is_copy).then(pl.lit("copies"))
            .when(no_kernel & is_memset).then(pl.lit("memsets"))
            .otherwise(pl.lit("kernels"))
        )  # fmt: skip
        for (name,), part in ops.group_by(group, maintain_order=True):
            self._counts[str(name)] += part.height
            self._ops.add(self._made(str(name), part))

    def _made(self, group: str, ops: pl.DataFrame) -> pl.DataFrame:
        if group == "memsets":
            return memsets(ops).select(*OP, "dst_device")
        if group == "kernels":
            sizes = [
                pl.col("kernel_details").str.extract(_SIZES, place).cast(pl.Int64).alias(name)
                for place, name in enumerate((*GRID, *BLOCK), 1)
            ]
            recorded = pl.col("name").str.strip_suffix(" [clone .kd]").str.strip_suffix(".kd")
            sized = ops.with_columns(launch_size(ops.select(sizes)), name=recorded)
            return kernels(sized, self._names).select(*OP, "launch_size")
        # AMD's numbers of other ends are of agents; NVIDIA's are of GPUs.
        between, details = pl.when(pl.col("name") == _PEER), pl.col("memcpy_details").str
        known = ops.with_columns(
            bytes=details.extract(r"size:(\d{1,18})").cast(pl.Int64),
            src_device=between.then("device"),
            dst_device=between.then(details.extract(r" dest:(\d{1,9})\b").cast(pl.Int32)),
        )
        made = copies(known, pl.col("name").str.extract(_DIRECTION, 0))
        unnamed = made.filter(details.contains("kind:Unknown"), pl.col("kind") == "d2d")
        self._lost["ends"] += unnamed.height
        return made.select(*OP, "bytes", "copy_kind", "src_device", "dst_device")

    def _add_thread(self, plane: Plane, line: Line) -> None:
        number = _THREAD.search(line.name)
        tid = int(number[1]) if number else line.number
        self._threads.append((_PID, tid, line.name))
        events = plane.events(line, "correlation_id", "name", "step_num").with_columns(
            pid=pl.lit(_PID, pl.Int64), tid=pl.lit(tid, pl.Int64)
        )
        is_python = pl.col("name").str.starts_with("$").fill_null(value=False)
        timed = self._timed(events.filter(~is_python), line, "untimed host")
        self._counts["Python functions"] += events.filter(is_python).height
        is_call = pl.col("correlation_id").is_not_null()
        calls, others = timed.filter(is_call), timed.filter(~is_call)
        named = pl.col("name").cast(pl.Categorical())
        correlation = pl.col("correlation_id").cast(pl.Int64, strict=False)
        self._calls.add(calls.select("start", "end", *HOST, named, correlation=correlation))
        paths = calls.filter(pl.col("path").is_not_null())
        steps = pl.format("{}#step_num={}#", "name", "step_num")
        annotated = others.filter(pl.col("step_num").is_not_null())
        annotated = annotated.with_columns(steps.alias("name")).select(*_EXECUTION)
        self._annotated = pl.concat([self._annotated, annotated])
        others = others.filter(pl.col("step_num").is_null())
        functions = others.filter(pl.col("name").str.starts_with(_FUNCTION)).select(*_EXECUTION)
        self._executions = pl.concat([self._executions, functions])
        self._counts["calls"] += calls.height
        self._counts["operators"] += paths.height
        self._counts["annotations"] += annotated.height
        for rows, name in ((others, "name"), (paths, "path")):
            self._ranges.add(
                rows.select("start", "end", *HOST, pl.col(name).alias("name"), style=PUSH_POP)
            )

    def _timed(self, events: pl.DataFrame, line: Line, why: str) -> pl.DataFrame:
        """Add ``start, end`` in ns; drop events without a length, or with implausible times.

        Dropped events are counted under `why`.
        """
        known = (abs(line.timestamp) < FARTHEST) & (
            pl.col("offset").is_between(0, _MOST_PS) & pl.col("duration").is_between(0, _MOST_PS)
        )  # fmt: skip
        timed = events.filter(known).with_columns(
            start=_rounded(pl.col("offset")) + line.timestamp,
            end=_rounded(pl.col("offset") + pl.col("duration")) + line.timestamp,
        )
        self._lost[why] += events.height - timed.height
        if self._times is None and timed.height:
            self._times = Times(self._path, timed["start"].to_list()[:1024])
            self._held = self._times.within("events")
        return self._held(timed) if self._times else timed

    def _add_steps(self) -> None:
        """Add training steps as ranges: annotated ones, else calls of the longest-running function.

        Each call of a compiled function is recorded twice, one nested in the other; the outer one
        counts. If all launches are on one thread, steps are assigned to that thread.
        """
        found = self._annotated
        if found.is_empty() and not self._executions.is_empty():
            per_name = self._executions.group_by("name").agg(
                (pl.col("end") - pl.col("start")).sum()
            )
            longest = per_name.sort("end", "name", descending=True)["name"][0]
            calls = self._executions.filter(pl.col("name") == longest)
            calls = calls.sort("tid", "start", -pl.col("end"))
            reached = pl.col("end").cum_max().shift().over("tid")
            outer = calls.filter((pl.col("start") >= reached).fill_null(value=True)).sort("start")
            numbered = pl.format("step {}", pl.int_range(pl.len()))
            found = outer.with_columns(numbered.alias("name"))
        launching = self._calls.distinct["tid"].unique()
        if len(launching) == 1:
            found = found.with_columns(tid=pl.lit(launching[0], pl.Int64))
        self._ranges.add(found.with_columns(style=PUSH_POP))

    def recording(self) -> Recording:
        """Return the recording (tracekit's tables) from all planes added."""
        self._add_steps()
        ops, calls, ranges = self._ops, self._calls, self._ranges
        if not len(ops) and not len(ranges):
            raise MissingDataError(
                f"{no_work(self._lost['untimed'])} and nothing of the host in {self._path} "
                "(profile of XLA)",
                f"record with {_RECORD}",
            )
        ids = Identities(ops, calls, ranges)
        begun = ids.origin if ids.origin > _YEAR_2001 else self._begun + ids.origin
        names = pl.DataFrame(
            self._threads, schema={"pid": pl.Int64, "tid": pl.Int64, "name": pl.String},
            orient="row",
        )  # fmt: skip
        host = self._hosts[0] if len(set(self._hosts)) == 1 else None
        return Recording(
            tables={
                "processes": ids.processes({}),
                "threads": ids.threads(names),
                "devices": ids.devices(pl.DataFrame(self._devices, schema=_DEVICE), "ordinal"),
                "reports": report(
                    self._path, FORMAT, product="XLA", host=host,
                    session_start=begun if begun > _YEAR_2001 else None,
                ),
                "contents": contents(_FEATURES, self._counts),
            },
            streams=ids.streams(),
            warnings=(*self._absences, *self._losses),
        )  # fmt: skip

    @property
    def _absences(self) -> tuple[str, ...]:
        """Return warnings on data that the profile lacks, so that results cannot be trusted."""
        warnings = absences(
            len(self._ops), 0, f"record with {_RECORD}",
            (len(self._calls), "no calls were recorded, so no op's launch is known", _RECORD),
            (self._counts["annotations"],
             "no steps were annotated, so calls of one function are taken for them", _STEPS),
        )  # fmt: skip
        return ("the process is not recorded; its id is set to 0", *warnings)

    @property
    def _losses(self) -> tuple[str, ...]:
        losses = {
            "untimed": "GPU ops have no valid times and were left out",
            "untimed host": "events of the host have no valid times and were left out",
            "devices": "devices are TPUs, which are not read",
            "allocations": "allocations of memory are not read",
        }
        if len(self._devices) > 1:
            losses["ends"] = WITHIN
        return (*counted(self._lost, losses), *(self._times.losses if self._times else ()))


_MOST_PS = 1 << 61
_FUNCTION = "PjitFunction("
_EXECUTION = {"start": pl.Int64, "end": pl.Int64, "pid": pl.Int64, "tid": pl.Int64,
              "name": pl.String}  # fmt: skip
_DEVICE = {
    "device": pl.Int32, "name": pl.String, "memory_bytes": pl.Int64, "sm_count": pl.Int32,
    "peak_memory_bandwidth": pl.Int64, "compute_capability": pl.String,
}  # fmt: skip


def _rounded(picoseconds: pl.Expr) -> pl.Expr:
    return (picoseconds + _PS // 2) // _PS


def _described(device: int, plane: Plane) -> dict[str, object]:
    def number(name: str, most: int = 1 << 62) -> int | None:
        value = plane.stats.get(name)
        return value if isinstance(value, int) and 0 < value < most else None

    capability = [number(f"compute_cap_{part}", 1 << 31) for part in ("major", "minor")]
    is_nvidia = plane.stats.get("device_vendor") == "Nvidia"
    return {
        "device": device,
        "memory_bytes": number("memory_size"),
        "sm_count": number("core_count", 1 << 31),
        "peak_memory_bandwidth": number("memory_bandwidth"),
        # AMD's are numbers of another kind, such as 9.5 of gfx950.
        "compute_capability": "{}.{}".format(*capability)
        if is_nvidia and None not in capability else None,
    }  # fmt: skip


# -- planes of a profile: their names and lines, and the events of a line as a frame


PLANES, HOSTNAMES = 1, 4
_EVENT = 4
_MOST_STATS = 1 << 20
_AGAIN = "copy or record it again: the profiler, or the copy, did not finish"
_HEADER = 20
"""Largest number of bytes of a field's key and length."""


@dataclass(frozen=True)
class Line:
    """A line of a plane: the events of one GPU stream or one host thread."""

    number: int
    name: str
    """Number and name of the line in its plane."""
    timestamp: int
    """Time from which the offsets of its events count, ns."""
    begins: Ints
    ends: Ints
    """Begin and end of each event's message, as offsets in the plane's bytes."""


class Plane:
    """One plane of a profile: a GPU, the host, or something else.

    Parameters
    ----------
    data
        Bytes of the plane's message.

    Raises
    ------
    WireError
        If the bytes are no valid message.
    """

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self.name = ""
        self._lines: list[tuple[int, int]] = []
        self._names: dict[int, str] = {}
        self._stat_names: dict[int, str] = {}
        stats: list[tuple[int, int]] = []
        for number, value, end in fields(data, 0, data.size):
            match number:
                case 2 if end:
                    self.name = self._text(value, end)
                case 3 if end:
                    self._lines.append((value, end))
                case 4 if end:
                    self._learn(self._names, value, end)
                case 5 if end:
                    self._learn(self._stat_names, value, end)
                case 6 if end:
                    stats.append((value, end))
        self.stats = dict(self._stat(*each) for each in stats)
        """Name -> value of the plane's own stats."""

    def _text(self, begin: int, end: int) -> str:
        return self._data[begin:end].tobytes().decode("utf-8", "replace")

    def _learn(self, names: dict[int, str], begin: int, end: int) -> None:
        """Store one entry of a plane's metadata in `names`: id of an event or attribute -> name."""
        key, name = 0, ""
        for number, value, stop in fields(self._data, begin, end):
            if number == 1 and not stop:
                key = value
            if number == 2 and stop:  # noqa: PLR2004
                for inner, at, last in fields(self._data, value, stop):
                    if inner == 2 and last:  # noqa: PLR2004
                        name = self._text(at, last)
        names[key] = name

    def _stat(self, begin: int, end: int) -> tuple[str, int | str]:
        name = ""
        found: int | str = 0
        for number, value, stop in fields(self._data, begin, end):
            if number == 1 and not stop:
                name = self._stat_names.get(value, "")
            elif number == STRING and stop:
                found = self._text(value, stop)
            elif not stop:
                found = value
        return name, found

    def lines(self) -> Iterator[Line]:
        """Yield the lines of the plane: GPU streams or host threads."""
        for begin, end in self._lines:
            numbers, values, ends = split(self._data, begin, end)
            events = (numbers == _EVENT) & (ends > 0)
            number, name, timestamp = 0, "", 0
            for which, value, stop in zip(
                *(each[~events].tolist() for each in (numbers, values, ends)), strict=True
            ):
                match which:
                    case 1 if not stop:
                        number = value
                    case 2 | 11 if stop:
                        name = name or self._text(value, stop)
                    case 3 if not stop:
                        timestamp = value
            yield Line(number, name, timestamp, values[events], ends[events])

    def events(self, line: Line, *stats: str) -> pl.DataFrame:
        """Return ``name, start_ps, end_ps`` of a line's events, and attributes `stats` as texts.

        Raises
        ------
        WireError
            If the message of an event is invalid.
        """
        begins, ends = line.begins, line.ends
        numbers = np.zeros((3, begins.size), np.int64)
        values = np.zeros((2 * len(stats), begins.size), np.int64)
        kinds = np.zeros((len(stats), begins.size), np.int8)
        columns = self._columns(stats)
        loop = compiled(read_events, begins.size)
        if loop(self._data, begins, ends, columns, numbers, values, kinds) < begins.size:
            raise WireError
        metadata, offset, duration = numbers
        frame = pl.DataFrame({"metadata": metadata, "offset": offset, "duration": duration})
        texts = [
            # An operation's path is a stat of the same name as an event's own.
            self._texts(values[2 * place : 2 * place + 2], kinds[place]).alias(
                "path" if name == "name" else name
            )
            for place, name in enumerate(stats)
        ]
        return frame.with_columns(self._named(metadata, self._names).alias("name"), *texts)

    @staticmethod
    def _named(numbers: Ints, names: dict[int, str]) -> pl.Series:
        """Return the name of each id; null if it has none."""
        return pl.Series(numbers).replace_strict(names, default=None, return_dtype=pl.String)

    def _columns(self, stats: tuple[str, ...]) -> Ints:
        """Return for each id of an attribute (stat) its index in `stats`; -1 if it is not there."""
        known = {n: name for n, name in self._stat_names.items() if 0 <= n < _MOST_STATS}
        columns = np.full(max(known, default=0) + 1, -1, np.int64)
        for number, name in known.items():
            if name in stats:
                columns[number] = stats.index(name)
        return columns

    def _texts(self, places: Ints, kinds: Bytes) -> pl.Series:
        """Return one attribute (stat) of each event as text; null where it is absent."""
        values, ends = places
        kind = pl.Series(kinds)
        found = pl.Series(values).cast(pl.String)
        if (kinds == REFERENCE).any():
            found = found.zip_with(kind != REFERENCE, self._named(values, self._stat_names))
        if (kinds == STRING).any():
            values = np.where(kinds == STRING, values, 0)
            spans = pl.DataFrame({"begin": values, "length": (ends - values).clip(0)})
            data = pl.lit(self._data.tobytes())
            inline_texts = decoded(spans.select(data.bin.slice("begin", "length")))
            found = found.zip_with(kind != STRING, inline_texts.to_series())
        return found.set(kind < UNSIGNED, None)


def planes(path: Path) -> Iterator[tuple[int, Plane | str]]:
    """Yield a profile's planes and host names, each with the number of bytes read so far.

    Raises
    ------
    DamagedTraceError
        If the file is cut short or corrupt.
    """
    size, at = path.stat().st_size, 0
    with path.open("rb") as file:
        try:
            while at < size:
                number, begin, end = _next_field(file, at, size)
                if number == PLANES:
                    yield end, Plane(np.frombuffer(_part(file, begin, end), np.uint8))
                elif number == HOSTNAMES:
                    yield end, _part(file, begin, end).decode("utf-8", "replace")
                at = end
        except WireError as error:
            raise damaged(path, at) from error


def _part(file: BinaryIO, begin: int, end: int) -> bytes:
    """Return the bytes of a file from `begin` to `end`; fewer are an error."""
    file.seek(begin)
    found = file.read(end - begin)
    if len(found) < end - begin:
        raise WireError
    return found


def damaged(path: Path, at: int) -> DamagedTraceError:
    """Return the error for a profile that is no valid message."""
    return DamagedTraceError(f"{path} is cut short or corrupt after byte {at:,}", _AGAIN)


def _next_field(file: BinaryIO, at: int, size: int) -> tuple[int, int, int]:
    """Return number, start and end of the Protocol Buffers field at offset `at` of the file."""
    head = np.frombuffer(os.pread(file.fileno(), _HEADER, at), np.uint8)
    key, used = varint(head, 0, head.size, 28)
    length, used = varint(head, used, head.size, 63)
    begin = at + used
    if used < 0 or key & 7 != 2 or not 0 <= length <= size - begin:  # noqa: PLR2004
        raise WireError
    return key >> 3, begin, begin + length
