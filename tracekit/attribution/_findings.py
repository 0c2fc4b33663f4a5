"""Warnings about how stages were found, one sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from tracekit.attribution._passes import PASSES
from tracekit.attribution._thresholds import THRESHOLDS

_BY_NAMES = ("kernel_name", "copy_kind")
_BY_RANGES = ("nvtx", "process_range", "autograd")
_APART = ("pass_exchange", "weight_exchange", "gradient_exchange", "none")
"""Sources that are right by definition, and the one that means no source."""
_NS_PER_MS = 1_000_000
_PAIR = 2
_METHODS = {"threads": "found from threads", "order": "estimated from the order of launches"}


def findings(
    verdicts: pl.DataFrame,
    opinions: pl.DataFrame,
    processes: pl.DataFrame,
    iterations: pl.DataFrame,
) -> tuple[str, ...]:
    """Return warnings on cut recordings, inferred stages, and evidence that disagrees on stages.

    Parameters
    ----------
    verdicts, opinions, iterations
        The canonical tables of these names.
    processes
        The table of processes.
    """
    pids = dict(processes.select("process", "pid").iter_rows())
    several = verdicts.height > 1

    def named(text: str, process: int) -> str:
        return f"process {pids.get(process, process)}: {text}" if several else text

    found = []
    for verdict in verdicts.to_dicts():
        rows = opinions.filter(pl.col("process") == verdict["process"])
        texts = (
            *_cut(verdict, iterations), *_unlike(iterations, verdict["process"]),
            *_left_out(iterations, verdict["process"]),
            *_structure(rows, verdict), *_lopsided(rows, verdict),
            *_exchanges_forward(rows, verdict),
            *_disagreements(rows, verdict),
        )  # fmt: skip
        found += [named(text, verdict["process"]) for text in texts]
    return tuple(found)


def stored_findings(tables: Mapping[str, pl.DataFrame]) -> tuple[str, ...]:
    """Derive warnings on stages from a run's stored tables; return none if a table is missing."""
    names = ("verdicts", "opinions", "processes", "iterations")
    return findings(*map(tables.__getitem__, names)) if tables.keys() >= set(names) else ()


def _cut(verdict: Mapping[str, Any], iterations: pl.DataFrame) -> Iterator[str]:
    if verdict["iterations"] and not verdict["with_work"]:
        yield (
            f"none of {verdict['iterations']:,} iterations has GPU work: all recorded GPU work "
            "is outside of them"
        )
    if verdict["cut"] is None:
        return
    if verdict["whole"] == verdict["iterations"]:  # what is torn is none of these
        yield (
            "the recording of GPU work is cut at its beginning, within a step whose launches "
            "are missing; steps that were recorded completely are counted"
        )
        return
    ends = {"begin": "beginning", "end": "end", "both": "beginning and end"}[verdict["cut"]]
    # Structure does not see what is missing, but that it cannot tell where a step begins or ends;
    # a last step with less work, or that ends with the recording, may be all there.
    sources = iterations.filter(process=verdict["process"])["source"].cast(pl.String)
    by_structure = sources.len() and (sources == "structure").all()
    may_be_all = by_structure or verdict["with_work"] == verdict["iterations"]
    is_cut = "may be" if may_be_all else "is"
    yield (
        f"the recording of GPU work {is_cut} cut at its {ends}: of {verdict['iterations']:,} "
        f"iterations {verdict['with_work']:,} have GPU work, {verdict['whole']:,} of them "
        f"{'known to be ' * (is_cut != 'is')}whole"
    )


def _unlike(iterations: pl.DataFrame, process: int) -> Iterator[str]:
    """Yield a warning if a process has two complete iterations only, of very unlike op counts."""
    counts = iterations.filter(pl.col("process") == process, pl.col("whole"))["ops"].to_list()
    if len(counts) == _PAIR and min(counts) < THRESHOLDS.like_others * max(counts):
        first, last = counts
        yield (
            f"its 2 complete iterations have {first:,} and {last:,} ops: neither is "
            "known to be the usual one"
        )


def _left_out(iterations: pl.DataFrame, process: int) -> Iterator[str]:
    """Yield a warning if step numbers are missing: their time counts in the step before them."""
    by, lasts = pl.col("iteration").diff(), pl.col("start").diff()
    rows = iterations.filter(process=process).sort("start").select("iteration", by=by, lasts=lasts)
    for last, by_last, length in rows.filter(pl.col("by") > pl.col("by").median()).rows()[:1]:
        yield (
            f"no step between {last - by_last} and {last} is marked in the recording: the "
            f"{length / _NS_PER_MS:,.3f} ms from one to the other count as a step"
        )


def _structure(opinions: pl.DataFrame, verdict: Mapping[str, Any]) -> Iterator[str]:
    if verdict["decides"]:
        named = opinions["other_source"].cast(pl.String).is_in(_BY_RANGES).any()
        who = "ranges do not name all stages: the rest is"
        rest = who if named else "no range names a stage: they are"
        yield f"{rest} {_METHODS[verdict['structure']]}; see `tracekit info --stages`"
    if verdict["steps_by"]:
        yield verdict["steps_by"]
    if verdict["contradictions"] and verdict["decides"]:
        yield f"stages found from structure are contradicted: {verdict['contradictions']}"


def _lopsided(opinions: pl.DataFrame, verdict: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning if a training process has far more GPU time in forward than backward passes.

    As a rule backward passes take longer. `opinions` has the process's rows of the
    table of that name, `verdict` its row of ``verdicts``.
    """
    if verdict["verdict"] != "training" or verdict["cut"] is not None:
        return
    decided = opinions.filter(
        pl.col("stage_source").cast(pl.String) == pl.col("other_source").cast(pl.String)
    )
    forward, backward = (
        int(decided.filter(pl.col("stage").cast(pl.String) == stage)["total_ns"].sum())
        for stage in ("FP", "BP")
    )
    if forward > THRESHOLDS.far_above * backward > 0:
        yield (
            f"FP takes {forward / _NS_PER_MS:,.3f} ms of GPU time and BP "
            f"{backward / _NS_PER_MS:,.3f} ms, though backward passes take longer as a rule: part "
            "of BP may be called FP, or forward passes run alone, or wait in collectives"
        )


def _exchanges_forward(opinions: pl.DataFrame, verdict: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning if many gradients are exchanged where range or thread names say forward.

    `opinions` has the process's rows of the table of that name, `verdict` its row of ``verdicts``.
    """
    if verdict["verdict"] != "training":
        return
    exchanged = opinions.filter(pl.col("stage_source").cast(pl.String) == "gradient_exchange")
    if exchanged.is_empty():
        return
    source = pl.col("other_source").cast(pl.String)
    total = int(exchanged.filter(source == "gradient_exchange")["ops"].sum())
    forward = (
        exchanged.filter(
            source != "gradient_exchange", pl.col("other_stage").cast(pl.String) == "FP"
        )
        .group_by(source)
        .agg(pl.col("ops").sum())
        .sort("ops", "other_source", descending=[True, False])
    )
    for text, ops in forward.iter_rows():
        if ops > THRESHOLDS.exchanged_forward * total:
            yield (
                f"{ops:,} of {total:,} exchanges of gradients are launched where {text} gives FP: "
                "gradients come of backward, so that more than forward is called FP, or forward "
                "passes that are split over GPUs run without backward passes; see `tracekit info "
                "--stages`"
            )


def _disagreements(opinions: pl.DataFrame, verdict: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning if two sources of evidence (range and kernel names, say) disagree on stages.

    They do if they differ about much time, or if most of a whole pass by structure is overruled.
    The warning has the GPU time in question.
    """
    stage, source, other_stage, other = (
        pl.col(name).cast(pl.String)
        for name in ("stage", "stage_source", "other_stage", "other_source")
    )
    ns, pair = pl.col("total_ns"), ["stage_source", "other_source"]
    total = int(opinions.filter(source == other)["total_ns"].sum())
    differ = (source != other) & (stage != other_stage) & ~source.is_in(_APART)
    if verdict["verdict"] != "training" or not total or opinions.filter(differ).is_empty():
        return
    is_whole = (
        (other == "structure") & other_stage.is_in(PASSES) & (ns >= THRESHOLDS.left * total)
        & (2 * ns > pl.col("whole"))
    )  # fmt: skip
    by_names, by_others = THRESHOLDS.disagreement_by_names, THRESHOLDS.disagreement
    least = pl.when(other.is_in(_BY_NAMES)).then(by_names).otherwise(by_others)
    percent = (100 * ns / total).round().cast(pl.Int64)
    part = pl.format("{} for {} {} %", other_stage, stage, percent)
    listed = pl.col("parts").list.join(", ")
    found = (
        opinions.with_columns(whole=ns.sum().over("other_source", "other_stage"))
        .filter(differ)
        .group_by(*pair, "other_stage", "stage").agg(ns.sum(), pl.col("whole").first())
        .sort(-ns, *pair, "other_stage", "stage")
        .with_columns(part=part, is_whole=is_whole)
        .group_by(pair, maintain_order=True)
        .agg(ns.sum(), pl.col("is_whole").any(), parts=pl.col("part").filter(100 * ns >= total))
        .filter((ns >= least * total) | pl.col("is_whole"))
        .sort("total_ns", descending=True, maintain_order=True)
        .select(source, said=pl.format("{} about {} % ({})", other, percent, listed))
        .group_by("stage_source", maintain_order=True).agg(pl.col("said").str.join(", "))
    )  # fmt: skip
    for decides, shares in found.iter_rows():
        yield (
            f"{decides} decides stages, and other sources disagree: {shares} of GPU time; see "
            "`tracekit info --stages`"
        )
