"""Shared parts of a database's tables: texts, ids of processes and threads, times.

A thread is identified by its process and CUPTI's thread id, usually a pthread handle, of which the
tables keep 32 bits; the global ids made here are ``pid << 32 | thread id``.
"""

from __future__ import annotations

import re

import polars as pl

from tracekit.model import PolarsType
from tracekit.sources._copies import Copies
from tracekit.sources.sqlite import SqliteFile

TABLE = "CUPTI_ACTIVITY_KIND_"
STRINGS = "StringTable"

COPIES = Copies(
    host_memory=(1, 2),  # pageable, pinned
    device_memory=(3, 4, 6),  # device, array, device static
    managed_memory=(5, 7),  # managed, managed static
)
"""How CUPTI encodes copies, by kinds of memory; nsys's codes are one lower."""

PROCESS, THREAD = 1, 2
"""Kinds of objects that a row can be about."""

_TID_BITS = 32
_TID_MASK = (1 << _TID_BITS) - 1
_INT32 = (1 << 31) - 1
_MANGLED = "_Z"
_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\{[^{}]*\}::")
_NAMES: dict[str, PolarsType] = {
    "id": pl.Int64,
    "name": pl.Categorical(),
    "short_name": pl.Categorical(),
}


class Strings:
    """Texts that other tables refer to by number; number 0 means none.

    Parameters
    ----------
    file
        The database.
    """

    def __init__(self, file: SqliteFile) -> None:
        texts = file.read(STRINGS, {"_id_": "int", "value": "text"})
        known = texts.filter(pl.col("_id_") != 0)
        self._texts = known.unique("_id_", keep="first", maintain_order=True)

    def of(self, ids: pl.Series) -> pl.Series:
        """Return the text of each id; null if there is none."""
        wanted = ids.alias("_id_").to_frame()
        return wanted.join(self._texts, on="_id_", how="left", maintain_order="left")["value"]


def small(number: pl.Expr) -> pl.Expr:
    """Return a small number; null if it is invalid."""
    return pl.when(number.is_between(0, _INT32)).then(number)


def thread_gid(pid: pl.Expr, tid: pl.Expr) -> pl.Expr:
    """Return the global id of a thread, whose recorded id may have 32 bits or more."""
    return small(pid) * (1 << _TID_BITS) + tid.and_(pl.lit(_TID_MASK, pl.Int64))


def pid_of(thread: pl.Expr) -> pl.Expr:
    """Return the process id in a global thread id."""
    return thread // (1 << _TID_BITS)


def tid_of(thread: pl.Expr) -> pl.Expr:
    """Return the thread id in a global thread id."""
    return thread.and_(pl.lit(_TID_MASK, pl.Int64))


def object_gid(kind: pl.Expr, object_id: pl.Expr) -> pl.Expr:
    """Return the global id of the thread or process that ``objectId`` names; null for others.

    It holds process id and thread id in 4 bytes each, and 4 unused bytes. For a process only the
    first 4 bytes are meaningful; it gets the thread id 0.
    """
    known = kind.is_in((PROCESS, THREAD)) & (object_id.bin.size() >= 2 * _ID_BYTES)
    pid, tid = (_part(object_id, place) for place in (0, 1))
    return pl.when(known).then(thread_gid(pid, pl.when(kind == THREAD).then(tid).otherwise(0)))


_ID_BYTES = 4


def _part(object_id: pl.Expr, place: int) -> pl.Expr:
    part = object_id.bin.slice(place * _ID_BYTES, _ID_BYTES)
    whole = pl.when(part.bin.size() == _ID_BYTES).then(part)
    return whole.bin.reinterpret(dtype=pl.UInt32, endianness="little").cast(pl.Int64)


def timed(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with valid times; CUPTI writes 0 for an unknown time."""
    return rows.filter((pl.col("start") > 0) & (pl.col("end") >= pl.col("start")))


def owned(rows: pl.DataFrame, owners: int | pl.DataFrame) -> pl.DataFrame:
    """Add ``pid`` to rows whose process is known, and drop others.

    Parameters
    ----------
    rows
        Rows with ``correlation``.
    owners
        Process of the rows: one process id for all, or ``correlation, pid``.
    """
    if isinstance(owners, int):
        return rows.with_columns(pid=pl.lit(owners, pl.Int64))
    return rows.join(owners, on="correlation", how="inner", maintain_order="left")


class KernelNames:
    """Readable names of kernels, computed when a kernel first occurs.

    Parameters
    ----------
    strings
        Strings of the database.
    """

    def __init__(self, strings: Strings) -> None:
        self._strings = strings
        self._known = pl.DataFrame(schema=_NAMES)

    def of(self, ids: pl.Series) -> pl.DataFrame:
        """Return ``name, short_name`` of each id; null if it has no text."""
        wanted = ids.alias("id").to_frame()
        self._learn(wanted.unique().join(self._known, on="id", how="anti")["id"])
        named = wanted.join(self._known, on="id", how="left", maintain_order="left")
        return named.drop("id")

    def _learn(self, ids: pl.Series) -> None:
        if ids.is_empty():
            return
        names = [readable(text) for text in self._strings.of(ids)]
        short = [None if name is None else short_name(name) for name in names]
        learned = pl.DataFrame({"id": ids, "name": names, "short_name": short}, schema=_NAMES)
        self._known = pl.concat([self._known, learned])


def readable(name: str | None) -> str | None:
    """Return the demangled form of a name; other names are returned unchanged.

    A name that cannot be demangled, or whose declaration would be too long, is unchanged as well.
    """
    if name is None or not name.startswith(_MANGLED):
        return name
    from demangle import demangle  # noqa: PLC0415 - nothing else that is read needs it

    return demangle(name)


def short_name(declaration: str) -> str:
    """Return a function's name without type, namespaces, template arguments and parameters.

    ``void at::native::reduce_kernel<512, float>(int)`` is ``reduce_kernel``.
    """
    plain = _UNNAMED.sub("", declaration)
    kept, depth = [], 0
    for place, character in enumerate(plain):
        if character == "(" and depth == 0 and place:
            break
        depth += (character == "<") - (character == ">")
        if depth == 0 and character != ">":
            kept.append(character)
    words = "".join(kept).replace("::", " ").split()
    return words[-1] if words else declaration
