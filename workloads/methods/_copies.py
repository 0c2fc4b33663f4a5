"""Copies between devices; each pair of devices has a stream of its own at either end.

PyTorch copies between devices on the source's current stream: the copy starts when the current
streams of both devices have reached it, and both wait for it. On the streams used for computing,
copies to several peers would wait for each other and for all else. So each pair of devices copies
on two streams of its own, and events express the dependencies.
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
    """A copy of a tensor to another device, which has been started.

    Parameters
    ----------
    copied
        The destination, valid once the copy is done.
    source
        The source, which must not change until then.
    done
        Event at the end of the copy; None if it is done already, as on the CPU.
    """

    copied: Tensor
    source: Tensor
    done: torch.cuda.Event | None

    def arrive(self) -> Tensor:
        """Make later work on both devices wait for the copy, and return the destination."""
        if self.done is not None:
            for tensor in (self.copied, self.source):
                stream = torch.cuda.current_stream(tensor.device)
                stream.wait_event(self.done)
            # Its memory is of the pair's stream, and read on the one that the device computes on.
            self.copied.record_stream(torch.cuda.current_stream(self.copied.device))
        return self.copied


def fetch(source: Tensor, device: torch.device) -> Copy:
    """Start copying a tensor to a device, into new memory."""
    return _begin(source, device, lambda: source.to(device, non_blocking=True, copy=True))


def send(source: Tensor, target: Tensor) -> Copy:
    """Start copying `source` into `target`, once the work queued on the target's device is done."""
    if target.is_cuda:
        _, here = _streams(source.device, target.device)
        here.wait_stream(torch.cuda.current_stream(target.device))
    return _begin(source, target.device, lambda: target.copy_(source, non_blocking=True))


def _begin(source: Tensor, device: torch.device, copy: Callable[[], Tensor]) -> Copy:
    """Start `copy` on the two streams of the pair of devices, once the source is computed."""
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
    """Return the streams for copies between two devices, one on the source, one on the target."""
    there, here = (torch.cuda.Stream(end) for end in (source, target))  # type: ignore[no-untyped-call]
    return there, here
