"""Breakdowns that are no grouping of ops: by range with all that is inside, and by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import polars as pl

from tracekit.engine import (
    BY_RANGE,
    BY_SEQUENCE,
    GroupTally,
    Named,
    RangeLayers,
    Receivers,
    Work,
    hand_out,
    inclusive_kernels,
    inclusive_ranges,
    range_layers,
)
from tracekit.errors import UsageError

NO_LAYER = ("(forward, layer unknown)", "(backward, layer unknown)")
"""Work of FP and BP that is in no layer."""
LAYER_COLUMNS = (
    "layer", "fp_ops", "fp_busy_ns", "bp_ops", "bp_busy_ns", "ops", "busy_ns", "share",
)  # fmt: skip
_MOST = 0.5
_RECORD_OPERATORS = "record under torch.autograd.profiler.emit_nvtx() or torch.profiler"
_STAGE = pl.col("stage")
_PASS = Named(
    ("stage",),
    pl.when(_STAGE == "FP").then(0).when(_STAGE == "BP").then(1),
    pl.Series(["fp", "bp"]),
)


def layers(work: Work, skip: int = 0) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Return the time of each layer, in the order in which layers first run forward.

    Returns
    -------
    The table with `LAYER_COLUMNS`; and of FP and BP how much of their busy time was joined with a
    layer, and how; and why, where that is less than half of it.
    """
    found = range_layers(work.trace)
    keys = {"layer": _layer_of(found), "pass": _PASS, "joined": _joined_by(found)}
    tallies = [
        GroupTally(by, {key: keys[key] for key in by}, of_pieces=work.is_host)
        for by in (["layer"], ["layer", "pass"], ["pass", "joined"])
    ]
    windows = hand_out(work.trace, Receivers(sweeps=tallies), skip=skip, per_iteration=False)
    both, each, joined = (tally.groups() for tally in tallies)
    window = int((windows["end"] - windows["start"]).sum())
    share = pl.when(pl.lit(window > 0)).then(pl.col("busy_ns") / window)
    table = _side_by_side(both, each).with_columns(share=share)
    names = pl.concat([found.layers, pl.Series(NO_LAYER)])
    named = table.with_columns(layer=names.gather(table["layer"]))
    shares = _shares(joined)
    return named.select(LAYER_COLUMNS), {"joined": shares, "unjoined": _unjoined(shares)}


def _unjoined(shares: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Say by pass why the layer of most of its time is not known."""
    why = {
        "FP": "most of it is launched outside of ranges of modules and operators"
        if BY_RANGE in shares.get("FP", ())
        else "no ranges of modules or operators were recorded: push an NVTX range around each"
        f" module, or {_RECORD_OPERATORS}",
        "BP": "most of it is launched outside of autograd's numbered ranges"
        if BY_SEQUENCE in shares.get("BP", ())
        else "autograd's numbered ranges were not recorded, and the order of kernels alone does not"
        f" tell where a layer ends: {_RECORD_OPERATORS}",
    }
    return {name: why[name] for name, by in shares.items() if by.get("none", 0) > _MOST}


def _layer_of(found: RangeLayers) -> Named:
    """Return the place of an op's layer, the two of `NO_LAYER` being last; null if of no pass."""
    number, count = len(found.of_range), len(found.layers)
    values = [
        pl.concat([found.of_range, pl.Series([None], dtype=pl.Int64)]).fill_null(count + which)
        for which in range(len(NO_LAYER))
    ]
    row = pl.coalesce("range", number) + _PASS.number * (number + 1)
    return Named(("range", "stage"), row, pl.concat(values))


def _joined_by(found: RangeLayers) -> Named:
    """Return how an op's layer is known."""
    values = pl.concat([found.joined, pl.Series([None], dtype=pl.String)]).fill_null("none")
    row = pl.when(_PASS.number.is_not_null()).then(pl.coalesce("range", len(found.joined)))
    return Named(("range", "stage"), row, values)


def _side_by_side(both: pl.DataFrame, each: pl.DataFrame) -> pl.DataFrame:
    """Return a row per layer: of both passes together, and of each."""
    sums = pl.col("ops", "busy_ns").sum()
    table = both.drop_nulls("layer").group_by("layer").agg(sums)
    for name in _PASS.values:
        own = (
            each.filter(pl.col("pass") == name)
            .group_by("layer")
            .agg(
                pl.col("ops").sum().alias(f"{name}_ops"),
                pl.col("busy_ns").sum().alias(f"{name}_busy_ns"),
            )
        )
        table = table.join(own, on="layer", how="left")
    return table.with_columns(pl.col("^[fb]p_.*$").fill_null(0)).sort("layer")


def _shares(joined: pl.DataFrame) -> dict[str, dict[str, float]]:
    """Return by pass which share of its time was joined in each way."""
    sums = joined.drop_nulls("pass").group_by("pass", "joined").agg(pl.col("total_ns").sum())
    shares = sums.with_columns(share=pl.col("total_ns") / pl.col("total_ns").sum().over("pass"))
    return {
        name.upper(): dict(
            shares.filter(pl.col("pass") == name).sort("joined").select("joined", "share").rows()
        )
        for name in _PASS.values
        if name in shares["pass"]
    }


View: TypeAlias = Callable[[Work, int], tuple[pl.DataFrame, dict[str, Any]]]
"""Makes a table of a run with so many iterations left out, and what else is said of it."""


def chosen_view(
    keys: Sequence[str], *, per_iteration: bool, inclusive: bool, depth: int | None
) -> View | None:
    """Return the function for a special breakdown, or None for a grouping of ops.

    Raises
    ------
    UsageError
        If it cannot be had with what else is asked for.
    """
    if inclusive or depth is not None:
        what = "an inclusive breakdown"
        if set(keys) not in ({"range"}, {"range", "kernel"}):
            raise UsageError(f"{what} is by range, or by range and kernel", "ask --by range")
        _check_whole(what, per_iteration=per_iteration)
        if depth is not None and depth < 1:
            raise UsageError(f"{depth} levels of ranges cannot be listed", "give 1 or more")
        return partial(inclusive_kernels if "kernel" in keys else inclusive_ranges, depth=depth)
    if "layer" in keys:
        what = "a breakdown by layer"
        if list(keys) != ["layer"]:
            raise UsageError(f"{what} is by layer alone", "ask --by layer")
        _check_whole(what, per_iteration=per_iteration)
        return layers
    return None


def _check_whole(what: str, *, per_iteration: bool) -> None:
    if per_iteration:
        raise UsageError(f"{what} has no statistics over iterations", "leave out --per-iteration")
