"""Dumps that a hanging job writes: of PyTorch's flight recorder, and of NCCL's RAS subsystem.

They contain the collective in which each rank was at the time of the dump, but no times of GPU
work, and so are no traces.
"""

from tracekit.sources.hang_dumps._dumps import Dumps, read_dumps

__all__ = ["Dumps", "read_dumps"]
