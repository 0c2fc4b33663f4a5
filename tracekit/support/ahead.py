"""Computes results in several threads before they are used, and yields them in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


_MOST_THREADS = 4
"""Largest number of threads; further cores are better used by other work at the same time."""


def ahead(
    work: Callable[[Item], Result], items: Iterable[Item], waiting: int = 2
) -> Iterator[Result]:
    """Yield `work(item)` for each item in order, computed ahead of the consumer by threads.

    There is one thread per core, up to a limit; at most `waiting` results per thread are computed
    or wait in memory.
    """
    if isinstance(items, Sized) and len(items) == 1:  # nothing is ahead of it
        yield from map(work, items)
        return
    threads = min(cores(), _MOST_THREADS)
    pending: deque[Future[Result]] = deque()
    executor = ThreadPoolExecutor(threads, "ahead")
    try:
        for item in items:
            pending.append(executor.submit(work, item))
            if len(pending) > waiting * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        executor.shutdown(cancel_futures=True)


def cores() -> int:
    """Return the number of cores that this process may use."""
    # Python 3.13 asks for what this process may use; before, Linux alone tells it.
    if count := getattr(os, "process_cpu_count", None):
        return count() or 1
    if affinity := getattr(os, "sched_getaffinity", None):
        return len(affinity(0))
    return os.cpu_count() or 1
