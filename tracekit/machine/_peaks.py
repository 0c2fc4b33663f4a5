"""Peak FLOP/s and memory bandwidth of GPUs, by product name and precision."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from tracekit.machine._toml import load_toml
from tracekit.support.resources import schemas

_TERA = 10**12


def peak_flops(product: str | None) -> Mapping[str, int]:
    """Return the peak of a GPU of this name, FLOP/s, by precision; nothing where it is not known.

    They are those of dense matrices, as data sheets have them: ``schemas/machines/peaks.toml`` has
    the numbers and their sources. What shares a name with a GPU and is slower is not known.
    """
    if product is None:
        return {}
    return next((each for pattern, each in _peaks("product") if pattern.search(product)), {})


def peak_memory_bandwidth(product: str | None) -> int | None:
    """Return the peak of the memory of a GPU of this name, bytes/s; None where it is not known."""
    if product is None or not peak_flops(product):  # slices and mobile parts have none of either
        return None
    return next((each["peak"] for name, each in _peaks("memory") if name.search(product)), None)


@cache
def _peaks(what: str) -> tuple[tuple[re.Pattern[str], Mapping[str, int]], ...]:
    content = load_toml(schemas() / "machines" / "peaks.toml")
    return tuple(
        (
            re.compile(each["name"]),
            {key: round(value * _TERA) for key, value in each.items() if key != "name"},
        )
        for each in content[what]
    )
