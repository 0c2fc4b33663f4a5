"""Host events of a PyTorch trace: CUDA calls, operators, annotations, and collectives."""

from __future__ import annotations

import json

import polars as pl

from tracekit.model import RANGE_STYLE
from tracekit.sources._seen import OPEN

_VERSION_SUFFIX = r"(_ptsz|_ptds)?_v\d+$"
_COLLECTIVES = (
    (r"^_?all_?reduce", "AllReduce", "in"),
    (r"^_?all_?gather", "AllGather", "each"),
    (r"^_?reduce_?scatter", "ReduceScatter", "out"),
    (r"^_?all_?to_?all", "AllToAll", "peer"),
    (r"^_?broadcast", "Broadcast", "in"),
    (r"^_?reduce(_|$)", "Reduce", "in"),
    (r"^gather", "Gather", "in"),
    (r"^scatter", "Scatter", "out"),
    (r"^send", "Send", "in"),
    (r"^recv", "Recv", "out"),
)
"""PyTorch's name of a collective -> NCCL's name, and which of its counts NCCL is given."""
_ELEMENT_BYTES = {
    **dict.fromkeys(("byte", "char", "bool", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
                     "float8_e5m2fnuz", "float8_e8m0fnu", "uint8", "int8"), 1),
    **dict.fromkeys(("half", "bfloat16", "short", "float16", "int16", "uint16"), 2),
    **dict.fromkeys(("float", "int", "float32", "int32", "uint32", "complexhalf"), 4),
    **dict.fromkeys(("double", "long", "float64", "int64", "uint64", "complexfloat"), 8),
    "complexdouble": 16,
}  # fmt: skip
_MESSAGES = ("ncclSend", "ncclRecv")
_ROOTED = ("ncclBroadcast", "ncclReduce", "ncclGather", "ncclScatter")
_MOST = (1 << 62) // 16
_RECORDING = "record_param_comms"
_UNMOVED = (
    r"^(aten::(_unsafe_view|_to_copy|alias|as_strided\w*|chunk|clone|contiguous|detach\w*|empty\w*|"
    r"expand\w*|item|lift_fresh|narrow|permute|reshape|resize\w*|result_type|select|set|slice|"
    r"split\w*|squeeze\w*|t|to|transpose|unbind|unsqueeze\w*|view\w*)_?|detach_?|.*Backward\d*|"
    r"(torch::)?autograd::.*)$"
)
"""Operators whose arguments are dropped: views, allocations, and operators inside others."""


def cuda_calls(events: pl.DataFrame) -> pl.DataFrame:
    """Return the CUDA runtime and driver calls that have ended."""
    return events.filter(pl.col("end") != OPEN).select(
        "start", "end", "pid", "tid",
        correlation=pl.col("correlation").cast(pl.Int64, strict=False),
        name=pl.col("name").str.replace(_VERSION_SUFFIX, "").cast(pl.Categorical()),
    )  # fmt: skip


class HostRanges:
    """Converts PyTorch's operators and annotations to ranges like those of NVTX.

    Parameters
    ----------
    rank
        Rank of the process in the job; None if the trace does not give it before its events.
    """

    def __init__(self, rank: int | None) -> None:
        self._rank = rank
        self.sized = 0
        """Number of collectives with a known size."""

    def of(self, events: pl.DataFrame) -> pl.DataFrame:
        """Return operators and annotations as ranges; operators are named ``aten::mm, seq = 7``."""
        number = pl.col("sequence_number").cast(pl.Int64, strict=False)
        is_numbered = (pl.col("group") == "operator") & (number >= 0)
        name = pl.when(is_numbered).then(pl.format("{}, seq = {}", "name", number))
        ranges = events.select(
            "start", "end", "pid", "tid", name.otherwise("name").alias("name"),
            pl.lit(None, pl.String).alias("domain"), _arguments(),
        )  # fmt: skip
        records = (ranges["name"] == _RECORDING) & events["collective"].is_not_null()
        if records.any():
            collectives = self._collectives(events.filter(records)).select(ranges.columns)
            ranges = pl.concat([ranges.filter(~records.fill_null(value=False)), collectives])
        return ranges.with_columns(style=pl.lit("push_pop", RANGE_STYLE))

    def _collectives(self, records: pl.DataFrame) -> pl.DataFrame:
        """Convert PyTorch's records of collectives to ranges with a payload, as NCCL makes them."""
        named = records.with_columns(_function(), **self._group(records))
        named = named.with_columns(_bytes().alias("Message size [bytes]"))
        between = pl.col("function").is_in(_MESSAGES)
        payload = pl.struct(
            "Message size [bytes]", "NCCL communicator ID", "commRank",
            pl.col("group_description").alias("Group description"),
            _other(*_MESSAGES).alias("Peer rank"),
            _other(*_ROOTED).alias("Root"),
            pl.col("dtype").alias("dataType"),
            pl.col("group_size").cast(pl.Int64, strict=False).alias("No. of ranks"),
            # Messages between two ranks are counted apart from what all ranks do.
            pl.when(~between).then(pl.col("sequence").cast(pl.Int64, strict=False))
            .alias("seqNumber"),
        ).struct.json_encode()  # fmt: skip
        known = pl.col("function").is_not_null()
        self.sized += named["Message size [bytes]"].count()
        return named.with_columns(
            name=pl.coalesce("function", "name"),
            domain=pl.when(known).then(pl.lit("NCCL")),
            payload=pl.when(known).then(payload).cast(pl.Categorical()),
        )

    def _group(self, records: pl.DataFrame) -> dict[str, pl.Series]:
        """Return the communicator of each collective, and the rank of this process in it."""
        texts = records.select(
            # A name alone may be a number, which as an id of a communicator would be none.
            pl.when(pl.col("group_name").is_not_null())
            .then(pl.format("pg {}{}", "group_name",
                            pl.format(" {}", "group_ranks").fill_null("")))
            .alias("NCCL communicator ID"),
            "group_ranks",
        )  # fmt: skip
        ranks = {text: _place(text, self._rank) for text in texts["group_ranks"].unique().to_list()}
        return {
            "NCCL communicator ID": texts["NCCL communicator ID"],
            "commRank": texts["group_ranks"].replace_strict(
                ranks, default=None, return_dtype=pl.Int64
            ),
        }


def _arguments() -> pl.Expr:
    """Return sizes, types and values of an operator's arguments as JSON.

    It is categorical, since few texts differ.
    """
    dims = pl.coalesce("input_dims", "input_dims_before")
    kept = (pl.col("group") == "operator") & ~pl.col("name").str.contains(_UNMOVED)
    arguments = pl.struct(
        dims.alias("Input Dims"),
        pl.col("input_type").alias("Input type"),
        pl.col("concrete_inputs").alias("Concrete Inputs"),
    )
    texts = pl.when(kept & dims.is_not_null()).then(arguments.struct.json_encode())
    return texts.cast(pl.Categorical()).alias("payload")


def _place(ranks: str | None, rank: int | None) -> int | None:
    """Return the position of `rank` in `ranks`, a JSON list of ranks; None if it is not in it."""
    try:
        listed = json.loads(ranks or "null")
    except (ValueError, RecursionError):  # long ones are written in part
        return None
    if rank is None or not isinstance(listed, list):
        return None
    return listed.index(rank) if rank in listed else None


def _function() -> pl.Expr:
    named = pl.coalesce(
        pl.when(pl.col("collective").str.contains(f"(?i){pattern}")).then(pl.lit(f"nccl{function}"))
        for pattern, function, _ in _COLLECTIVES
    )
    return named.alias("function")


def _bytes() -> pl.Expr:
    """Return the size of a collective in bytes, as NCCL's ranges give it.

    Depending on the function that is a rank's input, its output, or its input divided by the number
    of ranks. Null for an all_to_all or all_gather whose ranks exchange different sizes.
    """
    peers = pl.col("group_size").cast(pl.Int64, strict=False)
    inputs, outputs = (
        pl.col(name).cast(pl.Int64, strict=False) for name in ("elements_in", "elements_out")
    )
    even = (pl.col("split_in").fill_null("[]") == "[]") & (
        pl.col("split_out").fill_null("[]") == "[]"
    )
    uneven = ((outputs > 0) & (outputs != inputs * peers)).fill_null(value=False)
    count = {
        "in": inputs,
        "each": pl.when(~uneven).then(inputs),
        "out": outputs,
        "peer": pl.when(even & (peers > 0) & (inputs % peers == 0)).then(inputs // peers),
    }
    elements = pl.coalesce(
        pl.when(pl.col("function") == f"nccl{function}").then(count[which])
        for _, function, which in _COLLECTIVES
    )
    size = pl.col("dtype").str.to_lowercase().replace_strict(
        _ELEMENT_BYTES, default=None, return_dtype=pl.Int64
    )  # fmt: skip
    return pl.when(elements.is_between(0, _MOST)).then(elements * size)


def _other(*functions: str) -> pl.Expr:
    """Return the other rank of a collective, in its group: the peer of a message, or the root.

    Null except for `functions`: for others PyTorch records the rank of the process itself.
    """
    return pl.when(pl.col("function").is_in(functions)).then(
        pl.col("other_rank").cast(pl.Int64, strict=False)
    )
