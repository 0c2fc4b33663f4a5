"""Convert the planes of a profile to the canonical tables."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import polars as pl

from tracekit.errors import MissingDataError
from tracekit.model import RANGE_STYLE, Recording
from tracekit.sources._amd import BLOCK, GRID, KernelNames, copies, kernels, memsets
from tracekit.sources._identities import HOST, OPS, Identities, contents, report
from tracekit.sources._launch_size import launch_size
from tracekit.sources._seen import Seen, counted, no_work
from tracekit.sources._times import FARTHEST, Times
from tracekit.sources.xplane._planes import Line, Plane, damaged, planes
from tracekit.sources.xplane._wire import WireError
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
_ENDS = {"H": "Host", "D": "Device", "P": "Device"}
_OP = ("start", "end", "pid", "device", "stream", "correlation", "name", "short_name", "kind")
_PUSH_POP = pl.lit("push_pop", RANGE_STYLE)
_PID = 0
_PS = 1000


def is_xplane(path: Path) -> bool:
    """Tell whether a file begins like a profile of XLA, by its first plane."""
    with path.open("rb") as file:
        return _BEGIN.match(file.read(64)) is not None


def read(path: Path, workspace: Workspace, progress: Progress = lambda *_: None) -> Recording:
    """Return the canonical tables of a profile; stages and launches are not attributed yet.

    One plane is in memory at a time. Times are whole picoseconds, rounded to ns after offsets were
    added, and count from the first event. The path of an operation in the program, such as
    ``jit(f)/transpose(jvp(g))/dot_general``, becomes a range around the call that launches it.

    Raises
    ------
    MissingDataError
        If the profile holds no GPU work and nothing of the host.
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


class _Gathered:
    """Rows of a profile, in ns of its own clock, and counts of what was dropped."""

    def __init__(self, path: Path, workspace: Workspace) -> None:
        self._path = path
        self._ops, self._calls, self._ranges = (
            Seen((), workspace, *identities) for identities in (OPS, HOST, HOST)
        )
        self._counts: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._names = KernelNames()
        self._devices: list[dict[str, object]] = []
        self._threads: list[tuple[int, int, str]] = []
        self._hosts: list[str] = []
        self._begun = 0
        self._executions = pl.DataFrame(schema=_EXECUTION)
        self._annotated = pl.DataFrame(schema=_EXECUTION)
        self._times: Times | None = None

    def add(self, plane: Plane | str) -> None:
        """Add the lines of a plane."""
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
        elif plane.name == _ENVIRONMENT:
            begun = plane.stats.get("profile_start_time")
            self._begun = begun if isinstance(begun, int) else 0

    def _add_work(self, plane: Plane, line: Line, device: int, stream: int) -> None:
        given = ("correlation_id", "kernel_details", "memcpy_details", "memset_details")
        events = plane.events(line, *given)
        ops = self._timed(events, line, "untimed").with_columns(
            pid=pl.lit(_PID, pl.Int64),
            device=pl.lit(device, pl.Int32),
            stream=pl.lit(stream, pl.Int64),
            correlation=pl.col("correlation_id").cast(pl.Int64, strict=False),
        )
        is_copy = pl.col("memcpy_details").is_not_null() | pl.col("name").str.contains(_DIRECTION)
        is_memset = pl.col("memset_details").is_not_null() | (pl.col("name") == "Memset")
        is_kernel = pl.col("kernel_details").is_not_null()
        group = (
            pl.when(is_kernel).then(pl.lit("kernels"))
            .when(is_copy).then(pl.lit("copies"))
            .when(is_memset).then(pl.lit("memsets"))
            .otherwise(pl.lit("kernels"))
        )  # fmt: skip
        ops = ops.with_columns(group=group.fill_null("kernels"))
        for (name,), part in ops.group_by("group", maintain_order=True):
            self._counts[str(name)] += part.height
            self._ops.add(self._made(str(name), part))

    def _made(self, group: str, ops: pl.DataFrame) -> pl.DataFrame:
        if group == "memsets":
            return memsets(ops).select(*_OP, "dst_device")
        if group == "kernels":
            sizes = [
                pl.col("kernel_details").str.extract(_SIZES, place).cast(pl.Int64).alias(name)
                for place, name in enumerate((*GRID, *BLOCK), 1)
            ]
            recorded = pl.col("name").str.strip_suffix(" [clone .kd]").str.strip_suffix(".kd")
            sized = ops.with_columns(launch_size(ops.select(sizes)), name=recorded)
            return kernels(sized, self._names).select(*_OP, "launch_size")
        # Ends on other GPUs are told in numbers of AMD's agents, or of contexts.
        none = pl.lit(None, pl.Int32)
        ends = [
            pl.col("name").str.extract(_DIRECTION, place).str.slice(0, 1).replace_strict(
                _ENDS, default=None, return_dtype=pl.String
            )
            for place in (1, 2)
        ]  # fmt: skip
        size = pl.col("memcpy_details").str.extract(r"size:(\d{1,18})").cast(pl.Int64)
        known = ops.with_columns(
            pl.concat_str(ends[0], pl.lit("To"), ends[1]).alias("direction"),
            bytes=size, src_device=none, dst_device=none,
        )  # fmt: skip
        made = copies(known, pl.col("direction"))
        return made.select(*_OP, "bytes", "copy_kind", "src_device", "dst_device")

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
                rows.select("start", "end", *HOST, pl.col(name).alias("name"), style=_PUSH_POP)
            )

    def _timed(self, events: pl.DataFrame, line: Line, why: str) -> pl.DataFrame:
        """Add ``start, end``; drop and count events without a length, or far from the others."""
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
        """Add steps: those annotated, else the calls of the function that takes longest.

        Each call of a compiled function is recorded twice, one nested in the other. Launches may
        have a line of their own beside that of the launching thread; steps go to the only line of
        launches.
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
        self._ranges.add(found.with_columns(style=_PUSH_POP))

    def recording(self) -> Recording:
        """Return the recording with all added planes."""
        self._add_steps()
        ops, calls, ranges = self._ops, self._calls, self._ranges
        if not len(ops) and not len(ranges):
            raise MissingDataError(
                f"{no_work(self._lost['untimed'])} and nothing of the host in {self._path} "
                "(profile of XLA)",
                f"record with {_RECORD}",
            )
        who = Identities(ops, calls, ranges)
        begun = who.origin if who.origin > _YEAR_2001 else self._begun + who.origin
        names = pl.DataFrame(
            self._threads, schema={"pid": pl.Int64, "tid": pl.Int64, "name": pl.String},
            orient="row",
        )  # fmt: skip
        host = self._hosts[0] if len(set(self._hosts)) == 1 else None
        return Recording(
            tables={
                "processes": who.processes({}),
                "threads": who.threads(names),
                "devices": who.devices(pl.DataFrame(self._devices, schema=_DEVICE), "ordinal"),
                "reports": report(
                    self._path, FORMAT, product="XLA", host=host,
                    session_start=begun if begun > _YEAR_2001 else None,
                ),
                "contents": contents(_FEATURES, self._counts),
            },
            streams=who.streams(),
            warnings=(*self._absences, *self._losses),
        )  # fmt: skip

    @property
    def _absences(self) -> tuple[str, ...]:
        """Warn of results that cannot be trusted because the profile lacks data."""
        process = "the process is not recorded; it stands as process id 0"
        if not len(self._ops):
            return (process, f"no GPU work was recorded: record with {_RECORD}")
        absences = (
            (len(self._calls), f"no calls were recorded, so no op's launch is known: {_RECORD}"),
            (
                self._counts["annotations"],
                f"no steps were annotated, so calls of one function are taken for them: {_STEPS}",
            ),
        )
        return (process, *(absence for there, absence in absences if not there))

    @property
    def _losses(self) -> tuple[str, ...]:
        losses = {
            "untimed": "GPU ops have no valid times and were left out",
            "untimed host": "events of the host have no valid times and were left out",
        }
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
