"""Write the sample traces, and the true stage of each of their ops.

    python sample_traces/generate.py [FOLDER]

The traces are simulated; the same seed gives the same rows.
"""

from __future__ import annotations

import sys
from pathlib import Path

import closure
import data_parallel
import peer_copies
import star_update


def generate(folder: Path) -> None:
    """Write all traces and their truth into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    data_parallel.write(data_parallel.MARKED, folder, "ddp_4gpu")
    data_parallel.write(data_parallel.UNMARKED, folder, "ddp_4gpu_no_backward_range")
    peer_copies.write(folder, "p2p_2gpu_start_end")
    star_update.write(folder, "p2p_4gpu_star")
    closure.write(folder, "closure_1gpu")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent)
