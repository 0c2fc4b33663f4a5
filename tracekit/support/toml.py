"""TOML that somebody wrote by hand, or made to do harm."""

from __future__ import annotations

import tomllib
from typing import Any

NotToml = tomllib.TOMLDecodeError
"""What `parse_toml` raises."""


def parse_toml(text: str) -> dict[str, Any]:
    """Return the content of a TOML document.

    Raises
    ------
    NotToml
        If it is none, or is nested deeper than anyone writes.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise NotToml("it is nested too deeply") from None
