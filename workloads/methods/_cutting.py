"""Divide a network into the stages of a pipeline, of about equal cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from workloads._errors import OptionError
from workloads.networks import Image, Tokens, blocks


class Block(NamedTuple):
    """Cost and output shape of one block (consecutive layers) of a network.

    Parameters
    ----------
    operations
        Number of multiplications and additions with weights in convolutions and linear layers, in
        the forward pass of one sample.
    output
        Shape of its output, without the batch.
    """

    operations: int
    output: tuple[int, ...]


def survey(network: nn.Module, takes: Image | Tokens) -> list[Block]:
    """Return cost and output shape of each block of a network, found by running it on zeros.

    Parameters
    ----------
    network
        The network, in host memory; it is not changed.
    takes
        Format of its input.
    """
    found = []
    data = _zeros(takes)
    was_training = network.training
    network.eval()
    with torch.no_grad():
        for _, block in blocks(network):
            with _counted(block) as counts:
                data = block(data)
            found.append(Block(sum(counts), tuple(data.shape[1:])))
    network.train(was_training)
    return found


def cut(costs: Sequence[int], stages: int) -> list[range]:
    """Return the blocks of each stage, such that the largest cost of a stage is minimal.

    A stage begins at a block with a cost, except perhaps the first stage. Of several solutions, the
    one with the earliest cuts is returned.

    Parameters
    ----------
    costs
        Cost of each block.
    stages
        Number of stages.

    Raises
    ------
    OptionError
        If fewer blocks have a cost.
    """
    dear = [block for block, cost in enumerate(costs) if cost]
    if len(dear) < stages:
        raise OptionError(
            f"the network has {len(dear)} blocks that compute, too few for {stages} stages",
            "give fewer --gpus",
        )
    bounds = [0, *dear[1:], len(costs)]
    sums = list(accumulate(costs, initial=0))

    @cache
    def best(stages: int, last: int) -> tuple[int, tuple[int, ...]]:
        """Divide the blocks before `last` into stages; return the largest cost, and begins."""
        if stages == 1:
            return sums[bounds[last]], (0,)
        ways = ((best(stages - 1, middle), middle) for middle in range(stages - 1, last))
        return min(
            (max(most, sums[bounds[last]] - sums[bounds[middle]]), (*starts, bounds[middle]))
            for (most, starts), middle in ways
        )

    starts = best(stages, len(bounds) - 1)[1]
    return [range(*ends) for ends in pairwise([*starts, len(costs)])]


def _zeros(takes: Image | Tokens) -> Tensor:
    """Return one sample of zeros, as input for a network."""
    if isinstance(takes, Image):
        return torch.zeros(1, takes.channels, takes.height, takes.width)
    return torch.zeros(1, takes.length, dtype=torch.long)


@contextmanager
def _counted(block: nn.Module) -> Iterator[list[int]]:
    """Count the operations of the layers of a block while it runs."""
    counts: list[int] = []

    def count(layer: nn.Module, inputs: object, output: Tensor) -> None:
        del inputs
        weights = layer.get_parameter("weight")[0].numel()  # of one unit
        counts.append(2 * weights * output.numel())

    layers = [layer for layer in block.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    yield counts
    for hook in hooks:
        hook.remove()
