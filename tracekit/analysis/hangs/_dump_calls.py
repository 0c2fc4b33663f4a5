"""Join dumps of PyTorch's flight recorder with the calls in a trace of some of the ranks."""

from __future__ import annotations

import polars as pl

from tracekit.analysis.calls import (
    collective_kernels,
    process_ranks,
    read_calls,
    with_iterations,
    with_kernels,
)
from tracekit.errors import UndecidedError
from tracekit.model import COLLECTIVES, KERNEL_KINDS, Trace, with_clocks

_LANE = ["process", "communicator", "kind"]
_CALL = ["party", "sequence", "turn"]
_LOOKED_AT = 64
"""Number of first calls of a lane that decide the shift of its places."""
_LEAST = 8
"""Least number of matched calls for a shift; fewer may agree by chance."""
_OFF_NS, _APART = 20_000, 4
"""Largest median difference of the times between calls in both records, ns; and the least ratio to
it at any other shift."""
_AWAY_NS = 1_000_000_000
"""Largest difference between the clocks of a run and of a dump's host, ns."""
_WIDTHS = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4,
    "Long": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip
"""Bytes of an element, by PyTorch's name of its type."""
_SAME_SIZE = (pl.col("message_bytes") == pl.col("size")).fill_null(value=True)
_MORE = pl.col("created") - pl.col("unix")
_SHIFT = pl.Schema({"process": pl.Int32(), "communicator": pl.String(), "kind": pl.String(),
                    "party": pl.String(), "shift": pl.Int64()})  # fmt: skip


def on_timeline(calls: pl.DataFrame, trace: Trace) -> tuple[pl.DataFrame, str]:
    """Return the collectives that are both in dumps and in a trace of some of the ranks.

    Processes are matched with dumps by rank in the job. Calls are matched by group name and
    sequence number, if PyTorch's trace states both. Else calls of one kind in a communicator are
    paired in order with dump entries of one group, the first call with the first entry or a later
    or earlier one (a shift). Group and shift are accepted if all sizes are equal, and if the time
    differences between calls and entries scatter by at most `_OFF_NS`, scatter `_APART` times less
    than for any other group and shift, and have the median nearest to 0. All ranks of a
    communicator must find the same group. Stage and step of one rank's call are those of all.
    `calls` are the entries of all ranks, from `group_calls`; `trace` is a trace of the job, or of
    some of its ranks.

    Returns
    -------
    One row per collective, sorted by ``party, sequence, turn`` (see `group_calls`): ``group,
    description`` (the program's name and text for the process group), ``collective``;
    ``message_bytes`` by its ranks (null if unknown or different); ``recorded`` (ranks whose call is
    in the trace) and ``unrecorded`` (ranks whose call is only in a dump); ``completed`` (ranks
    whose dump marks it as ended; none for gloo and MPI); ``stage`` and ``iteration`` from the
    trace. And a sentence with the number of joined calls and the evidence used.

    Raises
    ------
    UndecidedError
        If no collective is joined.
    """
    entries, traced = _entries(calls), _traced_calls(trace)
    if traced.is_empty():
        raise UndecidedError(
            "it has no calls of NCCL and no operators of PyTorch that name a collective",
            "record with torch.profiler, or with nsys and payloads",
        )
    named = traced.drop_nulls(["name", "number"]).join(
        entries, left_on=["rank", "name", "kind", "number"],
        right_on=["rank", "group", "kind", "sequence"], suffix="_said",
    )  # fmt: skip
    rest = traced.join(named, on=_LANE, how="anti")
    pairs = pl.concat(
        [_sound(named, "sequence number"), _sound(_ordered(rest, entries), "order and time")],
        how="diagonal_relaxed",
    )
    if pairs.is_empty():
        raise UndecidedError(
            "no collective of these dumps matches one of this run with certainty",
            "give dumps and a run of the same time, of ranks that both know",
        )
    joined = pairs.select("entry", "stage", "iteration", seen=pl.lit(value=True))
    each = entries.join(joined, on="entry", how="left")
    ended = pl.col("state") == "completed"
    rows = (
        each.group_by(_CALL)
        .agg(
            pl.col("group", "description", "collective").first(),
            message_bytes=pl.when(pl.col("size").n_unique() == 1).then(pl.col("size").first()),
            recorded=pl.col("rank").filter("seen").sort(),
            unrecorded=pl.col("rank").filter(pl.col("seen").is_null()).sort(),
            completed=pl.col("rank").filter(ended).sort(),
            stage=pl.col("stage").drop_nulls().first(),
            iteration=pl.col("iteration").drop_nulls().first(),
        )
        .filter(pl.col("recorded").list.len() > 0)
        .sort(_CALL)
    )
    return rows, _matching_note(pairs, rows.height, trace)


def last_work(trace: Trace) -> pl.DataFrame:
    """Return ``rank, last_kernel, last_range, clock, earlier_ns``: the last work of each rank.

    ``earlier_ns``: how much earlier the rank's last kernel ended than the last op, copies included,
    of all ranks with the same ``clock``. Of a rank's processes, the one that ends last counts.
    """
    kernel = pl.when(pl.col("kind").cast(pl.String).is_in(KERNEL_KINDS))
    latest = kernel.then("end").arg_max()
    names = trace["ranges"].select("range", last_range="name")
    ran = (
        trace["ops"].group_by("process")
        .agg(last_kernel=kernel.then(pl.col("short_name").cast(pl.String)).get(latest),
             range=kernel.then("range").get(latest), ended=kernel.then("end").max(),
             until=pl.col("end").max())
        .join(names, on="range", how="left").collect()
    )  # fmt: skip
    ranks = process_ranks(trace).select("process", pl.col("rank").cast(pl.Int64)).drop_nulls()
    clocks = with_clocks(trace.read("processes"), trace.read("reports")).select("process", "clock")
    each = ranks.join(ran, on="process").join(clocks, on="process").with_columns(
        earlier_ns=pl.col("until").max().over("clock") - pl.col("ended")
    )  # fmt: skip
    last = each.sort("until", "process").unique("rank", keep="last", maintain_order=True)
    return last.select("rank", "last_kernel", "last_range", "clock", "earlier_ns")


def _entries(calls: pl.DataFrame) -> pl.DataFrame:
    """Add to dump entries an id, ``kind``, ``place`` (position in its kind), ``size`` (bytes)."""
    elements, types = (
        pl.when(pl.col("kind") == "reduce_scatter").then(f"output_{name}")
        .when(pl.col("kind").is_in(["all_reduce", "all_gather", "reduce", "broadcast"]))
        .then(f"input_{name}") for name in ("elements", "types")
    )  # fmt: skip
    width = types.replace_strict(_WIDTHS, default=None, return_dtype=pl.Int64)
    return (
        calls.with_row_index("entry")
        .with_columns(kind=_kind(pl.col("collective")))
        .with_columns(
            size=elements * width,
            place=pl.int_range(pl.len(), dtype=pl.Int64).over("rank", "party", "kind"),
        )
    )


def _kind(name: pl.Expr) -> pl.Expr:
    """Return a collective's usual name from PyTorch's: ``all_gather`` from `_allgather_base`."""
    spaced = name.str.strip_chars_start("_").str.replace(
        "^all(gather|reduce|toall)", "all_$1"
    ).str.replace("^all_toall", "all_to_all")  # fmt: skip
    kinds = sorted(COLLECTIVES, key=len, reverse=True)
    return pl.coalesce(pl.when(spaced.str.starts_with(each)).then(pl.lit(each)) for each in kinds)


def _operators(trace: Trace) -> pl.DataFrame:
    """Return collectives by PyTorch's operators (``c10d::...``), for processes without NCCL.

    They name no process group, so operators of one kind are taken as calls of one group.
    """
    kind = _kind(pl.col("name").str.extract(r"^c10d::(\w+)"))
    columns = ("report", "process", "start")
    rows = trace["ranges"].select(*columns, communicator=kind, collective=kind)
    return with_iterations(rows.drop_nulls("collective").collect(), trace)


def _traced_calls(trace: Trace) -> pl.DataFrame:
    """Return the trace's collective calls; ``place``: position among calls of process and kind."""
    kernels = collective_kernels(trace)
    known = kernels.select("op", "iteration", pl.col("stage").cast(pl.String))
    ranks = process_ranks(trace).select("process", pl.col("rank").cast(pl.Int64)).drop_nulls()
    began = trace.read("reports").select("report", began="session_start")
    of_nccl = (
        with_kernels(read_calls(trace), kernels)
        .drop_nulls(["collective", "communicator"])
        .join(known, on="op", how="left", maintain_order="left")
        .drop("rank", "group", "name")
    )
    others = _operators(trace).join(of_nccl, on="process", how="anti")
    rows = (
        pl.concat([of_nccl, others], how="diagonal_relaxed")
        .join(ranks, on="process")
        .join(began, on="report", how="left")
        .with_columns(unix=pl.col("began") + pl.col("start"))
        .sort("start")
    )
    return rows.select(
        "rank", "process", "communicator", "unix", "message_bytes", "stage", "iteration",
        kind=pl.col("collective").cast(pl.String),
        name=pl.col("communicator").str.extract(r"^pg (\S+)"),
        number="sequence",
    ).with_columns(place=pl.int_range(pl.len(), dtype=pl.Int64).over(_LANE))  # fmt: skip


def _ordered(rows: pl.DataFrame, entries: pl.DataFrame) -> pl.DataFrame:
    """Pair a trace's calls with dump entries in order, at the shift at which times agree best."""
    few = rows.filter(pl.col("place") < _LOOKED_AT)
    found = [_shift_of(lane, entries) for lane in few.partition_by(_LANE)]
    shifts = pl.concat([_SHIFT.to_frame(), *found])
    one = pl.col("party").n_unique().over("communicator") == 1
    moved = rows.join(shifts.filter(one), on=_LANE).with_columns(pl.col("place") + pl.col("shift"))
    key = ["rank", "party", "kind", "place"]
    return moved.join(entries, on=key, suffix="_said")


def _shift_of(lane: pl.DataFrame, entries: pl.DataFrame) -> pl.DataFrame:
    """Return the process group whose dump entries fit one rank's calls best, and at which shift.

    With shift d the n-th call is the (n + d)-th entry. No row if no group and shift fit best.
    """
    same_group = (pl.col("name") == pl.col("group")).fill_null(value=True)
    tried = (
        lane.join(entries, on=["rank", "kind"], suffix="_said")
        .filter(same_group)
        .group_by("party", shift=pl.col("place_said") - pl.col("place"))
        .agg(pl.col(_LANE).first(), fits=_SAME_SIZE.all(), number=pl.len(),
             off=(_MORE - _MORE.median()).abs().median(), away=_MORE.median().abs())
    )  # fmt: skip
    enough = (pl.col("number") >= _LEAST) & (2 * pl.col("number") >= pl.col("number").max())
    fitting = tried.filter(enough, "fits").sort("off").with_columns(
        other=pl.col("off").shift(-1), nearest=pl.col("away").min()
    )  # fmt: skip
    is_alone = (_APART * pl.col("off") <= pl.col("other")).fill_null(value=True)
    is_near = (pl.col("away") == pl.col("nearest")) & (pl.col("away") <= _AWAY_NS)
    return fitting.head(1).filter(is_alone, is_near, pl.col("off") <= _OFF_NS).select(*_SHIFT)


def _sound(pairs: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return dump entries with stage and step of the call paired with each; `by` is the evidence.

    Pairs of a stream are dropped if a size, or the median difference of times, disagrees.
    """
    near = (_MORE.median().abs().over(_LANE) <= _AWAY_NS).fill_null(value=True)
    known = pairs.filter(_SAME_SIZE.all().over(_LANE), near).unique("entry", keep="none")
    return known.select(
        "entry", "process", "stage", "iteration", by=pl.lit(by),
        is_sized=pl.all_horizontal(pl.col("message_bytes", "size").is_not_null()),
    )  # fmt: skip


def _matching_note(pairs: pl.DataFrame, number: int, trace: Trace) -> str:
    sized = pairs["is_sized"].sum()
    return (
        f"{number:,} collectives of the dumps are joined to calls of {pairs['process'].n_unique()} "
        f"of {process_ranks(trace)['rank'].count()} recorded ranks, by group and "
        f"{' or '.join(pairs['by'].unique().sort())}"
        + (f": sizes agree in all {sized:,} that have two" if sized else "")
    )
