"""Parquet files of long tables, written by compiled loops.

Whole numbers are kept as differences to the one before (DELTA_BINARY_PACKED), which is small for
times and numbers of rows alike, and texts as places in a list of the distinct ones
(RLE_DICTIONARY). That takes a fraction of the time that general encodings and compression take,
and no more room. What readers need beyond that is as polars writes it: the types in
``ARROW:schema``, and the least and the greatest number of each column.
"""

from tracekit.support.parquet._file import can_write, write

__all__ = ["can_write", "write"]
