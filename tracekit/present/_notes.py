"""The sentence above a table with its result, and the notes below it that explain its values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from tracekit.model import Answer
from tracekit.support.wording import (
    FIRST_LINES,
    NOTES,
    SUMMARIES,
    count,
    duration,
    note,
    percent,
    skipped_text,
    text_of,
    time_text,
)

_HOW_KEYS = {"wu_residual_ns", "wu_residual_other_ns", "wu_residual_unknown", "coverage"}
_HOW = ("idle in A, by", "idle in B, by", "outside_steps: ", "interval: ")
"""Begins of notes on the method of a comparison."""
_WARNED = "warning: "
_MOST_WARNINGS = 3
_ALMOST_ALL = 0.9995
_UNIT = re.compile(r"_(ns|percent)$")
"""Units in the names of values that are printed with their unit."""
_ELSEWHERE = {"question", "headline", "per", "sum_over", "percentiles_per", "peak_of", "cold"}
"""Keys whose values the lines above a table contain."""
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
        `warnings` become sentences; the others share a line, except for values without information.
    """
    lines = [_window(meta), *_cold(meta)] if meta.get("window_ns") is not None else []
    worded = {*_ELSEWHERE, *(_WINDOW_KEYS if lines else ()), *(["skip"] if "cold" in meta else [])}
    for keys, optional, word in SUMMARIES:
        if meta.keys() >= keys:
            lines += word(meta)
            worded |= keys | optional
    return lines + _others({key: value for key, value in meta.items() if key not in worded})


def brief(meta: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return the most important notes, and whether any notes were left out.

    Notes on how the values were found are left out if they report the usual case: all launches are
    known, all processes train. Notes on weak evidence, and on rows that are not shown, are kept.
    The first warnings are kept, too; one line gives the number of further warnings.
    """
    unusual = {key: value for key, value in meta.items() if not _is_usual(key, value)}
    lines = [line for line in notes(unusual) if not line.startswith(_HOW)]
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
    """Return the notes below a table: answer metadata as sentences or ``key: value``; warnings."""
    worded = {key: NOTES[key](value) for key, value in meta.items() if key in NOTES}
    warned = worded.pop(_WARNINGS, [])
    plain = _plain({key: value for key, value in meta.items() if key not in NOTES})
    return [*chain(*worded.values()), *plain, *warned]


def _plain(meta: Mapping[str, Any]) -> list[str]:
    """Return lines ``key: value`` for meta entries that no function words, joined if short."""
    texts = {
        key: f"{text_of(_UNIT.sub('', key).replace('_', ' '))}: {_value(key, value)}"
        for key, value in meta.items()
        # 0 skipped steps, or an option that was not used, need no note.
        if not isinstance(value, (int, float, str, Sequence, Mapping)) or value
    }
    short = [text for text in texts.values() if len(text) <= _SHORT]
    long = [text for text in texts.values() if len(text) > _SHORT]
    return [*([" · ".join(short)] if short else []), *long]


def _window(meta: Mapping[str, Any]) -> str:
    parts = [f"window {time_text(meta['window_ns'])}"]
    for key, noun in (("devices", "device"), ("processes", "process")):
        if meta.get(key) is not None:
            parts[0] += f" on {count(meta[key], noun)}"
    if meta.get("iterations") is not None:
        parts.append(count(meta["iterations"], "iteration") + skipped_text(meta.get("skip")))
    if meta.get("idle_ns") is not None:
        share = f" ({percent(meta['idle_ns'] / meta['window_ns'])})" if meta["window_ns"] else ""
        outside = "in no stage" if "basis" in meta else "idle"
        parts.append(f"{outside} {time_text(meta['idle_ns'])}{share}")
    return " · ".join(parts)


def _cold(meta: Mapping[str, Any]) -> list[str]:
    """Return a note on the time of warm-up (cold) steps, which mean times per step leave out."""
    if (cold := meta.get("cold")) is None:
        return []
    first = "cold first step" if cold["steps"] == 1 else f"{cold['steps']:,} cold first steps"
    idle = f", {time_text(cold['idle_ns'])} of it idle" if "idle_ns" in cold else ""
    return [f"{first}: {time_text(cold['window_ns'])} of the window{idle}; in no number per step"]


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
    meta
        Meta of the answer: ``question`` and ``headline``; ``per``, the unit of mean times (such as
        step/GPU), or ``sum_over``, the things over which times are summed; ``percentiles_per``, the
        unit of percentiles; ``peak_of``, the GPU or GPUs whose largest memory in use is given;
        ``cold``, whose ``steps`` is the number of cold steps left out (unless ``window_ns`` is
        given: sums over a window include them).
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


note("skip")(lambda number: [f"skip: {number}"] if number else [])  # of cold steps notes speak
note("notes", "evidence")(lambda lines: [text_of(line) for line in lines])
note("basis")(lambda basis: [f"measured on the {text_of(basis)}"])
note("shares")(lambda meaning: text_of(meaning).split("; "))
note("left_out")(
    lambda steps: [
        f"outliers left out: {', '.join(f'step {step} of {text_of(run)}' for step in each)}"
        for run, each in steps.items()
    ]
)
note(_WARNINGS)(lambda warnings: [f"{_WARNED}{text_of(warning)}" for warning in warnings])


# -- the sentence above a table


def with_headline(answer: Answer) -> Mapping[str, Any]:
    """Return an answer's meta with a ``headline`` (its result in one sentence), if rows give one.

    Answers with rows left out get none, since the row that matters may be missing.
    """
    find = answer.headline or FIRST_LINES.get(answer.command)
    if "headline" in answer.meta or find is None or not answer.is_whole or answer.rows.is_empty():
        return answer.meta
    text = find(answer.rows, answer.meta)
    return {**answer.meta, "headline": text} if text else answer.meta
