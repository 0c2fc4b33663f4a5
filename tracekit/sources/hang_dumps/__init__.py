"""Dumps of jobs that hang: PyTorch's flight recorder, and NCCL's RAS.

They hold what each rank was in when it was asked, no times of work on GPUs, and so are no traces.
"""

from tracekit.sources.hang_dumps._dumps import Dumps, read_dumps

__all__ = ["Dumps", "read_dumps"]
