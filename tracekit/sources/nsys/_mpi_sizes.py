"""What the sizes of MPI's collectives mean.

nsys counts what a rank sends to, and receives from, each rank of the communicator, itself among
them: for an all-reduce of S bytes by n ranks n x S on either side, and (n - 1) x S with
MPI_IN_PLACE. Measured with Open MPI under nsys 2023.4 (schema 3.7.2) for each function; 2024.2
writes the same. A user means the buffers that a call is given.
"""

from __future__ import annotations

import polars as pl

_FUNCTION = r"(?i)^P?MPI_I?(.+?)(?:_c)?$"
_SENT, _RECEIVED, _RANKS = pl.col("size"), pl.col("recvSize"), pl.col("ranks")
_SPLIT = ("reduce_scatter", "reduce_scatter_block")
_WHOLE_BUFFERS = ("alltoall", "alltoallv", "alltoallw", "scatter", "scatterv")
"""What each rank's part is different for, so that what is sent is what the buffer holds."""


def buffers() -> tuple[pl.Expr, pl.Expr]:
    """Return the bytes of a collective's send and receive buffers.

    Expressions over ``name, size, recvSize, ranks``. Null is what the call has no buffer for (a
    broadcast sends from its root alone), and what is not known: functions whose counts are of
    another kind (scans, neighbourhoods), and communicators of unknown size.

    From one row it cannot be told whether a call is in place if its size is a multiple of both n
    and n - 1; it is taken not to be. Of such calls in place the size comes out (n - 1) / n of what
    it is.
    """
    function = pl.col("name").str.extract(_FUNCTION).str.to_lowercase()
    own_sent, own_received = _of_each_peer(_SENT), _of_each_peer(_RECEIVED)
    in_place = pl.col("size").is_null() & _RECEIVED.is_not_null()
    part_in_place = pl.when(_RECEIVED % (_RANKS - 1) == 0).then(_RECEIVED // (_RANKS - 1))
    sent = (
        pl.when(function.is_in(["allreduce", "allgather", "allgatherv"])).then(own_sent)
        .when(function.is_in([*_SPLIT, *_WHOLE_BUFFERS])).then(_SENT)
        .when((function == "bcast") & _SENT.is_not_null()).then(_RECEIVED)
        .when(function.is_in(["reduce", "gather", "gatherv"]))
        .then(pl.when(in_place & (function != "gatherv")).then(part_in_place).otherwise(_SENT))
    )  # fmt: skip
    received = (
        pl.when(function == "allreduce").then(own_received)
        .when(function.is_in(["allgather", "allgatherv"])).then(_RECEIVED + _left_out(own_sent))
        .when(function.is_in(_SPLIT)).then(own_received)
        .when(function.is_in([*_WHOLE_BUFFERS, "bcast"])).then(_RECEIVED)
        .when(function == "reduce")
        .then(pl.when(in_place).then(part_in_place).otherwise(own_received))
        .when(function == "gather")
        .then(pl.when(in_place).then(_RECEIVED + part_in_place).otherwise(_RECEIVED))
        .when((function == "gatherv") & ~in_place).then(_RECEIVED)
    )  # fmt: skip
    return sent, received


def _of_each_peer(total: pl.Expr) -> pl.Expr:
    """Return what of a total goes to each rank: there are n, or in place n - 1."""
    others = _RANKS - 1
    return (
        pl.when(total % _RANKS == 0)
        .then(total // _RANKS)
        .when((_RANKS > 1) & (total % others == 0))
        .then(total // others)
    )


def _left_out(part: pl.Expr) -> pl.Expr:
    """Return what a gathering in place does not count: the part that is there already."""
    return pl.when(_SENT % _RANKS == 0).then(0).otherwise(part)
