"""What to call ops that no push/pop range holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.engine._tallies import Named

if TYPE_CHECKING:
    from tracekit.model import Trace

OUTSIDE = ("(no launching call)", "(backward thread)", "(outside push/pop ranges)")
"""Ops whose call was not recorded; of a thread that runs backward passes, which ranges of other
threads do not hold; and all others."""
_OF_BACKWARD = ("backward_thread", "autograd")
"""Sources of stages by which a thread is known to run backward passes; so is it by structure where
that tells stages by threads."""


def outside_code(trace: Trace) -> pl.Expr:
    """Return which of `OUTSIDE` is the name of an op, by its ``launch_thread``."""
    told = trace.read("verdicts").filter((pl.col("structure") == "threads") & pl.col("decides"))
    by_structure = (
        (pl.col("stage_source") == "structure") & (pl.col("stage") == "BP")
        & pl.col("process").is_in(told["process"].implode())
    )  # fmt: skip
    backward = (
        trace["ops"].filter(pl.col("stage_source").is_in(_OF_BACKWARD) | by_structure)
        .select(pl.col("launch_thread").unique()).drop_nulls().collect().to_series()
    )  # fmt: skip
    thread = pl.col("launch_thread")
    others = pl.when(thread.is_in(backward.implode())).then(1).otherwise(2)
    return pl.when(thread.is_null()).then(0).otherwise(others)


def named_ranges(trace: Trace) -> Named:
    """Return the key `range` of ops: the number of the path of the innermost range.

    Where there is none it is negative, and `outside_text` says why.
    """
    ranges = trace["ranges"].select("range", "path").collect()
    paths = (ranges if ranges["range"].is_sorted() else ranges.sort("range"))["path"]
    outside = outside_code(trace) + len(paths)
    none = pl.Series([-1 - code for code in range(len(OUTSIDE))], dtype=paths.dtype)
    return Named(
        ("range", "launch_thread"), pl.coalesce("range", outside), pl.concat([paths, none])
    )


def outside_text(path: pl.Expr) -> pl.Expr:
    """Return what a negative number of a path, as `named_ranges` gives it, stands for."""
    numbers = [-1 - code for code in range(len(OUTSIDE))]
    return path.replace_strict(numbers, list(OUTSIDE), default=None, return_dtype=pl.String)


def outside_ranges(trace: Trace) -> Named:
    """Return why ops lie in no push/pop range, null for those that do."""
    return Named(
        ("range", "launch_thread"),
        pl.when(pl.col("range").is_null()).then(outside_code(trace)),
        pl.Series(OUTSIDE),
    )
