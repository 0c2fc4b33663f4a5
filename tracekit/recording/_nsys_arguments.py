"""Builds the command line of ``nsys profile`` from the kinds of data to record."""

from __future__ import annotations

from collections.abc import Iterator

from tracekit.annotation import WINDOW
from tracekit.errors import UsageError
from tracekit.recording._nsys import Nsys
from tracekit.recording._wanted import Wanted

CUDA_RANGE = "cuda"
"""The capture range that a program marks by cudaProfilerStart and cudaProfilerStop."""
_TRACES = ("cuda", "nvtx")
_LONG_CALLS_NS = 10_000
"""Least duration of recorded system calls, ns, by default. Calls that occur
hundreds of times per step are shorter; each costs 0.4 us to write and 0.07 us to skip."""


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
    return [nsys.program, "profile", *arguments, *(wanted.more or ())]


def _traces(nsys: Nsys, wanted: Wanted) -> Iterator[str]:
    chosen = wanted.traces or (*_TRACES, *(("mpi",) if wanted.mpi else ()))
    if wanted.nccl is not None:
        chosen = (*chosen, "nccl")
    if wanted.why_idle:
        chosen = (*chosen, "osrt")
    if wanted.is_annotated and "nvtx" not in chosen:
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
    """Yield options to record one range, and let the program go on after it."""
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
    if wanted.capture_range is not None:
        raise UsageError(
            "windows of steps are the capture range, and annotations mark the steps",
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
