"""Initial weights."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn

Draw = Callable[[Tensor], object]


def draw_weights(network: nn.Module, draw: Draw) -> None:
    """Draw the weights of convolutions, linear layers and embeddings, and zero their biases."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear | nn.Embedding):
            draw(layer.weight)
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)


def normal(deviation: float) -> Draw:
    """Return a function that draws from a normal distribution around 0."""
    return lambda weight: nn.init.normal_(weight, std=deviation)


def truncated(deviation: float) -> Draw:
    """Return a function that draws from a normal distribution around 0, cut at two deviations."""
    return lambda weight: nn.init.trunc_normal_(
        weight, std=deviation, a=-2 * deviation, b=2 * deviation
    )


def by_inputs(weight: Tensor) -> None:
    """Draw with standard deviation 1/sqrt(inputs of a unit), suited to tanh units."""
    nn.init.normal_(weight, std=1 / math.sqrt(weight[0].numel()))


def by_outputs(weight: Tensor) -> None:
    """Draw with variance 2/(outputs that an input feeds), suited to ReLU units."""
    nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu")
