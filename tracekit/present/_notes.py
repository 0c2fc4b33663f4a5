"""The lines below a table: what its numbers are measured against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracekit.present._columns import duration, percent, text_of

_WINDOW_KEYS = ("window_ns", "idle_ns", "devices", "iterations", "skip")


def notes(meta: Mapping[str, Any]) -> list[str]:
    """Return `meta` as lines of text, safe to print.

    Parameters
    ----------
    meta
        What an analysis says about its result. The keys of a breakdown (`window_ns`, `idle_ns`,
        `wu_residual_ns`, `devices`, `iterations`, `skip`, `coverage`, `launched`) and `warnings`
        are worded; any other is shown as it is.
    """
    lines = [_window(meta)] if meta.get("window_ns") is not None else []
    for key, value in meta.items():
        if key in _WINDOW_KEYS and lines:
            continue
        if key == "wu_residual_ns":
            lines.append(f"WU as a residual (window minus FP and BP): {_time(value)}")
        elif key == "coverage":
            lines.append(f"stages known by: {_shares(value)} of busy time")
        elif key == "launched":
            share = "an unknown share" if value is None else percent(value)
            lines.append(f"launching call known of {share} of ops")
        elif key == "warnings":
            lines += [f"warning: {text_of(warning)}" for warning in value]
        else:
            lines.append(f"{text_of(key)}: {_value(key, value)}")
    return lines


def count(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 device` or `59 iterations`."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def _window(meta: Mapping[str, Any]) -> str:
    parts = [f"window {_time(meta['window_ns'])}"]
    if meta.get("devices") is not None:
        parts[0] += f" on {count(meta['devices'], 'device')}"
    if meta.get("iterations") is not None:
        parts.append(count(meta["iterations"], "iteration") + _skipped(meta.get("skip")))
    if meta.get("idle_ns") is not None:
        share = f" ({percent(meta['idle_ns'] / meta['window_ns'])})" if meta["window_ns"] else ""
        parts.append(f"idle {_time(meta['idle_ns'])}{share}")
    return " · ".join(parts)


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
    if isinstance(value, int) and key.endswith("_ns"):
        return duration(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{text_of(k)} {text_of(v)}" for k, v in value.items())
    return text_of(value)
