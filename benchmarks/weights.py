"""What mechanisms that weigh something win on an ingest: each left out, beside as it is.

    python benchmarks/weights.py EXPORT --rounds 3

EXPORT is an export as of `generate_export.py`. A mechanism that wins less than a tenth is not worth
its lines. Rounds take turns, so that a machine that is busy for a while is so for all; times are
those of processors, of the process and its children.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

_RUN = (
    "from tracekit.cli import main; import sys; sys.argv[1:] = ['ingest', {export!r}, '--store', "
    "{store!r}]; main()"
)
WITHOUT = {
    "as it is": "",
    "polars writes Parquet": "from tracekit.support import parquet; "
    "parquet.can_write = lambda frame: False; ",
    "Numba loads its own loops": "from tracekit.support import native; "
    "native._LINKS_HERE = False; ",
}


def measured(export: Path, change: str) -> tuple[float, float, int]:
    """Return what an ingest takes: seconds of processors, seconds, and bytes of the store."""
    with tempfile.TemporaryDirectory() as folder:
        code = change + _RUN.format(export=str(export), store=folder)
        before = os.times()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
        after = os.times()
        if done.returncode:
            sys.exit(done.stderr.decode())
        size = sum(path.stat().st_size for path in Path(folder).rglob("*.parquet"))
    cpu = sum(after[2:4]) - sum(before[2:4])
    return cpu, after.elapsed - before.elapsed, size


def main() -> int:
    """Run the command line of this script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("export", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    measured(given.export, "")  # which compiles what is not compiled yet
    taken: dict[str, list[tuple[float, float, int]]] = {name: [] for name in WITHOUT}
    for _ in range(given.rounds):
        for name, change in WITHOUT.items():
            taken[name].append(measured(given.export, change))
    base = statistics.median(cpu for cpu, *_ in taken["as it is"])
    for name, rounds in taken.items():
        cpu, wall, size = (statistics.median(values) for values in zip(*rounds, strict=True))
        print(f"{name:28} {cpu:6.2f} s CPU ({cpu / base - 1:+.0%}) {wall:6.2f} s {size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
