"""The arithmetic of batches, epochs and steps."""

from __future__ import annotations

import pytest

from workloads._epochs import Plan, parse_images, plan
from workloads._errors import OptionError
from workloads._options import BatchScope, Options, Scaling

K = 1024


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (Options(), Plan(32, 20, None)),
        (Options(steps=0), Plan(32, 0, None)),
        (Options(gpus=4, batch=16, steps=5), Plan(64, 5, None)),
        (Options(gpus=4, batch=16, batch_scope=BatchScope.GLOBAL, steps=5), Plan(16, 5, None)),
        # 256K images: on eight GPUs of a batch of 16, 2048 steps; with weak scaling, eight times.
        (Options(gpus=8, batch=16, epochs=1, images=256 * K), Plan(128, 2048, 256 * K)),
        (
            Options(gpus=8, batch=16, epochs=1, images=256 * K, scaling=Scaling.STRONG),
            Plan(128, 2048, 256 * K),
        ),
        (
            Options(gpus=8, batch=16, epochs=1, images=256 * K, scaling=Scaling.WEAK),
            Plan(128, 16384, 2048 * K),
        ),
        (Options(gpus=1, batch=16, epochs=2, images=33), Plan(16, 6, 33)),
        (Options(steps=7, images=320), Plan(32, 7, 320)),
    ],
)
def test_a_plan(options: Options, expected: Plan) -> None:
    assert plan(options) == expected


def test_images_on_disk_are_those_of_an_epoch_unless_others_are_given() -> None:
    assert plan(Options(epochs=1), stored=65) == Plan(32, 3, 65)
    assert plan(Options(epochs=1, images=32), stored=65) == Plan(32, 1, 32)


def test_steps_of_an_epoch() -> None:
    assert Plan(32, 1, 65).epoch_steps == 3
    assert Plan(32, 1, None).epoch_steps is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (Options(epochs=1), "--images"),
        (Options(epochs=1, steps=1), "give one of them"),
        (Options(gpus=3, batch=32, batch_scope=BatchScope.GLOBAL), "a multiple of 3"),
    ],
)
def test_what_cannot_be_planned_is_an_error(options: Options, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        plan(options)


@pytest.mark.parametrize(
    ("text", "count"), [("50000", 50000), ("256K", 262144), ("256k", 262144), (" 1M ", 1048576)]
)
def test_numbers_of_images(text: str, count: int) -> None:
    assert parse_images(text) == count


@pytest.mark.parametrize("text", ["", "0", "0K", "K", "1.5K", "-1", "1G", "many"])
def test_what_is_no_number_of_images(text: str) -> None:
    with pytest.raises(OptionError, match="is not a number of images"):
        parse_images(text)
