"""How many steps a run has: computed from batch size, images and epochs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from workloads._errors import OptionError
from workloads._options import BatchScope, Options, Scaling

_DEFAULT_STEPS = 20
_UNITS = {"": 1, "K": 1024, "M": 1024**2}


@dataclass(frozen=True)
class Plan:
    """How much a run trains: batch size, steps, and images of an epoch.

    Parameters
    ----------
    batch
        Images per step, on all GPUs together.
    steps
        Number of measured steps.
    images
        Images per epoch, on all GPUs together; None if epochs are not used.
    """

    batch: int
    steps: int
    images: int | None

    @property
    def epoch_steps(self) -> int | None:
        """Number of steps per epoch; None if epochs are not used."""
        return None if self.images is None else -(-self.images // self.batch)


def plan(options: Options, stored: int | None = None) -> Plan:
    """Return how much a run trains (batch size, steps, images), as its options ask for.

    An epoch has ceil(images / batch) steps, each with a full batch. With strong scaling the GPUs
    share `images`; with weak scaling each adds as many.

    Parameters
    ----------
    options
        Options of the run.
    stored
        Number of images in the data set on disk, in place of ``--images``; None without one.

    Raises
    ------
    OptionError
        If steps and epochs are both given, the images of an epoch are not known, or the GPUs cannot
        share a global batch equally.
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
    """Return the number of images in a text; ``256K`` is 256 x 1024.

    Raises
    ------
    OptionError
        If the text is no such number.
    """
    found = re.fullmatch(r"\s*([0-9]+)\s*([KM]?)\s*", text.upper())
    count = int(found[1]) * _UNITS[found[2]] if found else 0
    if not count:
        raise OptionError(
            f"{text!r} is not a number of images", "write it as 50000, or 256K for 256 x 1024"
        )
    return count
