"""Groups of ranks: members of each communicator, and its parallelism (data, tensor, ...)."""

from __future__ import annotations

import polars as pl

from tracekit.analysis.calls._groups import group_members, same_groups
from tracekit.analysis.calls._nccl_calls import group_descriptions
from tracekit.analysis.calls._ranks import process_ranks
from tracekit.model import Trace

OF_GROUPS = ("communicator", "group", "parallelism")
"""Keys about groups of ranks."""
MEMBERS = ("communicators", "members")
PARALLELISMS = {
    "tensor": ("tp", "tensor"),
    "pipeline": ("pp", "pipe", "pipeline"),
    "data": ("dp", "ddp", "fsdp", "data"),
    "expert": ("ep", "expert"),
    "context": ("cp", "context"),
    "sequence": ("sp", "sequence"),
}
"""Words in names of groups, by parallelism: of PyTorch's meshes, Megatron-LM, vLLM and SGLang."""


def communicator_groups(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the name, parallelism and members of each communicator's group of ranks.

    Parameters
    ----------
    trace
        The run.
    calls
        As in the table `COLLECTIVE_CALLS`.

    Returns
    -------
    One row per communicator: ``communicator``; ``group``, its name in the program; ``parallelism``
    (data, tensor, ...), by words in that name (several are joined by ``and``; null without any);
    ``members``, the recorded ranks of the job that called it, such as ``0-3, 8`` (null if the rank
    of any caller is unknown).
    """
    described = group_descriptions(trace)
    if calls["communicator"].str.starts_with("0x").any() and described.height:
        same = same_groups(trace.once(group_members)).rename({"communicator": "one"})
        known = same.join(described, left_on="group", right_on="communicator", suffix="_of")
        described = pl.concat(
            [described, known.select(communicator="one", group="group_of")]
        )  # fmt: skip
    named = described.with_columns(parallelism=_parallelism(pl.col("group")))
    ranks = process_ranks(trace).select("process", "rank")
    seen = calls.select("communicator", "process").drop_nulls("communicator").unique()
    ranked = seen.join(ranks, on="process", how="left")
    whole = ranked.filter(pl.col("rank").is_not_null().all().over("communicator"))
    members = _spans(whole.select("communicator", "rank").unique())
    return (
        seen.select("communicator").unique()
        .join(named, on="communicator", how="left")
        .join(members, on="communicator", how="left")
        .sort("communicator")
    )  # fmt: skip


def groups_of_ops(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Return ``op`` (collective kernel) with the columns of `communicator_groups`.

    Kernels without a communicator, or with several, have no row.
    """
    of_ops = calls.select("op", "communicator").drop_nulls().unique("op", keep="none")
    return of_ops.join(communicator_groups(trace, calls), on="communicator")


def members_of_rows() -> list[pl.Expr]:
    """Return aggregations over rows of `communicator_groups`: ``communicators`` and ``members``.

    ``communicators`` is their number; ``members`` the ranks if equal in all rows, else null.
    """
    only = pl.when(pl.col("members").n_unique() == 1).then(pl.col("members").first())
    number = pl.col("communicator").drop_nulls().n_unique()
    return [number.cast(pl.Int64).alias("communicators"), only.alias("members")]


def unnamed_groups(rows: pl.DataFrame) -> list[str]:
    """Return how to record group names, if `rows` has a column for them that is all null."""
    named = [name for name in OF_GROUPS[1:] if name in rows.columns]
    if not named or rows.select(pl.any_horizontal(pl.col(named).is_not_null()).any()).item():
        return []
    return [
        "names of groups of ranks, which torch.profiler records: nsys records communicators only"
    ]


def _parallelism(name: pl.Expr) -> pl.Expr:
    words = name.str.to_lowercase().str.extract_all(r"[a-z]+")
    kinds = [
        pl.when(words.list.set_intersection(list(known)).list.len() > 0).then(pl.lit(kind))
        for kind, known in PARALLELISMS.items()
    ]
    text = pl.concat_list(kinds).list.drop_nulls().list.join(" and ")
    return pl.when(text != "").then(text)


def _spans(ranks: pl.DataFrame) -> pl.DataFrame:
    """Return the ranks of each communicator as text, consecutive ones as ``0-3``."""
    ordered = ranks.sort("communicator", "rank")
    place = pl.int_range(pl.len()).over("communicator")
    spans = ordered.group_by("communicator", run=pl.col("rank") - place, maintain_order=True).agg(
        first=pl.col("rank").min(), last=pl.col("rank").max()
    )
    first, last = (pl.col(name).cast(pl.String) for name in ("first", "last"))
    text = pl.when(pl.col("first") == pl.col("last")).then(first).otherwise(first + "-" + last)
    return spans.group_by("communicator", maintain_order=True).agg(members=text.str.join(", "))
