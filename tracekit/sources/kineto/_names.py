"""Short names of kernels, derived from the full names in a trace."""

from __future__ import annotations

import re

import polars as pl

_BRACKETS = re.compile(r"([<>(){}\[\]])")
_OPENING, _CLOSING = frozenset("<({["), frozenset(">)}]")
_UNNAMED = re.compile(r"\(anonymous namespace\)|<unnamed>")
_OPERATOR = re.compile(r"operator\s*(?:<<=?|>>=?|<=>|<=|>=|->|<|>|\(\)|\[\])")


def short_name(name: str) -> str:
    """Return a function's own name without return type, namespace, template arguments, parameters.

    As nsys shortens it: ``void a::b<int>::c<4>(float*)`` becomes ``c``.
    """
    outside: list[str] = []
    depth = 0
    for part in _BRACKETS.split(_OPERATOR.sub("operator", _UNNAMED.sub("unnamed", name))):
        if part in _OPENING:
            if part == "(" and depth == 0 and "".join(outside).strip():
                break  # its parameters
            depth += 1
        elif part in _CLOSING:
            depth = max(0, depth - 1)
        elif depth == 0:
            outside.append(part)
    words = "".join(outside).split()
    return (words[-1].rpartition("::")[2] if words else "") or name


class ShortNames:
    """Short names, computed once per distinct name."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, names: pl.Series) -> pl.Series:
        """Return the short name of each kernel."""
        for name in names.drop_nulls().unique().to_list():
            if name not in self._known:
                self._known[name] = short_name(name)
        return names.replace_strict(self._known, default=None, return_dtype=pl.String)
