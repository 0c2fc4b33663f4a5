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

_BOUNDED = 20_000_000
"""From so many kernels on, more of them take no more memory."""


@dataclass(frozen=True)
class Goal:
    """A limit on a figure.

    Parameters
    ----------
    name
        What is measured.
    at
        For which sizes it was set.
    limit
        The figure itself may be met.
    value
        Gives the figure, None where there is none.
    is_least
        Whether the limit is the least allowed, not the most.
    unit
        What follows the figure.
    """

    name: str
    at: str
    limit: float
    value: Taken
    is_least: bool = False
    unit: str = ""

    def held_against(self, value: Value | None) -> dict[str, Any] | None:
        """Return the figure and whether it meets the goal, None where that is not known."""
        if value is None:
            return None
        figure, is_all = value
        met = figure >= self.limit if self.is_least else figure <= self.limit
        # The whole may still be beyond the limit where a part is not.
        is_known = is_all or met == self.is_least
        return {"value": figure, "is_all": is_all, "met": met if is_known else None}


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
    if before is None or before["kernels"] < _BOUNDED:
        return None
    return _grown("peak_bytes", export, before), True


def _grown(key: str, export: Figures, before: Figures) -> float:
    return float(export["measures"]["ingest"][key] / before["measures"]["ingest"][key])


GOALS = (
    Goal("reading / sql_max", "5 M", 0.35, _of("reading", "ratio")),
    Goal("reading, library alone / sql_max", "5 M", 1.2, _of("reading, library alone", "ratio")),
    Goal("ingest / sql_max", "5 M, 20 M", 1.0, _of("ingest", "ratio")),
    Goal("growth of ingest / growth of kernels", "5 M to 20 M", 1.1, _ingest_growth),
    Goal("peak memory of ingest", "20 M", 2.0, _of("ingest", "peak_bytes", 1e9), unit=" GB"),
    # Repetitions of one size differ by as much.
    Goal("growth of that peak", "20 M to 40 M", 1.05, _peak_growth),
    Goal(BEYOND, "20 M", 0.5, _of(BEYOND, "wall_s"), unit=" s"),
    Goal("--help", "-", 0.3, _of("--help", "wall_s"), unit=" s"),
    Goal(
        "nvtx_kern_sum / (ingest + by range)", "1 M", 25,
        _compared("nvtx_kern_sum / (ingest + by range)"), is_least=True,
    ),
    Goal(
        "cuda_gpu_kern_sum / by kernel", "5 M", 20,
        _compared("cuda_gpu_kern_sum / by kernel"), is_least=True,
    ),
)  # fmt: skip
OF_REPORTS = (
    Goal(
        "1 process / 2 processes", "8 reports", 1.6,
        _compared("1 process / 2 processes"), is_least=True,
    ),
)  # fmt: skip


def held_against(exports: Sequence[Figures], goals: Sequence[Goal]) -> list[dict[str, Any]]:
    """Return each goal and what was measured of each export, which are ordered by size."""
    before = [None, *exports[:-1]]
    return [
        {
            "name": goal.name,
            "at": goal.at,
            "limit": goal.limit,
            "is_least": goal.is_least,
            "unit": goal.unit,
            "measured": [
                goal.held_against(goal.value(export, last))
                for export, last in zip(exports, before, strict=True)
            ],
        }
        for goal in goals
    ]
