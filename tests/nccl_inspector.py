"""Logs as NCCL's inspector writes them, in its formats 4.0, 4.2 and 4.3."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FACTORS = {"AllReduce": lambda n: 2 * (n - 1) / n, "AllGather": lambda n: (n - 1) / n,
           "ReduceScatter": lambda n: (n - 1) / n, "Broadcast": lambda _: 1.0,
           "Reduce": lambda _: 1.0, "Send": lambda _: 1.0, "Recv": lambda _: 1.0}  # fmt: skip
"""Bus bandwidth over algorithm bandwidth; NCCL gives no other collective any."""


@dataclass(frozen=True)
class Call:
    """A collective of a rank, or a message where `peer` is given."""

    rank: int
    sequence: int
    us: float
    coll: str = "AllReduce"
    size: int = 1 << 20
    ranks: int = 2
    communicator: str = "0xaa"
    name: str | None = None
    peer: int | None = None
    start: int | None = None
    host: str = "node0"
    timing: str | None = "kernel_gpu"
    algo: str | None = None


def bandwidths(call: Call) -> tuple[float, float]:
    """Return algorithm and bus bandwidth as the inspector works them out, GB/s."""
    if call.coll not in FACTORS or not call.us:
        return 0.0, 0.0
    parts = call.ranks if call.coll in ("AllGather", "ReduceScatter") else 1
    algorithm = call.size * parts / 1e9 / (call.us / 1e6)
    return algorithm, algorithm * FACTORS[call.coll](call.ranks)


def record(call: Call) -> dict[str, Any]:
    """Return the record of a call, without its communicator."""
    kind = "coll" if call.peer is None else "p2p"
    algorithm, bus = bandwidths(call)
    own: dict[str, Any] = {kind: call.coll}
    if call.algo is not None:
        own |= {f"{kind}_algo": call.algo, f"{kind}_proto": "SIMPLE"}
    own |= {f"{kind}_sn": call.sequence}
    if call.peer is not None:
        own |= {"p2p_peer": call.peer}
    own |= {f"{kind}_msg_size_bytes": call.size, f"{kind}_exec_time_us": call.us}
    if call.timing is not None:
        own |= {f"{kind}_timing_source": call.timing}
    own |= {f"{kind}_algobw_gbs": round(algorithm, 6), f"{kind}_busbw_gbs": round(bus, 6)}
    if call.start is not None:
        # Two channels; the second begins later and ends earlier.
        span = {"kernel_start_ts": call.start, "kernel_stop_ts": call.start + int(call.us)}
        inner = {"kernel_start_ts": call.start + 1, "kernel_stop_ts": call.start + 2}
        own["event_trace_ts"] = {
            f"{kind}_start_ts": call.start - 50,
            f"{kind}_stop_ts": call.start - 45,
            "kernel_events": [{"channel_id": 0, **span}, {"channel_id": 1, **inner}],
        }
    return {f"{kind}_perf": own}


def context(call: Call, version: str) -> dict[str, Any]:
    """Return the communicator and process of a call."""
    header: dict[str, Any] = {"id": call.communicator}
    if version != "v4.0":
        header["comm_name"] = call.name or "unknown"
    header |= {"rank": call.rank, "n_ranks": call.ranks, "nnodes": 1}
    meta = {
        "inspector_output_format_version": version, "git_rev": "", "rec_mechanism":
        "nccl_profiler_interface", "dump_timestamp_us": 1752867229276385, "hostname": call.host,
        "pid": 100 + call.rank,
    }  # fmt: skip
    return {"header": header, "metadata": meta}


def lines(
    calls: Sequence[Call],
    version: str = "v4.0",
    dropped: Mapping[tuple[str, int], int] | None = None,
) -> list[str]:
    """Return the lines of one rank's log; since 4.2 the calls of a communicator are one batch."""
    if version == "v4.0":
        return [json.dumps({**context(call, version), **record(call)}) for call in calls]
    batches: dict[str, list[Call]] = {}
    for call in calls:
        batches.setdefault(call.communicator, []).append(call)
    found = []
    for communicator, batch in batches.items():
        messages = sum(call.peer is not None for call in batch)
        stats = {
            "coll_records": len(batch) - messages,
            "coll_dropped_total": (dropped or {}).get((communicator, batch[0].rank), 0),
            "p2p_records": messages,
        }
        found.append(json.dumps({**context(batch[0], version), "dump_stats": stats}))
        for call in sorted(batch, key=lambda call: call.peer is not None):
            around = context(call, version) if version == "v4.2" else {}
            found.append(json.dumps({**around, **record(call)}))
    return found


def write_logs(
    folder: Path,
    calls: Iterable[Call],
    version: str = "v4.0",
    dropped: Mapping[tuple[str, int], int] | None = None,
) -> list[Path]:
    """Write a log for each rank."""
    ranks: dict[tuple[str, int], list[Call]] = {}
    for call in calls:
        ranks.setdefault((call.host, call.rank), []).append(call)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for (host, rank), own in ranks.items():
        path = folder / f"{host}-pid{100 + rank}.log"
        path.write_text("".join(f"{line}\n" for line in lines(own, version, dropped)))
        paths.append(path)
    return paths


def sample() -> list[Call]:
    """Return the calls of `sample_traces/nccl_inspector`: rank 2 is late, rank 3 lost a record."""
    return [
        Call(
            rank, number, us - (60 + 5 * number) * (rank == 2) + (rank * number) % 4, coll, size,
            4, "0x7c1f2a90d4e3b", "dp", algo="RING",
        )
        for number in range(1, 6)
        for coll, size, us in (("AllReduce", 1 << 24, 412), ("ReduceScatter", 1 << 20, 130))
        for rank in range(4)
        if (coll, number, rank) != ("AllReduce", 3, 3)
    ]  # fmt: skip
