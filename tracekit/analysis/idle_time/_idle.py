"""Idle time by cause, device, step, stage and range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from tracekit.analysis.calls import (
    MEMBERS,
    OF_GROUPS,
    collective_calls,
    groups_of_ops,
    in_stretch,
    members_of_rows,
)
from tracekit.analysis.facts import (
    OUTSIDE_STEPS,
    how_to_record,
    how_to_see_waits,
    is_by_steps,
    step_phases,
    with_words,
)
from tracekit.analysis.idle_account import (
    CAUSES,
    QUEUED_NS,
    IdlePieces,
    pairs_of,
    pieces_in_windows,
    sampled,
)
from tracekit.engine import counted_steps, has_ops, iterations_in
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import Answer, Trace, with_clocks

_OWNER = ["process", "device"]
_SHARES = "share: idle_ns / idle_ns of all rows; window_share: idle_ns / window_ns"
_LENGTH = pl.col("end") - pl.col("start")
_MUCH = 0.05
"""From this share of idle time on a note says that it is outside of the window, or unseen."""


def idle(trace: Trace, keys: Sequence[str], *, skip: int, longest: int | None) -> Answer:
    """Answer the question `idle`; its declaration lists options and columns."""
    if longest is not None and longest < 1:
        raise UsageError(f"{longest} gaps cannot be listed", "give 1 or more")
    if not has_ops(trace):
        raise MissingDataError(
            "this run holds no GPU work", f"record with {how_to_record(trace, 'ops')}"
        )
    found = _pieces(trace, skip, keys, per_iteration=is_by_steps(keys))
    meta = _meta(trace, found, skip)
    if longest is not None:
        return _longest(trace, found, meta, longest)
    rows, drawn, windows = _rows(found, keys, meta), _by_device(found), found.windows
    del found  # before pieces of steps are found, which take as much
    if "iteration" not in keys:
        per_step, outside = _per_step(trace, rows, keys, skip, windows)
        meta |= outside
        rows = rows.join(per_step, on=list(keys), how="left", nulls_equal=True)
        tail = ("rests_on", "gaps", "idle_ns", "step_ns", "share", "window_share")
        rows = rows.select(*keys, *_of_members(keys), *tail)
    order = ["iteration", "idle_ns"] if "iteration" in keys else ["idle_ns"]
    rows = rows.sort(*order, *keys, descending=[x == "idle_ns" for x in (*order, *keys)],
                     nulls_last=True)  # fmt: skip
    return Answer(
        rows=rows,
        meta={**meta, "sum_over": _gpus(meta["devices"]), "shares": _SHARES},
        title=f"idle time by {', '.join(keys)}",
        people=with_words(rows, {"iteration": OUTSIDE_STEPS}),
        empty="no idle time",
        command="idle",
        figures={"figure": "idle"},
        source=drawn,
    )


def _pieces(trace: Trace, skip: int, keys: Sequence[str], *, per_iteration: bool) -> IdlePieces:
    """Return the idle time inside of windows, in pieces that have all keys."""
    found = pieces_in_windows(trace, skip=skip, per_iteration=per_iteration)
    if "range" in keys:
        found = found.with_ranges(trace)
    if {*OF_GROUPS} & {*keys}:
        groups = groups_of_ops(trace, collective_calls(trace)).rename({"op": "after"})
        late = found.gaps.select("gap", "after").join(groups, on="after").drop("after")
        pieces = found.pieces.join(late, on="gap", how="left", maintain_order="left")
        found = replace(found, pieces=pieces)
    if "phase" not in keys:
        return found
    phases = step_phases(trace).select("process", "iteration", "phase")
    pieces = found.pieces.join(
        phases, on=["process", "iteration"], how="left", maintain_order="left"
    )
    return replace(found, pieces=pieces)


def _of_members(keys: Sequence[str]) -> tuple[str, ...]:
    return MEMBERS if {*OF_GROUPS} & {*keys} else ()


def _rows(found: IdlePieces, keys: Sequence[str], meta: dict[str, Any]) -> pl.DataFrame:
    total, window = meta["idle_ns"], meta["window_ns"]
    sources = (
        found.pieces.drop_nulls("rests_on").group_by(*keys, "rests_on").agg(time=_LENGTH.sum())
        .sort("time", "rests_on", descending=[True, False])
        .group_by(keys, maintain_order=True).agg(pl.col("rests_on").cast(pl.String))
        .with_columns(pl.col("rests_on").list.join(", "))
    )  # fmt: skip
    return (
        found.pieces.group_by(keys)
        .agg(
            *(members_of_rows() if _of_members(keys) else ()),
            gaps=pl.col("gap").n_unique().cast(pl.Int64),
            idle_ns=_LENGTH.sum(),
        )
        .join(sources, on=list(keys), how="left", nulls_equal=True)
        .with_columns(
            pl.col("cause").cast(pl.String) if "cause" in keys else pl.lit(0).alias("_"),
            share=pl.col("idle_ns") / total if total else pl.lit(None, pl.Float64),
            window_share=pl.col("idle_ns") / window if window else pl.lit(None, pl.Float64),
        )
        .select(*keys, *_of_members(keys), "gaps", "idle_ns", "share", "window_share", "rests_on")
    )


def _per_step(
    trace: Trace, rows: pl.DataFrame, keys: Sequence[str], skip: int, whole: pl.DataFrame
) -> tuple[pl.DataFrame, dict[str, float]]:
    """Return the keys and ``step_ns``, and what to say of the part outside of the whole windows.

    A step ends for all GPUs with the last op of any, and may begin before a GPU's first op: of a
    recording of few steps that is much of them, and in no window.
    """
    iterations = trace.read("iterations")
    if iterations.is_empty():
        return rows.select(*keys, step_ns=pl.lit(None, pl.Float64)), {}
    found = _pieces(trace, 0, keys, per_iteration=True)
    steps = counted_steps(found.windows, iterations, skip).windows.with_row_index("window")
    counted = steps.drop_nulls("iteration")
    number = counted.select(*_OWNER, "iteration").n_unique()
    steps_of = pl.lit(number or None, pl.Int64)
    if "phase" in keys:
        phases = counted.join(step_phases(trace), on=["process", "iteration"], how="left")
        of_phase = phases.group_by("phase").agg(number=pl.struct(*_OWNER, "iteration").n_unique())
        steps_of = pl.col("phase").replace_strict(
            of_phase["phase"], of_phase["number"], default=None, return_dtype=pl.Int64
        )
    inside = found.pieces.join(counted.select("window"), on="window", how="semi")
    names = [pl.col(key).cast(pl.String) if key == "cause" else pl.col(key) for key in keys]
    sums = inside.with_columns(names).group_by(keys).agg(length=_LENGTH.sum())
    per_step = sums.select(*keys, step_ns=pl.col("length") / steps_of)
    return per_step, _outside(inside, whole, number)


def _outside(pieces: pl.DataFrame, whole: pl.DataFrame, steps: int) -> dict[str, float]:
    """Return how much of the pieces is before or after the window of their GPU, if it is much."""
    of_device = whole.group_by("device").agg(first=pl.col("start").min(), last=pl.col("end").max())
    before = pl.min_horizontal("end", "first") - pl.col("start")
    after = pl.col("end") - pl.max_horizontal("start", "last")
    outside, length = pieces.join(of_device, on="device").select(
        (before.clip(0) + after.clip(0)).sum(), length=_LENGTH.sum()
    ).row(0)  # fmt: skip
    return {"step_outside_window_ns": outside / steps} if outside > _MUCH * length else {}


def _by_device(found: IdlePieces) -> pl.DataFrame:
    """Return ``device, cause, idle_ns``, which is what drawings show."""
    pieces = found.pieces.with_columns(pl.col("cause").cast(pl.String))
    return pieces.group_by("device", "cause").agg(idle_ns=_LENGTH.sum()).sort("device", "cause")


# -- the longest gaps --------------------------------------------------------------------------


def _longest(trace: Trace, found: IdlePieces, meta: dict[str, Any], number: int) -> Answer:
    lengths = found.pieces.group_by("gap").agg(
        idle_ns=_LENGTH.sum(), start_ns=pl.col("start").min(), device=pl.col("device").first()
    )
    chosen = lengths.sort("idle_ns", "start_ns", "device", descending=[True, False, False])
    chosen = chosen.head(number).with_columns(place=pl.int_range(1, pl.len() + 1))
    total = meta["idle_ns"]
    pieces = found.pieces.join(chosen.select("gap"), on="gap", how="semi")
    own = _with_samples(trace, IdlePieces(found.gaps, pieces, found.windows).with_ranges(trace))
    neighbours = found.gaps.select("gap", "before", "ended_by", "stage")
    wanted = pl.concat([neighbours["before"], neighbours["ended_by"]]).drop_nulls().unique()
    ops = trace["ops"].filter(pl.col("op").is_in(wanted.implode()))
    named = ops.select("op", "iteration", name=pl.col("short_name").fill_null(pl.col("name")))
    names = named.with_columns(pl.col("name").cast(pl.String)).collect()
    rows = (
        chosen.join(_evidence(own), on="gap", how="left", maintain_order="left")
        .join(neighbours, on="gap", how="left", maintain_order="left")
        .join(names.select(before="op", before_name="name"), on="before", how="left",
              maintain_order="left")
        .join(names.rename({"op": "ended_by"}), on="ended_by", how="left", maintain_order="left")
        .select(
            "place", "device", "iteration", "start_ns", "idle_ns", "cause",
            "evidence", "range", share=pl.col("idle_ns") / total, before="before_name",
            after="name", stage="stage",
        )
    )  # fmt: skip
    return Answer(
        rows=rows, meta=meta, title=f"the {rows.height} longest gaps", empty="no idle time",
        as_records=True, command="idle", figures={"figure": "idle"}, source=_by_device(found),
    )  # fmt: skip


def _with_samples(trace: Trace, found: IdlePieces) -> pl.DataFrame:
    """Return the pieces; where nothing else tells of the host, `detail` is the sampled function."""
    untold = pl.col("detail").is_null() & pl.col("cause").is_in(["between_steps", "late_launch"])
    met = sampled(trace, found.pieces.filter(untold), pairs_of(trace, found.gaps))
    most = (
        met.group_by("gap", "cause", "name").agg(number=pl.len())
        .with_columns(of=pl.col("number").sum().over("gap", "cause"))
        .sort("number", "name", descending=[True, False])
        .unique(["gap", "cause"], keep="first", maintain_order=True)
    )  # fmt: skip
    text = pl.format("{} of {} samples in {}", "number", "of", "name")
    told = most.select("gap", "cause", executed=text)
    known = found.pieces.join(told, on=["gap", "cause"], how="left", maintain_order="left")
    return known.with_columns(detail=pl.when(untold).then("executed").otherwise("detail"))


def _evidence(pieces: pl.DataFrame) -> pl.DataFrame:
    """Return ``gap, cause, evidence, range``: what holds of most of each gap, and all in words."""
    said = pl.col("cause").cast(pl.String).replace_strict(CAUSES)
    per_piece = pieces.group_by("gap", "cause", "detail", "range").agg(length=_LENGTH.sum())
    ordered = per_piece.with_columns(said=said).sort("gap", "length", descending=[False, True])
    of_cause = ordered.group_by("gap", "cause", "said", "detail").agg(pl.col("length").sum())
    detail = pl.when(pl.col("detail").is_null()).then(pl.lit("")).otherwise(
        pl.format(" ({})", "detail")
    )  # fmt: skip
    length = pl.col("length") / 1e6
    digits = length.round_sig_figs(4).cast(pl.String).str.replace(r"\.0$", "")
    text = pl.format("{} ms: {}{}", digits, "said", detail)
    texts = (
        of_cause.with_columns(text=text)
        .sort("gap", "length", "said", descending=[False, True, False])
        .group_by("gap").agg(evidence=pl.col("text").str.join("; "))
    )  # fmt: skip
    most = {
        name: ordered.group_by("gap", name)
        .agg(pl.col("length").sum())
        .sort("gap", "length", descending=[False, True])
        .unique("gap", keep="first")
        .select("gap", pl.col(name).cast(pl.String))
        for name in ("cause", "range")
    }
    return texts.join(most["cause"], on="gap").join(most["range"], on="gap")


# -- what it is measured against ---------------------------------------------------------------


def _meta(trace: Trace, found: IdlePieces, skip: int) -> dict[str, Any]:
    window = int((found.windows["end"] - found.windows["start"]).sum())
    own = found.pieces.select(_LENGTH.sum()).item()
    return {
        "window_ns": window,
        "idle_ns": int(own),
        "devices": found.windows["device"].n_unique(),
        "iterations": iterations_in(trace, skip),
        "skip": skip,
        **_collective_wait(trace),
        **_missing(trace, found),
    }


def _collective_wait(trace: Trace) -> dict[str, Any]:
    """Return how long kernels waited for the last participant, where that can be told."""
    kinds = trace["ops"].filter(pl.col("kind") == "collective").head(1).collect()
    if kinds.is_empty():
        return {}
    calls = with_clocks(collective_calls(trace), trace.read("reports"))
    own = in_stretch(calls, trace.stretch).drop_nulls(["match", "op"])
    seen = own.group_by("match").agg(
        wait=(_LENGTH - _LENGTH.min()).sum(), clocks=pl.col("clock").n_unique(), number=pl.len()
    )
    told = seen.filter((pl.col("clocks") == 1) & (pl.col("number") > 1))
    if told.is_empty():
        why = "no collective of two ranks on one clock was recorded"
        return {"collective_wait_ns": None, "collective_wait_unknown": why}
    return {"collective_wait_ns": int(told["wait"].sum())}


def _missing(trace: Trace, found: IdlePieces) -> dict[str, list[str]]:
    """Say what to record to know more, where something is not explained."""
    unexplained = found.pieces.filter(pl.col("cause") == "unexplained")
    queued = unexplained["detail"].is_not_null()
    texts = []
    if not queued.all():
        how = how_to_record(trace, "launching calls")
        texts.append(f"calls that launch ops: `{how}` records those made while it records")
    if queued.any():
        longer = f"launched more than {QUEUED_NS // 1000} us before it started"
        texts.append(f"what an op {longer} waited for: {how_to_see_waits(trace)}")
    host = pl.when(pl.col("cause").is_in(["between_steps", "late_launch"])).then(_LENGTH)
    share = found.pieces.select(host.sum() / _LENGTH.sum().clip(1, None)).item() or 0
    if share > _MUCH:
        texts += _unseen(trace)
    return {"missing": texts} if texts else {}


def _unseen(trace: Trace) -> list[str]:
    """Say how to record when threads were off the CPU, where a recorder could have and did not."""
    switches = trace["contents"].filter(pl.col("feature") == "context switches")
    how = switches.filter(~pl.col("present")).select("record_with").unique().collect()
    what = "when the thread that launches was off the CPU, and in which call"
    return [f"{what}: `{each} -t osrt`" for each in how["record_with"].sort()]


def _gpus(number: int) -> str:
    return f"{number} GPU{'' if number == 1 else 's'}"
