"""Files of tracekit's own recorder: ring buffers with the latest ranges of a program.

`tracekit.annotate` and `record --print-hook --ring` make them. They contain ranges with host times,
and no GPU work: a head, names, and records of fixed size, each with a checksum.
`tracekit/annotation/_ring.py` writes them, inside of programs whose Python may not have tracekit.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tracekit.errors import DamagedTraceError, MissingDataError
from tracekit.model import Recording, Trace
from tracekit.sources._identities import contents, report
from tracekit.support.progress import Progress

__all__ = ["is_ring", "read"]

FORMAT = "ring of ranges"
MAGIC = b"tracekit ring 1\n"
NAMES_AT = 128
_HEAD = struct.Struct("<16sQQqqqQ")
_NAME = struct.Struct("<HI")
_RECORD = np.dtype([
    ("start", "<i8"), ("end", "<i8"), ("thread", "<u8"), ("name", "<u4"), ("style", "<u4"),
    ("number", "<u8"), ("turn", "<u8"), ("check", "<u8"),
])  # fmt: skip
_WORDS = _RECORD.itemsize // 8
_SALT = 0x9E3779B97F4A7C15
_STYLES = ("push_pop", "start_end")
_DOMAIN = "tracekit"
_MOST_RECORDS, _MOST_NAME_BYTES = 1 << 24, 1 << 24
_BEING_WRITTEN = 64
"""Number of oldest records that a program still running may have half overwritten."""
_RECORD_WITH = "tracekit record --annotate -- PROGRAM"
_HOST_TIMES = (
    "ranges by the host's clock alone: no GPU work was recorded, and a call may return before its "
    "work on the GPU is done"
)
_GPU_MARK = "tracekit.cuda events"
_GPU_TIMES = (
    "ranges by CUDA events: each from its first work on the GPU to the end of its last, with all "
    "gaps; values named after the host are of these ranges"
)


def is_ring(path: Path) -> bool:
    """Test whether a file begins like a ring buffer of tracekit's recorder."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read(path: Path, progress: Progress = lambda *_: None) -> Recording:
    """Read a ring file into tracekit's tables.

    Times count from the first range. If the ring has wrapped around, ranges that started before the
    oldest record ended are left out: parts of such ranges may have been overwritten.

    Raises
    ------
    DamagedTraceError
        If it is cut short, or its checks fail.
    MissingDataError
        If the ring contains no range.
    """
    data = path.read_bytes()
    progress("read ranges", 0, len(data))
    ring = _Ring.of(data, path)
    rows, lost = ring.ranges()
    progress("read ranges", len(data), len(data))
    if rows.is_empty():
        raise MissingDataError(f"{path} has no range yet", "read it when a step has been made")
    return Recording.of(_trace(path, ring, rows, lost))


@dataclass(frozen=True)
class _Ring:
    """Content of a ring file: its head, the names of ranges, and the records of ranges."""

    path: Path
    pid: int
    rank: int
    epoch: int
    names: list[str]
    records: np.ndarray[Any, np.dtype[np.void]]

    @classmethod
    def of(cls, data: bytes, path: Path) -> _Ring:
        """Split the bytes of a ring file into head, names and records.

        Raises
        ------
        DamagedTraceError
            If head, names or length are not as they should be.
        """
        if len(data) < NAMES_AT:
            raise _damaged(path, "it is cut short")
        words = np.frombuffer(data, "<u8", _HEAD.size // 8)
        _, capacity, size, pid, rank, epoch, _ = _HEAD.unpack_from(data)
        if int(np.bitwise_xor.reduce(words)) != _SALT:
            raise _damaged(path, "the check of its head fails")
        if not (0 < capacity <= _MOST_RECORDS and 0 < size <= _MOST_NAME_BYTES):
            raise _damaged(path, f"its header gives {capacity:,} records")
        begin = NAMES_AT + size
        if len(data) != begin + capacity * _RECORD.itemsize:
            raise _damaged(path, "it is cut short, or longer than its header states")
        names = _names(data[NAMES_AT:begin], path)
        return cls(path, pid, rank, epoch, names, np.frombuffer(data, _RECORD, offset=begin))

    def ranges(self) -> tuple[pl.DataFrame, int]:
        """Return ranges, ``start, end`` (ns), ``thread, name, style``, and how many were lost.

        Ranges are lost if the ring has wrapped around and overwritten them.
        """
        records = self.records
        words = records.view("<u8").reshape(-1, _WORDS)
        is_good = (np.bitwise_xor.reduce(words, axis=1) == _SALT) & (records["turn"] > 0)
        places = (records["turn"] - np.uint64(1)) % np.uint64(len(records))
        is_good &= places == np.arange(len(records), dtype=np.uint64)
        is_good &= (records["end"] >= records["start"]) & (records["style"] < len(_STYLES))
        is_good &= records["name"] <= len(self.names)
        turn = records["turn"][is_good]
        last = int(turn.max(initial=0))
        bad = np.flatnonzero(~is_good & (words != 0).any(axis=1))
        if ((bad - last) % len(records) >= _BEING_WRITTEN).any():
            raise _damaged(self.path, f"the check of {len(bad):,} of its records fails")
        lost = max(last - len(records), 0)
        good = records[is_good]
        if lost:
            oldest = good[good["turn"] == turn.min()]["end"].max()
            good = good[good["start"] >= oldest]
        return self._named(good), lost

    def _named(self, records: np.ndarray[Any, np.dtype[np.void]]) -> pl.DataFrame:
        kept = [name for name in _RECORD.names or () if name != "check"]
        frame = pl.DataFrame({name: records[name] for name in kept})
        texts = pl.Series([None, *self.names], dtype=pl.String)
        number = pl.when(pl.col("number") > 0).then(pl.format(" {}", pl.col("number") - 1))
        found = frame.with_columns(
            name=texts[frame["name"]] + frame.select(number.fill_null("")).to_series(),
            style=pl.Series(_STYLES)[frame["style"]],
        )
        # Of ranges that begin at once the longer one is around the other, which ended before it.
        return found.sort("start", "end", "turn", descending=[False, True, True])


def _names(data: bytes, path: Path) -> list[str]:
    """Return the names of ranges in a ring file; records refer to them by index."""
    found: list[str] = []
    place = 0
    while place + _NAME.size <= len(data):
        length, check = _NAME.unpack_from(data, place)
        if not length:
            break
        place += _NAME.size
        text = data[place : place + length]
        if len(text) < length or zlib.crc32(text) != check:
            raise _damaged(path, "the check of a name of ranges fails")
        found.append(text.decode("utf-8", "replace"))
        place += length
    return found


def _trace(path: Path, ring: _Ring, rows: pl.DataFrame, lost: int) -> Trace:
    """Return tracekit's tables for a ring: one process, its threads and its ranges."""
    ids = rows["thread"].unique().sort()
    threads = ids.to_frame("key").with_row_index("thread").cast({"thread": pl.Int32})
    origin = int(rows["start"][0])
    ranges = rows.rename({"thread": "key"}).join(threads, on="key", maintain_order="left").select(
        "thread", "name", "style", process=pl.lit(0, pl.Int32),
        domain=pl.lit(_DOMAIN), start=pl.col("start") - origin, end=pl.col("end") - origin,
        open=pl.lit(value=False),
    ).with_row_index("range").cast({"range": pl.Int64})  # fmt: skip
    warnings = [_GPU_TIMES if _GPU_MARK in ring.names else _HOST_TIMES]
    if lost:
        warnings.append(f"{lost:,} older ranges are overwritten: the ring keeps the latest")
    return Trace.of(
        {
            "reports": report(
                path,
                FORMAT,
                session_start=ring.epoch + origin,
                duration=int(rows["end"].max()) - origin,  # type: ignore[arg-type]
                rank=None if ring.rank < 0 else ring.rank,
            ),
            "processes": pl.DataFrame([{"process": 0, "pid": ring.pid, "global_id": ring.pid}]),
            "threads": threads.select(
                "thread", process=pl.lit(0, pl.Int32), tid=pl.col("thread"),
                global_id=pl.col("thread"),
            ),
            "ranges": ranges,
            "contents": contents(
                [
                    ("ranges", "records", "stages, layers and iterations", "tracekit.annotate"),
                    ("kernels", "-", "GPU time by stage and kernel", _RECORD_WITH),
                ],
                {"ranges": len(ranges)},
            ),
        },
        tuple(warnings),
    )  # fmt: skip


def _damaged(path: Path, why: str) -> DamagedTraceError:
    return DamagedTraceError(f"{path} is a damaged ring: {why}", "let the program write a new one")
