"""Synthetic samples, and which part of each batch every process of a job trains on.

Samples come as global batches that depend only on the seed and on the number of the step. Each
process takes its parts of them, so that any number of devices sharing a batch sees the same samples
as one device would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from workloads._errors import OptionError
from workloads.methods._method import Part
from workloads.networks import NETWORKS, Image, Network, Tokens

_DISTINCT = 4
"""Number of different global batches, which are used repeatedly."""
_PATTERN = 4
"""Height and width of the pattern that the images of a class share."""


class Data(Protocol):
    """Interface: the batches that a process trains on, synthetic or from disk."""

    def step(self, number: int) -> Sequence[Part]:
        """Return this process' parts of the global batch for step `number`."""
        ...

    def evaluation(self) -> Sequence[Part]:
        """Return this process' parts of the batch for evaluation."""
        ...


@dataclass(frozen=True)
class Share:
    """The part of each global batch that a process trains on.

    Parameters
    ----------
    batch
        Number of samples in the global batch.
    parts
        Number of equal parts that it is cut into.
    own
        Numbers of the parts of this process.
    pin
        Whether to keep samples in pinned memory, for fast copies to GPUs.
    """

    batch: int
    parts: int
    own: range
    pin: bool = False

    @property
    def slices(self) -> Sequence[slice]:
        """Slices of the global batch that are this process' parts."""
        size = self.batch // self.parts
        return [slice(part * size, (part + 1) * size) for part in self.own]

    def keep(self, part: Part) -> Part:
        """Return a part of a batch, in pinned memory if `pin` is set."""
        return Part(part.inputs.pin_memory(), part.labels.pin_memory()) if self.pin else part


class Synthetic:
    """A few global batches of random samples, created once and used in turn.

    The batch for evaluation is a separate one.
    """

    def __init__(self, network: Network, share: Share, seed: int) -> None:
        def make(number: int) -> list[Part]:
            generator = torch.Generator().manual_seed(seed * (_DISTINCT + 1) + number)
            whole = sample(network, share.batch, generator)
            return [
                share.keep(Part(whole.inputs[part].clone(), whole.labels[part].clone()))
                for part in share.slices
            ]

        *self._steps, self._evaluation = map(make, range(_DISTINCT + 1))

    def step(self, number: int) -> Sequence[Part]:
        """Return this process' parts of the global batch for step `number`."""
        return self._steps[number % _DISTINCT]

    def evaluation(self) -> Sequence[Part]:
        """Return this process' parts of the batch for evaluation."""
        return self._evaluation


def find_network(
    name: str, image_size: int | None = None, *, auxiliary: bool = True
) -> Network:  # fmt: skip
    """Return a network by name, optionally for synthetic images of another height and width.

    Without `auxiliary` its auxiliary classifiers are left out.

    Raises
    ------
    OptionError
        If the network does not exist, or takes no images.
    """
    if name not in NETWORKS:
        raise OptionError(f"there is no network {name!r}", f"networks are {', '.join(NETWORKS)}")
    network = NETWORKS[name] if auxiliary else NETWORKS[name].without_auxiliary()
    if image_size is None:
        return network
    if not isinstance(network.input, Image):
        raise OptionError(f"the network {name} takes no images", "leave out --image-size")
    return replace(network, input=replace(network.input, height=image_size, width=image_size))


def check_images(network: Network, batch: int) -> None:
    """Raise an error if a network cannot be trained on images of its configured size.

    Parameters
    ----------
    network
        The network with its size of images.
    batch
        Number of images per device and step.

    Raises
    ------
    OptionError
        If the images are too small.
    """
    image = network.input
    if not isinstance(image, Image) or image == NETWORKS[network.name].input:
        return
    with torch.device("meta"):  # where everything has a shape and nothing has numbers
        images = torch.empty(batch, image.channels, image.height, image.width)
        try:
            network.build()(images)
        except (RuntimeError, ValueError) as error:
            raise OptionError(
                f"{network.name} cannot be trained on {batch} images of "
                f"{image.height} x {image.width} ({str(error).splitlines()[0]})",
                "take larger images, or more of them",
            ) from error


def sample(network: Network, batch: int, generator: torch.Generator) -> Part:
    """Return random labelled samples with a pattern per class, so that a network can learn them.

    Images are noise over a coarse pattern specific to their class; tokens are drawn from the half
    of the vocabulary that starts at a position specific to their class.

    Parameters
    ----------
    network
        The network, which defines the inputs and the number of classes.
    batch
        Number of samples.
    generator
        Random number generator.
    """
    labels = torch.randint(network.classes, (batch,), generator=generator)
    if isinstance(network.input, Tokens):
        return Part(_tokens(network.input, network.classes, labels, generator), labels)
    return Part(_images(network.input, network.classes, labels, generator), labels)


def _images(image: Image, classes: int, labels: Tensor, generator: torch.Generator) -> Tensor:
    size = (image.height, image.width)
    noise = torch.randn(len(labels), image.channels, *size, generator=generator)
    return noise + functional.interpolate(_patterns(classes, image.channels)[labels], size)


def _tokens(tokens: Tokens, classes: int, labels: Tensor, generator: torch.Generator) -> Tensor:
    half = max(1, tokens.vocabulary // 2)
    drawn = torch.randint(half, (len(labels), tokens.length), generator=generator)
    starts = labels * tokens.vocabulary // classes
    return (drawn + starts[:, None]) % tokens.vocabulary


@lru_cache(maxsize=1)
def _patterns(classes: int, channels: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(classes, channels, _PATTERN, _PATTERN, generator=generator)
