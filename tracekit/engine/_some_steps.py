"""Some steps of a run, for questions that hold all that they look at."""

from __future__ import annotations

import re

import polars as pl

from tracekit.engine._steps import numbered_alike
from tracekit.errors import UsageError
from tracekit.model import Trace


def parse_iterations(text: str) -> tuple[int, int]:
    """Return the first and the last step that a text means, such as ``10:12`` or ``7``.

    Raises
    ------
    UsageError
        If it is none.
    """
    found = re.fullmatch(r"\s*([0-9]{1,18})\s*(?::\s*([0-9]{1,18}))?\s*", text)
    first = int(found[1]) if found else 1
    last = int(found[2] or found[1]) if found else 0
    if first > last:
        raise UsageError(f"{text!r} names no steps", "write --iterations 10:12, both included")
    return first, last


def chosen_steps(steps: pl.DataFrame, first: int, last: int) -> pl.DataFrame:
    """Return the rows of steps from one to another.

    Raises
    ------
    UsageError
        If there are none.
    """
    found = steps.filter(pl.col("iteration").is_between(first, last))
    if found.is_empty():
        known = steps["iteration"].drop_nulls().sort()
        hint = f"there are {known[0]} to {known[-1]}" if known.len() else "it has no steps"
        raise UsageError(f"the run has no step from {first} to {last}", hint)
    return found


def some_steps(trace: Trace, first: int, last: int) -> Trace:
    """Return a run with the ops and calls of some steps, and of those next to them, alone.

    What a step waited for may lie in the one before it, and it ends where the next one begins.
    Times of all processes have to be on one clock.

    Raises
    ------
    UsageError
        If it has none of these steps.
    """
    trace = numbered_alike(trace)
    iterations = trace.read("iterations")
    chosen_steps(iterations, first, last)
    near = iterations.filter(pl.col("iteration").is_between(first - 1, last + 1))
    begin, end = near.select(pl.col("start").min(), pl.col("end").max()).row(0)
    in_step = pl.col("iteration").is_between(first - 1, last + 1)
    launch = pl.coalesce("launch_start", "start")
    return trace.with_lazy(
        {
            "ops": trace["ops"].filter(in_step | launch.is_between(begin, end, closed="left")),
            "calls": trace["calls"].filter(pl.col("start").is_between(begin, end, closed="left")),
        }
    )
