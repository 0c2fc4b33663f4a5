"""Databases of nvprof and the Visual Profiler (``nvprof -o FILE``), of CUDA 8 to 12.

All versions have the same tables; later ones add columns. Unlike nsys, nvprof creates all tables
from the start, so a kind of data was recorded if its table has rows. The CSV that nvprof prints for
GPU traces is read as well.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.sources.nvprof._csv import is_csv, read_csv
    from tracekit.sources.nvprof._nvprof_database import is_nvprof, read

__getattr__, __dir__ = lazily(__name__)
