"""Dumps of jobs that hang: PyTorch's flight recorder, and NCCL's RAS.

They hold what each rank was in when it was asked, no times of work on GPUs, and so are no traces.
"""

from tracekit.sources.hang_dumps._dumps import Dumps, is_dump, read_dumps
from tracekit.sources.hang_dumps._flight_recorder import ENTRY_SCHEMA, RANK_SCHEMA
from tracekit.sources.hang_dumps._ras import EVENT_SCHEMA, PEER_SCHEMA

__all__ = [
    "ENTRY_SCHEMA",
    "EVENT_SCHEMA",
    "PEER_SCHEMA",
    "RANK_SCHEMA",
    "Dumps",
    "is_dump",
    "read_dumps",
]
