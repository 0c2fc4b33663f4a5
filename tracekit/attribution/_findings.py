"""Warnings about how stages were found, one sentence each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from tracekit.attribution._passes import PASSES
from tracekit.attribution._thresholds import THRESHOLDS

_BY_NAMES = ("kernel_name", "copy_kind")
_BY_RANGES = ("nvtx", "process_range", "autograd")
_APART = ("pass_exchange", "weight_exchange", "gradient_exchange", "none")
"""Sources that are right by definition, and the one that means no source."""
_NS_PER_MS = 1_000_000
_PAIR = 2
_Opinions: TypeAlias = Sequence[Mapping[str, Any]]
"""Rows of the table of opinions, of one process."""
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
    order = ("stage_source", "other_source", "other_stage", "stage")  # as sources decide
    told = opinions.sort(order).with_columns(pl.selectors.enum().cast(pl.String))
    of_process = defaultdict(list)
    for opinion in told.iter_rows(named=True):
        of_process[opinion["process"]].append(opinion)
    steps_of = iterations.partition_by("process", as_dict=True)

    def named(text: str, process: int) -> str:
        return f"process {pids.get(process, process)}: {text}" if several else text

    found = []
    for verdict in verdicts.to_dicts():
        rows = of_process[verdict["process"]]
        steps = steps_of.get((verdict["process"],), iterations.clear())
        texts = (
            *_cut(verdict, steps), *_unlike(steps), *_left_out(steps),
            *_structure(rows, verdict), *_lopsided(rows, verdict),
            *_exchanges_forward(rows, verdict), *_disagreements(rows, verdict),
        )  # fmt: skip
        found += [named(text, verdict["process"]) for text in texts]
    return tuple(found)


def stored_findings(tables: Mapping[str, pl.DataFrame]) -> tuple[str, ...]:
    """Derive warnings on stages from a run's stored tables; return none if a table is missing."""
    names = ("verdicts", "opinions", "processes", "iterations")
    return findings(*map(tables.__getitem__, names)) if tables.keys() >= set(names) else ()


def _cut(verdict: Mapping[str, Any], steps: pl.DataFrame) -> Iterator[str]:
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
    sources = steps["source"].cast(pl.String)
    by_structure = sources.len() and (sources == "structure").all()
    may_be_all = by_structure or verdict["with_work"] == verdict["iterations"]
    is_cut = "may be" if may_be_all else "is"
    yield (
        f"the recording of GPU work {is_cut} cut at its {ends}: of {verdict['iterations']:,} "
        f"iterations {verdict['with_work']:,} have GPU work, {verdict['whole']:,} of them "
        f"{'known to be ' * (is_cut != 'is')}whole"
    )


def _unlike(steps: pl.DataFrame) -> Iterator[str]:
    """Yield a warning if a process has two complete iterations only, of very unlike op counts."""
    counts = steps["ops"].filter(steps["whole"]).to_list()
    if len(counts) == _PAIR and min(counts) < THRESHOLDS.like_others * max(counts):
        first, last = counts
        yield (
            f"its 2 complete iterations have {first:,} and {last:,} ops: neither is "
            "known to be the usual one"
        )


def _left_out(steps: pl.DataFrame) -> Iterator[str]:
    """Yield a warning if step numbers are missing: their time counts in the step before them."""
    if steps.height < _PAIR:
        return
    number, start = steps.sort("start").select("iteration", "start").to_numpy().T
    by = np.diff(number)
    for at in np.flatnonzero(by > np.median(by))[:1]:
        yield (
            f"no step between {number[at]} and {number[at + 1]} is marked in the recording: the "
            f"{(start[at + 1] - start[at]) / _NS_PER_MS:,.3f} ms from one to the other count as a "
            "step"
        )


def _structure(opinions: _Opinions, verdict: Mapping[str, Any]) -> Iterator[str]:
    if verdict["decides"]:
        named = any(each["other_source"] in _BY_RANGES for each in opinions)
        who = "ranges do not name all stages: the rest is"
        rest = who if named else "no range names a stage: they are"
        yield f"{rest} {_METHODS[verdict['structure']]}; see `tracekit info --stages`"
    if verdict["steps_by"]:
        yield verdict["steps_by"]
    if verdict["contradictions"] and verdict["decides"]:
        yield f"stages found from structure are contradicted: {verdict['contradictions']}"


def _lopsided(opinions: _Opinions, verdict: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning if a training process has far more GPU time in forward than backward passes.

    As a rule backward passes take longer. `opinions` has the process's rows of the
    table of that name, `verdict` its row of ``verdicts``.
    """
    if verdict["verdict"] != "training" or verdict["cut"] is not None:
        return
    lasts: Counter[str] = Counter()
    for each in opinions:
        lasts[each["stage"]] += each["total_ns"] * (each["stage_source"] == each["other_source"])
    if lasts["FP"] > THRESHOLDS.far_above * lasts["BP"] > 0:
        yield (
            f"FP takes {lasts['FP'] / _NS_PER_MS:,.3f} ms of GPU time and BP "
            f"{lasts['BP'] / _NS_PER_MS:,.3f} ms, though backward passes take longer as a rule: "
            "part of BP may be called FP, or forward passes run alone, or wait in collectives"
        )


def _exchanges_forward(opinions: _Opinions, verdict: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning if many gradients are exchanged where range or thread names say forward.

    `opinions` has the process's rows of the table of that name, `verdict` its row of ``verdicts``.
    """
    if verdict["verdict"] != "training":
        return
    total, forward = 0, Counter[str]()
    for each in opinions:
        if each["stage_source"] == "gradient_exchange":
            if (source := each["other_source"]) == "gradient_exchange":
                total += each["ops"]
            elif each["other_stage"] == "FP":
                forward[source] += each["ops"]
    for text, ops in sorted(forward.items(), key=lambda each: -each[1]):
        if ops > THRESHOLDS.exchanged_forward * total:
            yield (
                f"{ops:,} of {total:,} exchanges of gradients are launched where {text} gives FP: "
                "gradients come of backward, so that more than forward is called FP, or forward "
                "passes that are split over GPUs run without backward passes; see `tracekit info "
                "--stages`"
            )


def _disagreements(opinions: _Opinions, verdict: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning if two sources of evidence (range and kernel names, say) disagree on stages.

    They do if they differ about much time, or if most of a whole pass by structure is overruled.
    The warning has the GPU time in question.
    """
    if verdict["verdict"] != "training":
        return
    total, whole, differ = 0, Counter[tuple[str, str]](), Counter[tuple[str, ...]]()
    for each in opinions:
        source, other, ns = each["stage_source"], each["other_source"], each["total_ns"]
        stage, other_stage = each["stage"], each["other_stage"]
        whole[other, other_stage] += ns
        if source == other:
            total += ns
        elif stage != other_stage and source not in _APART:
            differ[source, other, other_stage, stage] += ns
    pairs: dict[tuple[str, str], dict[tuple[str, str], int]] = defaultdict(dict)
    for (source, other, *stages), ns in sorted(differ.items(), key=lambda each: -each[1]):
        pairs[source, other][stages[0], stages[1]] = ns
    said = defaultdict(list)
    for (source, other), parts in sorted(pairs.items(), key=lambda each: -sum(each[1].values())):
        is_whole = other == "structure" and any(
            stage in PASSES and ns >= THRESHOLDS.left * total and 2 * ns > whole[other, stage]
            for (stage, _), ns in parts.items()
        )
        by_names = other in _BY_NAMES
        least = THRESHOLDS.disagreement_by_names if by_names else THRESHOLDS.disagreement
        if total and (is_whole or sum(parts.values()) >= least * total):
            listed = ", ".join(
                f"{other_stage} for {stage} {100 * ns / total:.0f} %"
                for (other_stage, stage), ns in parts.items()
                if 100 * ns >= total
            )
            share = 100 * sum(parts.values()) / total
            said[source].append(f"{other} about {share:.0f} % ({listed})")
    for decides, shares in said.items():
        yield (
            f"{decides} decides stages, and other sources disagree: {', '.join(shares)} of GPU "
            "time; see `tracekit info --stages`"
        )
