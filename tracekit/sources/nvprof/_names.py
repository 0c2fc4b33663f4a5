"""Names of kernels, which are recorded as the compiler mangled them."""

from __future__ import annotations

import re

import polars as pl

from tracekit.model import PolarsType
from tracekit.sources.nvprof._input import Strings

_MANGLED = "_Z"
_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\{[^{}]*\}::")
_NAMES: dict[str, PolarsType] = {
    "id": pl.Int64,
    "name": pl.Categorical(),
    "short_name": pl.Categorical(),
}


class KernelNames:
    """The names of kernels, made readable as they are met for the first time.

    Parameters
    ----------
    strings
        The strings of the database.
    """

    def __init__(self, strings: Strings) -> None:
        self._strings = strings
        self._known = pl.DataFrame(schema=_NAMES)

    def of(self, ids: pl.Series) -> pl.DataFrame:
        """Return ``name, short_name`` of each id, null where it has no text."""
        wanted = ids.alias("id").to_frame()
        self._learn(wanted.unique().join(self._known, on="id", how="anti")["id"])
        named = wanted.join(self._known, on="id", how="left", maintain_order="left")
        return named.drop("id")

    def _learn(self, ids: pl.Series) -> None:
        if ids.is_empty():
            return
        names = [readable(text) for text in self._strings.of(ids)]
        short = [None if name is None else short_name(name) for name in names]
        learned = pl.DataFrame({"id": ids, "name": names, "short_name": short}, schema=_NAMES)
        self._known = pl.concat([self._known, learned])


def readable(name: str | None) -> str | None:
    """Return the demangled form of a name; other names are returned unchanged.

    So is one that cannot be demangled, or whose declaration would be unreasonably long.
    """
    if name is None or not name.startswith(_MANGLED):
        return name
    from demangle import demangle  # noqa: PLC0415 - nothing else that is read needs it

    return demangle(name)


def short_name(declaration: str) -> str:
    """Return a function's name without type, namespaces, template arguments and parameters.

    ``void at::native::reduce_kernel<512, float>(int)`` is ``reduce_kernel``.
    """
    plain = _UNNAMED.sub("", declaration)
    kept, depth = [], 0
    for place, character in enumerate(plain):
        if character == "(" and depth == 0 and place:
            break
        depth += (character == "<") - (character == ">")
        if depth == 0 and character != ">":
            kept.append(character)
    words = "".join(kept).replace("::", " ").split()
    return words[-1] if words else declaration
