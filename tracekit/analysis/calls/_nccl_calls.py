"""NCCL's API calls, from NVTX ranges; collective kernels with their libraries and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import polars as pl

from tracekit.analysis.calls._excerpt import IS_NCCL, excerpt
from tracekit.model import COLLECTIVE, Trace

_FUNCTIONS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send_recv",
    "recv": "send_recv",
}
_DIRECTIONS = {"send": "send", "recv": "receive"}
_REDUCTIONS = {"0": "Sum", "1": "Prod", "2": "Max", "3": "Min", "4": "Avg"}
_MAKES_COMMUNICATOR = r"(?i)^(nccl)?comm(init|split|shrink|grow)"
_API_GROUP = r"(?i)^(api ?group|group ?api)$"
_OPENS, _CLOSES = "ncclGroupStart", r"^ncclGroup(Simulate)?End$"
_FOREVER = (1 << 63) - 1
_READ = ("ranges",)
"""The table in which the calls are."""

_TYPE_BYTES = {
    **dict.fromkeys(("0", "1", "int8", "uint8", "char", "10", "11"), 1),
    **dict.fromkeys(("f8e4m3", "f8e5m2", "float8e4m3", "float8e5m2"), 1),
    **dict.fromkeys(("6", "9", "float16", "half", "bfloat16"), 2),
    **dict.fromkeys(("2", "3", "7", "int", "int32", "uint32", "float", "float32"), 4),
    **dict.fromkeys(("4", "5", "8", "int64", "uint64", "double", "float64"), 8),
}
"""Sizes of NCCL's data types, by number and by name."""

KERNEL_OF = {"all_to_all": "send_recv", "gather": "send_recv", "scatter": "send_recv"}
"""Collectives that NCCL carries out by kernels which are named for another one."""

_CALL_COLUMNS = (
    "range", "report", "process", "thread", "start", "end", "name", "collective", "direction",
    "message_bytes", "element_type", "peer", "root", "reduction", "communicator", "rank",
    "sequence", "group",
)  # fmt: skip


def communicators(trace: Trace) -> pl.DataFrame:
    """Return the NCCL communicators that were created during the recording, or whose size is known.

    Returns
    -------
    ``communicator`` (id), ``report, process, rank, ranks, cuda_device``; null if the NVTX range of
    the call that creates it lacks the value (the id before NCCL 2.25; all values if NVTX payloads
    were not exported).
    """
    return trace.once(_announced, reads=_READ).drop("is_made").unique(maintain_order=True)


def _announced(trace: Trace) -> pl.DataFrame:
    """Return rows as of `communicators`, one per range that creates one or tells its size.

    ``is_made`` is whether the NCCL call of that range creates the communicator.
    """
    ranks = _count("No. of ranks", "No. of devices", "nRanks")
    is_made = pl.col("name").str.contains(_MAKES_COMMUNICATOR).alias("is_made")
    known = trace.once(_nccl_ranges, reads=_READ).with_columns(is_made, ranks=ranks)
    ranges = known.filter(pl.col("is_made") | pl.col("ranks").is_not_null())
    made = ranges.sort("process", "start", "range").select(
        _text("NCCL communicator ID", "commHash").alias("communicator"),
        "report",
        "process",
        _count("Rank", "commRank", "rank").cast(pl.Int32, strict=False).alias("rank"),
        pl.col("ranks").cast(pl.Int32, strict=False),
        _count("CUDA device", "cudaDev").cast(pl.Int32, strict=False).alias("cuda_device"),
        "is_made",
    )  # fmt: skip
    return made.with_columns(hex_ids(made["communicator"]))


def made_communicators(trace: Trace) -> pl.DataFrame:
    """Return ``process, communicator, rank`` of communicators created while recording."""
    made = trace.once(_announced, reads=_READ).filter("is_made")
    rows = made.select("process", "communicator", "rank")
    return rows.drop_nulls().unique().filter(pl.len().over("process", "communicator") == 1)


def group_descriptions(trace: Trace) -> pl.DataFrame:
    """Return ``communicator, group``: the program's name of the communicator, such as ``mesh_tp``.

    PyTorch records the name; a communicator shared by several groups has no row.
    """
    rows = trace.once(_nccl_ranges, reads=_READ).select(
        _text("NCCL communicator ID", "commHash").alias("communicator"),
        _text("Group description").alias("group"),
    )
    known = rows.with_columns(hex_ids(rows["communicator"])).drop_nulls().unique()
    return known.unique("communicator", keep="none", maintain_order=True)


def collective_kernels(trace: Trace) -> pl.DataFrame:
    """Return the kernels (ops) that execute collectives, in order of op ids; cached."""
    return trace.once(_collective_kernels, of_all=True)


def _collective_kernels(trace: Trace) -> pl.DataFrame:
    kernels = excerpt(trace).collectives.collect().sort("op")
    return kernels.with_columns(pl.col("collective").fill_null("unknown"))


def read_calls(trace: Trace) -> pl.DataFrame:
    """Return NCCL's API calls, from its NVTX ranges.

    Both spellings are read: API functions (``ncclAllReduce``) and advanced tracing (``AllReduce``
    in the domain NCCL). Inner calls, such as the sends of an AllToAll, are not listed.

    Returns
    -------
    In order of threads and time

    =================  ==========================================================================
    ``range``          the range; ``report, process, thread, start, end, name`` (times in ns) are
    the range's
    ``collective``     the operation; null for other calls, such as ``ncclGroupEnd``
    ``direction``      ``send`` or ``receive``, for send_recv
    ``message_bytes``  size as the call gives it: per rank for all_gather and reduce_scatter, per
                       peer for all_to_all, gather and scatter; null without a payload
    ``peer, root``     the other rank of a send or receive; the root of a rooted collective
    ``reduction``      reduction operation
    ``communicator``   id of the communicator, in hexadecimal
    ``rank``           rank of the caller in it
    ``sequence``       number of the call among calls of its kind in the communicator
    ``element_type``   type of the elements, in the recorder's spelling, lower case
    ``group``          the range of the outermost open ``ncclGroupStart``; null if none is open
    ``nests``          whether it is a push/pop range (these nest), not a start/end range
    =================  ==========================================================================
    """
    return trace.once(_read_calls, reads=_READ)


def _read_calls(trace: Trace) -> pl.DataFrame:
    ranges = trace.once(_nccl_ranges, reads=_READ).sort("thread", "start", -pl.col("end"), "range")
    known = _without_inner(ranges.with_columns(_function()))
    calls = known.select(
        *_CALL_COLUMNS[:9],
        _message_bytes(),
        _count("Peer rank", "peer").cast(pl.Int32, strict=False).alias("peer"),
        _count("Root", "root").cast(pl.Int32, strict=False).alias("root"),
        _text("Reduction operation", "redOp").replace(_REDUCTIONS).alias("reduction"),
        _text("NCCL communicator ID", "commHash").alias("communicator"),
        _count("commRank").cast(pl.Int32, strict=False).alias("rank"),
        _count("seqNumber").alias("sequence"),
        _element_type().alias("element_type"),
        nests=pl.col("style") == "push_pop",
    )
    calls = calls.with_columns(hex_ids(calls["communicator"]))
    grouped = _in_groups(calls, _groups(known)).sort("thread", "start", "range")
    return _without_twins(grouped).select(*_CALL_COLUMNS, "nests")


def hex_ids(ids: pl.Series) -> pl.Series:
    """Return ids as text ``0x...`` (hexadecimal); null for 0. Texts without a number stay."""
    if ids.null_count() == len(ids):
        return ids.cast(pl.String)
    distinct = ids.drop_nulls().unique().to_list()
    return ids.replace_strict(distinct, [_hex(each) for each in distinct], return_dtype=pl.String)


def _hex(text: str) -> str | None:
    try:
        number = int(text, 16 if text.lower().startswith("0x") else 10) % (1 << 64)
    except ValueError:
        return text
    return f"0x{number:x}" if number else None


def _nccl_ranges(trace: Trace) -> pl.DataFrame:
    columns = (
        "range", "report", "process", "thread", "start", "end", "name", "style", "payload"
    )  # fmt: skip
    ranges = excerpt(trace).ranges
    return ranges.filter(IS_NCCL.fill_null(value=False)).select(columns).collect()


def _function() -> list[pl.Expr]:
    function = pl.col("name").str.replace("^nccl", "").str.to_lowercase()
    return [
        function.replace_strict(_FUNCTIONS, default=None, return_dtype=COLLECTIVE)
        .alias("collective"),
        function.replace_strict(_DIRECTIONS, default=None, return_dtype=pl.String)
        .alias("direction"),
    ]  # fmt: skip


def _text(*keys: str) -> pl.Expr:
    """Return the text in an NVTX payload under the first key of `keys` that it contains."""
    return pl.coalesce(pl.col("payload").str.json_path_match(f"$['{key}']") for key in keys)


def _count(*keys: str) -> pl.Expr:
    """Return the integer in an NVTX payload under the first key of `keys` in it; or null."""
    number = _text(*keys).cast(pl.Int64, strict=False)
    return pl.when(number >= 0).then(number)


def _message_bytes() -> pl.Expr:
    """Return a message's bytes from its NVTX payload: stated, or element count times type size."""
    size = _element_type().replace_strict(_TYPE_BYTES, default=None, return_dtype=pl.Int64)
    counted = _count("count")
    fits = counted <= _FOREVER // 8
    return pl.coalesce(
        _count("Message size [bytes]"), pl.when(fits).then(counted * size)
    ).alias("message_bytes")  # fmt: skip


def _element_type() -> pl.Expr:
    return _text("dataType", "datatype").str.to_lowercase().str.replace("^nccl", "")


def _without_inner(ranges: pl.DataFrame) -> pl.DataFrame:
    """Drop NCCL calls made inside a collective call, such as the sends of an AllToAll."""
    nests = pl.col("style") == "push_pop"
    until = pl.when(nests & pl.col("collective").is_not_null()).then("end")
    outer = until.cum_max().forward_fill().shift(1).over("thread")
    return ranges.filter(~(nests & (pl.col("end") <= outer)).fill_null(value=False))


def _groups(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return outermost ``ncclGroupStart/End`` groups: ``thread, start, end`` (ns), ``group``.

    A group that was open when recording began is unknown; a group that is still open at the end of
    the recording has no end.
    """
    opens, closes = pl.col("name") == _OPENS, pl.col("name").str.contains(_CLOSES)
    is_whole = pl.col("name").str.contains(_API_GROUP)
    ranges = ranges.filter(opens | closes | is_whole)
    if ranges.is_empty():
        return ranges.select("thread", "start", "end", group="range")
    edges = ranges.filter(opens | closes).with_columns(
        level=pl.when(opens).then(1).otherwise(-1).cum_sum().over("thread")
    )
    # An end without its start brings the level below what it was at first: that is the new floor.
    floor = pl.min_horizontal(pl.col("level").cum_min().over("thread"), 0)
    depth = pl.col("level") - floor
    edges = edges.with_columns(depth=depth).with_columns(
        before=pl.col("depth").shift(1, fill_value=0).over("thread")
    )
    begins, ends = opens & (pl.col("depth") == 1), closes & (pl.col("before") == 1)
    paired = (
        edges.filter(begins | ends)
        .with_columns(group=pl.when(begins).then("range").forward_fill().over("thread"))
        .group_by("thread", "group")
        .agg(
            pl.col("start").min(),
            end=pl.when(closes).then("end").max().fill_null(_FOREVER),
        )
    )
    complete = ranges.filter(is_whole).select("thread", "start", "end", group="range")
    columns = ("thread", "group", "start", "end")
    spans = pl.concat([paired.select(columns), complete.select(columns)])
    spans = spans.sort("thread", "start", -pl.col("end"))
    outer = pl.col("end").cum_max().shift(1).over("thread")
    return spans.filter((pl.col("end") > outer).fill_null(value=True))


def _in_groups(rows: pl.DataFrame, groups: pl.DataFrame, at: str = "start") -> pl.DataFrame:
    """Add the ``ncclGroupStart`` group open on the row's ``thread`` at the time in column `at`."""
    spans = groups.select("thread", "group", "start", group_end="end").rename({"start": "opened"})
    joined = rows.sort(at).join_asof(
        spans.sort("opened"), left_on=at, right_on="opened", by="thread", check_sortedness=False
    )
    return joined.with_columns(
        group=pl.when(pl.col(at) <= pl.col("group_end")).then("group")
    ).drop("group_end", "opened", strict=False)  # fmt: skip


def _without_twins(calls: pl.DataFrame) -> pl.DataFrame:
    """Drop NCCL calls that were recorded twice.

    Of a ``ncclGroup`` in which some ranges have a sequence number, those without are the
    duplicates.
    """
    numbered = pl.col("sequence").is_not_null()
    is_twin = (
        pl.col("group").is_not_null()
        & pl.col("collective").is_not_null()
        & ~pl.col("name").str.starts_with("nccl")
        & ~numbered
        & numbered.any().over("group")
    )
    return calls.filter(~is_twin)


def with_kernels(calls: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """Add to each NCCL call the kernels that it launched.

    ``ops`` lists all kernels (null if none is known); ``op`` is the kernel if there is exactly one.
    `calls` are from `read_calls`, `kernels` from `collective_kernels`.
    """
    operations = calls.drop_nulls("collective")
    launched = kernels.drop_nulls(["launch_thread", "launch_start"]).select(
        "op", "collective", "launch_start", thread="launch_thread"
    )
    pairs = _launched_inside(launched, operations)
    if calls["group"].count():
        rest = launched.join(pairs, on="op", how="anti")
        others = operations.join(pairs, on="range", how="anti")
        pairs = pl.concat([pairs, _launched_by_groups(rest, others, calls)])
    pairs = pairs.sort("op")
    ops = pairs.group_by("range", maintain_order=True).agg(
        ops=pl.col("op"), op=pl.when(pl.len() == 1).then(pl.col("op").first())
    )
    return calls.join(ops, on="range", how="left", maintain_order="left").drop("nests")


def _launched_inside(launched: pl.DataFrame, operations: pl.DataFrame) -> pl.DataFrame:
    """Return ``range, op`` of kernels that were launched inside an operation's call."""
    calls = operations.filter("nests").select("thread", "range", "end", began="start")
    inside = launched.sort("launch_start").join_asof(
        calls.sort("began"), left_on="launch_start", right_on="began", by="thread",
        check_sortedness=False,
    )  # fmt: skip
    return inside.filter(pl.col("launch_start") <= pl.col("end")).select("range", "op")


def _launched_by_groups(
    launched: pl.DataFrame, operations: pl.DataFrame, calls: pl.DataFrame
) -> pl.DataFrame:
    """Return ``range, op``: NCCL calls inside a group, and the kernel that executes each.

    A group's only kernel executes all calls of the group. Several kernels are assigned to equally
    many calls of the same kind if these calls are alike: NCCL launches by communicator and size,
    not in the order of the calls. Other kernels are left out.
    """
    # The last call of a group, `ncclGroupEnd`, launches the kernels.
    spans = calls.drop_nulls("group").group_by("thread", "group").agg(
        pl.col("start").min(), pl.col("end").max()
    )  # fmt: skip
    kernels = _in_groups(launched, spans, "launch_start").drop_nulls("group")
    kind = pl.col("collective").cast(pl.String).replace(KERNEL_OF).cast(COLLECTIVE)
    members = operations.drop_nulls("group").with_columns(kind)
    alone = pl.len().over("group") == 1
    single = kernels.filter(alone).select("group", "op")
    one = members.select("group", "range").join(single, on="group").select("range", "op")
    several = _by_kind(kernels.filter(~alone), members)
    return pl.concat([one, several])


def _by_kind(kernels: pl.DataFrame, members: pl.DataFrame) -> pl.DataFrame:
    key = ["group", "collective"]
    alike = members.group_by(key).agg(
        calls=pl.len(),
        sizes=pl.col("message_bytes").n_unique(),
        ids=pl.col("communicator").n_unique(),
    )
    counts = kernels.group_by(key).agg(kernels=pl.len())
    sound = (
        alike.join(counts, on=key)
        .filter(
            (pl.col("calls") == pl.col("kernels"))
            & (pl.col("sizes") == 1)
            & (pl.col("ids") == 1)
            & (pl.col("collective") != "send_recv")
        )
        .select(key)
    )
    turn = pl.int_range(pl.len()).over(key).alias("turn")
    ordered = members.join(sound, on=key, how="semi").sort("start").with_columns(turn)
    return (
        kernels.sort("launch_start", "op")
        .with_columns(turn)
        .join(ordered.select(*key, "turn", "range"), on=[*key, "turn"])
        .select("range", "op")
    )


# -- why sizes of messages are not known


_UNSIZED = {
    "PyTorch Kineto JSON": "none is with the calls, as later PyTorch records (on the CPU)",
    "nvprof SQLite": "nvprof records no sizes",
    "RPD SQLite": "rocmProfileData records no sizes",
    **dict.fromkeys(("rocprofv3 JSON", "rocprofv3 SQLite"), "rocprofv3 records no sizes"),
    "XLA profile": "JAX's profiles have no sizes of collectives",
}


def unsized_of_others(calls: pl.DataFrame) -> list[str]:
    """Return notes: how many collective kernels have an unknown message size, by library.

    NCCL and MPI are left out.
    """
    others = calls.filter(~pl.col("library").is_in(["nccl", "mpi"]), pl.col("bytes").is_null())
    counted = others.group_by("library").len().sort("library")
    return [
        f"{number:,} collective kernels of {library} are of unknown size, which it does not record:"
        " give --bytes"
        for library, number in counted.iter_rows()
    ]


def why_unsized(trace: Trace) -> str:
    """Return a sentence: why the sizes of NCCL calls are unknown, and how to record them."""
    formats = trace["reports"].select(pl.col("format").unique()).collect()["format"].to_list()
    calls, payloads = (
        excerpt(trace)
        .ranges.filter(pl.col("domain") == "NCCL")
        .select(pl.len(), payloads=pl.col("payload").count())
        .collect()
        .row(0)
    )
    if not payloads and len(formats) == 1 and formats[0] in _UNSIZED:
        return _UNSIZED[formats[0]]
    if not calls:
        return "no NVTX ranges of NCCL (2.8 or later) were recorded; trace nvtx"
    if not payloads:
        return (
            "NCCL's ranges have no payload; export with `nsys export --include-blobs=true` "
            "(NCCL 2.16 or later)"
        )
    return "their calls (perhaps before recording began) or number of ranks are not known"


# -- libraries of collective kernels, and their algorithm if they implement only one
#
# NCCL's general kernels (ncclDevKernel_AllReduce_Sum_f32_RING_LL) run any algorithm and protocol:
# the name is that of the code that was inlined into them. Its kernels for symmetric memory, and
# those of other libraries, do what their names say. What each reads and writes is that of vLLM's
# custom_all_reduce.cuh (SGLang and AITER have the same), FlashInfer's and TensorRT-LLM's
# trtllm_allreduce_fusion.cuh and customAllReduceKernels.cu, and PyTorch's
# CUDASymmetricMemoryOps.cu.


_LIBRARIES = {
    "(?i)nccl": "nccl",
    "(?i)msccl": "msccl",
    "(?i)nvshmem": "nvshmem",
    r"(?i)deep_?ep|dpsk(::|\d)ep": "deep_ep",
    "(?i)hybrid_?ep": "hybrid_ep",
    "mori::|^Ep(Dispatch|Combine)": "mori",
    "cross_device_reduce": "vllm",
    "(?i)moeA2A|allreduce_fusion_kernel|(one|two)shot_?allreduce": "tensorrt_llm",
    "(one|two)_shot_all_reduce|multimem_all": "pytorch",
}
"""Libraries by patterns of the names of their kernels; the first that fits applies."""
_ALGORITHMS = {
    "cross_device_reduce_1stage": "one_shot",
    "cross_device_reduce_2stage": "two_shot",
    r"allreduce_fusion_kernel_oneshot_lamport|\boneShotAllReduceKernel\b": "one_shot",
    r"allreduce_fusion_kernel_twoshot_sync|\btwoShotAllReduceKernel\b": "two_shot",
    r"\bone_shot_all_reduce(_out)?_kernel\b": "one_shot",
    # Without the suffix it may be a reduce-scatter: its template says, which short names lack.
    r"\btwo_shot_all_reduce_kernel_inplace\b": "two_shot",
    r"\bmultimem_one_shot_all_reduce_kernel\b": "reduced_one_shot",
    r"\bmultimem_all_(reduce|gather)_kernel\b": "nvls",
}
_EXPERTS = r"(?i)deep_?ep|dpsk(::|\d)ep|hybrid_?ep|mori::|moeA2A|^Ep(Dispatch|Combine)"
_PARTS = {
    "(?i)notify|barrier|device_sync|rdma_sync|update_expected|fetch_wait": "wait",
    "(?i)dispatch": "dispatch",
    "(?i)combine": "combine",
}
"""What kernels of expert parallelism do, by patterns of their names; the first that fits applies.
What waits does so for counts of tokens, or for all ranks."""
_SYMMETRIC = r"ncclSymk?DevKernel_(\w+?)(?:_(?:sum|avg|profile)\w*)?(?:\(|$)"


def with_libraries(kernels: pl.DataFrame) -> pl.DataFrame:
    """Add the library and algorithm of each collective kernel, by its short name.

    Returns
    -------
    `kernels` with ``library`` (``other`` if unknown); ``algorithm`` in the spelling of
    `machine.shares` (null if the kernel implements several); and ``part``, the phase of expert
    parallelism by the full kernel name: dispatch, combine or wait (null for other kernels).
    """
    # One without a name, as in a trace that was trimmed, is taken for NCCL's, as most are.
    short = pl.coalesce(pl.col("short_name", "name").cast(pl.String), pl.lit("nccl"))
    named = kernels.with_columns(kernel_name=short, whole_name=pl.col("name").cast(pl.String))
    names = named.select("kernel_name", "whole_name").unique().sort(pl.all())
    return named.join(
        _libraries(tuple(names.rows())), on=names.columns, how="left", maintain_order="left",
        nulls_equal=True,
    ).drop(names.columns)  # fmt: skip


@lru_cache
def _libraries(names: tuple[tuple[str, str | None], ...]) -> pl.DataFrame:
    """Return ``library, algorithm, part`` (experts' phase) by (short, full) kernel name; cached."""
    from tracekit.machine import SYMMETRIC  # noqa: PLC0415 - a machine takes time to load

    name, whole = pl.col("kernel_name"), pl.col("whole_name")
    # One of a later version runs what is not known, but neither a ring nor NVLS.
    kernel = name.str.extract(_SYMMETRIC)
    symmetric = pl.when(kernel.is_not_null()).then(
        kernel.replace_strict(SYMMETRIC, default="symmetric", return_dtype=pl.String)
    )
    schema = {"kernel_name": pl.String, "whole_name": pl.String}
    return pl.DataFrame(names, schema, orient="row").with_columns(
        part=pl.when(whole.str.contains(_EXPERTS)).then(
            _first(whole, _PARTS, pl.lit(None, pl.String))
        ),
        library=_first(name, _LIBRARIES, pl.lit("other")),
        algorithm=pl.coalesce(symmetric, _first(name, _ALGORITHMS, pl.lit(None, pl.String))),
    )


def _first(name: pl.Expr, patterns: Mapping[str, str], otherwise: pl.Expr) -> pl.Expr:
    """Return the value of the first pattern (key) that matches `name`; else `otherwise`."""
    each = [
        pl.when(name.str.contains(pattern)).then(pl.lit(text)) for pattern, text in patterns.items()
    ]
    return pl.coalesce(*each, otherwise)
