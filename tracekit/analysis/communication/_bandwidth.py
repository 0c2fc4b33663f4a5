"""Sizes and bandwidths of operations, as nccl-tests counts them (``doc/PERFORMANCE.md``)."""

from __future__ import annotations

import polars as pl

from tracekit.machine import bus_factor


def power_below(size: pl.Expr) -> pl.Expr:
    """Return the largest power of two that is at most `size`; sizes below 1 stay as they are.

    It is computed from bits, since floating-point logarithms are wrong near powers beyond 2^49.
    """
    power = pl.lit(2, pl.Int64).pow(63 - size.bitwise_leading_zeros()).cast(pl.Int64)
    return pl.when(size > 0).then(power).otherwise(size)


def with_bandwidth(operations: pl.DataFrame, duration: pl.Expr) -> pl.DataFrame:
    """Add algorithm and bus bandwidth.

    Parameters
    ----------
    operations
        ``operation``, ``n`` (its ranks; null if unknown) and ``bytes``.
    duration
        Duration of each operation, ns.

    Returns
    -------
    `operations` with ``algorithm_bandwidth_gb_s`` (bytes over duration) and ``bus_bandwidth_gb_s``
    (algorithm bandwidth times `machine.bus_factor`); null if unknown.
    """
    pairs = operations.select("operation", "n").drop_nulls().unique()
    factors = [bus_factor(str(operation), n) for operation, n in pairs.rows()]
    known = pairs.with_columns(
        factor=pl.Series([None if f is None else float(f) for f in factors], dtype=pl.Float64)
    )
    # Bytes per nanosecond are GB per second.
    algorithm = pl.when(duration > 0).then(pl.col("bytes") / duration)
    return (
        operations.join(known, on=["operation", "n"], how="left", maintain_order="left")
        .with_columns(
            algorithm_bandwidth_gb_s=algorithm, bus_bandwidth_gb_s=algorithm * pl.col("factor")
        )
        .drop("factor")
    )


def middle(name: str, share: float = 0.5) -> pl.Expr:
    """Return the quantile `share` of a column, without interpolation; by default the median."""
    return pl.col(name).quantile(share, "nearest").cast(pl.Int64)
