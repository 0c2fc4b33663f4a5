"""Parquet files of long tables, written by compiled loops.

Integers are stored as differences from the previous one (DELTA_BINARY_PACKED), which are small for
times and row numbers alike, and texts as indices into a list of distinct ones (RLE_DICTIONARY).
That is several times as fast as general encodings and compression, and the files are no larger.

Other metadata is as polars writes it: the types in ``ARROW:schema``, and minimum and maximum of
each column.
"""

from tracekit.support.parquet._file import can_write, write

__all__ = ["can_write", "write"]
