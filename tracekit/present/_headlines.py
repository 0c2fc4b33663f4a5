"""First line above a table: the answer in one sentence, made from the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import polars as pl

from tracekit.model import NO_KERNELS, WORK_MISSING, Answer
from tracekit.present._columns import duration, message_size, percent
from tracekit.present._figures import BYTE_UNITS, FLOP_UNITS, unit_of
from tracekit.present._kernel_names import readable_names
from tracekit.present._notes import count
from tracekit.present._text import printable, shorten

_LEAST = 0.005
_MOST_NAMED = 3
_WIDEST = 60
_KEYS = {
    "phase", "stage", "kind", "name", "range", "layer", "device", "stream", "rank", "node",
    "iteration", "cause", "link", "recomputed",
}  # fmt: skip
_CALLED = {"device": "GPU", "stream": "stream", "rank": "rank", "node": "node"}
"""Words before keys that are mere numbers or names: column -> word."""
_SURE = 0.5
"""Largest width of a what-if range, relative to the saving, at which a single number is given."""
_AS_RECORDED = {"measured", "unchanged, replayed", "all of these"}


def with_headline(answer: Answer) -> Mapping[str, Any]:
    """Return the meta of an answer with a ``headline``, unless it has one or its rows give none.

    Answers with rows left out get none, since the row that matters may be missing.
    """
    find = answer.headline or _FOUND.get(answer.command)
    if "headline" in answer.meta or find is None or not answer.is_whole or answer.rows.is_empty():
        return answer.meta
    told = find(answer.rows, answer.meta)
    return {**answer.meta, "headline": told} if told else answer.meta


def _breakdown(rows: pl.DataFrame, meta: Mapping[str, Any]) -> str | None:
    keys = _keys(rows)
    if not keys or "share" not in rows.columns or not meta.get("window_ns"):
        return None
    if "inclusive" in meta or keys == ["recomputed"]:  # rows lie in others, or have no names
        return None
    if keys == ["stage"]:
        texts = [_most(rows.sort("exposed_ns", descending=True), keys)]
        if meta.get("idle_ns") is not None:
            rest = "in no stage" if "basis" in meta else "idle"
            texts.append(f"{rest} {percent(meta['idle_ns'] / meta['window_ns'])}")
        return f"Of the time {', '.join(filter(None, texts))}{_unseen(meta)}{_doubt(rows, meta)}"
    if keys == ["iteration"] and "window_ns" in rows.columns:
        return _steps(rows, meta.get("cold"))
    if keys == ["device"]:
        return f"Busiest: {_most(rows.sort('share', descending=True), keys)}"
    most = _most(rows.sort("share", descending=True, nulls_last=True), keys)
    return f"Most time: {most}" if most else None


def _unseen(meta: Mapping[str, Any]) -> str:
    """Return a clause if GPUs seem idle only because their work was not recorded."""
    told = {NO_KERNELS: "no kernels were recorded", WORK_MISSING: "GPU work is missing"}
    warnings = meta.get("warnings", ())
    found = (say for begin, say in told.items() if any(begin in text for text in warnings))
    return "".join(f" ({say})" for say in found)


def _doubt(rows: pl.DataFrame, meta: Mapping[str, Any]) -> str:
    """Name the stages with a considerable share that only weak evidence supports."""
    weak = [each["stage"] for each in meta.get("weak", ())]
    shown = rows.filter(pl.col("share") >= _LEAST, pl.col("stage").is_in(weak))
    return f"; weak evidence tells {', '.join(shown['stage'])}" if shown.height else ""


def _steps(rows: pl.DataFrame, cold: Mapping[str, int] | None) -> str | None:
    """Describe the steps of a run; cold ones are in no mean."""
    if cold is not None:
        usual = _steps(rows.filter(pl.col("iteration") > cold["last"]), None)
        before = _steps(rows.filter(pl.col("iteration") <= cold["last"]), None) or ""
        return usual and f"{usual}, after {before.replace(' step', ' cold step', 1)}"
    steps = rows.drop_nulls(["iteration", "window_ns"])
    if steps.is_empty():
        return None
    number = pl.col("devices") if "devices" in steps.columns else pl.lit(1)
    steps = steps.with_columns(pl.col("window_ns") / number, number=number).sort("window_ns")
    longest = steps.row(-1, named=True)
    length = duration(longest["window_ns"])
    if steps.height == 1:
        return f"1 step of {length}"
    shares = pl.col("window_ns") * pl.col("number") / pl.max("number")
    mean = duration(float(steps.select(shares.mean()).item()))
    most = f"{length} at most (step {longest['iteration']})"
    return f"{count(steps.height, 'step')} of {mean} in the mean, {most}"


def _idle(rows: pl.DataFrame, meta: Mapping[str, Any]) -> str | None:
    if not meta.get("window_ns") or meta.get("idle_ns") is None:
        return None
    share = percent(meta["idle_ns"] / meta["window_ns"])
    said = f"Nothing runs for {share} of the time{_unseen(meta)}"
    if _keys(rows) != ["cause"] or not meta["idle_ns"]:
        return said
    longest = rows.sort("idle_ns", descending=True)
    return f"{said}: {_most(longest, ['cause'])} of that{_evidence(longest)}"


def _evidence(rows: pl.DataFrame) -> str:
    """Name the evidence behind the named causes if it is the same for all, and what is inferred."""
    if "rests_on" not in rows.columns:
        return ""
    named = rows.filter(pl.col("share") >= _LEAST).head(_MOST_NAMED)
    evidence = named["rests_on"].unique().to_list()
    by = f" (by {evidence[0]})" if len(evidence) == 1 and evidence[0] else ""
    return by + "".join(f"; {doubt}" for doubt in map(doubt_of_waiting, named["rests_on"]) if doubt)


def doubt_of_waiting(rests_on: str | None) -> str:
    """Return words of doubt about waiting that rests on an earlier wait, or nothing."""
    after_waits = "waits" in (rests_on or "").split(", ")
    return "waiting_call includes late launches after a wait, which is inferred" * after_waits


def _critical_path(rows: pl.DataFrame, _: Mapping[str, Any]) -> str | None:
    if "segments" not in rows.columns or "iteration" in rows.columns:
        return None
    return f"The critical path is {_most(rows, _keys(rows))}"


def _whatif(rows: pl.DataFrame, meta: Mapping[str, Any]) -> str | None:
    """Name the change that saves most, no more precisely than its range allows.

    It saves the most if no other change's upper bound exceeds its lower bound.
    """
    base = rows.filter(change="unchanged, replayed")["step_ns"].drop_nulls()
    known = rows.filter(~pl.col("change").is_in(_AS_RECORDED)).drop_nulls("low_ns")
    if base.is_empty() or known.is_empty():
        return None
    least, most = base[0] - pl.col("high_ns"), base[0] - pl.col("low_ns")
    saved = known.select(
        "change", least=least, most=most,
        middle=pl.coalesce("saved_ns", (least + most) / 2),
        is_point=pl.col("saved_ns").is_not_null() & (most - least <= _SURE * pl.col("saved_ns")),
        saves=(pl.col("edges") > 0) & (pl.coalesce("saved_ns", most) > 0),  # else it is rounding
    ).filter("saves")  # fmt: skip
    if saved.is_empty():
        return "No change saves anything"
    best, *others = saved.sort("middle", descending=True).rows(named=True)
    ends = [best["middle"]] if best["is_point"] else [best["least"], best["most"]]
    text = " to ".join(f"{duration(ns)} ({percent(ns / base[0])})" for ns in ends if ns > 0)
    text += " at most" * (ends[0] <= 0)
    is_most = others and max(each["most"] for each in others) <= max(ends[0], 0)
    doubt = ", by a replay that is not to be trusted" if meta.get("trusted") is False else ""
    return f"{printable(best['change'])} would save {text}{', the most' * bool(is_most)}{doubt}"


def _links(rows: pl.DataFrame, meta: Mapping[str, Any]) -> str | None:
    if "difference_share" in rows.columns:
        return _counters(rows)
    if "exposed_share" in rows.columns:
        return _network(rows)
    if not {"link", "src", "dst", "utilisation"} <= {*rows.columns}:
        return None
    most = _largest(rows, "bytes")
    if most is None:
        return None
    share = most["utilisation"]
    full = "" if share is None else f", at {percent(share)} of its peak while it is busy"
    text = f"{most['src']} → {most['dst']}, {size_text(most['bytes'])}{full}"
    unknown = meta.get("collectives_of_unknown_size")
    if not unknown:
        return f"Most bytes: {text}"
    of_all = f"{unknown:,} of {count(meta['collectives'], 'collective kernel')}"
    return f"Most of the known bytes: {text}; {of_all} are of unknown size"


def _network(rows: pl.DataFrame) -> str | None:
    """Name the NIC (or pair of hosts) that carried most, its utilisation, and its exposed time."""
    ends = [name for name in ("nic", "dst_host") if name in rows.columns]
    known = rows.drop_nulls("bytes")
    if len(ends) != 1 or known.is_empty() or not {"host", "src_host"} & {*rows.columns}:
        return None
    most = known.sort("bytes", descending=True).row(0, named=True)
    if ends == ["nic"]:
        way = "sent by" if most["direction"] == "out" else "received by"
        where = f"{way} {most['nic'] or 'NICs'} of {most['host'] or 'an unnamed host'}"
    else:
        where = f"{most['src_host']} → {most['dst_host']}"
    text = f"Most across the network: {size_text(most['bytes'])}, {printable(where)}"
    full, exposed = most.get("utilisation"), most["exposed_share"]
    if full is not None:
        text += f", at {percent(full)} of its peak while it is busy"
    if exposed is not None:
        text += f"; meanwhile GPUs compute nothing for {percent(exposed)} of the time"
    return text


def _counters(rows: pl.DataFrame) -> str | None:
    """Name the counter that differs most from the bytes attributed to it."""
    known = rows.filter(pl.col("difference_bytes").is_not_null(), pl.col("counted_bytes") > 0)
    if known.is_empty():
        return None
    most = known.sort(pl.col("difference_bytes").abs(), descending=True).row(0, named=True)
    off, share = most["difference_bytes"], most["difference_share"]
    where = f"GPU {most['device']}"
    if most["device"] is None:
        where = most["nic"] or "all NICs"
        where += f" of {most['host']}" if most["host"] else ""
    if abs(share) < _LEAST:
        return f"All {count(known.height, 'counter')} agree with what is attributed to within 0.5 %"
    than = f"{percent(abs(share))} {'more' if off > 0 else 'less'} than counted"
    return (
        f"Largest difference: {printable(where)}, {most['metric']}: {size_text(abs(off))} or {than}"
        " is attributed"
    )


def _collectives(rows: pl.DataFrame, _: Mapping[str, Any]) -> str | None:
    most = _largest(rows, "count", "collective")
    if most is None or "duration_p50_ns" not in most:
        return None
    length = most["duration_p50_ns"]
    took = "" if length is None else f" of {duration(length)} in the median"
    return f"Most often: {most['collective']}, {count(most['count'], 'call')}{took}"


def _stragglers(rows: pl.DataFrame, meta: Mapping[str, Any]) -> str | None:
    if not {"last", "collectives", "caused_ns"} <= {*rows.columns}:
        return None
    most = rows.sort("caused_ns", descending=True, nulls_last=True).row(0, named=True)
    if not most["collectives"] or most["caused_ns"] is None:
        return None
    rank, device = (most.get(f"straggler_{name}", most.get(name)) for name in ("rank", "device"))
    who = f"GPU {device}" if rank is None else f"Rank {rank}"
    kind = next((most[key] for key in ("group", "parallelism") if most.get(key)), None)
    named = f" of {kind}" if kind else ""
    if not kind and most["last"] and rows["last"].n_unique() == 1 < rows.height:
        return f"No rank is last more often than another: each at {most['last']:,} collectives"
    chance = (most.get("chance_share") or 0.0) * most["collectives"]
    if most["last"] < 2 * chance:
        named = f" ({chance:,.0f} by chance)"
    return (
        f"{who} is last at {most['last']:,} of {most['collectives']:,} collectives{named}, "
        f"for which the others wait {duration(most['caused_ns'])}"
        + (" a step" if str(meta.get("per", "")).startswith("step") else "")
    )


def _stalls(rows: pl.DataFrame, _: Mapping[str, Any]) -> str | None:
    if not {"data_stall_ns", "window_ns"} <= {*rows.columns}:
        return None
    known = rows.drop_nulls(["data_stall_ns", "window_ns"])
    window = float(known["window_ns"].sum())
    if not window:
        return None
    share = percent(float(known["data_stall_ns"].sum()) / window)
    if "rests_on" in rows.columns and rows["rests_on"].is_null().all():
        # What a recording does not show is no time without waiting.
        return f"No waiting for input is recorded; copying input takes {share} of GPUs' window"
    return f"GPUs wait for input, or copy it, for {share} of their window"


def _flops(_: pl.DataFrame, meta: Mapping[str, Any]) -> str | None:
    if meta.get("known_share") == 0:
        return "FLOPs are not known of any operator"
    if not meta.get("step_flops"):
        return None
    share = "" if meta.get("mfu") is None else f", {percent(meta['mfu'])} of the peak (MFU)"
    known = f"; operators of {percent(meta['known_share'])} of GPU time are known"
    divisor, unit = unit_of(meta["step_flops"], FLOP_UNITS)
    return f"A step computes {meta['step_flops'] / divisor:,.4g} {unit} on a GPU{share}{known}"


def _roofline(rows: pl.DataFrame, meta: Mapping[str, Any]) -> str | None:
    if not meta.get("step_headroom_ns") or "step_headroom_ns" not in rows.columns:
        return None
    most = rows.drop_nulls("step_headroom_ns").sort("step_headroom_ns", descending=True)
    headroom, row = meta["step_headroom_ns"], most.row(0, named=True)
    name = shorten(printable(str(row[rows.columns[0]])), _WIDEST)
    return (
        f"{duration(headroom)} of a step are above the bounds of its operators (modelled), most of "
        f"it in {name}: {duration(row['step_headroom_ns'])}"
    )


def _scaling(rows: pl.DataFrame, _: Mapping[str, Any]) -> str | None:
    if not {"network", "gpus", "speedup", "efficiency"} <= {*rows.columns}:
        return None
    # Runs without a network may be of two programs, as a warning says.
    known = rows.drop_nulls(["network", "speedup", "efficiency"])
    several = known.filter(pl.col("gpus") > pl.col("baseline_gpus"))
    if several.is_empty():
        return None
    most = several.sort("gpus", "speedup", descending=True).row(0, named=True)
    return (
        f"{count(most['gpus'], 'GPU')} are {most['speedup']:.3g} times as fast as "
        f"{count(most['baseline_gpus'], 'GPU')} (efficiency {percent(most['efficiency'])})"
    )


def _latency(rows: pl.DataFrame, meta: Mapping[str, Any]) -> str | None:
    found = [_largest(rows, "p50_ns", "operation", *of) for of in (["size_bytes"], [])]
    most = found[0] or found[1]
    if most is None:
        return None
    more = " or more" if meta.get("buckets") == "power2" else ""  # up to the next power of two
    size = most.get("size_bytes")
    of = "unknown size" if size is None else f"{message_size(int(size))}{more}"
    return f"Longest in the median: {most['operation']} of {of}, {duration(most['p50_ns'])}"


def _bubbles(_: pl.DataFrame, meta: Mapping[str, Any]) -> str | None:
    facts = meta.get("pipeline")
    if not facts or facts["bubble_share"] is None:
        return None
    theory = facts["theory_share"]
    equal = "" if theory is None else f"; of equal stages {percent(theory)} would be"
    return f"{percent(facts['bubble_share'])} of the stages' time is a bubble{equal}"


def _study(rows: pl.DataFrame, _: Mapping[str, Any]) -> str | None:
    most = _largest(rows, "step_ns", "run")
    if most is None:
        return None
    least = rows.drop_nulls(["run", "step_ns"]).sort("step_ns").row(0, named=True)
    ends = [
        f"that of {printable(each['run'])}, {duration(each['step_ns'])}" for each in (least, most)
    ]
    ratio = "" if not least["step_ns"] else f" ({most['step_ns'] / least['step_ns']:.3g} times)"
    if least == most:
        return f"A step of {printable(most['run'])} takes {duration(most['step_ns'])} in the mean"
    return f"The shortest mean step is {ends[0]}; the longest is {ends[1]}{ratio}"


def _overhead(rows: pl.DataFrame, meta: Mapping[str, Any]) -> str | None:
    if "times" in rows.columns and (most := _largest(rows.filter(name="all"), "share", "run")):
        return f"The profiler takes up to {percent(most['share'])} of a run ({most['run']})"
    if meta.get("min_percent") is None or not meta.get("compared"):
        return None
    ends = dict.fromkeys(f"{meta[name]:+.1f} %" for name in ("min_percent", "max_percent"))
    where = count(meta["compared"], "configuration")
    return f"Time over that of {meta['baseline']}: {' to '.join(ends)} in {where}"


def _memory(rows: pl.DataFrame, _: Mapping[str, Any]) -> str | None:
    most = _largest(rows, "training_bytes", "gpu")
    if most is None:
        return None
    where = [most["network"], f"batch {most['batch']}" if most["batch"] else None]
    text = ", ".join(printable(str(each)) for each in [*where, f"GPU {most['gpu']}"] if each)
    return f"Most in training: {size_text(most['training_bytes'])} ({text})"


def _info(rows: pl.DataFrame, _: Mapping[str, Any]) -> str | None:
    if "available" not in rows.columns:
        return None
    asked = rows.drop_nulls("command") if "command" in rows.columns else rows
    told = asked.filter(pl.col("available") == "yes").height
    return f"{told} of {asked.height} features have all that they need"


_FOUND: Mapping[str, Callable[[pl.DataFrame, Mapping[str, Any]], str | None]] = {
    "breakdown": _breakdown,
    "bubbles": _bubbles,
    "collectives": _collectives,
    "critical-path": _critical_path,
    "flops": _flops,
    "idle": _idle,
    "info": _info,
    "latency": _latency,
    "links": _links,
    "memory": _memory,
    "overhead": _overhead,
    "roofline": _roofline,
    "scaling": _scaling,
    "stalls": _stalls,
    "stragglers": _stragglers,
    "study": _study,
    "whatif": _whatif,
}
"""Functions that return the headline of a command's rows: command -> function."""


def size_text(size: float) -> str:
    """Return a number of bytes as text."""
    divisor, unit = unit_of(size, BYTE_UNITS)
    return f"{size / divisor:,.4g} {unit}"


def _largest(rows: pl.DataFrame, by: str, *others: str) -> dict[str, Any] | None:
    """Return the row with the largest value of `by` whose `others` are known; None if none."""
    if not {by, *others} <= {*rows.columns}:
        return None
    known = rows.drop_nulls([by, *others]).sort(by, descending=True)
    return None if known.is_empty() else known.row(0, named=True)


def _keys(rows: pl.DataFrame) -> list[str]:
    columns = [name for name in rows.columns if name != "pid"]  # of a stream's process
    keys = list(takewhile(lambda name: name in _KEYS, columns))
    return [name for name in keys if name != "kind" or "name" not in keys]


def _most(rows: pl.DataFrame, keys: Sequence[str]) -> str:
    """Name the first rows with a considerable share, each with its share."""
    shown = rows.filter(pl.col("share") >= _LEAST).head(_MOST_NAMED)
    return ", ".join(
        f"{_named(row, keys)} {percent(row['share'])}" for row in shown.iter_rows(named=True)
    )


def _named(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    return " ".join(filter(None, (_text(key, row[key]) for key in keys)))


def _text(key: str, value: object) -> str:
    if key == "recomputed":
        return "recomputed" if value else ""
    if value is None:
        return f"unknown {key}"
    text = printable(str(value))
    if key == "name":
        text = readable_names([text])[text]
    return shorten(f"{_CALLED[key]} {text}" if key in _CALLED else text, _WIDEST)
