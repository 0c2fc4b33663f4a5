"""Recorded for `tracekit hang`: four ranks on gloo, of which one leaves before the last all-reduce.

    python sample_traces/hang.py FOLDER

Each rank writes what PyTorch's flight recorder holds, as it does when a collective times out.
Frames of libraries keep no folder of the machine that they were recorded on.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch._C import _distributed_c10d

RANKS = 4
LEAVES = 3
PATIENCE = timedelta(seconds=20)


def train(rank: int, folder: Path) -> None:
    """Run three steps, then an all-reduce to which one rank does not come."""
    store = dist.FileStore(str(folder / "rendezvous"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=PATIENCE)
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    for _ in range(3):
        dist.all_reduce(torch.ones(1024))
        dist.broadcast(torch.ones(8, 4), src=rank // 2 * 2, group=pairs[rank // 2])
    dist.barrier()
    if rank != LEAVES:
        threading.Thread(target=reduce_gradients, daemon=True).start()
    store.set(f"enqueued {rank}", "1")
    store.wait([f"enqueued {other}" for other in range(RANKS)], PATIENCE)
    write_dump(folder / f"gloo_trace_rank_{rank}")
    store.set(f"written {rank}", "1")
    store.wait([f"written {other}" for other in range(RANKS)], PATIENCE)
    os._exit(0)  # gloo would wait for the rank that left


def reduce_gradients() -> None:
    """Wait for all ranks, as a backward pass does."""
    dist.all_reduce(torch.ones(4096))


def write_dump(path: Path) -> None:
    """Write what the flight recorder of this process holds, once the last collective is in it."""
    dump: dict[str, Any] = {"entries": []}
    wanted = 7 if path.name.endswith(str(LEAVES)) else 8
    while len(dump["entries"]) < wanted:
        dump = pickle.loads(_distributed_c10d._dump_fr_trace())  # noqa: SLF001 - it has no other name
    for entry in dump["entries"]:
        for frame in entry["frames"]:
            frame["filename"] = without_machine(frame["filename"])
    path.write_bytes(pickle.dumps(dump, protocol=2))


def without_machine(file: str) -> str:
    """Return a path without the folders that say where it was recorded."""
    for part in ("site-packages/", "lib/python"):
        _, found, after = file.partition(part)
        if found:
            return f"/usr/lib/{part}{after}" if part != "lib/python" else f"/usr/{part}{after}"
    return f"/home/user/train/{Path(file).name}"


def main() -> None:
    """Start the ranks, and wait for them."""
    folder = Path(sys.argv[1])
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    mp.spawn(train, args=(folder,), nprocs=RANKS)
    (folder / "rendezvous").unlink()


if __name__ == "__main__":
    main()
