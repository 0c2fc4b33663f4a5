"""Several runs, one after another, in the same processes."""

from __future__ import annotations

import multiprocessing as mp
import sys
from collections.abc import Sequence
from functools import cache, partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from workloads._options import Options
    from workloads._summary import Summary

PATIENCE_S = 120


@cache
def with_torch() -> ForkServerContext:
    """Return what begins processes that have loaded PyTorch, which takes seconds each, once."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "workloads._loop"])
    return context


@cache
def built(name: str) -> nn.Module:
    """Return a network that tests leave as it is: to draw its weights takes long."""
    import torch

    from workloads.networks import build

    torch.manual_seed(0)
    return build(name)


def modules_of(options: Options) -> set[str]:
    """Train in a process that has done nothing yet, and return what it has loaded then."""
    reader, writer = with_torch().Pipe(duplex=False)
    process = with_torch().Process(target=_tell_modules, args=(options, writer))
    process.start()
    writer.close()
    try:
        assert reader.poll(PATIENCE_S), "the process takes too long"
        loaded: set[str] = reader.recv()
        return loaded
    finally:
        process.kill()
        process.join()


def _tell_modules(options: Options, writer: Connection) -> None:
    from workloads._loop import train
    from workloads.methods._method import World

    train(options, World())
    writer.send(set(sys.modules))


def train_each(wanted: Sequence[Options], size: int, folder: Path) -> list[Summary]:
    """Train as asked for, each time with `size` processes, and return what rank 0 tells."""
    context = with_torch()
    reader, writer = context.Pipe(duplex=False)
    arguments = (wanted, size, folder, writer)
    processes = [context.Process(target=_work, args=(rank, *arguments)) for rank in range(size)]
    for process in processes:
        process.start()
    writer.close()
    try:
        assert reader.poll(PATIENCE_S), "the processes take too long"
        found: list[Summary] = reader.recv()
        for process in processes:
            process.join(PATIENCE_S)
        assert [process.exitcode for process in processes] == [0] * size
        return found
    finally:
        for process in processes:
            process.kill()


def _work(
    rank: int, wanted: Sequence[Options], size: int, folder: Path, writer: Connection
) -> None:
    import torch

    from workloads._loop import train
    from workloads._rank import _stay_on_this_host
    from workloads.methods._method import World

    _stay_on_this_host(size)
    torch.set_num_threads(1)
    summaries: list[Any] = []
    for number, options in enumerate(wanted):
        store = partial(torch.distributed.FileStore, str(folder / f"store{number}"), size)
        summaries.append(train(options, World(rank, size, rank, store)))
    if rank == 0:
        writer.send(summaries)
