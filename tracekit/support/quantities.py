"""Parse quantities with units: `4GiB`, `1.5ms`, `312TFLOPS`, `60M`, `5%`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal

from tracekit.errors import UsageError

_TIMES = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_FLOPS = {"": 1, **{letter: 1000**power for power, letter in enumerate("kmgtp", 1)}}
_SIZES = {"": 1, "b": 1} | {
    f"{letter}{kind}": base ** (power + 1)
    for power, letter in enumerate("kmgt")
    for kind, base in (("b", 1000), ("ib", 1024))
}


def parse_size(text: str) -> int:
    """Return the number of bytes in a text such as ``4GiB``, ``500MB`` or ``1000000``.

    Raises
    ------
    UsageError
        If the text is no size.
    """
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", text.lower())
    unit = _SIZES.get(found[2]) if found else None
    size = int(Decimal(found[1]) * unit) if found and unit else 0
    if not size:
        raise UsageError(f"{text!r} is not a size of memory", "write it as 4GiB, 500MB or bytes")
    return size


def parse_flops(text: str) -> int:
    """Return the FLOP/s in a text such as ``312TFLOPS`` or ``1.5e12``.

    Raises
    ------
    UsageError
        If the text is no such rate.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?(?:e[0-9]{1,2})?)([kmgtp]?)(flop/?s)?",
                         text.lower().replace(" ", ""))  # fmt: skip
    rate = int(Decimal(found[1]) * _FLOPS[found[2]]) if found else 0
    if not rate:
        raise UsageError(f"cannot read the rate of computing {text!r}", "write it as 312TFLOPS")
    return rate


def parse_duration(text: str) -> int:
    """Parse a time with its unit, such as ``+1.5ms`` or ``-300us``, to ns.

    Raises
    ------
    UsageError
        If the text is no time with a unit.
    """
    found = re.fullmatch(r"\s*([+-]?[0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*", text.lower())
    unit = _TIMES.get(found[2]) if found else None
    if found is None or unit is None:
        raise UsageError(f"{text!r} is not a time", "write it as +1.5ms, -300us, 20ns or 1s")
    return int(Decimal(found[1]) * unit)


def parse_count(text: str) -> int:
    """Return the number in a text such as ``60M``, ``1.3B`` or ``60000``.

    Raises
    ------
    UsageError
        If the text is no number.
    """
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmbgt]?)\s*", text.lower())
    count = int(Decimal(found[1]) * _COUNTS[found[2]]) if found else 0
    if not count:
        raise UsageError(f"{text!r} is not a number", "write it as 60M, 1.3B or 60000")
    return count


def parse_images(text: str) -> int:
    """Return the number of images in a text: 256K is 262,144, as is usual for data sets.

    Raises
    ------
    UsageError
        If the text is no such number.
    """
    found = re.fullmatch(r"\s*([0-9]+)\s*([km]?)\s*", text.lower())
    count = int(found[1]) * {"": 1, "k": 1 << 10, "m": 1 << 20}[found[2]] if found else 0
    if not count:
        raise UsageError(
            f"cannot read the number of images {text!r}", "write it as 256K, 1M or 50000"
        )
    return count


def parse_percent(text: str) -> float:
    """Return the percentage in a text such as ``5%`` or ``2.5``.

    Raises
    ------
    UsageError
        If the text is no percentage.
    """
    found = re.fullmatch(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*%?\s*", text)
    if found is None:
        raise UsageError(f"{text!r} is not a percentage", "write it as 5% or 2.5")
    return float(found[1])


UNITS: Mapping[str, Callable[[str], float]] = {
    "bytes": parse_size, "FLOP/s": parse_flops, "ns": parse_duration, "count": parse_count,
    "images": parse_images, "percent": parse_percent,
}  # fmt: skip
"""Functions that parse a quantity: unit of the result -> function."""
