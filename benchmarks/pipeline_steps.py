"""Print as JSON how many seconds each step of an ingest takes.

    python benchmarks/pipeline_steps.py EXPORT.sqlite STORE

The steps are those that `tracekit.ingest` tells of as it goes; the summary, of which it does not
tell, is seen where it begins. What the process takes before that and after is not in any of them.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import tracekit
from tracekit import analysis


class Clock:
    """Seconds by step, in the order in which steps were first told of."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._step = "open store"
        self._since = time.perf_counter()

    def begin(self, step: str, _done: int = 0, _total: int = 0) -> None:
        """End the step before and begin this one."""
        now = time.perf_counter()
        self.seconds[self._step] = self.seconds.get(self._step, 0) + now - self._since
        self._step, self._since = step, now


def steps(export: str, store: str) -> dict[str, float]:
    """Ingest `export` into `store` and return the seconds of each step."""
    clock = Clock()
    summarise = analysis.summarise

    def watched(*arguments: Any) -> Any:
        clock.begin("summary and catalogue")
        return summarise(*arguments)

    setattr(analysis, "summarise", watched)  # noqa: B010 - a function of another package
    tracekit.ingest(export, store=store, progress=clock.begin)
    clock.begin("end")
    return clock.seconds


if __name__ == "__main__":
    json.dump(steps(*sys.argv[1:]), sys.stdout)
