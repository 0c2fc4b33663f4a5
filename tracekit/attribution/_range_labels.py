"""Labels of ranges (names without step numbers), which stay the same from step to step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit.attribution._arrays import NamedRows, NameLabels
from tracekit.attribution._loops import note_steps
from tracekit.attribution._nesting import Nesting
from tracekit.attribution._trainers import Spans, Teams
from tracekit.model import Stream
from tracekit.support.compiled import compiled, given

_UNNAMED = pl.lit("(unnamed)")
_LAST_NUMBER = r"^(.*?)(\d+)(\D*)$"
_FIRST_NUMBER = r"^(\D*)(\d+)(.*)$"
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Labels:
    """Labels of range names in paths (names from the outermost range inward), two per name."""

    texts: pl.Series
    """Distinct labels."""
    inside: pl.Series
    outside: pl.Series
    """For each name id the row in `texts` of its label: for ranges that begin in a numbered step,
    and for ranges outside of one."""

    def arrays(self) -> NameLabels:
        """Return the label of each range name as arrays for the compiled loops."""
        return NameLabels(given(self.inside), given(self.outside))


def find_labels(ranges: Stream, nesting: Nesting, steps: Spans, teams: Teams) -> Labels:
    """Find the label of each range name: the name with its step number replaced.

    Of names that are equal but for a number, the number is replaced by `N` if it is the step's own
    number in every step: ``data copy in 58`` in ``step 58``. ``layer 3`` keeps its number.
    """
    names = nesting.names.table.select(
        base=pl.when(pl.col("base").fill_null("") != "").then("base").otherwise(_UNNAMED)
    )
    numbered = names.select(pl.col("base").str.contains(r"\d")).to_series()
    lowest, highest = _steps_of_names(ranges, nesting, steps, teams, numbered)
    names = names.with_columns(lowest=lowest, highest=highest)
    inside = _templates(names) if lowest.count() else names["base"]
    both = pl.concat([inside, names["base"]])
    texts = both.unique(maintain_order=True)
    ids = both.cast(pl.Enum(texts)).to_physical().cast(pl.Int32)
    return Labels(texts, ids[: len(inside)], ids[len(inside) :])


def _steps_of_names(
    ranges: Stream, nesting: Nesting, steps: Spans, teams: Teams, numbered: pl.Series
) -> tuple[pl.Series, pl.Series]:
    """Return for each name the lowest and highest number of a step in which its ranges begin."""
    least, most = np.full(len(numbered), _NEVER), np.full(len(numbered), -1)
    if numbered.any() and steps.rows.height:
        loop, where, which = compiled(note_steps, ranges.height), steps.arrays(), given(numbered)
        for number in range(len(ranges)):
            rows = ranges.read(number, "process", "thread", "start")
            columns = NamedRows(
                given(teams.of(rows)), given(rows["start"]), *nesting.places.read(number, "name_id")
            )
            loop(columns, where, which, least, most)
    lowest, highest = (pl.Series(values) for values in (least, most))
    never = highest < 0
    return lowest.set(never, None), highest.set(never, None)


def _templates(names: pl.DataFrame) -> pl.Series:
    """Replace the last, else the first, number in each name by `N` if it is the step's number."""
    base, patterns = pl.col("base"), {"last": _LAST_NUMBER, "first": _FIRST_NUMBER}
    numbers = {f"{which}_number": number_in(base, each) for which, each in patterns.items()}
    texts = {which: base.str.replace(each, "${1}N${3}") for which, each in patterns.items()}
    found = names.with_columns(**numbers, **texts)
    return found.select(pl.coalesce(*map(_template, patterns), "base")).to_series()


def _template(which: str) -> pl.Expr:
    """Return an expression: names with `N` for a number that is the step's own in every step.

    `which` is ``last`` or ``first``: the number in the name. Null where this is not the step's own.
    """
    lowest, highest, number = (pl.col(n) for n in ("lowest", "highest", f"{which}_number"))
    inside = lowest.is_not_null() & number.is_not_null()
    same = ((lowest == number) & (highest == number)).filter(inside).all()
    repeats = same & (number.filter(inside).n_unique() > 1)
    return pl.when(inside & repeats.over(which)).then(which)


def number_in(name: pl.Expr, pattern: str = _LAST_NUMBER) -> pl.Expr:
    """Return the number that `pattern` finds in a name, by default the last; null without one."""
    return name.str.extract(pattern, 2).cast(pl.Int64, strict=False)
