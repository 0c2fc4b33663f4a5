"""Estimate step times of jobs on other hardware, or with another way to exchange weights.

Jobs come from files or runs; the ways (architectures) are, for example, AllReduce and PS/Worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit import present
from tracekit.analysis import studies
from tracekit.errors import UsageError
from tracekit.support.spelling import choose_among

if TYPE_CHECKING:
    from tracekit.analysis.comparison import Skip
    from tracekit.analysis.studies import Hardware
    from tracekit.model import Answer, Headline
    from tracekit.runs._question import Selection

MODELLED = "no time is measured: each resource gives the same share of its peak, nothing overlaps"


@dataclass(frozen=True)
class _Model:
    """Jobs, and what to estimate their step times for: hardware, and architectures (`to`).

    An architecture is a way to exchange weights, such as AllReduce or PS/Worker.
    """

    jobs: pl.DataFrame
    hardware: Hardware
    to: Sequence[str]
    sweep: Mapping[str, Sequence[str]]

    def components(self) -> pl.DataFrame:
        return studies.step_times(self.jobs, self.hardware)

    def architectures(self) -> pl.DataFrame:
        to = self.to or tuple(studies.MEDIA)
        return studies.project_architectures(self.jobs, self.hardware, to)

    def swept(self) -> pl.DataFrame:
        values = self.sweep or self.hardware.sweep or {}
        return studies.sweep_hardware(self.jobs, self.hardware, values)

    def means(self) -> pl.DataFrame:
        if self.sweep:
            return studies.gains(self._with_nodes(self.swept()), ["resource", "value"])
        if self.to:
            return studies.gains(self._with_nodes(self.architectures()), ["to"])
        shares = [f"{name}_share" for name in studies.COMPONENTS]
        return studies.weighted_means(self._with_nodes(self.components()), shares)

    def distribution(self) -> pl.DataFrame:
        if not self.sweep and not self.to:
            table = self._with_nodes(self.components())
            return pl.concat(
                studies.distribution(table, f"{name}_share") for name in studies.COMPONENTS
            )
        table = self.swept() if self.sweep else self.architectures()
        label = pl.format("{} {}", "resource", "value") if self.sweep else pl.col("to")
        parts = self._with_nodes(table).with_columns(label=label)
        measures = [name for name in _SPEEDUPS if name in parts.columns]
        return pl.concat(
            studies.distribution(part, name).with_columns(measure=pl.lit(f"{name}, {key}"))
            for (key,), part in parts.group_by("label", maintain_order=True)
            for name in measures
        )

    def _with_nodes(self, table: pl.DataFrame) -> pl.DataFrame:
        """Add to a table of jobs the number of workers that each has now, as column ``nodes``."""
        return table.join(self.jobs.select("job", nodes="workers"), on="job", how="left")


_SPEEDUPS = ("speedup", "throughput_speedup")
_HALF = 0.5


_WHATS: Mapping[str, tuple[str, Callable[[_Model], pl.DataFrame], str]] = {
    "jobs": ("jobs, as the model sees them", lambda model: model.jobs, ""),
    "components": ("time of a step by component", _Model.components, "time components"),
    "architectures": ("step on other architectures", _Model.architectures, "time components"),
    "hardware": ("step on other hardware", _Model.swept, "hardware speedups"),
    "means": ("means over jobs", _Model.means, ""),
    "distribution": ("distribution over jobs", _Model.distribution, "distributions"),
    "measured": (
        "model against measurement",
        lambda model: studies.measured_against(model.jobs, model.hardware),
        "",
    ),
}
"""Tables that can be requested: name -> title, function, and drawing."""


def projected(
    runs: Selection,
    features: Mapping[str, Any],
    *,
    jobs: str | None,
    what: str,
    hardware: str,
    to: Sequence[str],
    sweep: Mapping[str, Sequence[str]],
    pcie_share: int,
    skip: Skip,
) -> Answer:
    """Return estimated step times of jobs on other hardware or architectures, as `project` does.

    An architecture is a way to exchange weights, such as AllReduce. The options are those of
    `project`.

    Raises
    ------
    UsageError
        If two options exclude each other, or a feature is unknown.
    """
    from tracekit.model import Answer

    if to and sweep:
        raise UsageError("--to changes the architecture and --sweep the hardware", "give one")
    table = _jobs(runs, jobs, features, skip)
    title, ask, drawing = _WHATS[what]
    cluster = replace(studies.load_hardware(hardware), pcie_share=pcie_share)
    rows = ask(_Model(table, cluster, to, sweep))
    modelled = {} if what == "jobs" else {"modelled": MODELLED, "hardware": cluster.title}
    modelled |= {"gain": _gain(rows)} if what == "means" and to else {}
    return Answer(
        rows=rows,
        meta={**modelled, "warnings": _asked_for(table)},
        title=title if what == "jobs" else f"modelled · {title}",
        readable=_readable(rows),
        empty="no jobs",
        command="project",
        figures={"figure": drawing} if drawing else {},
        source=cluster.title,
        headline=_HEADLINES.get(what, _longest_part),
    )


def _volumes(rows: pl.DataFrame, _: Mapping[str, Any]) -> str:
    """Return a sentence: for how many jobs FLOPs, and memory, input and weight bytes are known."""
    known = rows.drop_nulls(["flops", "memory_bytes", "input_bytes", "weight_bytes"]).height
    return f"All that a step takes is known for {known:,} of {present.count(rows.height, 'job')}"


def _longest_part(rows: pl.DataFrame, _: Mapping[str, Any]) -> str | None:
    """Return a sentence: which component (such as compute or input) takes most of a step.

    For several jobs, which one takes most in most of them.
    """
    if "bound" not in rows.columns:
        return None
    known = rows.drop_nulls("bound")
    if known.is_empty():
        return "No job's step is known"
    if known.height == 1:
        job = known.row(0, named=True)
        share = present.percent(job[f"{job['bound']}_share"])
        sentence = f"A step of {job['job']} takes {present.duration(job['step_ns'])}"
        return f"{sentence}, {share} of it for {job['bound']}"
    most = known["bound"].value_counts(sort=True).row(0)
    return f"{most[1]:,} of {known.height:,} steps take longest for {most[0]}"


def _fastest(rows: pl.DataFrame, _: Mapping[str, Any]) -> str | None:
    """Return a sentence: the architecture or hardware that shortens a step most."""
    known = rows.drop_nulls("speedup")
    if known.is_empty():
        return "No job's step is known"
    best = known.sort("speedup", descending=True, maintain_order=True).row(0, named=True)
    on = best.get("to") or f"{best['resource']} of {best['value']}"
    sentence = f"On {on} a step of {best['job']} is {best['speedup']:.3g} times as fast, the most"
    samples = best.get("throughput_speedup")
    if samples is None:
        return sentence
    return f"{sentence}; all replicas handle {samples:.3g} times as many samples per second"


def _mean_part(rows: pl.DataFrame, _: Mapping[str, Any]) -> str | None:
    """Return a sentence: the component (such as compute) with the largest mean share of a step."""
    of_all = rows.filter(architecture="all", weighting="job")
    if "speedup" in rows.columns:
        return _fastest(of_all.with_columns(job=pl.lit("the mean job")), {})
    if of_all.height != 1:
        return None
    parts = {name: of_all[f"{name}_share"][0] or 0.0 for name in studies.COMPONENTS}
    most = max(parts, key=parts.__getitem__)
    of = present.count(of_all["jobs"][0], "job")
    return f"In the mean over {of} a step takes longest for {most}: {present.percent(parts[most])}"


def _median_share(rows: pl.DataFrame, _: Mapping[str, Any]) -> str | None:
    """Return a sentence: the measure (such as a component's share) with the largest median."""
    halves = rows.filter(pl.col("job_share") >= _HALF).unique("measure", keep="first")
    if halves.is_empty():
        return None
    measure, value = halves.sort("value", "measure").select("measure", "value").row(-1)
    words = measure.removesuffix("_share").replace("_", " ")
    text = present.percent(value) if measure.endswith("_share") else f"{value:.3g}"
    return f"Half of the jobs have {words} of at most {text}, the largest median"


def _error(rows: pl.DataFrame, _: Mapping[str, Any]) -> str | None:
    """Return a sentence: least and greatest error of modelled step times against measured ones."""
    errors = rows.filter(component="step")["error_percent"].drop_nulls().to_list()
    if not errors:
        return "No step is both modelled and measured"
    ends = dict.fromkeys(f"{each:+.1f} %" for each in (min(errors), max(errors)))
    return f"Modelled steps are off by {' to '.join(ends)}"


_HEADLINES: Mapping[str, Headline] = {
    "jobs": _volumes, "architectures": _fastest, "hardware": _fastest, "means": _mean_part,
    "measured": _error, "distribution": _median_share,
}  # fmt: skip


def _jobs(
    runs: Selection, jobs: str | None, features: Mapping[str, Any], skip: Skip
) -> pl.DataFrame:
    if jobs is not None:
        if runs.is_chosen or features:
            raise UsageError("--jobs contains the jobs and their volumes", "give it alone")
        return studies.read_jobs(jobs)
    rows = [studies.job_features(run.trace, run.labels, run.name, skip=skip) for run in runs]
    for name in features:
        if name not in studies.JOBS:
            raise UsageError(f"no feature {name!r}", choose_among(name, studies.JOBS))
    return studies.jobs_frame([{**row, **features} for row in rows])


def _asked_for(jobs: pl.DataFrame) -> list[str]:
    """Return a sentence per fact (such as FLOPs) unknown for some jobs: the option to give it."""
    weights = pl.col("weight_bytes").is_null() & pl.col("architecture").ne_missing("1w1g")
    needed = {name: pl.col(name).is_null() for name in ("flops", "memory_bytes", "input_bytes")}
    nulls = {name: pl.col(name).is_null() for name in ("architecture", "workers")}
    needed = {**nulls, **needed, "weight_bytes": weights}
    warnings = []
    for name, is_absent in needed.items():
        absent = jobs.filter(is_absent)["job"].to_list()
        if absent:
            of = absent[0] if len(absent) == 1 else f"{len(absent):,} of {jobs.height:,} jobs"
            option = f"--{name.replace('_', '-')}"
            warnings.append(f"{name} of {of} is not known: give it with {option}, or in a file")
    return warnings


def _gain(means: pl.DataFrame) -> str:
    """Return a sentence per architecture: what share of jobs has a shorter step with it.

    It also states the share of jobs that then handle more samples per second. An architecture is a
    way to exchange weights, such as AllReduce.
    """
    of_all = means.filter(architecture="all", weighting="job")
    columns = ("to", "faster_share", "throughput_faster_share", "jobs")
    return "; ".join(
        f"with {to} {100 * step:.1f} % of {present.count(jobs, 'job')} have a shorter step, and "
        f"{100 * throughput:.1f} % handle more samples per second"
        for to, step, throughput, jobs in of_all.select(columns).iter_rows()
    )


def _readable(rows: pl.DataFrame) -> pl.DataFrame:
    """Drop columns that are all null, and `evidence`, `peak` and `samples_per_s`, for display."""
    hidden = {"evidence", "peak", "samples_per_s"}
    unknown = {
        name for name in rows.columns if rows.height and rows[name].null_count() == rows.height
    }
    keep = {"job", "step_ns"}
    if "flops" in rows.columns:
        rows = rows.with_columns(pl.col("flops").round().cast(pl.Int64, strict=False))
    return rows.drop([name for name in rows.columns if name in (hidden | unknown) - keep])
