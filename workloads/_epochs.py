"""The arithmetic of batches, epochs and steps."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from workloads._errors import OptionError
from workloads._options import BatchScope, Options, Scaling

_DEFAULT_STEPS = 20
_UNITS = {"": 1, "K": 1024, "M": 1024**2}


@dataclass(frozen=True)
class Plan:
    """How much is trained.

    Parameters
    ----------
    batch
        Images of a step, of all GPUs together.
    steps
        Steps that are measured.
    images
        Images of an epoch, of all GPUs together; None where epochs are not counted.
    """

    batch: int
    steps: int
    images: int | None

    @property
    def epoch_steps(self) -> int | None:
        """Steps of an epoch, None where epochs are not counted."""
        return None if self.images is None else -(-self.images // self.batch)


def plan(options: Options, stored: int | None = None) -> Plan:
    """Return how much is trained.

    An epoch has ceil(images / batch) steps, each with a full batch. With strong scaling the GPUs
    share `images`, with weak scaling each brings as many.

    Parameters
    ----------
    options
        What is asked for.
    stored
        Images of the data set on disk, which stand in for ``--images``.

    Raises
    ------
    OptionError
        If steps and epochs are both given, the images of an epoch are not known, or a global batch
        cannot be shared by the GPUs.
    """
    batch = _global_batch(options)
    if options.steps is not None and options.epochs is not None:
        raise OptionError("--steps and --epochs both say how long to train", "give one of them")
    images = options.images or stored
    if images is not None and options.scaling is Scaling.WEAK:
        images *= options.gpus
    if options.epochs is None:
        return Plan(batch, _DEFAULT_STEPS if options.steps is None else options.steps, images)
    epoch = Plan(batch, 0, images)
    if epoch.epoch_steps is None:
        raise OptionError("synthetic data have epochs of no certain length", "give --images 256K")
    return replace(epoch, steps=options.epochs * epoch.epoch_steps)


def _global_batch(options: Options) -> int:
    if options.batch_scope is BatchScope.GPU:
        return options.batch * options.gpus
    if options.batch % options.gpus:
        raise OptionError(
            f"a global batch of {options.batch} cannot be shared by {options.gpus} GPUs",
            f"give a multiple of {options.gpus}",
        )
    return options.batch


def parse_images(text: str) -> int:
    """Return the number of images that a text means: ``256K`` is 256 x 1024.

    Raises
    ------
    OptionError
        If it means none.
    """
    found = re.fullmatch(r"\s*([0-9]+)\s*([KM]?)\s*", text.upper())
    count = int(found[1]) * _UNITS[found[2]] if found else 0
    if not count:
        raise OptionError(
            f"{text!r} is not a number of images", "write it as 50000, or 256K for 256 x 1024"
        )
    return count
