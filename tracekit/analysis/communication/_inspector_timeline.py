"""Join records of NCCL's inspector with the kernels of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis.calls import collective_calls, communicator_groups, hex_ids, log_processes
from tracekit.errors import UndecidedError, UsageError

if TYPE_CHECKING:
    from tracekit.model import Trace

_LANE = ["who", "communicator", "collective"]
_IN_GROUP = ["name", "rank", "ranks"]
_LOOKED_AT = 64
"""So many kernels of a rank's collective tell by how much its numbers are shifted."""
_LEAST = 8
"""Fewer kernels that agree may do so by chance."""
_OFF_NS, _OFF_SHARE = 10_000, 0.05
"""By how much records may be longer or shorter than kernels, in the median: the inspector says
whole us, from the first channel's start to the last one's end."""
_APART = 4
"""Times vary by so many times as much as records and kernels differ, and so do the differences at
any other shift."""
_FOUND = pl.Schema({"row": pl.UInt32(), "stage": pl.String(), "iteration": pl.Int64()})


def on_timeline(records: pl.DataFrame, trace: Trace) -> tuple[pl.DataFrame, str]:
    """Add stage and step to records of NCCL's inspector, from a trace of some of the ranks.

    Processes of trace and log are matched by rank in a communicator with the same hash, else by
    process id and host, else by rank in a uniquely named group; communicators by hash, else by
    name. Kernels of one collective and their records both come in the order of sequence numbers.
    The number of the first recorded kernel is the shift at which all sizes agree and, at no other
    shift, lengths do. Stage and step of one rank's kernel apply to the whole call.

    Parameters
    ----------
    records
        Records that each rank logged (`tracekit.sources.nccl_inspector.RECORD_SCHEMA`).
    trace
        A trace of the same job, or of some of its ranks.

    Returns
    -------
    `records` with ``stage`` and ``iteration`` (null if unknown); and a sentence with the number of
    joined records, and by which evidence.

    Raises
    ------
    UndecidedError
        If no collective has a clear shift.
    """
    rows = records.with_row_index("row").with_columns(hex_ids(records["communicator"]))
    who = pl.struct("host", "pid").rank("dense").cast(pl.Int64)
    own = rows.filter(pl.col("peer").is_null()).with_columns(who=who)
    kernels = _kernels(trace, own)
    shifts = _shifts(kernels, own)
    if shifts.is_empty():
        raise UndecidedError(
            "no collective of these logs is one of this run beyond doubt",
            "give logs and a run of the same time, with collectives of 8 KiB and more",
        )
    pairs = _joined(kernels, own, shifts)
    call = ["communicator", "collective", "sequence"]
    told = pairs.group_by(call).agg(
        pl.col("stage").first(), pl.col("iteration").drop_nulls().first()
    )
    found = (
        rows.select("row", *call)
        .join(told, on=call, how="left", maintain_order="left")
        .select(*_FOUND)
    )
    joined = records.with_columns(found["stage"], found["iteration"])
    return joined, _said(pairs, told.height, kernels)


def _kernels(trace: Trace, own: pl.DataFrame) -> pl.DataFrame:
    """Return kernels of collectives with the log's communicator, ``place`` and ``length``."""
    calls = (
        collective_calls(trace)
        .filter(pl.col("library") == "nccl")
        .drop_nulls("communicator")
        .drop("name")
    )
    groups = communicator_groups(trace, calls).select("communicator", name="group")
    named = calls.join(groups, on="communicator", how="left").with_columns(
        pl.col("rank", "ranks").cast(pl.Int64), pl.col("collective").cast(pl.String)
    )
    hashes = own.select("who", "communicator", hashed="communicator").unique()
    names = own.drop_nulls("name").select("who", "name", called="communicator").unique()
    rows = (
        named.join(_processes(trace, named, own), on="process")
        .join(hashes, on=["who", "communicator"], how="left")
        .join(names.unique(["who", "name"], keep="none"), on=["who", "name"], how="left")
        .with_columns(
            communicator=pl.coalesce("hashed", "called"),
            by=pl.when(pl.col("hashed").is_not_null()).then(pl.lit("communicator"))
            .otherwise(pl.lit("name of the group")),
            length=pl.col("end") - pl.col("start"),
        )
        .drop_nulls("communicator")
        .sort("start")
    )  # fmt: skip
    return rows.with_columns(place=pl.int_range(pl.len()).over(_LANE))


def _processes(trace: Trace, calls: pl.DataFrame, own: pl.DataFrame) -> pl.DataFrame:
    """Return ``process, who``: each process of the trace, and the same process in the logs."""
    by_hash = calls.join(own, on=["communicator", "rank"]).select("process", "who")
    of_groups = own.drop_nulls("name").select(*_IN_GROUP, "who").unique()
    by_name = calls.join(of_groups.unique(_IN_GROUP, keep="none"), on=_IN_GROUP)
    every = [by_hash, _by_pid(trace, own), by_name.select("process", "who")]
    found = pl.concat(each.unique().unique("process", keep="none") for each in every)
    return found.unique("process", keep="first", maintain_order=True)


def _by_pid(trace: Trace, own: pl.DataFrame) -> pl.DataFrame:
    hosts = trace["reports"].select("report", "host")
    processes = trace["processes"].join(hosts, on="report", how="left")
    known = processes.select("process", "pid", "host").collect()
    try:
        found = log_processes(own.select("host", "pid"), known, "what the inspector logged")
    except UsageError:  # inside a container ids and hosts are others than outside
        return pl.DataFrame(schema={"process": pl.Int32, "who": pl.Int64})
    whose = own.select("host", "pid", "who").unique()
    return found.join(whose, on=["host", "pid"], nulls_equal=True).select("process", "who")


def _shifts(kernels: pl.DataFrame, own: pl.DataFrame) -> pl.DataFrame:
    """Return ``who, communicator, collective, shift``: sequence number less kernel position."""
    few = kernels.filter(pl.col("place") < _LOOKED_AT)
    found = [
        _shift_of(some, own.join(some.select(_LANE).head(1), on=_LANE, how="semi"))
        for some in few.partition_by(_LANE)
    ]
    return pl.concat(found) if found else pl.DataFrame(schema={"shift": pl.Int64})


def _shift_of(kernels: pl.DataFrame, records: pl.DataFrame) -> pl.DataFrame:
    """Return the shift of one rank's collective in a communicator; no row if several shifts fit."""
    length, more = pl.col("length"), pl.col("length_said") - pl.col("length")
    tried = kernels.select(*_LANE, "place", "length", "message_bytes").join(
        records.select("sequence", "message_bytes", "length"), how="cross", suffix="_said"
    ).group_by(shift=pl.col("sequence") - pl.col("place")).agg(
        pl.col(_LANE).first(), number=pl.len(),
        fits=(pl.col("message_bytes") == pl.col("message_bytes_said")).fill_null(value=True).all(),
        off=(more - more.median()).abs().mean(), varies=(length - length.median()).abs().mean(),
        more=more.median().abs() - _OFF_SHARE * length.median(),
    )  # fmt: skip
    off = pl.col("off")
    enough = (pl.col("number") >= _LEAST) & (2 * pl.col("number") >= pl.col("number").max())
    fitting = tried.filter(enough & pl.col("fits")).sort("off")
    best = fitting.with_columns(next_one=off.shift(-1)).head(1)
    is_alone = (_APART * off <= pl.col("next_one")).fill_null(value=True)
    is_close = (_APART * off <= pl.col("varies")) & (pl.col("more") <= _OFF_NS)
    return best.filter(is_close & is_alone).select(*_LANE, "shift")


def _joined(kernels: pl.DataFrame, own: pl.DataFrame, shifts: pl.DataFrame) -> pl.DataFrame:
    """Pair kernels with records; leave out collectives for which ranks disagree."""
    numbered = kernels.join(shifts, on=_LANE).with_columns(
        sequence=pl.col("place") + pl.col("shift")
    )
    said = own.select(*_LANE, "sequence", said="length", size_said="message_bytes")
    pairs = numbered.join(said, on=[*_LANE, "sequence"])
    one = pl.col("sequence").n_unique().over("match") == 1
    sound = (one | pl.col("match").is_null()) & (
        (pl.col("message_bytes") == pl.col("size_said")).fill_null(value=True)
    )
    return pairs.filter(sound.all().over("communicator", "collective"))


def _said(pairs: pl.DataFrame, number: int, kernels: pl.DataFrame) -> str:
    processes, logged = pairs["process"].n_unique(), kernels["process"].n_unique()
    sized = pairs["message_bytes"].count()
    by = " and ".join(pairs["by"].unique().sort())
    off = float((pairs["length"] - pairs["said"]).abs().median() or 0) / 1000  # type: ignore[arg-type]
    return (
        f"{number:,} collectives are joined to kernels of {processes} of {logged} recorded ranks, "
        f"by {by}, collective and number: sizes agree in all {sized:,} that have one, times differ "
        f"by {off:.1f} us in the median"
    )
