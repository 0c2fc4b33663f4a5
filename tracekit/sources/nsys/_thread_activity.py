"""Thread activity in nsys exports besides CUDA: OS calls, CPU samples, off-CPU time, overhead."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit.sources._ordering import Ordered
from tracekit.sources.nsys._ids import Export, Texts, process_of
from tracekit.sources.nsys._metadata import shifted
from tracekit.sources.nsys._places import Places
from tracekit.support.spool import Workspace

_OSRT = "OSRT_API"
_CALL_COLUMNS = ("start", "end", "globalTid", "nameId")
_LONG_NS = 100_000
"""Least duration that is kept, ns: shorter ones explain no gap, and there may be millions."""
_WAITING = (
    r"^(p?poll|p?select|epoll_p?wait2?|(__)?(read|recv|recvfrom|recvmsg)|accept4?|"
    r"sem_(timed|clock)?wait|pthread_cond_(timed|clock)?wait|futex|pthread_join|"
    r"pthread_(mutex_(timed|clock)?lock|rwlock_(timed|clock)?(rd|wr)lock)|"
    r"wait(pid|id|3|4)?|(clock_)?nanosleep|u?sleep)$"
)
_STARTING = r"^(v?fork|posix_spawnp?|popen|system)$"
_SAMPLES, FRAMES = "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS"
_TAKEN = ("id", "start", "globalTid")
_FRAME = ("id", "symbol", "module", "unresolved", "stackDepth")
_LONGEST = 60
"""Largest number of characters of a name that are kept; C++ names may have thousands."""
SWITCHES = "SCHED_EVENTS"
_SWITCH_COLUMNS = ("start", "isSchedIn", "globalTid")
_SWITCH = {"process": pl.Int64, "thread": pl.Int64, "start": pl.Int64, "is_on": pl.Boolean}
_RUNNING = {"process": pl.Int64, "start": pl.Int64, "step": pl.Int64}
_MOSTLY = 0.95
"""Share of an interval in which any thread of a process is on a CPU for the process to count as
running."""
OVERHEAD_TABLES = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")

_OVERHEAD_COLUMNS = ("start", "end", "globalTid", "nameId", "overheadType")
# What ENUM_CUPTI_OVERHEAD_TYPE means; the table itself may be absent or empty.
_TYPES = {
    2: "driver compilation (CUDA)",
    3: "CUPTI buffer flush",
    4: "CUPTI instrumentation",
    5: "CUPTI resource management",
    6: "runtime module loading (CUDA)",
    7: "lazy function loading (CUDA)",
    8: "command buffer full (CUDA)",
}
_NAMELESS = "overhead of unknown kind"


def _of_run(rows: pl.DataFrame, export: Export, places: Places, *times: str) -> pl.DataFrame:
    """Return rows with times since the session's start, and with indices of thread and process."""
    gids = rows["globalTid"]
    return shifted(rows, export.metadata, *times).with_columns(
        thread=places.thread(gids), process=places.process_by_thread(gids)
    )


def _host(rows: pl.DataFrame, library: str) -> pl.DataFrame:
    """Shape rows as those of the table ``host`` (`library` names their kind); drop unknown threads.

    Unknown are threads without CUDA calls, MPI calls or NVTX ranges.
    """
    columns = ("process", "thread", "start", "end", "name", "group")
    return rows.drop_nulls("thread").select(*columns, library=pl.lit(library))


class OsWaits:
    """Long waits in operating system calls, and starts of child processes.

    Threads without any CUDA call, MPI call or NVTX range are left out.
    """

    def __init__(self, export: Export) -> None:
        self._export = export
        self._is_there = export.file.has(_OSRT, *_CALL_COLUMNS)

    def batches(self, places: Places, rows: int) -> Iterator[pl.DataFrame]:
        """Yield long OS waits, and starts of child processes, as rows of the table ``host``."""
        if not self._is_there:
            return
        names = Texts(self._export.strings)
        for batch in self._export.file.batches(_OSRT, dict.fromkeys(_CALL_COLUMNS, "int"), rows):
            long = batch.drop_nulls().filter(pl.col("end") - pl.col("start") >= _LONG_NS)
            named = _of_run(long, self._export, places, "start", "end").with_columns(
                name=names.of(long["nameId"])
            )
            group = (
                pl.when(pl.col("name").str.contains(_WAITING)).then(pl.lit("wait"))
                .when(pl.col("name").str.contains(_STARTING)).then(pl.lit("child"))
            )  # fmt: skip
            yield _host(named.with_columns(group=group).drop_nulls("group"), "os")


def samples(export: Export, places: Places, rows: int) -> Iterator[pl.DataFrame]:
    """Yield CPU samples of threads with CUDA, MPI or NVTX events, as ``host`` rows of length 0.

    A sample is named after the innermost Python file in its stack, else after the function that
    ran, else after the binary that ran.
    """
    file = export.file
    if not file.has(_SAMPLES, *_TAKEN) or not file.has(FRAMES, *_FRAME):
        return
    batches = file.batches(_SAMPLES, dict.fromkeys(_TAKEN, "int"), rows)
    taken = [batch.drop_nulls() for batch in batches]
    if not taken:
        return
    table = pl.concat(taken)
    known = table.with_columns(places.thread(table["globalTid"]).alias("thread")).drop_nulls()
    named = known.join(_names(export, known["id"], rows), on="id").sort("start")
    placed = _of_run(named, export, places, "start")
    yield _host(placed.with_columns(end="start", group=pl.lit("on_cpu")), "sample")


def _names(export: Export, wanted: pl.Series, rows: int) -> pl.DataFrame:
    """Return ``id, name`` of the samples with the ids `wanted`: the code that ran, by its stack."""
    symbols, modules = Texts(export.strings), Texts(export.strings)
    kept = []
    for batch in export.file.batches(FRAMES, dict.fromkeys(_FRAME, "int"), rows):
        chosen = batch.filter(pl.col("id").is_in(wanted.implode()))
        with_files = chosen.with_columns(
            file=modules.of(chosen["module"]).str.extract(r"([^/\\]*)$")
        )
        is_python = pl.col("file").str.ends_with(".py").fill_null(value=False)
        innermost = with_files.with_columns(python=is_python).filter(
            pl.col("python") | (pl.col("stackDepth") == 0)
        )
        symbol = symbols.of(innermost["symbol"]).str.slice(0, _LONGEST)
        kept.append(innermost.select("id", "stackDepth", "python", "file", "unresolved", symbol))
    if not kept:
        return pl.DataFrame(schema={"id": pl.Int64, "name": pl.String})
    first = pl.concat(kept).sort("id", "python", "stackDepth", descending=[False, True, False])
    is_named = pl.col("unresolved").ne_missing(1)  # older exports say nothing of those with a name
    name = pl.when(is_named).then(pl.format("{} ({})", "symbol", "file"))
    return first.unique("id", keep="first", maintain_order=True).select(
        "id", name=pl.coalesce(name, "file", pl.lit("unknown code"))
    )


def off_cpu(export: Export, places: Places, workspace: Workspace) -> Iterator[pl.DataFrame]:
    """Yield rows of ``host``: intervals of `_LONG_NS` or more in which a thread is off the CPU.

    An interval lasts from the switch that stops a thread to the switch that resumes it. The time
    before a thread's first switch is unknown. The ``name`` of an interval says whether other
    threads of the process ran meanwhile; threads that the run lacks count, but get no rows.
    """
    if not export.file.has(SWITCHES, *_SWITCH_COLUMNS):
        return
    switches = Ordered(workspace)
    for batch in export.file.batches(
        SWITCHES, dict.fromkeys(_SWITCH_COLUMNS, "int"), workspace.rows
    ):
        known = batch.drop_nulls().select(
            "start", end="start", thread="globalTid", process=process_of(pl.col("globalTid")),
            is_on=pl.col("isSchedIn") == 1,
        )  # fmt: skip
        switches.add(known.filter(places.process(known["process"]).is_not_null()))
    stretches = Stretches()
    for chunk in switches.chunks(_SWITCH):
        yield _named(stretches.until(chunk), export, places)


def _named(stretches: pl.DataFrame, export: Export, places: Places) -> pl.DataFrame:
    off = stretches.filter(pl.col("end") - pl.col("start") >= _LONG_NS)
    is_beside = pl.col("ran") >= _MOSTLY * (pl.col("end") - pl.col("start"))
    named = shifted(off, export.metadata, "start", "end").with_columns(
        places.thread(off["thread"]).alias("thread"),
        places.process(off["process"]).alias("process"),
        name=pl.when(is_beside)
        .then(pl.lit("off the CPU while its process ran"))
        .otherwise(pl.lit("off the CPU")),
    )
    return _host(named.with_columns(group=pl.lit("off_cpu")).sort("thread", "start"), "os")


class Stretches:
    """Finds when threads were off the CPU, from scheduling switches given chunk by chunk."""

    def __init__(self) -> None:
        self._threads = pl.DataFrame(schema={**_SWITCH, "ran": pl.Int64})
        """Last switch of each thread."""
        self._processes = pl.DataFrame(schema={**_RUNNING, "ran": pl.Int64})
        """By process: time of its last switch, number of its threads that run from then on
        (`step`), and time that it ran until then, ns."""

    def until(self, switches: pl.DataFrame) -> pl.DataFrame:
        """Return the intervals off the CPU that end within this chunk of switches.

        Columns: ``process, thread, start, end``, and ``ran``: time within the interval in which at
        least one other thread of the process ran, ns.
        """
        known = pl.concat([self._threads.drop("ran"), switches]).with_columns(step=_STEP)
        # At one time threads come before others go.
        ordered = pl.concat(
            [self._processes, known.slice(self._threads.height)], how="diagonal"
        ).sort("process", "start", "step", descending=[False, False, True])
        timed = ordered.with_columns(ran=_RAN)
        self._processes = timed.group_by("process").agg(
            pl.col("start").last(), pl.col("step").sum(), pl.col("ran").last()
        )
        new = timed.drop_nulls("thread").select(self._threads.columns)
        both = pl.concat([self._threads, new])
        self._threads = both.unique("thread", keep="last", maintain_order=True)
        return both.with_columns(**_PAIRED).filter(~pl.col("is_on") & pl.col("comes"))


_WAS_ON = pl.col("is_on").shift().over("thread")
_STEP = pl.when("is_on").then(1).when(_WAS_ON).then(-1).otherwise(0).cast(pl.Int64)
_IS_RUNNING = pl.col("step").cum_sum().over("process") > 0
_UNTIL_NEXT = pl.col("start").shift(-1).over("process") - pl.col("start")
_PASSED = pl.when(_IS_RUNNING).then(_UNTIL_NEXT).otherwise(0).fill_null(0)
_RAN = pl.col("ran").sum().over("process") + _PASSED.cum_sum().over("process") - _PASSED
"""Time, ns, that a process ran until a switch."""
_PAIRED = {
    "end": pl.col("start").shift(-1).over("thread"),
    "comes": pl.col("is_on").shift(-1).over("thread"),
    "ran": pl.col("ran").shift(-1).over("thread") - pl.col("ran"),
}


class Overhead:
    """Intervals of profiler overhead that an nsys export records.

    Overhead of the profiler's own threads, and of programs without any other recorded event, is
    left out. The run therefore does not list these threads and programs.
    """

    def __init__(self, export: Export) -> None:
        self._export = export
        self._lost = sum(
            batch.height - _valid(batch).height
            for table in OVERHEAD_TABLES
            for batch in export.file.batches(table, dict.fromkeys(_OVERHEAD_COLUMNS[:3], "int"))
        )

    @property
    def losses(self) -> tuple[str, ...]:
        """Warnings, one sentence each, on overhead left out, as it lacks a thread or times."""
        problem = "stretches of profiler overhead have no thread or no times and were left out"
        return (f"{self._lost:,} {problem}",) if self._lost else ()

    def batches(self, places: Places, rows: int) -> Iterator[pl.DataFrame]:
        """Yield intervals of the profiler's overhead as rows of the table ``host``."""
        names = Texts(self._export.strings)
        for table in OVERHEAD_TABLES:
            for batch in self._export.file.batches(
                table, dict.fromkeys(_OVERHEAD_COLUMNS, "int"), rows
            ):
                yield self._rows(_valid(batch), names, places)

    def _rows(self, overhead: pl.DataFrame, names: Texts, places: Places) -> pl.DataFrame:
        of_type = pl.col("overheadType").replace_strict(
            list(_TYPES), list(_TYPES.values()), default=_NAMELESS, return_dtype=pl.String
        )
        placed = _of_run(overhead, self._export, places, "start", "end").with_columns(
            names.of(overhead["nameId"]).alias("name"), group=pl.lit("overhead")
        )
        return _host(placed.with_columns(name=pl.coalesce("name", of_type)), "profiler")


def _valid(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.drop_nulls(["start", "end", "globalTid"]).filter(pl.col("end") >= pl.col("start"))
