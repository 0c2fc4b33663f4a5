"""Iterations of an epoch, and what follows from them."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.analysis.studies import (
    BatchScope,
    images_per_step,
    iterations_per_epoch,
)
from tracekit.analysis.studies._epochs import epoch_iterations
from tracekit.errors import UsageError

GPUS = (1, 2, 4, 8)
SCOPES: tuple[BatchScope, ...] = ("gpu", "global")


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (16, [16384, 8192, 4096, 2048]),
        (32, [8192, 4096, 2048, 1024]),
        (64, [4096, 2048, 1024, 512]),
    ],
)
def test_256_k_images(batch: int, expected: list[int]) -> None:
    assert [iterations_per_epoch(256 * 1024, batch, gpus) for gpus in GPUS] == expected


def test_256_thousand_images() -> None:
    found = [iterations_per_epoch(256_000, 16, gpus) for gpus in GPUS]
    assert found == [16000, 8000, 4000, 2000]


def test_weak_scaling_keeps_the_number_of_iterations() -> None:
    assert {iterations_per_epoch(262_144 * gpus, 16, gpus) for gpus in GPUS} == {16384}


def test_the_last_step_may_be_smaller() -> None:
    assert iterations_per_epoch(257, 16, 4) == 5
    assert iterations_per_epoch(256, 16, 4) == 4
    assert iterations_per_epoch(1, 16, 4) == 1


def test_a_global_batch_is_shared_by_all_gpus() -> None:
    assert [iterations_per_epoch(1000, 64, gpus, "global") for gpus in GPUS] == [16] * 4
    assert images_per_step(64, 8, "global") == 64
    assert images_per_step(64, 8) == 512


@pytest.mark.parametrize(
    ("images", "batch", "gpus", "scope", "message"),
    [
        (0, 16, 1, "gpu", "the number of images is 0"),
        (10**13, 16, 1, "gpu", "give a whole number from 1 to"),
        (1, 0, 1, "gpu", "the batch is 0"),
        (1, 1, -1, "gpu", "the number of GPUs is -1"),
        (1, 1, 1, "node", "no batch scope 'node': choose among gpu, global"),
    ],
)
def test_numbers_that_cannot_be(
    images: int, batch: int, gpus: int, scope: BatchScope, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        iterations_per_epoch(images, batch, gpus, scope)


@settings(deadline=None)
@given(st.integers(1, 10**9), st.integers(1, 10**5), st.integers(1, 1000), st.sampled_from(SCOPES))
def test_columns_hold_what_numbers_give(
    images: int, batch: int, gpus: int, scope: BatchScope
) -> None:
    table = pl.DataFrame({"batch": [batch, None], "gpus": [gpus, gpus]})
    found = table.select(epoch_iterations(pl.lit(images), scope)).to_series().to_list()
    of_a_step = batch * (gpus if scope == "gpu" else 1)
    assert found == [ceil(Fraction(images, of_a_step)), None]
    assert iterations_per_epoch(images, batch, gpus, scope) == found[0]
