"""Compare the steps of serving engines phase by phase: prefill with prefill, decode with decode."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from tracekit.analysis.comparison._prepared import Prepared
from tracekit.analysis.comparison._step_change import TOTALS, VERDICT, Steps, show, side_by_side
from tracekit.analysis.statistics import METHOD, OF_ROWS
from tracekit.analysis.step_sums import Measured, steps_by_phase
from tracekit.errors import UsageError

METHOD_OF_PHASES = METHOD.replace(
    OF_ROWS,
    "of each phase with its own steps, adjusted with p_value for the number of phases that both "
    "runs have (Bonferroni); a verdict where the interval excludes 0",
)
_PHASES = ("prefill", "decode", "mixed", None)
_SCHEMA = {
    "phase": pl.String,
    **dict.fromkeys(("a_ns", "b_ns", "a_tokens", "b_tokens", "delta_ns", "ratio"), pl.Float64),
    **dict.fromkeys(VERDICT[:3], pl.Float64),
    "verdict": pl.String,
    "only_in": pl.String,
    **dict.fromkeys((*TOTALS, "a_steps", "b_steps", "a_devices", "b_devices"), pl.Int64),
}


def phase_rows(found: Prepared) -> pl.DataFrame:
    """Return a row per phase: how long a step of it takes in A and in B.

    Each phase has steps of its own, so that its rows do not add up to the mean step. Intervals and
    p values are adjusted for the number of phases that both runs have (Bonferroni). Steps whose
    phase is not known, or whose processes are in several, are a row without one.

    Raises
    ------
    UsageError
        If a run has no steps that count.
    MissingDataError
        If the phases of either run are not known.
    """
    a, b = found.measured
    if not (a.iterations and b.iterations):
        raise UsageError("runs without steps have no phases", "compare by stage")
    told = [
        steps_by_phase(trace).filter(pl.col("iteration").is_in(run.iterations))
        for trace, run in zip(found.traces, found.measured, strict=True)
    ]
    known = [[*each["phase"]] for each in told]
    shared = len([phase for phase in _PHASES if all(phase in each for each in known)])
    rows = []
    for phase in _PHASES:
        steps = [each.filter(pl.col("phase").eq_missing(phase)) for each in told]
        if any(each.height for each in steps):
            of_a, of_b = (_only(run, own) for run, own in zip((a, b), steps, strict=True))
            row = _row(of_a, of_b, has_verdict=found.has_verdict, phases=shared)
            tokens = {
                f"{side}_tokens": own["tokens"].mean() if own["tokens"].null_count() == 0 else None
                for side, own in zip("ab", steps, strict=True)
            }
            rows.append({"phase": phase, **tokens, **row})
    return pl.DataFrame(rows, schema=_SCHEMA)


def _only(run: Measured, steps: pl.DataFrame) -> Measured:
    """Return a run with some of its steps alone."""
    numbers = steps["iteration"]
    return replace(
        run,
        iterations=tuple(numbers.sort()),
        parts=run.parts.filter(pl.col("iteration").is_in(numbers.implode())),
    )


def _row(a: Measured, b: Measured, *, has_verdict: bool, phases: int) -> dict[str, object]:
    """Return how long a step takes in A and in B; of one that has none, nothing."""
    sides = {"a": a, "b": b}
    counts = {
        **{f"{side}_steps": len(run.iterations) for side, run in sides.items()},
        **{f"{side}_devices": run.devices for side, run in sides.items()},
    }
    if a.iterations and b.iterations:
        steps = Steps.of(a, b)
        lengths = (steps.lengths[0][np.newaxis, :], steps.lengths[1][np.newaxis, :])
        devices = (np.full(1, steps.devices[0]), np.full(1, steps.devices[1]))
        shown = show(*lengths, devices, has_verdict=has_verdict, regular=steps.regular,
                     tables=phases)  # fmt: skip
        found = side_by_side(*lengths, devices).hstack(shown).row(0, named=True)
    else:
        side, run = ("a", a) if a.iterations else ("b", b)
        mean = int(run.parts["length_ns"].sum()) / (len(run.iterations) * max(1, run.devices))
        found = {f"{side}_ns": mean, "only_in": side.upper()}
    totals = {f"{side}_total_ns": int(run.parts["length_ns"].sum()) for side, run in sides.items()}
    return {**found, **totals, **counts}
