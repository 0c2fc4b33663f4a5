"""What NVIDIA's own `nsys stats` says about the GPU's time of NVTX ranges.

Run as a program, with traces as arguments, it prints the figures that ``nsys_projections.csv``
holds:

    python tests/real/nsys_projections.py TRACE... > tests/real/nsys_projections.csv
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nsys_stats import NAME_LENGTH, record, tables

REPORTS = ("nvtx_gpu_proj_sum", "nvtx_kern_sum")
RECORDED = Path(__file__).with_suffix(".csv")
COLUMNS = ("trace", "of", "name", "ranges", "host_ns", "gpu_ns", "ops")
LONGEST = 25
"""How many of a trace's ranges are recorded by name."""
_KERNEL = ("NVTX Inst", "Kern Inst", "Total Time (ns)", "Min (ns)", "Max (ns)")
_SUMS = ("Range Instances", "Total Range Time (ns)", "Total Proj Time (ns)", "Total GPU Ops")

Thread = tuple[str, str, str]
"""Style and name of a range, process id and thread id."""
Kernel = tuple[str, str]
Statistics = tuple[int, int, int, int, int]
"""How many ranges hold a kernel, how often, its total time, and the least and most of one."""


@dataclass(frozen=True)
class Projections:
    """What ranges hold, by style and name: how many of them launched something, how long these took
    on the host, from the first to the last of what they launched, and how many ops that is. And of
    the kernels alone, by thread too, how many and how long; likewise of those in no range.
    """

    ranges: Mapping[str, tuple[int, int, int, int]]
    kernels: Mapping[Thread, tuple[int, int]]
    outside: tuple[int, int]
    by_kernel: Mapping[Kernel, Statistics] = field(default_factory=dict)
    """By style and name of a range, and name of a kernel."""


def projections(trace: Path) -> Projections:
    """Run `nsys stats` on a trace."""
    ranges, kernels = tables(trace, REPORTS)
    sums: dict[Thread, list[int]] = defaultdict(lambda: [0, 0])
    for row in kernels:
        key = (
            (_named(row, "NVTX Range"), row["PID"], row["TID"]) if row["NVTX Range"] else ("",) * 3
        )
        for place, column in enumerate(("Kern Inst", "Total Time (ns)")):
            sums[key][place] += int(row[column])
    return Projections(
        {_named(row, "Range"): tuple(int(row[name]) for name in _SUMS) for row in ranges},  # type: ignore[misc]
        {key: (count, ns) for key, (count, ns) in sums.items() if key[0]},
        tuple(sums[("",) * 3]),  # type: ignore[arg-type]
        together(
            ((_named(row, "NVTX Range"), row["Kernel Name"]), *(int(row[name]) for name in _KERNEL))
            for row in kernels
            if row["NVTX Range"]
        ),
    )


def together(rows: Iterable[tuple[Kernel, int, int, int, int, int]]) -> dict[Kernel, Statistics]:
    """Put the rows of one range and kernel together, as of several threads."""
    found: dict[Kernel, Statistics] = {}
    for key, ranges, count, total, least, most in rows:
        before = found.get(key, (0, 0, 0, least, most))
        found[key] = (
            before[0] + ranges, before[1] + count, before[2] + total,
            min(before[3], least), max(before[4], most),
        )  # fmt: skip
    return found


def _named(row: dict[str, str], column: str) -> str:
    # Later versions print a colon before the names of the default domain.
    return f"{row['Style']} {row[column].removeprefix(':')}"


def recorded_rows(found: Projections) -> Iterator[tuple[str, ...]]:
    """Yield what is recorded of a trace, less its name: all columns but the first, as text."""
    sums = [sum(values) for values in zip(*found.ranges.values(), strict=True)]
    yield "ranges", f"{len(found.ranges)} names", *map(str, sums)
    longest = sorted(found.ranges.items(), key=lambda item: (-item[1][2], item[0]))
    for name, values in longest[:LONGEST]:
        yield "range", name[:NAME_LENGTH], *map(str, values)
    count, length = (sum(values) for values in zip(*found.kernels.values(), strict=True))
    yield "kernels", f"{len(found.kernels)} names", "", "", str(length), str(count)
    yield "kernels", "in no range", "", "", str(found.outside[1]), str(found.outside[0])


if __name__ == "__main__":
    record(REPORTS, COLUMNS, lambda trace: recorded_rows(projections(trace)))
