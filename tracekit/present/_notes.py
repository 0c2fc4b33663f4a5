"""Notes below a table that explain its numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from tracekit.present._columns import duration, percent, text_of
from tracekit.present._figures import BYTE_UNITS, FLOP_UNITS, unit_of

_TRAFFIC_KEYS = {
    "machine", "origin", "placed_by", "transfers", "listed", "routed", "sized", "collectives",
    "collectives_of_unknown_size", "collectives_on_no_link", "root",
}  # fmt: skip
_OPTIONAL = {"listed"}
"""Keys that tables of counters do not have."""
_COLLECTIVE_KEYS = {"calls", "sized", "matched", "collectives", "missing"}
_COMPARISON_KEYS = {
    "names", "by", "skip", "a_iterations", "b_iterations", "step", "not_comparable", "notes",
    "method", "a_devices", "b_devices", "a_skipped", "b_skipped",
}  # fmt: skip
_HISTORY_KEYS = {"label", "metric", "points", "changes", "untimed", "method"}
_DIAGNOSIS_KEYS = {"step_ns", "steps", "devices", "findings", "asked"}
_FLOPS_KEYS = {
    "steps", "step_ns", "step_flops", "step_recomputed_flops", "mfu", "hfu", "known_share", "peaks",
    "attention",
}  # fmt: skip
_ROOFLINE_KEYS = {
    "steps", "step_ns", "bounds", "step_headroom_ns", "known_share", "peaks", "memory_peaks",
    "attention", "modelled", "tensor_core_ns", "untold_ns", "bounds_unknown",
}  # fmt: skip
_HOW_KEYS = {"wu_residual_ns", "wu_residual_unknown", "coverage"}
_HOW = ("idle in A, by", "idle in B, by", "outside: ", "interval: ")
"""Begins of notes on the method of a comparison."""
_WARNED = "warning: "
_MOST_WARNINGS = 3
_ALMOST_ALL = 0.9995
_WEAK = {
    "kernel_name": "names of kernels alone",
    "copy_kind": "kinds of copies alone",
    "structure": "the order of launches, an estimate",
}
_RESIDUAL = "WU as a residual (window minus FP and BP)"
_ENDS = {"begin": "its beginning", "end": "its end", "both": "its beginning and its end"}
_UNIT = re.compile(r"_(ns|percent)$")
"""Units in the names of values that are printed with their unit."""
_ELSEWHERE = {
    "recomputed", "outcome", "undecided_passes", "trusted", "perhaps", "question", "headline",
    "per", "sum_over", "percentiles_per", "peak_of", "last_step_ns", "cold",
}  # fmt: skip
"""Keys that the lines above a table say, its rows, its other notes, or warnings."""
_WARNINGS = "warnings"
_SHORT = 80
"""Longest text, in characters, that shares a line with others."""
_WINDOW_KEYS = ("window_ns", "idle_ns", "devices", "processes", "iterations", "skip")


def notes(meta: Mapping[str, Any]) -> list[str]:
    """Return the meta of an answer as lines of text, safe to print.

    Parameters
    ----------
    meta
        Meta of an answer. The keys of a breakdown (`window_ns`, `idle_ns`, `wu_residual_ns`,
        `devices`, `iterations`, `skip`, `coverage`, `launched`), of traffic on links, and
        `warnings` become sentences; the others share a line, except for values that say nothing.
    """
    if meta.keys() >= _HISTORY_KEYS:
        return _history(meta)
    lines = [_window(meta), *_cold(meta)] if meta.get("window_ns") is not None else []
    worded = set(_WINDOW_KEYS) if lines else set()
    for keys, word in (
        (_TRAFFIC_KEYS, _traffic), (_COLLECTIVE_KEYS, _collectives),
        (_COMPARISON_KEYS, _comparison), (_DIAGNOSIS_KEYS, _diagnosis), (_FLOPS_KEYS, _flops),
        (_ROOFLINE_KEYS, _roofline),
    ):  # fmt: skip
        if meta.keys() >= keys - _OPTIONAL:
            lines += word(meta)
            worded |= keys
    worded |= _ELSEWHERE | ({"skip"} if "cold" in meta else set())
    if "not_comparable" in meta:  # its notes and its first line say that
        worded |= {"verdicts", "judged", "recordings"}
    return lines + _others({key: value for key, value in meta.items() if key not in worded})


def brief(meta: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return the most important notes, and whether others were left out.

    Left out are notes on how the numbers were found, if they report the usual case: all launches
    are known, all processes train. Warnings, weak evidence and cuts are never left out; of many
    warnings the first are shown, with the number of the others.
    """
    told = {key: value for key, value in meta.items() if not _is_usual(key, value)}
    lines = [line for line in notes(told) if not line.startswith(_HOW)]
    warned = [line for line in lines if line.startswith(_WARNED)]
    more = len(warned) - _MOST_WARNINGS
    if more > 0:
        lines = [line for line in lines if line not in warned[_MOST_WARNINGS:]]
        lines.append(f"and {count(more, 'more warning')}: -v or `tracekit runs show` lists all")
    return lines, len(lines) < len(notes(meta))


def _is_usual(key: str, value: object) -> bool:
    if key == "launched":
        return isinstance(value, float) and value >= _ALMOST_ALL
    if key == "verdict":
        return isinstance(value, Mapping) and set(value) <= {"training"}
    return key in _HOW_KEYS


def _others(meta: Mapping[str, Any]) -> list[str]:
    """Return the other notes: entries with wording of their own, plain ones, then warnings."""
    worded = {key: _WORDED[key](value) for key, value in meta.items() if key in _WORDED}
    warned = worded.pop(_WARNINGS, [])
    plain = _plain({key: value for key, value in meta.items() if key not in _WORDED})
    return [*chain(*worded.values()), *plain, *warned]


def _plain(meta: Mapping[str, Any]) -> list[str]:
    """Return entries without wording of their own: on one line, except for long ones."""
    told = {
        key: f"{text_of(_UNIT.sub('', key).replace('_', ' '))}: {_value(key, value)}"
        for key, value in meta.items()
        if value is None or not _says_nothing(value)
    }
    short = [text for text in told.values() if len(text) <= _SHORT]
    long = [text for text in told.values() if len(text) > _SHORT]
    return [*([" · ".join(short)] if short else []), *long]


def _says_nothing(value: object) -> bool:
    """Tell whether a value needs no note: nothing skipped, nothing unknown, no option given."""
    return isinstance(value, (int, float, str, Sequence, Mapping)) and not value


def _launched(share: float | None) -> list[str]:
    known = "an unknown share" if share is None else percent(share)
    return [f"launching call known of {known} of ops"]


def _verdict(verdicts: Mapping[str, int]) -> list[str]:
    several = sum(verdicts.values()) > 1
    texts = [
        f"{count(number, 'process')} {text_of(verdict)}" if several else text_of(verdict)
        for verdict, number in verdicts.items()
    ]
    return [f"verdict: {', '.join(texts)}"] if texts else []


def _verdicts(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return notes on what the processes of the runs do, unless all of them train."""
    if all(set(each.get("verdict", ())) <= {"training"} for each in runs.values()):
        return []
    worded = [
        f"{text_of(name)} {', '.join(map(text_of, each.get('verdict', ()))) or 'unknown'}"
        for name, each in runs.items()
    ]
    return [f"verdict: {'; '.join(worded)}"]


def _weakness(weak: Mapping[str, Any]) -> str:
    on = _WEAK.get(weak["source"], text_of(weak["source"]))
    share = percent(weak["share"])
    return f"weak evidence: {text_of(weak['stage'])} rests on {on} for {share} of GPU time"


def _outliers(found: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"rank {each['rank']} stands out: busy {each['ratio']:.3g} times as long as the median"
        for each in found
    ]


def count(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 device` or `59 iterations`."""
    plural = f"{noun}es" if noun.endswith(("s", "ch")) else f"{noun}s"
    plural = f"{noun[:-1]}ies" if noun.endswith("cy") else plural
    return f"{number:,} {noun if number == 1 else plural}"


def _window(meta: Mapping[str, Any]) -> str:
    parts = [f"window {_time(meta['window_ns'])}"]
    for key, noun in (("devices", "device"), ("processes", "process")):
        if meta.get(key) is not None:
            parts[0] += f" on {count(meta[key], noun)}"
    if meta.get("iterations") is not None:
        parts.append(count(meta["iterations"], "iteration") + _skipped(meta.get("skip")))
    if meta.get("idle_ns") is not None:
        share = f" ({percent(meta['idle_ns'] / meta['window_ns'])})" if meta["window_ns"] else ""
        outside = "in no stage" if "basis" in meta else "idle"
        parts.append(f"{outside} {_time(meta['idle_ns'])}{share}")
    return " · ".join(parts)


def _cold(meta: Mapping[str, Any]) -> list[str]:
    """Say how much of sums over the window lies in cold steps."""
    if (cold := meta.get("cold")) is None:
        return []
    first = "cold first step" if cold["steps"] == 1 else f"{cold['steps']:,} cold first steps"
    idle = f", {_time(cold['idle_ns'])} of it idle" if "idle_ns" in cold else ""
    return [f"{first}: {_time(cold['window_ns'])} of the window{idle}; in no number per step"]


def _traffic(meta: Mapping[str, Any]) -> list[str]:
    """Return notes on traffic: the machine, the share on known links, and the root GPU if any."""
    machine, origin = text_of(meta["machine"]), text_of(meta["origin"])
    lines = [f"machine {machine} ({origin}), GPUs taken by {text_of(meta['placed_by'])}"]
    transfers = meta["transfers"]
    text = f"{_part(meta['routed'], transfers)} on known links"
    listed = meta.get("listed", transfers)
    rows = "" if listed == transfers else f"{listed:,} of them in these rows, "
    sized = f"{_part(meta['sized'], transfers)} sized"
    whole = f"{count(transfers, 'transfer')}, {rows}{text}, {sized}"
    lines.append(whole if transfers else "no transfers between devices, or with the host")
    if meta["collectives"]:
        known = meta["collectives"] - meta["collectives_of_unknown_size"]
        sized = _part(known, meta["collectives"])
        lines.append(f"{count(meta['collectives'], 'collective kernel')}, {sized} of known size")
    root = meta["root"]
    if root["pattern"] == "single":
        share = percent(root["share"])
        lines.append(f"root of the traffic: GPU {root['root']}, an end of {share} of bytes copied")
    elif root["pattern"] == "spread":
        lines.append("no root of the traffic: copies are spread over GPUs")
    return lines


def _collectives(meta: Mapping[str, Any]) -> list[str]:
    """Return notes on collectives: what is known of them, and what is missing."""
    calls, sized = meta["calls"], meta["sized"]
    if not calls:
        return []
    sources = ", ".join(f"{number:,} by {text_of(source)}" for source, number in sized.items())
    text = f"{count(calls, 'participant')}: sizes of {sources or 'none'} known"
    matched = (
        f"{_part(meta['matched'], calls)} matched into {count(meta['collectives'], 'collective')}"
    )
    return [f"{text}, {matched}", *(f"missing: {text_of(each)}" for each in meta["missing"])]


def _comparison(meta: Mapping[str, Any]) -> list[str]:
    """Return notes on a comparison: the result, the runs, and the method."""
    runs = [
        f"{' '.join(dict.fromkeys((side, text_of(name))))}, "
        f"{count(meta[f'{side.lower()}_iterations'], 'iteration')} on "
        f"{count(meta[f'{side.lower()}_devices'], 'process' if 'basis' in meta else 'GPU')}"
        for side, name in zip("AB", meta["names"], strict=True)
    ]
    line = " · ".join(runs) + _skipped(meta["skip"])
    return [line, *_typical(meta), *map(text_of, meta["notes"]), text_of(meta["method"])]


def _typical(meta: Mapping[str, Any]) -> list[str]:
    """Return a note on the row of the typical step: its change is no difference of its ends."""
    if meta["by"] not in (["stage"], ["step"]) or meta["step"].get("shift_low_ns") is None:
        return []
    if "recordings" in meta:
        return ["typical: means of the recordings' medians"]
    return ["typical: medians; delta is the median of the differences of all pairs of steps"]


def _history(meta: Mapping[str, Any]) -> list[str]:
    """Return notes on a history: number of points, and runs left out."""
    of = f"{text_of(meta['metric'])} steps" + _skipped(meta.get("skip"))
    untimed = ", ".join(map(text_of, meta["untimed"]))
    return [
        f"{count(meta['points'], 'point')}, {of}",
        *([f"left out, without steps: {untimed}"] if untimed else []),
        *_verdicts(meta.get("verdicts", {})),
        text_of(meta["method"]),
        *(f"warning: {text_of(warning)}" for warning in meta.get("warnings", ())),
    ]


def _diagnosis(meta: Mapping[str, Any]) -> list[str]:
    """Return notes on a diagnosis: the steps examined, and the number of rules with findings."""
    on = f"on {count(meta['devices'], 'GPU')}"
    steps = f"{count(meta['steps'], 'usual step')} {on}, {_time(meta['step_ns'])} in the mean"
    said = f"{count(meta['asked'], 'rule')} asked, {count(meta['findings'], 'finding')}"
    if "perhaps" in meta:
        said += f", {meta['perhaps']} by rules that are often wrong (--all)"
    if "last_step_ns" in meta:
        steps += f" (without the last, {_time(meta['last_step_ns'])}: it ends with its own work)"
    return [f"{steps if meta['steps'] else f'no steps {on}'} · {said}"]


def _flops(meta: Mapping[str, Any]) -> list[str]:
    """Return notes on FLOPs: work of a step, share of the peak, and how much of it is known."""
    mfu = "MFU unknown" if meta["mfu"] is None else f"MFU {percent(meta['mfu'])}"
    known = f"FLOPs known of {_percent(meta['known_share'])} of the time of kernels that compute"
    step = "no steps"
    if meta["steps"]:
        each = "FLOPs unknown" if meta["step_flops"] is None else _flop(meta["step_flops"])
        step = f"{each} in a step of {duration(meta['step_ns'])}"
    if meta["step_recomputed_flops"]:
        step += f", {_flop(meta['step_recomputed_flops'])} of it recomputed"
    if meta["hfu"] != meta["mfu"]:
        mfu += f", HFU {percent(meta['hfu'])}"
    return [f"{step} · {mfu} · {known}", *_peaks(meta)]


def _roofline(meta: Mapping[str, Any]) -> list[str]:
    """Return notes on a roofline: what bounds kernel time, and step time above the bounds."""
    bounds = ", ".join(f"{text_of(name)} {duration(ns)}" for name, ns in meta["bounds"].items())
    above = "headroom unknown"
    if meta["step_headroom_ns"] is not None:
        step = f"a step of {duration(meta['step_ns'])}"
        above = f"{duration(meta['step_headroom_ns'])} of {step} above the bounds"
    known = f"bounds known of {_percent(meta['known_share'])} of the time of kernels that compute"
    tensor = f"on Tensor Cores, by names of kernels: {duration(meta['tensor_core_ns'])}"
    if meta["untold_ns"]:
        tensor += f", not told of {duration(meta['untold_ns'])}"
    return [
        f"kernels by bound: {bounds}", tensor, f"{above} · {known}",
        *([text_of(meta["bounds_unknown"])] if meta["bounds_unknown"] else []),
        meta["modelled"], *_peaks(meta),
    ]  # fmt: skip


def _peaks(meta: Mapping[str, Any]) -> list[str]:
    """Return notes on the peaks that shares refer to, and on attention not counted in full."""
    peaks = [
        f"{text_of(precision)} {peak / 1e12:,.5g} TFLOP/s ({text_of(product)})"
        for product, each in meta["peaks"].items()
        for precision, peak in each.items()
    ] + [
        f"memory {peak / 1e12:,.4g} TB/s ({text_of(product)})"
        for product, peak in meta.get("memory_peaks", {}).items()
    ]
    counted = f"attention: {text_of(meta['attention'])}"
    return [f"peak: {', '.join(peaks)} · {counted}" if peaks else counted]


def _percent(share: float | None) -> str:
    return "an unknown share" if share is None else percent(share)


def _pipeline(found: Mapping[str, Any]) -> str:
    """Return a note on pipeline bubbles: as a share of stage time, over work, and in theory."""
    micro, schedule = found["micro_batches"], found["schedule"]
    parts = [count(found["stages"], "stage")]
    parts += [] if micro is None else [count(micro, "micro-batch")]
    parts += [] if schedule is None else [text_of(schedule)]
    lost = f"{percent(found['bubble_share'])} of the stages' time is a bubble"
    over = f"{percent(found['bubble_ideal_share'])} of their work"
    theory = found["theory_share"]
    if theory is None:
        return f"{', '.join(parts)}: {lost}, {over}; theory is not known"
    ideal = percent(found["theory_ideal_share"])
    return f"{', '.join(parts)}: {lost}, {over}; of equal stages {percent(theory)}, {ideal}"


def _expected(found: Mapping[str, Any]) -> str:
    if found["gpus"] < 2:  # noqa: PLR2004
        return "bytes between GPUs in each iteration: none are known, so none are expected"
    sizes = {name: _bytes(found[f"{name}_bytes"]) for name in ("gradient", "expected", "observed")}
    if "least_bytes" in found:
        sizes["observed"] = f"{_bytes(found['least_bytes'])} to {_bytes(found['most_bytes'])}"
    ratio = "" if found["ratio"] is None else f" ({found['ratio']:.3g} of what is expected)"
    how = "by a model" if found["evidence"] == "modelled" else "observed"
    unsized = f", {count(found['unsized'], 'transfer')} not sized" if found["unsized"] else ""
    return (
        f"bytes between GPUs in each iteration: {sizes['observed']} {how}{ratio}{unsized}, "
        f"{sizes['expected']} expected: 2 (n - 1) S for n = {found['gpus']} GPUs and gradients of "
        f"S = {sizes['gradient']}"
    )


def _flop(value: float) -> str:
    divisor, unit = unit_of(value, FLOP_UNITS)
    return f"{value / divisor:,.3f} {unit}"


def _bytes(value: float | None) -> str:
    if value is None:
        return "an unknown number"
    divisor, unit = unit_of(value, BYTE_UNITS)
    return f"{value / divisor:,.4g} {unit}"


def _part(number: int, of: int) -> str:
    return "all" if number == of else f"{number:,}"


def _by(sources: Sequence[str]) -> str:
    return " and ".join(map(text_of, sources)) or "nothing"


def _skipped(skip: int | None) -> str:
    return f" after {skip:,} skipped" if skip else ""


def _shares(shares: Mapping[str, float]) -> str:
    found = [(source, share) for source, share in shares.items() if share]
    found.sort(key=lambda item: -item[1])
    return ", ".join(f"{text_of(source)} {percent(share)}" for source, share in found) or "nothing"


def _time(value: int | None) -> str:
    return "unknown" if value is None else duration(value)


def _value(key: str, value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return _number(key, value)
    if isinstance(value, Mapping):
        return ", ".join(f"{text_of(k)} {text_of(v)}" for k, v in value.items())
    return text_of(value)


def _number(key: str, value: float) -> str:
    if key.endswith("_ns"):
        return duration(value)
    if key.endswith("_percent"):
        return f"{value:.1f} %"
    if key.endswith("_share"):
        return percent(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def headed(title: str, meta: Mapping[str, Any], unit: str | None) -> list[str]:
    """Return the lines above a table: its headline, and its title with units.

    Parameters
    ----------
    title
        The title.
    meta
        Meta of the answer: ``question`` and ``headline``; ``per``, what times are means over, or
        ``sum_over``, what they are summed over; ``percentiles_per``, what percentiles are means
        over; ``peak_of``, the GPU or GPUs whose memory in use is given at its maximum, not as a
        sum; ``cold``, cold steps, which sums over a window hold.
    unit
        Unit of the times.
    """
    of = [title] if title else []
    if meta.get("per") is not None:
        of.append(f"{unit or 'time'}/{text_of(meta['per'])}")
    if meta.get("sum_over") is not None:
        of.append(f"sum over {text_of(meta['sum_over'])}")
    if meta.get("percentiles_per") is not None:
        of.append(f"percentiles: {unit or 'time'}/{text_of(meta['percentiles_per'])}")
    if meta.get("peak_of") is not None:
        of.append(f"most in use at once, of {text_of(meta['peak_of'])}")
    if "cold" in meta and "window_ns" not in meta:
        of.append(f"{count(meta['cold']['steps'], 'cold step')} left out (--skip 0 keeps all)")
    above = [text_of(meta[key]) for key in ("question", "headline") if meta.get(key)]
    return [*above, *([" · ".join(of)] if of else [])]


_HOLDS = {True: "so it is here", False: "here it is not", None: "nothing here tells"}
_WORDED: Mapping[str, Callable[[Any], list[str]]] = {
    "wu_residual_ns": lambda value: [f"{_RESIDUAL}: {_time(value)}"],
    "wu_residual_unknown": lambda value: [f"why that is unknown: {text_of(value)}"],
    "verdict": _verdict,
    "verdicts": _verdicts,
    "evidence": lambda value: [text_of(line) for line in value],
    "given": lambda value: ["that verdict was given, not found"] if value else [],
    "cut": lambda value: [f"the recording of GPU work may lack {_ENDS[value]}"],
    "weak": lambda value: [_weakness(each) for each in value],
    "coverage": lambda value: [f"stages known by: {_shares(value)} of busy time"],
    "launched": _launched,
    "outlier_ranks": _outliers,
    "steps_by": lambda by: [f"steps known by {_by(by['a'])} in A, by {_by(by['b'])} in B"],
    "left_out": lambda steps: [
        f"outliers left out: {', '.join(f'step {step} of {text_of(run)}' for step in each)}"
        for run, each in steps.items()
    ],
    "skip": lambda number: [f"skip: {number}"] if number else [],  # of cold steps notes speak
    "notes": lambda lines: [text_of(line) for line in lines],
    "inclusive": lambda _: [
        "busy: ops launched in a range or in ranges inside it; own_busy: launched in it directly"
    ],
    "depth": lambda value: (
        [] if value is None else [f"{count(value, 'level')} of ranges; deeper ones count in these"]
    ),
    "joined": lambda value: [
        f"layer of {text_of(name)} known by: {_shares(shares)} of its ops' time"
        for name, shares in value.items()
    ],
    "unjoined": lambda value: [
        f"layer of {text_of(name)} unknown: {text_of(why)}" for name, why in value.items()
    ],
    "collective_wait_ns": lambda value: (
        [] if value is None else [f"waiting inside collectives, which is busy time: {_time(value)}"]
    ),
    "collective_wait_unknown": lambda value: [
        f"waiting inside collectives, which is busy time: unknown, {text_of(value)}"
    ],
    "steps_ns": lambda value: [f"all steps: {_time(value)}"],
    "step_outside_window_ns": lambda value: [
        f"step: {_time(value)} of it lie outside of the window, before or after a GPU's own ops"
    ],
    "unexplained_share": lambda value: [
        "unexplained part of the steps: " + ("unknown" if value is None else percent(value))
    ],
    "replay_error_share": lambda value: [
        "the unchanged replay of a step is off by "
        + ("an unknown share" if value is None else f"{percent(value)} in the median")
    ],
    "contradicted": lambda value: (
        [f"left out: {count(value, 'dependency')} that would run against time"] if value else []
    ),
    "basis": lambda value: [f"measured on the {text_of(value)}"],
    "expected": lambda value: [_expected(value)],
    "pipeline": lambda value: [_pipeline(value)],
    "of_runs": lambda value: [f"of {text_of(value)}"],
    "claims": lambda value: [
        f"published: {text_of(claim)}; {_HOLDS[holds]}" for claim, holds in value.items()
    ],
    "wins": lambda value: [text_of(value)],
    "shares": lambda value: text_of(value).split("; "),
    "warnings": lambda value: [f"warning: {text_of(warning)}" for warning in value],
}
"""Functions that word entries of meta: key -> function."""
