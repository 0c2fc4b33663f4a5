"""Iterations of an epoch, and what follows from them."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.analysis.studies import BatchScope, images_per_step
from tracekit.analysis.studies._epochs import check_images, epoch_iterations
from tracekit.errors import UsageError

GPUS = (1, 2, 4, 8)
SCOPES: tuple[BatchScope, ...] = ("gpu", "global")


def _iterations(images: int, batch: int | None, gpus: int, scope: BatchScope = "gpu") -> int | None:
    table = pl.DataFrame({"batch": [batch], "gpus": [gpus]}, schema_overrides={"batch": pl.Int64})
    found: int | None = table.select(epoch_iterations(pl.lit(images), scope)).item()
    return found


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (16, [16384, 8192, 4096, 2048]),
        (32, [8192, 4096, 2048, 1024]),
        (64, [4096, 2048, 1024, 512]),
    ],
)
def test_256_k_images(batch: int, expected: list[int]) -> None:
    assert [_iterations(256 * 1024, batch, gpus) for gpus in GPUS] == expected


def test_256_thousand_images() -> None:
    found = [_iterations(256_000, 16, gpus) for gpus in GPUS]
    assert found == [16000, 8000, 4000, 2000]


def test_weak_scaling_keeps_the_number_of_iterations() -> None:
    assert {_iterations(262_144 * gpus, 16, gpus) for gpus in GPUS} == {16384}


def test_the_last_step_may_be_smaller() -> None:
    assert _iterations(257, 16, 4) == 5
    assert _iterations(256, 16, 4) == 4
    assert _iterations(1, 16, 4) == 1


def test_a_global_batch_is_shared_by_all_gpus() -> None:
    assert [_iterations(1000, 64, gpus, "global") for gpus in GPUS] == [16] * 4
    assert images_per_step(64, 8, "global") == 64
    assert images_per_step(64, 8) == 512


@pytest.mark.parametrize(
    ("batch", "gpus", "scope", "message"),
    [
        (0, 1, "gpu", "the batch is 0"),
        (1, -1, "gpu", "the number of GPUs is -1"),
    ],
)
def test_numbers_that_cannot_be(batch: int, gpus: int, scope: BatchScope, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        images_per_step(batch, gpus, scope)


@pytest.mark.parametrize("images", [0, 10**13])
def test_a_data_set_has_a_size_that_can_be(images: int) -> None:
    message = f"the number of images is {images}: give a whole number from 1 to"
    with pytest.raises(UsageError, match=message):
        check_images(images)


@settings(deadline=None)
@given(st.integers(1, 10**9), st.integers(1, 10**5), st.integers(1, 1000), st.sampled_from(SCOPES))
def test_they_are_the_exact_quotient_rounded_up(
    images: int, batch: int, gpus: int, scope: BatchScope
) -> None:
    of_a_step = batch * (gpus if scope == "gpu" else 1)
    assert _iterations(images, batch, gpus, scope) == ceil(Fraction(images, of_a_step))
    assert _iterations(images, None, gpus, scope) is None
