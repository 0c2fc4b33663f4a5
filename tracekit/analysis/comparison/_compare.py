"""How two runs differ: side by side, per iteration, with what the data can show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.analysis.comparison._comparability import comparability, empty_steps, has_iterations
from tracekit.analysis.comparison._headline import Metric, headline, judged, length_text
from tracekit.analysis.comparison._kernel_names import with_names_alike, with_normalised_names
from tracekit.analysis.comparison._outlier_causes import outlier_rows, without_outliers
from tracekit.analysis.comparison._outliers import cold_notes, step_notes
from tracekit.analysis.comparison._step_change import (
    TOTALS,
    VERDICT,
    contributions,
    dependence_note,
    matrix,
    show,
    side_by_side,
    totals,
    with_small,
)
from tracekit.analysis.comparison._steps_table import step_rows
from tracekit.analysis.facts import HOST, how_to_record, verdict_meta
from tracekit.analysis.idle_account import idle_ranges
from tracekit.analysis.statistics import METHOD, Skip
from tracekit.analysis.step_sums import (
    PARTS,
    Measured,
    in_one_account,
    parse_compare_keys,
    peak_memory,
    per_iteration,
    with_hosts_matched,
)
from tracekit.engine import has_ops, shown, sorting, with_path_texts
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import Answer, Trace, with_one_tree

if TYPE_CHECKING:
    from tracekit.analysis.traffic import Traffic


OUTSIDE = ("a_outside_ns", "b_outside_ns", "a_outside_count", "b_outside_count")
COUNTS = ("a_steps", "b_steps", "a_devices", "b_devices")
IDLE = ("idle", "between")
ONE_ACCOUNT = "idle: inside of steps and between them, for not all runs tell where the host was"
_FEW_STEPS = 20
"""In fewer steps a drift is hardly told from a difference, and the first line says so."""
_FEW = 4
"""So many ranges are named in which the host was."""


@dataclass(frozen=True, kw_only=True)
class Comparison(Answer):
    """Two runs side by side; the rows are those of `compare`."""

    @property
    def table(self) -> pl.DataFrame:
        """A row per group; see `compare`."""
        return self.rows

    @property
    def contributions(self) -> pl.DataFrame:
        """What the change of the step time is made of.

        Returns
        -------
        ``part`` (a stage, ``idle`` or ``between``), ``a_total_ns`` and ``b_total_ns`` (whole
        numbers, over all iterations and devices), ``a_ns, b_ns, delta_ns`` (per iteration and
        device), ``share`` (of the change of the step time; null if there is none) and ``low_ns,
        high_ns, p_value, verdict``.
        """
        return self.tables["contributions"]

    @property
    def on_devices(self) -> pl.DataFrame:
        """What the change is made of on each GPU that both ran on; of one run a side alone.

        Returns
        -------
        ``device, part, a_ns, b_ns, delta_ns``: their means over GPUs are those of `contributions`,
        where both ran on the same.
        """
        return self.tables["devices"]


def compare(
    a: Trace,
    b: Trace,
    by: str | Sequence[str] = "stage",
    *,
    skip: Skip = "auto",
    names: tuple[str, str] = ("A", "B"),
    match_names: bool = False,
    traffic: tuple[Traffic, Traffic] | None = None,
    labels: tuple[Mapping[str, str], Mapping[str, str]] | None = None,
    anyway: bool = False,
    metric: Metric = "mean",
    least: float | None = None,
    one_run: bool = False,
) -> Comparison:
    """Compare two runs, step by step.

    All that is in either run is listed; what a step lacks counts as 0 in it, and what lies outside
    of steps stands beside it. Times are those of `per_iteration`: exposed time by stage, sums of
    durations for CUDA calls, else busy time, averaged over steps and devices (CUDA and MPI calls:
    over steps and processes; links: over steps). A run without iterations counts as a whole.

    The time of a step runs from an iteration's first op on a device to the first one of the next
    iteration there, and the last one ends with its last op on any device (``docs/breakdown.md``).
    It is split into exposed time of each stage, and time in which nothing runs: while the host is
    in an iteration (``idle``), and while it is in none (``between``). These parts, and so their
    changes, add up to the whole.

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
        How many iterations to leave out at the beginning; ``auto``: those that are cold.
    names
        What messages call the runs.
    match_names
        Whether kernels are matched by `normalised_name`, as after an upgrade of a library.
    traffic
        What each run moved, for a comparison by link.
    labels
        Labels of each run; different networks, batches or numbers of GPUs are not comparable.
    anyway
        Whether runs that are not comparable get verdicts too.
    metric
        What the step is judged by in the headline: its ``mean``, or its ``median``: the median
        of the differences of all pairs of steps, which few long steps do not move.
    least
        The least change of the step that matters, in percent: the headline says whether the step
        is faster or slower by more, the same within it, or that this is unknown. A row whose whole
        interval lies within it is too small to matter.
    one_run
        Whether both are the same run, which the headline says.

    Returns
    -------
    The table has the keys' columns (by stage with rows ``idle`` and ``between``, so that it adds up
    to the step; by ``step`` it is `Comparison.contributions`), then

    ====================  ========================================================================
    ``a_ns, b_ns``        mean time of a step
    ``a_count, b_count``  mean number of ops, calls or transfers of a step, on a device likewise
    ``a_bytes, b_bytes``  by link: mean bytes of a step; null if unknown
    ``delta_ns``          ``b_ns - a_ns``
    ``ratio``             ``b_ns / a_ns``; null where ``a_ns`` is 0
    ``low_ns, high_ns``   95 % interval of ``delta_ns``; null for too few iterations, or unknown
    ``p_value``           adjusted for the number of rows; null likewise
    ``verdict``           ``faster`` or ``slower`` (B, than A), ``too small to matter`` (the whole
                          interval lies within `least`, or 0.1 % of the shorter step), ``no
                          difference shown``, ``not enough iterations`` (fewer than 5 in either
                          run), ``unknown`` (steps that drift through the recording); null if the
                          runs are not comparable
    ``only_in``           ``A`` or ``B`` if the group occurs in that run alone, in steps or not
    ``a_total_ns`` etc.   sums over steps and devices, whole numbers: ``a_ns`` is
                          ``a_total_ns / (a_steps * a_devices)``
    ``a_outside_ns``      time outside of the steps that count, added over devices, and the number
    ``a_outside_count``   of ops, calls or transfers there (likewise of B)
    ``a_steps``           number of steps, and of the devices (CUDA and MPI calls: processes) that
    ``a_devices``         the row's times are added over (likewise of B)
    ====================  ========================================================================

    By memory it has ``device, a_bytes, b_bytes, delta_bytes, ratio, only_in``: one peak per run,
    which carries no verdict.

    ``meta`` holds ``headline`` (how much the step changed, whether that is shown, and which part
    carries it, in one sentence), ``names``, ``by``, ``skip``, ``a_iterations``, ``b_iterations``,
    ``a_devices``, ``b_devices``, ``per`` (what times are means over), ``step`` (with ``a_ns, b_ns,
    delta_ns, ratio, low_ns, high_ns, p_value, verdict`` of the mean, ``a_total_ns, b_total_ns`` and
    the standard deviations ``a_sd_ns, b_sd_ns``, and beside it ``a_median_ns, b_median_ns``:
    few long steps move means and widen intervals, but no median; ``a_effective,
    b_effective``, how many independent steps would tell as much, ``reason``, why nothing is known
    of it, and ``shift_ns, shift_low_ns, shift_high_ns, shift_verdict``, the change of a typical
    step), ``judged`` (by which metric and least change the headline judges, and what it found),
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
    verdicts = [verdict_meta(run) for run in (a, b)]
    reasons = comparability(a, b, labels, names=names, by=keys)
    if match_names:
        a, b = with_normalised_names(a), with_normalised_names(b)
    elif "kernel" in keys:
        a, b = with_names_alike((a, b))
    if "range" in keys:
        a, b = with_one_tree([a, b])
    check_least(least)
    measured, empty = measure_runs((a, b), keys, skip, names, traffic or (None, None))
    reasons += empty
    has_verdict = anyway or not reasons
    measured, told = in_one_account(measured, (a, b))
    measured, matched = with_hosts_matched(measured)
    of_a, of_b = measured
    parts, step, steps = contributions(of_a, of_b, has_verdict=has_verdict, names=told)
    if keys == ("memory",):
        table = _memory_table(a, b, names)
    else:
        table = _table(a, of_a, of_b, has_verdict=has_verdict)
    if keys == ("stage",):
        table = _with_idle(table, parts, of_a, of_b)
    if keys == ("step",):
        table = parts
    (table, parts), step = with_small((table, parts), step, least)
    odd = outlier_rows((a, b), measured, steps)
    without = without_outliers(odd, measured, steps)
    meta = {
        "headline": headline(
            parts,
            step,
            reasons,
            metric=metric,
            least=least,
            few=min(len(run.iterations) for run in measured) < _FEW_STEPS,
            one_run=one_run,
            without=without,
        ),
        "names": list(names),
        "by": list(keys),
        "skip": None if skip == "auto" else skip,
        "a_skipped": measured[0].skipped,
        "b_skipped": measured[1].skipped,
        "a_iterations": len(measured[0].iterations),
        "b_iterations": len(measured[1].iterations),
        "a_devices": measured[0].devices,
        "b_devices": measured[1].devices,
        "per": times_per(keys, is_host=not has_ops(a)),
        "step": step,
        "judged": judged(step, metric, least),
        "not_comparable": reasons,
        "notes": [
            *verdict_notes(verdicts, names),
            *_notes(a, b, measured, names),
            *_idle_notes((a, b), measured, keys),
            *([] if told == PARTS else [ONE_ACCOUNT]),
            *matched,
            *step_notes(
                [
                    (each, run.iterations, max(1, run.devices))
                    for each, run in zip(steps, measured, strict=True)
                ],
            ),
            *cold_notes(names, measured),
            *dependence_note(step, (len(measured[0].iterations), len(measured[1].iterations))),
            *outside_notes(table),
        ],
        "method": METHOD,
        "verdicts": dict(zip(names, verdicts, strict=True)),
        **({} if has_ops(a) else {"basis": HOST}),
    }
    return Comparison(
        rows=table,
        meta=meta,
        title=f"by {', '.join(keys)}",
        tables={
            "contributions": parts,
            "devices": _by_device(of_a, of_b),
            "steps": pl.concat([step_rows(of_a, names[0], "A"), step_rows(of_b, names[1], "B")]),
            "outliers": odd,
        },
        people=_for_people(table),
        empty="nothing ran in either",
        command="compare",
        figures={"figure": "step parts", "changes": "changes", "steps": "steps"},
    )


def _by_device(a: Measured, b: Measured) -> pl.DataFrame:
    """Return what steps of both runs are made of on each GPU that both ran on.

    ``device, part, a_ns, b_ns, delta_ns``, in the order of devices and parts; a part that one of
    them lacks took no time there.
    """
    key = ["device", "part"]
    sides = [run.on_devices.rename({"mean_ns": f"{side}_ns"}) for side, run in (("a", a), ("b", b))]
    of_both = set(a.on_devices["device"]) & set(b.on_devices["device"])
    both = sides[0].join(sides[1], on=key, how="full", coalesce=True)
    order = pl.DataFrame({"part": PARTS}).with_row_index("place")
    return (
        both.filter(pl.col("device").is_in(list(of_both)))
        .with_columns(pl.col("a_ns", "b_ns").fill_null(0.0))
        .join(order, on="part")
        .sort("device", "place")
        .select(*key, "a_ns", "b_ns", delta_ns=pl.col("b_ns") - pl.col("a_ns"))
    )


def check_least(least: float | None) -> None:
    """Raise `UsageError` where `least` cannot be the least change that matters."""
    if least is not None and not (math.isfinite(least) and least > 0):
        raise UsageError(f"{least} % is no least change", "give more than 0")


def _for_people(table: pl.DataFrame) -> pl.DataFrame:
    """Return a comparison as people read it.

    Sums and the numbers that they are divided by are left out; what lies outside of steps is a mean
    over devices too, and is left out where there is nothing.
    """
    outside = [name for name in OUTSIDE[:2] if name in table.columns]
    means = [
        (pl.col(name) / pl.col(f"{name[0]}_devices")).alias(name)
        for name in outside
        if table[name].sum()
    ]
    unread = {*TOTALS, *OUTSIDE, *COUNTS}
    return table.select(pl.exclude(unread & {*table.columns}), *means)


def times_per(keys: tuple[str, ...], *, is_host: bool) -> str | None:
    """Say what times are means over."""
    if keys in (("link",), ("memory",)):
        return "step" if keys == ("link",) else None
    return "step/process" if is_host or keys == ("api",) else "step/GPU"


def measure_runs(
    runs: Sequence[Trace],
    keys: tuple[str, ...],
    skip: Skip,
    names: Sequence[str],
    traffic: Sequence[Traffic | None],
) -> tuple[list[Measured], list[str]]:
    """Measure the steps of runs that are compared; each as a whole where any has none.

    Returns
    -------
    What was measured, and why its steps are not comparable.
    """
    whole = not all(map(has_iterations, runs))
    if whole and skip not in (0, "auto"):
        raise UsageError(
            f"{' or '.join(names)} has no iterations to skip",
            "name the ranges that are steps: --iteration REGEX",
        )
    of_ops = ("stage",) if keys in (("memory",), ("step",)) else keys

    def measure(*, as_one: bool) -> list[Measured]:
        return [
            per_iteration(run, of_ops, skip=skip, whole=as_one, traffic=own)
            for run, own in zip(runs, traffic, strict=True)
        ]

    found = measure(as_one=whole)
    reasons = [] if whole else empty_steps(found, names)
    if not (whole or all(run.iterations for run in found)):
        found = measure(as_one=True)
    return found, reasons


def _idle_notes(
    runs: tuple[Trace, Trace], measured: Sequence[Measured], keys: tuple[str, ...]
) -> list[str]:
    """Say in which ranges the hosts were while nothing ran inside steps."""
    if keys not in (("stage",), ("step",)):
        return []
    found = []
    for side, run, numbers in zip("AB", runs, measured, strict=True):
        if not numbers.iterations or run["ranges"].head(1).collect().is_empty():
            continue
        ranges = idle_ranges(run, windows=numbers.windows).head(_FEW)
        over = len(numbers.iterations) * numbers.devices
        parts = [
            f"{name or 'no range'} {length_text(idle / over)}" for name, idle in ranges.iter_rows()
        ]
        if parts:
            found.append(f"idle in {side}, by where the host was: {', '.join(parts)}")
    return found


def outside_notes(table: pl.DataFrame) -> list[str]:
    """Say what columns of work outside of steps hold, where there is any."""
    some = any(table[name].sum() for name in OUTSIDE[:2] if name in table.columns)
    told = "outside: work before the first step, after the last one and in steps that do not count"
    return [f"{told}; in all, mean over devices"] if some else []


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


def verdict_notes(told: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """Say what the processes of either run do, where they do not all train or a run is cut."""
    if all(set(each.get("verdict", ())) <= {"training"} and "cut" not in each for each in told):
        return []
    worded = [
        f"{name}: {', '.join(each.get('verdict', ())) or 'unknown'}"
        + (f", cut ({each['cut']})" if "cut" in each else "")
        for name, each in zip(names, told, strict=True)
    ]
    return [f"verdict: {'; '.join(worded)}"]


def _recorded(trace: Trace) -> set[str]:
    present = trace["contents"].filter("present").select("feature").collect()
    return set(present["feature"])


# -- side by side ------------------------------------------------------------------------------


def _table(trace: Trace, a: Measured, b: Measured, *, has_verdict: bool) -> pl.DataFrame:
    columns = list(a.columns)
    rows = all_rows(trace, (a.values, b.values), columns)
    samples = (matrix(a, a.values, rows, columns), matrix(b, b.values, rows, columns))
    table = rows
    for side, run in (("a", a), ("b", b)):
        table = table.join(numbers_of(run, side), on=columns, how="left", nulls_equal=True)
    table = table.sort("row").with_columns(
        pl.col("a_devices").fill_null(max(1, a.devices)),
        pl.col("b_devices").fill_null(max(1, b.devices)),
        pl.col("a_count", "b_count").fill_null(0.0),
        pl.col("a_outside_ns", "b_outside_ns", "a_outside_count", "b_outside_count").fill_null(0),
    )
    devices = (table["a_devices"].to_numpy(), table["b_devices"].to_numpy())
    table = pl.concat(
        [
            table.drop("row"),
            totals(*samples),
            side_by_side(*samples, devices),
            show(*samples, devices, has_verdict=has_verdict),
        ],
        how="horizontal",
    )
    in_a, in_b = pl.col("in_a").is_not_null(), pl.col("in_b").is_not_null()
    table = table.with_columns(
        *(
            pl.when(pl.col(f"in_{side}").is_null()).then(0.0).otherwise(f"{side}_bytes")
            .alias(f"{side}_bytes")
            for side in ("a", "b") if "bytes" in a.values.columns
        ),
        pl.lit(_steps(a), pl.Int64).alias("a_steps"),
        pl.lit(_steps(b), pl.Int64).alias("b_steps"),
        only_in=pl.when(~in_b).then(pl.lit("A")).when(~in_a).then(pl.lit("B")),
    )  # fmt: skip
    return _arranged(table, columns)


def _arranged(table: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    """Put columns in their documented order; largest changes first, but stages in theirs."""
    sized = ["a_bytes", "b_bytes"] if "a_bytes" in table.columns else []
    order = ["stage"] if columns == ["stage"] else [-pl.col("delta_ns").abs(), *sorting(columns)]
    return shown(table.sort(order, nulls_last=True)).select(
        *columns, "a_ns", "b_ns", "a_count", "b_count", *sized, "delta_ns", "ratio", *VERDICT,
        "only_in", *TOTALS, *OUTSIDE, *COUNTS,
    )  # fmt: skip


def _with_idle(table: pl.DataFrame, parts: pl.DataFrame, a: Measured, b: Measured) -> pl.DataFrame:
    """Add what of steps is in no stage to a table of stages: then its rows add up to the step."""
    of_a, of_b = pl.col("a_ns"), pl.col("b_ns")
    rows = parts.filter(pl.col("part").is_in(IDLE)).select(
        *(name for name in parts.columns if name in table.columns),
        stage="part",
        ratio=pl.when(of_a != 0).then(of_b / of_a),
        a_steps=pl.lit(_steps(a), pl.Int64),
        b_steps=pl.lit(_steps(b), pl.Int64),
        a_devices=pl.lit(max(1, a.devices), pl.Int64),
        b_devices=pl.lit(max(1, b.devices), pl.Int64),
    )
    return pl.concat([table.with_columns(pl.col("stage").cast(pl.String)), rows], how="diagonal")


def _steps(run: Measured) -> int:
    return max(1, len(run.iterations))


def all_rows(trace: Trace, runs: Sequence[pl.DataFrame], columns: list[str]) -> pl.DataFrame:
    """Return the groups of any run, numbered, with the texts of paths in `trace` beside them."""
    groups = pl.concat([run.select(columns).unique() for run in runs]).unique()
    texts = with_path_texts(trace, groups)
    return texts.sort(sorting(columns), nulls_last=True).with_row_index("row")


def numbers_of(run: Measured, side: str) -> pl.DataFrame:
    """Return each group's numbers per step, and those of what lies outside of steps."""
    is_step = pl.col("iteration").is_not_null() if run.iterations else pl.lit(value=True)
    count, devices = pl.col("count"), pl.col("per").first()
    sized = pl.col("bytes").filter(is_step)
    of_bytes = pl.when(sized.count() > 0).then(sized.sum() / _steps(run)).alias(f"{side}_bytes")
    return run.values.group_by(run.columns).agg(
        (count.filter(is_step).sum() / (_steps(run) * devices)).alias(f"{side}_count"),
        devices.cast(pl.Int64).alias(f"{side}_devices"),
        pl.col("length_ns").filter(~is_step).sum().alias(f"{side}_outside_ns"),
        count.filter(~is_step).sum().alias(f"{side}_outside_count"),
        pl.lit(value=True).alias(f"in_{side}"),
        *([of_bytes] if "bytes" in run.values.columns else []),
    )


def _memory_table(a: Trace, b: Trace, names: tuple[str, str]) -> pl.DataFrame:
    sides = [
        memory_peaks(run, name).rename({"bytes": f"{side}_bytes"})
        for side, run, name in zip("ab", (a, b), names, strict=True)
    ]
    return memory_side_by_side(*sides)


def memory_peaks(run: Trace, name: str) -> pl.DataFrame:
    """Return ``device, bytes``, the peak of each; `MissingDataError` if there are no events."""
    peaks = peak_memory(run)
    if peaks.is_empty():
        how = how_to_record(run, "memory, not sampled")
        raise MissingDataError(f"{name} holds no events of GPU memory", f"record with {how}")
    return peaks


def memory_side_by_side(a: pl.DataFrame, b: pl.DataFrame) -> pl.DataFrame:
    """Join ``a_bytes`` and ``b_bytes`` by device, and say how they differ."""
    of_a, of_b = pl.col("a_bytes"), pl.col("b_bytes")
    return (
        a.join(b, on="device", how="full", coalesce=True)
        .with_columns(
            delta_bytes=of_b - of_a,
            ratio=pl.when(of_a != 0).then(of_b / of_a),
            only_in=pl.when(of_b.is_null()).then(pl.lit("A")).when(of_a.is_null()).then(pl.lit("B")),
        )
        .sort("device")
    )  # fmt: skip
