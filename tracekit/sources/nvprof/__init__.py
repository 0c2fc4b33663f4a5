"""Databases of nvprof and the Visual Profiler (``nvprof -o FILE``), of CUDA 8 to 12.

All versions have the same tables; later ones add columns. Unlike those of nsys, all tables are
there from the start, so that a feature is there when its table has rows. The CSV of GPU traces that
nvprof prints is read as well.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.sources.nvprof._csv import is_csv, read_csv
    from tracekit.sources.nvprof._database import is_nvprof, read

__getattr__, __dir__ = lazily(__name__)
