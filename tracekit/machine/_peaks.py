"""How fast GPUs multiply at most, by product name and precision."""

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
    return next((each for pattern, each in _peaks() if pattern.search(product)), {})


@cache
def _peaks() -> tuple[tuple[re.Pattern[str], Mapping[str, int]], ...]:
    content = load_toml(schemas() / "machines" / "peaks.toml")
    return tuple(
        (
            re.compile(each["name"]),
            {
                precision: round(value * _TERA)
                for precision, value in each.items()
                if precision != "name"
            },
        )
        for each in content["product"]
    )
