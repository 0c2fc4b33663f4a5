"""What collectives are for, as their place tells: a pass, the weights of layers, or gradients.

An all-reduce between layers of a forward pass is no exchange of gradients, for these come of
backward: it belongs to the pass (tensor parallelism). So does one between layers of a backward
pass, if forward passes hold such ones on the same stream, and no layer runs beside it. What is
gathered, or handed out, before layers are their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit.attribution._chosen import CHOSEN
from tracekit.attribution._columns import Array, Exchanges, PlaceRows, PlaceState
from tracekit.attribution._names import classify_kernels, codes_of
from tracekit.attribution._op_loops import (
    GATHERS,
    LAYER,
    OTHER,
    REDUCES,
    SCATTERS,
    SHARES,
    place_exchanges,
)
from tracekit.attribution._rules import Rules
from tracekit.attribution._stages import Evidence, stages_of_launches
from tracekit.attribution._structuring import Structures
from tracekit.attribution._verdict import LAYERS
from tracekit.model import STAGES, Stream
from tracekit.support.compiled import compiled, given

_ROLES = {
    "all_reduce": REDUCES, "reduce": REDUCES, "reduce_scatter": SCATTERS, "all_gather": GATHERS,
    "broadcast": SHARES,
}  # fmt: skip
_STREAM = ("process", "device", "context", "stream")
_COLUMNS = (*_STREAM, "name", "kind", "start", "end")
_WHO = ("thread", "code", "structure")


@dataclass(frozen=True)
class Places:
    """The collectives whose place tells what they are for.

    Parameters
    ----------
    op
        Their numbers, in order.
    stage
        The place in the list of stages: of the pass that each belongs to; of the weight update
        for weights.
    process
        The process of each.
    """

    op: Array
    stage: Array
    process: Array

    def of(self, first: int, rows: int) -> Array:
        """Return the places of ops from `first` on, counted from 1; 0 where none tells."""
        found = np.zeros(rows, np.int8)
        begin, end = np.searchsorted(self.op, (first, first + rows))
        found[self.op[begin:end] - first] = self.stage[begin:end] + 1
        return found

    def counts(self) -> pl.DataFrame:
        """Return by ``process`` how many belong to passes, and how many move ``weights``."""
        weights = pl.Series("weights", self.stage == STAGES.index("WU"))
        rows = pl.DataFrame([pl.Series("process", self.process, pl.Int32), weights])
        return rows.group_by("process").agg(
            pl.col("weights").sum().cast(pl.Int64), own=(~pl.col("weights")).sum().cast(pl.Int64)
        )


def find_places(
    ops: Stream,
    launches: Callable[[int], Mapping[str, Array]],
    counted: pl.DataFrame,
    evidence: Evidence,
    structures: Structures,
    rules: Rules,
) -> Places:
    """Find which collectives of processes that train belong to passes, or move weights.

    Parameters
    ----------
    ops
        The ops.
    launches
        Returns of a chunk of ops where their launches stand.
    counted
        What `count_names` returned.
    evidence
        What launches say of stages.
    structures
        What structure says of ops.
    rules
        What names mean.
    """
    trains = evidence.processes.filter("trains")["process"]
    own = counted.filter(pl.col("process").is_in(trains.implode()))
    roles = _roles(own, rules)
    exchanges = int(own.filter(_role_of(own, roles) > LAYER)["ops"].sum())
    if not exchanges:
        return Places(*np.empty((3, 0), np.int64))
    streams = _computing(ops, roles)
    if streams.is_empty():
        return Places(*np.empty((3, 0), np.int64))
    found = _placed(ops, launches, roles, streams, structures, exchanges)
    said = _told(found, evidence, rules).sort("op")
    stage = said["place"].replace_strict({s: n for n, s in enumerate(STAGES)}, return_dtype=pl.Int8)
    return Places(said["op"].to_numpy(), stage.to_numpy(), said["process"].to_numpy())


def _roles(counted: pl.DataFrame, rules: Rules) -> Array:
    """Return by the code of a name what such kernels are to places."""
    names = counted.unique("name").with_columns(collective=pl.lit(None, pl.String))
    meant = classify_kernels(names, rules)
    is_layer = pl.col("name").cast(pl.String).str.contains(LAYERS).fill_null(value=False)
    role = meant.select(
        pl.when(pl.col("kind") == "collective")
        .then(pl.col("collective").cast(pl.String).replace_strict(_ROLES, default=-1))
        .when((pl.col("kind") == "compute") & is_layer).then(LAYER)
        .when(pl.col("kind") == "compute").then(OTHER)
        .otherwise(-1)
    ).to_series()  # fmt: skip
    codes = codes_of(meant["name"])
    roles = np.full(int(codes.max(initial=-1)) + 2, -1, np.int8)  # the last one is of no name
    roles[codes] = role.to_numpy()
    roles[-1] = -1
    return roles


def _role_of(rows: pl.DataFrame, roles: Array) -> pl.Series:
    codes = codes_of(rows["name"])
    kernel = rows["kind"].cast(pl.String).is_in(["compute", "collective"]).to_numpy()
    known = np.where((codes < roles.size - 1) & kernel, codes, -1)
    return pl.Series("role", roles[known])


def _computing(ops: Stream, roles: Array) -> pl.DataFrame:
    """Return the stream of each process and GPU on which most of the layers run; `line` counts."""
    parts = []
    for number in range(len(ops)):
        rows = ops.read(number, *_COLUMNS)
        layers = rows.filter(_role_of(rows, roles) == LAYER)
        parts.append(layers.group_by(_STREAM).agg(ns=(pl.col("end") - pl.col("start")).sum()))
    sums = pl.concat(parts).group_by(_STREAM).agg(pl.col("ns").sum())
    share = pl.col("ns") / pl.col("ns").sum().over("process", "device")
    chosen = sums.filter(share > CHOSEN.computing_stream).sort(_STREAM)
    return chosen.drop("ns").with_row_index("line").cast({"line": pl.Int32})


def _placed(
    ops: Stream,
    launches: Callable[[int], Mapping[str, Array]],
    roles: Array,
    streams: pl.DataFrame,
    structures: Structures,
    exchanges: int,
) -> pl.DataFrame:
    """Return what lies around each collective on its GPU's computing stream."""
    found = Exchanges(*(_nothing(name, exchanges) for name in Exchanges._fields))
    lines = streams.height
    sizes = {"earlier": exchanges, "count": 1}
    state = PlaceState(*(_nothing(name, sizes.get(name, lines)) for name in PlaceState._fields))
    loop = compiled(place_exchanges, ops.height)
    for number in range(len(ops)):
        rows, first, launch = ops.read(number, *_COLUMNS), ops.first[number], launches(number)
        on = rows.select(_STREAM).join(
            streams.with_columns(computes=pl.lit(value=True)),
            on=list(_STREAM), how="left", nulls_equal=True, maintain_order="left",
        )  # fmt: skip
        of_gpu = rows.select("process", "device").join(
            streams.select("process", "device", "line"),
            on=["process", "device"], how="left", maintain_order="left",
        )  # fmt: skip
        loop(
            PlaceRows(
                first, given(of_gpu["line"], np.int32, null=-1), _role_of(rows, roles).to_numpy(),
                given(on["computes"].cast(pl.Int8), np.int8, null=0), given(rows["start"]),
                given(rows["end"]), launch["start"], launch["thread"], launch["evidence"],
                structures.stage(first, rows.height),
            ),
            state,
            found,
        )  # fmt: skip
    count = int(state.count[0])
    frame = pl.DataFrame({name: column[:count] for name, column in found._asdict().items()})
    gpu = streams.select(pl.col("line").cast(pl.Int64), "process")
    return frame.join(gpu, on="line", how="left", maintain_order="left").with_columns(
        _streams_of(ops, frame["op"].to_numpy())
    )


def _nothing(name: str, size: int) -> Array:
    """Return what says nothing: the number of nothing, or no evidence and none counted."""
    return np.full(size, 0 if name.endswith(("code", "count")) else -1)


def _streams_of(ops: Stream, numbers: Array) -> list[pl.Series]:
    """Return a number for the stream of some ops, and the codes of their names."""
    parts = [
        ops.read(n, "context", "stream", "name")[
            numbers[(numbers >= ops.first[n]) & (numbers < ops.first[n] + height)] - ops.first[n]
        ]
        for n, height in enumerate(ops.heights)
    ]
    rows = pl.concat(parts)
    return [
        rows.select(pl.struct("context", "stream").rank("dense").alias("on")).to_series(),
        pl.Series("symbol", codes_of(rows["name"])),
    ]


def _told(found: pl.DataFrame, evidence: Evidence, rules: Rules) -> pl.DataFrame:
    """Return ``op, process, place`` of the collectives whose place tells what they are for."""
    # Structure calls all that may exchange gradients an update: here the place is to tell.
    found = found.with_columns(own_structure=-1)
    for who in ("own", "before", "after"):
        launches = found.select("process", *(pl.col(f"{who}_{name}").alias(name) for name in _WHO))
        stages = stages_of_launches(launches, evidence, rules)
        found = found.with_columns(stages.alias(who))
    passes = ["FP", "BP"]
    untold = pl.col("own") == "OTHER"
    found = found.with_columns(own=pl.when(untold).then("before").otherwise("own"), untold=untold)
    between = (
        pl.col("own").is_in(passes)
        & (pl.col("before") == pl.col("own")) & (pl.col("after") == pl.col("own"))
    )  # fmt: skip
    reduces, gathers = pl.col("role").is_in([REDUCES, SCATTERS]), pl.col("role") == GATHERS
    forward, backward = (between & (pl.col("own") == stage) for stage in passes)
    computes, beside = pl.col("computes") == 1, pl.col("beside") == 1
    stream, alike = ["line", "on"], ["line", "on", "symbol"]
    reduced_forward = (forward & reduces).any().over(stream)
    often = (
        forward.sum().over(alike) >= CHOSEN.forward_exchanges * backward.sum().over(alike)
    ) & forward.any().over(alike)
    waited = computes | (
        (between & beside).sum().over(stream) <= CHOSEN.beside * between.sum().over(stream)
    )
    # What backward scatters and forward does not are gradients, of weights that are gathered.
    scatters = pl.col("role") == SCATTERS
    shards = (backward & scatters).any().over("line") & ~(forward & scatters).any().over("line")
    # At the edges of forward, too, no gradients are reduced: those of embeddings and of the loss.
    told_first = (pl.col("after") == "FP") & ~pl.col("untold")
    edges = (pl.col("own") == "FP") & ((pl.col("before") == "FP") | told_first)
    own = (
        (between | (edges & reduced_forward)) & waited
        & ((reduces & reduced_forward & often) | (gathers & reduced_forward)
           | (gathers & computes & ~shards))
    )  # fmt: skip
    moves = (
        ~reduces & pl.col("after").is_in(passes) & (pl.col("own").is_in(passes) | pl.col("untold"))
    )
    place = pl.when(own).then("own").when(moves).then(pl.lit("WU"))
    return found.select("op", "process", place=place).drop_nulls()
