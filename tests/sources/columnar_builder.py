"""Columnar exports of the same content as an SQLite one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl

UNSIGNED = {
    "globalTid", "globalPid", "globalVid", "endGlobalTid", "category", "domainId", "uint64Value",
    "contextId", "streamId", "nameId", "demangledName", "shortName", "mangledName", "bytes",
}  # fmt: skip
"""Columns that nsys writes as unsigned 64-bit numbers."""
_TYPES = {"INTEGER": pl.Int64, "TEXT": pl.String, "REAL": pl.Float64, "BLOB": pl.Binary}


def write_table(frame: pl.DataFrame, folder: Path, table: str, suffix: str) -> Path:
    """Write a table as nsys does: Parquet, or one record batch in an Arrow stream."""
    folder.mkdir(exist_ok=True)
    path = folder / (table + suffix)
    if suffix == ".parquet":
        frame.write_parquet(path, row_group_size=8)
    else:
        frame.rechunk().write_ipc_stream(path, compat_level=pl.CompatLevel.oldest())
    return path


def write_columnar(source: Path, folder: Path, suffix: str) -> Path:
    """Write all tables of an SQLite export into `folder`."""
    with closing(sqlite3.connect(source)) as file:
        names = [name for (name,) in file.execute("SELECT name FROM sqlite_master")]
        for table in names:
            columns = file.execute(f'PRAGMA table_info("{table}")').fetchall()
            schema = {column[1]: _TYPES[column[2].split("(")[0]] for column in columns}
            rows = file.execute(f'SELECT * FROM "{table}"').fetchall()
            frame = pl.DataFrame(rows, schema=schema, orient="row")
            unsigned = [name for name in schema if name in UNSIGNED]
            bits = frame.with_columns(pl.col(unsigned).reinterpret(signed=False))
            write_table(bits, folder, table, suffix)
    return folder
