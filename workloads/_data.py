"""Samples that are made up, and how the processes of a job share batches.

Samples come as global batches that depend on the seed and on the number of the step alone. Each
process takes its parts out of them, so however many devices share a batch, they see together what
one device would see.
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
"""How many global batches are made up; then they come again."""
_PATTERN = 4
"""Height and width of the pattern that the images of a class share."""


class Data(Protocol):
    """Training data of a process."""

    def step(self, number: int) -> Sequence[Part]:
        """Return this process' parts of the global batch of a step."""
        ...

    def evaluation(self) -> Sequence[Part]:
        """Return this process' parts of the batch that the network is evaluated on."""
        ...


@dataclass(frozen=True)
class Share:
    """A process's share of each global batch.

    Parameters
    ----------
    batch
        Samples of the global batch.
    parts
        In how many parts of equal size it is cut.
    own
        Which of them are this process'.
    pin
        Whether to keep samples where GPUs can fetch them.
    """

    batch: int
    parts: int
    own: range
    pin: bool = False

    @property
    def slices(self) -> Sequence[slice]:
        """Where in the global batch the process' parts are."""
        size = self.batch // self.parts
        return [slice(part * size, (part + 1) * size) for part in self.own]

    def keep(self, part: Part) -> Part:
        """Return a part where it can be fetched from."""
        return Part(part.inputs.pin_memory(), part.labels.pin_memory()) if self.pin else part


class Synthetic:
    """A few global batches, which are made up once and come again and again.

    The batch to evaluate on is another one.
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
        """Return this process' parts of the global batch of a step."""
        return self._steps[number % _DISTINCT]

    def evaluation(self) -> Sequence[Part]:
        """Return this process' parts of the batch that the network is evaluated on."""
        return self._evaluation


def find_network(
    name: str, image_size: int | None = None, *, auxiliary: bool = True
) -> Network:  # fmt: skip
    """Return a network, with made-up images of another height and width if that is asked for.

    Its auxiliary classifiers, if it has some, can be left out.

    Raises
    ------
    OptionError
        If there is no such network, or it takes no images.
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
    """Make sure that a network can be trained on images of another size than the published one.

    Parameters
    ----------
    network
        It says how large they are.
    batch
        How many of them a device gets in a step.

    Raises
    ------
    OptionError
        If they are too small.
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
    """Make up labelled samples that can be learnt.

    Images are noise over a coarse pattern that their class has; tokens are drawn from the half of
    the vocabulary that begins at a place of their class.

    Parameters
    ----------
    network
        It says what its inputs are, and how many classes there are.
    batch
        How many samples.
    generator
        Where the numbers come from.
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
