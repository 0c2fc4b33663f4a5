"""A small transformer (Vaswani et al., 2017) that classifies sequences."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.networks._initial import draw_weights, normal
from workloads.networks._layers import Residual, chain, repeated

LENGTH, VOCABULARY, WIDTH, HEADS, BLOCKS = 128, 4096, 256, 4, 4


def transformer(classes: int) -> nn.Module:
    """Return an encoder of four blocks of width 256, with normalisation before each part.

    Weights are drawn as for GPT-2 (Radford et al., 2019), with a standard deviation of 0.02. There
    is no dropout.
    """
    network = chain(
        embedding=Embedding(VOCABULARY, LENGTH, WIDTH),
        **repeated("block", [_block(WIDTH, HEADS) for _ in range(BLOCKS)]),
        norm=nn.LayerNorm(WIDTH),
        pool=Mean(),
        fc=nn.Linear(WIDTH, classes),
    )
    draw_weights(network, normal(0.02))
    return network


class Embedding(nn.Module):
    """Sum of token embeddings and position embeddings."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return vectors of the shape batch, length, width."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        embedded: Tensor = self.tokens(tokens) + self.positions(positions)
        return embedded


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return vectors of the inputs' shape."""
        parts = self.project(inputs).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        mixed = functional.scaled_dot_product_attention(*parts.unbind(2))
        projected: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return projected


class Mean(nn.Module):
    """The mean over a sequence's positions."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return vectors of the shape batch, width."""
        return inputs.mean(dim=1)


def _block(width: int, heads: int) -> nn.Sequential:
    attend = chain(norm=nn.LayerNorm(width), attention=Attention(width, heads))
    think = chain(
        norm=nn.LayerNorm(width),
        fc1=nn.Linear(width, 4 * width),
        gelu=nn.GELU(),
        fc2=nn.Linear(4 * width, width),
    )
    return chain(attend=Residual(attend), think=Residual(think))
