"""Buckets: gradients or weights of many parameters in one vector, moved by one copy or call.

A network has hundreds of parameters, most of them small: moved one by one, launching takes longer
than moving. Buckets are filled from the last parameter on, since the backward pass computes the
gradients of the last layers first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, cycle

import torch
from torch import Tensor, nn

from workloads._options import Options
from workloads.methods._replicas import gradient


class Bucket:
    """Several parameters, and one vector into which their gradients or weights are packed.

    Parameters
    ----------
    parameters
        Parameters, all on the same device and of the same type.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = parameters
        sizes = [parameter.numel() for parameter in parameters]
        self.vector = parameters[0].new_empty(sum(sizes), requires_grad=False)
        *ends, _ = accumulate(sizes)
        pieces = self.vector.tensor_split(ends)
        self._pieces = [
            piece.view_as(parameter) for parameter, piece in zip(parameters, pieces, strict=True)
        ]

    @property
    def nbytes(self) -> int:
        """Size of the vector in bytes."""
        return self.vector.nbytes

    def when_full(self, begin: Callable[[], None]) -> None:
        """Call a function in each backward pass once all gradients of the bucket exist."""
        missing = cycle(reversed(range(len(self.parameters))))

        def note(_: Tensor) -> None:
            if not next(missing):
                begin()

        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]

    def take_gradients(self) -> Tensor:
        """Copy the gradients into the vector, and remove them from the parameters."""
        torch._foreach_copy_(self._pieces, [gradient(one) for one in self.parameters])
        for parameter in self.parameters:
            parameter.grad = None
        return self.vector

    def give_gradients(self) -> None:
        """Make each parameter's slice of the vector its gradient, until the optimizer clears it."""
        for parameter, piece in zip(self.parameters, self._pieces, strict=True):
            parameter.grad = piece

    def take_weights(self) -> Tensor:
        """Copy the weights into the vector."""
        torch._foreach_copy_(self._pieces, [one.detach() for one in self.parameters])
        return self.vector

    def give_weights(self) -> None:
        """Make each parameter's slice of the vector its weights."""
        torch._foreach_copy_([one.detach() for one in self.parameters], self._pieces)


def bucket_bytes(options: Options) -> int:
    """Return the size in bytes at which a bucket is full."""
    return int(options.bucket_mb * (1 << 20))


def fill_buckets(parameters: Sequence[nn.Parameter], enough: float) -> list[Bucket]:
    """Divide parameters into buckets, last one first; each is closed once it has `enough` bytes."""
    filled: list[list[nn.Parameter]] = [[]]
    for parameter in reversed(parameters):
        if sum(one.nbytes for one in filled[-1]) >= max(enough, 1):
            filled.append([])
        filled[-1].append(parameter)
    return [Bucket(some) for some in filled if some]
