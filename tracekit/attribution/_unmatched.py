"""Find entries of a user's rules file that match nothing in a trace, most likely by mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import polars as pl

from tracekit.attribution._rules import Entry, Rules, matches
from tracekit.model import UNMATCHED

_KERNEL = pl.col("kind").cast(pl.String).is_in(["compute", "collective"])


class Unmatched:
    """Entries of a rules file that have matched nothing so far.

    An entry counts as matched by what it means, whether or not an earlier one decides there.

    Parameters
    ----------
    rules
        The rules.
    """

    def __init__(self, rules: Rules) -> None:
        self._file = rules.file
        self._left = {
            name: dict(enumerate(rules[name][:count], 1)) for name, count in rules.given.items()
        }

    def see(self, name: str, rows: pl.DataFrame, applies: Callable[[Entry], pl.Expr]) -> None:
        """Record which entries of the list `name` some rows match."""
        left = self._left.get(name, {})
        for number, entry in list(left.items()):
            if rows.select(applies(entry).any()).item():
                left.pop(number, None)  # which another thread may have done

    def see_names(self, ranges: pl.DataFrame, threads: pl.DataFrame) -> None:
        """Record which entries names match: ``domain, base`` of ranges, ``name`` of threads."""
        for name in ("range", "autograd", "iteration"):
            self.see(name, ranges, lambda e: matches(e, {"name": "base", "domain": "domain"}))
        self.see("thread", threads, lambda entry: matches(entry, {"name": "name"}))

    def see_kernels(self, ops: pl.DataFrame) -> None:
        """Record which entries kernels match, among ops with ``name`` and ``kind``."""
        names = ops.filter(_KERNEL).select(pl.col("name").cast(pl.String))
        self.see("kernel", names, lambda entry: matches(entry, {"name": "name"}))
        self.see(
            "between",
            names,
            lambda entry: matches(entry, {"name": "name"}) & pl.lit("name" in entry),
        )
        self.see("collective", names, lambda entry: matches(entry, {"kernel": "name"}))

    def warnings(self) -> Iterator[str]:
        """Say which entries are left."""
        for name, entries in self._left.items():
            for number, entry in entries.items():
                where = f"[[{name}]] entry {number}{_pattern(entry)}"
                yield f"{UNMATCHED}{where} of the rules file {self._file}"


def _pattern(entry: Entry) -> str:
    """Return the patterns of an entry, for messages."""
    patterns = [f"{key} {entry[key]!r}" for key in ("name", "domain", "kernel") if key in entry]
    return f" ({', '.join(patterns)})" if patterns else ""


def without_unmatched(warnings: tuple[str, ...]) -> tuple[str, ...]:
    """Return warnings without those of rules that another attribution was by."""
    return tuple(warning for warning in warnings if not warning.startswith(UNMATCHED))
