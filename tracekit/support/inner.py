"""Decorator for functions that compiled loops call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

PARTS: list[Callable[..., Any]] = []
"""Functions that loops may call, not registered with the compiler yet."""


def inner(part: Callable[P, R]) -> Callable[P, R]:
    """Mark a function so that loops of its module can call it and be compiled with it."""
    PARTS.append(part)
    return part
