"""Infer stages and steps of a process whose ops do not fit in memory, piece by piece.

A piece of the ops ends in the middle of a step. So its last two steps are examined again with the
next piece: the last step because it is cut, the step before it because ops launched in it may start
later.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain

import numpy as np
import polars as pl

from tracekit.attribution.structure._assumptions import merged
from tracekit.attribution.structure._find import METHODS, summed_doubts
from tracekit.attribution.structure._work import NOTHING, Array, Structure

_OPEN = 2
"""Number of steps at the end of a piece that are examined again."""
_MOST_OPEN = 0.5
"""Largest share of a piece that these may take: with longer steps a piece is too short."""


class Pieces:
    """Collects the stages and steps found in successive pieces of a process's ops."""

    def __init__(self) -> None:
        self.open: list[pl.DataFrame] = []
        """Ops with which the next piece begins."""
        self._found: list[Structure] = []
        self._ops: Counter[int] = Counter()
        self._steps = 0

    def add(
        self, ops: pl.DataFrame, found: Structure, *, is_last: bool
    ) -> tuple[Array, dict[str, Array]]:
        """Add the stages and steps inferred in a piece of the ops; return the final ones.

        Parameters
        ----------
        ops
            Ops of the piece: ``op`` and the columns that the next piece needs, in the order in
            which `find_structure` got them.
        found
            Stages and steps inferred in the piece.
        is_last
            Whether this is the last piece.

        Returns
        -------
        The ids of the ops whose result is final, and ``stage, step, again`` of each.
        """
        whole = found.steps.height - (0 if is_last else _OPEN)
        is_open = found.step >= whole
        if whole > 0 and not is_last:
            is_open |= (found.step == NOTHING) & (
                ops["launch"].to_numpy() >= found.steps["start"][whole]
            )
        if whole <= 0 or is_open.mean() > _MOST_OPEN:
            whole, is_open = found.steps.height, np.zeros(len(ops), np.bool_)
        self.open = [ops.filter(pl.Series(is_open))] if is_open.any() else []
        step = np.where(found.step >= 0, found.step + self._steps, NOTHING)[~is_open]
        self._ops.update(dict(zip(*_counted(step), strict=True)))
        steps = found.steps[:whole].with_columns(pl.col("step") + self._steps)
        self._steps += whole
        nothing = np.empty(0, np.int8)
        self._found.append(replace(found, stage=nothing, step=nothing, again=nothing, steps=steps))
        is_told = (found.stage != NOTHING) & (found.method == "threads")
        again = np.where(is_told, found.again, NOTHING)[~is_open].astype(np.int8)
        columns = {"stage": found.stage[~is_open], "step": step, "again": again}
        return ops["op"].to_numpy()[~is_open], columns

    def joined(self, most: int) -> Structure:
        """Join the results of all pieces, each of up to `most` ops.

        Steps have a further column ``ops``, the number of ops. Evidence is taken from the pieces
        with the best method. Stages and steps of single ops are left out, since `add` returned
        them.
        """
        best = min(METHODS.index(found.method) for found in self._found)
        same = [found for found in self._found if found.method == METHODS[best]]
        steps = pl.concat([found.steps for found in self._found])
        ops = [self._ops[step] for step in steps["step"].to_list()]
        joined = replace(same[0], steps=steps.with_columns(ops=pl.Series(ops, dtype=pl.Int64)))
        if len(self._found) == 1:
            return joined
        texts = chain.from_iterable(found.contradictions for found in same)
        evidence = f"looked at in {len(self._found)} pieces of up to {most:,} ops, for --memory"
        return replace(
            joined,
            evidence=(*joined.evidence, evidence),
            contradictions=tuple(dict.fromkeys(texts)),
            usual_gaps=sum(found.usual_gaps for found in same),
            gaps=sum(found.gaps for found in same),
            doubts=summed_doubts(same),
            assumptions=merged(chain.from_iterable(found.assumptions for found in same)),
            cut_begin=self._found[0].cut_begin,
            cut_end=self._found[-1].cut_end,
            period=next((found.period for found in same if found.period), None),
            repeats=round(sum(found.repeats or 0 for found in same), 1) or None,
        )


def _counted(step: Array) -> tuple[list[int], list[int]]:
    """Return the distinct steps, and the number of ops of each."""
    steps, counts = np.unique(step[step >= 0], return_counts=True)
    return steps.tolist(), counts.tolist()
