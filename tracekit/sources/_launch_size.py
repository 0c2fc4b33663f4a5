"""Compute the number of threads of kernel launches."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence

import polars as pl

LAUNCH_SIZE = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
"""CUPTI's columns for the numbers of blocks, and of threads per block."""
_MOST = 1 << 62
_INT32 = (1 << 31) - 1


def launch_size(kernels: pl.DataFrame) -> pl.Series:
    """Return blocks x threads per block of each kernel launch; null if unknown or impossible."""
    sizes = [kernels[name] for name in LAUNCH_SIZE]
    most = _most(sizes)
    if most is not None and most <= _MOST:
        return _product(sizes, pl.Int32 if most <= _INT32 else pl.Int64)
    # As floats, for what a damaged file holds may not fit; what does fit is exact below.
    rough = pl.select(pl.lit(1.0)).to_series()
    for size in sizes:
        rough = rough * size.cast(pl.Float64)
    possible = rough.is_between(1, _MOST).fill_null(value=False)
    if not possible.all():
        sizes = [size.set(~possible, None) for size in sizes]
    return _product(sizes, pl.Int64)


def _most(sizes: Sequence[pl.Series]) -> int | None:
    """Return an upper bound of the products of `sizes` in any row; None if a size is below 1."""
    least, most = ([getattr(size, of)() for size in sizes] for of in ("min", "max"))
    return math.prod(most) if None not in least and min(least) >= 1 else None


def _product(sizes: Sequence[pl.Series], dtype: type[pl.Int32 | pl.Int64]) -> pl.Series:
    factors = [size.cast(dtype) for size in sizes if not _is_one(size)]
    product = functools.reduce(operator.mul, factors or [sizes[0].cast(dtype)])
    return product.alias("launch_size")


def _is_one(size: pl.Series) -> bool:
    """Test whether all values are 1, as is usual for the y and z sizes of launches."""
    return not size.null_count() and size.min() == size.max() == 1
