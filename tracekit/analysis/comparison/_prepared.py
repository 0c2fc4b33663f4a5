"""Shared by all comparisons: measure the runs, and find reasons why these are not comparable."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.analysis.calls import communicators, process_ranks
from tracekit.analysis.comparison._headline import Metric, check_metric, judged
from tracekit.analysis.facts import HOST, how_to_record, summarise, verdict_meta, verdicts_note
from tracekit.analysis.statistics import Skip
from tracekit.analysis.step_sums import (
    PARTS,
    Measured,
    in_one_account,
    parse_compare_keys,
    per_iteration,
    with_hosts_matched,
)
from tracekit.engine import has_ops
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import (
    KERNEL_KINDS,
    NO_KERNELS,
    Answer,
    Trace,
    normalised_name,
    with_one_tree,
)
from tracekit.support.wording import count, percent

if TYPE_CHECKING:
    from tracekit.analysis.traffic import Traffic


_BLANKS = r"\s*([*&<>,()\[\]:])\s*"
OUTSIDE = (
    "a_outside_steps_ns",
    "b_outside_steps_ns",
    "a_outside_steps_count",
    "b_outside_steps_count",
)
_ONE_ACCOUNT = "idle: inside of steps and between them, as not all runs show where the host was"


def with_names_alike(runs: Sequence[Trace]) -> list[Trace]:
    """Return runs in which kernel names that differ only in blanks are spelled alike.

    Compilers write ``double *`` or ``double*``; the first spelling in sorted order is kept.
    """
    known = pl.concat([_kernels(run) for run in runs]).unique().sort().to_frame()
    alike = pl.col("name").str.replace_all(_BLANKS, "${1}")
    first = known.with_columns(first=pl.col("name").first().over(alike))
    changed = dict(first.filter(pl.col("name") != pl.col("first")).iter_rows())
    return [_renamed(run, changed) for run in runs] if changed else list(runs)


def _kernels(trace: Trace) -> pl.Series:
    is_kernel = pl.col("kind").is_in(list(KERNEL_KINDS))
    names = trace["ops"].filter(is_kernel).select(pl.col("name").unique()).collect()["name"]
    return names.cast(pl.String).drop_nulls()


def _renamed(trace: Trace, names: Mapping[str, str]) -> Trace:
    is_kernel = pl.col("kind").is_in(list(KERNEL_KINDS))
    new = pl.col("name").cast(pl.String).replace(names).cast(pl.Categorical())
    ops = trace["ops"].with_columns(pl.when(is_kernel).then(new).otherwise("name").alias("name"))
    return trace.with_lazy({"ops": ops})


def with_normalised_names(trace: Trace) -> Trace:
    """Return a run whose kernel names lack the parts that vary with version or GPU."""
    return _renamed(trace, {name: normalised_name(name) for name in _kernels(trace)})


@dataclass(frozen=True)
class Recorded:
    """One recording of a program."""

    trace: Trace
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    """The run, its name in messages, and its labels (label -> value, such as ``network``)."""
    traffic: Traffic | None = None
    """Its traffic, for a comparison by link; else None."""


@dataclass(frozen=True)
class Asked:
    """The options of a comparison, with the meaning that `compare` gives them."""

    keys: tuple[str, ...]
    skip: Skip
    match_names: bool
    anyway: bool
    metric: Metric
    least: float | None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, by: str | Sequence[str], skip: Skip, metric: Metric, least: float | None,
        *, match_names: bool, anyway: bool,
    ) -> Asked:  # fmt: skip
        """Check and return the options; `UsageError` for an invalid key, metric or least change."""
        keys = parse_compare_keys(by)
        check_metric(metric)
        if least is not None and not (math.isfinite(least) and least > 0):
            raise UsageError(f"the least change is {least} %", "give more than 0")
        return cls(keys, skip, match_names, anyway, metric, least)

    def of_known_ranks(self, runs: Sequence[Recorded]) -> Asked:
        """Return options without ``rank`` if only some runs have ranks; an only key stays."""
        keys = tuple(key for key in self.keys if key != "rank")
        if not keys or keys == self.keys:
            return self
        unknown = [run.name for run in runs if not process_ranks(run.trace)["rank"].count()]
        if len(unknown) in (0, len(runs)):
            return self
        note = f"ranks of {', '.join(unknown)} are not known: rows are by {', '.join(keys)}"
        return replace(self, keys=keys, notes=(note,))


@dataclass(frozen=True, kw_only=True)
class Comparison(Answer):
    """Comparison of two runs: one row per group (such as a stage), with the difference and verdict.

    Columns and meta are those of the command `compare`: the columns of the keys, then times and
    counts of both runs. By stage there are rows ``idle`` and ``between_steps``, so that rows add up
    to the step; by ``step`` the table is `Comparison.contributions`. Intervals are of 95 %,
    adjusted like p-values for the number of rows. If an interval contains 0, the verdict is ``too
    small to matter`` or ``no difference shown``; the former if the whole interval lies within
    `least` (by default 0.1 % of the shorter step). The verdict is ``not enough iterations`` if a
    run has fewer than 5, and ``unknown`` if step times drift during the recording. ``a_ns`` is
    ``a_total_ns / (a_steps * a_devices)``. By memory there is one peak per run, and so no verdict.
    """

    @property
    def table(self) -> pl.DataFrame:
        """The compared groups, one row each."""
        return self.rows

    @property
    def contributions(self) -> pl.DataFrame:
        """The change of the step time, split into stages and idle time.

        Returns
        -------
        ``part`` (a stage, ``idle`` or ``between_steps``), ``a_total_ns`` and ``b_total_ns`` (whole
        numbers, over all iterations and devices), ``a_ns, b_ns`` and ``delta_ns``, B - A (per
        iteration and device), ``share`` (of the change of the step time; null if that is 0) and
        ``low_ns, high_ns, p_value, verdict``.
        """
        return self.tables["contributions"]

    @property
    def on_devices(self) -> pl.DataFrame:
        """The change of the step time by GPU (that both runs used), stage and idle time.

        Returns
        -------
        ``device, part`` (stage, idle time), ``a_ns, b_ns, delta_ns`` (B - A); if both runs used the
        same GPUs, means over GPUs equal the times in `contributions`.
        """
        return self.tables["devices"]


@dataclass(frozen=True)
class Prepared:
    """Two or more measured runs, ready to be compared."""

    runs: Sequence[Recorded]
    traces: Sequence[Trace]
    measured: list[Measured]
    """The recordings as given, their traces with unified kernel names, and their measured steps, in
    the same order."""
    parts: tuple[str, ...]
    """Names of the parts of steps: stages, ``idle`` and ``between_steps``."""
    reasons: list[str]
    """Why the runs are not comparable."""
    has_verdict: bool
    """Whether to give verdicts."""
    verdicts: dict[str, Any]
    """Run name -> what its processes were found to do, such as training."""
    notes: list[str]
    """Notes on the runs, in words."""

    @property
    def basis(self) -> dict[str, str]:
        """Meta entry ``basis`` (host times) if the runs have no GPU work; else empty."""
        return {} if has_ops(self.runs[0].trace) else {"basis": HOST}


def prepare(runs: Sequence[Recorded], options: Asked) -> Prepared:
    """Measure runs, and check that each can be compared with the first."""
    names = [run.name for run in runs]
    verdicts = [verdict_meta(run.trace) for run in runs]
    reasons = apart(runs, options.keys)
    traces = _with_names_alike([run.trace for run in runs], options)
    measured, empty = _measure(traces, options, names, [run.traffic for run in runs])
    reasons += empty
    measured, parts = in_one_account(measured, traces)
    measured, matched = with_hosts_matched(measured)
    notes = [
        *options.notes,
        *verdicts_note(dict(zip(names, verdicts, strict=True))),
        *_left_out(names, measured),
        *([] if parts == PARTS else [_ONE_ACCOUNT]),
        *matched,
    ]
    return Prepared(
        runs, traces, measured, parts, reasons, options.anyway or not reasons,
        dict(zip(names, verdicts, strict=True)), notes,
    )  # fmt: skip


def answered(
    options: Asked,
    found: Prepared,
    sides: tuple[Sequence[Measured], Sequence[Measured]],
    names: tuple[str, str],
    *,
    headline: str,
    step: Mapping[str, Any],
    notes: Sequence[str],
    method: str,
    rows: pl.DataFrame,
    readable: pl.DataFrame,
    tables: Mapping[str, pl.DataFrame],
    more: Mapping[str, Any] | None = None,
) -> Comparison:
    """Assemble a `Comparison`: its `rows`, their `readable` form, and further `tables`.

    `sides` are the measured steps of each recording of A, and of B, with their `names`. `headline`,
    `step`, `notes`, `method` and `more` (further entries) go into ``meta``.
    """
    keys = options.keys
    meta = {
        "headline": headline,
        "names": list(names),
        "by": list(keys),
        "skip": None if options.skip == "auto" else options.skip,
        **_of_sides("skipped", [max(run.skipped for run in side) for side in sides]),
        **_of_sides("iterations", [sum(len(run.iterations) for run in side) for side in sides]),
        **_of_sides("devices", [max(run.devices for run in side) for side in sides]),
        "per": _times_per(keys, found),
        "step": step,
        "judged": judged(step, options.metric, options.least),
        "not_comparable": found.reasons,
        "notes": [*found.notes, *notes, *_outside_notes(rows)],
        "method": method,
        "verdicts": found.verdicts,
        **(more or {}),
        **found.basis,
    }
    return Comparison(
        rows=rows,
        meta=meta,
        title=f"by {', '.join(keys)}",
        tables=dict(tables),
        readable=readable,
        empty="nothing ran in either",
        command="compare",
        figures={"figure": "step parts", "changes": "changes", "steps": "steps"},
    )


def _of_sides(name: str, values: Sequence[int]) -> dict[str, int]:
    return {f"{side}_{name}": value for side, value in zip("ab", values, strict=True)}


# -- measuring ---------------------------------------------------------------------------------


def apart(runs: Sequence[Recorded], keys: Sequence[str] = ("stage",)) -> list[str]:
    """Return reasons why a run is not comparable with the first run in a table by `keys`."""
    first = runs[0]
    found = [reason for other in runs[1:] for reason in _apart(first, other, keys)]
    return list(dict.fromkeys(found))


def _with_names_alike(traces: Sequence[Trace], options: Asked) -> Sequence[Trace]:
    """Return runs in which equal kernels have equal names, and equal range paths equal ids."""
    if options.match_names:
        traces = [with_normalised_names(each) for each in traces]
    elif "kernel" in options.keys:
        traces = with_names_alike(traces)
    return with_one_tree(list(traces)) if "range" in options.keys else traces


def _measure(
    runs: Sequence[Trace], options: Asked, names: Sequence[str], traffic: Sequence[Traffic | None]
) -> tuple[list[Measured], list[str]]:
    """Measure the steps of the runs by the keys in `options`; without steps in any, whole runs.

    Returns
    -------
    The measured steps of each run, and the reasons why they are not comparable.
    """
    keys, skip = options.keys, options.skip
    as_one_step = not all(map(has_iterations, runs))
    if as_one_step and skip not in (0, "auto"):
        raise UsageError(
            f"{' or '.join(names)} has no iterations to skip",
            "name or record ranges of steps: --iteration REGEX",
        )
    of_ops = ("stage",) if keys in (("memory",), ("step",), ("phase",)) else keys

    def measure(*, as_one: bool) -> list[Measured]:
        return [
            per_iteration(run, of_ops, skip=skip, as_one=as_one, traffic=moved)
            for run, moved in zip(runs, traffic, strict=True)
        ]

    found = measure(as_one=as_one_step)
    reasons = [] if as_one_step else empty_steps(found, names)
    if not (as_one_step or all(run.iterations for run in found)):
        found = measure(as_one=True)
    return found, reasons


# -- what is said of runs ----------------------------------------------------------------------


def _times_per(keys: tuple[str, ...], found: Prepared) -> str | None:
    """Return the unit of mean times: ``step/GPU``; ``step/process`` for host times and calls.

    By ``link`` it is ``step``, by ``memory`` None, as that has no times. Without steps, the
    recording takes the place of the step.
    """
    of = "step" if any(run.iterations for run in found.measured) else "recording"
    if keys in (("link",), ("memory",)):
        return of if keys == ("link",) else None
    return f"{of}/process" if found.basis or keys == ("api",) else f"{of}/GPU"


def _left_out(names: Sequence[str], measured: Sequence[Measured]) -> list[str]:
    return [
        f"left out, as not all processes of {name} have them: {count(lost, 'iteration')}"
        for name, run in zip(names, measured, strict=True)
        if (lost := run.counted.left_out)
    ]


def _outside_notes(table: pl.DataFrame) -> list[str]:
    """Return a note on the columns of work outside of steps, if there is such work."""
    some = any(table[name].sum() for name in OUTSIDE[:2] if name in table.columns)
    note = "outside_steps: work before the first step, after the last one and in excluded steps"
    return [f"{note}; in all, mean over devices"] if some else []


_SAME_LABELS = ("network", "batch", "gpus")
_LAUNCHED, _COVERED = 0.05, 0.2
"""Largest differences between the known shares of ops, and of time, of comparable runs."""
_EMPTY = 0.2
"""Largest share of annotated steps without GPU work; above it the recording missed the steps."""
_INFERRED = ("kernel_name", "copy_kind", "none")
"""Sources of a stage that look at an op alone; the others use ranges or the order of launches."""
_NOTABLE, _MOST = 0.05, 0.5
"""A stage with less of the time of all ops is none to speak of; by what most of it is known."""


def _apart(one: Recorded, other: Recorded, by: Sequence[str]) -> list[str]:
    """Return why two runs cannot be compared, in words; nothing if they can be.

    Reasons are: different number or model of GPUs, different number of ranks, different labels
    `network`, `batch` or `gpus`; kernels or iterations in one run only; and launching calls that
    are known for a much smaller share of ops in one run. By stage or step, reasons are also: stages
    are known for a much smaller share of one run's GPU time; or a stage is known from ranges or the
    order of launches in one run, and inferred from the ops alone in the other.

    Raises
    ------
    MissingDataError
        If one run has GPU work and the other has none.
    """
    a, b, names = one.trace, other.trace, (one.name, other.name)
    facts = [summarise(run) for run in (a, b)]
    without_work = [not run["ops"] for run in facts]
    if any(without_work) and not all(without_work):
        name, trace = (names[0], a) if without_work[0] else (names[1], b)
        raise MissingDataError(
            f"{name} has no GPU work, so there is nothing to compare",
            f"record with {how_to_record(trace, 'ops')}",
        )
    gpus_a, gpus_b = (count(int(run["devices"] or 0), "GPU") for run in facts)
    differ = [
        (gpus_a, gpus_b),
        (_models(a), _models(b)),
        (_world(a), _world(b)),
        (_recorded(a), _recorded(b)),
        *([(_processes(facts[0]), _processes(facts[1]))] if all(without_work) else []),
        *_of_labels((one.labels, other.labels)),
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


def _recorded(run: Trace) -> str:
    lacks = any(NO_KERNELS in text for text in run.warnings)
    return "no kernels recorded" if lacks else "kernels recorded"


def _of_labels(labels: tuple[Mapping[str, str], Mapping[str, str]]) -> list[tuple[str, str]]:
    return [
        (f"{label} {labels[0][label]}", f"{label} {labels[1][label]}")
        for label in _SAME_LABELS
        if label in labels[0] and label in labels[1]
    ]


def _of_shares(facts: Sequence[Mapping[str, object]], by: Sequence[str]) -> list[tuple[str, str]]:
    """Return text pairs (A, B) of shares that differ much: of ops whose launching call is known.

    By stage or step (`by`), also of GPU busy time whose stage is known.
    """
    shares = [("launched", _LAUNCHED, "launching calls known of {} of the ops")]
    if "stage" in by or "step" in by:
        shares.append(("coverage", _COVERED, "stages known of {} of GPU busy time"))
    found = []
    for key, most, template in shares:
        of_each = [share if isinstance(share := run[key], float) else 0.0 for run in facts]
        if abs(of_each[0] - of_each[1]) > most:
            texts = [template.format(percent(share)) for share in of_each]
            found.append((texts[0], texts[1]))
    return found


def _processes(facts: Mapping[str, object]) -> str:
    number = facts["processes"]
    return f"{number} process{'' if number == 1 else 'es'}"


def _models(trace: Trace) -> str:
    names = trace.read("devices").filter("active")["name"].drop_nulls().unique().sort()
    return ", ".join(names.to_list())


def _world(trace: Trace) -> str:
    """Return ``a job of N ranks``, N from the run's largest NCCL communicator; else empty."""
    ranks = communicators(trace).select(pl.col("ranks").max()).item()
    return "" if ranks is None else f"a job of {ranks} ranks"


def _of_sources(a: Trace, b: Trace) -> list[tuple[str, str]]:
    """Return text pairs (A, B) on stages with unlike sources of evidence in both runs.

    Unlike are sources that look at an op alone (`_INFERRED`), and others (ranges, launch order).
    """
    known = [_main_sources(run) for run in (a, b)]
    return [
        (f"{stage} known by {known[0][stage]}", f"{stage} known by {known[1][stage]}")
        for stage in known[0]
        if stage in known[1] and (known[0][stage] in _INFERRED) != (known[1][stage] in _INFERRED)
    ]


def _main_sources(trace: Trace) -> dict[str, str]:
    """Return stage -> source of evidence by which most of its GPU time was assigned to it.

    Left out are stages with at most 5 % of the summed duration of all ops, and stages of which no
    source assigned more than half.
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
    """Return notes on runs in which many annotated steps have no GPU work (maybe not recorded)."""
    found = []
    for name, run in zip(names, measured, strict=True):
        counted = run.counted
        if not run.iterations:
            found.append(f"of no annotated step of {name} any work is known")
        elif counted.empty > _EMPTY * counted.annotated:
            steps = f"{counted.empty:,} of {counted.annotated:,} annotated steps"
            found.append(f"{steps} of {name} have no work")
    return found


def has_iterations(trace: Trace) -> bool:
    """Test whether the run has known iterations."""
    return trace["iterations"].head(1).collect().height > 0
