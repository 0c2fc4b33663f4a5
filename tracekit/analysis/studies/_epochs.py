"""Compute images per step, steps per epoch, and bytes to exchange from labels of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal

import polars as pl

from tracekit.errors import UsageError
from tracekit.model import Answer

BatchScope = Literal["gpu", "global"]
"""Whether a batch size is the number of images per GPU, or of all GPUs together."""

MOST_IMAGES = 10**12
MOST_BATCH = 10**9
MOST_GPUS = 10**6
"""Larger numbers are mistakes; up to these, products stay within 64 bits."""


def images_per_step(batch: int, gpus: int, batch_scope: BatchScope = "gpu") -> int:
    """Return the number of images that all GPUs process in one step.

    Raises
    ------
    UsageError
        If a number is out of range.
    """
    _check("batch", batch, MOST_BATCH)
    _check("number of GPUs", gpus, MOST_GPUS)
    return batch * gpus if batch_scope == "gpu" else batch


def check_images(images: int) -> None:
    """Raise `UsageError` if `images` cannot be the size of a data set."""
    _check("number of images", images, MOST_IMAGES)


def step_images(batch_scope: BatchScope) -> pl.Expr:
    """Return `images_per_step` of the columns ``batch`` and ``gpus``; null if either is null."""
    per_step = pl.col("batch") * pl.col("gpus") if batch_scope == "gpu" else pl.col("batch")
    return per_step.cast(pl.Int64)


def epoch_iterations(images: pl.Expr, batch_scope: BatchScope) -> pl.Expr:
    """Return the number of steps of an epoch (each image once); null if unknown.

        iterations = ceil(images / (batch x gpus))    batch of each GPU
        iterations = ceil(images / batch)             batch of all GPUs (global)

    ``batch`` and ``gpus`` are columns.
    """
    return -(-images // step_images(batch_scope))


def study_iterations(images: int | None, batch_scope: BatchScope) -> pl.Expr:
    """Return the iterations of an epoch of each run of a study; null without `images`.

    For a run labelled ``weak``, `images` is the number per GPU.
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
    """Return the study with the columns `times` per epoch (of `images` images), not per step."""
    iterations = study_iterations(images, batch_scope)
    return study.with_columns(pl.col(times) * iterations)


def _check(noun: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise UsageError(f"the {noun} is {value}", f"give a whole number from 1 to {most}")


_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
_MOST_PARAMETERS = 10**15
"""Larger numbers are mistakes; up to this, bytes stay within 64 bits."""


def batch_label(labels: Mapping[str, str], run: str) -> int | None:
    """Return the batch size from the labels of a run; None without that label.

    Raises
    ------
    UsageError
        If the label is not an integer, or out of range.
    """
    return label_number(labels, "batch", MOST_BATCH, run)


def parameters_label(labels: Mapping[str, str], run: str) -> int | None:
    """Return the number of parameters from a run's label, such as ``60M``; None without it.

    Raises
    ------
    UsageError
        If the label is not such a number.
    """
    if "parameters" not in labels:
        return None
    number = parameter_count(labels["parameters"])
    if number is None:
        raise UsageError(
            f"run {run!r} has the label parameters={labels['parameters']}",
            "give a number, as parameters=60M",
        )
    return number


def parameter_count(text: str) -> int | None:
    """Parse a number of parameters such as ``60M``, ``1.3B`` or ``60000``; None if invalid."""
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([kmb]?)", text.strip().lower())
    number = int(Decimal(found[1]) * _FACTORS[found[2]]) if found else 0
    return number if 1 <= number <= _MOST_PARAMETERS else None


def label_number(labels: Mapping[str, str], key: str, most: int, run: str) -> int | None:
    """Return the label `key` of a run as an integer; None if the run lacks the label.

    Raises
    ------
    UsageError
        If the label is not an integer from 1 to `most`.
    """
    if key not in labels:
        return None
    text = labels[key].strip()
    # No underscores, signs or other scripts' digits, all of which int() takes.
    short = text.isascii() and text.isdecimal() and len(text) <= len(str(most))
    if not short or not 1 <= int(text) <= most:
        raise UsageError(
            f"run {run!r} has the label {key}={labels[key]}", f"give a whole number, as {key}=16"
        )
    return int(text)


# -- bytes to exchange -------------------------------------------------------------------------


_BYTES = 4
_N, _S = pl.col("gpus"), pl.col("gradient_bytes")
_NOT_SHOWN = (
    pl.col("basis").is_not_null() & (_N > 1) & ~pl.col("data_parallel").fill_null(value=False)
)
"""Selects recorded runs that do not show what is exchanged; a table of times is trusted."""


def exchange(
    study: pl.DataFrame,
    *,
    parameters: int | None = None,
    images: int | None = None,
    batch_scope: BatchScope = "gpu",
) -> Answer:
    """List the bytes that each run's GPUs must exchange in a step, and the bytes they moved.

    Gradients of S = 4 P bytes (P parameters) are summed over n GPUs, and the result is sent back: 2
    (n - 1) S bytes in all, on any path. In a star one GPU receives (n - 1) S and sends as many; in
    a ring each GPU sends 2 (n - 1) / n S. The function `study` in `questions.py` lists the columns;
    columns that depend on P are null if P is unknown, or if a run does not show this exchange.

    Parameters
    ----------
    study
        The table of a study.
    parameters, images, batch_scope
        As the function `study` in `questions.py` describes them.

    Raises
    ------
    UsageError
        If the number of images is out of range.
    """
    rows = study.with_columns(
        parameters=pl.coalesce("parameters", pl.lit(parameters, pl.Int64)),
        iterations=study_iterations(images, batch_scope),
        observed_bytes="bytes_between_gpus",
        observed_evidence="bytes_evidence",
    ).with_columns(gradient_bytes=_BYTES * pl.col("parameters"))
    expected = pl.when(~_NOT_SHOWN)
    rows = rows.with_columns(
        expected_bytes=expected.then(2 * (_N - 1) * _S),
        star_root_bytes=expected.then((_N - 1) * _S),
        ring_gpu_bytes=expected.then(2 * (_N - 1) * _S / _N),
    ).with_columns(
        ratio=pl.when(pl.col("expected_bytes") > 0).then(
            pl.col("observed_bytes") / pl.col("expected_bytes")
        ),
        epoch_bytes=pl.col("expected_bytes") * pl.col("iterations"),
    )
    shown = rows.select(
        "run", "network", "batch", "gpus", "method", "parameters", "gradient_bytes",
        "expected_bytes", "star_root_bytes", "ring_gpu_bytes", "observed_bytes",
        "observed_evidence", "ratio", "iterations", "epoch_bytes",
    )  # fmt: skip
    return Answer(
        rows=shown, meta=_meta(rows), title="exchange in a step", empty="no runs", command="study"
    )


def _meta(rows: pl.DataFrame) -> dict[str, Any]:
    unknown, other = (
        ", ".join(map(str, rows.filter(each)["run"]))
        for each in (pl.col("parameters").is_null(), _NOT_SHOWN)
    )
    said = (
        (unknown, f"number of parameters not known of {unknown}: label parameters=60M"),
        (
            other,
            f"expected bytes of {other} unknown: most are not shown to be gradients of all GPUs",
        ),
    )
    return {"runs": rows.height, "warnings": [text for runs, text in said if runs]}
