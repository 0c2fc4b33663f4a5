"""Nodes of CUDA graphs, and the calls that they were captured from.

One call replays all nodes of a graph, so it says little of why each of them runs. The calls from
which they were captured do: those lay in the ranges of the program's own code.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.attribution._columns import Array
from tracekit.attribution._evidence import IN_AUTOGRAD, IN_EVALUATION, RANGE_STAGE, STAGE
from tracekit.model import Stream
from tracekit.support.arrays import Bits

_NODE = ["process", "graph_node"]
_OF_RANGES = STAGE << RANGE_STAGE | IN_EVALUATION | IN_AUTOGRAD
"""What ranges of a call's own thread say in the evidence of `follow`: a stage, evaluation, or a
marker of autograd."""


class Captured:
    """From which call each node of a graph was captured.

    Parameters
    ----------
    nodes
        The canonical table ``graph_nodes``.
    calls
        The calls.
    """

    def __init__(self, nodes: pl.DataFrame, calls: Stream) -> None:
        self._calls = calls
        found = nodes.unique(_NODE, keep="first", maintain_order=True).sort("time")
        found = found.select(*_NODE, "thread", "time", call=pl.lit(-1, pl.Int64))
        for number in range(len(calls) if found.height else 0):
            found = _within(found, calls.read(number, "call", "thread", "start", "end"))
        self._found = found.filter(pl.col("call") >= 0).select(*_NODE, "call")

    def mark(self, launching: Bits) -> None:
        """Mark calls that launch work, chunk by chunk."""
        numbers = self._found["call"].unique().to_numpy()
        for number, first in enumerate(self._calls.first if numbers.size else ()):
            chunk = launching[number]
            chunk[numbers[(numbers >= first) & (numbers < first + chunk.size)] - first] = True
            launching[number] = chunk

    def of(self, ops: pl.DataFrame) -> Array | None:
        """Return the call that each op was captured from, -1 for none; None if there are none."""
        if self._found.is_empty() or ops["graph_node"].null_count() == ops.height:
            return None
        both = ops.select(_NODE).join(self._found, on=_NODE, how="left", maintain_order="left")
        return both["call"].fill_null(-1).to_numpy()


def _within(nodes: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return nodes with the latest of some calls of their thread in which they were made."""
    asked = nodes.join_asof(
        calls.select("thread", "start", "end", later="call"),
        left_on="time", right_on="start", by="thread", check_sortedness=False,
    )  # fmt: skip
    inside = (pl.col("time") <= pl.col("end")).fill_null(value=False)
    return asked.select(
        *_NODE, "thread", "time", call=pl.when(inside).then("later").otherwise("call")
    )


def as_captured(launch: dict[str, Array], capture: dict[str, Array]) -> tuple[Array, Array, Array]:
    """Return the ranges, evidence and threads that tell why ops run.

    Those of the call that an op was captured from where it lay in a range; its evidence where
    ranges say something there, unless the graph is replayed in metric evaluation.

    Parameters
    ----------
    launch, capture
        Where the calls stand that launched ops, and those that they were captured from.
    """
    ranged = capture["range"] >= 0
    told = (capture["evidence"] & _OF_RANGES) != 0
    told &= (launch["evidence"] & IN_EVALUATION) == 0
    return (
        np.where(ranged, capture["range"], launch["range"]),
        np.where(told, capture["evidence"], launch["evidence"]),
        np.where(told, capture["thread"], launch["thread"]),
    )
