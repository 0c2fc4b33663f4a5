"""Read columns of SQLite files, decoding large tables from the file's pages without SQLite."""

from tracekit.sources._reading import SqlType
from tracekit.sources.sqlite._library import DTYPE, decoded
from tracekit.sources.sqlite._sqlite_file import (
    BATCH_ROWS,
    SqliteFile,
    is_packed,
    regrouped,
    unpack,
)
from tracekit.sources.sqlite._sqlite_header import MAGIC

__all__ = [
    "BATCH_ROWS",
    "DTYPE",
    "MAGIC",
    "SqlType",
    "SqliteFile",
    "decoded",
    "is_packed",
    "regrouped",
    "unpack",
]
