"""Dumps of the flight recorder as jobs of NCCL write them, made: four ranks, one fault."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

Dump = dict[str, Any]
GROUPS: Mapping[str, list[int]] = {
    "0": [0, 1, 2, 3], "1": [0, 1], "2": [2, 3], "3": [0, 1, 2, 3],
}  # fmt: skip
_DESC = {"0": "default_pg", "1": "tp", "2": "tp", "3": "dp"}
BEGIN = 1_795_447_522_000_000_000


class Rank:
    """A rank that enqueues collectives and writes down that it did."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.entries: list[Dump] = []
        self.sequences = dict.fromkeys(GROUPS, 0)

    def call(
        self,
        group: str,
        name: str,
        inputs: list[list[int]],
        outputs: list[list[int]] | None = None,
        *,
        dtype: str = "Float",
        state: str = "completed",
        line: int = 10,
    ) -> None:
        """Enqueue a collective, or a message (`send 0->1`)."""
        is_message = name.startswith(("send", "recv"))
        if not is_message:
            self.sequences[group] += 1
        number = len(self.entries)
        self.entries.append(
            {
                "record_id": number,
                "pg_id": int(group),
                "process_group": (group, _DESC[group]),
                "collective_seq_id": self.sequences[group],
                "p2p_seq_id": int(is_message),
                "op_id": number + 1,
                "profiling_name": f"nccl:{name}",
                "time_created_ns": BEGIN + number * 1_000,
                "input_sizes": inputs,
                "input_dtypes": [dtype] * len(inputs),
                "output_sizes": inputs if outputs is None else outputs,
                "output_dtypes": [dtype] * len(inputs if outputs is None else outputs),
                "state": state,
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": None,
                "retired": state == "completed",
                "timeout_ms": 600_000,
                "is_p2p": is_message,
                "frames": [
                    {
                        "name": name,
                        "filename": "/x/site-packages/torch/distributed/c10d.py",
                        "line": 1,
                    },
                    {"name": "step", "filename": "/home/user/train/loop.py", "line": line},
                ],
            }
        )

    def step(self, *, last: str = "completed") -> None:
        """Run a step: an all-reduce of all, a broadcast of its tensor group, an all-gather."""
        tensor = "1" if self.rank < 2 else "2"
        self.call("0", "all_reduce", [[1024]], line=11)
        self.call(tensor, "broadcast", [[8, 4]], dtype="Half", line=12)
        self.call("0", "all_gather", [[5]], [[4, 5]], line=13, state=last)

    def dump(self) -> Dump:
        """Return what the recorder writes."""
        return {
            "version": "2.10",
            "pg_config": {
                name: {"name": name, "desc": _DESC[name], "ranks": str(ranks)}
                for name, ranks in GROUPS.items()
                if self.rank in ranks
            },
            "pg_status": {},
            "comm_lib_version": "2.29.7",
            "entries": self.entries,
        }


def job(program: Callable[[Rank], None], ranks: Iterable[int] = range(4)) -> dict[int, Dump]:
    """Return the dumps of ranks that run three whole steps, then a program."""
    made = {}
    for rank in ranks:
        one = Rank(rank)
        for _ in range(3):
            one.step()
        program(one)
        made[rank] = one.dump()
    return made


def write_dumps(dumps: Mapping[int, Dump], folder: Path) -> Path:
    """Write dumps as pickles of protocol 2, as PyTorch does."""
    folder.mkdir()
    for rank, dump in dumps.items():
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return folder


def without_first(dumps: Mapping[int, Dump], rank: int, count: int) -> dict[int, Dump]:
    """Return dumps of which one lost its first entries to its ring."""
    cut = copy.deepcopy(dict(dumps))
    del cut[rank]["entries"][:count]
    return cut
