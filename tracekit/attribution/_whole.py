"""Which iterations hold recorded GPU work, and which of them were recorded whole."""

from __future__ import annotations

import polars as pl

from tracekit.attribution._chosen import CHOSEN


def with_work(
    iterations: pl.DataFrame, counts: pl.Series, steady: pl.Series, recorded: pl.Series
) -> pl.DataFrame:
    """Add ``ops`` and ``whole``.

    The first and the last iteration with work may have been cut. Where iterations beyond hold no
    work at all there was a cut, and most likely in that iteration: it counts as whole if it holds
    as many ops as the largest one between. Where nothing else says so it counts as cut if those
    between are alike and it holds over a tenth less than any of them. The last one that repetition
    tells ends before what follows its ranges, which the others hold, so its count says nothing.

    Parameters
    ----------
    iterations
        The canonical table.
    counts
        How many ops were launched in each.
    steady
        How many of these count in a comparison of iterations: all but input, which runs ahead.
    recorded
        Processes with recorded GPU work.
    """
    counted = iterations.with_columns(
        ops=pl.when(pl.col("process").is_in(recorded.implode())).then(counts), steady=steady
    ).with_row_index("row")
    known = _beside_others(counted)
    at_begin, at_end = pl.col("row") == pl.col("first"), pl.col("row") == pl.col("last")
    lacks_before = at_begin & (pl.col("first") > pl.col("first_of_all"))
    lacks_after = at_end & (pl.col("last") < pl.col("last_of_all"))
    is_told = lacks_before | lacks_after
    alike = pl.col("least") >= CHOSEN.like_others * pl.col("usual")
    comparable = ~at_end | pl.col("name").is_not_null()
    is_unlike = comparable & alike & (pl.col("steady") < CHOSEN.like_others * pl.col("least"))
    enough = (
        pl.when(pl.col("between").fill_null(0) >= CHOSEN.iterations_between)
        .then(pl.when(is_told).then(pl.col("steady") >= pl.col("most")).otherwise(~is_unlike))
        .otherwise(~is_told)
    )  # fmt: skip
    whole = (pl.col("ops") > 0) & (~(at_begin | at_end) | enough)
    return known.select(*iterations.columns, "ops", whole=whole)


def _beside_others(counted: pl.DataFrame) -> pl.DataFrame:
    """Add to each iteration what is known of all of its process.

    Those are ``first_of_all, last_of_all``; of those with work ``first, last``; and how many there
    are ``between`` these, with the ``least, usual, most`` ops that one of them holds.
    """
    row, steady = pl.col("row"), pl.col("steady")
    held = counted.filter(pl.col("ops") > 0)
    inner = held.filter(
        pl.int_range(pl.len()).over("process").is_between(1, pl.len().over("process") - 2)
    )
    of_processes = (
        counted.group_by("process").agg(first_of_all=row.first(), last_of_all=row.last()),
        held.group_by("process").agg(first=row.first(), last=row.last()),
        inner.group_by("process").agg(
            least=steady.min(), usual=steady.median(), most=steady.max(), between=pl.len()
        ),
    )
    for table in of_processes:
        counted = counted.join(table, on="process", how="left", maintain_order="left")
    return counted


def cuts(iterations: pl.DataFrame) -> pl.DataFrame:
    """Return ``process, iterations, with_work, whole, cut`` of processes that have iterations.

    ``cut`` is ``begin``, ``end`` or ``both`` where the recording of GPU work lacks that end of the
    iterations, else null.
    """
    held, whole = pl.col("ops") > 0, pl.col("whole")
    # Of work in one iteration alone, those without any tell at which end it was cut.
    is_torn = (held & ~whole) & (held.sum() > 1)
    begin, end = ~held.first() | is_torn.first(), ~held.last() | is_torn.last()
    cut = (
        pl.when(begin & end).then(pl.lit("both"))
        .when(begin).then(pl.lit("begin"))
        .when(end).then(pl.lit("end"))
    )  # fmt: skip
    return (
        iterations.drop_nulls("ops")
        .sort("process", "start")
        .group_by("process", maintain_order=True)
        .agg(
            iterations=pl.len().cast(pl.Int64),
            with_work=held.sum().cast(pl.Int64),
            cut=pl.when(held.any()).then(cut),
            whole=whole.sum().cast(pl.Int64),
        )
    )
