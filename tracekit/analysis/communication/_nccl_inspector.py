"""Collectives by NCCL's inspector: durations, bandwidths, stragglers, lost records, and kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracekit.analysis.calls import collective_calls, communicator_groups, hex_ids, log_processes
from tracekit.analysis.communication._bandwidth import middle, power_below, with_bandwidth
from tracekit.errors import MissingDataError, UndecidedError, UsageError
from tracekit.model import Answer, Trace

KEYS: Mapping[str, Sequence[str]] = {
    "size": ("collective", "message_bytes", "communicator"),
    "collective": ("collective", "communicator"),
    "rank": ("communicator", "rank"),
    "stage": ("stage", "collective", "communicator"),
    "iteration": ("iteration", "collective", "communicator"),
}
"""Keys to list collectives by."""

_OF_RUN = ("stage", "iteration")
"""Columns of a call that come from a run's timeline."""
_CALL = ("communicator", "collective", "sequence", "message")
"""What the records of one call have in common; ``message`` distinguishes messages, of which each
end is a call of its own."""
_OF_ALL = ("all_gather", "reduce_scatter")
"""Collectives whose traffic is that of all ranks."""
_DEFINED = ("all_reduce", *_OF_ALL, "broadcast", "reduce", "send_recv")
"""Operations for which NCCL logs a bandwidth; for all others it logs 0."""
_ALL_WAIT = ("all_reduce", *_OF_ALL, "all_to_all")
"""Collectives that no rank can leave before all have come."""
_SIZES = 16
_DIGITS = 2e-6
"""Bandwidths are logged with six decimals."""
_QUANTILES = {"duration_p50_ns": 0.5, "duration_p5_ns": 0.05, "duration_p95_ns": 0.95}
_NAMED = 3
_SPARE = ("duration_p5_ns", "duration_p95_ns", "duration_max_ns", "basis", "bytes",
          "algorithm_bandwidth_gb_s")  # fmt: skip
"""Columns that people read elsewhere, or in JSON."""


def nccl_inspector(
    records: pl.DataFrame,
    dropped: pl.DataFrame,
    by: str = "size",
    warnings: Sequence[str] = (),
    trace: Trace | None = None,
) -> Answer:
    """Return the answer of the command `nccl_inspector`: speed of collectives, and who waits.

    Records of one call share communicator, collective and sequence number. The participant with the
    shortest time came last, since it waited least for others. This is concluded only if all ranks
    were recorded, if no rank's time was taken on the host (from enqueueing on), and if every rank
    waits for all others (which broadcasts and reductions to a root do not).

    Parameters
    ----------
    records
        Records that each rank logged (`tracekit.sources.nccl_inspector.RECORD_SCHEMA`).
    dropped
        Number of records that ring buffers lost, as NCCL counts them (schema `DROPPED_SCHEMA`).
    by
        One of `KEYS`; stage and iteration need `trace`.
    warnings
        Sentences on records that were left out of the logs.
    trace
        A trace of some of these ranks, recorded at the same time; joined by `on_timeline`, or left
        out with a warning.

    Raises
    ------
    UsageError
        If the key is unknown, or if it needs a trace and none is given.
    MissingDataError
        If the logs contain no record.
    UndecidedError
        If `by` is stage or iteration, and `on_timeline` raises it.
    """
    if by not in KEYS:
        raise UsageError(
            f"collectives of the inspector have no key {by!r}", f"choose one of {', '.join(KEYS)}"
        )
    if records.is_empty():
        raise MissingDataError("these logs have no record of a collective")
    timeline = None
    if trace is not None:
        try:
            records, timeline = on_timeline(records, trace)
        except UndecidedError as error:
            if by in _OF_RUN:
                raise
            warnings = [*warnings, f"the run is left out, {error}"]
    elif by in _OF_RUN:
        raise UsageError(f"logs alone have no {by}", "give the run of some of their ranks: --run")
    numbered = _numbered(records)
    known = numbered.filter(~pl.col("repeated"))
    calls = _calls(known)
    each = _participants(known, calls)
    gaps = _gaps(numbered, dropped)
    ranks = _by_rank(each, gaps)
    rows = ranks if by == "rank" else _by_size(calls, each, KEYS[by])
    rows = _with_groups(rows, records)
    return Answer(
        rows=rows,
        readable=_readable(rows),
        meta={
            "records": records.height,
            "collectives": calls.filter(pl.col("message").is_null()).height,
            "compared": int(calls["compared"].sum()),
            "communicators": records["communicator"].n_unique(),
            **({"timeline": timeline} if timeline else {}),
            "missing": _missing(known, calls),
            "warnings": [*warnings, *_warnings(numbered, calls, gaps)],
        },
        title=_title(ranks, calls),
        command="nccl-inspector",
    )


def _with_groups(rows: pl.DataFrame, records: pl.DataFrame) -> pl.DataFrame:
    """Add ``group``, the name that the program gave each communicator, after ``communicator``."""
    groups = records.group_by("communicator").agg(group=pl.col("name").drop_nulls().first())
    joined = rows.join(groups, on="communicator", how="left", maintain_order="left")
    names = [name for name in rows.columns if name != "communicator"]
    at = rows.columns.index("communicator")
    return joined.select(*names[:at], "communicator", "group", *names[at:])


def _numbered(records: pl.DataFrame) -> pl.DataFrame:
    """Add ``message`` (id of a send or receive) and ``repeated`` (sequence number not unique)."""
    is_message = pl.col("peer").is_not_null()
    rows = records.with_columns(message=pl.when(is_message).then(pl.int_range(pl.len())))
    return rows.with_columns(repeated=pl.len().over(*_CALL, "rank") > 1)


def _only(name: str) -> pl.Expr:
    return pl.when(pl.col(name).n_unique() == 1).then(pl.col(name).first()).alias(name)


def _calls(records: pl.DataFrame) -> pl.DataFrame:
    """Return one row per collective call, from the records of all its ranks."""
    length, participants = pl.col("length"), pl.col("participants")
    on_one_host = (pl.col("host").n_unique() == 1) & (pl.col("start").null_count() == 0)
    return (
        records.group_by(_CALL, maintain_order=True)
        .agg(
            pl.col("message_bytes", "ranks").max(),
            *(pl.col(name).first() for name in _OF_RUN if name in records.columns),
            sizes=pl.col("message_bytes").n_unique(),
            participants=pl.len().cast(pl.Int64),
            duration=length.max(),
            shortest=length.min(),
            others_wait=(length - length.min()).sum() / (pl.len() - 1),
            alone=(length == length.min()).sum() == 1,
            late_rank=pl.col("rank").get(length.arg_min()),
            skew=pl.when(on_one_host).then(pl.col("start").max() - pl.col("start").min()),
            timed_alike=(pl.col("timing") != "collective_cpu").fill_null(value=True).all(),
            algorithm=_only("algorithm"),
            protocol=_only("protocol"),
        )
        .with_columns(is_complete=(participants == pl.col("ranks")) & (participants > 1))
        .with_columns(
            skew=pl.when("is_complete").then("skew"),
            compared=pl.col("collective").is_in(_ALL_WAIT)
            & pl.col("is_complete")
            & pl.col("timed_alike"),
        )
    )


def _participants(records: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Add ``wait`` (ns, for other ranks), ``last`` (it alone came last), ``caused`` to records.

    ``caused`` is the time that the other ranks of the call waited for a rank that came last.
    """
    of_call = calls.select(*_CALL, "compared", "shortest", "alone", "late_rank", "others_wait")
    late = pl.col("compared") & pl.col("alone") & (pl.col("rank") == pl.col("late_rank"))
    return records.join(
        of_call, on=list(_CALL), how="left", nulls_equal=True, maintain_order="left"
    ).with_columns(
        wait=pl.when("compared").then(pl.col("length") - pl.col("shortest")),
        last=late,
        caused=pl.when(late).then("others_wait").otherwise(0.0),
    )


# -- by size -----------------------------------------------------------------------------------


def _by_size(calls: pl.DataFrame, each: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    size = pl.col("message_bytes")
    many = size.n_unique().over("collective", "communicator") > _SIZES
    classes = calls.select(*_CALL, size_class=pl.when(many).then(power_below(size)).otherwise(size))
    groups = ["size_class" if key == "message_bytes" else key for key in keys]
    calls, each = (
        frame.join(classes, on=list(_CALL), nulls_equal=True, maintain_order="left")
        for frame in (calls, each)
    )
    typical = middle("message_bytes") if "size_class" in groups else _only("message_bytes")
    counted = calls.filter(pl.col("compared") | ~pl.col("compared").any().over(groups))
    table = (
        calls.group_by(groups)
        .agg(pl.len().cast(pl.Int64).alias("count"), pl.col("compared").sum().cast(pl.Int64))
        .join(counted.group_by(groups).agg(*_measures(), typical), on=groups, nulls_equal=True)
        .join(each.group_by(groups).agg(wait_ns=middle("wait")), on=groups, nulls_equal=True)
        .join(_stragglers(calls, groups), on=groups, how="left", nulls_equal=True)
    )
    table = with_traffic(table.with_columns(n="ranks"), "duration_p50_ns").with_columns(
        transfer_bus_bandwidth_gb_s=pl.when(pl.col("transfer_ns") > 0).then(
            pl.col("bus_bandwidth_gb_s") * pl.col("duration_p50_ns") / pl.col("transfer_ns")
        )
    )
    named = table.drop("message_bytes").rename({"size_class": "message_bytes"}, strict=False)
    return named.sort(list(keys), nulls_last=True).select(
        *keys, "ranks", "count", "compared", *_QUANTILES, "duration_max_ns", "basis", "bytes",
        "algorithm_bandwidth_gb_s", "bus_bandwidth_gb_s", "transfer_ns",
        "transfer_bus_bandwidth_gb_s", "wait_ns", "skew_ns", "straggler_rank", "straggler_share",
        "algorithm", "protocol",
    )  # fmt: skip


def _measures() -> list[pl.Expr]:
    fewest, most = pl.col("participants").min(), pl.col("participants").max()
    seen = (
        pl.when(fewest == most)
        .then(most.cast(pl.String))
        .otherwise(pl.format("{} to {}", fewest, most))
    )
    basis = (
        pl.when(most == 1)
        .then(pl.lit("one participant's kernel time, waiting included"))
        .otherwise(pl.format("longest of {} of {} ranks' own times", seen, pl.col("ranks").max()))
    )
    return [
        *(middle("duration", share).alias(name) for name, share in _QUANTILES.items()),
        pl.col("duration").max().alias("duration_max_ns"),
        basis.alias("basis"),
        _only("ranks"),
        pl.when(pl.col("compared").all()).then(middle("shortest")).alias("transfer_ns"),
        middle("skew").alias("skew_ns"),
        _only("algorithm"),
        _only("protocol"),
    ]


def _stragglers(calls: pl.DataFrame, groups: Sequence[str]) -> pl.DataFrame:
    """Return per group the rank that most often came last alone, and in which share of calls."""
    rank = pl.when("alone").then("late_rank").alias("straggler_rank")
    return (
        calls.filter("compared")
        .group_by(*groups, rank)
        .agg(times=pl.len())
        .with_columns(straggler_share=pl.col("times") / pl.col("times").sum().over(groups))
        .drop_nulls("straggler_rank")
        .sort("times", "straggler_rank", descending=[True, False])
        .unique(list(groups), keep="first", maintain_order=True)
        .drop("times")
    )


def _readable(rows: pl.DataFrame) -> pl.DataFrame:
    known = [each.name for each in rows if each.null_count() < rows.height]
    return rows.select(name for name in known if name not in _SPARE)


# -- bandwidth ---------------------------------------------------------------------------------


def with_traffic(rows: pl.DataFrame, duration: str) -> pl.DataFrame:
    """Add the bytes moved by collectives, by NCCL's definition of traffic, and their bandwidths.

    Parameters
    ----------
    rows
        ``collective``, ``n`` (ranks; null where unknown), ``message_bytes``.
    duration
        Name of the column of durations, ns.

    Returns
    -------
    `rows` with ``bytes``, ``algorithm_bandwidth_gb_s`` and ``bus_bandwidth_gb_s``; null where NCCL
    defines none.
    """
    is_message = pl.col("collective").is_in(["send", "recv"])
    operation = pl.when(is_message).then(pl.lit("send_recv")).otherwise("collective")
    of_all = pl.col("collective").is_in(_OF_ALL)
    size = pl.col("message_bytes")
    return with_bandwidth(
        rows.with_columns(operation=operation).with_columns(
            bytes=pl.when(pl.col("operation").is_in(_DEFINED)).then(
                pl.when(of_all).then(size * pl.col("n")).otherwise(size)
            )
        ),
        pl.col(duration),
    )


def _differ(records: pl.DataFrame) -> int:
    """Count records whose logged bandwidth differs from their bytes divided by their time."""
    found = with_traffic(records.with_columns(n="ranks"), "length")
    differs = [
        (pl.col(computed) - pl.col(logged)).abs() > _DIGITS * (1 + pl.col(computed))
        for computed, logged in (
            ("algorithm_bandwidth_gb_s", "algorithm_bandwidth"),
            ("bus_bandwidth_gb_s", "bus_bandwidth"),
        )
    ]
    return found.filter(pl.any_horizontal(differs)).height


# -- by rank -----------------------------------------------------------------------------------


def _by_rank(each: pl.DataFrame, gaps: pl.DataFrame) -> pl.DataFrame:
    keys = KEYS["rank"]
    return (
        each.filter(pl.col("message").is_null())
        .group_by(keys)
        .agg(
            pl.col("host", "pid", "ranks").first(),
            pl.col("compared", "last").sum().cast(pl.Int64),
            records=pl.len().cast(pl.Int64),
            caused_ns=pl.col("caused").sum().round().cast(pl.Int64),
            waited_ns=pl.col("wait").sum(),
            duration_p50_ns=middle("length"),
        )
        .join(gaps, on=keys, how="left")
        .with_columns(
            last_share=pl.when(pl.col("compared") > 0).then(pl.col("last") / pl.col("compared")),
            caused_ns=pl.when(pl.col("compared") > 0).then("caused_ns"),
            waited_ns=pl.when(pl.col("compared") > 0).then("waited_ns"),
        )
        .sort("caused_ns", *keys, descending=[True, False, False], nulls_last=True)
        .select(
            *keys, "host", "pid", "ranks", "records", "compared", "last", "last_share", "caused_ns",
            "waited_ns", "duration_p50_ns", "missing", "elsewhere", "dropped",
        )
    )  # fmt: skip


def _gaps(records: pl.DataFrame, dropped: pl.DataFrame) -> pl.DataFrame:
    """Count, by rank and communicator, sequence numbers without a record of the rank (``missing``).

    For each collective, every number from the lowest to the highest that any rank recorded is
    expected; ``numbers`` counts these, and ``elsewhere`` the missing ones that another rank has.
    """
    rows = records.filter(pl.col("message").is_null())
    one = ["communicator", "collective"]
    sequence = pl.col("sequence")
    numbers = rows.group_by(one).agg(
        all=sequence.max() - sequence.min() + 1, seen=sequence.n_unique().cast(pl.Int64)
    )
    counted = rows.group_by(*one, "rank").agg(own=sequence.n_unique().cast(pl.Int64))
    return (
        rows.select("communicator", "rank").unique()
        .join(numbers, on="communicator")
        .join(counted, on=[*one, "rank"], how="left")
        .with_columns(pl.col("own").fill_null(0))
        .group_by("communicator", "rank")
        .agg(
            numbers=pl.col("all").sum(),
            missing=(pl.col("all") - pl.col("own")).sum(),
            elsewhere=(pl.col("seen") - pl.col("own")).sum(),
        )
        .join(dropped, on=["communicator", "rank"], how="left")
    )  # fmt: skip


# -- what is known -----------------------------------------------------------------------------


def _title(ranks: pl.DataFrame, calls: pl.DataFrame) -> str:
    worst = ranks.row(0, named=True) if ranks.height else None
    if worst is not None and worst["last"]:
        rank = f"rank {worst['rank']} of {worst['communicator']}"
        times = f"{worst['last']:,} of {worst['compared']:,} collectives"
        wait = f"{worst['caused_ns'] / 1e6:,.2f} ms"
        return f"{rank} comes last alone at {times}, for which each other rank waits {wait}"
    count = calls.filter(pl.col("message").is_null()).height
    return f"{_collectives(count)}, whose last rank is unknown"


def _collectives(count: int) -> str:
    return f"{count:,} collective{'' if count == 1 else 's'}"


def _missing(records: pl.DataFrame, calls: pl.DataFrame) -> list[str]:
    gaps = []
    rows = records.filter(pl.col("message").is_null())
    absent = (
        rows.group_by("communicator")
        .agg(absent=pl.col("ranks").max() - pl.col("rank").n_unique().cast(pl.Int64))
        .filter(pl.col("absent") > 0)
        .sort("communicator")
    )
    if absent.height:
        named = ", ".join(f"{count:,} of {name}" for name, count in absent.head(_NAMED).rows())
        more = ", ..." if absent.height > _NAMED else ""
        gaps.append(f"ranks without records ({named}{more}): give the logs of all hosts")
    collectives = calls.filter(pl.col("message").is_null())
    partial = collectives.filter(~pl.col("compared")).height
    if partial:
        gaps.append(
            f"who waits in {partial:,} of {_collectives(collectives.height)}: not all their ranks "
            "have a record timed by the GPU, or ranks do not wait for all others"
        )
    if rows["start"].null_count() == rows.height:
        gaps.append("when collectives began, and so their skew: NCCL_INSPECTOR_DUMP_VERBOSE=1")
    elif collectives["skew"].null_count():
        gaps.append(
            f"skew of {_collectives(collectives['skew'].null_count())}: clocks of hosts are not "
            "compared, and each record must have the start of its kernel"
        )
    return gaps


def _warnings(records: pl.DataFrame, calls: pl.DataFrame, gaps: pl.DataFrame) -> list[str]:
    texts = []
    counted = ("numbers", "missing", "elsewhere", "dropped")
    numbers, missing, elsewhere, dropped = gaps.select(pl.col(counted).sum()).row(0)
    if missing:
        texts.append(
            f"{missing:,} of {numbers:,} sequence numbers have no record: "
            + ", ".join(_reasons(elsewhere, missing - elsewhere))
            + (f", NCCL counts {dropped:,} as overwritten" if gaps["dropped"].count() else "")
            + " (--by rank)"
        )
    repeated = int(records["repeated"].sum())
    if repeated:
        texts.append(
            f"{repeated:,} records repeat a sequence number of their rank and were left out: give "
            "the logs of one job, each once"
        )
    differ = _differ(records)
    if differ:
        texts.append(
            f"of {differ:,} of {records.height:,} records NCCL logs another bandwidth than follows "
            "from size and time: tables show the latter"
        )
    unequal = calls.filter(pl.col("sizes") > 1).height
    if unequal:
        texts.append(f"ranks gave {_collectives(unequal)} different sizes: the largest counts")
    timed = records.filter(pl.col("timing").is_not_null(), pl.col("timing") != "kernel_gpu").height
    if timed:
        texts.append(
            f"{timed:,} of {records.height:,} records were timed on the host, not by the GPU"
        )
    return texts


def _reasons(elsewhere: int, nowhere: int) -> list[str]:
    """Return why records are missing, in words.

    `elsewhere` is the number of missing records that another rank has, `nowhere` of those none has.
    """
    lost = (
        f"{elsewhere:,} that other ranks recorded are lost (rings keep 1,024: "
        "NCCL_INSPECTOR_DUMP_COLL_RING_SIZE)"
    )
    unseen = (
        f"{nowhere:,} that no rank recorded are lost, smaller than "
        "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES (8,192 by default) or not timed by the GPU"
    )
    return [text for count, text in ((elsewhere, lost), (nowhere, unseen)) if count]


_LANE = ["who", "communicator", "collective"]
_IN_GROUP = ["name", "rank", "ranks"]
_LOOKED_AT = 64
"""Least number of kernels of a rank's collective from which the shift of its numbers is found."""
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
    process id and host, else by rank in a uniquely named group; communicators are matched by hash,
    else by name. For each kind of collective, kernels are paired with records in order of sequence
    numbers. The first kernel may belong to any record: that shift is taken at which all sizes agree
    and the durations agree best. Stage and step of one rank's kernel apply to the whole call.

    Parameters
    ----------
    records
        Records that each rank logged (`tracekit.sources.nccl_inspector.RECORD_SCHEMA`).
    trace
        A trace of the same job, or of some of its ranks.

    Returns
    -------
    `records` with ``stage`` and ``iteration`` (null if unknown); and a sentence with the number of
    joined records and the evidence used.

    Raises
    ------
    UndecidedError
        If no collective has a clear shift.
    """
    rows = records.with_row_index("row").with_columns(hex_ids(records["communicator"]))
    process = pl.struct("host", "pid").rank("dense").cast(pl.Int64)
    collectives = rows.filter(pl.col("peer").is_null()).with_columns(who=process)
    kernels = _kernels(trace, collectives)
    shifts = _shifts(kernels, collectives)
    if shifts.is_empty():
        raise UndecidedError(
            "no collective of these logs matches one of this run with certainty",
            "give logs and a run of the same time, with collectives of 8 KiB and more",
        )
    pairs = _joined(kernels, collectives, shifts)
    call = ["communicator", "collective", "sequence"]
    places = pairs.group_by(call).agg(
        pl.col("stage").first(), pl.col("iteration").drop_nulls().first()
    )
    found = (
        rows.select("row", *call)
        .join(places, on=call, how="left", maintain_order="left")
        .select(*_FOUND)
    )
    joined = records.with_columns(found["stage"], found["iteration"])
    return joined, _matching_note(pairs, places.height, kernels)


def _kernels(trace: Trace, records: pl.DataFrame) -> pl.DataFrame:
    """Return collective kernels with ``place`` (position in order of start), ``length`` (ns)."""
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
    hashes = records.select("who", "communicator", hashed="communicator").unique()
    names = records.drop_nulls("name").select("who", "name", called="communicator").unique()
    rows = (
        named.join(_processes(trace, named, records), on="process")
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


def _processes(trace: Trace, calls: pl.DataFrame, records: pl.DataFrame) -> pl.DataFrame:
    """Return ``process, who``: each process of the trace, with the id that the logs use for it."""
    by_hash = calls.join(records, on=["communicator", "rank"]).select("process", "who")
    of_groups = records.drop_nulls("name").select(*_IN_GROUP, "who").unique()
    by_name = calls.join(of_groups.unique(_IN_GROUP, keep="none"), on=_IN_GROUP)
    every = [by_hash, _by_pid(trace, records), by_name.select("process", "who")]
    found = pl.concat(each.unique().unique("process", keep="none") for each in every)
    return found.unique("process", keep="first", maintain_order=True)


def _by_pid(trace: Trace, records: pl.DataFrame) -> pl.DataFrame:
    hosts = trace["reports"].select("report", "host")
    processes = trace["processes"].join(hosts, on="report", how="left")
    known = processes.select("process", "pid", "host").collect()
    try:
        found = log_processes(records.select("host", "pid"), known, "what the inspector logged")
    except UsageError:  # inside a container ids and hosts are others than outside
        return pl.DataFrame(schema={"process": pl.Int32, "who": pl.Int64})
    logged = records.select("host", "pid", "who").unique()
    return found.join(logged, on=["host", "pid"], nulls_equal=True).select("process", "who")


def _shifts(kernels: pl.DataFrame, records: pl.DataFrame) -> pl.DataFrame:
    """Return per rank (``who``) and collective the first kernel's sequence number, ``shift``."""
    few = kernels.filter(pl.col("place") < _LOOKED_AT)
    found = [
        _shift_of(some, records.join(some.select(_LANE).head(1), on=_LANE, how="semi"))
        for some in few.partition_by(_LANE)
    ]
    return pl.concat(found) if found else pl.DataFrame(schema={"shift": pl.Int64})


def _shift_of(kernels: pl.DataFrame, records: pl.DataFrame) -> pl.DataFrame:
    """Return the log's sequence number of a rank's first kernel; no row if unclear."""
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


def _joined(kernels: pl.DataFrame, records: pl.DataFrame, shifts: pl.DataFrame) -> pl.DataFrame:
    """Pair kernels with records of equal number; drop collectives where ranks or sizes disagree."""
    numbered = kernels.join(shifts, on=_LANE).with_columns(
        sequence=pl.col("place") + pl.col("shift")
    )
    logged = records.select(*_LANE, "sequence", said="length", size_said="message_bytes")
    pairs = numbered.join(logged, on=[*_LANE, "sequence"])
    one = pl.col("sequence").n_unique().over("match") == 1
    sound = (one | pl.col("match").is_null()) & (
        (pl.col("message_bytes") == pl.col("size_said")).fill_null(value=True)
    )
    return pairs.filter(sound.all().over("communicator", "collective"))


def _matching_note(pairs: pl.DataFrame, number: int, kernels: pl.DataFrame) -> str:
    processes, logged = pairs["process"].n_unique(), kernels["process"].n_unique()
    sized = pairs["message_bytes"].count()
    by = " and ".join(pairs["by"].unique().sort())
    off = float((pairs["length"] - pairs["said"]).abs().median() or 0) / 1000  # type: ignore[arg-type]
    return (
        f"{number:,} collectives are joined to kernels of {processes} of {logged} recorded ranks, "
        f"by {by}, collective and number: sizes agree in all {sized:,} that have one, times differ "
        f"by {off:.1f} us in the median"
    )
