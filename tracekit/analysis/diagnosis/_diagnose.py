"""Apply all rules to a run: problems, their cost, remedies, and changes since a base run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.analysis.diagnosis import (
    _compute_rules,
    _exchange_rules,
    _host_rules,
    _parts,
    _run_rules,
    _stragglers,
)
from tracekit.analysis.diagnosis._facts import WORTH, Confidence, Facts, Finding, facts_of
from tracekit.analysis.facts import Facts as RunFacts
from tracekit.analysis.facts import require_ops
from tracekit.errors import UsageError
from tracekit.model import Answer, Trace
from tracekit.support.files import schemas
from tracekit.support.toml import read_toml
from tracekit.support.wording import count, note, summary, text_of, time_text

if TYPE_CHECKING:
    from tracekit.analysis.traffic import Traffic


Rule = Callable[[Facts], Finding | None]

RULES: Mapping[str, Rule] = {
    rule.__name__: rule
    for rule in (
        _host_rules.input_bound,
        _exchange_rules.exposed_collectives,
        _exchange_rules.late_buckets,
        _exchange_rules.small_buckets,
        _exchange_rules.stragglers,
        _host_rules.sync_in_loop,
        _host_rules.pageable_copies,
        _host_rules.unhidden_copies,
        _host_rules.small_copies,
        _host_rules.unified_memory,
        _host_rules.launch_bound,
        _host_rules.off_cpu,
        _host_rules.busy_host,
        _host_rules.compilation,
        _host_rules.allocation_in_loop,
        _run_rules.cold_steps,
        _run_rules.slow_links,
        _run_rules.slow_clocks,
        _run_rules.evaluation_too_often,
        _compute_rules.fp32_products,
        _compute_rules.layout_transposes,
        _compute_rules.unfused_elementwise,
        _compute_rules.tiny_kernels,
        _compute_rules.largest_headroom,
        _exchange_rules.central_update,
        _exchange_rules.pipeline_bubbles,
        _host_rules.profiler_overhead,
        _run_rules.missing_evidence,
    )
}
"""The rules; each returns a finding or None."""
_MEASURES = (
    (_parts.idle, _parts.calls, _parts.exchanges, _parts.sends, _parts.kernels, _parts.host_calls,
     _host_rules.host_copies, _host_rules.places, _compute_rules.named_kernels,
     _compute_rules.operators, _stragglers.work_by_name),
    (_host_rules.layers_of_copies, _compute_rules.layers_of_kernels),
)  # fmt: skip
"""What rules ask of each part of a run; layers, which take long to find, only for findings."""

_ENOUGH = 40
"""Findings of a rule with fewer tested claims are `likely` at best."""
_OFTEN = 20
"""Findings of a rule that is wrong more than once in so many claims are `perhaps`."""
_CAUSES_OF = {
    "input_bound": ("input", "between_steps"), "sync_in_loop": ("waiting_call",),
    "launch_bound": ("host_delay", "launch_latency"), "busy_host": ("host_delay",),
    "tiny_kernels": ("host_delay", "launch_latency"),
    "off_cpu": ("off_cpu",), "compilation": ("compiling", "loading"),
    "allocation_in_loop": ("allocation",), "profiler_overhead": ("profiler",),
    "pipeline_bubbles": ("behind_stage",), "stragglers": ("behind_collective",),
    "central_update": ("behind_weight_update",),
}  # fmt: skip
"""Causes of idle time that a rule concerns: rule -> causes."""
_KINDS_OF = {
    "exposed_collectives": ("collective",), "late_buckets": ("collective",),
    "small_buckets": ("collective",), "pageable_copies": ("h2d", "d2h"),
    "unhidden_copies": ("h2d", "d2h"), "slow_links": ("p2p", "staged", "collective"),
}  # fmt: skip
"""Kinds of ops that a rule concerns: rule -> kinds."""


@cache
def score() -> Mapping[str, Any]:
    """Return each rule's test record: ``claims`` (findings tested) and ``wrong`` (of these).

    The record is written by benchmarks/findings.py.
    """
    return read_toml(schemas() / "findings" / "score.toml")


def at_most(rule: str, confidence: Confidence) -> Confidence:
    """Return the `confidence` of a finding, lowered if its rule did badly in tests.

    The result is ``perhaps`` if the rule was often wrong. If the rule was rarely tested,
    ``measured`` becomes ``likely``.
    """
    claims, wrong = (score().get(rule, {}).get(key, 0) for key in ("claims", "wrong"))
    if _OFTEN * wrong > claims:
        return "perhaps"
    return "likely" if confidence == "measured" and claims < _ENOUGH else confidence


# -- findings ----------------------------------------------------------------------------------


_TOP = 5
"""Number of findings that are listed by default."""
_PERHAPS = "perhaps"
FINDINGS = pl.Schema(
    {
        "rule": pl.String(), "finding": pl.String(), "win_ns": pl.Float64(),
        "win_low_ns": pl.Float64(), "win_high_ns": pl.Float64(), "share": pl.Float64(),
        "confidence": pl.String(), "evidence": pl.List(pl.String), "advice": pl.String(),
        "win_unknown": pl.String(), "fingerprint": pl.String(),
    }
)  # fmt: skip
_NO_STEPS = "no steps are known"
_TOO_LITTLE = "not listed, as GPUs would then wait longer for input or the host"
_TOGETHER = "do not add wins: two of them may be about the same time"
NOTICED = WORTH / 2
"""The base is searched for what takes this share of a step; a win that moves by less stays."""
_PART = 0.1
"""A win that moves by less than this part of itself stays."""
WORSE = ("new", "grown")
"""States of findings that a change of the program may have caused."""
_LONGER = 1.1
"""Where a step of the base takes so many times as long, a finding that it lacks may not be new; and
where the mean step takes so many times as long as the median one, a note tells both."""
_ORDER = {"new": 0, "grown": 1, "uncovered": 2, "unchanged": 3, "shrunk": 4, "gone": 5}


def diagnose(
    trace: Trace,
    *,
    top: int | None = _TOP,
    rules: Sequence[str] | None = None,
    traffic: Traffic | None = None,
    worth: float = WORTH,
    without: Collection[int] = (),
) -> Answer:
    """Apply rules to a run, and list the problems that they find (findings).

    ``docs/diagnose.md`` defines the rules, and the win of a finding: the time by which a step would
    get shorter. The largest win is first. Findings of rules that were wrong in more than a
    twentieth of their tests are marked ``perhaps``, listed last and not among the first 5. The
    table ``findings`` contains all findings.

    Parameters
    ----------
    top
        Largest number of findings to list; None lists all.
    rules
        Names of the rules to apply; all by default.
    traffic
        Traffic of the run, for rules on links; None leaves these rules without data.
    worth
        Least share of a step that a problem must cost to be listed.
    without
        Numbers of steps to leave out, such as outliers.

    Raises
    ------
    UsageError
        If a rule is unknown.
    MissingDataError
        If the run contains no GPU work.
    """
    asked = _chosen(rules)
    require_ops(trace)
    known = facts_of(trace, traffic, worth=worth, without=without)
    facts = replace(known, measures=_MEASURES)
    answers = {name: each for name in asked if (each := RULES[name](facts)) is not None}
    hidden = [name for name, finding in answers.items() if not _is_left(facts, finding)]
    found = [_row(facts, name, answers[name]) for name in answers if name not in hidden]
    rows = pl.DataFrame(found, schema=FINDINGS).sort(
        pl.col("confidence") == _PERHAPS, "share", descending=[False, True], nulls_last=True,
        maintain_order=True,
    )  # fmt: skip
    doubtful = rows.filter(pl.col("confidence") == _PERHAPS).height
    # Who asks for a rule by its name hears it; nobody reads it among the first five else.
    is_hidden = doubtful and rules is None and top is not None and top <= _TOP
    firm = rows.head(rows.height - doubtful) if is_hidden else rows
    listed = firm if top is None else firm.head(top)
    meta = _meta(facts, rows, asked) | ({"hidden": hidden} if hidden else {})
    return Answer(
        rows=listed,
        meta=meta | ({_PERHAPS: doubtful} if is_hidden else {}),
        title="what takes time",
        tables={"findings": rows},
        readable=_readable(listed),
        empty=f"nothing found that takes {100 * worth:g} % of a step or more"
        + (", except what waits hide" if hidden else "")
        + (", but by rules that are often wrong: --all lists them" if is_hidden else ""),
        as_records=True,
        command="diagnose",
        source=tuple(asked),
    )


def _chosen(rules: Sequence[str] | None) -> Sequence[str]:
    unknown = set(rules or ()) - set(RULES)
    if unknown:
        raise UsageError(
            f"no rule is called {', '.join(sorted(unknown))}", f"there are {', '.join(RULES)}"
        )
    return [name for name in RULES if rules is None or name in rules]


def _is_left(facts: Facts, found: Finding) -> bool:
    """Test if a win is worth listing after GPUs lose a part of it to longer waits for the host."""
    if not found.of_gpu or found.win is None:
        return True
    left = facts.shortened(found.win.estimate)
    return left == found.win.estimate or facts.is_worth(left)


def _row(facts: Facts, rule: str, found: Finding) -> dict[str, Any]:
    """Return a finding as a row; its win is at most the step time outside of compute kernels.

    Wins outside of steps, and of faster compute kernels, are not limited so.
    """
    bounded, share = None, None
    if found.win is not None:
        win, low, high = found.win
        won = map(facts.shortened, (win, low)) if found.of_gpu else (win, low)
        is_bounded = not (found.outside or found.of_compute)
        bounded = [min(each, facts.winnable_ns) if is_bounded else each for each in (*won, high)]
        share = bounded[0] / facts.step_ns if facts.step_ns else None
    win_ns, low_ns, high_ns = bounded if bounded and facts.has_steps else (None, None, None)
    return {
        "rule": rule, "finding": found.finding, "win_ns": win_ns, "win_low_ns": low_ns,
        "win_high_ns": high_ns, "share": share, "confidence": at_most(rule, found.confidence),
        "evidence": list(found.evidence), "advice": in_words_of(facts.trace, found.advice),
        "win_unknown": found.unknown or (None if facts.has_steps else _NO_STEPS),
        "fingerprint": hashlib.sha256(f"tracekit diagnose {rule}".encode()).hexdigest()[:16],
    }  # fmt: skip


def in_words_of(trace: Trace, advice: str) -> str:
    """Return advice in which names of PyTorch and CUDA are replaced by JAX's, DALI's and HIP's.

    If the framework is unknown, PyTorch's names stay, as examples.
    """
    for name, other in trace.once(_words, of_all=True):
        advice = advice.replace(name, other)
    return advice


def _words(trace: Trace) -> list[tuple[str, str]]:
    """Return pairs (name, replacement) for runs of JAX or other XLA, of DALI, and for AMD GPUs.

    A run whose only sign of XLA is the NVTX domain TSL is not one of them, as TensorFlow without
    XLA uses it, too.
    """
    makers = trace.read("devices")["name"].cast(pl.String).fill_null("")
    calls = trace["calls"].filter(pl.col("name").cast(pl.String).str.starts_with("hip"))
    domain, name = (pl.col(each).cast(pl.String) for each in ("domain", "name"))
    marks = trace["ranges"].filter(domain == "TSL", name.str.contains("^(Thunk|Xla)"))
    some = {
        "jax": RunFacts(trace).recorders == ["jax.profiler"] or marks.head(1).collect().height,
        "dali": trace["ranges"].filter(domain == "DALI").head(1).collect().height,
        "hip": makers.str.contains("(?i)amd|radeon").any() or calls.head(1).collect().height,
    }
    words = read_toml(schemas() / "findings" / "words.toml")
    return [pair for name, applies in some.items() if applies for pair in words[name].items()]


def _meta(facts: Facts, rows: pl.DataFrame, asked: Collection[str]) -> dict[str, Any]:
    known: dict[str, float | None] = {"last_step_ns": facts.last_ns}
    latest: dict[str, Any] = {}
    if facts.step_ns > _LONGER * facts.median_ns:
        known["median_step_ns"] = facts.median_ns
    waits = facts.waits.filter(pl.col("collective") != "send_recv")
    of_stragglers = "stragglers" in asked and "stragglers" not in rows["rule"]
    if facts.has_steps and of_stragglers and waits.height:
        caused = (pl.col("caused_ns").sum() / facts.number).round().cast(pl.Int64)
        by_gpu = waits.group_by("device").agg(
            pl.col("is_last").sum().alias("last"), pl.len().alias("collectives"), caused
        )
        worst = by_gpu.sort("caused_ns", "device").row(-1, named=True)
        length = int(waits["wait_ns"].sum()) / max(facts.cells.height, 1)
        if facts.is_worth(length) or 2 * worst["last"] > worst["collectives"]:
            known["waits_ns"], latest = length, worst
    return {
        "step_ns": round(facts.step_ns) if facts.has_steps else None,
        "steps": facts.number if facts.has_steps else 0,
        "devices": facts.steps["device"].n_unique(),
        **{name: round(length) for name, length in known.items() if length is not None},
        **({"latest": latest} if latest else {}),
        "findings": rows.height,
        "asked": len(asked),
        **({"wins": _TOGETHER} if rows.height > 1 else {}),
    }


def _readable(rows: pl.DataFrame) -> pl.DataFrame:
    """Return findings as printed: win and interval in one text; in a comparison, also the state.

    The state is whether a finding is new, grown, shrunk or gone, with its win in the base run.
    """
    win = pl.format(
        "{} ms per step ({} to {})", *map(_milliseconds, ("win_ns", "win_low_ns", "win_high_ns"))
    )
    unknown = pl.format("unknown: {}", "win_unknown")
    wins = pl.when(pl.col("win_ns").is_null()).then(unknown).otherwise(win)
    state = []
    if "state" in rows.columns:
        before = pl.format("{}, {} ms per step before", "state", _milliseconds("base_win_ns"))
        state = [pl.coalesce(before, "state").alias("state")]
    return rows.select(
        "rule", *state, "finding", wins.alias("win"), "confidence", "evidence", "advice"
    )


def _milliseconds(name: str) -> pl.Expr:
    """Return times in ms with three decimals, so that ends of an interval look alike."""
    whole = (pl.col(name) / 1_000).round(0).cast(pl.Int64)
    decimals = (whole % 1_000).cast(pl.String).str.zfill(3)
    return pl.format("{}.{}", whole // 1_000, decimals)


def against(found: Sequence[Answer], base: Sequence[Answer], *, top: int | None = None) -> Answer:
    """Compare the findings of B with those of the base A: which are new, grown, shrunk or gone.

    With several recordings per side, a finding is new only if all recordings of B and none of the
    base have it; its win is the least over recordings of B, its win in the base the greatest over
    the base's.

    Parameters
    ----------
    found
        Results of `diagnose` for the recordings of B, with all findings.
    base
        Results of `diagnose` for the base, with all findings above the share `NOTICED` of a step.
    top
        Largest number of findings to list; None lists all.

    Returns
    -------
    The first diagnosis of B with the findings of both sides, new ones first, and the columns
    ``state`` (``new``, ``grown``, ``uncovered``, ``shrunk``, ``unchanged`` or ``gone``),
    ``base_win_ns`` and ``base_share``. Findings that are gone have the values of the base. A
    finding is ``grown`` or ``shrunk`` if its win changed by more than the share `NOTICED` of the
    base's step, and by more than a tenth. A new or grown finding becomes ``uncovered`` if the
    base's step is over 1.1 times as long as B's, and longer by at least the rise of the win: the
    longer step may have hidden the finding.
    """
    now, before = _side(found, greatest=False), _side(base, greatest=True)
    pairs = [(now.get(rule), before.get(rule)) for rule in {**now, **before}]
    own = found[0].tables["findings"].schema
    more = {"state": pl.String(), "base_win_ns": pl.Float64(), "base_share": pl.Float64()}
    order = pl.col("state").replace_strict(_ORDER, return_dtype=pl.Int8)
    rows = pl.DataFrame(
        [_changed_row(*pair) for pair in pairs if _is_listed(*pair)], schema={**own, **more}
    )
    lengths = [[each.meta["step_ns"] or 0 for each in side] for side in (base, found)]
    before_ns, now_ns = min(lengths[0]), max(*lengths[1], 1)
    if before_ns > _LONGER * now_ns:
        times = f"{before_ns / now_ns:.3g} times"
        there = f"; in the base, whose step is {times} as long, waits may hide it."
        finding = pl.col("finding").str.strip_suffix(".") + there
        is_worse = pl.col("state").is_in(WORSE)
        rise = pl.col("win_ns") - pl.col("base_win_ns").fill_null(0)
        is_hidden = is_worse & (rise <= before_ns - now_ns)
        rows = rows.with_columns(
            finding=pl.when(is_worse).then(finding).otherwise("finding"),
            state=pl.when(is_hidden).then(pl.lit("uncovered")).otherwise("state"),
        )
    rows = rows.sort(order, "share", descending=[False, True], nulls_last=True, maintain_order=True)
    listed = rows if top is None else rows.head(top)
    return replace(
        found[0], rows=listed, tables={"findings": rows}, readable=_readable(listed),
        empty="nothing found in either run",
    )  # fmt: skip


def _side(diagnoses: Sequence[Answer], *, greatest: bool) -> dict[str, dict[str, Any]]:
    """Return rule -> its finding with the largest share of a step among a side's recordings.

    If not `greatest`: the one with the least share, if all recordings have one.
    """
    every: dict[str, list[dict[str, Any]]] = {}
    for diagnosis in diagnoses:
        for row in diagnosis.tables["findings"].iter_rows(named=True):
            every.setdefault(row["rule"], []).append(row)
    least = 1 if greatest else len(diagnoses)
    choose = max if greatest else min
    return {
        rule: choose(rows, key=lambda row: row["share"] or 0.0)
        for rule, rows in every.items()
        if len(rows) >= least
    }


def _is_listed(now: dict[str, Any] | None, before: dict[str, Any] | None) -> bool:
    """Test if a finding takes a large (`WORTH`) or unknown share of a step in B or in the base."""
    shares = [row["share"] for row in (now, before) if row is not None]
    return any(share is None or share >= WORTH for share in shares)


def _changed_row(now: dict[str, Any] | None, before: dict[str, Any] | None) -> dict[str, Any]:
    own = now or before or {}
    return {
        **own,
        "state": _state(now, before),
        "base_win_ns": before and before["win_ns"],
        "base_share": before and before["share"],
    }


def _state(now: dict[str, Any] | None, before: dict[str, Any] | None) -> str:
    if before is None or now is None:
        return "new" if before is None else "gone"
    if before["share"] is None or now["share"] is None:
        return "unchanged"
    # A step of the base is the measure: its share would move with whatever else changed.
    is_timed = before["win_ns"] and now["win_ns"]
    share = before["share"] * (now["win_ns"] / before["win_ns"]) if is_timed else now["share"]
    moved = share - before["share"]
    if abs(moved) <= max(NOTICED, _PART * before["share"]):
        return "unchanged"
    return "grown" if moved > 0 else "shrunk"


def longest_examples(ops: pl.DataFrame, idle: pl.DataFrame) -> Mapping[str, tuple[int, int, int]]:
    """Return an example for each rule: the longest idle gap or op of the kind that it is about.

    The examples are chosen from `ops` and from `idle` (``device, start, end, cause``).

    Returns
    -------
    Rule -> GPU, start and end of the example, ns.
    """
    cause, kind, name = (pl.col(column).cast(pl.String) for column in ("cause", "kind", "name"))
    about = [
        *((rule, idle, cause.is_in(values)) for rule, values in _CAUSES_OF.items()),
        *((rule, ops, kind.is_in(values)) for rule, values in _KINDS_OF.items()),
        *(
            (rule, ops, (kind == "compute") & holds(name))
            for rule, holds in _compute_rules.KERNELS_OF.items()
        ),
    ]
    found = {}
    for rule, rows, concerns in about:
        own = rows.filter(concerns).select("device", "start", "end")
        if own.height:
            found[rule] = own.row(int((own["end"] - own["start"]).arg_max() or 0))
    return found


@summary(
    "step_ns", "steps", "devices", "findings", "asked",
    optional=["perhaps", "last_step_ns", "median_step_ns", "waits_ns", "latest"],
)  # fmt: skip
def _diagnosis_notes(meta: Mapping[str, Any]) -> list[str]:
    """Return notes on a diagnosis: the steps examined, and the number of rules with findings."""
    on, each = f"on {count(meta['devices'], 'GPU')}", " per GPU" * (meta["devices"] > 1)
    length = f"{time_text(meta['step_ns'])}{each} in the mean"
    steps = f"{count(meta['steps'], 'usual step')} {on}, {length}"
    sentence = f"{count(meta['asked'], 'rule')} asked, {count(meta['findings'], 'finding')}"
    if "perhaps" in meta:
        sentence += f", {meta['perhaps']} by rules that are often wrong (--all)"
    if "median_step_ns" in meta:
        steps += f", {time_text(meta['median_step_ns'])} in the median: findings are of the mean"
    if "last_step_ns" in meta:
        steps += (
            f" (without the last, {time_text(meta['last_step_ns'])}: it ends with its own work)"
        )
    of_rules = f"{steps if meta['steps'] else f'no steps {on}'} · {sentence}"
    if "waits_ns" not in meta:
        return [of_rules]
    waits = f"a GPU waits {time_text(meta['waits_ns'])} per step for others in collectives"
    waits += " while it runs nothing else"
    one, lost = meta["latest"], time_text(meta["latest"]["caused_ns"])
    often = f"GPU {one['device']} is last in {one['last']:,} of {one['collectives']:,}"
    why = f"no straggler is certain: {often}, for which the others wait {lost} per step"
    return [of_rules, f"{waits}; {why}; see `tracekit stragglers`"]


note("wins")(lambda text: [text_of(text)])
note("hidden")(lambda rules: [f"{_TOO_LITTLE}: {', '.join(rules)}"])
