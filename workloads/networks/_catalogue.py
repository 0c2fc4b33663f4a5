"""Networks by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from torch import nn

from workloads.networks._alexnet import alexnet
from workloads.networks._googlenet import googlenet
from workloads.networks._inception_v3 import inception_v3
from workloads.networks._lenet import lenet
from workloads.networks._mobilenet import mobilenet
from workloads.networks._network import Image, Network, Tokens
from workloads.networks._resnet import resnet_50, resnet_110, resnet_110_imagenet
from workloads.networks._transformer import LENGTH, VOCABULARY, transformer

_IMAGENET = Image(3, 224, 224)

_ALL = (
    Network("lenet", lenet, Image(1, 28, 28), 10, 61_706),
    Network("alexnet", alexnet, _IMAGENET, 1000, 61_100_840),
    Network("googlenet", googlenet, _IMAGENET, 1000, 13_004_888, (0.3, 0.3), 6_379_984),
    Network("inception-v3", inception_v3, Image(3, 299, 299), 1000, 27_161_264, (0.4,), 3_326_696),
    Network("resnet-50", resnet_50, _IMAGENET, 1000, 25_557_032),
    Network("resnet-110-imagenet", resnet_110_imagenet, _IMAGENET, 1000, 54_591_528),
    Network("resnet-110", resnet_110, Image(3, 32, 32), 10, 1_727_962),
    Network("mobilenet", mobilenet, _IMAGENET, 1000, 3_504_872),
    Network("transformer", transformer, Tokens(LENGTH, VOCABULARY), 10, 4_243_466),
)  # fmt: skip

NETWORKS: Mapping[str, Network] = MappingProxyType({network.name: network for network in _ALL})
"""Networks that can be trained: name -> network."""


def build(name: str, classes: int | None = None) -> nn.Module:
    """Return a network with initial weights.

    Parameters
    ----------
    name
        A name in `NETWORKS`.
    classes
        Number of classes; None for the published number.

    Raises
    ------
    KeyError
        If there is no network of that name.
    """
    return NETWORKS[name].build(classes)
