"""Idle time of GPUs by cause, device, step, stage of the next op, and range of the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from tracekit.analysis.calls import (
    MEMBERS,
    OF_GROUPS,
    collective_calls,
    communicator_groups,
    in_stretch,
    members_of_rows,
    uncounted_waits,
    unnamed_groups,
)
from tracekit.analysis.facts import (
    LEAST,
    MOST_NAMED,
    OUTSIDE_STEPS,
    how_to_record,
    how_to_see_waits,
    is_by_steps,
    is_message,
    leading_keys,
    most_by_share,
    require_ops,
    step_phases,
    unseen,
    with_words,
)
from tracekit.analysis.idle_account import (
    CAUSES,
    QUEUED_NS,
    IdleSums,
    doubt_of_silence,
    doubt_of_waiting,
    idle_sums,
    idle_windows,
    longest_gaps,
)
from tracekit.analysis.statistics import Skip
from tracekit.analysis.step_sums import cold_meta, cold_of, numbering_meta
from tracekit.engine import counted_steps, iterations_in, numbered_alike
from tracekit.model import Answer, Trace, with_clocks
from tracekit.support.wording import count, first_line, note, percent, text_of, time_text

_OWNER = ["process", "device"]
_SHARES = "share: idle_ns / idle_ns of all rows; window_share: idle_ns / window_ns"
_LENGTH = pl.col("end") - pl.col("start")
_SAID_OF_COLD = 0.1
"""Least share of idle time in cold steps that the first line mentions."""
_SHORT_NS = 1_000
_MUCH = 0.05
"""Least share of idle time outside of the window, or unexplained, at which a note names it."""


def idle_by(
    trace: Trace,
    keys: Sequence[str],
    *,
    skip: Skip = "auto",
    longest: int | None = None,
    waits: bool = True,
) -> Answer:
    """Return the answer of the command `idle`: GPU idle time by keys, or the longest gaps.

    `waits`: whether metadata say how long collectives wait, for which all of the run are matched.
    """
    require_ops(trace)
    first = 0 if skip == "auto" else skip
    windows = idle_windows(trace, skip=first, per_iteration=is_by_steps(keys))
    found = _sums(trace, windows, keys, longest=longest or 0)
    collectives = _collective_wait(trace) if waits else {}
    meta = _meta(trace, found.pieces, windows, first, collectives) | cold_meta(trace, skip)
    if doubt := doubt_of_silence(trace):
        meta["warnings"] = doubt
    meta |= numbering_meta(trace, keys)
    if longest is not None:
        return _longest(found, meta, longest)
    rows = _rows(found, keys, meta)
    if "iteration" not in keys:
        per_step, outside = _per_step(trace, rows, keys, skip, windows)
        meta |= outside
        rows = rows.join(per_step, on=list(keys), how="left", nulls_equal=True)
        tail = ("rests_on", "gaps", "idle_ns", "step_ns", "share", "window_share")
        rows = rows.select(*keys, *_of_members(keys), *tail)
    order = ["iteration", "idle_ns"] if "iteration" in keys else ["idle_ns"]
    rows = rows.sort(*order, *keys, descending=[x == "idle_ns" for x in (*order, *keys)],
                     nulls_last=True)  # fmt: skip
    if missing := [*meta.get("missing", ()), *unnamed_groups(rows)]:
        meta["missing"] = missing
    return Answer(
        rows=rows,
        meta={
            **meta,
            "sum_over": count(meta["devices"], "GPU"),
            "shares": _SHARES,
        },
        title=f"idle time by {', '.join(keys)}",
        readable=with_words(rows, {"iteration": OUTSIDE_STEPS}),
        empty="no idle time",
        command="idle",
        figures={"figure": "idle"},
        source=_by_device(found.pieces),
    )


def _sums(trace: Trace, windows: pl.DataFrame, keys: Sequence[str], **options: Any) -> IdleSums:
    """Sum idle time by `keys`.

    Keys of `OF_GROUPS` are properties of the communicator of the collective that ends a gap.
    """
    if not _of_members(keys):
        return idle_sums(trace, windows, keys, **options)
    calls = collective_calls(trace)
    communicators = calls.select("op", "communicator").drop_nulls().unique("op", keep="none")
    others = [key for key in keys if key not in OF_GROUPS]
    found = idle_sums(trace, windows, [*others, "communicator"], of_ops=communicators, **options)
    groups = communicator_groups(trace, calls)
    pieces, gaps = (
        rows.join(groups, on="communicator", how="left") for rows in (found.pieces, found.gaps)
    )
    return replace(found, pieces=pieces, gaps=gaps)


def _of_members(keys: Sequence[str]) -> tuple[str, ...]:
    return MEMBERS if {*OF_GROUPS} & {*keys} else ()


def _rows(found: IdleSums, keys: Sequence[str], meta: dict[str, Any]) -> pl.DataFrame:
    total, window = meta["idle_ns"], meta["window_ns"]
    idle = pl.col("idle_ns").sum()
    sources = (
        found.pieces.drop_nulls("rests_on").group_by(*keys, "rests_on").agg(time=idle)
        .sort("time", "rests_on", descending=[True, False])
        .group_by(keys, maintain_order=True).agg(pl.col("rests_on").cast(pl.String))
        .with_columns(pl.col("rests_on").list.join(", "))
    )  # fmt: skip
    gaps = found.gaps.group_by(keys).agg(pl.col("gaps").sum())
    return (
        found.pieces.group_by(keys)
        .agg(*(members_of_rows() if _of_members(keys) else ()), idle)
        .join(gaps, on=list(keys), how="left", nulls_equal=True)
        .join(sources, on=list(keys), how="left", nulls_equal=True)
        .with_columns(
            pl.col("cause").cast(pl.String) if "cause" in keys else pl.lit(0).alias("_"),
            share=pl.col("idle_ns") / total if total else pl.lit(None, pl.Float64),
            window_share=pl.col("idle_ns") / window if window else pl.lit(None, pl.Float64),
        )
        .select(*keys, *_of_members(keys), "gaps", "idle_ns", "share", "window_share", "rests_on")
    )


def _per_step(
    trace: Trace, rows: pl.DataFrame, keys: Sequence[str], skip: Skip, whole: pl.DataFrame
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Return mean idle time per step by keys (``step_ns``), and metadata on idle time not counted.

    Not counted is time in cold steps, and before a GPU's first and after its last op: a step ends
    for all GPUs with the last op of any, which matters in a recording of few steps. `whole`: see
    `idle_sums`.
    """
    if "iteration" not in keys:
        trace = numbered_alike(trace)
    iterations = trace.read("iterations")
    if iterations.is_empty():
        return rows.select(*keys, step_ns=pl.lit(None, pl.Float64)), {}
    first, cold = 0 if skip == "auto" else skip, cold_of(trace, skip)
    steps = counted_steps(
        idle_windows(trace, skip=0, per_iteration=True), iterations, first
    ).windows
    is_usual = pl.col("iteration") > cold.last
    counted = steps.drop_nulls("iteration").filter(is_usual)
    number = counted.select(*_OWNER, "iteration").n_unique()
    steps_of = pl.lit(number or None, pl.Int64)
    if "phase" in keys:
        phases = counted.join(step_phases(trace), on=["process", "iteration"], how="left")
        of_phase = phases.group_by("phase").agg(number=pl.struct(*_OWNER, "iteration").n_unique())
        steps_of = pl.col("phase").replace_strict(
            of_phase["phase"], of_phase["number"], default=None, return_dtype=pl.Int64
        )
    # Pieces outside of the steps that count are in none.
    found = _sums(trace, steps, [*keys, "iteration"], whole=whole).pieces
    inside = found.drop_nulls("iteration")
    names = [pl.col(key).cast(pl.String) if key == "cause" else pl.col(key) for key in keys]
    sums = (
        inside.with_columns(names)
        .group_by(keys)
        .agg(length=pl.col("idle_ns").filter(is_usual).sum())
    )
    per_step = sums.select(*keys, step_ns=pl.col("length") / steps_of)
    outside, length = inside.filter(is_usual).select("outside_ns", "idle_ns").sum().row(0)
    is_much = outside > _MUCH * length
    meta: dict[str, Any] = {"step_outside_window_ns": outside / number} if is_much else {}
    # On a GPU of several processes one's cold steps hold the others' work.
    if cold.steps and steps.select(_OWNER).n_unique() == steps["device"].n_unique():
        cold_idle = inside.filter(~is_usual).select(pl.col("idle_ns") - pl.col("outside_ns")).sum()
        meta["cold"] = {**cold._asdict(), "idle_ns": cold_idle.item()}
    return per_step, meta


def _by_device(pieces: pl.DataFrame) -> pl.DataFrame:
    """Return idle time by GPU and cause, ``device, cause, idle_ns``, for figures."""
    named = pieces.with_columns(pl.col("cause").cast(pl.String))
    return named.group_by("device", "cause").agg(pl.col("idle_ns").sum()).sort("device", "cause")


# -- the longest gaps --------------------------------------------------------------------------


def _longest(found: IdleSums, meta: dict[str, Any], number: int) -> Answer:
    chosen = longest_gaps(found.longest, number).with_columns(place=pl.int_range(1, pl.len() + 1))
    pieces = found.longest.join(chosen.select("gap"), on="gap", how="semi")
    around = pieces.select(
        "gap", iteration="late_iteration", before="before_name", after="after_name",
        stage="late_stage",
    ).unique("gap")  # fmt: skip
    rows = (
        chosen.join(_evidence(pieces), on="gap", how="left", maintain_order="left")
        .join(around, on="gap", how="left", maintain_order="left")
        .select(
            "place", "device", "iteration", "start_ns", "idle_ns", "cause", "evidence", "range",
            share=pl.col("idle_ns") / meta["idle_ns"], before="before", after="after",
            stage="stage",
        )
    )  # fmt: skip
    return Answer(
        rows=rows, meta=meta, title=f"the {rows.height} longest gaps", empty="no idle time",
        as_records=True, command="idle", figures={"figure": "idle"},
        source=_by_device(found.pieces),
    )  # fmt: skip


def _evidence(pieces: pl.DataFrame) -> pl.DataFrame:
    """Return ``gap, cause, evidence, range``: main cause, all causes in words, main host range."""
    meaning = pl.col("cause").cast(pl.String).replace_strict(CAUSES)
    per_piece = pieces.group_by("gap", "cause", "detail", "range").agg(length=_LENGTH.sum())
    ordered = per_piece.with_columns(said=meaning)
    of_cause = ordered.group_by("gap", "cause", "said", "detail").agg(pl.col("length").sum())
    detail = pl.when(pl.col("detail").is_null()).then(pl.lit("")).otherwise(
        pl.format(" ({})", "detail")
    )  # fmt: skip
    length = pl.col("length") / 1e6
    digits = length.round_sig_figs(4).cast(pl.String).str.replace(r"\.0$", "")
    is_short = pl.col("length") < _SHORT_NS  # in ms it has an exponent
    time = pl.when(is_short).then(pl.format("{} ns", "length")).otherwise(
        pl.format("{} ms", digits)
    )  # fmt: skip
    text = pl.format("{}: {}{}", time, "said", detail)
    texts = (
        of_cause.with_columns(text=text)
        .sort("gap", "length", "said", "detail", descending=[False, True, False, False])
        .group_by("gap").agg(evidence=pl.col("text").str.join("; "))
    )  # fmt: skip
    most = {
        name: ordered.group_by("gap", name)
        .agg(pl.col("length").sum())
        .sort("gap", "length", name, descending=[False, True, False])
        .unique("gap", keep="first")
        .select("gap", pl.col(name).cast(pl.String))
        for name in ("cause", "range")
    }
    return texts.join(most["cause"], on="gap").join(most["range"], on="gap")


# -- what it is measured against ---------------------------------------------------------------


def _meta(
    trace: Trace, pieces: pl.DataFrame, windows: pl.DataFrame, skip: int, waits: dict[str, Any]
) -> dict[str, Any]:
    return {
        "window_ns": int((windows["end"] - windows["start"]).sum()),
        "idle_ns": int(pieces["idle_ns"].sum()),
        "devices": windows["device"].n_unique(),
        "iterations": iterations_in(trace, skip),
        "skip": skip,
        **waits,
        **_missing(trace, pieces, waits.get("missing", [])),
    }


def _collective_wait(trace: Trace) -> dict[str, Any]:
    """Return as metadata how long collective kernels waited for their last rank, ns, or why not."""
    kinds = trace["ops"].filter(pl.col("kind") == "collective").head(1).collect()
    if kinds.is_empty():
        return {}
    calls = with_clocks(collective_calls(trace), trace.read("reports"))
    in_window = in_stretch(calls, trace.stretch).drop_nulls(["match", "op"])
    seen = in_window.group_by("match").agg(
        wait=(_LENGTH - _LENGTH.min()).sum(), clocks=pl.col("clock").n_unique(), number=pl.len()
    )
    matched = seen.filter((pl.col("clocks") == 1) & (pl.col("number") > 1))
    if matched.is_empty():
        why = "no collective of two ranks on one clock was recorded"
        return {"collective_wait_ns": None, "collective_wait_unknown": why}
    calls = in_stretch(calls.filter(~is_message()), trace.stretch)
    missing = uncounted_waits(trace, calls)
    waited = {"collective_wait_ns": int(matched["wait"].sum())}
    return waited | ({"missing": missing} if missing else {})


def _missing(trace: Trace, pieces: pl.DataFrame, more: list[str]) -> dict[str, list[str]]:
    """Return how to record data that would explain idle time without a cause, and hints `more`."""
    idle, why, texts = pl.col("idle_ns"), pl.col("cause"), []
    queued = pieces.filter(why == "unexplained")["queued"]
    if not queued.all():
        how = how_to_record(trace, "launching calls")
        texts.append(f"calls that launch ops: {how} (records those made while it runs)")
    parts = {
        "held": (why == "unexplained") & pl.col("queued"),
        "host": why.is_in(["between_steps", "host_delay"]),
    }
    shares = {name: idle.filter(is_one).sum() / idle.sum() for name, is_one in parts.items()}
    held, host = (share or 0 for share in pieces.select(**shares).row(0))
    if held > _MUCH:
        longer = f"launched more than {QUEUED_NS // 1000} us before it started"
        texts.append(f"what an op {longer} waited for: {how_to_see_waits(trace)}")
    if host > _MUCH:
        texts += _unseen(trace)
    texts += more
    return {"missing": texts} if texts else {}


def _unseen(trace: Trace) -> list[str]:
    """Return how to record context switches (threads off the CPU), where a file lacks them."""
    switches = trace["contents"].filter(pl.col("feature") == "context switches")
    how = switches.filter(~pl.col("present")).select("record_with").unique().collect()
    missing = "when the thread that launches was off the CPU, and in which call"
    return [f"{missing}: `{each} -t osrt`" for each in how["record_with"].sort()]


@first_line("idle")
def _first_line(rows: pl.DataFrame, meta: Mapping[str, Any]) -> str | None:
    if not meta.get("window_ns") or meta.get("idle_ns") is None:
        return None
    share = percent(meta["idle_ns"] / meta["window_ns"])
    sentence = f"Nothing runs for {share} of the time{unseen(meta)}"
    cold = meta.get("cold", {}).get("idle_ns", 0)
    if cold >= _SAID_OF_COLD * meta["idle_ns"] > 0:
        sentence += f", {percent(cold / meta['idle_ns'])} of it in cold first steps"
    if leading_keys(rows) != ["cause"] or not meta["idle_ns"]:
        return sentence
    longest = rows.sort("idle_ns", descending=True)
    return f"{sentence}: {most_by_share(longest, ['cause'])} of that{_evidence_named(longest)}"


def _evidence_named(rows: pl.DataFrame) -> str:
    """Return a clause: the kind of evidence of the largest causes, and which are inferred."""
    if "rests_on" not in rows.columns:
        return ""
    named = rows.filter(pl.col("share") >= LEAST).head(MOST_NAMED)
    evidence = named["rests_on"].unique().to_list()
    by = f" (by {evidence[0]})" if len(evidence) == 1 and evidence[0] else ""
    return by + "".join(f"; {doubt}" for doubt in map(doubt_of_waiting, named["rests_on"]) if doubt)


note("collective_wait_ns")(
    lambda value: (
        []
        if value is None
        else [f"waiting for recorded ranks in collectives, busy time: {time_text(value)}"]
    )
)
note("collective_wait_unknown")(
    lambda why: [f"waiting for recorded ranks in collectives, busy time: unknown, {text_of(why)}"]
)
note("step_outside_window_ns")(
    lambda value: [
        f"step: {time_text(value)} of it are outside of the window, before or after a GPU's own ops"
    ]
)
