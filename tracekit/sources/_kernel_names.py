"""Readable and short names of kernels, derived from the names in a trace."""

from __future__ import annotations

import re

import polars as pl

from tracekit.model import split_brackets

_MANGLED = "_Z"
_UNNAMED = re.compile(r"\(anonymous namespace\)|<unnamed>")


def short_name(name: str) -> str:
    """Return a function's own name without return type, namespace, template arguments, parameters.

    As nsys shortens it: ``void a::b<int>::c<4>(float*)`` becomes ``c``.
    """
    words = split_brackets(_UNNAMED.sub("unnamed", name))[0].split()
    return (words[-1].rpartition("::")[2] if words else "") or name


def readable(name: str | None) -> str | None:
    """Return a kernel name demangled; a name that is not mangled is returned unchanged.

    A name that cannot be demangled, or whose declaration would be too long, is unchanged as well.
    """
    if name is None or not name.startswith(_MANGLED):
        return name
    from demangle import demangle  # noqa: PLC0415 - nothing else that is read needs it

    return demangle(name)


class KernelNames:
    """Readable kernel names and their short forms, computed once per distinct name."""

    def __init__(self) -> None:
        self._readable: dict[str | None, str | None] = {}
        self._short: dict[str, str] = {}

    def of(self, recorded: pl.Series) -> list[pl.Series]:
        """Return two series for recorded kernel names: readable (demangled) and short names."""
        for name in recorded.unique().to_list():
            if name not in self._readable:
                self._readable[name] = readable(name)
        names = recorded.replace_strict(self._readable, return_dtype=pl.String)
        pair = names.alias("name"), self.short(names).alias("short_name")
        return [each.cast(pl.Categorical()) for each in pair]

    def short(self, names: pl.Series) -> pl.Series:
        """Return the short name of each kernel, by its readable name."""
        for name in names.drop_nulls().unique().to_list():
            if name not in self._short:
                self._short[name] = short_name(name)
        return names.replace_strict(self._short, default=None, return_dtype=pl.String)
