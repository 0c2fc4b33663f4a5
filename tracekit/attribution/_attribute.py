"""All of attribution, in its order."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from tracekit.attribution._iterations import find_iterations, iteration_of, training_threads
from tracekit.attribution._launches import link_launches
from tracekit.attribution._names import classify_kernels, classify_ranges, classify_threads
from tracekit.attribution._nesting import inherited, nest, parents_and_depths
from tracekit.attribution._paths import with_paths
from tracekit.attribution._rules import Rules
from tracekit.attribution._stages import Context, attribute_stages, is_open
from tracekit.model import Trace

_STEPS = ("launches", "ranges", "iterations", "stages")


def attribute(
    trace: Trace, rules: Rules, progress: Callable[[str, int, int], None] = lambda *_: None
) -> Trace:
    """Return the trace with launches, innermost ranges, stages and iterations.

    A pure function of the raw columns: what an earlier attribution left is replaced.

    Parameters
    ----------
    trace
        A trace as a source yields it, or one that was attributed before.
    rules
        What names mean.
    progress
        Told each step.
    """

    def step(number: int) -> None:
        progress(f"attribute {_STEPS[number]}", number, len(_STEPS))

    step(0)
    ops, launch_warnings = link_launches(trace.read("ops"), trace.read("calls"))
    ops = classify_kernels(ops, rules)
    step(1)
    ranges = classify_ranges(trace.read("ranges").sort("range"), rules)
    nesting, nest_warnings = nest(ranges)
    ranges = ranges.drop("parent", "depth").join(
        parents_and_depths(nesting), on="range", how="left", maintain_order="left"
    )
    step(2)
    evaluation = _within(ranges, pl.col("stage") == "ME")
    training = training_threads(ranges, _within(ranges, pl.col("autograd")), ops)
    iterations = find_iterations(ranges, training, evaluation | _during_evaluation(ranges), rules)
    step(3)
    threads = classify_threads(trace.read("threads"), rules)
    context = Context(ranges, nesting, evaluation, threads, training, iterations, rules)
    ops = attribute_stages(ops, context).with_columns(iteration=iteration_of(ops, iterations))
    return trace.with_tables(
        {"ops": ops, "ranges": with_paths(ranges, iterations), "iterations": iterations},
        (*launch_warnings, *nest_warnings),
    )


def _within(ranges: pl.DataFrame, what: pl.Expr) -> pl.Series:
    """Tell for each range whether it or one around it is of a kind."""
    own = ranges.select(value=pl.when(what).then(pl.lit(1)))["value"]
    return inherited(own, ranges["parent"]).is_not_null()


def _during_evaluation(ranges: pl.DataFrame) -> pl.Series:
    """Tell for each range whether it began while its process was in metric evaluation."""
    evaluations = ranges.filter((pl.col("style") == "start_end") & (pl.col("stage") == "ME"))
    return is_open(ranges.select("process", time="start"), evaluations)
