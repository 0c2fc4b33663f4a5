"""Traces compared as recordings named A and B."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracekit.analysis import comparison
from tracekit.analysis.communication import Traffic
from tracekit.analysis.comparison import Comparison, Recorded, apart
from tracekit.model import Trace


def compare(
    a: Trace,
    b: Trace,
    by: str | Sequence[str] = "stage",
    *,
    names: tuple[str, str] = ("A", "B"),
    labels: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {}),
    traffic: tuple[Traffic | None, Traffic | None] = (None, None),
    **options: Any,
) -> Comparison:
    one, other = map(Recorded, (a, b), names, labels, traffic)
    return comparison.compare(one, other, by, **options)


def comparability(a: Trace, b: Trace, by: Sequence[str] = ("stage",)) -> list[str]:
    return apart([Recorded(a, "A"), Recorded(b, "B")], by)
