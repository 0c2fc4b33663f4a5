"""How the allocators beneath Python treat memory that is free for now.

Going through chunk after chunk, tables of one size are made and dropped all the time. Left to
themselves, allocators give that memory back to the system, which clears it before it hands it out
again; on an ingest that took a third of the time.
"""

from __future__ import annotations

import ctypes
import os

_POLARS = "dirty_decay_ms:10000,muzzy_decay_ms:10000"
"""Settings of jemalloc, polars' allocator: how long free memory is kept."""
_ARENA_MAX = -8
"""What glibc calls its limit on arenas. NumPy's memory comes from these; with one for all threads,
what one frees the next one takes."""


def keep_free_memory() -> None:
    """Have allocators keep free memory for a while; has to be called before polars is imported."""
    os.environ.setdefault("_RJEM_MALLOC_CONF", _POLARS)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries do not have it
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
