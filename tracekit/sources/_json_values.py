"""Values of JSON that may be of another type than their format says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON value that is an object; an empty mapping for any other value."""
    return value if isinstance(value, dict) else {}


def integer(value: object, most: int = (1 << 62)) -> int | None:
    """Return a JSON value that is an integer from 0 to below `most`; None for any other."""
    is_one = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < most
    return value if is_one else None  # type: ignore[return-value]


def text_of(value: object) -> str | None:
    """Return a JSON value as a UTF-8 string: texts as they are, others as JSON, null as None."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value)
    # An escape may stand for half of a character, which is no text.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
