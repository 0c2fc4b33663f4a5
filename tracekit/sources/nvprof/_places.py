"""Processes, threads and devices of a database."""

from __future__ import annotations

from pathlib import PurePath

import polars as pl

from tracekit.model import DEVICES
from tracekit.sources._identities import Identities, small
from tracekit.sources._tables import Strings
from tracekit.sources.nvprof._input import (
    PROCESS,
    TABLE,
    THREAD,
    object_gid,
    pid_of,
    thread_gid,
    tid_of,
)
from tracekit.sources.sqlite import SqliteFile

NAME, DEVICE = f"{TABLE}NAME", f"{TABLE}DEVICE"

_UUID_BYTES = 16
_KILO = 1000


def object_names(file: SqliteFile, strings: Strings) -> pl.DataFrame:
    """Return the names of processes and threads: ``kind, gid, name``."""
    rows = file.read(NAME, {"objectKind": "int", "objectId": "blob", "name": "int"})
    return (
        rows.select(
            kind="objectKind",
            gid=object_gid(pl.col("objectKind"), pl.col("objectId")),
            name=pl.lit(strings.of(rows["name"])),
        )
        .drop_nulls(["gid", "name"])
        .unique(["kind", "gid"], keep="first", maintain_order=True)
    )


def programs(names: pl.DataFrame) -> dict[int, str | None]:
    """Return the name of each process's executable: process id -> name.

    A process is recorded with its whole command line, which may hold private data: only the name of
    the executable is kept.
    """
    commands = names.filter(pl.col("kind") == PROCESS).select(pid_of(pl.col("gid")), "name")
    return {pid: _executable(command) for pid, command in commands.iter_rows()}


def _executable(command: str) -> str | None:
    words = command.split(maxsplit=1)
    return PurePath(words[0]).name or None if words else None


def threads(who: Identities, names: pl.DataFrame) -> pl.DataFrame:
    """Return the canonical table of threads, without ``report``."""
    gid = pl.col("gid")
    named = names.filter(pl.col("kind") == THREAD).select("name", pid=pid_of(gid), tid=tid_of(gid))
    return who.threads(named).with_columns(global_id=thread_gid(pl.col("pid"), pl.col("tid")))


def devices(file: SqliteFile, strings: Strings, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the canonical table of GPUs, without ``report``: those described and those of ops.

    Parameters
    ----------
    file, strings
        The database and its strings.
    ops
        ``device, src_device, dst_device`` of the ops.
    """
    described = _described(file, strings)
    active = ops["device"].drop_nulls()
    seen = pl.concat([ops[name] for name in ops.columns]).drop_nulls()
    every = pl.concat([described["device"], seen.cast(pl.Int32)]).unique().sort()
    table = every.to_frame("device").join(described, on="device", how="left", maintain_order="left")
    table = table.with_columns(
        active=pl.col("device").is_in(active.cast(pl.Int32).implode()),
        identity=pl.when("known").then(pl.lit("ordinal")).otherwise(pl.lit("unknown")),
    )
    return table.select(name for name in DEVICES.schema if name in table.columns)


def _described(file: SqliteFile, strings: Strings) -> pl.DataFrame:
    numbers = (
        "id", "name", "globalMemorySize", "globalMemoryBandwidth", "numMultiprocessors",
        "computeCapabilityMajor", "computeCapabilityMinor",
    )  # fmt: skip
    rows = file.read(DEVICE, {**dict.fromkeys(numbers, "int"), "uuid": "blob"})
    return (
        rows.with_columns(strings.of(rows["name"]).alias("product"))
        .select(
            device=small(pl.col("id")).cast(pl.Int32),
            name="product",
            uuid=_uuid(),
            memory_bytes=_positive("globalMemorySize"),
            peak_memory_bandwidth=_positive("globalMemoryBandwidth") * _KILO,
            sm_count=small(_positive("numMultiprocessors")).cast(pl.Int32),
            compute_capability=pl.format(
                "{}.{}", "computeCapabilityMajor", "computeCapabilityMinor"
            ),
            known=pl.lit(value=True),
        )
        .drop_nulls("device")
        .unique("device", keep="first", maintain_order=True)
    )


def _positive(name: str) -> pl.Expr:
    return pl.when(pl.col(name) > 0).then(name)


def _uuid() -> pl.Expr:
    uuid = pl.col("uuid")
    whole = (uuid.bin.size() == _UUID_BYTES) & (uuid != bytes(_UUID_BYTES))
    text = uuid.bin.encode("hex")
    parts = (text.str.slice(at, length) for at, length in ((0, 8), (8, 4), (12, 4), (16, 4)))
    return pl.when(whole).then(pl.concat_str(*parts, text.str.slice(20), separator="-"))
