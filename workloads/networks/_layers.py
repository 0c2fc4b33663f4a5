"""Building blocks shared by several networks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

Size = int | tuple[int, int]


def chain(**layers: nn.Module) -> nn.Sequential:
    """Return the layers as a sequence, with their names."""
    return nn.Sequential(OrderedDict(layers))


def repeated(prefix: str, blocks: list[nn.Module]) -> dict[str, nn.Module]:
    """Return blocks with the names prefix1, prefix2, ...: name -> block."""
    return {f"{prefix}{number}": block for number, block in enumerate(blocks, start=1)}


def conv(
    inputs: int,
    outputs: int,
    kernel: Size,
    stride: int = 1,
    padding: Size = 0,
    groups: int = 1,
    activation: nn.Module | None = None,
) -> nn.Sequential:
    """Return a convolution without bias, batch normalisation and an activation (default: ReLU)."""
    return chain(
        conv=nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False),
        norm=nn.BatchNorm2d(outputs),
        activation=nn.ReLU() if activation is None else activation,
    )


def conv_norm(inputs: int, outputs: int, kernel: Size, stride: int = 1) -> nn.Sequential:
    """Return a convolution (size changed only by its stride), and batch normalisation."""
    padding = kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)
    return chain(
        conv=nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False),
        norm=nn.BatchNorm2d(outputs),
    )


class Residual(nn.Module):
    """Residual block: layers (the body) whose output is added to a shortcut around them.

    Parameters
    ----------
    body
        Layers whose output is added.
    shortcut
        Layers that bring the input to the body's shape; None if it has that shape.
    activation
        Activation applied to the sum; None for none.
    """

    def __init__(
        self,
        body: nn.Sequential,
        shortcut: nn.Module | None = None,
        activation: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut or nn.Identity()
        self.activation = activation or nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the sum of body and shortcut, after the activation."""
        total: Tensor = self.activation(self.body(inputs) + self.shortcut(inputs))
        return total


class Branches(nn.Module):
    """Named branches of the same input, whose outputs are concatenated by channels."""

    def __init__(self, **branches: nn.Module) -> None:
        super().__init__()
        for name, branch in branches.items():
            self.add_module(name, branch)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs of all branches, concatenated by channels."""
        return torch.cat([branch(inputs) for branch in self.children()], dim=1)


class Tapped(nn.Module):
    """A chain of blocks; the outputs of some feed auxiliary classifiers in training.

    Parameters
    ----------
    blocks
        The chain: name -> block.
    auxiliary
        Auxiliary classifiers, in the order of the blocks: name of the block that feeds it ->
        classifier.
    """

    def __init__(self, blocks: nn.Sequential, auxiliary: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for name, block in blocks.named_children():
            self.add_module(name, block)
        self.auxiliary = nn.ModuleDict(auxiliary)

    def trunk(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the blocks of the chain, without the auxiliary classifiers."""
        return (child for child in self.named_children() if child[1] is not self.auxiliary)

    def forward(self, inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the logits; in training a tuple with those of auxiliary classifiers."""
        found = []
        for name, block in self.trunk():
            inputs = block(inputs)
            if self.training and name in self.auxiliary:
                found.append(self.auxiliary[name](inputs))
        return (inputs, *found) if self.training else inputs


def blocks(network: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return a network as a chain of the smallest blocks that depend only on the one before.

    Auxiliary classifiers are left out. The blocks are the network's own modules, not copies.

    Returns
    -------
    The blocks by their names in the network (``layer1.block1``), in order of computation.
    """
    named = network.trunk() if isinstance(network, Tapped) else network.named_children()
    if type(network) not in {Tapped, nn.Sequential}:
        return [("", network)]
    return [
        (f"{name}.{inner}" if inner else name, block)
        for name, child in named
        for inner, block in blocks(child)
    ]
