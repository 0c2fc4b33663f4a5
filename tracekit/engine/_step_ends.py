"""Where a step without a successor ends: with the last op of that step on any device of its job.

A step ends on a device where the next one begins there. The last one has no next, and the last op
of a device is no end for it: the others may have gone on, as a GPU that updates the weights while
those it serves wait for them.
"""

from __future__ import annotations

import polars as pl

_OWNER = ["process", "device"]
_NUMBER = pl.col("iteration")


def with_step_ends(
    windows: pl.DataFrame, launched: pl.DataFrame, unlaunched: pl.DataFrame, clocks: pl.DataFrame
) -> pl.DataFrame:
    """End the last step of each device where the step ends on all, and set apart what follows.

    Evaluation (stage ``ME``) is none of a step's ops here. Ops of which no launch is known are of
    the step in which they start.

    Parameters
    ----------
    windows
        ``process, device, iteration, start, next, last``: what was launched in each iteration, or
        after one (`iteration` is null), begins at ``start``, what follows it at ``next``; ``last``
        is the end of the last op there.
    launched
        Ops: ``process, iteration, stage, end``.
    unlaunched
        Ops of which no launch is known: ``process, device, stage, start, end``.
    clocks
        ``process, clock``: times on different clocks are not comparable.

    Returns
    -------
    ``process, device, iteration, start, end, is_open``. The last step of a device is open where the
    devices that ran it are not on one clock: it ends with its last op there, and where it really
    ended is not known.
    """
    later = _NUMBER.backward_fill().over(_OWNER)
    earlier = _NUMBER.forward_fill().over(_OWNER)
    last = windows.filter(_NUMBER.is_not_null()).group_by(_OWNER, maintain_order=True).last()
    ends = _ends(last, launched, unlaunched, clocks)
    known_end = pl.coalesce("ended", "next", "last")
    ordered = (
        windows.with_columns(is_after=later.is_null() & earlier.is_not_null())
        .filter(~pl.col("is_after"))
        .join(ends, on=[*_OWNER, "iteration"], how="left", maintain_order="left")
        .with_columns(end=pl.max_horizontal("start", known_end))
    )
    tails = (
        ordered.join(ends.select(_OWNER), on=_OWNER, how="semi")
        .group_by(_OWNER, maintain_order=True)
        .agg(pl.col("last").first(), start=pl.col("end").last())
        .filter(pl.col("last") > pl.col("start"))
        .with_columns(iteration=pl.lit(None, pl.Int64), end="last")
    )
    columns = [*_OWNER, "iteration", "start", "end", "is_open"]
    open_tails = tails.with_columns(is_open=pl.lit(value=False))
    closed = ordered.with_columns(pl.col("is_open").fill_null(value=False))
    return pl.concat([closed.select(columns), open_tails.select(columns)])


def _ends(
    last: pl.DataFrame, launched: pl.DataFrame, unlaunched: pl.DataFrame, clocks: pl.DataFrame
) -> pl.DataFrame:
    """Return ``process, device, iteration, ended, is_open`` of the last step of each device."""
    lone = unlaunched.join(last.select(*_OWNER, "iteration", "next", begin="start"), on=_OWNER)
    inside = (pl.col("start") >= pl.col("begin")) & (
        pl.col("next").is_null() | (pl.col("start") < pl.col("next"))
    )
    ops = pl.concat(
        [
            some.filter(pl.col("stage") != "ME").select("process", "device", "iteration", "end")
            for some in (launched, lone.filter(inside))
        ]
    )
    on_device = ops.group_by(*_OWNER, "iteration").agg(own=pl.col("end").max())
    on_device = on_device.join(clocks, on="process", how="left")
    of_job = on_device.group_by("iteration").agg(
        ended=pl.col("own").max(), is_open=pl.col("clock").n_unique() > 1
    )
    found = last.select(*_OWNER, "iteration").join(
        on_device.drop("clock"), on=[*_OWNER, "iteration"], how="left"
    )
    ended = pl.when("is_open").then("own").otherwise("ended")
    return found.join(of_job, on="iteration", how="left").select(
        *_OWNER, "iteration", ended.alias("ended"), "is_open"
    )
