"""Causes of idle time inside windows, or inside steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis.calls import process_ranks
from tracekit.analysis.idle_account._host_states import in_ranges, pairs_of
from tracekit.analysis.idle_account._idle_ranges import plain_name
from tracekit.analysis.idle_account._pieces import idle_pieces
from tracekit.engine import chosen_windows, cut, launch_groups, with_steps

if TYPE_CHECKING:
    from tracekit.model import Trace

_LENGTH = pl.col("end") - pl.col("start")
_NO_RANGE = "(outside push/pop ranges)"


def idle_causes(trace: Trace, *, per_iteration: bool) -> pl.DataFrame:
    """Return why nothing runs: ``gap, process, device, iteration, start, end, cause``.

    Parameters
    ----------
    trace
        The run, which holds GPU work.
    per_iteration
        Whether pieces are those of steps; else of the whole run, each in no iteration.
    """
    pieces = pieces_in_windows(trace, skip=0, per_iteration=per_iteration).pieces
    columns = ["gap", "process", "device", "iteration", "start", "end"]
    return pieces.select(*columns, pl.col("cause").cast(pl.String))


@dataclass(frozen=True)
class IdlePieces:
    """Pieces of gaps inside windows."""

    gaps: pl.DataFrame
    pieces: pl.DataFrame
    windows: pl.DataFrame

    def with_ranges(self, trace: Trace) -> IdlePieces:
        """Cut pieces where the host enters or leaves a range, and name the range."""
        named = in_ranges(trace, self.pieces, pairs_of(trace, self.gaps), "name")
        cut_too = named.with_columns(range=plain_name(pl.col("name")).fill_null(_NO_RANGE))
        return IdlePieces(self.gaps, cut_too.drop("name"), self.windows)


def pieces_in_windows(trace: Trace, *, skip: int, per_iteration: bool) -> IdlePieces:
    """Return the idle time inside the windows that a breakdown has, in pieces of one cause."""
    windows = _windows(trace, skip=skip, per_iteration=per_iteration)
    gaps, pieces = idle_pieces(trace, windows)
    columns = [name for name in pieces.columns if name != "window"]
    inside = cut(pieces, windows).filter(_LENGTH > 0).select(*columns, "window")
    numbers = windows.with_row_index("window").select("window", "iteration")
    placed = inside.join(numbers, on="window", how="left").join(
        gaps.select("gap", "stage"), on="gap", how="left"
    )
    ranks = process_ranks(trace)["rank"]
    rank = pl.col("process").replace_strict(
        list(range(ranks.len())), ranks, default=None, return_dtype=ranks.dtype
    )
    placed = placed.with_columns(rank=rank).sort("gap", "start")
    return IdlePieces(gaps, placed, windows)


def _windows(trace: Trace, *, skip: int, per_iteration: bool) -> pl.DataFrame:
    """Return the windows that a breakdown has."""
    windows = chosen_windows(trace, launch_groups(trace), skip=skip, per_iteration=per_iteration)
    return with_steps(windows) if per_iteration else windows
