"""How the allocators beneath Python treat memory that is free for now.

Going through chunk after chunk, tables of one size are made and dropped all the time. Left to
themselves, allocators give that memory back to the system, which clears it before it hands it out
again; on an ingest that took a third of the time.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

_POLARS = "dirty_decay_ms:10000,muzzy_decay_ms:10000"
"""Settings of jemalloc, polars' allocator: how long free memory is kept."""
_ARENA_MAX = -8
"""What glibc calls its limit on arenas. NumPy's memory comes from these; with one for all threads,
what one frees the next one takes."""


def keep_free_memory() -> None:
    """Have allocators keep free memory for a while; has to be called before polars is imported."""
    os.environ.setdefault("_RJEM_MALLOC_CONF", _POLARS)
    mallopt = _of_glibc("mallopt")
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)


def give_back_free_memory() -> None:
    """Give the system what NumPy's allocator holds free.

    Once chunks of another size follow, or polars has more to hold, it would lie idle.
    """
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_glibc(name: str) -> Any:
    """Return a function of the C library; other ones than GNU's may not have it."""
    return getattr(ctypes.CDLL(None), name, None)
