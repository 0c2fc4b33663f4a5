"""Columnar exports of Nsight Systems: folders with a Parquet file or an Arrow stream per table."""

from tracekit.sources.columnar._folder import ColumnarExport, table_files

__all__ = ["ColumnarExport", "table_files"]
