"""The canonical tables: one declaration per table, which all other code follows.

The Parquet files of a run, the frames of `Trace`, the reference page ``docs/tables.md`` and the
tests all read these declarations; nothing else names the columns of a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import polars as pl
from polars.datatypes import DataType, DataTypeClass

from tracekit.model._vocabulary import (
    COLLECTIVE,
    EVIDENCE,
    HOST_MEMORY,
    KIND,
    METHOD,
    METRIC,
    RANGE_STYLE,
    STAGE,
    STAGE_SOURCE,
    SYNC_TYPE,
    TEST_RESULT,
    VERDICT,
)

PolarsType = DataType | DataTypeClass


@dataclass(frozen=True)
class Column:
    """One column of a table: its name, type, meaning, and the unit of its values.

    `absent` is the value in every row if a source does not record the column.
    """

    name: str
    dtype: PolarsType
    meaning: str
    unit: str | None = None
    nullable: bool = True
    absent: int | str | None = None


@dataclass(frozen=True)
class Table:
    """One canonical table: its name, columns and meaning."""

    name: str
    meaning: str
    columns: tuple[Column, ...]

    @cached_property
    def schema(self) -> pl.Schema:
        """Column names and types, in order."""
        return pl.Schema({column.name: column.dtype for column in self.columns})

    @cached_property
    def _empty(self) -> pl.DataFrame:
        return pl.DataFrame(schema=self.schema)

    @cached_property
    def _made(self) -> dict[tuple[str, bool], pl.Expr]:
        """Return an expression per column: a cast if the frame has the column, else its default.

        The key is the column's name and whether the frame has it.
        """
        return {
            (c.name, is_there): (pl.col(c.name) if is_there else pl.lit(c.absent))
            .cast(c.dtype)
            .alias(c.name)
            for c in self.columns
            for is_there in (True, False)
        }

    def empty(self) -> pl.DataFrame:
        """Return an empty frame with this table's columns and types."""
        return self._empty.clone()

    def conform(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return `frame` with this table's columns and types; missing ones are `Column.absent`.

        Raises
        ------
        ValueError
            If a column that may not be null is missing, or a value does not fit its column.
        """
        if frame.schema == self.schema:
            return frame
        present = set(frame.columns)
        absent = [c for c in self.columns if c.name not in present and not c.nullable]
        if lacks := [c.name for c in absent if c.absent is None]:
            raise ValueError(f"table {self.name} lacks {', '.join(lacks)}")
        try:
            return frame.select(self._made[c.name, c.name in present] for c in self.columns)
        except pl.exceptions.InvalidOperationError:
            for c in self.columns:
                if c.name in present:
                    self.typed(frame[c.name])
            raise

    def typed(self, values: pl.Series) -> pl.Series:
        """Convert values to the type of the column that has their name.

        Raises
        ------
        ValueError
            If a value does not fit the type; the message names it, and the values allowed.
        """
        dtype = self.schema[values.name]
        try:
            return values.cast(dtype)
        except pl.exceptions.InvalidOperationError as error:
            found = values.cast(dtype, strict=False)
            wrong = values.filter(found.is_null() & values.is_not_null())[0]
            known = dtype.categories.to_list() if isinstance(dtype, pl.Enum) else [str(dtype)]
            place = f"column {values.name} of table {self.name}"
            raise ValueError(f"{place} cannot be {wrong!r}: it is {', '.join(known)}") from error


def _key(name: str, meaning: str) -> Column:
    return Column(name, pl.Int32, meaning, nullable=False)


def _time(name: str, meaning: str, *, nullable: bool = False) -> Column:
    return Column(name, pl.Int64, meaning, "ns", nullable)


_REPORT = Column("report", pl.Int32, "index of the report in the run", nullable=False, absent=0)

REPORTS = Table(
    "reports",
    "One row per recorded file of the run.",
    (
        _REPORT,
        Column("file", pl.String, "name of the file, without its folder", nullable=False),
        Column("format", pl.String, "recognised format of the file", nullable=False),
        Column("product", pl.String, "product and version that wrote it"),
        Column("schema_version", pl.String, "version of its schema, as the file states"),
        Column("size", pl.Int64, "size of the file", "bytes", nullable=False),
        Column("digest", pl.String, "SHA-256 of the file's content, in hexadecimal"),
        Column("host", pl.String, "name of the host it was recorded on"),
        Column("rank", pl.Int32, "rank of the recorded program in its job, by its environment "
               "or the trace"),
        Column("ranks", pl.Int32, "number of ranks of that job, by the same source"),
        _time("session_start", "Unix time of time 0 of the report", nullable=True),
        _time("duration", "length of the recording", nullable=True),
        Column("job", pl.String, "what launchers call its job, as `VARIABLE=digest` for each of "
               "their variables that is set; the values themselves are not stored"),
        Column("clock", pl.String, "clock that its times are on in a run of several reports: those "
               "of reports with the same can be compared"),
        _time("clock_offset", "offset that was added to its times for that", nullable=True),
        Column("clock_drift", pl.Float64, "by how much its own clock was stretched for that, as a "
               "fraction"),
        _time("clock_since", "time of the report from which that counts", nullable=True),
        Column("clock_source", pl.String, "how that is known: `session_start` of reports of one "
               "machine, `collectives` that end together, `messages` both ways, or `given` by the "
               "user"),
        Column("clock_calls", pl.Int64, "how many calls were matched with those of another report"),
        _time("clock_p5", "5th percentile of the remaining differences of their ends",
              nullable=True),
        _time("clock_p95", "95th percentile of that", nullable=True),
        Column("clock_steps", pl.String, "when its own clock was set anew, and what was added to "
               "its times from then on, as `time:ns`, by time"),
        _time("clock_bound", "by how much times on that clock may still be off; null if "
              "unknown", nullable=True),
        Column("clock_reason", pl.String, "evidence for that clock, or why none is known"),
    ),
)  # fmt: skip

CONTENTS = Table(
    "contents",
    "One row per report and kind of data that such a report may contain, present or not.",
    (
        _REPORT,
        Column("feature", pl.String, "what kind of data", nullable=False),
        Column("source_table", pl.String, "where the file keeps it", nullable=False),
        Column("present", pl.Boolean, "whether the file has any", nullable=False),
        Column("rows", pl.Int64, "number of its rows; null where they were not counted"),
        Column("tells", pl.String, "what can be known from it", nullable=False),
        Column("record_with", pl.String, "how it is recorded or exported", nullable=False),
    ),
)

PROCESSES = Table(
    "processes",
    "One row per traced process that launched GPU work, took GPU memory, or has NVTX ranges.",
    (
        _key("process", "index of the process in the run, report by report"),
        _REPORT,
        Column("pid", pl.Int64, "process id as the traced side saw it", nullable=False),
        Column("name", pl.String, "name of the executable"),
        Column("global_id", pl.Int64, "identifier of the process in the report", nullable=False),
    ),
)

THREADS = Table(
    "threads",
    "One row per thread that called CUDA or has NVTX ranges.",
    (
        _key("thread", "index of the thread in the run, report by report"),
        _REPORT,
        _key("process", "the thread's process"),
        Column("tid", pl.Int64, "thread id as the traced side saw it", nullable=False),
        Column("name", pl.String, "name of the thread"),
        Column("global_id", pl.Int64, "identifier of the thread in the report", nullable=False),
    ),
)

DEVICES = Table(
    "devices",
    "One row per physical GPU that a report names or that ran an op. Several reports of one GPU "
    "share a row: tracekit recognises the GPU by UUID, else by host and PCI bus location.",
    (
        _key(
            "device",
            "number of the GPU in the run: its CUDA ordinal where that means one GPU throughout, "
            "else in order of hosts and PCI bus locations",
        ),
        Column(
            "report", pl.Int32, "index of the first report that names it", nullable=False, absent=0
        ),
        Column("name", pl.String, "product name"),
        Column("uuid", pl.String, "UUID, without the prefix GPU-"),
        Column("pci_bus", pl.String, "PCI bus location"),
        Column("memory_bytes", pl.Int64, "size of its memory", "bytes"),
        Column("peak_memory_bandwidth", pl.Int64, "peak bandwidth of its memory", "bytes/s"),
        Column("sm_count", pl.Int32, "number of streaming multiprocessors"),
        Column("compute_capability", pl.String, "compute capability, major.minor"),
        Column("numa", pl.Int32, "NUMA node"),
        Column("active", pl.Boolean, "whether it ran an op in this run", nullable=False),
        Column(
            "identity",
            pl.String,
            "how ops were assigned to it: `device_table` (the report maps each process's ordinal), "
            "`ordinal` (the report gives the GPU's CUDA ordinal), `visible_devices` (from "
            "CUDA_VISIBLE_DEVICES), `assumed` (ordinal taken as the GPU's number) or `unknown` "
            "(no physical GPU is named; the process and its ordinal stand for it)",
            nullable=False,
        ),
    ),
)

OPS = Table(
    "ops",
    "One row per piece of GPU work: kernel, copy, memset, or CUDA graph recorded as one op.",
    (
        Column(
            "op", pl.Int64, "number of the op in the run, by report and start time", nullable=False
        ),
        _REPORT,
        _key("process", "process that launched it"),
        _key("device", "GPU that ran it"),
        Column("context", pl.Int32, "CUDA context id, unique within the process"),
        Column("stream", pl.Int64, "CUDA stream id, unique within the context"),
        _time("start", "start on the GPU"),
        _time("end", "end on the GPU"),
        Column("name", pl.Categorical(), "demangled name with arguments, or the copy's direction"),
        Column("short_name", pl.Categorical(), "name without template arguments and parameters"),
        Column("kind", KIND, "what it does", nullable=False),
        Column("collective", COLLECTIVE, "collective operation, for kind `collective`"),
        Column("bytes", pl.Int64, "bytes copied or set; null for kernels", "bytes"),
        Column("copy_kind", pl.String, "direction of a copy as recorded, such as `HtoD`"),
        Column("host_memory", HOST_MEMORY, "memory on the host's side of a copy: `pageable`, "
               "`pinned` or `managed`; null where it was not recorded"),
        Column("src_device", pl.Int32, "source GPU of a copy (a `device`); null for host memory"),
        Column(
            "dst_device", pl.Int32, "destination GPU of a copy (a `device`); null for host memory"
        ),
        Column("correlation", pl.Int64, "correlation id, unique within the process"),
        Column("launch_size", pl.Int64, "threads that a kernel is launched with: blocks times "
               "threads per block; null where it was not recorded"),
        Column("graph_node", pl.Int64, "CUDA graph node it replays"),
        Column("call", pl.Int64, "the call that launched it; null where none was recorded"),
        Column("launch_thread", pl.Int32, "thread of that call"),
        _time("launch_start", "start of that call", nullable=True),
        _time("launch_end", "end of that call", nullable=True),
        Column("range", pl.Int64, "innermost range open on the launching thread at launch"),
        Column("stage", STAGE, "why it runs", nullable=False, absent="OTHER"),
        Column("stage_source", STAGE_SOURCE, "how the stage was found", nullable=False,
               absent="none"),
        Column("recomputed", pl.Boolean, "of an op of a backward pass, whether it is a part of the "
               "forward pass that is run again, as its results were not kept; null where that is "
               "not known"),
        Column("iteration", pl.Int64, "iteration in which it was launched"),
    ),
)  # fmt: skip

CALLS = Table(
    "calls",
    "One row per CUDA runtime or driver call.",
    (
        Column(
            "call",
            pl.Int64,
            "number of the call in the run, by report and start time",
            nullable=False,
        ),
        _REPORT,
        _key("process", "process that made it"),
        _key("thread", "thread that made it"),
        _time("start", "start of the call"),
        _time("end", "end of the call"),
        Column("name", pl.Categorical(), "function name, without its version suffix"),
        Column("correlation", pl.Int64, "correlation id, unique within the process"),
        Column("result", pl.Int64, "return value; 0 is success"),
    ),
)

RANGES = Table(
    "ranges",
    "One row per NVTX range.",
    (
        Column(
            "range",
            pl.Int64,
            "number of the range in the run, by report and start time",
            nullable=False,
        ),
        _REPORT,
        _key("process", "process that made it"),
        _key("thread", "thread that opened it"),
        Column("domain", pl.String, "NVTX domain; null is the default domain"),
        Column("name", pl.String, "message of the range"),
        Column("category", pl.String, "NVTX category"),
        _time("start", "start of the range"),
        _time("end", "end of the range; the end of the recording where it was still open"),
        Column("open", pl.Boolean, "whether it was still open when recording ended"),
        Column("style", RANGE_STYLE, "push/pop (nests per thread) or start/end", nullable=False),
        Column("end_thread", pl.Int32, "thread that ended it, where another than opened it"),
        Column(
            "payload",
            pl.String,
            "value attached to it, as text or JSON; of an operator that "
            "PyTorch's profiler recorded, and that multiplies, its arguments",
        ),
        Column("parent", pl.Int64, "tightest push/pop range around it on its thread"),
        Column("depth", pl.Int32, "number of push/pop ranges around it on its thread"),
        Column("stage", STAGE, "stage that its own name maps to, null where none"),
        Column(
            "path",
            pl.Int32,
            "its path (a row of `paths`): that of a push/pop range leads through those around it",
        ),
    ),
)

PATHS = Table(
    "paths",
    "One row per distinct path of the run's ranges. Equal paths of several reports are one. "
    "`path_texts` has their texts.",
    (
        _key("path", "number of the path in the run, that of the path around it is lower"),
        Column("parent_path", pl.Int32, "the path around it; null for an outermost one"),
        Column(
            "label",
            pl.String,
            "name of its ranges, without the numbers that PyTorch appends and with `N` for the "
            "number of the iteration",
            nullable=False,
        ),
        Column("depth", pl.Int32, "number of paths around it", nullable=False),
    ),
)

ITERATIONS = Table(
    "iterations",
    "One row per training step and process.",
    (
        _REPORT,
        _key("process", "process that runs it"),
        _key("thread", "training thread on which it runs"),
        Column(
            "iteration", pl.Int64, "number of the iteration, as its process counts", nullable=False
        ),
        Column("name", pl.String, "name of the range it was taken from"),
        _time("start", "start on the host"),
        _time("end", "end on the host"),
        Column("source", pl.String, "how it is known: `ranges`, or `structure` of the GPU work"),
        Column("ops", pl.Int64, "ops launched in it; null where no GPU work of its process was "
               "recorded"),
        Column("whole", pl.Boolean, "whether its GPU work was recorded, as far as is known all "
               "of it: not if it has none, or lies at an edge where the recording was cut; null as "
               "`ops`"),
    ),
)  # fmt: skip

VERDICTS = Table(
    "verdicts",
    "One row per process that was seen: what it does with its GPUs, and the evidence.",
    (
        _REPORT,
        _key("process", "the process"),
        Column("verdict", VERDICT, "`training`, `inference`, `other`, or `unknown`: a network "
               "that may be trained or not", nullable=False),
        Column("given", pl.Boolean, "whether the user set it", nullable=False),
        Column("evidence", pl.String, "the evidence, in words", nullable=False),
        Column("cut", pl.String, "which end of its GPU work is missing (may be, where ranges mark "
               "no steps): `begin`, `end` or `both`; null where none is known to be"),
        Column("iterations", pl.Int64, "iterations that are known"),
        Column("with_work", pl.Int64, "those of them with recorded GPU work"),
        Column("whole", pl.Int64, "those of them recorded completely, as far as is known"),
        Column("structure", pl.String, "result of structure: `threads` (stages "
               "by threads), `order` (stages estimated from order), `refused` (signs of training, "
               "no stages), `none` (no sign of training); null where it was not asked"),
        Column("decides", pl.Boolean, "whether stages rest on structure; where ranges name them, "
               "it is a second opinion", nullable=False),
        Column("structure_evidence", pl.String, "evidence for it, in words"),
        Column("contradictions", pl.String, "evidence against it, in words"),
        Column("gaps", pl.Int64, "gaps between backward passes"),
        Column("usual_gaps", pl.Int64, "those of them that are usual"),
        Column("doubt_ns", pl.Int64, "busy time around cuts between stages that may belong to "
               "either side", "ns"),
        Column("period", pl.Int64, "launches after which they repeat"),
        Column("repeats", pl.Float64, "how often they do"),
        Column("steps_by", pl.String, "what is taken to be a step, in words, where structure finds "
               "steps and other readings give others, or a reading was asked for"),
    ),
)  # fmt: skip

ASSUMPTIONS = Table(
    "assumptions",
    "What the structure of a process' GPU work rests on beside facts of the recording, and "
    "the result of its test there.",
    (
        _REPORT,
        _key("process", "the process"),
        Column("assumption", pl.String, "the assumption, as a sentence", nullable=False),
        Column("result", TEST_RESULT, "`holds`: something there could contradict it and does not; "
               "`untested`: nothing there could; `fails`", nullable=False),
        Column("doubt_ns", pl.Int64, "busy time that is of another stage if it does not hold; null "
               "where no other reading was looked at, or steps alone rest on it", "ns"),
        Column("said", pl.String, "what it was compared with, and the result", nullable=False),
    ),
)  # fmt: skip

OPINIONS = Table(
    "opinions",
    "Stages that each source gives to ops, the source that decides included, added up.",
    (
        _REPORT,
        _key("process", "process of the ops"),
        Column("stage", STAGE, "stage of the ops", nullable=False),
        Column("stage_source", STAGE_SOURCE, "source that decided", nullable=False),
        Column("other_source", STAGE_SOURCE, "a source of stages", nullable=False),
        Column("other_stage", STAGE, "the stage by that source alone", nullable=False),
        Column("ops", pl.Int64, "number of ops", nullable=False),
        _time("total_ns", "sum of their durations"),
    ),
)

DEVICE_SUMS = Table(
    "device_sums",
    "Sums over the ops of each device: a row for all ops, one per stage, and one per source of "
    "stages. A run has no rows if two of its reports recorded the same device, or if a clock "
    "drifts or was reset.",
    (
        _REPORT,
        _key("device", "device that ran the ops"),
        Column("stage", STAGE, "stage of the ops; null in rows of all ops and of a source"),
        Column("stage_source", STAGE_SOURCE, "source of their stages; null in rows of all ops and "
               "of a stage"),
        Column("ops", pl.Int64, "number of ops", nullable=False),
        Column("kernels", pl.Int64, "of all ops, number of kernels"),
        Column("launched", pl.Int64, "of all ops, number of those whose launching call is known"),
        _time("start", "of all ops, start of the first one", nullable=True),
        _time("end", "of all ops, end of the one that ends last", nullable=True),
        _time("total_ns", "of all ops, sum of their durations", nullable=True),
        _time("busy_ns", "length of the union of their intervals"),
        _time("exposed_ns", "of a stage, busy time in which no stage of higher rank is busy",
              nullable=True),
    ),
)  # fmt: skip

HOST = Table(
    "host",
    "One row per event on the host: a call of MPI or UCX; time that the profiler took; a sample of "
    "a call stack (without a length); and, from 100 us on, a system call in which a thread waits "
    "or starts a process, and time in which a thread is off the CPU.",
    (
        _REPORT,
        _key("process", "process that made it"),
        _key("thread", "thread that made it"),
        _time("start", "start of the call"),
        _time("end", "end of the call"),
        Column("library", pl.String, "`mpi`, `ucx` (below MPI: bytes of both are the same), "
               "`profiler`, `os` or `sample`", nullable=False),
        Column("name", pl.String, "function, such as `MPI_Allreduce`, or kind of overhead",
               nullable=False),
        Column(
            "group",
            pl.String,
            "of MPI `collective`, `p2p`, `start_wait` (of requests that are not blocking) or "
            "`other`; of UCX `submit`, `progress` or `other`; of the profiler `overhead`; of the "
            "operating system `wait`, `child` (starts a process) or `off_cpu`; of a sample "
            "`on_cpu`",
            nullable=False,
        ),
        Column("bytes", pl.Int64, "of a message its bytes; of a collective those that this rank "
               "sends from its buffer, each once", "bytes"),
        Column("recv_bytes", pl.Int64, "bytes that this rank receives into its buffer in a "
               "collective", "bytes"),
        Column("tag", pl.Int64, "message tag"),
        Column("rank", pl.Int32, "rank of the caller in the world communicator"),
        Column("remote_rank", pl.Int32, "the other rank of a message"),
        Column("root_rank", pl.Int32, "root of a collective"),
        Column("communicator", pl.Int64, "handle of the communicator, unique within the process"),
        Column("ranks", pl.Int32, "number of ranks of the communicator"),
    ),
)  # fmt: skip

METRICS = Table(
    "metrics",
    "One row per sample of a counter of a GPU or NIC.",
    (
        _REPORT,
        Column("device", pl.Int32, "GPU that was sampled (a `device`); null for a NIC"),
        Column("nic", pl.String, "NIC that was sampled; null for a GPU"),
        Column("metric", METRIC, "what was counted", nullable=False),
        Column("recorded_name", pl.Categorical(), "its name as recorded", nullable=False),
        _time("start", "start of what the sample covers; null where only its time is known",
              nullable=True),
        _time("time", "time of the sample, the end of what it covers"),
        Column("value", pl.Float64, "value of the sample, in `unit`", nullable=False),
        Column("unit", pl.Categorical(), "`percent` (of the peak of one direction, or of all "
               "multiprocessors) or the unit that the report gives, such as `bytes`"),
    ),
)  # fmt: skip

MEMORY = Table(
    "memory",
    "One row per allocation or release of GPU memory that was recorded.",
    (
        _REPORT,
        _key("process", "process whose memory it is"),
        _key("device", "GPU whose memory it is"),
        _time("time", "when"),
        Column("change", pl.Int64, "bytes allocated; negative where they are released", "bytes",
               nullable=False),
        Column("in_use", pl.Int64, "bytes in use by the process on this GPU after that, of those "
               "allocated since recording began", "bytes", nullable=False),
    ),
)  # fmt: skip

SYNCS = Table(
    "syncs",
    "One row per wait for GPU work. The call that waits is also in `calls`, with the same process "
    "and correlation id, so do not add the times of both.",
    (
        _REPORT,
        _key("process", "process that waits"),
        Column("device", pl.Int32, "GPU whose work is waited for; null where it is not known"),
        Column("context", pl.Int32, "CUDA context whose work is waited for"),
        Column("stream", pl.Int64, "stream that is waited for; of `stream_wait_event` the one "
               "that waits; null for all of a context, and for an event"),
        _time("start", "start of the wait on the host"),
        _time("end", "end of the wait on the host; a stream goes on waiting"),
        Column("type", SYNC_TYPE, "what waits for what; null where it names nothing"),
        Column("event", pl.Int64, "CUDA event that is waited for, unique within the process while "
               "it exists"),
        Column("correlation", pl.Int64, "correlation id of the call that waits"),
        Column("recorded_by", pl.Int64, "correlation id of the call that recorded that event last "
               "(a row of `event_records`); null where the recorder does not say"),
    ),
)  # fmt: skip

EVENT_RECORDS = Table(
    "event_records",
    "One row per record of a CUDA event in a stream, in the order of correlation ids.",
    (
        _REPORT,
        _key("process", "process that recorded it"),
        Column("device", pl.Int32, "GPU of the stream; null where it is not known"),
        Column("context", pl.Int32, "CUDA context of the stream"),
        Column("stream", pl.Int64, "stream that the event was put into"),
        Column("event", pl.Int64, "the event, unique within the process while it exists"),
        Column("correlation", pl.Int64, "correlation id of the call that recorded it, which is in "
               "`calls` and has the time"),
        _time("time", "when the GPU reached it; null where the recorder does not say",
              nullable=True),
    ),
)  # fmt: skip

GRAPH_NODES = Table(
    "graph_nodes",
    "One row per node of a CUDA graph whose making was recorded. Ops of that node are of the "
    "ranges that were open then.",
    (
        _REPORT,
        _key("process", "process of the graph"),
        _key("thread", "thread that captured or added the node"),
        Column("graph_node", pl.Int64, "the node, as ops name it, unique within the process",
               nullable=False),
        _time("time", "when it was captured or added; of a copy, when what it is a copy of was"),
    ),
)  # fmt: skip

MACHINE = Table(
    "machine",
    "One row per report with the topology of the machine it was recorded on.",
    (
        _REPORT,
        Column("description", pl.String, "the machine as TOML, in the format of the presets",
               nullable=False),
    ),
)  # fmt: skip

TABLES = {
    table.name: table
    for table in (
        REPORTS, CONTENTS, PROCESSES, THREADS, DEVICES, OPS, CALLS, RANGES, PATHS, ITERATIONS,
        VERDICTS, ASSUMPTIONS, OPINIONS, DEVICE_SUMS, HOST, METRICS, MEMORY, SYNCS, EVENT_RECORDS,
        GRAPH_NODES, MACHINE,
    )
}  # fmt: skip
"""All stored tables of a run: name -> table."""

TRANSFERS = Table(
    "transfers",
    "One row per movement of data between two GPUs, or between a GPU and host memory. Computed "
    "on request from the tables `ops`, `calls`, `ranges` and `host`.",
    (
        _REPORT,
        Column("process", pl.Int32, "process that moved it: for a collective that at the source, "
               "null if not in the run"),
        Column("op", pl.Int64, "the copy or collective kernel; of two copies the first one"),
        Column("second_op", pl.Int64, "the second copy of a staged or two-hop transfer"),
        Column("src_device", pl.Int32, "GPU that it came from; null for host memory"),
        Column("dst_device", pl.Int32, "GPU that it went to; null for host memory"),
        Column("via_device", pl.Int32, "GPU that a two-hop transfer went through"),
        Column("src_nic", pl.Int32, "NIC of its host that it left by, counted from 0, as a log of "
               "NCCL has it; null without one"),
        Column("dst_nic", pl.Int32, "NIC that it came in by, likewise"),
        Column("bytes", pl.Int64, "bytes moved; null where unknown", "bytes"),
        _time("start", "start, that of the first copy"),
        _time("end", "end, that of the last copy"),
        _time("first_end", "of a staged or two-hop transfer: when its first copy ended",
              nullable=True),
        _time("second_start", "of a staged or two-hop transfer: when its second copy began",
              nullable=True),
        Column("method", METHOD, "how it was moved", nullable=False),
        Column("evidence", EVIDENCE, "`measured`, `modelled`, or `modelled between`: one of "
               "several algorithms ran, and each has its rows", nullable=False),
        Column(
            "source",
            pl.String,
            "how its ends are known: `recorded` (with the copy), `same_call` (two copies that one "
            "call launched), `same_thread` (two copies of as many bytes, which one thread launched "
            "before the first ended), `same_bytes` (two copies of as many bytes, in order), "
            "`mpi_call` (the ranks of the MPI call around it), `payload` (peer and size of the "
            "NCCL call), `log` (rings, trees or calls of an NCCL log) or `topology` (rings found "
            "in the topology)",
            nullable=False,
        ),
        Column("collective", COLLECTIVE, "the operation, for methods `nccl` and `collective`"),
        Column("algorithm", pl.String, "the algorithm of a modelled collective"),
        Column("at_switch", pl.Boolean, "whether an end without a GPU is an NVSwitch that reduces "
               "or multicasts"),
        Column("choice", pl.Int64, "number of a collective whose algorithm is unknown: it has "
               "rows for each candidate, and one candidate ran"),
        Column("bytes_if", pl.Int64, "bytes moved if it was this algorithm", "bytes"),
        Column("stage", STAGE, "why it runs", nullable=False),
        Column("iteration", pl.Int64, "iteration in which it was launched"),
    ),
)  # fmt: skip

COLLECTIVE_CALLS = Table(
    "collectives",
    "One row per collective and participant: a kernel, or an MPI call. Computed on "
    "request from the tables `ops`, `ranges` and `host`.",
    (
        _REPORT,
        _key("process", "process that takes part"),
        Column("device", pl.Int32, "GPU that takes part; null for an MPI call"),
        Column("stream", pl.Int64, "CUDA stream of the kernel"),
        Column("op", pl.Int64, "the kernel; null for an MPI call"),
        Column("library", pl.String, "`nccl`, `mpi`, or what other library's kernel it is by its "
               "name: `vllm`, `tensorrt_llm` (FlashInfer's too), `pytorch`, `nvshmem`, `msccl`, "
               "`deep_ep`, `hybrid_ep`, `mori`, `other`", nullable=False),
        Column("collective", COLLECTIVE, "collective operation", nullable=False),
        Column("name", pl.String, "short name of the kernel, or name of the MPI function"),
        _time("start", "start of the kernel or MPI call"),
        _time("end", "end of the kernel or MPI call"),
        Column("api_calls", pl.Int64, "NCCL calls that the kernel carries out; null if unknown"),
        Column("message_bytes", pl.Int64, "size as the call gives it (per rank for all_gather and "
               "reduce_scatter); null if unknown", "bytes"),
        Column("bytes", pl.Int64, "size that algorithm bandwidth is about, as nccl-tests counts "
               "it; null if unknown", "bytes"),
        Column("sent_bytes", pl.Int64, "bytes sent by send_recv", "bytes"),
        Column("received_bytes", pl.Int64, "bytes received by send_recv", "bytes"),
        Column("bytes_source", pl.String, "`payload`, `log`, `mpi`, "
               "`mpi, not in place` (which is assumed) or `user`; null if unknown"),
        Column("communicator", pl.String, "id of the communicator; null if unknown"),
        Column("rank", pl.Int32, "rank of the participant in it"),
        Column("ranks", pl.Int32, "size of the communicator; null if unknown"),
        Column("root", pl.Int32, "root rank of broadcast, reduce, gather and scatter"),
        Column("sequence", pl.Int64, "number of the collective on its stream"),
        Column("match", pl.Int64, "number of the collective in the run, the same for all "
               "participants that were found; null where none could be matched"),
        Column("part", pl.String, "`dispatch`, `combine` or `wait`, of a kernel of expert "
               "parallelism by its name; null of all others"),
        Column("algorithm", pl.String, "algorithm, from an NCCL log or the name of a kernel that "
               "is made for one; null if unknown"),
        Column("protocol", pl.String, "protocol, from an NCCL log; null if unknown"),
        Column("stage", STAGE, "why it runs"),
        Column("iteration", pl.Int64, "iteration in which it was launched"),
    ),
)  # fmt: skip

PATH_TEXTS = Table(
    "path_texts",
    "One row per path, with its text. Computed on request from the table `paths`.",
    (
        _key("path", "number of the path"),
        Column(
            "text",
            pl.String,
            "labels of the paths around it and its own, outermost first, with ` > ` between them; "
            "of more than 32 the first 8 and the last 24, and how many are left out",
            nullable=False,
        ),
    ),
)

DERIVED = {table.name: table for table in (TRANSFERS, COLLECTIVE_CALLS, PATH_TEXTS)}
"""Tables computed on demand from a run's stored tables: name -> table."""
