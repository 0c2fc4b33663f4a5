"""Messages between two ranks that one side did not enqueue, or not of one size."""

from __future__ import annotations

import polars as pl

_STATES = ("state", "state_to")


def unpaired_messages(entries: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return the first message of each pair of ranks that has no other side, or another size.

    The n-th send of a pair belongs to its n-th receive: messages have no number of their own. So
    pairs whose recorders lost entries are left out.

    Returns
    -------
    ``group``, ``members``, ``sequence`` (which message of the pair, from 1 on), ``problem``
    (missing or size), ``ranks`` (who lacks it; both where sizes differ), ``waiting``, ``usual`` and
    ``other`` (what the sender and the receiver gave), ``source`` and ``target`` (ranks in the job).
    """
    sides = [_numbered(entries, ranks, side) for side in ("send", "recv")]
    keys = ["group", "members", "from", "to", "sequence"]
    both = sides[0].join(sides[1], on=keys, how="full", coalesce=True, suffix="_to")
    whole = ranks.filter(pl.col("lost") == 0)["rank"].implode()
    unfinished = [(pl.col(name) != "completed").fill_null(value=True) for name in _STATES]
    has = [pl.col("sizes").is_not_null(), pl.col("sizes_to").is_not_null()]
    lacks = (has[0] & ~has[1] & unfinished[0]) | (has[1] & ~has[0] & unfinished[1])
    differs = has[0] & has[1] & (pl.col("sizes") != pl.col("sizes_to"))
    empty = pl.lit([], dtype=pl.List(pl.Int64))
    return (
        both.filter(pl.col("from").is_in(whole), pl.col("to").is_in(whole), lacks | differs)
        .sort("group", "from", "to", "sequence")
        .unique(["group", "members", "from", "to"], keep="first", maintain_order=True)
        .select(
            "group", "members", "sequence",
            problem=pl.when(differs).then(pl.lit("size")).otherwise(pl.lit("missing")),
            ranks=pl.when(differs).then(pl.concat_list("from", "to"))
            .when(has[0]).then(pl.concat_list("to")).otherwise(pl.concat_list("from")),
            waiting=pl.when(differs).then(empty)
            .when(has[0]).then(pl.concat_list("from")).otherwise(pl.concat_list("to")),
            usual="sizes", other="sizes_to", source="from", target="to",
        )
    )  # fmt: skip


def _numbered(entries: pl.DataFrame, ranks: pl.DataFrame, side: str) -> pl.DataFrame:
    """Return the sends or receives, numbered within their pair, with ranks of the job."""
    sizes = "input_sizes" if side == "send" else "output_sizes"
    own = "from" if side == "send" else "to"
    return (
        entries.filter(
            (pl.col("collective") == side) & pl.col("source").is_not_null(),
            pl.col("members").list.len() > pl.max_horizontal("source", "target"),
            pl.col("rank").is_in(ranks["rank"].implode()),
        )
        .with_columns(
            pl.col("members").list.get(pl.col("source")).alias("from"),
            pl.col("members").list.get(pl.col("target")).alias("to"),
        )
        .filter(pl.col(own) == pl.col("rank"))
        .sort("rank", "record")
        .with_columns(sequence=pl.int_range(1, pl.len() + 1).over("group", "members", "from", "to"))
        .select(
            "group",
            "members",
            "from",
            "to",
            "sequence",
            "state",
            sizes=pl.col(sizes).fill_null("?"),
        )
    )
