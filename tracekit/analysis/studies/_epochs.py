"""Epochs: their number of training steps, and their time given that of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import polars as pl

from tracekit.errors import UsageError
from tracekit.support.spelling import choose_among

BatchScope = Literal["gpu", "global"]
BATCH_SCOPES = ("gpu", "global")
"""What a batch size counts: the images of each GPU, or those of all GPUs together."""

MOST_IMAGES = 10**12
MOST_BATCH = 10**9
MOST_GPUS = 10**6
"""Larger numbers are mistakes; up to these, products stay within 64 bits."""


def images_per_step(batch: int, gpus: int, batch_scope: BatchScope = "gpu") -> int:
    """Return how many images all GPUs handle in one step.

    Raises
    ------
    UsageError
        If a number is out of range, or the scope is unknown.
    """
    check_scope(batch_scope)
    _check("batch", batch, MOST_BATCH)
    _check("number of GPUs", gpus, MOST_GPUS)
    return batch * gpus if batch_scope == "gpu" else batch


def check_images(images: int) -> None:
    """Raise `UsageError` where `images` cannot be the size of a data set."""
    _check("number of images", images, MOST_IMAGES)


def check_scope(batch_scope: str) -> None:
    """Raise `UsageError` where `batch_scope` is none."""
    if batch_scope not in BATCH_SCOPES:
        raise UsageError(f"no batch scope {batch_scope!r}", choose_among(batch_scope, BATCH_SCOPES))


def step_images(batch_scope: BatchScope) -> pl.Expr:
    """Return `images_per_step` of the columns ``batch`` and ``gpus``; null where one is."""
    per_step = pl.col("batch") * pl.col("gpus") if batch_scope == "gpu" else pl.col("batch")
    return per_step.cast(pl.Int64)


def epoch_iterations(images: pl.Expr, batch_scope: BatchScope) -> pl.Expr:
    """Return the number of steps in which each image is used once; null where it is not known.

        iterations = ceil(images / (batch x gpus))    batch of each GPU
        iterations = ceil(images / batch)             batch of all GPUs (global)

    ``batch`` and ``gpus`` are columns.
    """
    return -(-images // step_images(batch_scope))


def study_iterations(images: int | None, batch_scope: BatchScope) -> pl.Expr:
    """Return the iterations of an epoch of each run of a study; null without `images`.

    Of a run labelled ``weak``, `images` are those of one GPU.
    """
    if images is None:
        return pl.lit(None, pl.Int64)
    check_images(images)
    is_weak = (pl.col("scaling") == "weak").fill_null(value=False)
    total = pl.lit(images, pl.Int64) * pl.when(is_weak).then(pl.col("gpus")).otherwise(1)
    return epoch_iterations(total, batch_scope)


def of_epochs(
    study: pl.DataFrame, images: int, batch_scope: BatchScope, times: Sequence[str]
) -> pl.DataFrame:
    """Return a study whose times of steps are those of epochs, of some columns."""
    iterations = study_iterations(images, batch_scope)
    return study.with_columns(pl.col(times) * iterations)


def _check(what: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise UsageError(f"the {what} is {value}", f"give a whole number from 1 to {most}")
