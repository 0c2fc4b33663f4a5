"""Bytes that data-parallel training must exchange, beside those that runs moved."""

from __future__ import annotations

from typing import Any

import polars as pl

from tracekit.analysis.studies._epochs import BatchScope, study_iterations
from tracekit.model import Answer

_BYTES = 4
_N, _S = pl.col("gpus"), pl.col("gradient_bytes")


def exchange(
    study: pl.DataFrame,
    *,
    parameters: int | None = None,
    images: int | None = None,
    batch_scope: BatchScope = "gpu",
) -> Answer:
    """List the bytes that each run's network must exchange in a step, and those that it moved.

    Gradients of S = 4 P bytes, of P parameters, are summed over n GPUs and what comes of them is
    handed back: 2 (n - 1) S bytes in all, whatever way they take. Through one GPU (a star) that one
    takes in (n - 1) S and sends out as many; around a ring each GPU sends 2 (n - 1) / n S.

    Parameters
    ----------
    study
        The table of a study.
    parameters
        P of runs that do not say their own (label or column ``parameters``).
    images
        Size of the data set; for runs labelled ``weak``, of one GPU.
    batch_scope
        Whether ``batch`` counts the images of each GPU or of all.

    Returns
    -------
    ======================  ======================================================================
    ``run, network``        the run, and its labels
    ``batch, gpus, method``
    ``parameters``          P; null where it is not known, and so is all that follows from it
    ``gradient_bytes``      S
    ``expected_bytes``      2 (n - 1) S, over all GPUs
    ``star_root_bytes``     (n - 1) S, in and out of the root each
    ``ring_gpu_bytes``      2 (n - 1) / n S, sent by each GPU
    ``observed_bytes``      what moved between GPUs in a step, over all of them
    ``observed_evidence``   ``measured`` or ``modelled``
    ``ratio``               observed over expected
    ``iterations``          of an epoch; null without `images`
    ``epoch_bytes``         expected in an epoch
    ======================  ======================================================================

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
    rows = rows.with_columns(
        expected_bytes=2 * (_N - 1) * _S,
        star_root_bytes=(_N - 1) * _S,
        ring_gpu_bytes=2 * (_N - 1) * _S / _N,
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
        rows=shown, meta=_meta(shown), title="exchange in a step", empty="no runs", command="study"
    )


def _meta(rows: pl.DataFrame) -> dict[str, Any]:
    unknown = rows.filter(pl.col("parameters").is_null())["run"].to_list()
    told = f"number of parameters not known of {', '.join(map(str, unknown))}: label parameters=60M"
    return {"runs": rows.height, "warnings": [told] if unknown else []}
