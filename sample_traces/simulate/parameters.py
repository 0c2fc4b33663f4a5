"""What the simulator assumes: numbers, each with its unit and source in ``parameters.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("parameters.toml")


@dataclass(frozen=True)
class Parameters:
    """The assumptions; what each one means, and whence, is in ``parameters.toml``."""

    peak_flops: int
    compute_efficiency: float
    half_flops: int
    memory_bandwidth: int
    memory_efficiency: float
    half_bytes: int
    kernel_floor_ns: int
    stream_gap_ns: int
    event_gap_ns: int
    launch_call_ns: int
    driver_lock_share: float
    interpreter_lock_share: float
    launch_latency_ns: int
    queue_capacity: int
    operator_ns: int
    event_call_ns: int
    sync_return_ns: int
    wake_ns: int
    range_ns: int
    between_steps_ns: int
    start_ns: int
    first_step_factor: float
    allocate_ns: int
    free_ns: int
    nvlink_copy_efficiency: float
    nvlink_kernel_efficiency: float
    pcie_efficiency: float
    socket_bandwidth: int
    pageable_bandwidth: int
    copy_start_ns: int
    copy_streams: int
    collective_call_ns: int
    collective_start_ns: int
    collective_hop_ns: int
    collective_keys: int
    bucket_bytes: int
    decode_ns_per_element: float
    loader_workers: int
    loader_prefetch: int
    loader_start_ns: int
    loader_jitter: float
    loader_contention: float
    kernel_jitter: float
    host_jitter: float
    memory_workspace: int


@cache
def described() -> dict[str, dict[str, Any]]:
    """Return value, unit and source of each parameter, and of some the range."""
    with FILE.open("rb") as file:
        return tomllib.load(file)


def load_parameters(**changes: float) -> Parameters:
    """Return the parameters, some of them changed by name."""
    values = {name: entry["value"] for name, entry in described().items()}
    unknown = set(changes) - {field.name for field in fields(Parameters)}
    if unknown:
        raise ValueError(f"no such parameter: {', '.join(sorted(unknown))}")
    return Parameters(**(values | changes))  # type: ignore[arg-type]


def kernel_ns(flops: float, size: float, parameters: Parameters) -> int:
    """Return how long a kernel takes alone, by the roofline with an efficiency of its size.

    Doing `x` of work at an efficiency ``e * x / (x + half)`` of a peak takes ``(x + half) /
    (e * peak)``: a time for the work, and a constant one for filling and draining the GPU.
    """
    p = parameters
    compute = (flops + p.half_flops) / (p.compute_efficiency * p.peak_flops) if flops else 0.0
    memory = (size + p.half_bytes) / (p.memory_efficiency * p.memory_bandwidth) if size else 0.0
    return max(p.kernel_floor_ns, round(max(compute, memory) * 1e9))
