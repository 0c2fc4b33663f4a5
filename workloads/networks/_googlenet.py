"""GoogLeNet (Szegedy et al., 2015) with batch normalisation (Ioffe, Szegedy, 2015)."""

from __future__ import annotations

from torch import nn

from workloads.networks._initial import draw_weights
from workloads.networks._layers import Branches, Tapped, chain, conv


def googlenet(classes: int) -> nn.Module:
    """Return GoogLeNet with two auxiliary classifiers, after inception4a and inception4d.

    As in the weights in common use, and unlike the first publication, convolutions are followed by
    batch normalisation, and the widest kernel of an inception module is 3x3, not 5x5. Weights are
    drawn as Glorot and Bengio (2010) propose.
    """
    trunk = chain(
        conv1=conv(3, 64, 7, stride=2, padding=3),
        pool1=_pool(),
        conv2=conv(64, 64, 1),
        conv3=conv(64, 192, 3, padding=1),
        pool2=_pool(),
        inception3a=_inception(192, 64, (96, 128), (16, 32), 32),
        inception3b=_inception(256, 128, (128, 192), (32, 96), 64),
        pool3=_pool(),
        inception4a=_inception(480, 192, (96, 208), (16, 48), 64),
        inception4b=_inception(512, 160, (112, 224), (24, 64), 64),
        inception4c=_inception(512, 128, (128, 256), (24, 64), 64),
        inception4d=_inception(512, 112, (144, 288), (32, 64), 64),
        inception4e=_inception(528, 256, (160, 320), (32, 128), 128),
        pool4=_pool(),
        inception5a=_inception(832, 256, (160, 320), (32, 128), 128),
        inception5b=_inception(832, 384, (192, 384), (48, 128), 128),
        pool5=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        drop=nn.Dropout(0.4),
        fc=nn.Linear(1024, classes),
    )
    auxiliary = {"inception4a": _auxiliary(512, classes), "inception4d": _auxiliary(528, classes)}
    network = Tapped(trunk, auxiliary)
    draw_weights(network, nn.init.xavier_uniform_)
    return network


def _pool() -> nn.Module:
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)


def _inception(
    inputs: int, single: int, middle: tuple[int, int], wide: tuple[int, int], pooled: int
) -> Branches:
    return Branches(
        single=conv(inputs, single, 1),
        middle=_reduced(inputs, *middle),
        wide=_reduced(inputs, *wide),
        pooled=chain(pool=nn.MaxPool2d(3, stride=1, padding=1), project=conv(inputs, pooled, 1)),
    )


def _reduced(inputs: int, fewer: int, outputs: int) -> nn.Sequential:
    return chain(reduce=conv(inputs, fewer, 1), conv=conv(fewer, outputs, 3, padding=1))


def _auxiliary(inputs: int, classes: int) -> nn.Sequential:
    return chain(
        pool=nn.AdaptiveAvgPool2d(4),
        conv=conv(inputs, 128, 1),
        flatten=nn.Flatten(),
        fc1=nn.Linear(128 * 4 * 4, 1024),
        relu=nn.ReLU(),
        drop=nn.Dropout(0.7),
        fc2=nn.Linear(1024, classes),
    )
