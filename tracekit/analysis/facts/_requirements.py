"""Kinds of data that analyses need: how much of each a run has, and how to record it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Literal

import polars as pl

from tracekit.analysis.calls import job_size, process_ranks, read_calls
from tracekit.analysis.facts._verdicts import Number, is_pipeline, summarise
from tracekit.engine import Work, has_ops, on_host
from tracekit.errors import MissingDataError, TracekitError
from tracekit.model import Trace, is_migration, with_clocks
from tracekit.support.wording import count

Degree = Literal["no", "none", "partly", "yes"]
"""Whether a run has a kind of data: not recorded, recorded but none ran, in part, or all of it."""
DEGREES: tuple[Degree, ...] = ("no", "none", "partly", "yes")

RECORDERS = {
    "nsys": "nsys", "nvprof": "nvprof", "PyTorch": "torch.profiler", "RPD": "rocmProfileData",
    "rocprofv3": "rocprofv3", "XLA": "jax.profiler",
}  # fmt: skip
"""Prefix of a report's format -> recorder."""

_ALMOST_ALL = 0.9995
_SEVERAL = 2


@dataclass(frozen=True)
class Evidence:
    """How much of a kind of data a run has (see `Degree`), and a text with numbers."""

    available: Degree
    found: str


class Facts:
    """Kinds and amounts of data in a run, computed on first use and cached."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @cached_property
    def numbers(self) -> Mapping[str, Number]:
        """Counts and shares of the run, see `tracekit.analysis.summarise`."""
        return summarise(self.trace)

    @cached_property
    def kinds(self) -> Mapping[str, int]:
        """Number of GPU ops of each kind, such as compute, collective or memset."""
        counts = self.trace["ops"].group_by(pl.col("kind").cast(pl.String)).len().collect()
        return dict(counts.iter_rows())

    @cached_property
    def collectives(self) -> tuple[int, int]:
        """Number of collective kernels (such as NCCL's), and of collective calls of MPI."""
        return self.kinds.get("collective", 0), self._mpi.height

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """Number of NCCL and MPI calls with a recorded size, and number of all such calls."""
        calls = read_calls(self.trace).drop_nulls("collective")["message_bytes"]
        moving = self._mpi.filter(~pl.col("name").str.contains("(?i)barrier"))
        sized = pl.concat([calls, moving["bytes"]])
        return sized.count(), sized.len()

    @cached_property
    def participants(self) -> int:
        """Number of GPUs, or of processes that call MPI, that take part in collectives."""
        collective = pl.col("kind") == "collective"
        devices = self.trace["ops"].filter(collective).select(pl.col("device").n_unique())
        return max(int(devices.collect().item()), self._mpi["process"].n_unique())

    @cached_property
    def recorders(self) -> list[str]:
        """The profilers that wrote the run's files; all known profilers if no file names one."""
        formats = self.trace.read("reports")["format"].unique(maintain_order=True).to_list()
        known = [
            recorder
            for start, recorder in RECORDERS.items()
            if any(each.startswith(start) for each in formats)
        ]
        return known or list(RECORDERS.values())

    @cached_property
    def _mpi(self) -> pl.DataFrame:
        of_mpi = (pl.col("library") == "mpi") & (pl.col("group") == "collective")
        # A broadcast has a buffer to send in its root alone.
        size = pl.coalesce("bytes", "recv_bytes")
        return self.trace["host"].filter(of_mpi).select("process", "name", bytes=size).collect()


# -- what is measured --------------------------------------------------------------------------


def counted(noun: str, number: int) -> Evidence:
    """Return evidence ``yes`` with the number of a noun as text; ``no`` if `number` is 0."""
    text = count(number or 2, noun).partition(" ")[2]
    return Evidence("yes" if number else "no", count(number, noun) if number else f"no {text}")


def _share(value: Number, noun: str) -> Evidence:
    if not isinstance(value, int | float):
        return Evidence("no", f"unknown for all {noun}")
    # What is not quite all is enough, and must not read as all of it.
    almost = _ALMOST_ALL <= value < 1
    percent = ">99.9 %" if almost else f"{100 * value:.1f} %"
    degree: Degree = "no" if not value else "yes" if value >= _ALMOST_ALL else "partly"
    return Evidence(degree, f"known of {percent} of {noun}")


def _part(known: int, of_all: int, before: str, after: str) -> Evidence:
    degree: Degree = "no" if not known else "yes" if known == of_all else "partly"
    return Evidence(degree, f"{before} {known:,} of {of_all:,} {after}".lstrip())


def _rows(table: str, noun: str, where: pl.Expr | None = None) -> Callable[[Facts], Evidence]:
    def measure(facts: Facts) -> Evidence:
        rows = facts.trace[table] if where is None else facts.trace[table].filter(where)
        return counted(noun, rows.select(pl.len()).collect().item())

    return measure


def _launches(facts: Facts) -> Evidence:
    share = facts.numbers["launched"]
    if share != 1:  # migrations of unified memory have no launch that can be recorded
        ops = facts.trace["ops"].filter(~is_migration()).select(pl.len(), pl.col("call").count())
        of, known = ops.collect(engine="streaming").row(0)
        share = known / of if of else share
    return _share(share, "launched ops")


def _stages(facts: Facts) -> Evidence:
    if not facts.kinds and on_host(facts.trace)["ops"].head(1).collect().height:
        return Evidence("partly", "of ranges on the host: no GPU work was recorded")
    return _share(facts.numbers["coverage"], "GPU busy time")


def _iterations(facts: Facts) -> Evidence:
    number = int(facts.numbers["iterations"] or 0)
    return Evidence("yes" if number else "no", count(number, "iteration"))


def _gpus(facts: Facts) -> Evidence:
    devices = facts.trace.read("devices").filter("active")
    known = devices.filter(pl.col("identity") != "unknown").height
    how = ", ".join(devices["identity"].unique(maintain_order=True).to_list()) or "no GPU"
    return _part(known, devices.height, "", f"named ({how})")


def _of_processes(facts: Facts, column: str) -> Evidence:
    active = facts.trace["ops"].select(pl.col("process").unique()).collect()
    values = process_ranks(facts.trace).join(active, on="process", how="semi")[column]
    return _part(values.count(), len(values), f"{column}s of", "processes")


def _peers(facts: Facts) -> Evidence:
    number = facts.kinds.get("p2p", 0) + facts.kinds.get("staged", 0)
    if number or not facts.kinds:
        return counted("copy between GPUs", number)
    return Evidence("none", "no copies between GPUs ran")


def _collectives(facts: Facts) -> Evidence:
    kernels, calls = facts.collectives
    if not kernels and not calls and facts.kinds:
        return Evidence("none", "no collectives ran")
    parts = [count(kernels, "collective kernel")] * bool(kernels)
    parts += [count(calls, "collective call of MPI")] * bool(calls)
    return Evidence("yes" if parts else "no", ", ".join(parts) or "no collectives")


def _sizes(facts: Facts) -> Evidence:
    collectives = _collectives(facts)
    if collectives.available != "yes":
        return collectives
    return _part(*facts.sizes, "sizes of", "calls of NCCL and MPI")


def _participants(facts: Facts) -> Evidence:
    collectives = _collectives(facts)
    if collectives.available != "yes":
        return collectives
    number, ranks = facts.participants, facts.trace.once(job_size)
    clocks = with_clocks(
        pl.DataFrame({"report": facts.trace.read("reports")["report"]}),
        facts.trace.read("reports"),
    )["clock"].n_unique()
    found = f"{number} participants" if number >= _SEVERAL else "one participant"
    found += f" of {ranks}" if ranks else ""
    found += f", on {clocks} clocks" if clocks > 1 else ""
    if number < _SEVERAL:
        return Evidence("none" if ranks == 1 else "no", found)
    return Evidence("partly" if clocks > 1 or number < ranks else "yes", found)


def _waits(facts: Facts) -> Evidence:
    """Return what shows who waits for whom: collectives, or else copies between GPUs."""
    met, copies = _participants(facts), _peers(facts)
    if met.available in {"yes", "partly"} or copies.available != "yes":
        return met
    return Evidence("partly", f"{met.found}, {copies.found}")


def _machine(facts: Facts) -> Evidence:
    # A machine is a graph, which takes time to load and is seldom asked for.
    from tracekit.machine import machine_of  # noqa: PLC0415

    devices = facts.trace.read("devices")
    recorded = facts.trace.read("machine")["description"].to_list()
    try:
        machine = machine_of(devices, recorded=recorded).machine
    except TracekitError as error:
        return Evidence("no", error.what)
    degree: Degree = "partly" if machine.origin == "assumed" and devices.height > 1 else "yes"
    return Evidence(degree, f"{machine.name} ({machine.origin})")


def _pipeline(facts: Facts) -> Evidence:
    if is_pipeline(facts.trace):
        return Evidence("yes", "passes in numbered parts, or sent on")
    passes = facts.trace["ranges"].filter(pl.col("stage").is_not_null()).head(1).collect()
    degree: Degree = "none" if facts.kinds or passes.height else "no"
    return Evidence(degree, "nothing shows that it is a pipeline")


def _operator_sizes(facts: Facts) -> Evidence:
    # Seldom asked for, and read from the names of all ranges.
    from tracekit.analysis.operators import recorded_operators  # noqa: PLC0415

    sizes = recorded_operators(facts.trace)["sizes"]
    return _part(sizes.count(), len(sizes), "sizes of", "operators that multiply")


# -- what there is to measure ------------------------------------------------------------------


@dataclass(frozen=True)
class Requirement:
    """A kind of data that analyses need."""

    measure: Callable[[Facts], Evidence]
    """Function of `Facts` that returns the amount of this data in a run."""
    record: Mapping[str, str]
    """Profiler, such as nsys -> how to record the data with it; ``""`` stands for any profiler."""

    def record_with(self, recorders: list[str]) -> str:
        """Return in words how to record this data, with each of the profilers `recorders`."""
        if "" in self.record:
            return self.record[""]
        ways = [(each, self.record.get(each, f"{each} records none")) for each in recorders]
        if len(ways) == 1:
            return ways[0][1]
        return "; ".join(f"{recorder}: {way}" for recorder, way in ways)


def _by(nsys: str, nvprof: str, pytorch: str, *others: str) -> dict[str, str]:
    return dict(zip(RECORDERS.values(), (nsys, nvprof, pytorch, *others), strict=False))


def _by_nsys(option: str, own: str | None = None) -> dict[str, str]:
    others = f"not recorded by it; use nsys: {option}"
    return _by(own or option, others, others)


_NVPROF = "nvprof -o run.nvvp PROGRAM"
_NVPROF_CALLS = "nvprof --profile-api-trace all -o run.nvvp PROGRAM"
_ACTIVITIES = "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"
_OTHERS = (
    "runTracer.sh -o run.rpd PROGRAM",
    "rocprofv3 --kernel-trace --memory-copy-trace --hip-runtime-trace -f json -- PROGRAM",
    "jax.profiler.trace(FOLDER) around some steps, on a GPU",
)
_WORK = _by("nsys profile -t cuda", _NVPROF, _ACTIVITIES, *_OTHERS)
_CALLED = _by("nsys profile -t cuda", _NVPROF_CALLS, _ACTIVITIES, *_OTHERS)
_MARKERS = ("roctx ranges", "roctx ranges (--marker-trace)", "jax.profiler.TraceAnnotation")
_STRUCTURE = "without ranges, stages are inferred from launches if possible"
_STEPS = "NVTX ranges `step N` around each training step, or --iteration REGEX"
_BY_LOG = "give NCCL's log (NCCL_DEBUG=INFO) with --nccl-log, or --bytes"
_ALLOCATIONS = "nsys profile -t cuda --cuda-memory-usage=true"
_ALL_RANKS = {"": "record all ranks, and make one run of them: tracekit ingest FILE... --run NAME"}
_SHAPES = "torch.autograd.profiler.emit_nvtx(record_shapes=True) around the training loop"
_SAMPLED = (
    "nvidia-smi --query-gpu=timestamp,index,uuid,memory.used --format=csv -l 1 beside the "
    "program, given with --smi, on NVIDIA's GPUs"
)

REQUIREMENTS: Mapping[str, Requirement] = MappingProxyType(
    {
        "ops": Requirement(lambda facts: counted("op", sum(facts.kinds.values())), _WORK),
        "launching calls": Requirement(
            _launches, _CALLED | {"nsys": "nsys profile -t cuda, without trimming the export"}
        ),
        "API calls": Requirement(_rows("calls", "API call"), _CALLED),
        "ranges": Requirement(
            _rows("ranges", "range"),
            _by(
                "nsys profile -t cuda,nvtx, with NVTX ranges in the program",
                f"{_NVPROF}, with NVTX ranges in the program",
                "ProfilerActivity.CPU, and torch.profiler.record_function in the program",
                *(f"{marker} in the program" for marker in _MARKERS),
            ),
        ),
        "stages": Requirement(
            _stages,
            _by(
                f"nsys profile -t cuda,nvtx, or name your ranges: --rules FILE; {_STRUCTURE}",
                f"{_NVPROF}, with NVTX ranges of stages, or name your ranges: --rules FILE; "
                f"{_STRUCTURE}",
                'record_function("forward") and the like around stages, or name yours: '
                f"--rules FILE; {_STRUCTURE}",
                *(f"{marker} around stages; {_STRUCTURE}" for marker in _MARKERS),
            ),
        ),
        "iterations": Requirement(
            _iterations,
            _by(
                _STEPS,
                _STEPS,
                "profiler.step() in each training step, or --iteration REGEX",
                *(f"{marker} around each training step" for marker in _MARKERS[:2]),
                "jax.profiler.StepTraceAnnotation around each training step",
            ),
        ),
        "physical GPUs": Requirement(
            _gpus,
            _by(
                "a report with GPU information: nsys profile on the host that has the GPUs",
                f"a database, which describes GPUs: {_NVPROF}",
                "PyTorch 1.9 or newer, whose traces describe GPUs (deviceProperties)",
            ),
        ),
        "ranks": Requirement(
            partial(_of_processes, column="rank"),
            _by(
                "a report per rank, of a launcher that sets RANK (torchrun, mpirun): "
                "nsys profile -o rank%q{RANK}",
                "a database per rank: nvprof -o rank%q{RANK}.nvvp PROGRAM",
                "a trace per rank, with torch.distributed initialised, or `rank0` in its name",
                "its files name no rank",
                "a database per rank, of a launcher that sets RANK (torchrun, mpirun)",
                "its profiles name no rank",
            ),
        ),
        "nodes": Requirement(
            partial(_of_processes, column="node"),
            _by(
                "an export that was not stripped of TARGET_INFO_SYSTEM_ENV",
                "its databases name no host: record with nsys profile",
                "its traces name no host: record with nsys profile",
            ),
        ),
        "peer copies": Requirement(_peers, _WORK),
        "collectives": Requirement(_collectives, _WORK),
        "message sizes": Requirement(
            _sizes,
            _by(
                "nsys profile -t cuda,nvtx of NCCL 2.16 or later, and nsys export "
                f"--include-blobs=true; or {_BY_LOG}",
                f"nvprof records none: {_BY_LOG}",
                f"PyTorch 2.2 or newer; or {_BY_LOG}",
            ),
        ),
        "participants": Requirement(_participants, _ALL_RANKS),
        "who waits": Requirement(_waits, _ALL_RANKS),
        "machine": Requirement(
            _machine, {"": "give --topology FILE: the output of `nvidia-smi topo -m`, or a preset"}
        ),
        "link counters": Requirement(
            _rows(
                "metrics",
                "sample of NVLink, PCIe or NICs",
                pl.col("metric").cast(pl.String).str.contains("^(nvlink|pcie|nic)_"),
            ),
            _by_nsys("nsys profile --gpu-metrics-devices=all --nic-metrics=true"),
        ),
        "operator sizes": Requirement(
            _operator_sizes,
            _by(
                f"tracekit record --annotate, or {_SHAPES}",
                _SHAPES,
                "torch.profiler.profile(record_shapes=True)",
            ),
        ),
        "pipeline": Requirement(_pipeline, {"": "declare it: --micro-batches, or --schedule"}),
        "memory": Requirement(
            _rows("memory", "memory event"),
            _by(
                f"{_ALLOCATIONS}; or {_SAMPLED}",
                _SAMPLED,
                _SAMPLED,
                "not recorded by it",
                "a database with --memory-allocation-trace",
                "not read from its profiles",
            ),
        ),
        "memory events": Requirement(_rows("memory", "memory event"), _by_nsys(_ALLOCATIONS)),
        "MPI calls": Requirement(
            _rows("host", "call of MPI", pl.col("library") == "mpi"),
            _by_nsys(
                "nsys profile -t cuda,mpi", "nsys profile -t cuda,mpi --mpi-impl=openmpi (or mpich)"
            ),
        ),
        "profiler": Requirement(
            _rows("host", "stretch of profiling", pl.col("library") == "profiler"),
            _by_nsys("nsys profile", "nsys profile, which records its own overhead"),
        ),
    }
)
"""Name of a kind of data -> requirement."""


def how_to_record(trace: Trace, requirement: str) -> str:
    """Return how to record one of `REQUIREMENTS` with the profiler of the run, in words."""
    return REQUIREMENTS[requirement].record_with(Facts(trace).recorders)


def require_ops(trace: Trace) -> None:
    """Raise `MissingDataError` if a run has no GPU work."""
    if not has_ops(trace):
        raise MissingDataError(
            "this run has no GPU work", f"record with {how_to_record(trace, 'ops')}"
        )


def how_to_see_waits(trace: Trace) -> str:
    """Return in words how to record why launched ops waited in the GPU's queue."""
    recorders = Facts(trace).recorders
    if "nsys" in recorders:
        return (
            "record other programs on the GPU (`--gpuctxsw=true`), and waits for events"
            " (`--cuda-event-trace=true`)"
        )
    return f"{' and '.join(recorders)} does not record that; on NVIDIA's GPUs nsys does"


# -- basis of times: GPU work, or ranges on the host -------------------------------------------


HOST = "host, from NVTX ranges: the run has no GPU work"
"""Meta ``basis`` of numbers that are not GPU time."""
_KEYS = ("stage", "iteration", "rank", "node", "range")
"""Keys by which ranges on the host can be grouped."""


def work_of(trace: Trace, keys: Sequence[str] = ("stage",)) -> Work:
    """Return the GPU work of a run, or, if it has none, the NVTX ranges on the host instead.

    Raises
    ------
    MissingDataError
        If the run has neither, or a key needs GPU work.
    """
    if has_ops(trace):
        return Work(trace)
    host = on_host(trace, by_range="range" in keys)
    if not has_ops(host):
        raise MissingDataError(
            f"this run has neither GPU work nor NVTX ranges that are stages{_other_data(trace)}",
            f"run the program on a GPU, and record with {how_to_record(trace, 'ops')}; or name your"
            " ranges with --rules",
        )
    for key in keys:
        if key not in _KEYS:
            raise MissingDataError(
                f"this run has no GPU work, so there is nothing by {key}",
                f"record with {how_to_record(trace, 'ops')}; ranges can be laid out by"
                f" {', '.join(_KEYS)}",
            )
    return Work(host, is_host=True)


def _other_data(trace: Trace) -> str:
    """Return a clause for a recording without GPU work: the three largest kinds of data it has."""
    contents = trace.read("contents").filter(pl.col("rows") > 0).sort("rows", descending=True)
    rows = contents.select("rows", "feature").unique("feature", maintain_order=True).head(3)
    listed = ", ".join(count(number, f"row of {feature}") for number, feature in rows.iter_rows())
    return f", but {listed}" if listed else ""
