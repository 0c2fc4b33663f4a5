"""Random SQLite databases, and what SQLite itself says that they hold."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

PAGE_SIZES = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
DECLARED = {
    "int": ("INTEGER", "INT", "BIGINT", "NUMERIC", "", "INTEGER", "INTEGER"),
    "real": ("REAL", "DOUBLE", "FLOAT", "", "NUMERIC"),
    "text": ("TEXT", "VARCHAR(9)", "CLOB", "BLOB", ""),
}
EDGES = [
    sign * (2**bits) + step
    for bits in (0, 7, 8, 15, 16, 23, 24, 31, 32, 47, 48, 53, 62)
    for sign in (1, -1)
    for step in (-1, 0, 1)
] + [2**63 - 1, -(2**63), 0]
TEXTS = ("", "x", "naïve Ωμέγα 漢字 🚀", "nul\x00inside", "0", "-7", "12 apples", "a" * 60)
DTYPE = {"int": pl.Int64, "real": pl.Float64, "text": pl.String}


@dataclass(frozen=True)
class Database:
    """A random database, the columns of its table ``t``, and what is odd about it."""

    path: Path
    columns: Mapping[str, str]
    oddities: frozenset[str]


class Maker:
    """Makes one database of each seed."""

    def __init__(self, seed: int, path: Path) -> None:
        self.pick = random.Random(seed)
        self.path = path
        self.oddities: set[str] = set()
        kinds = self.pick.choices(("int", "int", "int", "real", "text"), k=self.pick.randint(1, 12))
        self.columns = {f"c{i}": kind for i, kind in enumerate(kinds)}
        self.page_size = self.pick.choice(PAGE_SIZES)
        self.nulls = self.pick.choice((0, 0, 0.1, 0.5, 1))

    def odd(self, name: str, chance: float) -> bool:
        if self.pick.random() < chance:
            self.oddities.add(name)
        return name in self.oddities

    def make(self) -> Database:
        if self.odd("reserved bytes", 0.1):
            reserve(self.path, self.page_size, self.pick.choice((1, 8, 32)))
        with closing(sqlite3.connect(self.path, isolation_level=None)) as db:
            db.create_function("chance", 0, lambda: self.pick.randrange(10_000))
            self._settings(db)
            db.execute(f"CREATE TABLE t ({', '.join(self._declarations())}){self._options()}")
            self._fill(db)
        return Database(self.path, self.columns, frozenset(self.oddities))

    def _settings(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA synchronous = OFF")  # nobody waits for the disk
        db.execute(f"PRAGMA page_size = {self.page_size}")
        if self.odd("auto_vacuum", 0.2):
            db.execute(f"PRAGMA auto_vacuum = {self.pick.choice((1, 2))}")
        if self.odd("utf16", 0.05):
            db.execute(f"PRAGMA encoding = '{self.pick.choice(('UTF-16le', 'UTF-16be'))}'")
        if self.odd("wal", 0.1):
            db.execute("PRAGMA journal_mode = WAL")

    def _declarations(self) -> list[str]:
        parts = [f"{name} {self.pick.choice(DECLARED[k])}" for name, k in self.columns.items()]
        if self.odd("unwanted columns", 0.4):
            for i in range(self.pick.randint(1, 4)):
                at = self.pick.randint(0, len(parts))
                parts.insert(at, f"u{i} {self.pick.choice(('INTEGER', 'TEXT', 'BLOB', 'REAL'))}")
        if self.odd("generated", 0.04):
            parts.insert(self.pick.randint(1, len(parts)), "g AS (1) VIRTUAL")
        if self.odd("shadowed rowid", 0.03):
            parts += ["rowid TEXT", "oid TEXT"]
        whole = [i for i, part in enumerate(parts) if part.startswith("c")]
        if self.odd("key", 0.4):
            at = self.pick.choice(whole)
            name = parts[at].split()[0]
            kind = self.pick.choice(
                ["INTEGER PRIMARY KEY"] * 4
                + ["integer PRIMARY KEY", "INT PRIMARY KEY", "INTEGER PRIMARY KEY DESC"]
            )
            self.columns[name] = "int"
            parts[at] = f"{name} {kind}"
            self.key = name
        return parts

    key = ""

    def _options(self) -> str:
        return " WITHOUT ROWID" if self.key and self.odd("without rowid", 0.1) else ""

    def _value(self, kind: str) -> Any:
        if self.pick.random() < self.nulls:
            return None
        if "mixed" in self.oddities and self.pick.random() < 0.02:
            kind = self.pick.choice(("int", "short real", "text", "blob"))
        if kind == "text" and "overflow" in self.oddities and self.pick.random() < 0.02:
            return "o" * self.page_size
        some: dict[str, tuple[Any, ...]] = {
            "int": (self.pick.randint(0, 300), self.pick.choice(EDGES)),
            "real": (self.pick.uniform(-1e3, 1e3), 1e300, -0.0, 7.0, 2.0**60, 3, float("inf")),
            # Versions of SQLite write others as text in different ways.
            "short real": (2.5, -7.0, 0.125),
            "blob": (self.pick.randbytes(self.pick.randint(0, 20)),),
            "text": TEXTS,
        }
        return self.pick.choice(some[kind])

    def _row(self, names: list[str]) -> dict[str, Any]:
        row = {name: self._value(self.columns.get(name, "text")) for name in names}
        if self.key:
            row[self.key] = None
        return row

    def _fill(self, db: sqlite3.Connection) -> None:
        self.odd("mixed", 0.3)
        self.odd("overflow", 0.15)
        scattered = self.odd("scattered rowids", 0.4)
        count = self.pick.choice((0, 1, 7, 60, 200, 600))
        if self.odd("neighbours", 0.5):
            db.execute("CREATE TABLE other (a, b)")
        names = self._names(db)
        db.execute("BEGIN")
        for _ in range(count):
            self._insert(db, names, scattered)
            if "neighbours" in self.oddities:
                db.execute("INSERT INTO other VALUES (1, zeroblob(50))")
        db.execute("COMMIT")
        self._change(db)
        if "wal" in self.oddities:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _names(self, db: sqlite3.Connection) -> list[str]:
        return [name for (_, name, *_) in db.execute("PRAGMA table_info(t)") if name != "g"]

    def _insert(self, db: sqlite3.Connection, names: list[str], scattered: bool) -> None:
        row = self._row(names)
        if self.key:
            row[self.key] = self._rowid() if scattered or self.pick.random() < 0.9 else None
        elif scattered and "shadowed rowid" not in self.oddities:
            row["rowid"] = self._rowid()
        marks = ", ".join("?" * len(row))
        sql = f"INSERT OR IGNORE INTO t ({', '.join(row)}) VALUES ({marks})"
        db.execute(sql, list(row.values()))

    def _rowid(self) -> int:
        return self.pick.choice(
            (self.pick.randint(-(2**63), 2**63 - 1), self.pick.randint(-500, 500), *EDGES)
        )

    def _change(self, db: sqlite3.Connection) -> None:
        names = [name for name in self._names(db) if name != self.key]
        if self.odd("deleted", 0.4):
            db.execute(f"DELETE FROM t WHERE chance() % {self.pick.choice((2, 3, 10))} = 0")
        if names and self.odd("updated", 0.3):
            name = self.pick.choice(names)
            value = self._value(self.columns.get(name, "text"))
            db.execute(f"UPDATE t SET {name} = ? WHERE chance() % 4 = 0", [value])
        if self.odd("column added", 0.2):
            default = self.pick.choice(("", "", " DEFAULT 5", " NOT NULL DEFAULT 5"))
            db.execute(f"ALTER TABLE t ADD COLUMN late INTEGER{default}")
            self.columns["late"] = "int"
        if names and "text" in self.columns.values() and self.odd("no utf8", 0.15):
            name = next(name for name, kind in self.columns.items() if kind == "text")
            db.execute(f"UPDATE t SET {name} = CAST(x'636166E9' AS TEXT) WHERE chance() % 9 = 0")
        now = self._names(db)
        for _ in range(self.pick.choice((0, 20))):
            self._insert(db, now, scattered=True)
        if names and self.odd("index", 0.2):
            db.execute(f"CREATE INDEX i ON t ({names[0]})")
        if self.odd("vacuumed", 0.2):
            db.execute("VACUUM")
        if "auto_vacuum" in self.oddities:
            db.execute("PRAGMA incremental_vacuum(3)").fetchall()


def reserve(path: Path, page_size: int, count: int) -> None:
    """Make an empty database that leaves `count` bytes of each page unused."""
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA page_size = {page_size}")
        db.execute("PRAGMA user_version = 1")
    content = bytearray(path.read_bytes())
    content[20] = count
    content[105:107] = ((page_size - count) % 65536).to_bytes(2, "big")
    path.write_bytes(content)


def expected(path: Path, columns: Mapping[str, str]) -> pl.DataFrame:
    """Read ``t`` value by value, in the order in which SQLite walks through it."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        raw = "BLOB" if db.execute("PRAGMA encoding").fetchone()[0] == "UTF-8" else "TEXT"
        fields = [f'typeof("{n}"), "{n}", CAST("{n}" AS {raw})' for n in columns]
        db.text_factory = bytes
        rows = db.execute(f"SELECT {', '.join(fields)} FROM t NOT INDEXED").fetchall()
    return pl.DataFrame(
        {
            name: [plain_value(kind, *row[3 * i : 3 * i + 3]) for row in rows]
            for i, (name, kind) in enumerate(columns.items())
        },
        schema={name: DTYPE[kind] for name, kind in columns.items()},
        strict=True,
    )


def plain_value(kind: str, stored: bytes, value: Any, raw: bytes | None) -> Any:
    """Return a value as one of a kind: what SQLite calls its type, itself, and its bytes."""
    if raw is None or kind == "blob":
        return raw
    if kind == "text":
        return raw.decode("utf-8", "replace")
    if kind == "real":
        return float(value) if stored in (b"integer", b"real") else None
    if stored == b"integer":
        return value
    if stored == b"real":
        return int(value) if -(2.0**63) <= value < 2.0**63 and value == int(value) else None
    return _whole(value) if stored == b"text" else None


def _whole(text: bytes) -> int | None:
    try:
        number = int(text.decode("ascii"))
    except ValueError:
        return None
    return number if str(number).encode() == text and -(2**63) <= number < 2**63 else None
