"""With how many threads a kernel is launched."""

from __future__ import annotations

import math
from collections.abc import Sequence

import polars as pl

LAUNCH_SIZE = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
"""What CUPTI calls the numbers of blocks, and of threads in each."""
_MOST = 1 << 62


def launch_size(kernels: pl.DataFrame) -> pl.Series:
    """Return blocks times threads per block; null where a number is unknown or cannot be."""
    sizes = [kernels[name] for name in LAUNCH_SIZE]
    if _all_are_possible(sizes):
        return _product(sizes)
    # As floats, for what a damaged file holds may not fit; what does fit is exact below.
    rough = pl.select(pl.lit(1.0)).to_series()
    for size in sizes:
        rough = rough * size.cast(pl.Float64)
    possible = rough.is_between(1, _MOST).fill_null(value=False)
    if not possible.all():
        sizes = [size.set(~possible, None) for size in sizes]
    return _product(sizes)


def _all_are_possible(sizes: Sequence[pl.Series]) -> bool:
    """Tell whether not even the largest numbers together make a product that cannot be."""
    least, most = ([getattr(size, of)() for size in sizes] for of in ("min", "max"))
    return None not in least and min(least) >= 1 and math.prod(most) <= _MOST


def _product(sizes: Sequence[pl.Series]) -> pl.Series:
    product = sizes[0].cast(pl.Int64)
    for size in sizes[1:]:
        product = product * size.cast(pl.Int64)
    return product.alias("launch_size")
