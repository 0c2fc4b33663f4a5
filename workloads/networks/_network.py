"""Interface of a network for the training programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from workloads.networks._layers import Tapped


@dataclass(frozen=True)
class Image:
    """An input of floats of the shape batch, channels, height, width.

    Parameters
    ----------
    channels, height, width
        The published size. Networks take other heights and widths as well.
    """

    channels: int
    height: int
    width: int


@dataclass(frozen=True)
class Tokens:
    """An input of integers of the shape batch, length.

    Parameters
    ----------
    length
        Tokens of a sequence; the network takes no more.
    vocabulary
        How many different tokens there are, from 0.
    """

    length: int
    vocabulary: int


@dataclass(frozen=True)
class Network:
    """A network that can be trained.

    In training it returns logits of the shape batch, classes; with auxiliary classifiers a tuple of
    the logits and of theirs. In evaluation it returns the logits alone.

    Parameters
    ----------
    name
        Its name in `NETWORKS` and on the command line.
    factory
        Makes the network, with initial weights, for a number of classes.
    input
        What it takes.
    classes
        The published number of classes.
    parameters
        Trainable parameters with so many classes, those of auxiliary classifiers included.
    auxiliary
        What the loss of each auxiliary classifier counts beside that of the logits, which counts 1.
    auxiliary_parameters
        How many of the parameters are those of auxiliary classifiers.
    """

    name: str
    factory: Callable[[int], nn.Module]
    input: Image | Tokens
    classes: int
    parameters: int
    auxiliary: tuple[float, ...] = ()
    auxiliary_parameters: int = 0

    def build(self, classes: int | None = None) -> nn.Module:
        """Return the network with initial weights, for the published number of classes or another.

        The weights are drawn from torch's default generator.
        """
        module = self.factory(self.classes if classes is None else classes)
        if isinstance(module, Tapped) and not self.auxiliary:
            module.auxiliary = nn.ModuleDict()
        return module

    def without_auxiliary(self) -> Network:
        """Return the network without auxiliary classifiers; its other weights are the same."""
        parameters = self.parameters - self.auxiliary_parameters
        return replace(self, parameters=parameters, auxiliary=(), auxiliary_parameters=0)
