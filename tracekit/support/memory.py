"""Estimate the memory that an analysis needs, and refuse it if the machine has less."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from tracekit.errors import UsageError

MIB = 1 << 20
_START = 300 * MIB
"""Bytes that a process takes before it reads any row: Python, polars and compiled loops."""


SOME_STEPS = "choose some steps with --iterations 10:20"
"""Hint for a refused question that can be limited to steps."""
MOST_ROWS = 1_000_000
"""Number of ops, calls or ranges up to which an export of some steps looks at the whole run."""
_READ_AHEAD = ("POLARS_ROW_GROUP_PREFETCH_SIZE", "POLARS_MAX_CONCURRENT_SCANS")
"""Environment variables for the numbers of row groups and files that polars reads at once."""
_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
"""Names of these settings in glibc's ``malloc.h``."""
_ARENAS, _LARGE = 4, 1 << 19


@dataclass(frozen=True)
class _Need:
    """Memory that an analysis needs per row of the run's largest table (ops, calls or ranges)."""

    row_bytes: int
    """Bytes per row that the analysis reads."""
    beside_bytes: int | None = None
    """Bytes per row outside of the steps in ``--iterations``; None if the analysis cannot be
    limited to steps."""
    most_beside: int | None = None
    """Number of rows of a run above which rows outside of the steps in ``--iterations`` are not
    read."""
    merged_bytes: int | None = None
    """Bytes per row of the whole run, for an analysis that adds up parts of it one by one; then
    `row_bytes` applies to the largest part."""


NEEDS = {
    "breakdown": _Need(30),
    "breakdown inclusive": _Need(200),
    "idle": _Need(850, merged_bytes=30),
    "diagnose": _Need(2_400, merged_bytes=60),
    "stragglers": _Need(1_450, merged_bytes=100),
    "critical-path": _Need(650, beside_bytes=0),
    "whatif": _Need(1_200, beside_bytes=0),
    "flops": _Need(1_700),
    "roofline": _Need(1_700),
    "links": _Need(30),
    "collectives": _Need(30),
    "latency": _Need(30),
    "info": _Need(60),
    "compare": _Need(400),
    "compare by kernel": _Need(650),
    "stalls": _Need(850),
    "bubbles": _Need(430),
    "study": _Need(30),
    "scaling": _Need(30),
    "overhead": _Need(30),
    "overhead api": _Need(230),
    "memory": _Need(220),
    "report": _Need(2_500),
    "export": _Need(2_000, beside_bytes=1_150, most_beside=MOST_ROWS),
    "attribution": _Need(650),
}
"""By command: what covers every peak that docs/evidence/performance.md#memory-of-questions lists.

Operators whose sizes were recorded, one for each kernel, take most of `flops` and `roofline`, and
400 bytes of `diagnose`; that page's runs have none. What finds gaps, `idle` and all that asks it,
takes most where a gap follows each op. `attribution` is that of a run which is opened with other
rules; the rows of `memory` are allocations and releases."""


_ALLOWED: ContextVar[int | None] = ContextVar("allowed", default=None)


@contextmanager
def allowing(size: int | None) -> Iterator[None]:
    """Limit the memory of analyses to `size` bytes, for runs that were opened without a limit.

    None stands for the free memory. The limit holds within this context.
    """
    token = _ALLOWED.set(size)
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def allowed() -> int | None:
    """Return the limit of memory that `allowing` set, bytes; None for the free memory."""
    return _ALLOWED.get()


def is_in_parts(question: str) -> bool:
    """Test whether an analysis processes a run in parts, and then adds up the results."""
    return NEEDS[question].merged_bytes is not None


def require(
    question: str,
    rows: int,
    most: int | None = None,
    share: float = 1,
    largest: int | None = None,
) -> None:
    """Raise `UsageError` if an analysis of `rows` rows needs more memory than allowed.

    Parameters
    ----------
    question
        Name of the analysis, a key of `NEEDS`.
    rows
        Number of ops, calls or ranges of the run, whichever is largest.
    most
        Limit in bytes; by default that of `allowing`, else the free memory.
    share
        Share of the rows that are in the steps that the analysis is limited to.
    largest
        Number of rows in the parts of the run processed at the same time; by default all.
    """
    need = NEEDS[question]
    looked_at = rows if need.beside_bytes is None else int(share * rows)
    beside = (need.beside_bytes or 0) * min(rows - looked_at, need.most_beside or rows)
    if largest is not None:
        looked_at, beside = largest, (need.merged_bytes or 0) * rows
    wanted = _START + need.row_bytes * looked_at + beside
    most = allowed() if most is None else most
    limit = free() if most is None else most
    if wanted <= limit:
        return
    is_there = "are free" if most is None else "are allowed"
    more = f"allow more with --memory {-(-wanted // MIB)}MiB"
    raise UsageError(
        f"{question} of {looked_at:,} rows takes about {_size(wanted)} of memory, and"
        f" {_size(limit)} {is_there}",
        more if need.beside_bytes is None else f"{SOME_STEPS}, or {more}",
    )


def _size(size: int) -> str:
    return f"{size / MIB:,.0f} MiB" if size < 10 << 30 else f"{size / (1 << 30):,.0f} GiB"


def free(root: Path = Path("/")) -> int:
    """Return the bytes that this process may still use, by machine and cgroups.

    If the system does not report them, it is `sys.maxsize`.
    """
    return min([sys.maxsize, *_of_machine(root), *_of_cgroups(root)])


def _of_machine(root: Path) -> Iterator[int]:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _of_cgroups(root: Path) -> Iterator[int]:
    """Yield the free bytes of this process's cgroups (version 1 or 2) and of their parents."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            names, mount = ("memory.max", "memory.current", "inactive_file"), "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            mount = "sys/fs/cgroup/memory"
        else:
            continue
        # In a container the path may be that on the host, and the group is the mount itself.
        cgroup = Path(path.strip().lstrip("/"))
        for folder in (cgroup, *cgroup.parents):
            yield from _left(root / mount / folder, *names)


def _left(folder: Path, limit: str, used: str, reclaimable: str) -> Iterator[int]:
    """Yield the memory that a cgroup may still use, bytes; its page cache counts as free.

    `folder` is the cgroup's; the others are names of files in it.
    """
    most, taken = (_number(folder / name) for name in (limit, used))
    if most is not None and taken is not None:
        cached = next(
            (int(line.split()[1]) for line in _lines(folder / "memory.stat")
             if line.startswith(f"{reclaimable} ")), 0,
        )  # fmt: skip
        yield max(most - taken + cached, 0)


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def keep_small() -> None:
    """Reduce memory: make polars read ahead less, and glibc return freed memory sooner.

    By default polars decodes several row groups per processor ahead, which takes half of the peak
    memory of the interactive view. Each thread's glibc arena keeps freed memory: a fifth of the
    peak with 16 million kernels. Returning this memory takes a quarter more processor time.
    """
    os.environ.update(dict.fromkeys(_READ_AHEAD, "1") | os.environ)
    if sys.platform != "linux":
        return
    settings = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if settings is not None:
        settings(_ARENA_MAX, _ARENAS)
        settings(_MMAP_THRESHOLD, _LARGE)
