"""Locations of tracekit's data files: stage rules, and schemas of formats and outputs."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def schemas() -> Path:
    """Return the folder `schemas`: inside an installed package, beside it in a working copy."""
    shipped = _PACKAGE / "schemas"
    return shipped if shipped.is_dir() else _PACKAGE.parent / "schemas"
