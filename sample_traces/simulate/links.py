"""Links shared by what moves over them: a fluid model with fair shares.

Every flow crosses all links of its route at one rate. On each link the flows share the bandwidth
fairly; what a flow cannot use, since another link of its route is narrower, the others get (max-min
fairness). Rates change whenever a flow begins or ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import simpy

    from .doing import Clock, Doing
    from .machine import Machine, Route
    from .parameters import Parameters


@dataclass(eq=False)
class Flow:
    """Bytes on their way over a route; `left` counts in bytes of the links' full bandwidth."""

    route: Route
    size: int
    left: float
    start: int
    rate: float = 0.0
    done: simpy.Event | None = None


@dataclass
class Traffic:
    """What a direction of a link carried, and when."""

    size: int = 0
    intervals: list[tuple[int, int]] = field(default_factory=list)


class Links:
    """All links of a machine and what moves over them.

    Parameters
    ----------
    env
        The simulation's clock.
    machine, parameters
        Where the links lead, and what share of their bandwidth is usable.
    """

    def __init__(self, env: Clock, machine: Machine, parameters: Parameters) -> None:
        self._env, self._machine, self._parameters = env, machine, parameters
        self._flows: list[Flow] = []
        self._at = 0
        self._version = 0
        self.traffic: dict[str, Traffic] = {}

    def move(self, route: Route, size: int, *, by_kernel: bool = False) -> simpy.Event:
        """Let bytes cross a route; the event comes when they have arrived."""
        flow = Flow(route, size, size / self._efficiency(route, by_kernel=by_kernel), self._env.now)
        flow.done = self._env.event()
        self._advance()
        self._flows.append(flow)
        self._share()
        return flow.done

    def _efficiency(self, route: Route, *, by_kernel: bool) -> float:
        p = self._parameters
        if self._machine.directions[route[0]].kind != "nvlink":
            return p.pcie_efficiency
        return p.nvlink_kernel_efficiency if by_kernel else p.nvlink_copy_efficiency

    def _advance(self) -> None:
        """Move all flows on by the time since they last moved."""
        passed = self._env.now - self._at
        self._at = self._env.now
        for flow in self._flows:
            flow.left -= passed * flow.rate

    def _share(self) -> None:
        """Give every flow its fair rate, and wake up when the first one is done."""
        widths = {
            way: self._machine.directions[way].bandwidth / 1e9
            for flow in self._flows
            for way in flow.route
        }
        for flow, rate in fair_rates(self._flows, widths):
            flow.rate = rate
        self._version += 1
        if self._flows:
            soonest = min(flow.left / flow.rate for flow in self._flows)
            self._env.process(self._wake(max(0, ceil(soonest)), self._version))

    def _wake(self, delay: int, version: int) -> Doing[None]:
        yield self._env.timeout(delay)
        if version != self._version:
            return
        self._advance()
        # Less than a nanosecond's worth of bytes is left of those that are done.
        done = [flow for flow in self._flows if flow.left < flow.rate * 1e-3]
        self._flows = [flow for flow in self._flows if flow.left >= flow.rate * 1e-3]
        for flow in done:
            self._arrive(flow)
        self._share()

    def _arrive(self, flow: Flow) -> None:
        for way in flow.route:
            carried = self.traffic.setdefault(way, Traffic())
            carried.size += flow.size
            carried.intervals.append((flow.start, self._env.now))
        if flow.done is not None:
            flow.done.succeed()


def fair_rates(flows: Sequence[Flow], widths: dict[str, float]) -> Iterable[tuple[Flow, float]]:
    """Return each flow's rate: the narrowest link, by its share for each flow, is filled first."""
    left, open_flows = dict(widths), list(flows)
    while open_flows:
        counts: dict[str, int] = {}
        for flow in open_flows:
            for way in flow.route:
                counts[way] = counts.get(way, 0) + 1
        tightest = min(counts, key=lambda way: (left[way] / counts[way], way))
        rate = left[tightest] / counts[tightest]
        for flow in [flow for flow in open_flows if tightest in flow.route]:
            open_flows.remove(flow)
            for way in flow.route:
                left[way] -= rate
            yield flow, rate
