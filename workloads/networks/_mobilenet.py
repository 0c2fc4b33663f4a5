"""MobileNetV2 (Sandler, Howard, Zhu, Zhmoginov, Chen, 2018)."""

from __future__ import annotations

import itertools

from torch import nn

from workloads.networks._initial import by_outputs, draw_weights, normal
from workloads.networks._layers import Residual, chain, conv, conv_norm, repeated

LAYERS = [  # expansion, channels, blocks, stride of the first block
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
]


def mobilenet(classes: int) -> nn.Module:
    """Return MobileNetV2 of width 1."""
    entries = [32, *(outputs for _, outputs, _, _ in LAYERS)]
    layers = [
        _layer(inputs, *layer)
        for (inputs, _), layer in zip(itertools.pairwise(entries), LAYERS, strict=True)
    ]
    network = chain(
        conv1=conv(3, 32, 3, stride=2, padding=1, activation=nn.ReLU6()),
        **repeated("layer", layers),
        conv2=conv(320, 1280, 1, activation=nn.ReLU6()),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        drop=nn.Dropout(0.2),
        fc=nn.Linear(1280, classes),
    )
    draw_weights(network, by_outputs)
    draw_weights(network.get_submodule("fc"), normal(0.01))
    return network


def _layer(inputs: int, expansion: int, outputs: int, count: int, stride: int) -> nn.Module:
    first = _block(inputs, outputs, expansion, stride)
    others = [Residual(_block(outputs, outputs, expansion, 1)) for _ in range(count - 1)]
    return chain(**repeated("block", [first, *others]))


def _block(inputs: int, outputs: int, expansion: int, stride: int) -> nn.Sequential:
    """Return an inverted residual block: expansion, depthwise convolution, projection."""
    wide = inputs * expansion
    expand = {} if expansion == 1 else {"expand": conv(inputs, wide, 1, activation=nn.ReLU6())}
    return chain(
        **expand,
        depthwise=conv(wide, wide, 3, stride, padding=1, groups=wide, activation=nn.ReLU6()),
        project=conv_norm(wide, outputs, 1),
    )
