"""Copies between devices; each pair has a stream of its own at either end.

PyTorch copies from device to device on the source's current stream: the copy begins when both
devices' current streams have come to it, and both go on behind it. On the streams that devices
compute on, copies of several peers would wait for each other, and for all else. So each pair of
devices copies on two streams that nothing else uses, and events say what waits for what.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class Copy:
    """A copy that has begun.

    Parameters
    ----------
    copied
        What is there once it has arrived.
    source
        What is copied; it stays as it is until then.
    done
        When it has arrived; None where that was at once, as on the CPU.
    """

    copied: Tensor
    source: Tensor
    done: torch.cuda.Event | None

    def arrive(self) -> Tensor:
        """Have what both devices compute from now on wait for the copy, and return it."""
        if self.done is not None:
            for tensor in (self.copied, self.source):
                stream = torch.cuda.current_stream(tensor.device)
                stream.wait_event(self.done)
            # Its memory is of the pair's stream, and read on the one that the device computes on.
            self.copied.record_stream(torch.cuda.current_stream(self.copied.device))
        return self.copied


def fetch(source: Tensor, device: torch.device) -> Copy:
    """Begin to copy a tensor to a device, into new memory."""
    return _begin(source, device, lambda: source.to(device, non_blocking=True, copy=True))


def send(source: Tensor, target: Tensor) -> Copy:
    """Begin to copy a tensor into another one, once its device is done with that."""
    if target.is_cuda:
        _, here = _streams(source.device, target.device)
        here.wait_stream(torch.cuda.current_stream(target.device))
    return _begin(source, target.device, lambda: target.copy_(source, non_blocking=True))


def _begin(source: Tensor, device: torch.device, copy: Callable[[], Tensor]) -> Copy:
    """Copy on the streams of a pair, once the source is computed."""
    if not source.is_cuda:
        return Copy(copy(), source, None)
    there, here = _streams(source.device, device)
    there.wait_stream(torch.cuda.current_stream(source.device))
    with ExitStack() as both:
        both.enter_context(torch.cuda.stream(there))
        both.enter_context(torch.cuda.stream(here))
        copied = copy()
        return Copy(copied, source, here.record_event())


@cache
def _streams(
    source: torch.device, target: torch.device
) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """Return the streams of a pair, at the source and at the target."""
    there, here = (torch.cuda.Stream(end) for end in (source, target))  # type: ignore[no-untyped-call]
    return there, here
