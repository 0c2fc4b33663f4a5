"""Cost of collectives: latency, bandwidth, waiting and skew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.analysis.calls import (
    ASSUMED,
    MEMBERS,
    OF_GROUPS,
    Found,
    collective_calls,
    communicator_groups,
    find_collectives,
    in_stretch,
    members_of_rows,
    only_value,
    process_ranks,
    unrecorded_ranks,
    unseen_participants,
    unsized_of_others,
    why_unsized,
)
from tracekit.analysis.communication._bandwidth import middle, power_below, with_bandwidth
from tracekit.analysis.communication.questions import COLLECTIVE_KEYS
from tracekit.analysis.facts import OF_PROCESSES, chosen_keys, largest
from tracekit.engine import cut, union_length
from tracekit.model import COLLECTIVE, EVIDENCE, Answer, Trace, path_texts, with_clocks
from tracekit.support.wording import count, duration, first_line, part_text, summary, text_of

if TYPE_CHECKING:
    from tracekit.machine import NcclLog


__all__ = ["collective_calls", "collectives"]

_DEFAULT = COLLECTIVE_KEYS[:4]
_OF_COMMUNICATOR = ("group", "parallelism", "members")
_SIZES = 16
"""Maximum number of distinct sizes listed one by one; more are grouped by powers of two."""
_SENT = ("algorithm", "least_gpu_bytes", "most_gpu_bytes")
_SHARES = "bound_share: median of modelled bound_ns / transfer_ns of each collective"
_OVER = 1.05
"""Above this share of the bound a size, a peak or the model is wrong: peaks are known to 5 %."""
_QUANTILES = {"duration_p5_ns": 0.05, "duration_p50_ns": 0.5, "duration_p95_ns": 0.95}
_MEASURES = (
    "count", "participants", "ranks", "duration_p50_ns", "duration_p5_ns", "duration_p95_ns",
    "duration_max_ns", "basis", "algorithm_bandwidth_gb_s", "bus_bandwidth_gb_s", "transfer_ns",
    "wait_ns", "skew_ns", "bound_ns", "bound_share", "straggler_device", "straggler_rank",
    "straggler_share", "bytes_source", "evidence",
)  # fmt: skip


def collectives(
    trace: Trace,
    *,
    log: NcclLog | None = None,
    sizes: Mapping[str, int] | None = None,
    by: str | Sequence[str] = _DEFAULT,
    sent: pl.DataFrame | None = None,
) -> Answer:
    """Return the answer of the command `collectives`: cost of collectives, by the keys `by`.

    The duration of a collective is the time from the first start to the last end of its
    participants. If only one participant was found in the run, the duration is that participant's
    kernel time, which includes waiting for the others; the column ``basis`` marks this. If any
    collective of a row has several participants, only those collectives count for the row's times
    and bandwidths. With ranks on several hosts there is no skew, since their clocks differ, and the
    duration is the longest participant's.

    Grouped by rank or node, a collective counts once for each rank or node that takes part, and
    ``wait_ns`` is the wait of that rank or node; by other keys a collective counts once. If a kind
    of collective has more than 16 distinct sizes, a row combines the sizes from one power of two to
    the next, and ``bytes`` is their median. By ``part`` (dispatch, combine or wait of experts'
    kernels), the table ``experts`` is the result of `expert_balance`.

    Parameters
    ----------
    log, sizes
        As for `collective_calls`.
    by
        Keys, as a sequence or separated by commas.
    sent
        Bytes that GPUs send in collectives, and the least times that links allow, from
        `Traffic.sent`. None: the columns of bytes sent are left out, and those times are null.

    Raises
    ------
    UsageError
        If a key is unknown, or as `collective_calls` raises it.
    """
    keys = list(chosen_keys(by, COLLECTIVE_KEYS, "collectives"))
    found = find_collectives(trace, log, sizes)
    found = replace(found, rows=in_stretch(found.rows, trace.stretch))
    groups = communicator_groups(trace, found.rows)
    named = found.rows.join(groups, on="communicator", how="left", maintain_order="left")
    rows, meta = _summary(trace, _with_sent(named, sent), keys), _meta(trace, found, log)
    meta["warnings"] += _faster_than_links(rows)
    if rows["bound_share"].count():
        meta["shares"] = _SHARES
    tables = {}
    if "part" in keys and not rows["part"].count():
        meta["missing"] += ["part: no kernel is named after experts' dispatch or combine"]
    elif "part" in keys:
        tables["experts"], why = expert_balance(trace, found.rows)
        meta["missing"] += [] if why is None else [why]
        meta |= {} if why else {"experts": _uneven(tables["experts"])}
    return Answer(
        rows=rows,
        meta=meta,
        tables=tables,
        listed=[*tables],
        title="collectives",
        empty="no collectives were recorded",
        command="collectives",
    )


def _uneven(layers: pl.DataFrame) -> str:
    worst = layers.sort("imbalance", descending=True, nulls_last=True).row(0, named=True)
    if worst["imbalance"] is None:
        return "between dispatch and combine nothing computes"
    where = "" if worst["layer"] is None else f" in {worst['layer']}"
    return (
        f"between dispatch and combine the busiest of {worst['ranks']} ranks computes "
        f"{worst['imbalance']:.2f} times as long as the mean{where}"
    )


# -- the collectives ---------------------------------------------------------------------------


def _with_sent(calls: pl.DataFrame, sent: pl.DataFrame | None) -> pl.DataFrame:
    """Add ``bound_ns``, the least time that links allow, and bytes sent if known."""
    if sent is None:
        return calls.with_columns(bound_ns=pl.lit(None, pl.Int64))
    is_told = calls["algorithm"].is_not_null().any()
    if not is_told and not sent["algorithms"].str.contains(" or ").any():
        sent = sent.select("op", "bound_ns")
    joined = calls.join(sent, on="op", how="left", maintain_order="left")
    return joined.with_columns(algorithm=pl.coalesce("^algorithms?$"))


def _instances(calls: pl.DataFrame, reports: pl.DataFrame) -> pl.DataFrame:
    """Return a row per collective; a call without matched calls of other ranks is one by itself."""
    length = pl.col("end") - pl.col("start")
    timed = with_clocks(calls, reports).with_row_index("row")
    alone = -1 - pl.col("row").cast(pl.Int64)
    start = pl.col("start")
    # Of calls that follow each other at once all but the first begin together: nobody is last.
    last = pl.when((start == start.max()).sum() == 1).then(start.arg_max())
    return (
        timed.with_columns(
            instance=pl.coalesce("match", alone),
            own=length,
            participant=pl.coalesce("device", "process"),
            collective=pl.col("collective").cast(COLLECTIVE),
        )
        .group_by("instance", maintain_order=True)
        .agg(
            pl.col("library", "stage", "iteration", "part").first(),
            *(
                pl.col(name).drop_nulls().first()
                for name in (*_OF_COMMUNICATOR, *_sent_columns(calls))
            ),
            # One that knows its operation better than the kernel's name comes first.
            collective=pl.col("collective").min(),
            communicator=pl.col("communicator").drop_nulls().first(),
            bytes=pl.col("bytes").max(),
            bytes_source=pl.col("bytes_source").drop_nulls().first(),
            bound=pl.col("bound_ns").max(),
            ranks=pl.col("ranks").max(),
            participants=pl.col("participant").n_unique().cast(pl.Int64),
            common=pl.col("clock").n_unique() == 1,
            span=pl.col("end").max() - pl.col("start").min(),
            longest=pl.col("own").max(),
            transfer=pl.col("own").min(),
            waits=pl.col("own") - pl.col("own").min(),
            processes=pl.col("process"),
            skew=pl.col("start").max() - pl.col("start").min(),
            late_device=pl.col("device").get(last),
            late_rank=pl.col("rank").get(last),
        )
        .with_columns(
            duration=pl.when((pl.col("participants") > 1) & pl.col("common"))
            .then("span")
            .otherwise("longest")
        )
    )


def _summary(trace: Trace, calls: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    each = _with_classes(_instances(calls, trace.read("reports")))
    of_processes = [key for key in keys if key in OF_PROCESSES]
    if of_processes:
        each = _by_process(each, process_ranks(trace).select("process", *of_processes))
    groups, waits = ["class" if key == "bytes" else key for key in keys], pl.col("waits").list
    several = pl.col("participants") > 1
    each = each.with_columns(counts=several | ~several.any().over(groups))
    counted = each.filter("counts").group_by(groups).agg(_measures(by_bytes="bytes" in keys))
    table = (
        each.group_by(groups)
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            *map(only_value, _sent_columns(calls)),
            *members_of_rows(),
            time_ns=(waits.sum() + waits.len() * pl.col("transfer")).sum(),
        )
        .join(counted, on=groups, nulls_equal=True)
        .join(_stragglers(each, groups), on=groups, how="left", nulls_equal=True)
    )
    table = _with_bandwidth(table, _size_of_run(trace, calls)).with_columns(
        # Of some ranks the shortest one may have waited for others that were not seen.
        bound_share=pl.when(pl.col("fewest") == pl.col("n")).then("bound_share")
    )
    order = [name for name in groups if name != "iteration"]
    first = [name for name in groups if name == "iteration"]
    more = [*(MEMBERS if {*OF_GROUPS[1:]} & {*keys} else ()), *["time_ns"] * ("part" in keys)]
    columns = dict.fromkeys([*keys, *more, "bytes", *_MEASURES, *_sent_columns(calls)])
    return (
        table.sort([*first, *order], nulls_last=True)
        .with_columns(pl.col("evidence").cast(EVIDENCE))
        .select(list(columns))
    )


def _sent_columns(calls: pl.DataFrame) -> tuple[str, ...]:
    return _SENT if "least_gpu_bytes" in calls.columns else ()


def _by_process(each: pl.DataFrame, owners: pl.DataFrame) -> pl.DataFrame:
    """Return a row per collective and rank (or node) in it, with its wait for the others, ns.

    `owners` has the rank or node of each process.
    """
    keys = owners.columns[1:]
    members = each.select("instance", "waits", process="processes").explode("waits", "process")
    owned = members.join(owners, on="process", how="left", maintain_order="left")
    waits = owned.group_by("instance", *keys, maintain_order=True).agg("waits")
    return each.drop("waits", "processes").join(waits, on="instance", maintain_order="left_right")


def _with_classes(each: pl.DataFrame) -> pl.DataFrame:
    """Add ``class``: the size in bytes or, if there are many sizes, the power of two below it."""
    of = ["library", "collective", "communicator"]
    many = pl.col("bytes").n_unique().over(of) > _SIZES
    return each.with_columns(
        pl.when(many).then(power_below(pl.col("bytes"))).otherwise("bytes").alias("class")
    )


def _measures(*, by_bytes: bool) -> list[pl.Expr]:
    several = pl.col("participants") > 1
    return [
        *(
            pl.col("duration").quantile(q, "nearest").cast(pl.Int64).alias(name)
            for name, q in _QUANTILES.items()
        ),
        pl.col("duration").max().alias("duration_max_ns"),
        (middle("bytes") if by_bytes else only_value("bytes")).alias("bytes"),
        _source().alias("bytes_source"),
        pl.when(pl.col("bytes_source").is_in(["user", ASSUMED]).any())
        .then(pl.lit("modelled"))
        .otherwise(pl.lit("measured"))
        .alias("evidence"),
        middle("participants").alias("participants"),
        pl.col("participants").min().alias("fewest"),
        pl.col("participants").max().alias("most"),
        only_value("ranks").alias("ranks"),
        pl.col("common").all().alias("common"),
        only_value("collective").alias("operation"),
        only_value("library").alias("of_library"),
        pl.when(several.all()).then(middle("transfer")).alias("transfer_ns"),
        pl.when(several.all())
        .then(pl.col("waits").list.explode().quantile(0.5, "nearest"))
        .cast(pl.Int64)
        .alias("wait_ns"),
        pl.when((several & pl.col("common")).all()).then(middle("skew")).alias("skew_ns"),
        pl.when(pl.col("bound").is_not_null().all()).then(middle("bound")).alias("bound_ns"),
        pl.when(pl.col("bound").is_not_null().all() & (pl.col("transfer") > 0).all())
        .then((pl.col("bound") / pl.col("transfer")).median())
        .alias("bound_share"),
    ]


def _source() -> pl.Expr:
    known = pl.col("bytes_source").drop_nulls()
    return pl.when(known.n_unique() > 1).then(pl.lit("mixed")).otherwise(known.first())


def _stragglers(each: pl.DataFrame, groups: Sequence[str]) -> pl.DataFrame:
    """Return per group the one GPU and rank that enter last most often, and how often (share)."""
    seen = each.filter((pl.col("participants") > 1) & pl.col("common"))
    columns = ["late_device", "late_rank"]
    return (
        seen.group_by(*groups, *columns)
        .agg(pl.len().alias("times"))
        .with_columns(straggler_share=pl.col("times") / pl.col("times").sum().over(groups))
        .filter(pl.any_horizontal(pl.col(columns).is_not_null()))
        .filter(pl.col("times") == pl.col("times").max().over(groups))
        .filter(pl.len().over(groups) == 1)
        .rename({"late_device": "straggler_device", "late_rank": "straggler_rank"})
        .drop("times")
    )


# -- bandwidth ---------------------------------------------------------------------------------


def _size_of_run(trace: Trace, calls: pl.DataFrame) -> dict[str, int]:
    """Return library -> number of participants of a collective of all ranks of the job.

    It is empty if some ranks of the job were not recorded.
    """
    if trace.once(unrecorded_ranks):
        return {}
    active = trace["devices"].filter("active").select(pl.len()).collect().item()
    seen = calls.group_by("library").agg(
        devices=pl.col("device").n_unique(), processes=pl.col("process").n_unique()
    )
    return {
        library: processes if library == "mpi" else max(active, devices)
        for library, devices, processes in seen.rows()
    }


def _with_bandwidth(table: pl.DataFrame, sizes: Mapping[str, int]) -> pl.DataFrame:
    everyone = pl.col("of_library").replace_strict(
        dict(sizes), default=None, return_dtype=pl.Int64
    ) if sizes else pl.lit(None, pl.Int64)  # fmt: skip
    is_everyone = (pl.col("fewest") == everyone) & (everyone > 1)
    table = table.with_columns(
        assumed=(pl.col("ranks").is_null() & is_everyone).fill_null(value=False)
    ).with_columns(
        n=pl.coalesce("ranks", pl.when("assumed").then("fewest")).cast(pl.Int64), basis=_basis()
    )
    return with_bandwidth(table, pl.col("duration_p50_ns"))


def _faster_than_links(rows: pl.DataFrame) -> list[str]:
    """Return warnings on rows whose transfers are faster than the peak of their links."""
    faster = rows.filter(pl.col("bound_share") > _OVER).height
    text = (
        f"faster than its links can be: {count(faster, 'row')}; sizes, peaks or the algorithm are"
        " not those of this run, so do not rely on bounds"
    )
    return [text] if faster else []


def _basis() -> pl.Expr:
    """Return a text on how durations were measured: over matched participants, or on one alone."""
    fewest, most, ranks = pl.col("fewest"), pl.col("most"), pl.col("ranks")
    seen = (
        pl.when(fewest == most)
        .then(most.cast(pl.String))
        .otherwise(pl.format("{} to {}", fewest, most))
    )
    unit = pl.when(pl.col("of_library") == "mpi").then(pl.lit("call")).otherwise(pl.lit("kernel"))
    return (
        pl.when(most == 1)
        .then(pl.format("one participant's {} time, waiting included", unit))
        .when(~pl.col("common"))
        .then(pl.format("longest of {} participants' own times; their clocks differ", seen))
        .when(fewest == ranks)
        .then(pl.format("span of all {} ranks", ranks))
        .when(ranks.is_not_null())
        .then(pl.format("span of {} of {} ranks", seen, ranks))
        .when("assumed")
        .then(pl.format("span of {} participants, taken as all ranks", seen))
        .otherwise(pl.format("span of {} participants of an unknown number", seen))
    )


# -- what is known -----------------------------------------------------------------------------


def _meta(trace: Trace, found: Found, log: NcclLog | None) -> dict[str, Any]:
    rows = found.rows
    sources = rows.drop_nulls("bytes_source").group_by("bytes_source").len().sort("bytes_source")
    groups = rank_groups(rows, process_ranks(trace).select("process", "rank"))
    noted = (*(log.warnings if log is not None else ()), *found.notes)
    warnings = [*noted, *describe_groups(groups)]
    return {
        "calls": rows.height,
        "sized": dict(sources.rows()),
        "matched": int(rows["match"].count()),
        "collectives": rows["match"].drop_nulls().n_unique(),
        "missing": [*_missing_sizes(trace, rows), *_missing_participants(trace, rows)],
        "warnings": list(dict.fromkeys(warnings)),
    }


def _missing_sizes(trace: Trace, rows: pl.DataFrame) -> list[str]:
    """Return notes: how many collectives have no known size, the reason, and how to record it."""
    nccl = rows.filter((pl.col("library") == "nccl") & pl.col("bytes").is_null())
    found = unsized_of_others(rows)
    if nccl.height:
        of_all = rows.filter(pl.col("library") == "nccl").height
        problem = f"{nccl.height:,} of {of_all:,} collective kernels are of unknown size"
        found.insert(0, f"{problem}: {why_unsized(trace)}, or give --nccl-log or --bytes")
    return found


def _missing_participants(trace: Trace, rows: pl.DataFrame) -> list[str]:
    alone, unseen = rows.filter(pl.col("match").is_null()), unseen_participants(trace, rows)
    if alone.is_empty():
        of_seen = "transfer_ns may be too long, wait_ns and skew_ns too short"
        return [f"{unseen}: if one that was not recorded is the last, {of_seen}"] * bool(unseen)
    number = "all" if alone.height == rows.height else f"{alone.height:,}"
    problem = f"of {number} collectives one participant is known, whose time includes waiting"
    how = "record all ranks, in one report or several ingested as one run"
    several = alone.filter(pl.col("communicator").is_null())["process"].n_unique() > 1
    if several:
        how += (
            "; where all are, their calls end no more together than they start, and only payloads"
            " (NCCL 2.16 or later, `--include-blobs=true`) or a log show which are of one group"
        )
    return [f"{problem}: {how}"]


# -- groups of ranks that were found for calls without a named communicator


_SHOWN = 4
"""Maximum number of groups listed per size."""
_PASSES = ("FP", "BP", "ME")


def rank_groups(calls: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Infer communicators from end times: groups of ranks whose collectives end together.

    Only calls without a named communicator are grouped. `calls` are participants of collectives,
    from `collective_calls`; `ranks` has ``process, rank`` (a process without a rank is named by its
    device).

    Returns
    -------
    ``members`` (sorted), ``of`` (``rank`` or ``device``), ``size``, ``calls`` (number that they ran
    together), ``parallelism`` (``tensor`` if the calls belong to forward or backward pass,
    ``pipeline`` if they are messages of two ranks, ``data`` if they belong to the weight update,
    null if mixed); ``ends_ns`` and ``arrivals_ns``: median spread of the ends and of the starts of
    a call, ns.
    """
    unnamed = calls.filter(pl.col("communicator").is_null() & pl.col("match").is_not_null())
    known = unnamed.drop("rank").join(ranks, on="process", how="left")
    is_named = known["rank"].null_count() == 0
    member = pl.col("rank") if is_named else pl.coalesce("device", "process")
    stage = pl.col("stage").cast(pl.String)
    each = known.group_by("match").agg(
        members=member.sort(),
        message=(pl.col("collective") == "send_recv").all(),
        in_pass=stage.is_in(_PASSES).all(),
        in_update=(stage == "WU").all(),
        ends_ns=pl.col("end").max() - pl.col("end").min(),
        arrivals_ns=pl.col("start").max() - pl.col("start").min(),
    )
    size = pl.col("members").list.len().cast(pl.Int64)
    is_pair = (size == 2).first()  # noqa: PLR2004
    named = (
        pl.when(pl.col("message").all() & is_pair)
        .then(pl.lit("pipeline"))
        .when(pl.col("message").any())
        .then(None)
        .when(pl.col("in_pass").all())
        .then(pl.lit("tensor"))
        .when(pl.col("in_update").all())
        .then(pl.lit("data"))
    )
    return (
        each.group_by("members")
        .agg(
            of=pl.lit("rank" if is_named else "device"),
            size=size.first(),
            calls=pl.len().cast(pl.Int64),
            parallelism=named,
            ends_ns=pl.col("ends_ns").median().cast(pl.Int64),
            arrivals_ns=pl.col("arrivals_ns").median().cast(pl.Int64),
        )
        .sort("size", "members", descending=[True, False])
    )


def describe_groups(groups: pl.DataFrame) -> list[str]:
    """Return one sentence on inferred groups of ranks and the evidence; none for a single group."""
    if groups.height < 2:  # noqa: PLR2004
        return []
    keys = ("size", "parallelism")
    parts = [_described(some) for some in groups.partition_by(keys, maintain_order=True)]
    ends, arrivals = groups["ends_ns"].max(), groups["arrivals_ns"].median()
    sentence = (
        f"no communicator is named: {'; '.join(parts)} were found by the ends of their calls,"
        f" which differ by at most {_microseconds(ends)} in the median where arrivals differ by"
        f" {_microseconds(arrivals)}"
    )
    return [sentence]


def _described(groups: pl.DataFrame) -> str:
    size, kind = groups["size"][0], groups["parallelism"][0]
    members = [", ".join(map(str, some)) for some in groups["members"].head(_SHOWN)]
    more = ", ..." if groups.height > _SHOWN else ""
    listed = "".join(f" ({some})" for some in members)
    named = f"{kind}-parallel " if kind else ""
    plural = "group" if groups.height == 1 else "groups"
    return f"{groups.height} {named}{plural} of {size} {groups['of'][0]}s{listed}{more}"


def _microseconds(ns: object) -> str:
    return f"{float(str(ns)) / 1000:,.1f} us"


@first_line("collectives")
def _first_line(rows: pl.DataFrame, _: Mapping[str, Any]) -> str | None:
    most = largest(rows, "count", "collective")
    if most is None or "duration_p50_ns" not in most or rows.filter(count=most["count"]).height > 1:
        return None
    length, size = most["duration_p50_ns"], most.get("bytes")
    what = most["collective"] + ("" if size is None else f" of {int(size):,} bytes")
    took = "" if length is None else f" of {duration(length)} in the median"
    return f"Most often: {what}, {count(most['count'], 'call')}{took}"


@summary("calls", "sized", "matched", "collectives", "missing")
def _known_of_calls(meta: Mapping[str, Any]) -> list[str]:
    """Return sentences on collectives: where sizes are known from, number matched, missing data."""
    calls, sized = meta["calls"], meta["sized"]
    if not calls:
        return []
    sources = ", ".join(f"{number:,} by {text_of(source)}" for source, number in sized.items())
    text = f"{count(calls, 'participant')}: sizes of {sources or 'none'} known"
    instances = count(meta["collectives"], "collective")
    matched = f"{part_text(meta['matched'], calls)} matched into {instances}"
    return [f"{text}, {matched}", *(f"missing: {text_of(each)}" for each in meta["missing"])]


_LANE = ["process", "device"]
_INSTANCE = ["iteration", "place"]
BALANCE = pl.Schema({"layer": pl.String(), "count": pl.Int64(), "ranks": pl.Int64(),
                     "computing_ns": pl.Float64(), "imbalance": pl.Float64(),
                     "busiest_rank": pl.Int64(), "busiest_share": pl.Float64()})  # fmt: skip


def expert_balance(trace: Trace, calls: pl.DataFrame) -> tuple[pl.DataFrame, str | None]:
    """Return the imbalance of experts' compute time: the busiest rank's time over the mean rank's.

    The work of a rank's experts is taken as everything that it computes between the end of a
    dispatch and the start of the next combine. The n-th such interval of a step is taken as the
    same layer on all ranks. `calls` has a row per participant of a collective.

    Returns
    -------
    The table, and the reason if it is empty. One row per ``layer`` (the range in which the dispatch
    was launched; null if unknown): ``count`` (intervals that all ranks have), ``ranks``,
    ``computing_ns`` (mean compute time of an interval), ``imbalance`` (median over intervals of the
    longest rank's time over the mean), ``busiest_rank`` (rank that computes longest most often;
    null if unknown) and ``busiest_share`` (the share of intervals in which it does).
    """
    parts = calls.filter(pl.col("part").is_in(["dispatch", "combine"])).sort(*_LANE, "start")
    lanes = parts.select(_LANE).unique().height
    if lanes < 2:  # noqa: PLR2004 - one has no others
        return BALANCE.to_frame(), "imbalance over experts' ranks: record several of them"
    part, previous_part = pl.col("part"), pl.col("part").shift(1).over(_LANE)
    if parts.select((part == previous_part).any()).item():
        return BALANCE.to_frame(), (
            "imbalance over experts' ranks: dispatches follow each other, of several micro-batches "
            "or in phases, and their combines cannot be assigned"
        )
    until = pl.col("start").shift(-1).over(_LANE)
    windows = parts.with_columns(until=until).filter(part == "dispatch").drop_nulls("until")
    windows = windows.select("op", *_LANE, "iteration", start="end", end="until").with_columns(
        place=pl.int_range(pl.len()).over(*_LANE, "iteration")
    )
    times = windows.with_row_index("window").join(
        _computing(trace, windows), on="window", how="left"
    ).with_columns(pl.col("computing").fill_null(0))  # fmt: skip
    full = times.join(_layers(trace, windows), on="op").filter(pl.len().over(_INSTANCE) == lanes)
    if full.is_empty():
        return BALANCE.to_frame(), "imbalance over experts' ranks: no step has as many on each"
    ranks = process_ranks(trace).select("process", pl.col("rank").cast(pl.Int64))
    largest = pl.col("computing").arg_max()
    each = full.join(ranks, on="process", how="left").group_by(_INSTANCE).agg(
        pl.col("layer").first(), pl.col("computing").mean(),
        of_mean=pl.col("computing").max() / pl.col("computing").mean(),
        busiest=pl.col("rank").get(largest),
    )  # fmt: skip
    usual = pl.col("busiest").drop_nulls().mode().min()
    found = each.group_by("layer").agg(
        count=pl.len(), ranks=pl.lit(lanes), computing_ns=pl.col("computing").mean(),
        imbalance=pl.col("of_mean").drop_nans().median(), busiest_rank=usual,
        busiest_share=(pl.col("busiest") == usual).mean(),
    )  # fmt: skip
    return found.sort("layer", nulls_last=True).select(*BALANCE).cast(BALANCE), None


def _computing(trace: Trace, windows: pl.DataFrame) -> pl.DataFrame:
    """Return, per time window of a GPU, for how long at least one compute kernel runs, ns."""
    lanes = windows.select(_LANE).unique().lazy()
    is_computing = pl.col("kind").cast(pl.String) == "compute"
    ops = trace["ops"].filter(is_computing).join(lanes, on=_LANE, how="semi")
    kernels = ops.select(*_LANE, "start", "end").collect()
    inside = cut(kernels, windows.select(*_LANE, "start", "end"))
    return union_length(inside, ["window"]).select("window", computing="length")


def _layers(trace: Trace, windows: pl.DataFrame) -> pl.DataFrame:
    """Return ``op, layer``: the NVTX range in which each dispatch kernel (``op``) was launched."""
    launched = (
        trace["ops"].select("op", "range").join(windows.select("op").lazy(), on="op", how="semi")
    )
    found = launched.join(trace["ranges"].select("range", "path"), on="range", how="left").collect()
    return found.select("op", layer=path_texts(trace.read("paths"), found["path"]))
