"""Op to launching call."""

from __future__ import annotations

import polars as pl

_KEY = ["process", "correlation"]


def link_launches(ops: pl.DataFrame, calls: pl.DataFrame) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Give each op the call with its correlation id in its own process.

    Correlation ids repeat across processes, so the id alone would credit an op to several calls.

    Parameters
    ----------
    ops, calls
        The canonical tables.

    Returns
    -------
    ops with ``call, launch_thread, launch_start, launch_end`` (null without a call), and a sentence
    for each self-check that failed: a key names at most one call, and a launch starts no later than
    its op.
    """
    launches = calls.drop_nulls("correlation").select(
        *_KEY,
        "call",
        launch_thread="thread",
        launch_start="start",
        launch_end="end",
    )
    distinct = launches.unique(_KEY, keep="first", maintain_order=True)
    given = ["call", "launch_thread", "launch_start", "launch_end"]
    linked = ops.drop(given, strict=False).join(
        distinct, on=_KEY, how="left", maintain_order="left"
    )
    return linked, _checks(linked, launches.height - distinct.height)


def _checks(ops: pl.DataFrame, repeated: int) -> tuple[str, ...]:
    early = ops.filter(pl.col("launch_start") > pl.col("start")).height
    alone = ops["call"].null_count()
    checks = (
        (repeated, f"{repeated:,} CUDA calls repeat the correlation id of another one"),
        (early, f"{early:,} ops start before the call that launched them"),
        (
            alone,
            f"{alone:,} of {ops.height:,} ops have no launching call: no range is known of these",
        ),
    )
    return tuple(text for count, text in checks if count)
