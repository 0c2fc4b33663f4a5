"""Warn if two runs differ in machine, recording or program, so that they compare badly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis.calls import communicators
from tracekit.analysis.facts import how_to_record, summarise
from tracekit.errors import MissingDataError

if TYPE_CHECKING:
    from tracekit.analysis.step_sums import Measured
    from tracekit.model import Trace

_SAME_LABELS = ("network", "batch", "gpus")
_LAUNCHED, _COVERED = 0.05, 0.2
"""Where the known share of ops or of time differs by more, something else was recorded."""
_EMPTY = 0.2
"""Where more of the annotated steps hold no work, the recording is not of those steps."""
_INFERRED = ("kernel_name", "copy_kind", "none")
"""Sources of a stage that look at an op alone; the others follow what the program said or did."""
_NOTABLE, _MOST = 0.05, 0.5
"""A stage with less of the time of all ops is none to speak of; by what most of it is known."""


def comparability(
    a: Trace,
    b: Trace,
    labels: tuple[Mapping[str, str], Mapping[str, str]] | None = None,
    *,
    names: tuple[str, str] = ("A", "B"),
    by: Sequence[str] = ("stage",),
) -> list[str]:
    """Return why two runs cannot be compared, in words; nothing if they can be.

    These are another number or model of GPUs, another number of ranks in the job, labels `network`,
    `batch` or `gpus` that differ, iterations in one run alone, and launches (or by stage: stages)
    that are known of much less of one run than of the other, or that are known otherwise.

    Raises
    ------
    MissingDataError
        If one run has GPU work and the other has none: nothing is no improvement.
    """
    facts = [summarise(run) for run in (a, b)]
    without_work = [not run["ops"] for run in facts]
    if any(without_work) and not all(without_work):
        name, trace = (names[0], a) if without_work[0] else (names[1], b)
        raise MissingDataError(
            f"{name} holds no GPU work, so that there is nothing to compare",
            f"record with {how_to_record(trace, 'ops')}",
        )
    differ = [
        (f"{facts[0]['devices']} GPUs", f"{facts[1]['devices']} GPUs"),
        (_models(a), _models(b)),
        (_world(a), _world(b)),
        *([(_processes(facts[0]), _processes(facts[1]))] if all(without_work) else []),
        *_of_labels(labels or ({}, {})),
        *_of_shares(facts, by),
        *(_of_sources(a, b) if "stage" in by or "step" in by else []),
    ]
    reasons = [
        f"{of_a} in {names[0]}, {of_b} in {names[1]}"
        for of_a, of_b in differ
        if of_a and of_b and of_a != of_b
    ]
    without = [name for name, run in zip(names, (a, b), strict=True) if not has_iterations(run)]
    return reasons + ([f"{without[0]} has no iterations"] if len(without) == 1 else [])


def _of_labels(labels: tuple[Mapping[str, str], Mapping[str, str]]) -> list[tuple[str, str]]:
    return [
        (f"{label} {labels[0][label]}", f"{label} {labels[1][label]}")
        for label in _SAME_LABELS
        if label in labels[0] and label in labels[1]
    ]


def _of_shares(facts: Sequence[Mapping[str, object]], by: Sequence[str]) -> list[tuple[str, str]]:
    """Say of how much of each run something is known, where these are not about the same."""
    shares = [("launched", _LAUNCHED, "launching calls known of {:.0%} of the ops")]
    if "stage" in by or "step" in by:
        shares.append(("coverage", _COVERED, "stages known of {:.0%} of GPU busy time"))
    found = []
    for key, most, what in shares:
        of_each = [share if isinstance(share := run[key], float) else 0.0 for run in facts]
        if abs(of_each[0] - of_each[1]) > most:
            found.append((what.format(of_each[0]), what.format(of_each[1])))
    return found


def _processes(facts: Mapping[str, object]) -> str:
    number = facts["processes"]
    return f"{number} process{'' if number == 1 else 'es'}"


def _models(trace: Trace) -> str:
    names = trace.read("devices").filter("active")["name"].drop_nulls().unique().sort()
    return ", ".join(names.to_list())


def _world(trace: Trace) -> str:
    """Name the size of the job, as far as its largest communicator tells."""
    ranks = communicators(trace).select(pl.col("ranks").max()).item()
    return "" if ranks is None else f"a job of {ranks} ranks"


def _of_sources(a: Trace, b: Trace) -> list[tuple[str, str]]:
    """Say how most of a stage is known in each run, where one way gave way to another."""
    known = [_main_sources(run) for run in (a, b)]
    return [
        (f"{stage} known by {known[0][stage]}", f"{stage} known by {known[1][stage]}")
        for stage in known[0]
        if stage in known[1] and (known[0][stage] in _INFERRED) != (known[1][stage] in _INFERRED)
    ]


def _main_sources(trace: Trace) -> dict[str, str]:
    """Return by what most of each stage is known, of stages that take a notable part of the time.

    Time is the sum of ops' durations.
    """
    length = (pl.col("end") - pl.col("start")).sum().alias("length")
    text = [pl.col("stage").cast(pl.String), pl.col("stage_source").cast(pl.String)]
    each = trace["ops"].group_by(text).agg(length).collect()
    of_stage = pl.col("length").sum().over("stage")
    main = each.filter(
        of_stage > _NOTABLE * pl.col("length").sum(), pl.col("length") > _MOST * of_stage
    )
    return dict(main.sort("stage").select("stage", "stage_source").iter_rows())


def empty_steps(measured: Sequence[Measured], names: Sequence[str]) -> list[str]:
    """Name runs in which many annotated steps hold no work, as where a recording was cut."""
    found = []
    for name, run in zip(names, measured, strict=True):
        if not run.iterations:
            found.append(f"of no annotated step of {name} any work is known")
        elif run.empty > _EMPTY * run.annotated:
            found.append(
                f"{run.empty:,} of {run.annotated:,} annotated steps of {name} hold no work"
            )
    return found


def has_iterations(trace: Trace) -> bool:
    """Tell whether iterations of a run are known."""
    return trace["iterations"].head(1).collect().height > 0
