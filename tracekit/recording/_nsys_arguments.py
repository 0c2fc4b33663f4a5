"""Builds the command line of ``nsys profile`` from the kinds of data to record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tracekit.annotation import WINDOW, copy_hooks, variables
from tracekit.errors import UsageError
from tracekit.recording._nsys import Nsys

CUDA_RANGE = "cuda"
"""The capture range that a program marks by cudaProfilerStart and cudaProfilerStop."""
_TRACES = ("cuda", "nvtx")
_LONG_CALLS_NS = 10_000
"""Least duration of recorded system calls, ns, unless nsys is told otherwise. Calls that occur
hundreds of times per step are shorter; each costs 0.4 us to write and 0.07 us to skip."""


@dataclass(frozen=True)
class Wanted:
    """Kinds of data to record.

    Parameters
    ----------
    traces
        Values for ``--trace``; by default cuda and nvtx, and mpi under its launchers.
    capture_range
        Range outside of which nothing is recorded: ``cuda`` (profiler API), or an NVTX range
        ``name@domain``. None records everything.
    memory_usage
        Whether to record the use of GPU memory.
    gpu_metrics
        GPUs whose counters are sampled, as nsys takes them; ``all`` for all. None for no GPU.
    nic_metrics
        Whether to sample counters of network adapters.
    nccl
        Events of NCCL to record, as ``--nccl-trace`` takes them, such as ``default``; None for
        none.
    graph_nodes
        Whether to record the nodes of CUDA graphs individually.
    cpu_samples
        Whether to sample call stacks on the CPUs.
    mpi
        MPI of the program, ``openmpi`` or ``mpich``; None takes that of the launcher.
    mpi_library
        MPI library to preload, for a program that loads it later than nsys looks for it, as mpi4py
        does; None takes that of the launcher, for Python programs.
    more
        Further arguments for ``nsys profile``.
    annotate
        Depth of layers to annotate in a PyTorch program; None for no annotations.
    why_idle
        Whether to trace long system calls, which show where the host waits.
    windows
        Windows of steps to record in an annotated program, each into its own report: distance
        between their starts, and length, in steps. None records everything.
    ring
        Ring file that keeps the latest ranges of an annotated program, beside the report; or None.
    cuda_events
        Whether to keep stages timed by CUDA events in a second ring file.
    hooks
        Folder to copy the hooks into, for programs that cannot see tracekit's own; or None.
    attachable
        Shared folder through which steps to record are requested at run time; or None.
    """

    traces: tuple[str, ...] = ()
    capture_range: str | None = None
    memory_usage: bool = False
    gpu_metrics: str | None = None
    nic_metrics: bool = False
    nccl: str | None = None
    graph_nodes: bool = False
    cpu_samples: bool = False
    mpi: str | None = None
    more: tuple[str, ...] = ()
    mpi_library: str | None = None
    annotate: int | None = None
    why_idle: bool = False
    windows: tuple[int, int] | None = None
    ring: str | None = None
    cuda_events: bool = False
    hooks: str | None = None
    attachable: str | None = None

    @property
    def has_windows(self) -> bool:
        """True if only windows of steps are recorded."""
        return self.windows is not None or self.attachable is not None

    def hook(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables by which Python programs annotate themselves, if wanted.

        The hooks are copied first if `hooks` names a folder.
        """
        if self.annotate is None:
            return {}
        own = {} if self.hooks is None else {"folder": copy_hooks(self.hooks)}
        return variables(
            self.annotate, environment, self.windows, self.ring, attach=self.attachable,
            cuda_events=self.cuda_events, **own,
        )  # fmt: skip


def profile_command(nsys: Nsys, wanted: Wanted) -> list[str]:
    """Return the nsys command for a recording, without its output file.

    Raises
    ------
    UsageError
        If this nsys cannot record the data in `wanted`.
    """
    arguments = [*_traces(nsys, wanted), *_extras(nsys, wanted)]
    if not wanted.cpu_samples:
        quiet = {"sample": "none", "cpuctxsw": "process-tree" if nsys.sees_switches else "none"}
        arguments += [f"--{name}={value}" for name, value in quiet.items() if name in nsys.options]
    return [nsys.program, "profile", *arguments, *wanted.more]


def _traces(nsys: Nsys, wanted: Wanted) -> Iterator[str]:
    chosen = wanted.traces or (*_TRACES, *(("mpi",) if wanted.mpi else ()))
    if wanted.nccl is not None:
        chosen = (*chosen, "nccl")
    if wanted.why_idle:
        chosen = (*chosen, "osrt")
    if wanted.annotate is not None and "nvtx" not in chosen:
        raise UsageError("annotations are NVTX ranges, which are not traced", "--trace nvtx,...")
    unknown = [each for each in chosen if nsys.traces and each not in nsys.traces]
    if unknown:
        known = ", ".join(sorted(nsys.traces))
        raise UsageError(f"{nsys} cannot trace {unknown[0]!r}", f"it traces {known}")
    yield f"--trace={','.join(dict.fromkeys(chosen))}"
    if wanted.nccl is not None:
        yield f"--{_has(nsys, 'nccl-trace')}={wanted.nccl}"
    if wanted.why_idle and "osrt-threshold" in nsys.options:
        yield f"--osrt-threshold={_LONG_CALLS_NS}"
    if wanted.mpi and "mpi" in chosen:
        yield f"--{_has(nsys, 'mpi-impl')}={wanted.mpi}"


def _extras(nsys: Nsys, wanted: Wanted) -> Iterator[str]:
    if wanted.has_windows:
        yield from _windows(nsys, wanted)
    elif wanted.capture_range is not None:
        yield from _capture_range(nsys, wanted.capture_range)
    if wanted.memory_usage:
        yield f"--{_has(nsys, 'cuda-memory-usage')}=true"
    if wanted.graph_nodes:
        yield f"--{_has(nsys, 'cuda-graph-trace')}=node"
    if wanted.gpu_metrics is not None:
        yield f"--{_has(nsys, 'gpu-metrics-devices', 'gpu-metrics-device')}={wanted.gpu_metrics}"
    if wanted.nic_metrics:
        yield f"--{_has(nsys, 'nic-metrics')}=true"


def _capture_range(nsys: Nsys, capture_range: str) -> Iterator[str]:
    """Yield options that record one range, and do not end the program after it as nsys would."""
    if capture_range == CUDA_RANGE:
        yield f"--{_has(nsys, 'capture-range')}=cudaProfilerApi"
    else:
        yield f"--{_has(nsys, 'capture-range')}=nvtx"
        yield f"--{_has(nsys, 'nvtx-capture')}={capture_range}"
    if "capture-range-end" in nsys.options:
        yield "--capture-range-end=stop"
    elif "stop-on-range-end" in nsys.options:
        yield "--stop-on-range-end=false"


def _windows(nsys: Nsys, wanted: Wanted) -> Iterator[str]:
    """Yield options that record each annotated window into a separate report."""
    if wanted.annotate is None or wanted.capture_range is not None:
        raise UsageError(
            "windows of steps are the capture range, and annotations tell the steps",
            "leave out --capture-range",
        )
    every, length = wanted.windows or (1, 0)
    if wanted.windows is not None and not 0 < length < every:
        raise UsageError(
            f"windows of {length:,} steps do not begin every {every:,} steps",
            "such as --every 1000 --for 3",
        )
    yield f"--{_has(nsys, 'capture-range')}=nvtx"
    yield f"--{_has(nsys, 'nvtx-capture')}={WINDOW}"
    yield f"--{_has(nsys, 'capture-range-end')}=repeat"


def _has(nsys: Nsys, *options: str) -> str:
    found = nsys.first_of(*options)
    if found is None:
        raise UsageError(f"{nsys} has no option --{options[0]}", "use a newer nsys")
    return found


def trace_names(text: str) -> tuple[str, ...]:
    """Return the names in a text such as ``cuda,nvtx``."""
    return tuple(name.strip() for name in text.split(",") if name.strip())
