"""Columns out of SQLite files, as fast as the pages of the file allow."""

from tracekit.sources.sqlite._file import SqliteFile
from tracekit.sources.sqlite._layout import MAGIC, SqlType

__all__ = ["MAGIC", "SqlType", "SqliteFile"]
