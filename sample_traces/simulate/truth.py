"""What is true of a simulated trace, by the simulator's own books.

Nothing here is read from the trace, nor from ranges or names: stages, steps, routes and causes are
what the simulator had in hand when it made each op. Times are whole nanoseconds.
"""

from __future__ import annotations

import gzip
import itertools
import json
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from . import causes, intervals
from .collectives import Collective
from .parameters import described

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from .causes import Cause
    from .gpu import Op
    from .host import Thread
    from .intervals import Interval
    from .job import Job
    from .machine import Route
    from .world import World

PRECEDENCE = ({"FP", "BP"}, {"WU"}, {"IO"}, {"ME"}, {"OTHER"})
"""Which stages hide which: a piece of time belongs to the first of these that is busy in it."""

Windows = dict[tuple[int, int], "Interval"]
"""The time of each device and step."""


def step_windows(ops: Iterable[Op]) -> Windows:
    """Return each step's time on each device, as docs/breakdown.md defines it.

    A step begins on a device with its first op there that is no input, or with an input copy that
    the thread of its forward pass launches, once all work of earlier steps has ended; other input
    is copied ahead. The first one begins with the first op there. It ends where the next step
    begins; the last one with the last op that was launched in it, on any device.
    """
    begins: dict[tuple[int, int], int] = {}
    ends: dict[int, int] = {}
    work_ends: dict[tuple[int, int], int] = {}
    first: dict[int, tuple[int, int]] = {}
    drivers: dict[tuple[int, int], Thread] = {}
    known = [op for op in ops if op.purpose.step is not None]
    for op in known:
        device, step = key = op.stream.device, op.purpose.step
        ends[step] = max(ends.get(step, 0), op.end)
        first[device] = min(first.get(device, (op.start, step)), (op.start, step))
        if op.purpose.stage == "FP":
            drivers.setdefault(key, op.call.thread)
        if op.purpose.stage != "IO":
            begins[key] = min(begins.get(key, op.start), op.start)
            work_ends[key] = max(work_ends.get(key, 0), op.end)
    for op in known:
        device, step = key = op.stream.device, op.purpose.step
        before = [end for (on, of), end in work_ends.items() if on == device and of < step]
        is_own = op.purpose.stage == "IO" and op.call.thread is drivers.get(key)
        if is_own and op.start >= max(before, default=0):
            begins[key] = min(begins[key], op.start)
    for device, (start, step) in first.items():
        begins[device, step] = start
    return {
        (device, step): (start, begins.get((device, step + 1), ends[step]))
        for (device, step), start in sorted(begins.items())
    }


def stage_times(ops: Sequence[Op], windows: Windows) -> Iterator[dict[str, Any]]:
    """Yield busy, exposed and hidden time of each stage in each window."""
    for (device, step), window in windows.items():
        by_stage: dict[str, list[Interval]] = {}
        for op in ops:
            if op.stream.device == device and op.start < window[1] and op.end > window[0]:
                by_stage.setdefault(op.purpose.stage, []).append((op.start, op.end))
        busy, exposed = dict.fromkeys(by_stage, 0), dict.fromkeys(by_stage, 0)
        for stages, ns in intervals.sweep(by_stage, window):
            for stage in stages:
                busy[stage] += ns
                exposed[stage] += ns * is_exposed(stage, stages)
        for stage in sorted(by_stage):
            yield {
                "device": device, "step": step, "stage": stage, "busy_ns": busy[stage],
                "exposed_ns": exposed[stage], "hidden_ns": busy[stage] - exposed[stage],
            }  # fmt: skip


def is_exposed(stage: str, busy: set[str]) -> bool:
    """Whether no stage of higher precedence is busy too.

    FP and BP are of one rank. Where both are busy the time counts as FP, so that sums hold.
    """
    if stage == "BP" and "FP" in busy:
        return False
    before = [higher for higher in PRECEDENCE if stage not in higher]
    rank = next(number for number, stages in enumerate(PRECEDENCE) if stage in stages)
    return not any(higher & busy for higher in before[:rank])


def idle_gaps(ops: Sequence[Op], windows: Windows) -> Iterator[tuple[int, int, list[Cause]]]:
    """Yield device, step and the causes of each stretch of time in which nothing runs."""
    for device in sorted({device for device, _ in windows}):
        own = sorted(
            (op for op in ops if op.stream.device == device), key=lambda op: op.start
        )  # fmt: skip
        starts = [op.start for op in own]
        busy = intervals.union((op.start, op.end) for op in own)
        for step, window in ((step, each) for (on, step), each in windows.items() if on == device):
            for gap in intervals.gaps(busy, window):
                # What ends a gap is the next op, also where the step is over before.
                number = bisect_left(starts, gap[1])
                yield device, step, causes.explain(gap, own[number] if number < len(own) else None)


def step_times(ops: Iterable[Op]) -> list[int]:
    """Return how long each step takes: from its begin on any GPU to the next one's."""
    windows = step_windows(ops)
    begins: dict[int, int] = {}
    for (_, step), (start, _) in windows.items():
        begins[step] = min(begins.get(step, start), start)
    end = max(end for _, end in windows.values())
    moments = [*(begins[step] for step in sorted(begins)), end]
    return [after - before for before, after in itertools.pairwise(moments)]


def link_totals(world: World) -> list[dict[str, Any]]:
    """Return what each direction of each link carried: bytes, movements and time.

    ``moving_ns`` is the time in which bytes crossed it; ``copying_ns`` that of the copies over it,
    each from its start to its end, which is all that a trace can tell of them.
    """
    copies: dict[str, list[Interval]] = {}
    for op in world.books.ops:
        for way in op.route:
            copies.setdefault(way, []).append((op.start, op.end))
    return [
        {"link": way, "bytes": carried.size, "movements": len(carried.intervals),
         "moving_ns": intervals.length(carried.intervals),
         "copying_ns": intervals.length(copies.get(way, []))}
        for way, carried in sorted(world.links.traffic.items())
    ]  # fmt: skip


def memory_peaks(world: World) -> list[dict[str, int]]:
    """Return the most bytes that were allocated on each GPU at a time."""
    held: dict[int, int] = {}
    peak: dict[int, int] = {}
    for each in world.books.memory:
        held[each.device] = held.get(each.device, 0) + (-each.size if each.frees else each.size)
        peak[each.device] = max(peak.get(each.device, 0), held[each.device])
    return [{"device": device, "peak_bytes": size} for device, size in sorted(peak.items())]


def truth(
    world: World, what_if: Mapping[str, Job], times: Mapping[str, list[int]]
) -> dict[str, Any]:
    """Return everything that is known about a simulated job."""
    ops = world.books.ops
    windows = step_windows(ops)
    gaps = list(idle_gaps(ops, windows))
    return {
        "simulated": "no GPU was involved: this is what the simulator says of its own trace",
        "job": world.job.described(),
        "assumptions": {name: each["value"] for name, each in described().items()}
        | dict(world.job.parameters),
        "epoch": {
            "images": world.job.images,
            "steps": world.job.epoch_steps,
            "before_ns": min(start for start, _ in windows.values()),
        },
        "step_ns": step_times(ops),
        "what_if": [
            {"change": name, "job": _changes(world.job, job), "step_ns": times[name]}
            for name, job in what_if.items()
        ],
        "windows": _columns(
            {"device": device, "step": step, "start": start, "end": end}
            for (device, step), (start, end) in windows.items()
        ),
        "stages": _columns(stage_times(ops, windows)),
        "idle": _columns(_idle_sums(gaps)),
        "gaps": _columns(
            {"gap": number, "device": device, "step": step, **_gap_row(each)}
            for number, (device, step, found) in enumerate(gaps)
            for each in found
        ),
        "links": _columns(link_totals(world)),
        "memory": _columns(memory_peaks(world)),
        **_ops(ops),
    }


def _changes(job: Job, changed: Job) -> dict[str, Any]:
    own = job.described()
    return {name: value for name, value in changed.described().items() if own[name] != value}


def _idle_sums(gaps: Iterable[tuple[int, int, list[Cause]]]) -> Iterator[dict[str, Any]]:
    sums: dict[tuple[int, int, str], int] = {}
    for device, step, found in gaps:
        for each in found:
            key = (device, step, each.cause)
            sums[key] = sums.get(key, 0) + each.end - each.start
    for (device, step, cause), ns in sorted(sums.items()):
        yield {"device": device, "step": step, "cause": cause, "ns": ns}


def _gap_row(each: Cause) -> dict[str, Any]:
    """Describe a stretch of a gap.

    `pid` and `blocked` find the op that ends it, `by_pid` and `by` the op that held that one or was
    waited for by a call, `tid` the thread whose doing is told: the one that launches, or one that
    it waited for.
    """
    blocked, by = each.blocked, each.op
    return {
        "start": each.start,
        "end": each.end,
        "cause": each.cause,
        "detail": each.detail,
        "pid": blocked.stream.process.pid if blocked else None,
        "blocked": blocked.call.correlation if blocked else None,
        "by": by.call.correlation if by else None,
        "by_pid": by.stream.process.pid if by else None,
        "tid": each.thread.tid if each.thread else None,
    }


def _ops(ops: Iterable[Op]) -> dict[str, Any]:
    """Return a row per op, which `pid` and `correlation` find in the trace, and where bytes went.

    Of a collective each GPU has an op; what crossed which links is told of the collective.
    """
    routes: dict[Route, int] = {}
    collectives: dict[int, Collective] = {}
    rows = []
    for op in ops:
        if isinstance(op.work, Collective):
            collectives[op.work.number] = op.work
        rows.append(_op_row(op, routes))
    crossed = [
        {
            "collective": number,
            "kind": call.kind,
            "size": call.size,
            "route": routes.setdefault(route, len(routes)),
            "bytes": size,
        }
        for number, call in sorted(collectives.items())
        for route, size in call.ways()
    ]
    return {
        "ops": _columns(rows),
        "collectives": _columns(crossed),
        "routes": [list(route) for route in routes],
    }


def _op_row(op: Op, routes: dict[Route, int]) -> dict[str, Any]:
    return {
        "pid": op.stream.process.pid,
        "correlation": op.call.correlation,
        "device": op.stream.device,
        "stage": op.purpose.stage,
        "step": op.purpose.step,
        "role": op.purpose.role,
        "bytes": op.size,
        "route": routes.setdefault(op.route, len(routes)) if op.route else None,
        "transfer": op.transfer,
        "collective": op.collective,
        "wait_ns": op.met - op.start if op.collective is not None else None,
    }


def _columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Turn rows into columns, which are smaller."""
    listed = list(rows)
    return {name: [row[name] for row in listed] for name in (listed[0] if listed else ())}


def write_truth(content: Mapping[str, Any], path: Path) -> None:
    """Write it as compressed JSON; the same content gives the same bytes."""
    text = json.dumps(content, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def read_truth(path: Path) -> dict[str, Any]:
    """Read it again."""
    return json.loads(gzip.decompress(path.read_bytes()))  # type: ignore[no-any-return]
