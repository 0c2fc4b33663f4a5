"""GPUs and programs of this machine."""

from __future__ import annotations

import itertools
import os
import subprocess

_SECONDS = 60
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def gpu_count() -> int:
    """Return the number of GPUs visible to a program; 0 without a driver."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"],  # noqa: S607 - the driver's tool is wherever the path has it
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    present = sum(line.startswith(b"GPU ") for line in done.stdout.splitlines())
    visible = os.environ.get(_VISIBLE)
    if visible is None:
        return present
    entries = (each.strip() for each in visible.split(","))
    # As CUDA does: what comes behind an entry that names no GPU is not seen.
    seen = itertools.takewhile(lambda each: _names_gpu(each, present), entries)
    return min(present, len(set(seen)))


def _names_gpu(entry: str, present: int) -> bool:
    if entry.isdecimal():
        return int(entry) < present
    return entry.startswith(("GPU-", "MIG-"))
