"""AlexNet (Krizhevsky, Sutskever, Hinton, 2012; for one device: Krizhevsky, 2014)."""

from __future__ import annotations

from torch import nn

from workloads.networks._initial import draw_weights, normal
from workloads.networks._layers import chain


def alexnet(classes: int) -> nn.Module:
    """Return AlexNet as it was published in 2014 for one device: convolutions are not split.

    Weights are drawn as in 2012: with a standard deviation of 0.01, and with biases of 1 in the
    layers where that gives ReLU units positive inputs at first (conv2, conv4, conv5, fc6, fc7).
    """
    network = chain(
        conv1=nn.Conv2d(3, 64, kernel_size=11, stride=4, padding=2),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(3, stride=2),
        conv2=nn.Conv2d(64, 192, kernel_size=5, padding=2),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(3, stride=2),
        conv3=nn.Conv2d(192, 384, kernel_size=3, padding=1),
        relu3=nn.ReLU(),
        conv4=nn.Conv2d(384, 256, kernel_size=3, padding=1),
        relu4=nn.ReLU(),
        conv5=nn.Conv2d(256, 256, kernel_size=3, padding=1),
        relu5=nn.ReLU(),
        pool5=nn.MaxPool2d(3, stride=2),
        resize=nn.AdaptiveAvgPool2d(6),
        flatten=nn.Flatten(),
        drop6=nn.Dropout(0.5),
        fc6=nn.Linear(256 * 6 * 6, 4096),
        relu6=nn.ReLU(),
        drop7=nn.Dropout(0.5),
        fc7=nn.Linear(4096, 4096),
        relu7=nn.ReLU(),
        fc8=nn.Linear(4096, classes),
    )
    draw_weights(network, normal(0.01))
    for name in ("conv2", "conv4", "conv5", "fc6", "fc7"):
        nn.init.ones_(network.get_submodule(name).get_parameter("bias"))
    return network
