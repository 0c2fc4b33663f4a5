"""Nsight Systems exports (SQLite, Parquet, Arrow), with the schemas of 2020 to 2026.

Versions differ in tables and columns, and the product that exported may be newer than the one that
recorded. So nothing here asks for a version: a kind of data is there if its table and columns are.
"""

from tracekit.sources.nsys._nsys_export import is_nsys, read

__all__ = ["is_nsys", "read"]
