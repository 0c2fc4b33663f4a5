"""How much longer steps take with hooks that wait for a window than without hooks.

    python benchmarks/silent_hooks.py [ROUNDS]

Blocks of steps without and with hooks take turns in one process and one thread (A B B A), so that
what else the machine does falls on both. Of each round the ratio of short steps (the lower decile)
is taken; printed is the median ratio, and the interval that holds it in 95 of 100 cases. A
processor's time is beside the wall's, which says little where other programs run.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from tracekit.annotation._attach import Requests
from tracekit.annotation._hooks import Hooks
from tracekit.annotation._step_windows import Windows, WithinWindows

ROUNDS = 20
OUTSIDE = 0.025
"""Part of cases in which the median is below the interval, and above."""
BLOCK_S = 0.1
"""About how long a block takes."""

Times = tuple[float, float]
"""Seconds of a step, of this thread and of the wall."""


class _Nowhere:
    """Takes ranges that are never written."""

    def push(self, name: str) -> None: ...

    def pop(self) -> None: ...

    def start(self, name: str) -> int:
        raise AssertionError(name)

    start_once = start

    def end(self, opened: int) -> None: ...

    def mark(self, name: str) -> None: ...


def main() -> int:
    """Run the script."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    torch.set_num_threads(1)
    convolutions = [nn.Conv2d(3, 32, 3), *(nn.Conv2d(32, 32, 3, padding=1) for _ in range(16))]
    many = nn.Sequential(*convolutions, nn.Flatten(), nn.LazyLinear(10))
    tiny = nn.Sequential(*(nn.Linear(64, 64) for _ in range(20)))
    for name, network, given in (
        ("17 convolutions", many, torch.randn(8, 3, 24, 24)),
        ("20 layers of 64 by 64", tiny, torch.randn(8, 64)),
    ):
        network(given)
        print(f"{name}: {_compared(network, given, rounds)}")
    return 0


def _compared(network: nn.Module, given: Tensor, rounds: int) -> str:
    optimizer = torch.optim.SGD(network.parameters(), 1e-6)
    step = partial(_step, network, optimizer, given)
    _timed(step, 20)
    one = _timed(step, 20)[0]
    steps = max(int(BLOCK_S / one), 5)
    ratios: tuple[list[float], list[float]] = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            without = _timed(step, steps)
            waiting = [_waiting(step, steps, folder, optimizer) for _ in range(2)]
            again = _timed(step, steps)
            for clock, its in enumerate(ratios):
                its.append(sum(each[clock] for each in waiting) / (without[clock] + again[clock]))
    told = [_interval(its) for its in ratios]
    return (
        f"{1000 * one:.2f} ms a step; with hooks, of a processor {told[0]}, of the wall {told[1]}"
    )


def _waiting(
    step: Callable[[], None], steps: int, folder: str, optimizer: torch.optim.Optimizer
) -> Times:
    """Time steps with hooks that wait for a request."""
    nowhere = _Nowhere()
    windows = Windows(nowhere, Requests(folder))
    hooks = Hooks(
        torch, WithinWindows(nowhere, windows), 1, (), [optimizer], windows, is_silent=True
    )  # fmt: skip
    hooks.install()
    hooks.hook_step(type(optimizer))
    try:
        _timed(step, 10)  # by then it is known how steps are counted
        return _timed(step, steps)
    finally:
        hooks.remove()


def _step(network: nn.Module, optimizer: torch.optim.Optimizer, given: Tensor) -> None:
    optimizer.zero_grad()
    network(given).sum().backward()
    optimizer.step()


def _timed(step: Callable[[], None], steps: int) -> Times:
    """Return a step that few of them are shorter than: what other programs do only adds."""
    times = []
    for _ in range(steps):
        begun = time.thread_time(), time.perf_counter()
        step()
        times.append((time.thread_time() - begun[0], time.perf_counter() - begun[1]))
    of_processor, of_wall = (sorted(clock)[len(times) // 10] for clock in zip(*times, strict=True))
    return of_processor, of_wall


def _interval(ratios: Sequence[float]) -> str:
    """Return the median, and the order statistics that hold it in 95 of 100 cases."""
    ordered, count = sorted(ratios), len(ratios)
    below = [sum(math.comb(count, k) for k in range(n + 1)) / 2**count for n in range(count)]
    first = sum(each <= OUTSIDE for each in below)
    low, high = ordered[first], ordered[count - 1 - first]
    return f"{statistics.median(ordered):.4f} times as long ({low:.4f} to {high:.4f})"


if __name__ == "__main__":
    sys.exit(main())
