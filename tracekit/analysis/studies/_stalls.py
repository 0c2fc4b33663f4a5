"""Time that GPUs wait for input data (data stalls) or for other pipeline stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from tracekit.analysis.facts import WAITING, how_to_record
from tracekit.analysis.idle_account import idle_sums
from tracekit.analysis.statistics import Skip, left_out_notes
from tracekit.analysis.step_sums import skipped_of
from tracekit.analysis.studies._bubbles import (
    Bubbles,
    bubble_theory,
    bubbles_of_run,
    pipeline_bubbles,
)
from tracekit.analysis.studies._study import study_row
from tracekit.engine import (
    has_ops,
    inside_steps,
    layered_lengths,
    numbered_alike,
    step_windows,
    union_length,
)
from tracekit.errors import MissingDataError, UndecidedError, UsageError
from tracekit.model import KERNEL_KINDS, Answer, Run, Runs, Trace
from tracekit.support.wording import count, first_line, note, percent, text_of

_OWNER = ["process", "device"]
_LENGTH = pl.col("end") - pl.col("start")
_SPAN = ["start", "end"]
_LAYERS = ("work", "input", "other")
_KERNELS = (*KERNEL_KINDS, "graph")
_AMONG_GPUS = ("p2p", "staged")
_ASLEEP = ("wait", "off_cpu")
_SUMS = (
    "window_ns", "kernel_ns", "idle_ns", "wait_ns", "input_ns", "data_stall_ns", "other_idle_ns",
)  # fmt: skip
_SHARES = {
    name: pl.when(pl.col("window_ns") > 0).then(pl.col(part) / pl.col("window_ns"))
    for name, part in (("utilisation", "kernel_ns"), ("data_stall_share", "data_stall_ns"))
}

STALLS = pl.Schema(
    {
        "process": pl.Int64,
        "device": pl.Int64,
        "iterations": pl.Int64,
        **dict.fromkeys(_SUMS, pl.Int64),
        "outside_steps_ns": pl.Int64,
        "utilisation": pl.Float64,
        "data_stall_share": pl.Float64,
        "rests_on": pl.String,
    }
)
"""Columns of `data_stalls`."""


def data_stalls(trace: Trace, *, skip: int = 0) -> pl.DataFrame:
    """Return the time that each device waits for input (data stalls).

    Times are sums over the steps that are not skipped or cut; in a run without iterations, over the
    time from a device's first to its last op. Waiting for input is idle time with the cause
    ``input``, as in `tracekit.analysis.idle_time.idle`; it is null if no launch was recorded, or if
    nothing tells it from other waits. If no kernel was recorded, ``kernel_ns`` and ``input_ns``
    (the time of copies beside which no kernel runs) are null.

    Parameters
    ----------
    skip
        Number of iterations to leave out at the beginning.

    Returns
    -------
    One row per device, with the columns `STALLS`; `waits_questions.py` describes these.

    Raises
    ------
    MissingDataError
        If the run has no GPU work.
    UsageError
        If `skip` leaves no iterations.
    """
    if not has_ops(trace):
        raise MissingDataError(
            "this run has no GPU work, so no GPU waits in it",
            f"record with {how_to_record(trace, 'ops')}",
        )
    trace = numbered_alike(trace)
    ops = trace["ops"].select(*_OWNER, *_SPAN, pl.col("kind", "stage").cast(pl.String)).collect()
    windows = step_windows(trace, skip)
    layered = ops.select(*_OWNER, *_SPAN, layer=_layer(), is_kernel=pl.col("kind").is_in(_KERNELS))
    return _table(windows, layered, _waits(trace, windows), _outside(ops, windows))


def _signs(trace: Trace) -> tuple[bool, bool]:
    """Return whether sleeps of threads were recorded, and ranges or ops of the stage input."""
    is_input = pl.col("stage") == "IO"
    signs = {"host": pl.col("group").is_in(_ASLEEP), "ranges": is_input, "ops": is_input}
    sleeps, *inputs = (
        trace[table].filter(sign).head(1).collect().height for table, sign in signs.items()
    )
    return bool(sleeps), any(inputs)


def _outside(ops: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return per GPU the time between its first and last op, less that of its steps, ns.

    Its steps are the `windows` in which ``counts`` is true.
    """
    worked = ops.group_by(_OWNER).agg(first=pl.col("start").min(), last=pl.col("end").max())
    steps = (
        windows.filter("counts")
        .join(worked, on=_OWNER)
        .with_columns(
            start=pl.max_horizontal("start", "first"), end=pl.min_horizontal("end", "last")
        )
    )
    inside = union_length(steps.filter(_LENGTH > 0), _OWNER)
    return worked.join(inside, on=_OWNER, how="left").select(
        *_OWNER, outside_steps_ns=pl.col("last") - pl.col("first") - pl.col("length").fill_null(0)
    )


def _layer() -> pl.Expr:
    kind = pl.col("kind")
    return (
        pl.when(kind.is_in([*_KERNELS, *_AMONG_GPUS])).then(pl.lit("work"))
        # Weights and states of an optimizer that come back from the host are no input.
        .when(kind == "h2d", ~pl.col("stage").is_in(["BP", "WU"])).then(pl.lit("input"))
        .otherwise(pl.lit("other"))
    )  # fmt: skip


def _waits(trace: Trace, windows: pl.DataFrame) -> pl.DataFrame:
    """Return ``process, device, wait_ns, rests_on``: idle time caused by input, and its evidence.

    No rows if the recording cannot tell waits for input from others: where no sleeps of threads
    were recorded, and GPUs idle longer between steps than they are known to wait for input.
    """
    nothing = windows.clear().select(*_OWNER, wait_ns=pl.lit(0, pl.Int64), rests_on=pl.lit(""))
    launched = trace["ops"].filter(pl.col("launch_start").is_not_null()).head(1).collect()
    sleeps, has_input = _signs(trace)
    if launched.is_empty() or not (sleeps or has_input):
        return nothing
    counting = windows.with_columns(iteration=pl.col("counts").cast(pl.Int64))
    found = idle_sums(trace, counting, ["iteration"]).pieces.filter(pl.col("iteration") == 1)
    on_input, between = (found.filter(cause=cause) for cause in ("input", "between_steps"))
    few = _OUTSIDE * windows.filter("counts").select(_LENGTH.sum()).item()
    if not sleeps and between["idle_ns"].sum() > max(on_input["idle_ns"].sum(), few):
        return nothing
    each = on_input.group_by(*_OWNER, "rests_on").agg(wait_ns=pl.col("idle_ns").sum())
    by_length = each.sort("wait_ns", "rests_on", descending=[True, False])
    waiting = by_length.group_by(_OWNER, maintain_order=True).agg(
        pl.col("wait_ns").sum(), pl.col("rests_on").cast(pl.String).str.join(", ")
    )
    return (
        windows.select(_OWNER).unique()
        .join(waiting, on=_OWNER, how="left")
        .with_columns(pl.col("wait_ns").fill_null(0))
    )  # fmt: skip


def _table(
    windows: pl.DataFrame, ops: pl.DataFrame, waits: pl.DataFrame, outside: pl.DataFrame
) -> pl.DataFrame:
    pieces, has_kernels = inside_steps(ops, windows), bool(ops["is_kernel"].any())
    owners = (
        windows.filter("counts")
        .group_by(_OWNER)
        .agg(iterations=pl.col("iteration").drop_nulls().n_unique(), window_ns=_LENGTH.sum())
    )
    layers = layered_lengths(pieces, "layer", _LAYERS, _OWNER)
    exposed = layers.group_by(_OWNER).agg(
        busy=pl.col("exposed_ns").sum(),
        input_ns=pl.col("exposed_ns").filter(pl.col("layer") == "input").sum(),
    )
    kernels = union_length(pieces.filter("is_kernel"), _OWNER).rename({"length": "kernel_ns"})
    return (
        owners.join(exposed, on=_OWNER, how="left")
        .join(kernels, on=_OWNER, how="left")
        .join(waits, on=_OWNER, how="left")
        .join(outside, on=_OWNER, how="left")
        .with_columns(pl.col("busy", "input_ns", "kernel_ns").fill_null(0))
        .with_columns(pl.when(has_kernels).then(pl.col("input_ns", "kernel_ns")))
        .with_columns(
            idle_ns=pl.col("window_ns") - pl.col("busy"),
            data_stall_ns=pl.col("wait_ns") + pl.col("input_ns"),
        )
        .with_columns(other_idle_ns=pl.col("idle_ns") - pl.col("wait_ns"), **_SHARES)
        .sort(_OWNER)
        .select(pl.col(name).cast(dtype) for name, dtype in STALLS.items())
    )


def stalls_of_run(table: pl.DataFrame) -> dict[str, Any]:
    """Summarise `data_stalls` of a run in one row of means over steps and devices.

    Without steps, times are of the whole time from the first to the last op of a device.
    """
    steps = table.select((pl.col("iterations").clip(1)).sum()).item()
    every = pl.col(_SUMS)
    sums = table.select(pl.when(every.null_count() == 0).then(every.sum()))
    return {
        "devices": table.height,
        "iterations": table["iterations"].max(),
        **sums.select(every / steps, **_SHARES).row(0, named=True),
    }


def before_and_after(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Return a table of the rows with ``speedup``: first row's ``window_ns`` over the row's own.

    ``speedup`` is null if only one of both rows has steps (``iterations``), since ``window_ns`` of
    a row without steps is the length of a whole recording.
    """
    table = pl.DataFrame(list(rows), infer_schema_length=None)
    has_steps = pl.col("iterations") > 0
    speedup = pl.col("window_ns").first() / pl.col("window_ns")
    return table.with_columns(speedup=pl.when(has_steps == has_steps.first()).then(speedup))


def differential_stalls(preloaded: float, cached: float, cold: float) -> pl.DataFrame:
    """Return the cost of input, from the times of three runs that differ in the source of data.

    Parameters
    ----------
    preloaded
        Time with synthetic input, or input prepared in memory, so that nothing waits for it, ns.
    cached
        Time with input that is read from a cache in memory and then prepared, ns.
    cold
        Time with input that is read from its storage, ns.

    Returns
    -------
    ``part``, ``time_ns`` and ``share`` of the cold time: ``preparation`` (cached - preloaded),
    ``fetch`` (cold - cached) and ``data stall``, their sum.

    Raises
    ------
    UsageError
        If a time is not above 0.
    """
    if min(preloaded, cached, cold) <= 0:
        raise UsageError("a time is not above 0", "give the times of three runs of one program")
    parts = {
        "preparation": cached - preloaded, "fetch": cold - cached, "data stall": cold - preloaded
    }  # fmt: skip
    times = [float(time) for time in parts.values()]
    table = pl.DataFrame({"part": [*parts], "time_ns": times})
    return table.with_columns(share=pl.col("time_ns") / cold)


_STALLS = {
    "kernels": "kernel_ns", "waiting for the loader": "wait_ns", "copying input": "input_ns",
    "idle, other causes": "other_idle_ns",
}  # fmt: skip
"""Parts of a GPU's time in figures."""

_OUTSIDE = 0.01
"""Least share of time outside of steps at which a note names it."""


def stalls_answer(runs: Sequence[Run], skip: Skip) -> Answer:
    """Return the time that GPUs wait for input; see `data_stalls`.

    One run has one row per device. Several runs have one row each, with means over steps and
    devices, and ``speedup``, the first run's step time over the row's.
    """
    skipped, notes = _left_out(runs, skip)
    tables = [data_stalls(run.trace, skip=n) for run, n in zip(runs, skipped, strict=True)]
    if len(runs) == 1:
        steps = tables[0].select("iterations").max().item()
        title, rows, name = "data stalls", tables[0], pl.format("GPU {}", "device")
        meta = {"sum_over": f"{count(steps, 'step')} of each GPU" if steps else "the whole run"}
    else:
        several = [
            {"run": run.name, **stalls_of_run(table)}
            for run, table in zip(runs, tables, strict=True)
        ]
        title, rows = "data stalls by run", before_and_after(several)
        name, meta = pl.col("run"), {"per": "step/GPU"}
    meta |= _outside_steps(runs, tables) | notes
    return Answer(
        rows=rows, meta=meta, title=title, command="stalls", figures={"figure": "stalls"},
        source=_stall_parts(rows, name),
    ).warning([*_undirected(runs), *_prepared(runs)])  # fmt: skip


def _undirected(runs: Sequence[Run]) -> list[str]:
    """Return warnings on copies of unknown direction: they may be input, but do not count as it."""
    length, is_open = (pl.col("end") - pl.col("start")).sum() / 1e6, pl.col("kind") == "unknown"
    say = "copies of unknown direction take {:,.3f} ms, and `input` counts none"
    times = [run.trace["ops"].filter(is_open).select(length).collect().item() for run in runs]
    return [f"{run.name}: {say.format(ms)}" for run, ms in zip(runs, times, strict=True) if ms]


def _prepared(runs: Sequence[Run]) -> list[str]:
    """Return warnings on time in which only kernels run that prepare input, such as DALI's."""
    told = []
    for run in runs:
        kernels = run.trace["ops"].filter(pl.col("kind").is_in(_KERNELS))
        is_input = pl.col("stage") == "IO"
        if kernels.filter(is_input).head(1).collect().is_empty():
            continue
        spans = kernels.select("device", *_SPAN, "stage").collect()
        every, others = (
            int(union_length(rows, ["device"])["length"].sum())
            for rows in (spans, spans.filter(~is_input))
        )
        if every - others > _OUTSIDE * every:
            told.append(
                f"{run.name}: kernels that prepare input run for {(every - others) / 1e6:,.3f} ms "
                "while no other kernel does, and `input` counts none"
            )
    return told


def _left_out(runs: Sequence[Run], skip: Skip) -> tuple[list[int], dict[str, Any]]:
    """Return how many first steps are skipped in each run, and the meta entry ``notes`` on that."""
    skipped = [skipped_of(run.trace, skip) for run in runs]
    notes = left_out_notes({run.name: n for run, n in zip(runs, skipped, strict=True)})
    return skipped, {"notes": notes} if notes else {}


def _outside_steps(runs: Sequence[Run], tables: Sequence[pl.DataFrame]) -> dict[str, str]:
    """Return a meta entry that names the runs with much time outside of steps; empty if none."""
    found = []
    for run, table in zip(runs, tables, strict=True):
        outside, length = table.select(pl.col("outside_steps_ns", "window_ns").max()).row(0)
        if length and outside > _OUTSIDE * length:
            found.append(f"{outside / 1e6:,.3f} ms ({run.name})")
    text = f"up to {', '.join(found)} of a GPU are outside of the counted steps"
    return {"outside_steps": text} if found else {}


def input_cost(runs: Runs, times: Sequence[Any], skip: Skip) -> Answer:
    """Return the cost of input, by `times` of a program with preloaded, cached and cold input.

    Each of the `times` is a time (ns), or a run whose mean step time is taken; see
    `differential_stalls`.
    """
    rows = differential_stalls(*(_time(runs, each, skip) for each in times))
    meta = {"share": "time_ns / that of the cold run"}
    return Answer(rows=rows, meta=meta, title="cost of input, by three runs", command="stalls")


def _time(runs: Runs, of: Any, skip: Skip) -> float:
    if isinstance(of, int | float):
        return float(of)
    run = runs.named(of)
    step = study_row(run.trace, run.labels, run.name, skip=skip)["step_ns"]
    if step is None:
        raise MissingDataError(
            f"{run.name} has no steps", "name or record ranges of steps: --iteration REGEX"
        )
    return float(step)


def bubbles_answer(
    runs: Sequence[Run],
    *,
    micro_batches: int | None,
    schedule: str | None,
    waiting: str | None,
    per_step: bool,
    skip: Skip,
) -> Answer:
    """Return the time that pipeline stages lose in bubbles; for arguments see `pipeline_bubbles`.

    One run has one row per stage, or with `per_step` per step. Several runs have one row each, with
    means over steps and stages, and ``speedup``, the first run's step time over the row's.

    Raises
    ------
    UsageError
        If `per_step` is set for several runs.
    UndecidedError
        If neither the recording, nor labels, nor `micro_batches` or `schedule` show that a run is a
        pipeline.
    """
    if per_step and len(runs) > 1:
        raise UsageError("--per-step takes a single run", "give one run, or leave out --per-step")
    rows, warnings, (skipped, notes) = [], [], _left_out(runs, skip)
    for run, left_out in zip(runs, skipped, strict=True):
        micro = micro_batches or _labelled(run.labels)
        found = pipeline_bubbles(
            run.trace, skip=left_out, micro_batches=micro, waiting=waiting or WAITING
        )
        _require_pipeline(run, found, schedule)
        warnings += _alike(run, found)
        rows.append(
            {"run": run.name, **bubbles_of_run(found, schedule or run.labels.get("schedule"))}
        )
    if len(runs) == 1:
        return _of_pipeline(found, rows[0], notes, per_step=per_step).warning(warnings)
    table = before_and_after(rows)
    return Answer(
        rows=table, meta={"per": "step/stage", **notes}, title="pipeline bubbles by run",
        command="bubbles", figures={"figure": "bubbles"}, source=_bubble_parts(table, "run"),
    ).warning(warnings)  # fmt: skip


def _alike(run: Run, found: Bubbles) -> list[str]:
    """Return a warning if nothing but sends shows a pipeline, and all GPUs run the same kernels."""
    kernels = run.trace["ops"].filter(pl.col("kind").is_in(KERNEL_KINDS))
    counts = kernels.group_by("device", "name").len().collect(engine="streaming")
    devices = counts["device"].n_unique()
    same = counts.group_by("name").agg(pl.col("len").n_unique(), on=pl.len())
    is_alike = devices > 1 and bool(
        same.select(((pl.col("len") == 1) & (pl.col("on") == devices)).all()).item()
    )
    if not is_alike or found.micro_batches is not None:
        return []
    what = (
        f"{run.name}: all GPUs run the same kernels, as first and last stages of a pipeline do not"
    )
    return [f"{what}: if they exchange experts or parts of a sequence, they have no bubbles"]


def _require_pipeline(run: Run, found: Bubbles, schedule: str | None) -> None:
    known = (found.micro_batches, schedule, run.labels.get("schedule"))
    is_labelled = run.labels.get("method") == "pipeline"
    if not (found.is_told or is_labelled or any(each is not None for each in known)):
        raise UndecidedError(
            f"nothing shows that {run.name} is a pipeline: no pass sends to one other GPU, "
            "and no ranges number its micro-batches",
            "give --micro-batches or --schedule if it is one",
        )


def _bubble_parts(table: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return a figure's bars, ns: work, bubbles while a neighbour stage works, other bubbles."""
    neighbour = pl.col("dependency_ns")
    return table.select(
        name=pl.col(name).cast(pl.String),
        working="busy_ns",
        **{
            "bubble, a neighbour works": neighbour,
            "bubble, neither works": pl.col("bubble_ns") - neighbour,
        },
    )


def _stall_parts(table: pl.DataFrame, name: pl.Expr) -> pl.DataFrame:
    """Return the parts of the figure's bars, ns; ``other copies`` is the rest of the step."""
    rest = pl.col("window_ns") - pl.sum_horizontal("kernel_ns", "input_ns", "idle_ns")
    parts = {part: pl.col(column) for part, column in _STALLS.items()}
    if table["wait_ns"].null_count():
        parts["idle, cause unknown"] = pl.when(pl.col("wait_ns").is_null()).then("idle_ns")
    return table.select(name=name, **parts, **{"other copies": rest})


def _of_pipeline(
    found: Bubbles, row: Mapping[str, Any], notes: Mapping[str, Any], *, per_step: bool
) -> Answer:
    steps = row["iterations"]
    facts = {
        key: row[key]
        for key in ("stages", "micro_batches", "schedule", "bubble_share", "bubble_ideal_share",
                    "theory_share", "theory_ideal_share")
    }  # fmt: skip
    unit = "the stages" if per_step else f"{count(steps, 'step')} of each stage"
    basis = {"basis": "host, from NVTX ranges"} if found.basis == "host" else {}
    meta = {"sum_over": unit, "pipeline": facts, **basis, **notes}
    title = "pipeline bubbles by step" if per_step else "pipeline bubbles"
    stages = found.stages.rename({"stage": "pipeline_stage"})  # a stage is FP, BP, ...
    table = found.steps if per_step else stages
    return Answer(
        rows=table, meta=meta, title=title, command="bubbles",
        figures={"figure": "pipeline"}, source=found.timeline,
    )  # fmt: skip


def _labelled(labels: Mapping[str, str]) -> int | None:
    text = labels.get("micro_batches", "")
    return int(text) if text.isdecimal() and 0 < len(text) < len("1" + "0" * 9) else None


def bubble_model(stages: int, micro_batches: int, schedule: str | None) -> Answer:
    """Return the theoretical bubbles of a pipeline with equal stages; see `bubble_theory`."""
    row = {"stages": stages, "micro_batches": micro_batches, "evidence": "modelled"}
    return Answer(
        rows=pl.DataFrame([row | bubble_theory(stages, micro_batches, schedule)]),
        meta={"modelled": "equal stages and micro-batches, GPipe or 1F1B"},
        title="modelled · pipeline bubbles",
        command="bubbles",
    )


@first_line("stalls")
def _first_of_stalls(rows: pl.DataFrame, meta: Mapping[str, Any]) -> str | None:
    if not {"data_stall_ns", "window_ns"} <= {*rows.columns}:
        return None
    is_unknown = "wait_ns" in rows.columns and rows["wait_ns"].is_null().all()
    part = "input_ns" if is_unknown else "data_stall_ns"
    known = rows.drop_nulls([part, "window_ns"])
    of = ""
    if "run" in rows.columns:  # of several, which have no window together
        known = known.sort(pl.col(part) / pl.col("window_ns")).tail(1)
        of = "".join(f" in {text_of(run)}, the most" for run in known["run"])
    window = float(known["window_ns"].sum())
    if not window:
        return None
    copied = "copy input while no kernel runs for"
    share = f"{percent(float(known[part].sum()) / window)} of their window{of}"
    if is_unknown:
        return f"Whether GPUs wait for input is not recorded; they {copied} {share}"
    if "rests_on" in rows.columns and rows["rests_on"].is_null().all():
        return f"GPUs are not known to wait for input in {meta['sum_over']}; they {copied} {share}"
    return f"GPUs wait for input, or copy it while no kernel runs, for {share}"


@first_line("bubbles")
def _first_of_bubbles(_: pl.DataFrame, meta: Mapping[str, Any]) -> str | None:
    facts = meta.get("pipeline")
    if not facts or facts["bubble_share"] is None:
        return None
    theory = facts["theory_share"]
    equal = "" if theory is None else f"; of equal stages {percent(theory)} would be"
    return f"{percent(facts['bubble_share'])} of the stages' time is a bubble{equal}"


@note("pipeline")
def _pipeline_notes(found: Mapping[str, Any]) -> list[str]:
    """Return a note: bubbles as a share of stage time, relative to work, and in theory."""
    micro, schedule = found["micro_batches"], found["schedule"]
    parts = [count(found["stages"], "stage")]
    parts += [] if micro is None else [count(micro, "micro-batch")]
    parts += [] if schedule is None else [text_of(schedule)]
    lost = f"{percent(found['bubble_share'])} of the stages' time is a bubble"
    over = f"{percent(found['bubble_ideal_share'])} of their work"
    theory = found["theory_share"]
    if theory is None:
        return [f"{', '.join(parts)}: {lost}, {over}; theory is not known"]
    ideal = percent(found["theory_ideal_share"])
    return [f"{', '.join(parts)}: {lost}, {over}; of equal stages {percent(theory)}, {ideal}"]
