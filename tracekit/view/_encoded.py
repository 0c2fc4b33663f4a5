"""Answers as JSON for the page, with long arrays of integers as bytes.

Digits of 4,000 integers take 4 to 11 times as long to write.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

_FEW = 128
"""Largest number of values that are written as digits, about as fast as bytes."""
_TYPES = {kind: np.iinfo(kind) for kind in ("i1", "i2", "i4")}


def encoded(answer: object) -> str:
    """Return a value as JSON.

    A long array of integers becomes an object of ``base64``, its values as little-endian bytes, and
    ``type``, which is ``i1``, ``i2``, or ``i4`` (integers of so many bytes), or else ``f8`` (64-bit
    floats, in which JavaScript computes).
    """
    return json.dumps(answer, separators=(",", ":"), default=_packed)


def _packed(values: Any) -> dict[str, str] | list[int]:
    if not isinstance(values, np.ndarray):
        raise TypeError(f"{type(values).__name__} has no form in JSON")
    if len(values) <= _FEW:
        return values.tolist()  # type: ignore[no-any-return]
    low, high = int(values.min()), int(values.max())
    kinds = (kind for kind, each in _TYPES.items() if each.min <= low and high <= each.max)
    kind = next(kinds, "f8")
    content = values.astype(f"<{kind}").tobytes()
    return {"type": kind, "base64": base64.b64encode(content).decode()}
