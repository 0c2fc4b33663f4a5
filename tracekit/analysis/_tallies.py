"""What is added up over segments: lengths, numbers and durations of ops, by what they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Protocol

import polars as pl

from tracekit.model import KERNEL_KINDS, union_length

_CROWDED = pl.col("crowded")
_LENGTH = pl.col("end") - pl.col("start")
_IS_KERNEL = pl.any_horizontal(pl.col("kind") == kind for kind in KERNEL_KINDS)


@dataclass(frozen=True)
class Counting:
    """How ops are counted among the pieces that windows cut them into."""

    is_op: pl.Expr | None
    """Whether a piece stands for its op; all do, if nothing is cut."""
    duration: pl.Expr
    """Length of the whole op."""
    window: tuple[str, ...]
    """The column `window`, where a line has several."""
    columns: tuple[str, ...] = ()
    """Columns of ops that tell whether a piece stands for its op."""

    def ops(self, where: pl.Expr) -> pl.Expr:
        """Narrow down which pieces are meant to those that stand for their ops."""
        return where if self.is_op is None else where & self.is_op


WHOLE = Counting(None, _LENGTH, ())
"""Every piece is an op, and every line is a window."""
CUT = Counting(pl.col("counts"), pl.col("duration_ns"), ("window",))
_IS_FIRST = pl.col("is_first")
HOST_WHOLE = replace(WHOLE, is_op=_IS_FIRST, columns=("is_first",))
"""Of several stretches of a range the first one stands for it."""
HOST_CUT = replace(CUT, is_op=pl.col("counts") & _IS_FIRST, columns=("is_first",))
_ALL = pl.col("start").is_not_null()


class Tally(Protocol):
    """Something that is added up over segments."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns of ops that it looks at."""

    def clear(self) -> None:
        """Begin anew."""

    def add(self, rows: pl.DataFrame) -> None:
        """Count in one or more segments of a line."""


def _marked(table: pl.DataFrame, window: pl.Series, how: Counting) -> pl.DataFrame:
    """Say of which window a table is that was made of one alone."""
    return table if how.window else table.with_columns(pl.lit(window).first().alias("window"))


@dataclass(frozen=True)
class Named:
    """A key of ops that stands in another table.

    Parameters
    ----------
    columns
        The columns of ops that tell which row of the table is an op's.
    number
        That row.
    values
        What stands there.
    """

    columns: tuple[str, ...]
    number: pl.Expr
    values: pl.Series


@dataclass
class GroupTally:
    """Lengths, numbers and durations of ops in groups.

    Parameters
    ----------
    keys
        Columns that form a group within a window.
    counting
        How ops are counted.
    by_kernel
        Whether only kernels count, and their durations are kept for statistics.
    named
        The keys that stand in another table.
    """

    keys: Sequence[str]
    counting: Counting
    by_kernel: bool
    named: Mapping[str, Named]
    _sums: list[pl.DataFrame] = field(default_factory=list)
    _kernels: list[pl.DataFrame] = field(default_factory=list)

    @property
    def columns(self) -> Sequence[str]:
        """The columns of ops that it looks at."""
        keys = (self.named[key].columns if key in self.named else (key,) for key in self.keys)
        return [*chain.from_iterable(keys), *self.counting.columns]

    def clear(self) -> None:
        """Begin anew."""
        self._sums, self._kernels = [], []

    def add(self, rows: pl.DataFrame) -> None:
        """Count in one or more segments of a line."""
        how = self.counting
        window = rows["window"].head(1)
        if self.by_kernel:
            rows = rows.filter(_IS_KERNEL)
        rows = rows.with_columns(
            key.values.gather(rows.select(key.number).to_series()).alias(name)
            for name, key in self.named.items()
        )
        keys = [*how.window, *self.keys]
        if self.by_kernel:
            self._kernels.append(_marked(self._each(rows, keys), window, how))
        else:
            self._sums.append(_marked(self._summed(rows, keys), window, how))
        overlapped = union_length(rows.filter("crowded"), keys).rename({"length": "busy_ns"})
        self._sums.append(_marked(overlapped, window, how))

    def _summed(self, rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
        ops = self.counting.ops(_ALL)
        sums = rows.group_by(*keys, "crowded").agg(
            ops=ops.sum(), total_ns=self.counting.duration.filter(ops).sum(), length=_LENGTH.sum()
        )
        return sums.select(*keys, "ops", "total_ns", busy_ns=pl.col("length") * ~_CROWDED)

    def _each(self, rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
        duration = self.counting.duration
        return rows.lazy().select(
            *keys,
            duration_ns=pl.when(self.counting.ops(_ALL)).then(duration),
            alone_ns=pl.when(~_CROWDED).then(_LENGTH),
        ).collect()  # fmt: skip

    def groups(self) -> pl.DataFrame:
        """Return ``window``, the keys, and ``ops, total_ns, busy_ns``.

        By kernel this is ``busy_ns`` of what overlaps something; all else is said by `kernels`.
        """
        together = pl.concat(self._sums, how="diagonal_relaxed")
        return together.group_by("window", *self.keys).agg(
            pl.exclude("window", *self.keys).cast(pl.Int64).sum()
        )

    def kernels(self) -> pl.DataFrame:
        """Return a row per piece of a kernel.

        Returns
        -------
        ``window``, the keys, ``duration_ns`` (of the kernel, null for all but one of its pieces)
        and ``alone_ns`` (of the piece; null if it overlaps something).
        """
        return pl.concat(self._kernels)
