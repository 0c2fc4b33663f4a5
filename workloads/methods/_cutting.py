"""Where a network is cut into the stages of a pipeline."""

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
    """Computation of a block of a network, and its output for the next.

    Parameters
    ----------
    operations
        Sums and products with weights in convolutions and linear layers, forward, for one sample.
    output
        Shape of its output, without the batch.
    """

    operations: int
    output: tuple[int, ...]


def survey(network: nn.Module, takes: Image | Tokens) -> list[Block]:
    """Return what the blocks of a network do, after one of its inputs of zeros.

    Parameters
    ----------
    network
        The network, in host memory; it stays as it is.
    takes
        Its input.
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
    """Return which blocks make up each stage, so that the stage that costs most costs least.

    A stage begins at a block that costs something, with the possible exception of the first. Of
    several ways, the one is taken that cuts earliest.

    Parameters
    ----------
    costs
        What each block costs.
    stages
        How many stages there are to be.

    Raises
    ------
    OptionError
        If fewer blocks cost something.
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
        """Return the highest cost, and where stages begin, of those up to a bound."""
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
    """Return one sample."""
    if isinstance(takes, Image):
        return torch.zeros(1, takes.channels, takes.height, takes.width)
    return torch.zeros(1, takes.length, dtype=torch.long)


@contextmanager
def _counted(block: nn.Module) -> Iterator[list[int]]:
    """Count the operations of the layers of a block, while it runs."""
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
