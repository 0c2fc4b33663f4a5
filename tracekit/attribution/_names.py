"""What the names of ranges, threads and kernels mean under the rules."""

from __future__ import annotations

import polars as pl

from tracekit.attribution._rules import Rules, by_distinct

# PyTorch appends numbers and shapes to the name of an operator's range.
_SUFFIX = (
    r"(?:, seq ?= ?\d+|, op_id = \d+|, sizes = \[|, input_op_ids = \[).*$|(, stashed seq) ?=.*$"
)


def base_name(name: pl.Expr) -> pl.Expr:
    """Return a range's name without the numbers and shapes that PyTorch appends."""
    return name.str.replace(_SUFFIX, "${1}")


def classify_ranges(ranges: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Add ``stage``, null where a name means none, and ``autograd``, whether it marks backward."""
    frame = ranges.drop("stage", strict=False).with_columns(base=base_name(pl.col("name")))
    columns = {"name": "base_text", "domain": "domain_text"}
    return by_distinct(
        frame,
        ["domain", "base"],
        lambda: {
            "stage": rules.outcome("range", "stage", columns),
            "autograd": rules.any_of("autograd", {"name": "base_text"}),
        },
    ).drop("base")


def classify_threads(threads: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Add ``stage`` and ``autograd`` to the threads, by their names."""
    columns = {"name": "name_text"}
    return by_distinct(
        threads,
        ["name"],
        lambda: {
            "stage": rules.outcome("thread", "stage", columns),
            "autograd": rules.any_of("thread", columns, flag="autograd"),
        },
    )


def classify_kernels(ops: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Set ``kind`` and ``collective`` of kernels that communicate, and add ``kernel_stage``."""
    kernel = pl.col("kind").cast(pl.String).is_in(["compute", "collective"])
    named = by_distinct(
        ops.drop("collective"),
        ["name"],
        lambda: {
            "collective": rules.outcome("collective", "collective", {"kernel": "name_text"}),
            "kernel_stage": rules.outcome("kernel", "stage", {"name": "name_text"}),
        },
    )
    communicates = kernel & pl.col("collective").is_not_null()
    return named.with_columns(
        collective=pl.when(kernel).then("collective"),
        kernel_stage=pl.when(kernel).then("kernel_stage"),
        kind=pl.when(communicates)
        .then(pl.lit("collective"))
        .when(kernel)
        .then(pl.lit("compute"))
        .otherwise(pl.col("kind").cast(pl.String)),
    )
