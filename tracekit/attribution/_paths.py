"""Names for ranges that stay the same from step to step."""

from __future__ import annotations

import polars as pl

from tracekit.attribution._names import base_name

SEPARATOR = " > "
_UNNAMED = pl.lit("(unnamed)")
_LAST_NUMBER = r"^(.*?)(\d+)(\D*)$"
_FIRST_NUMBER = r"^(\D*)(\d+)(.*)$"


def with_paths(ranges: pl.DataFrame, iterations: pl.DataFrame) -> pl.DataFrame:
    """Add ``path``: the names of the ranges around each one and its own, outermost first.

    Where a name repeats the number of its iteration (``data copy in 58`` in ``step 58``) and does
    so in every iteration, the number is `N`; ``layer 3`` keeps its own.
    """
    paths = pl.DataFrame({"path": _labels(ranges, iterations), "above": ranges["parent"]})
    # Pointer doubling: after k rounds a path holds the nearest 2^k names.
    while paths["above"].null_count() < paths.height:
        further = pl.col("path").gather("above")
        paths = paths.select(
            path=pl.coalesce(pl.concat_str(further, pl.lit(SEPARATOR), "path"), "path"),
            above=pl.col("above").gather("above"),
        )
    return ranges.drop("path", strict=False).with_columns(paths["path"])


def _labels(ranges: pl.DataFrame, iterations: pl.DataFrame) -> pl.Series:
    """Return what each range is called in a path."""
    steps = iterations.select(
        "process",
        start="start",
        step_end="end",
        step=pl.coalesce("number", _number(pl.col("name"), _LAST_NUMBER)),
    ).sort("start")
    base = base_name(pl.col("name")).fill_null("")
    frame = (
        ranges.select("process", "start", base=pl.when(base != "").then(base).otherwise(_UNNAMED))
        .with_row_index("row")
        .sort("start")
        .join_asof(steps, on="start", by="process", check_sortedness=False)
        .sort("row")
        .with_columns(step=pl.when(pl.col("start") < pl.col("step_end")).then("step"))
    )
    templates = [_templates(frame, pattern) for pattern in (_LAST_NUMBER, _FIRST_NUMBER)]
    return pl.select(pl.coalesce(*templates, frame["base"])).to_series()


def _templates(frame: pl.DataFrame, pattern: str) -> pl.Series:
    """Return names with `N` for the number that a pattern finds, where it is the iteration's."""
    found = frame.select(
        "step",
        number=_number(pl.col("base"), pattern),
        template=pl.col("base").str.replace(pattern, "${1}N${3}"),
    )
    inside = pl.all_horizontal(pl.col("step", "number").is_not_null())
    repeats = (pl.col("number") == pl.col("step")).all() & (pl.col("step").n_unique() > 1)
    kept = found.filter(inside).group_by("template").agg(repeats=repeats)
    return (
        found.join(kept, on="template", how="left", maintain_order="left")
        .select(pl.when(inside & pl.col("repeats")).then("template"))
        .to_series()
    )


def _number(name: pl.Expr, pattern: str) -> pl.Expr:
    return name.str.extract(pattern, 2).cast(pl.Int64, strict=False)
