"""Write in a thread behind the computation (write-behind)."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

_WAITING = 2
"""How many frames may wait to be written: more would only fill memory."""


class Behind:
    """Make rows and write them in another thread, in the order of calls.

    Leaving the context waits until all is written. An error of a write is raised by a later call,
    or there.
    """

    def __init__(self, write: Callable[[str, pl.DataFrame], None]) -> None:
        self._write = write
        self._thread = ThreadPoolExecutor(1, "write")
        self._waiting: deque[Future[None]] = deque()

    def __call__(self, table: str, make: Callable[[], pl.DataFrame]) -> None:
        """Write what `make` returns as the next rows of `table`, soon."""
        if len(self._waiting) == _WAITING:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(self._made, table, make))

    def _made(self, table: str, make: Callable[[], pl.DataFrame]) -> None:
        self._write(table, make())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=kind is not None)
        if kind is None:
            for written in self._waiting:
                written.result()
