"""Inception-v3 (Szegedy, Vanhoucke, Ioffe, Shlens, Wojna, 2016)."""

from __future__ import annotations

from torch import nn

from workloads.networks._initial import draw_weights, truncated
from workloads.networks._layers import Branches, Tapped, chain, conv


def inception_v3(classes: int) -> nn.Module:
    """Return Inception-v3 with an auxiliary classifier after mixed6e.

    Modules are named as in the authors' own program, which also defines what the paper leaves open:
    the widths of the modules, and initial weights from truncated normal distributions. The
    auxiliary classifier averages to 5x5 for any size of image.
    """
    trunk = chain(
        conv1a=conv(3, 32, 3, stride=2),
        conv2a=conv(32, 32, 3),
        conv2b=conv(32, 64, 3, padding=1),
        pool2=nn.MaxPool2d(3, stride=2),
        conv3b=conv(64, 80, 1),
        conv4a=conv(80, 192, 3),
        pool4=nn.MaxPool2d(3, stride=2),
        mixed5b=_squares(192, 32),
        mixed5c=_squares(256, 64),
        mixed5d=_squares(288, 64),
        mixed6a=_halve_first(288),
        mixed6b=_lines(768, 128),
        mixed6c=_lines(768, 160),
        mixed6d=_lines(768, 160),
        mixed6e=_lines(768, 192),
        mixed7a=_halve_second(768),
        mixed7b=_fans(1280),
        mixed7c=_fans(2048),
        pool7=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        drop=nn.Dropout(0.2),
        fc=nn.Linear(2048, classes),
    )
    auxiliary = chain(
        pool=nn.AdaptiveAvgPool2d(5),
        conv1=conv(768, 128, 1),
        conv2=conv(128, 768, 5),
        flatten=nn.Flatten(),
        fc=nn.Linear(768, classes),
    )
    network = Tapped(trunk, {"mixed6e": auxiliary})
    draw_weights(network, truncated(0.1))
    draw_weights(auxiliary.get_submodule("conv2"), truncated(0.01))
    draw_weights(auxiliary.get_submodule("fc"), truncated(0.001))
    return network


def _squares(inputs: int, pooled: int) -> Branches:
    """Return an inception module with branches of square kernels: 1x1, 5x5, and 3x3 twice."""
    return Branches(
        single=conv(inputs, 64, 1),
        five=chain(reduce=conv(inputs, 48, 1), conv=conv(48, 64, 5, padding=2)),
        twice=chain(
            reduce=conv(inputs, 64, 1),
            conv1=conv(64, 96, 3, padding=1),
            conv2=conv(96, 96, 3, padding=1),
        ),
        pooled=_pooled(inputs, pooled),
    )


def _halve_first(inputs: int) -> Branches:
    """Return the inception module that reduces 35x35 pixels to 17x17."""
    return Branches(
        three=conv(inputs, 384, 3, stride=2),
        twice=chain(
            reduce=conv(inputs, 64, 1),
            conv1=conv(64, 96, 3, padding=1),
            conv2=conv(96, 96, 3, stride=2),
        ),
        pooled=nn.MaxPool2d(3, stride=2),
    )


def _lines(inputs: int, width: int) -> Branches:
    """Return an inception module whose 7x7 kernels are factored into 1x7 and 7x1."""
    return Branches(
        single=conv(inputs, 192, 1),
        seven=chain(
            reduce=conv(inputs, width, 1),
            wide=conv(width, width, (1, 7), padding=(0, 3)),
            tall=conv(width, 192, (7, 1), padding=(3, 0)),
        ),
        twice=chain(
            reduce=conv(inputs, width, 1),
            tall1=conv(width, width, (7, 1), padding=(3, 0)),
            wide1=conv(width, width, (1, 7), padding=(0, 3)),
            tall2=conv(width, width, (7, 1), padding=(3, 0)),
            wide2=conv(width, 192, (1, 7), padding=(0, 3)),
        ),
        pooled=_pooled(inputs, 192),
    )


def _halve_second(inputs: int) -> Branches:
    """Return the inception module that reduces 17x17 pixels to 8x8."""
    return Branches(
        three=chain(reduce=conv(inputs, 192, 1), conv=conv(192, 320, 3, stride=2)),
        seven=chain(
            reduce=conv(inputs, 192, 1),
            wide=conv(192, 192, (1, 7), padding=(0, 3)),
            tall=conv(192, 192, (7, 1), padding=(3, 0)),
            conv=conv(192, 192, 3, stride=2),
        ),
        pooled=nn.MaxPool2d(3, stride=2),
    )


def _fans(inputs: int) -> Branches:
    """Return an inception module whose branches end in parallel 1x3 and 3x1 convolutions."""
    return Branches(
        single=conv(inputs, 320, 1),
        three=chain(reduce=conv(inputs, 384, 1), fan=_fan()),
        twice=chain(
            reduce=conv(inputs, 448, 1), conv=conv(448, 384, 3, padding=1), fan=_fan()
        ),
        pooled=_pooled(inputs, 192),
    )  # fmt: skip


def _fan() -> Branches:
    return Branches(
        wide=conv(384, 384, (1, 3), padding=(0, 1)), tall=conv(384, 384, (3, 1), padding=(1, 0))
    )


def _pooled(inputs: int, outputs: int) -> nn.Sequential:
    return chain(pool=nn.AvgPool2d(3, stride=1, padding=1), project=conv(inputs, outputs, 1))
