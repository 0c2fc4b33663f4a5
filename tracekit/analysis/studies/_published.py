"""Numbers that a study published, as tables to join with one's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from tracekit.analysis.studies._hardware import read_toml
from tracekit.support.resources import schemas


@dataclass(frozen=True)
class Published:
    """Published numbers of a study.

    Parameters
    ----------
    images
        Size of its data set.
    batch
        Of the published speedups.
    speedups
        ``network, method, batch, gpus, published, relation``.
    overheads, memory_extra, memory_growth
        ``network, batch, published``, percent.
    bounds
        Single numbers, by name.
    """

    images: int
    batch: int
    speedups: pl.DataFrame
    overheads: pl.DataFrame
    memory_extra: pl.DataFrame
    memory_growth: pl.DataFrame
    bounds: Mapping[str, float]


def load_published(name: str) -> Published:
    """Load a study's published numbers from ``schemas/published``."""
    content = read_toml(schemas() / "published" / f"{name}.toml")
    return Published(
        content["images"],
        content["batch"],
        _speedups(content),
        _by_batch(content["overhead"]),
        _by_batch(content["memory_extra"]),
        _by_batch(content["memory_growth"]),
        content["bounds"],
    )


def _speedups(content: Mapping[str, Any]) -> pl.DataFrame:
    rows = [
        {
            "network": network, "method": each["method"], "batch": content["batch"],
            "gpus": int(gpus), "published": float(value), "relation": each["relation"],
        }
        for each in content["speedup"]
        for network in each["networks"]
        for gpus, value in each["by_gpus"].items()
    ]  # fmt: skip
    return pl.DataFrame(rows)


def _by_batch(content: Mapping[str, Any]) -> pl.DataFrame:
    rows = [
        {"network": network, "batch": batch, "published": float(value)}
        for network, values in content.items()
        if network != "batches"
        for batch, value in zip(content["batches"], values, strict=True)
    ]
    return pl.DataFrame(rows)


def beside(rows: pl.DataFrame, published: pl.DataFrame, value: str) -> pl.DataFrame:
    """Join published numbers with one's own.

    Parameters
    ----------
    rows
        One's own, with the column `value`.
    published
        ``published``, perhaps ``relation``, and columns that `rows` has too, which tell what
        belongs together.
    value
        What was published.

    Returns
    -------
    `rows` with ``published, relation``; ``error_percent``, 100 (own - published) / published, where
    a value was published; ``within``, whether one's own is in the published bound, where that is
    what was published. All null without a partner.
    """
    keys = [name for name in published.columns if name not in ("published", "relation")]
    if "relation" not in published.columns:
        published = published.with_columns(relation=pl.lit("="))
    joined = rows.join(published, on=keys, how="left", maintain_order="left")
    own, other, relation = pl.col(value), pl.col("published"), pl.col("relation")
    return joined.with_columns(
        error_percent=pl.when(relation == "=").then(100 * (own - other) / other),
        within=pl.when(relation == "<").then(own < other).when(relation == "<=").then(own <= other),
    )
