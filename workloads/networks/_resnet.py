"""ResNet (He, Zhang, Ren, Sun, 2016): 50 and 110 layers for ImageNet, 110 for CIFAR-10.

Blocks start as their shortcuts: the part they add is scaled by 0 at first (Goyal et al., 2017).
Without that, as first published, 54 blocks that each add as much as they get lead to an initial
loss of 19 with 10 classes, where guessing gives 2.3.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from workloads.networks._initial import by_outputs, draw_weights
from workloads.networks._layers import Residual, chain, conv, conv_norm, repeated


def resnet_50(classes: int) -> nn.Module:
    """Return ResNet-50: bottleneck blocks with the stride in their 3x3 convolution.

    The first publication has the stride in the 1x1 convolution before; parameters are as many.
    """
    return _of_bottlenecks(classes, (3, 4, 6, 3))


def resnet_110_imagenet(classes: int) -> nn.Module:
    """Return a network of 110 layers and 55 M parameters, the size of that in the DGX-1 study.

    The study states only these two numbers; this network is built like ResNet-50.
    """
    return _of_bottlenecks(classes, (3, 4, 24, 5))


def resnet_110(classes: int) -> nn.Module:
    """Return ResNet-110: three groups of 18 pairs of convolutions, and shortcuts without weights.

    It has 1.7 M parameters; `resnet_110_imagenet` is another network.
    """
    network = chain(
        conv1=conv(3, 16, 3, padding=1),
        layer1=_pairs(16, 16, 18, stride=1),
        layer2=_pairs(16, 32, 18, stride=2),
        layer3=_pairs(32, 64, 18, stride=2),
        pool3=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        fc=nn.Linear(64, classes),
    )
    draw_weights(network, by_outputs)
    return network


def _of_bottlenecks(classes: int, counts: tuple[int, int, int, int]) -> nn.Module:
    first, second, third, fourth = counts
    network = chain(
        conv1=conv(3, 64, 7, stride=2, padding=3),
        pool1=nn.MaxPool2d(3, stride=2, padding=1),
        layer1=_bottlenecks(64, 64, first, stride=1),
        layer2=_bottlenecks(256, 128, second, stride=2),
        layer3=_bottlenecks(512, 256, third, stride=2),
        layer4=_bottlenecks(1024, 512, fourth, stride=2),
        pool4=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        fc=nn.Linear(2048, classes),
    )
    draw_weights(network, by_outputs)
    return network


class Subsample(nn.Module):
    """A shortcut without weights: every other pixel, and zeros in added channels."""

    def __init__(self, added: int) -> None:
        super().__init__()
        self.added = added

    def forward(self, inputs: Tensor) -> Tensor:
        """Return a quarter of the pixels, with the added channels last."""
        return functional.pad(inputs[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.added))


def _bottlenecks(inputs: int, width: int, count: int, stride: int) -> nn.Sequential:
    outputs = 4 * width
    first = _bottleneck(inputs, width, stride, conv_norm(inputs, outputs, 1, stride))
    others = [_bottleneck(outputs, width) for _ in range(count - 1)]
    return chain(**repeated("block", [first, *others]))


def _bottleneck(
    inputs: int, width: int, stride: int = 1, shortcut: nn.Module | None = None
) -> nn.Module:
    body = chain(
        conv1=conv(inputs, width, 1),
        conv2=conv(width, width, 3, stride, padding=1),
        conv3=conv_norm(width, 4 * width, 1),
    )
    _add_nothing(body)
    return Residual(body, shortcut, nn.ReLU())


def _pairs(inputs: int, width: int, count: int, stride: int) -> nn.Sequential:
    first = _pair(inputs, width, stride, None if stride == 1 else Subsample(width - inputs))
    others = [_pair(width, width) for _ in range(count - 1)]
    return chain(**repeated("block", [first, *others]))


def _pair(inputs: int, width: int, stride: int = 1, shortcut: nn.Module | None = None) -> nn.Module:
    body = chain(
        conv1=conv(inputs, width, 3, stride, padding=1), conv2=conv_norm(width, width, 3)
    )  # fmt: skip
    _add_nothing(body)
    return Residual(body, shortcut, nn.ReLU())


def _add_nothing(body: nn.Sequential) -> None:
    """Set the last scale of a residual block to 0, so that the block starts as its shortcut."""
    nn.init.zeros_(body[-1].get_submodule("norm").get_parameter("weight"))
