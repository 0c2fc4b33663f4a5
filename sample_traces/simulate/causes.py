"""Why a GPU is idle, as the simulator knows it.

In a gap the GPU waits for the op that ends it. Each moment of the gap has the cause that holds that
op then. They follow each other in this order, and each begins when the one before is over:

- its thread has not come to launch it: it waits in a call for a GPU (``waiting_call``), for the
  data loader (``loader``), for another stage's thread (``pipeline``), is between two steps
  (``between_steps``), or is busy with the framework or a call (``host_delay``). What a thread does
  that it waits for counts in its place;
- it is launched and on its way: ``launch_latency``;
- its stream waits for an op of another GPU: ``weight_update`` (gradients or weights of a peer
  exchange), ``pipeline`` (activations), ``collective``, or ``other_stream``;
- nothing holds it any more, and its stream goes on to it: ``dispatch``, from one op to the next or
  from an event to what waited for it.

So what comes later in a gap is often but the tail of what came first: a launch takes its latency
after a wait in any case. After the last op on a GPU nothing is waited for any more: ``end``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .gpu import Op
    from .host import Thread
    from .intervals import Interval

_HELD = {
    "gradients": "weight_update",
    "weights": "weight_update",
    "activations": "pipeline",
    "collective": "collective",
}
_BUSY = {
    "host_work": "host_delay",
    "call": "host_delay",
    "start": "host_delay",
    "await": "host_delay",
}
CAUSES = (
    "waiting_call", "loader", "between_steps", "host_delay", "launch_latency", "weight_update",
    "pipeline", "collective", "other_stream", "dispatch", "end",
)  # fmt: skip


@dataclass(frozen=True)
class Cause:
    """A stretch of a gap with its cause.

    `detail` is the call or work and `thread` who was at it; `op` is what the blocked op waited for
    on the GPU, or that call: the last of several.
    """

    start: int
    end: int
    cause: str
    detail: str
    blocked: Op | None
    op: Op | None = None
    thread: Thread | None = None


def explain(gap: Interval, blocked: Op | None) -> list[Cause]:
    """Return the causes of a gap in order of time; `blocked` is the op that ends it."""
    start, end = gap
    if blocked is None:
        return [Cause(start, end, "end", "", None)]
    arrival = min(max(start, blocked.arrival), end)
    called = min(max(start, blocked.call.start), arrival)
    found = [
        *_on_host(start, called, blocked),
        Cause(called, arrival, "launch_latency", blocked.call.name, blocked),
        *_on_gpu(arrival, end, blocked),
    ]
    return _joined([each for each in found if each.start < each.end])


def _on_gpu(start: int, end: int, blocked: Op) -> Iterator[Cause]:
    """Yield who holds an op that has arrived: of those it waits for, the one that ends last."""
    last = max(blocked.waits, key=lambda op: op.end, default=None)
    held_until = start if last is None else min(max(start, last.end), end)
    if last is not None:
        cause = _HELD.get(last.purpose.role, "other_stream")
        yield Cause(start, held_until, cause, last.purpose.role, blocked, last)
    yield Cause(held_until, end, "dispatch", "stream" if last is None else "event", blocked)


def _on_host(start: int, end: int, blocked: Op) -> Iterator[Cause]:
    """Yield what the launching thread did instead of launching."""
    at = start
    while at < end:
        thread, until = _follow(blocked.call.thread, at, end)
        doing = thread.at(at)
        cause = _BUSY.get(doing.doing, doing.doing)
        awaited = max(doing.ops, key=lambda op: op.end, default=None)
        yield Cause(at, until, cause, doing.detail or doing.doing, blocked, awaited, thread)
        at = until


def _follow(thread: Thread, at: int, end: int) -> tuple[Thread, int]:
    """Return the thread that is waited for at a moment, and until when that stays so."""
    seen: list[Thread] = []
    while True:
        until = thread.until(at)
        end = min(end, until) if until is not None else end
        gate = thread.at(at).gate
        seen.append(thread)
        keeper = gate.keeper if gate is not None and thread.at(at).doing == "await" else None
        if keeper is None or keeper in seen:
            return thread, end
        thread = keeper


def _joined(causes: list[Cause]) -> list[Cause]:
    """Join stretches that follow each other with the same cause."""
    made: list[Cause] = []
    for each in causes:
        if made and replace(made[-1], start=0, end=0) == replace(each, start=0, end=0):
            made[-1] = replace(made[-1], end=each.end)
        else:
            made.append(each)
    return made
