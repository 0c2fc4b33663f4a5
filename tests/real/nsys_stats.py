"""What NVIDIA's own `nsys stats` says about an export.

Run as a program, with traces as arguments, it prints the figures that ``nsys_stats.csv`` holds, so
that these can be checked where nsys is not installed:

    python tests/real/nsys_stats.py TRACE... > tests/real/nsys_stats.csv
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TRACES = (
    "mnist_1xa100_phases",
    "ddp_unet_4xa100_rank0",
    "transformer_rtx3070ti",
    "sendrecv_2xh100_two_processes",
    "jacobi_p2p_nvlink_8xv100",
    "jacobi_p2p_staged_8xv100",
)
"""The traces of which figures are recorded."""
UNANNOUNCED = {"sendrecv_2xh100_two_processes": ["NCCL"]}
"""Domains without an announcement, by trace."""
STYLES = {"push_pop": "PushPop", "start_end": "StartEnd"}
REPORTS = ("cuda_gpu_kern_sum", "cuda_gpu_mem_size_sum", "cuda_gpu_mem_time_sum", "nvtx_sum")
COMMAND = ("nsys", "stats", "--format", "csv", "--force-export=false", "--output", ".")
RECORDED = Path(__file__).with_suffix(".csv")
COLUMNS = ("trace", "of", "name", "count", "total_ns", "megabytes")
NAME_LENGTH = 60
"""How much of a name is recorded."""
LONGEST = 30
"""How many of a trace's ranges are recorded by name."""

Totals = Mapping[str, tuple[int, int]]
"""Count and total length (ns) by name."""


@dataclass(frozen=True)
class Stats:
    """Totals of kernels by name, of copies and memsets by operation, and of ranges by style and
    name; and the size of copies and memsets as printed, in units of 10^6 bytes.
    """

    kernels: Totals
    memory: Totals
    megabytes: Mapping[str, str]
    ranges: Totals


class NsysFailedError(Exception):
    """The installed nsys cannot make these reports of this file."""


def stats(trace: Path) -> Stats:
    """Return the totals of a trace."""
    kernels, sizes, times, ranges = tables(trace, REPORTS)
    return Stats(
        _totals(kernels, "Instances", "Name"),
        _totals(times, "Count", "Operation"),
        {row["Operation"]: row["Total (MB)"] for row in sizes},
        _totals(ranges, "Instances", "Style", "Range"),
    )


def tables(trace: Path, reports: Sequence[str]) -> list[list[dict[str, str]]]:
    """Run `nsys stats` on a copy of `trace`, beside which it may write what it likes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copyfile(trace, folder / "t.sqlite")
        with (folder / "log").open("w") as log:
            done = subprocess.run(
                [*COMMAND, "--report", ",".join(reports), "t.sqlite"],
                cwd=folder, stdout=log, stderr=log, timeout=300, check=False,
            )  # fmt: skip
        paths = [folder / f"t_{report}.csv" for report in reports]
        if done.returncode or not all(path.exists() for path in paths):
            raise NsysFailedError((folder / "log").read_text()[-500:])
        return [_table(path) for path in paths]


def _table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _totals(table: list[dict[str, str]], count: str, *names: str) -> Totals:
    return {
        " ".join(row[name] for name in names): (int(row[count]), int(row["Total Time (ns)"]))
        for row in table
    }


def recorded_rows(found: Stats) -> Iterator[tuple[str, ...]]:
    """Yield what is recorded of a trace, less its name: all columns but the first, as text."""
    for name, (count, length) in sorted(found.kernels.items()):
        yield "kernel", name[:NAME_LENGTH], str(count), str(length), ""
    for name, (count, length) in sorted(found.memory.items()):
        yield "memory", name, str(count), str(length), found.megabytes[name]
    counts, lengths = zip(*found.ranges.values(), strict=True)
    yield "ranges", f"{len(found.ranges)} names", str(sum(counts)), str(sum(lengths)), ""
    longest = sorted(found.ranges.items(), key=lambda item: (-item[1][1], item[0]))
    for name, (count, length) in longest[:LONGEST]:
        yield "range", name[:NAME_LENGTH], str(count), str(length), ""


def recorded(path: Path = RECORDED) -> dict[str, list[tuple[str, ...]]]:
    """Return the recorded rows by trace."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = (line for line in file if not line.startswith("#"))
        rows: dict[str, list[tuple[str, ...]]] = {}
        for trace, *row in list(csv.reader(lines))[1:]:
            rows.setdefault(trace, []).append(tuple(row))
    return rows


def record(
    reports: Sequence[str],
    columns: Sequence[str],
    rows_of: Callable[[Path], Iterator[tuple[str, ...]]],
) -> None:
    """Print what is recorded of the traces that the command line names."""
    version = subprocess.run(["nsys", "--version"], capture_output=True, text=True, check=True)
    command = f"{' '.join(COMMAND)} --report {','.join(reports)}"
    sys.stdout.write(f"# {version.stdout.strip()}\n# {command} TRACE\n")
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    for trace in map(Path, sys.argv[1:]):
        writer.writerows((trace.stem, *row) for row in rows_of(trace))


if __name__ == "__main__":
    record(REPORTS, COLUMNS, lambda trace: recorded_rows(stats(trace)))
