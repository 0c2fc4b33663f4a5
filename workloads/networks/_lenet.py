"""LeNet-5 (LeCun, Bottou, Bengio, Haffner, 1998)."""

from __future__ import annotations

from torch import nn

from workloads.networks._initial import by_inputs, draw_weights
from workloads.networks._layers import chain


def lenet(classes: int) -> nn.Module:
    """Return LeNet-5 with max pooling and linear outputs.

    The published network differs: its pooling has weights, its second convolution leaves out
    connections, and its outputs are radial basis functions. Weights are drawn as LeCun, Bottou, Orr
    and Müller (1998) advise for tanh units.
    """
    network = chain(
        conv1=nn.Conv2d(1, 6, kernel_size=5, padding=2),
        tanh1=nn.Tanh(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(6, 16, kernel_size=5),
        tanh2=nn.Tanh(),
        pool2=nn.MaxPool2d(2),
        resize=nn.AdaptiveAvgPool2d(5),
        flatten=nn.Flatten(),
        fc1=nn.Linear(16 * 5 * 5, 120),
        tanh3=nn.Tanh(),
        fc2=nn.Linear(120, 84),
        tanh4=nn.Tanh(),
        fc3=nn.Linear(84, classes),
    )
    draw_weights(network, by_inputs)
    return network
