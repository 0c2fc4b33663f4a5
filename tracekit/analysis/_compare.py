"""How two runs differ: side by side, per iteration, with what the data can show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from tracekit.analysis._kernel_names import with_normalised_names
from tracekit.analysis._needs import how_to_record
from tracekit.analysis._per_iteration import (
    PARTS,
    Measured,
    parse_compare_keys,
    peak_memory,
    per_iteration,
)
from tracekit.analysis._range_paths import shown, sorting, with_path_texts
from tracekit.analysis._statistics import ENOUGH, LEVEL, METHOD, Numbers, differences
from tracekit.analysis._summary import summarise
from tracekit.analysis._traffic import Traffic
from tracekit.analysis._work import HOST, has_ops
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import Trace, with_one_tree

FASTER, SLOWER = "faster", "slower"
NOT_SHOWN, NOT_ENOUGH = "no difference shown", "not enough iterations"

_SAME_LABELS = ("network", "batch", "gpus")
_LAUNCHED, _COVERED = 0.05, 0.2
"""Where the known share of ops or of time differs by more, something else was recorded."""
_SHOWN = ("low_ns", "high_ns", "p_value", "verdict")


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side.

    Parameters
    ----------
    table
        A row per group; see `compare`.
    contributions
        What the change of the step time is made of: ``part`` (a stage, ``idle`` or ``between``),
        ``a_total_ns`` and ``b_total_ns`` (whole numbers, over all iterations and devices),
        ``a_ns, b_ns, delta_ns`` (per iteration and device), ``share`` (of the change of the step
        time; null if there is none) and ``low_ns, high_ns, p_value, verdict``.
    meta
        See `compare`.
    """

    table: pl.DataFrame
    contributions: pl.DataFrame
    meta: dict[str, Any]


def compare(
    a: Trace,
    b: Trace,
    by: str | Sequence[str] = "stage",
    *,
    skip: int = 0,
    names: tuple[str, str] = ("A", "B"),
    match_names: bool = False,
    traffic: tuple[Traffic, Traffic] | None = None,
    labels: tuple[Mapping[str, str], Mapping[str, str]] | None = None,
) -> Comparison:
    """Compare two runs, per iteration.

    All that is in either run is listed; what an iteration lacks counts as 0 in it. Times are those
    of `per_iteration`: exposed time by stage, sums of durations for CUDA calls, else busy time,
    added over devices and averaged over iterations. A run without iterations counts as a whole.

    The time of a step runs from an iteration's first op on a device to the first one of the next
    iteration there, averaged over devices: the steps of a run add up to the window that
    ``docs/breakdown.md`` defines for ``--skip``. It is split into exposed time of each stage, time
    of the iteration in which nothing runs (``idle``), and what lies between iterations
    (``between``). These parts, and so their changes, add up to the whole.

    A verdict is given where the interval excludes 0 and the p value, adjusted for the number of
    rows, is at most 0.05; ``meta["method"]`` names the methods. It tells these two recordings
    apart. Iterations of one recording vary less than recordings do: of the same program, run
    twice, small differences can be shown that mean nothing.

    Parameters
    ----------
    a, b
        The runs.
    by
        Keys out of `COMPARE_KEYS`, as a sequence or separated by commas.
    skip
        How many iterations to leave out at the beginning.
    names
        What messages call the runs.
    match_names
        Whether kernels are matched by `normalised_name`, as after an upgrade of a library.
    traffic
        What each run moved, for a comparison by link.
    labels
        Labels of each run; different networks, batches or numbers of GPUs are not comparable.

    Returns
    -------
    The table has the keys' columns, then

    ====================  ========================================================================
    ``a_ns, b_ns``        mean time of an iteration
    ``a_count, b_count``  mean number of ops, calls or transfers of an iteration
    ``a_bytes, b_bytes``  by link: mean bytes of an iteration; null if unknown
    ``delta_ns``          ``b_ns - a_ns``
    ``ratio``             ``b_ns / a_ns``; null where ``a_ns`` is 0
    ``low_ns, high_ns``   95 % interval of ``delta_ns``; null for too few iterations
    ``p_value``           adjusted for the number of rows; null for too few iterations
    ``verdict``           ``faster`` or ``slower`` (B, than A), ``no difference shown``, ``not
                          enough iterations`` (fewer than 5 in either run); null if the runs are
                          not comparable
    ``only_in``           ``A`` or ``B`` if the group occurs in that run alone
    ====================  ========================================================================

    By memory it has ``device, a_bytes, b_bytes, delta_bytes, ratio, only_in``: one peak per run,
    which carries no verdict.

    ``meta`` holds ``names``, ``by``, ``skip``, ``a_iterations``, ``b_iterations``, ``step`` (with
    ``a_ns, b_ns, delta_ns, ratio, low_ns, high_ns, p_value, verdict`` of the mean, and beside it
    ``a_median_ns, b_median_ns``: few long steps move means and widen intervals, but no median),
    ``not_comparable`` (the reasons, see `comparability`), ``notes`` and ``method``; ``basis`` where
    it is not GPU work that was measured.

    Raises
    ------
    UsageError
        If a key is unknown, or a run has too few iterations to skip.
    MissingDataError
        If one run alone has GPU work, neither has that nor NVTX ranges that are stages, or, by
        memory, there are no events of GPU memory.
    """
    keys = parse_compare_keys(by)
    reasons = comparability(a, b, labels, names=names, by=keys)
    if match_names:
        a, b = with_normalised_names(a), with_normalised_names(b)
    if "range" in keys:
        a, b = with_one_tree([a, b])
    measured = _measured((a, b), keys, skip, names, traffic or (None, None))
    has_verdict = not reasons
    if keys == ("memory",):
        table = _memory_table(a, b, names)
    else:
        table = _table(a, *measured, has_verdict=has_verdict)
    contributions, step = _contributions(*measured, has_verdict=has_verdict)
    meta = {
        "names": list(names),
        "by": list(keys),
        "skip": skip,
        "a_iterations": len(measured[0].iterations),
        "b_iterations": len(measured[1].iterations),
        "step": step,
        "not_comparable": reasons,
        "notes": _notes(a, b, measured, names),
        "method": METHOD,
        **({} if has_ops(a) else {"basis": HOST}),
    }
    return Comparison(table, contributions, meta)


def _measured(
    runs: tuple[Trace, Trace],
    keys: tuple[str, ...],
    skip: int,
    names: tuple[str, str],
    traffic: tuple[Traffic | None, Traffic | None],
) -> tuple[Measured, Measured]:
    """Measure the iterations of both runs; each as a whole where either has none."""
    whole = not all(map(_has_iterations, runs))
    if whole and skip:
        raise UsageError(
            f"{' or '.join(names)} has no iterations to skip",
            "name the ranges that are steps: --iteration REGEX",
        )
    of_ops = ("stage",) if keys == ("memory",) else keys
    a, b = (
        per_iteration(run, of_ops, skip=skip, whole=whole, traffic=own)
        for run, own in zip(runs, traffic, strict=True)
    )
    return a, b


def exceeds(comparison: Comparison, percent: float) -> bool:
    """Tell whether B's steps are slower than A's by more than `percent` of A's, and shown to be.

    A change of the mean that the iterations do not show to be one (verdict ``no difference
    shown``) does not exceed anything.

    Raises
    ------
    UsageError
        If `percent` is no limit, the runs are not comparable, or have too few iterations: what
        cannot be told must not pass.
    """
    if not (math.isfinite(percent) and percent >= 0):
        raise UsageError(f"{percent} % is no limit", "give 0 or more")
    reasons, step = comparison.meta["not_comparable"], comparison.meta["step"]
    if reasons:
        raise UsageError(f"these runs are not comparable ({'; '.join(reasons)})")
    if step["verdict"] == NOT_ENOUGH:
        raise UsageError(
            f"too few iterations to tell: {comparison.meta['a_iterations']} and "
            f"{comparison.meta['b_iterations']}",
            f"record {ENOUGH} or more in each run",
        )
    return bool(step["verdict"] == SLOWER and step["delta_ns"] * 100 > percent * step["a_ns"])


# -- whether runs can be compared --------------------------------------------------------------


def comparability(
    a: Trace,
    b: Trace,
    labels: tuple[Mapping[str, str], Mapping[str, str]] | None = None,
    *,
    names: tuple[str, str] = ("A", "B"),
    by: Sequence[str] = ("stage",),
) -> list[str]:
    """Return why two runs cannot be compared, in words; nothing if they can be.

    These are another number or model of GPUs, labels `network`, `batch` or `gpus` that differ,
    iterations in one run alone, and launches (or by stage: stages) that are known of much less of
    one run than of the other.

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
        *([(_processes(facts[0]), _processes(facts[1]))] if all(without_work) else []),
        *_of_labels(labels or ({}, {})),
        *_of_shares(facts, by),
    ]
    reasons = [
        f"{of_a} in {names[0]}, {of_b} in {names[1]}"
        for of_a, of_b in differ
        if of_a and of_b and of_a != of_b
    ]
    without = [name for name, run in zip(names, (a, b), strict=True) if not _has_iterations(run)]
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
    if "stage" in by:
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


def _has_iterations(trace: Trace) -> bool:
    return trace["iterations"].head(1).collect().height > 0


def _notes(a: Trace, b: Trace, measured: Sequence[Measured], names: tuple[str, str]) -> list[str]:
    notes = [
        f"{run.left_out} iterations of {name} are left out, which not all its processes have"
        for name, run in zip(names, measured, strict=True)
        if run.left_out
    ]
    held = [_recorded(run) for run in (a, b)]
    for this, other in ((0, 1), (1, 0)):
        missing = sorted(held[this] - held[other])
        if missing:
            notes.append(f"{names[other]} holds no {', '.join(missing)}, but {names[this]} does")
    return notes


def _recorded(trace: Trace) -> set[str]:
    present = trace["contents"].filter("present").select("feature").collect()
    return set(present["feature"])


# -- side by side ------------------------------------------------------------------------------


def _table(trace: Trace, a: Measured, b: Measured, *, has_verdict: bool) -> pl.DataFrame:
    columns = list(a.columns)
    rows = _all_rows(trace, a.values, b.values, columns)
    samples = (_matrix(a, a.values, rows, columns), _matrix(b, b.values, rows, columns))
    table = pl.concat(
        [rows.drop("row"), _side_by_side(*samples), _shown(*samples, has_verdict=has_verdict)],
        how="horizontal",
    )
    for side, run in (("a", a), ("b", b)):
        table = table.join(_means(run, side), on=columns, how="left", nulls_equal=True)
    in_a, in_b = pl.col("in_a").is_not_null(), pl.col("in_b").is_not_null()
    table = table.with_columns(
        pl.col("a_count", "b_count").fill_null(0),
        *(
            pl.when(pl.col(f"in_{side}").is_null()).then(0.0).otherwise(f"{side}_bytes")
            .alias(f"{side}_bytes")
            for side in ("a", "b") if "bytes" in a.values.columns
        ),
        only_in=pl.when(~in_b).then(pl.lit("A")).when(~in_a).then(pl.lit("B")),
    )  # fmt: skip
    sized = ["a_bytes", "b_bytes"] if "bytes" in a.values.columns else []
    order = ["stage"] if columns == ["stage"] else [-pl.col("delta_ns").abs(), *sorting(columns)]
    return shown(table.sort(order, nulls_last=True)).select(
        *columns, "a_ns", "b_ns", "a_count", "b_count", *sized, "delta_ns", "ratio", *_SHOWN,
        "only_in",
    )  # fmt: skip


def _all_rows(trace: Trace, a: pl.DataFrame, b: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    """Return the groups of either run, numbered, with the texts of paths in `trace` beside them."""
    both = pl.concat([a.select(columns), b.select(columns)]).unique()
    texts = with_path_texts(trace, both)
    return texts.sort(sorting(columns), nulls_last=True).with_row_index("row")


def _matrix(run: Measured, values: pl.DataFrame, rows: pl.DataFrame, columns: list[str]) -> Numbers:
    """Return lengths: a row per group, a column per iteration."""
    numbers = pl.Series("iteration", run.iterations or (None,), dtype=pl.Int64)
    iterations = numbers.to_frame().with_row_index("column")
    sample = np.zeros((rows.height, iterations.height), dtype=np.int64)
    placed = values.join(rows, on=columns, nulls_equal=True).join(
        iterations, on="iteration", nulls_equal=True
    )
    sample[placed["row"].to_numpy(), placed["column"].to_numpy()] = placed["length_ns"].to_numpy()
    return sample


def _means(run: Measured, side: str) -> pl.DataFrame:
    """Return each group's numbers per iteration."""
    number = max(1, len(run.iterations))
    sized = pl.col("bytes")
    of_bytes = pl.when(sized.count() > 0).then(sized.sum() / number).alias(f"{side}_bytes")
    return run.values.group_by(run.columns).agg(
        (pl.col("count").sum() / number).alias(f"{side}_count"),
        pl.lit(value=True).alias(f"in_{side}"),
        *([of_bytes] if "bytes" in run.values.columns else []),
    )


def _side_by_side(a: Numbers, b: Numbers, devices: tuple[int, int] = (1, 1)) -> pl.DataFrame:
    means = {
        name: sample.sum(axis=1) / (sample.shape[1] * number)
        for name, sample, number in zip(("a_ns", "b_ns"), (a, b), devices, strict=True)
    }
    return pl.DataFrame(means, schema=dict.fromkeys(means, pl.Float64)).with_columns(
        delta_ns=pl.col("b_ns") - pl.col("a_ns"),
        ratio=pl.when(pl.col("a_ns") != 0).then(pl.col("b_ns") / pl.col("a_ns")),
    )


def _shown(
    a: Numbers, b: Numbers, devices: tuple[int, int] = (1, 1), *, has_verdict: bool
) -> pl.DataFrame:
    """Return the interval of the difference, its p value, and what may be concluded."""
    if min(a.shape[1], b.shape[1]) < ENOUGH:
        nothing = {name: [None] * len(a) for name in _SHOWN[:3]}
        table = pl.DataFrame(nothing, schema=dict.fromkeys(nothing, pl.Float64))
        verdict = pl.lit(NOT_ENOUGH)
    else:
        # Whole numbers of a common scale: means are over devices too.
        found = differences(a * devices[1], b * devices[0])
        scale = devices[0] * devices[1]
        table = pl.DataFrame(
            {
                "low_ns": found.low / scale,
                "high_ns": found.high / scale,
                "p_value": found.p_value,
            }
        )
        is_known = pl.col("p_value") <= 1 - LEVEL + 1e-12
        verdict = (
            pl.when(is_known & (pl.col("low_ns") > 0)).then(pl.lit(SLOWER))
            .when(is_known & (pl.col("high_ns") < 0)).then(pl.lit(FASTER))
            .otherwise(pl.lit(NOT_SHOWN))
        )  # fmt: skip
    return table.with_columns(
        verdict=pl.when(pl.lit(has_verdict)).then(verdict).otherwise(pl.lit(None, pl.String))
    )


def _memory_table(a: Trace, b: Trace, names: tuple[str, str]) -> pl.DataFrame:
    peaks = [peak_memory(run) for run in (a, b)]
    for name, peak, trace in zip(names, peaks, (a, b), strict=True):
        if peak.is_empty():
            how = how_to_record(trace, "memory, not sampled")
            raise MissingDataError(f"{name} holds no events of GPU memory", f"record with {how}")
    sides = [
        peak.rename({"bytes": f"{side}_bytes"}) for side, peak in zip("ab", peaks, strict=True)
    ]
    of_a, of_b = pl.col("a_bytes"), pl.col("b_bytes")
    return (
        sides[0].join(sides[1], on="device", how="full", coalesce=True)
        .with_columns(
            delta_bytes=of_b - of_a,
            ratio=pl.when(of_a != 0).then(of_b / of_a),
            only_in=pl.when(of_b.is_null()).then(pl.lit("A")).when(of_a.is_null()).then(pl.lit("B")),
        )
        .sort("device")
    )  # fmt: skip


# -- what the change of the step time is made of -----------------------------------------------


def _contributions(
    a: Measured, b: Measured, *, has_verdict: bool
) -> tuple[pl.DataFrame, dict[str, Any]]:
    rows = pl.DataFrame({"part": PARTS}).with_row_index("row")
    samples = (_matrix(a, a.parts, rows, ["part"]), _matrix(b, b.parts, rows, ["part"]))
    steps = tuple(sample.sum(axis=0, keepdims=True) for sample in samples)
    devices = (max(1, a.devices), max(1, b.devices))
    step = pl.concat(
        [
            _side_by_side(steps[0], steps[1], devices),
            _shown(steps[0], steps[1], devices, has_verdict=has_verdict),
        ],
        how="horizontal",
    ).row(0, named=True)
    for side, sample, number in zip("ab", steps, devices, strict=True):
        step[f"{side}_median_ns"] = float(np.median(sample)) / number
    change = step["delta_ns"]
    table = pl.concat(
        [
            rows.select("part"),
            pl.DataFrame({
                f"{side}_total_ns": sample.sum(axis=1)
                for side, sample in zip("ab", samples, strict=True)
            }),
            _side_by_side(*samples, devices).drop("ratio"),
            _shown(*samples, devices, has_verdict=has_verdict),
        ],
        how="horizontal",
    )  # fmt: skip
    share = pl.col("delta_ns") / change if change else pl.lit(None, pl.Float64)
    first = ("part", "a_total_ns", "b_total_ns", "a_ns", "b_ns", "delta_ns")
    return table.select(*first, share.alias("share"), *_SHOWN), step
