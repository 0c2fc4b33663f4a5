"""What was aimed at, beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from figures import BEYOND

Figures = Mapping[str, Any]
Value = tuple[float, bool]
"""A figure, and whether it is all of it: of what did not come to its end a part is known."""
Taken = Callable[[Figures, Figures | None], Value | None]
"""Takes a figure from an export and the one before it, if any."""

_M = 1_000_000


@dataclass(frozen=True)
class Goal:
    """A limit on a figure.

    Parameters
    ----------
    name
        What is measured.
    limit
        The figure itself may be met. By numbers of kernels, where it was set for some sizes alone:
        the figures of others are held against nothing.
    value
        Gives the figure, None where there is none.
    is_least
        Whether the limit is the least allowed, not the most.
    unit
        What follows the figure.
    """

    name: str
    limit: float | Mapping[int, float]
    value: Taken
    is_least: bool = False
    unit: str = ""

    def held_against(self, value: Value | None, kernels: int = 0) -> dict[str, Any] | None:
        """Return the figure, its limit if it has one, and whether it is met or None: not known."""
        if value is None:
            return None
        figure, is_all = value
        limit = self.limit.get(kernels) if isinstance(self.limit, Mapping) else self.limit
        if limit is None:
            return {"value": figure, "is_all": is_all, "limit": None, "met": None}
        met = figure >= limit if self.is_least else figure <= limit
        # The whole may still be beyond the limit where a part is not.
        is_known = is_all or met == self.is_least
        return {"value": figure, "is_all": is_all, "limit": limit, "met": met if is_known else None}


def _of(measure: str, key: str, scale: float = 1) -> Taken:
    def value(export: Figures, _: Figures | None) -> Value | None:
        found = export["measures"].get(measure)
        return found and (found[key] / scale, found["ended"])

    return value


def _compared(name: str) -> Taken:
    def value(export: Figures, _: Figures | None) -> Value | None:
        found = export["comparisons"].get(name)
        return found and (found["times"], found["ended"])

    return value


def _ingest_growth(export: Figures, before: Figures | None) -> Value | None:
    if before is None:
        return None
    grown = _grown("wall_s", export, before)
    return grown * before["kernels"] / export["kernels"], True


def _peak_growth(export: Figures, before: Figures | None) -> Value | None:
    return before and (_grown("peak_bytes", export, before), True)


def _first_beyond(export: Figures, _: Figures | None) -> Value | None:
    found = [export["measures"].get(name) for name in ("ingest, nothing compiled", "ingest")]
    return (found[0]["wall_s"] - found[1]["wall_s"], True) if all(found) else None


def _grown(key: str, export: Figures, before: Figures) -> float:
    return float(export["measures"]["ingest"][key] / before["measures"]["ingest"][key])


GOALS = (
    Goal("CPU seconds of ingest", {5 * _M: 5.5, 20 * _M: 18}, _of("ingest", "cpu_s"), unit=" s"),
    Goal("ingest / sql_max", {5 * _M: 0.9, 20 * _M: 0.75}, _of("ingest", "ratio")),
    Goal("growth of ingest / growth of kernels", {20 * _M: 1.1, 40 * _M: 1.1}, _ingest_growth),
    Goal("ingest, 20 MB", {_M // 10: 0.9}, _of("ingest", "wall_s"), unit=" s"),
    Goal("the first one beyond that, from source", {_M // 10: 0.5}, _first_beyond, unit=" s"),
    Goal(
        "nvtx_kern_sum / (ingest + by range)", {_M: 20},
        _compared("nvtx_kern_sum / (ingest + by range)"), is_least=True,
    ),
    Goal(
        "cuda_gpu_kern_sum / by kernel", {5 * _M: 25},
        _compared("cuda_gpu_kern_sum / by kernel"), is_least=True,
    ),
    Goal("by stage, small run", 0.45, _of("by stage, small run", "wall_s"), unit=" s"),
    Goal(BEYOND, {20 * _M: 0.4}, _of(BEYOND, "wall_s"), unit=" s"),
    Goal("by iteration", {5 * _M: 1.0}, _of("by iteration", "wall_s"), unit=" s"),
    Goal(
        "peak memory of by iteration", {5 * _M: 0.6}, _of("by iteration", "peak_bytes", 1e9),
        unit=" GB",
    ),
    Goal(
        "peak memory of ingest", {20 * _M: 1.5, 40 * _M: 1.5}, _of("ingest", "peak_bytes", 1e9),
        unit=" GB",
    ),
    # Repetitions of one size differ by as much.
    Goal("growth of that peak", {40 * _M: 1.05}, _peak_growth),
    Goal("--help", 0.3, _of("--help", "wall_s"), unit=" s"),
)  # fmt: skip
OF_REPORTS = (
    Goal("1 process / 2 processes", 1.5, _compared("1 process / 2 processes"), is_least=True),
)


def held_against(exports: Sequence[Figures], goals: Sequence[Goal]) -> list[dict[str, Any]]:
    """Return each goal and what was measured of each export, which are ordered by size."""
    before = [None, *exports[:-1]]
    return [
        {
            "name": goal.name,
            "is_least": goal.is_least,
            "unit": goal.unit,
            "measured": [
                goal.held_against(goal.value(export, last), export["kernels"])
                for export, last in zip(exports, before, strict=True)
            ],
        }
        for goal in goals
    ]
