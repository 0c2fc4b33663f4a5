"""Interface of a network for the training programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from workloads.networks._layers import Tapped


@dataclass(frozen=True)
class Image:
    """Input of floats with the shape batch, channels, height, width.

    Parameters
    ----------
    channels, height, width
        The published size. Networks accept other heights and widths.
    """

    channels: int
    height: int
    width: int


@dataclass(frozen=True)
class Tokens:
    """Input of integers with the shape batch, length.

    Parameters
    ----------
    length
        Longest sequence, in tokens.
    vocabulary
        Number of different tokens, which count from 0.
    """

    length: int
    vocabulary: int


@dataclass(frozen=True)
class Network:
    """A network that can be trained.

    In training it returns logits of the shape batch, classes; with auxiliary classifiers a tuple of
    these and of the auxiliary logits. In evaluation it returns only the logits.

    Parameters
    ----------
    name
        Name in `NETWORKS` and on the command line.
    factory
        Function that makes the network, with initial weights, for a number of classes.
    input
        Format of its input.
    classes
        The published number of classes.
    parameters
        Number of trainable parameters with the published number of classes, auxiliary classifiers
        included.
    auxiliary
        Weight of each auxiliary classifier's loss, relative to the main loss.
    auxiliary_parameters
        Number of parameters of auxiliary classifiers.
    """

    name: str
    factory: Callable[[int], nn.Module]
    input: Image | Tokens
    classes: int
    parameters: int
    auxiliary: tuple[float, ...] = ()
    auxiliary_parameters: int = 0

    def build(self, classes: int | None = None) -> nn.Module:
        """Return the network with initial weights; `classes` None is the published number.

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
