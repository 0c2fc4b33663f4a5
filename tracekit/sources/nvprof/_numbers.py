"""Parse numbers as nvprof prints them, exactly."""

from __future__ import annotations

import polars as pl

_DECIMAL = r"^\d{1,15}(\.\d*)?$"
_EXPONENT = r"^(\d)(?:\.(\d{0,15}))?[eE]([+-]?\d{1,2})$"
"""Pattern for the notation in which nvprof prints very small and very large numbers."""
_MOST = 1 << 61
_MOST_DIGITS = 18
_ZEROS = 100


def printed_times(texts: pl.Series, digits: int) -> pl.Expr:
    """Return times in ns, in whichever notation nvprof printed them."""
    plain = _nanoseconds(texts.name, digits)
    if not texts.str.contains("[eE]").any():
        return plain
    return pl.coalesce(plain, _of_exponent(pl.col(texts.name), digits))


def _nanoseconds(column: str, digits: int) -> pl.Expr:
    """Convert decimals, in units of ``10**digits`` ns, to ns; null if invalid.

    The digits of the text are used, since floating point numbers would round them.
    """
    text = pl.col(column)
    parts = pl.when(text.str.contains(_DECIMAL)).then(text).str.splitn(".", 2).struct
    whole = parts.field("field_0").cast(pl.Int64)
    shown = parts.field("field_1").fill_null("").str.pad_end(digits + 1, "0")
    part = (shown.str.slice(0, digits + 1).cast(pl.Int64) + 5) // 10
    scale = int(10**digits)
    return pl.when(whole <= _MOST // scale).then(whole) * scale + part


def _of_exponent(text: pl.Expr, digits: int) -> pl.Expr:
    """Convert numbers with an exponent, such as ``2.048000e-03``, to ns.

    The decimal point is moved among the digits, padded with zeros, and the next digit rounds.
    """
    parts = text.str.extract_groups(_EXPONENT).struct
    places = parts.field("3").str.strip_prefix("+").cast(pl.Int64) + 1 + digits
    zeros = pl.lit("0" * _ZEROS)
    fraction = parts.field("2").fill_null("")
    shown = pl.concat_str([zeros, parts.field("1"), fraction, zeros])
    fits = places.is_between(1 - _ZEROS, _MOST_DIGITS)
    whole = pl.when(fits).then(shown.str.slice(0, places + _ZEROS)).cast(pl.Int64, strict=False)
    following = shown.str.slice(places + _ZEROS, 1).cast(pl.Int64, strict=False)
    return whole + (following >= 5).cast(pl.Int64)  # noqa: PLR2004


def printed_bytes(unit: int | None) -> pl.Expr:
    """Return sizes in bytes; nvprof prints rounded values."""
    text = pl.col("Size")
    if unit is None:
        return pl.lit(None, pl.Int64)
    is_number = text.str.contains(_DECIMAL) | text.str.contains(_EXPONENT)
    size = pl.when(is_number).then(text).cast(pl.Float64) * unit
    return pl.when(size < _MOST).then(size).round().cast(pl.Int64)
