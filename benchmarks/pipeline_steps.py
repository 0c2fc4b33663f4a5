"""Print as JSON how many seconds each step of an ingest takes, and each part of the processors.

    python benchmarks/pipeline_steps.py EXPORT.sqlite STORE

The steps are those that `tracekit.ingest` tells of as it goes; the summary, of which it does not
tell, is seen where it begins. What the process takes before that and after is not in any of them.
Several parts work at the same time, so these are told by seconds of processors: of the digest, of
pages and of writing what their functions take on their threads, of the others what is left of their
steps.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tracekit
from tracekit import analysis
from tracekit.model import _trace
from tracekit.runs import _new_runs as _ingest
from tracekit.sources.sqlite import _btree
from tracekit.sources.sqlite import _row_columns as _columns

PAGES, WRITING, DIGEST = "pages to columns", "writing", "digest"
PARTS = {"read": "shaping and sorting", "attribute": "attribution"}
"""What is left of the steps that begin so; anything else is done once per ingest."""
ONCE = "store, summary and catalogue"


class Clock:
    """Seconds by step, in the order in which steps were first told of, and of processors."""

    def __init__(self) -> None:
        self.steps_s: dict[str, float] = {}
        self.parts_cpu_s: Counter[str] = Counter()
        self._step, self._part = "open store", ONCE
        self._since, self._cpu = time.perf_counter(), time.process_time()

    def begin(self, step: str, _done: int = 0, _total: int = 0) -> None:
        """End the step before and begin this one."""
        now, cpu = time.perf_counter(), time.process_time()
        self.steps_s[self._step] = self.steps_s.get(self._step, 0) + now - self._since
        self.parts_cpu_s[self._part] += cpu - self._cpu
        self._step, self._since, self._cpu = step, now, cpu
        self._part = PARTS.get(step.partition(" ")[0], ONCE)

    def apart(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose time on its thread is that of a part, and of no step."""

        @functools.wraps(work)
        def watched(*arguments: Any, **options: Any) -> Any:
            began = time.thread_time()
            try:
                return work(*arguments, **options)
            finally:
                taken = time.thread_time() - began
                self.parts_cpu_s[part] += taken
                self.parts_cpu_s[self._part] -= taken

        return watched

    def apart_by_bits(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same of a function that goes on through several steps, and tells of bits."""

        def watched(path: Path, tell: Callable[[int], None]) -> Any:
            before = time.thread_time()

            def told(done: int) -> None:
                nonlocal before
                now = time.thread_time()
                self.parts_cpu_s[part] += now - before
                self.parts_cpu_s[self._part] -= now - before
                before = now
                tell(done)

            return work(path, told)

        return watched


def measured(export: str, store: str) -> Clock:
    """Ingest `export` into `store` and return what that takes."""
    clock = Clock()
    summarise = analysis.summarise

    def watched(*arguments: Any) -> Any:
        clock.begin("summary and catalogue")
        return summarise(*arguments)

    for owner, name, work in (
        (analysis, "summarise", watched),
        (_ingest, "file_digest", clock.apart_by_bits(DIGEST, _ingest.file_digest)),
        (_columns.Decoder, "decode", clock.apart(PAGES, _columns.Decoder.decode)),
        (_btree.PageReader, "read", clock.apart(PAGES, _btree.PageReader.read)),
        (_trace, "_write", clock.apart(WRITING, _trace._write)),  # noqa: SLF001 - see above
    ):
        setattr(owner, name, work)
    tracekit.ingest(export, store=store, progress=clock.begin)
    clock.begin("end")
    return clock


if __name__ == "__main__":
    found = measured(*sys.argv[1:])
    json.dump({"steps_s": found.steps_s, "parts_cpu_s": found.parts_cpu_s}, sys.stdout)
