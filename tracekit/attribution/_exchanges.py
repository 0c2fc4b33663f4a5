"""Purpose of collectives and peer copies, from the layer kernels around them.

Gradients come from the backward pass, so an all-reduce between layer kernels (such as matrix
products) of a forward pass does not exchange gradients. It belongs to the forward pass (tensor
parallelism) if nothing is computed at the same time and backward passes also have all-reduces
between their layers, on the same stream; those then belong to the backward pass. All-gathers and
broadcasts before layers move their weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import polars as pl

from tracekit.attribution._arrays import Array, Exchanges, PlaceRows, PlaceState
from tracekit.attribution._evidence import RANGE_STAGE, STAGE
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
from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.attribution._trainers import Teams
from tracekit.attribution._verdict import HINTS, summed
from tracekit.model import KERNEL_KINDS, KIND, KINDS, OPS, STAGES, Stream
from tracekit.support.compiled import compiled, given

_WORD = 0.01
"""Least share of GPU time of collectives with unknown operation that gives a warning."""
_MUCH = 0.05
"""Least share of GPU time of doubtful input that gives a warning."""
_PRODUCT = r"(?i)gemm|gemv|Cijk_|mat_?mul|nvjet|cutlass"
"""Pattern of kernels that multiply matrices."""
_LARGE = 65_536
"""Bytes above which a copy is more than a result or a few numbers."""
MESSAGE = -2
"""Role of a send_recv kernel, which has no place between layers."""
_ROLES = {
    "all_reduce": REDUCES, "reduce": REDUCES, "reduce_scatter": SCATTERS, "all_gather": GATHERS,
    "broadcast": SHARES, "send_recv": MESSAGE,
}  # fmt: skip
_GPU = ("process", "device")
_STREAM = (*_GPU, "context", "stream")
_COLUMNS = (*_STREAM, "name", "kind", "start", "end")
_SAMPLED = 1 << 16
"""Largest number of ops that are used to find computing streams, spread over the trace."""
_IS_KERNEL = np.isin(KINDS, KERNEL_KINDS)
_WHO = ("process", "thread", "code", "structure")
_PEER = ("p2p", "staged")
_FORWARD, _BACKWARD = STAGES.index("FP") + 1, STAGES.index("BP") + 1
_PAIR = ("process", "low", "high")
_COPIES = ("h2d", "d2h", "p2p", "staged")
_HALVES = ("d2h", "h2d")
_PEER_CODES = [KINDS.index(kind) for kind in _PEER]


@dataclass(frozen=True)
class Places:
    """Collectives whose purpose is inferred from the layer kernels around them."""

    op: Array
    """Op numbers, in order."""
    stage: Array
    """Per collective: its stage, as index in the list of stages: FP or BP if it is part of this
    pass, WU (weight update) if it moves weights."""
    process: Array
    """Per collective: number of its process."""

    def of(self, first: int, rows: int) -> Array:
        """Return the stages of `rows` ops from op `first` on: index in the list of stages, plus 1.

        0 for ops that are not in the field `op`.
        """
        found = np.zeros(rows, np.int8)
        begin, end = np.searchsorted(self.op, (first, first + rows))
        found[self.op[begin:end] - first] = self.stage[begin:end] + 1
        return found

    def counts(self) -> pl.DataFrame:
        """Count per process the collectives that are part of a pass (``own``) or move weights."""
        weights = pl.Series("weights", self.stage == STAGES.index("WU"))
        rows = pl.DataFrame([pl.Series("process", self.process, pl.Int32), weights])
        return rows.group_by("process").agg(
            pl.col("weights").sum().cast(pl.Int64), own=(~pl.col("weights")).sum().cast(pl.Int64)
        )


def find_places(
    ops: Stream,
    launches: Callable[..., Mapping[str, Array]],
    known: tuple[pl.DataFrame, Array],
    evidence: Evidence,
    structures: Structures,
    rules: Rules,
) -> Places:
    """Find which collectives of training processes are part of a pass, and which move weights.

    Parameters
    ----------
    launches
        Function of a chunk of ops, or of rows of it, that returns the context of their launches.
    known
        Number of ops by process, name and kind from `count_names`, and the role of each of these
        names (layer, a kind of collective, neither) from `roles_by_name`.
    evidence
        Evidence on launches and processes.
    structures
        Stages and steps of ops that were inferred from threads and launch order.
    rules
        Rules that give names a meaning.
    """
    (counted, roles), trains = known, evidence.processes.filter("trains")["process"]
    of_trainers = counted.filter(np.isin(counted["process"], trains))
    exchanges = int(of_trainers.filter(roles_of(of_trainers, roles) > LAYER)["ops"].sum())
    streams = _computing(ops, roles, trains) if exchanges else pl.DataFrame()
    if streams.is_empty():
        return Places(*np.empty((3, 0), np.int64))
    found = _placed(ops, roles, streams, exchanges)
    exchanges_by_stage = _explained(
        _with_stages(found, ops, launches, evidence, structures, rules)
    ).sort("op")
    return Places(
        exchanges_by_stage["op"].to_numpy(),
        given(exchanges_by_stage["place"].cast(pl.Enum(STAGES)).to_physical(), np.int8),
        exchanges_by_stage["process"].to_numpy(),
    )


def roles_by_name(counted: pl.DataFrame, rules: Rules) -> Array:
    """Return the role of each kernel name (code): layer kernel, a kind of collective, or neither.

    `counted` has the names, see `count_names`. The last entry is for ops without a name.
    """
    classified = classify_kernels(counted.unique("name"), rules, HINTS)
    role = classified.select(
        pl.when(pl.col("kind") == "collective")
        .then(pl.col("collective").cast(pl.String).replace_strict(_ROLES, default=-1))
        .when((pl.col("kind") == "compute") & pl.col("is_layer")).then(LAYER)
        .when(pl.col("kind") == "compute").then(OTHER)
        .otherwise(-1)
    ).to_series()  # fmt: skip
    codes = codes_of(classified["name"])
    roles = np.full(int(codes.max(initial=-1)) + 2, -1, np.int8)
    roles[codes] = role.to_numpy()
    roles[-1] = -1
    return roles


def roles_of(rows: pl.DataFrame, roles: Array) -> pl.Series:
    """Return the role of each op by kernel name: layer kernel, a kind of collective, or neither.

    `roles` has the role of each name code.
    """
    codes, kernel = codes_of(rows["name"]), _IS_KERNEL[given(rows["kind"].to_physical())]
    return pl.Series("role", roles[np.where((codes < roles.size - 1) & kernel, codes, -1)])


def _computing(ops: Stream, roles: Array, processes: pl.Series) -> pl.DataFrame:
    """Return each process's compute stream per GPU: the one with the most time in layer kernels.

    A layer kernel computes a layer of the network; `roles` tells by name code which ones do.
    """
    parts, stride = [], max(1, ops.height // _SAMPLED)
    for number, height in enumerate(ops.heights):
        some = np.arange(-ops.first[number] % stride, height, stride)
        rows = ops.read(number, *_COLUMNS)[some]
        layers = rows.filter(roles_of(rows, roles) == LAYER)
        parts.append(layers.group_by(_STREAM).agg(ns=(pl.col("end") - pl.col("start")).sum()))
    sums = summed(parts, _STREAM, "ns")
    share = pl.col("ns") / pl.col("ns").sum().over(_GPU)
    chosen = (share > THRESHOLDS.computing_stream) & pl.col("process").is_in(processes.implode())
    return sums.filter(chosen).sort(_STREAM).drop("ns")


def _placed(ops: Stream, roles: Array, streams: pl.DataFrame, exchanges: int) -> pl.DataFrame:
    """Return collectives, with the layer kernels before and after each on the compute stream.

    `exchanges` is the number of collectives, `streams` has the compute stream of each GPU.
    """
    found = Exchanges(*(np.full(exchanges, -1) for _ in Exchanges._fields))
    layer, end, waiting, fresh = np.full((4, streams.height), -1)
    earlier, total = np.full(exchanges, -1), np.zeros(1, np.int64)
    state = PlaceState(layer, end, waiting, fresh, earlier, total)
    process, device, context, stream = (given(column, np.int64, null=-1) for column in streams)
    lines = np.full((process.max() + 1, device.max() + 1), -1)
    lines[process, device] = np.arange(streams.height)
    loop = compiled(place_exchanges, ops.height)
    for number in range(len(ops)):
        rows = ops.read(number, *_COLUMNS)
        columns = {
            name: given(rows[name], np.int64, null=-1) for name in (*_STREAM, "start", "end")
        }
        placed = PlaceRows(first=ops.first[number], role=given(roles_of(rows, roles)), **columns)
        loop(placed, lines, (context, stream), state, found)
    return pl.DataFrame(found._asdict()).head(int(state.total[0]))


def _with_stages(
    found: pl.DataFrame,
    ops: Stream,
    launches: Callable[..., Mapping[str, Array]],
    evidence: Evidence,
    structures: Structures,
    rules: Rules,
) -> pl.DataFrame:
    """Add to collectives process, thread, stream, name, and stages by ranges, threads and order.

    ``own`` is the stage of the collective; ``before`` and ``after`` are the stages of the layer
    kernels around it, whose threads are added as well. ``on`` is context and stream, ``symbol`` the
    code of the kernel name. Kernel names and neighbouring layers are not used for these stages.
    """
    ids = pl.concat([found[name] for name in ("op", "before", "after")]).unique()
    launched = _launched(ops, launches, ids.filter(ids >= 0).sort().to_numpy(), structures)
    # Structure calls all that may exchange gradients an update: here the place is to tell.
    alone = launched.select(*_WHO[:-1], structure=pl.lit(-1, pl.Int8))
    both = stages_of_launches(pl.concat([launched.select(_WHO), alone]), evidence, rules)
    known, own = launched.with_columns(both[: launched.height]), both[launched.height :]
    found = found.join(launched.drop("code", "structure").with_columns(own=own), on="op")
    sides = ("before", "after")
    found = found.rename({side: f"{side}_op" for side in sides})
    for side in sides:
        names = {"op": f"{side}_op", "stage": side, "thread": f"{side}_thread"}
        layers = pl.DataFrame([known[column].alias(name) for column, name in names.items()])
        found = found.join(layers, on=f"{side}_op", how="left")
    return found


def _launched(
    ops: Stream,
    launches: Callable[..., Mapping[str, Array]],
    numbers: Array,
    structures: Structures,
) -> pl.DataFrame:
    """Return of the ops `numbers` ``op, on, symbol`` (id, stream, name code), and stage evidence.

    The evidence is on the stage (such as FP, BP, WU): ranges and threads of the launch, and launch
    order.
    """
    parts = []
    for number, height in enumerate(ops.heights):
        first = ops.first[number]
        rows = numbers[(numbers >= first) & (numbers < first + height)] - first
        launch = launches(number, rows)
        parts.append(
            ops.read(number, *_COLUMNS)[rows].with_columns(
                op=pl.Series(rows + first), thread=pl.Series(launch["thread"]),
                code=pl.Series(launch["evidence"]),
                structure=pl.Series(structures.read(number, height)[0][rows]),
            )
        )  # fmt: skip
    found = pl.concat(parts)
    return found.select(
        "op", *_WHO, on=pl.struct("context", "stream"), symbol=pl.Series(codes_of(found["name"])),
        ns=pl.col("end") - pl.col("start"),
    )  # fmt: skip


def _explained(found: pl.DataFrame) -> pl.DataFrame:
    """Return ``op, process, place`` of collectives whose stage the layer kernels around them show.

    ``place`` is that stage (such as FP, BP, WU). Layer kernels compute a layer of the network.
    """
    untold = pl.col("own") == "OTHER"
    found = found.with_columns(own=pl.when(untold).then("before").otherwise("own"), untold=untold)
    # One expression of all would be computed anew wherever it is used.
    for columns in _by_place(THRESHOLDS.both_passes, THRESHOLDS.beside):
        found = found.with_columns(**columns)
    return found[["op", "process", "place"]].drop_nulls("place")


@cache
def _by_place(both_passes: float, at_most_beside: float) -> list[dict[str, pl.Expr]]:
    """Return dicts of columns to add to collectives, one after the other; the last has ``place``.

    ``place`` is the stage that the layer kernels around a collective imply, null if it is unclear.
    `both_passes` is the least ratio of a collective's time between layers of one pass (forward,
    backward) to that of the other, each as count times median; `at_most_beside` the largest share
    that may overlap kernels of the compute stream.
    """
    passes = ["FP", "BP"]
    is_between = (
        pl.col("own").is_in(passes)
        & (pl.col("before") == pl.col("own")) & (pl.col("after") == pl.col("own"))
    ).fill_null(value=False)  # fmt: skip
    between, forward, backward = map(pl.col, ("between", *passes))
    reduces, gathers = pl.col("role").is_in([REDUCES, SCATTERS]), pl.col("role") == GATHERS
    computes, beside = pl.col("computes") == 1, pl.col("beside") == 1
    stream, alike = ["line", "on"], ["line", "on", "symbol"]
    usual = {n: pl.sum(n) * pl.col("ns").filter(n).median().fill_null(0) for n in passes}
    # Both passes hold what belongs to them; else a pass may be called what it is not.
    most, least = (each("^usual .*$") for each in (pl.max_horizontal, pl.min_horizontal))
    often = (least > 0) & (least >= both_passes * most)
    # Forward computes nothing beside what its next layer needs; backward may, weights' gradients.
    waited = computes | (
        (forward & beside).sum().over(stream) <= at_most_beside * forward.sum().over(stream)
    )
    # Statistics that forward gathers, backward reduces as often.
    answers = computes & backward & (pl.col("role") == REDUCES)
    answered = answers & (
        (answers.sum() - (computes & forward & gathers).sum()).over("line").abs()
        <= at_most_beside * answers.sum().over("line")
    )
    # What backward scatters and forward does not are gradients, of weights that are gathered.
    scatters = pl.col("role") == SCATTERS
    shards = (backward & scatters).any().over("line") & ~(forward & scatters).any().over("line")
    # Features are gathered where weights are whole: gradients are reduced beside backward.
    takes, returns = forward & gathers, backward & reduces & ~beside
    taken, returned = (each.sum().cast(pl.Int64) for each in (takes, returns))
    features = (takes | returns) & (
        (backward & reduces & ~scatters & beside).any()
        & ~((takes | (backward & scatters)) & beside).any() & ~(backward & gathers).any()
        & ((taken - returned).abs() <= at_most_beside * returned)
    ).over("line")  # fmt: skip
    # Keys are gathered beside weights, on another stream that computing waits for.
    scattered = backward & scatters
    alone = ((beside.mean() <= at_most_beside) & takes.any() & scattered.any()).over(stream)
    keys = alone & (takes | (backward & gathers) | scattered) & (
        (gathers & ~alone).any() & (scattered & beside).any()
    ).over("line")  # fmt: skip
    # At the edges of forward, too, no gradients are reduced: those of embeddings and of the loss.
    # At the end of backward may be one of its last layer, where averaged gradients come in a row.
    # Backward begins with a gather where forward ends with a scatter.
    told_first = (
        (pl.col("after") == pl.col("own")) & ~pl.col("untold")
        & ((pl.col("own") == "FP") | (gathers & (pl.col("own") == "BP")))
    )  # fmt: skip
    told_last = (
        (pl.col("own") == "BP") & (pl.col("before") == "BP")
        & (pl.col("thread") == pl.col("before_thread"))
        & (~pl.col("untold") | (pl.col("thread") != pl.col("after_thread")))
        & (pl.len().over(*alike, "own", "before_op", "thread") == 1)
    )  # fmt: skip
    ends = (pl.col("own") == "FP") & (pl.col("before") == "FP")
    edges = pl.any_horizontal(ends, told_first, told_last).fill_null(value=False)
    is_of_pass = (
        (between | (edges & pl.col("reduced_forward"))) & waited
        & ((reduces & often) | ((gathers | (pl.col("own") == "FP")) & pl.col("reduced_forward"))
           | (gathers & computes & ~shards) | answered)
    ) | features | keys  # fmt: skip
    moves = (
        ~reduces & pl.col("after").is_in(passes) & (pl.col("own").is_in(passes) | pl.col("untold"))
    )
    return [
        {"between": is_between},
        {stage: between & (pl.col("own") == stage) for stage in passes},
        {f"usual {each}": usual[each].over(alike) for each in passes},
        {"reduced_forward": (forward & reduces & often).any().over(stream)},
        {"place": pl.when(is_of_pass).then("own").when(moves).then(pl.lit("WU"))},
    ]


def find_handing(
    ops: Stream, launches: Callable[[int], Mapping[str, Array]], teams: Teams, ranges: pl.DataFrame
) -> pl.Series:
    """Return the processes whose copies between GPUs all carry activations, as in a pipeline.

    In such a process, several threads train. Between two GPUs, copies launched in forward ranges go
    one way; copies launched in backward ranges by another training thread go the other way
    (gradients of activations) and have the same sizes. In at least one step, copies are launched at
    several times in forward ranges; copies of weights, which change once per step, would be
    launched at one time. No other copies between these GPUs exist.

    Parameters
    ----------
    launches
        Function: number of a chunk of ops -> columns of the calls that launched these ops.
    teams
        Training threads with their helper threads.
    ranges
        The ranges that may mark steps, passes or evaluation.
    """
    is_further = teams.trainers["team"] != teams.trainers["process"]
    several = teams.trainers["process"].filter(is_further).unique()
    if several.is_empty() or not len(ops):
        return several.clear()
    parts = (_copies(ops, number, launches, several) for number in range(len(ops)))
    copies = pl.concat(parts)
    forward = ranges.filter((pl.col("stage") == "FP") & ~pl.col("covered")).select(
        "thread", "start", launch="start"
    )
    placed = copies.with_columns(team=teams.of(copies)).sort("launch").join_asof(
        forward.sort("launch"), on="launch", by="thread", check_sortedness=False
    )  # fmt: skip
    pairs = placed.group_by(_PAIR).agg(hands_on=_hands_on())
    return pairs.group_by("process").agg(pl.col("hands_on").all()).filter("hands_on")["process"]


def _copies(
    ops: Stream, number: int, launches: Callable[[int], Mapping[str, Array]], processes: pl.Series
) -> pl.DataFrame:
    """Return the copies between GPUs of a chunk, with range, step and stage of their launches.

    Only the copies of the given `processes` are returned; `number` is the number of the chunk.
    """
    launch = launches(number)
    rows = ops.read(number, "process", "kind", "src_device", "dst_device", "bytes")
    ends = ("src_device", "dst_device")
    return rows.with_columns(
        pl.Series("thread", launch["thread"].astype(np.int32)),
        pl.Series("launch", launch["start"]),
        pl.Series("step", launch["step"]),
        stage=pl.Series(launch["evidence"] >> RANGE_STAGE & STAGE),
        low=pl.min_horizontal(ends),
        high=pl.max_horizontal(ends),
    ).filter(
        pl.col("kind").cast(pl.String).is_in(_PEER)
        & pl.col("process").is_in(processes.implode())
        & (pl.col("thread") >= 0)
    )


def _hands_on() -> pl.Expr:
    """Return an expression over copies: whether those between two GPUs carry activations.

    That is so in a pipeline; `find_handing` states the conditions.
    """
    forward, backward = (pl.col("stage") == stage for stage in (_FORWARD, _BACKWARD))
    sources = [pl.col("src_device").filter(way) for way in (forward, backward)]
    sizes = [pl.col("bytes").filter(way).unique().sort().implode() for way in (forward, backward)]
    teams = [pl.col("team").filter(way) for way in (forward, backward)]
    moments = pl.struct("step", "start").filter(forward).n_unique()
    steps = pl.col("step").filter(forward).n_unique()
    one_way = [(each.n_unique() == 1) for each in (*sources, *teams)]
    return (
        (forward | backward).all()
        & pl.all_horizontal(one_way)
        & (sources[0].first() != sources[1].first())
        & (teams[0].first() != teams[1].first())
        & (sizes[0] == sizes[1]).first()
        & (moments > steps)
    )


def find_relayed(
    ops: Stream, launches: Callable[[int], Mapping[str, Array]], threads: pl.Series
) -> Array:
    """Return the ids of the copies that together move data from GPU to GPU through the host.

    Such copies come in pairs launched by one thread: a copy from a GPU to the host, then a copy of
    as many bytes from the host to another GPU, which starts after the first copy has ended. Small
    copies do not count.

    Parameters
    ----------
    launches
        Function: number of a chunk of ops -> ``thread`` and ``start`` of their launching calls.
    threads
        The threads whose copies are examined.
    """
    if threads.is_empty() or not _may_be_relayed(ops):
        return np.empty(0, np.int64)
    copies = pl.concat(
        _relayed_copies(ops, number, launches, threads) for number in range(len(ops))
    )
    before = pl.col("op", "kind", "bytes", "device", "end").shift(1).over("thread")
    pairs = (
        copies.sort("thread", "launch", "op")
        .with_columns(before.name.suffix("_before"))
        .filter(
            (pl.col("kind") == "h2d") & (pl.col("kind_before") == "d2h")
            & (pl.col("bytes") == pl.col("bytes_before"))
            & (pl.col("bytes") >= THRESHOLDS.relayed_bytes)
            & (pl.col("device") != pl.col("device_before"))
            & (pl.col("start") >= pl.col("end_before"))
        )
    )  # fmt: skip
    return pl.concat([pairs["op"], pairs["op_before"]]).sort().to_numpy()


def _may_be_relayed(ops: Stream) -> bool:
    """Test whether a device-to-host copy and another GPU's host-to-device copy have equal size.

    If there are none, `find_relayed` need not examine any launch.
    """
    devices = [ops.read(number, "device")["device"] for number in range(len(ops))]
    if len({each for some in devices for each in (some.min(), some.max())}) <= 1:
        return False
    kinds = pl.Series(_HALVES, dtype=KIND).implode()
    halves = pl.col("kind").is_in(kinds) & (pl.col("bytes") >= THRESHOLDS.relayed_bytes)
    columns = ("kind", "bytes", "device")
    parts = (ops.read(number, *columns).filter(halves).unique() for number in range(len(ops)))
    sizes = pl.concat([OPS.empty().select(columns), *parts]).unique()
    to_host, from_host = (sizes.filter(pl.col("kind") == kind) for kind in _HALVES)
    pairs = from_host.join(to_host, on="bytes").filter(pl.col("device") != pl.col("device_right"))
    return not pairs.is_empty()


def _relayed_copies(
    ops: Stream, number: int, launches: Callable[[int], Mapping[str, Array]], threads: pl.Series
) -> pl.DataFrame:
    """Return the copies of chunk `number` that `threads` launched."""
    launch, first = launches(number), ops.first[number]
    rows = ops.read(number, "kind", "bytes", "device", "start", "end")
    return rows.select(
        pl.int_range(first, first + pl.len(), dtype=pl.Int64).alias("op"),
        pl.col("kind").cast(pl.String), "bytes", "device", "start", "end",
        pl.Series("thread", launch["thread"].astype(np.int32)),
        pl.Series("launch", launch["start"]),
    ).filter(pl.col("kind").is_in(_COPIES) & pl.col("thread").is_in(threads.implode()))  # fmt: skip


class Doubtful:
    """Adds up the GPU time of ops whose purpose is uncertain, and of kernels that the host awaits.

    Collectives whose kernel names lack the operation (as with RCCL) may exchange gradients. Large
    copies to the GPU that count as input or evaluation may bring back data that was moved to the
    host before. Copies to the host that count as weight update, only because of their place in the
    order of launches, may fetch results. Messages that all count as forward pass, by that order,
    may carry gradients. A call that returns after the kernel that it launched has ended made the
    host wait; if such kernels take most of the kernel time, all launches may be blocking.
    """

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()

    def add(self, ops: pl.DataFrame) -> None:
        """Add the ops in a chunk of the table of ops."""
        kind, stage, source = map(pl.col, ("kind", "stage", "stage_source"))
        ns, large = pl.col("end") - pl.col("start"), pl.col("bytes") > _LARGE
        in_passes = pl.any_horizontal(stage == each for each in ("FP", "BP", "OTHER"))
        unnamed = (pl.col("collective") == "unknown") & in_passes
        brings, fetches = (large & (kind == each) for each in ("h2d", "d2h"))
        brings &= stage.is_in(["IO", "ME"])
        # While a large graph is launched, its first kernels may end.
        computes = (kind == "compute") & pl.col("graph_node").is_null()
        message = (pl.col("collective") == "send_recv") & (source == "structure")
        sums = ops.select(
            unnamed=ns.filter(unnamed).sum(),
            input=ns.filter(brings).sum(),
            brought=pl.col("bytes").filter(brings).sum(),
            fetched=pl.col("bytes").filter(fetches).sum(),
            update=ns.filter(fetches & (stage == "WU") & (source == "structure")).sum(),
            forward=ns.filter(message & (stage == "FP")).sum(),
            backward=ns.filter(message & (stage == "BP")).sum(),
            kernels=ns.filter(computes).sum(),
            awaited=ns.filter(computes & (pl.col("launch_end") >= pl.col("end"))).sum(),
        )
        self._sums.update(sums.row(0, named=True))

    def warnings(self, opinions: pl.DataFrame) -> Iterator[str]:
        """Yield a warning if ops that are in doubt (see the class) take much of all GPU time.

        `opinions` has the GPU time of all ops, by stage and evidence; only its total is used.
        """
        sums, total = self._sums, _time_of(opinions)
        share = {n: f"{100 * ns / max(total, 1):.0f} % of GPU time" for n, ns in sums.items()}
        if sums["unnamed"] > _WORD * total:
            yield (
                f"kernels of collectives that do not name their operation take {share['unnamed']}: "
                "which of them exchange gradients is not known, so any of them in backward passes "
                "have no stage"
            )
        if sums["input"] > _MUCH * total and 2 * sums["fetched"] >= sums["brought"]:
            yield (
                f"what counts as input, {sums['brought'] / 1e6:,.0f} MB and {share['input']}, may "
                f"be weights or activations that come back: {sums['fetched'] / 1e6:,.0f} MB are "
                "copied to the host"
            )
        if sums["update"] > _MUCH * total:
            yield (
                f"copies to the host, {share['update']}, count as weight update for their place "
                "after a backward pass: they may be results"
            )
        if sums["forward"] > max(_MUCH * total, 10 * sums["backward"]):
            yield (
                f"messages to other processes, {share['forward']}, count as forward pass for their "
                "place between two backward passes: in a pipeline they may carry gradients"
            )
        if 2 * sums["awaited"] > sums["kernels"]:
            yield (
                f"kernels of {sums['awaited'] / 1e6:,.3f} of {sums['kernels'] / 1e6:,.3f} ms end "
                "before the calls that launch them return (CUDA_LAUNCH_BLOCKING=1?): time that the "
                "host waits in these calls counts as its own work"
            )


class Compressed:
    """Counts backward passes in which matrix products follow the last exchange of gradients.

    At the last exchange, all gradients of the pass exist. Matrix products after the last exchange
    may restore gradients that were compressed, as PowerSGD does. The last step of each process in a
    chunk may go on in the next chunk, and is left out.
    """

    def __init__(self) -> None:
        self._passes = self._followed = 0

    def add(self, ops: pl.DataFrame) -> None:
        """Count backward passes (see `Compressed`) in a chunk of the table of ops."""
        pass_ = ["process", "device", "launch_thread", "iteration"]
        stage, source = pl.col("stage"), pl.col("stage_source")
        exchanges = ops.filter(pl.col("kind") == "collective", stage == "WU").drop_nulls(pass_)
        if exchanges.is_empty():
            return
        last = exchanges.group_by(pass_).agg(exchanged=pl.col("launch_start").max())
        ended = last.filter(pl.col("iteration") < pl.col("iteration").max().over("process"))
        by_thread = (source == "backward_thread") | (source == "structure")
        backward = ops.filter(stage == "BP", by_thread).select(*pass_, "launch_start", "name")
        late = backward.join(ended, on=pass_).filter(pl.col("launch_start") > pl.col("exchanged"))
        is_product = pl.col("name").cast(pl.String).str.contains(_PRODUCT)
        self._passes += ended.height
        self._followed += late.filter(is_product).select(pass_).n_unique()

    def warnings(self, _: pl.DataFrame) -> Iterator[str]:
        """Yield a warning if such products follow most passes."""
        if self._passes < 2 * self._followed:
            yield (
                f"matrix products follow the last exchange of gradients in {self._followed:,} of "
                f"{self._passes:,} backward passes: they may restore compressed gradients, as "
                "PowerSGD does, and count as BP like those that compress; a range `powerSGD_hook` "
                "in the hook makes them WU"
            )


class Split:
    """Counts steps in which copies between two GPUs hold up a forward and a backward pass.

    In a model that is split over GPUs, the forward pass of the second one needs activations of the
    first, and the backward pass of the first needs gradients of the second. Copies of replicas'
    weights and gradients hold up at most one of the two passes. Only copies that were taken for an
    exchange of gradients are examined, and only steps whose first ops are in the same chunk as the
    copies.
    """

    def __init__(self) -> None:
        self._steps = self._split = self._ns = 0

    def add(self, ops: pl.DataFrame) -> None:
        """Add the steps with copies between GPUs, from a chunk of the table of ops."""
        is_peer = np.isin(given(ops["kind"].to_physical()), _PEER_CODES)
        if not is_peer.any():
            return
        kind, stage, source = (pl.col(n).cast(pl.String) for n in ("kind", "stage", "stage_source"))
        peers = ops.filter(is_peer)
        copies = peers.filter(source == "gradient_exchange", pl.col("iteration").is_not_null())
        if copies.is_empty():
            return
        step = ["process", "iteration"]
        first = copies.sort("start").unique([*step, "src_device", "dst_device"], keep="first")
        begun = ops.filter(kind == "compute", stage.is_in(["FP", "BP"])).group_by(
            *step, "device", stage
        ).agg(pl.col("start").min())  # fmt: skip
        held = (
            first.select(*step, "start", "end", "src_device", "dst_device")
            .join(begun.rename({"device": "src_device", "start": "made"}), on=[*step, "src_device"])
            .join(
                begun.rename({"device": "dst_device", "start": "used"}),
                on=[*step, "dst_device", "stage"],
            )
            .filter(pl.col("made") <= pl.col("start"), pl.col("used") >= pl.col("end"))
        )
        both = held.filter(stage == "FP").join(
            held.filter(stage == "BP"), left_on=[*step, "src_device", "dst_device"],
            right_on=[*step, "dst_device", "src_device"], how="semi",
        )  # fmt: skip
        self._steps += copies.select(step).n_unique()
        self._split += both.select(step).n_unique()
        self._ns += int((copies["end"] - copies["start"]).sum())

    def warnings(self, opinions: pl.DataFrame) -> Iterator[str]:
        """Yield a warning if copies that may carry activations take much of all GPU time.

        `opinions` has the GPU time of all ops, by stage and evidence; only its total is used.
        """
        total = _time_of(opinions)
        if 2 * self._split > self._steps and self._ns > _WORD * total:
            yield (
                f"copies between GPUs, {100 * self._ns / total:.0f} % of GPU time, count as weight "
                f"update; in {self._split:,} of {self._steps:,} steps a GPU begins its passes only "
                "after one from another GPU: they may carry activations of a model that is split "
                "over GPUs"
            )


def _time_of(opinions: pl.DataFrame) -> int:
    """Return the total duration of all ops in the table `opinions`, ns."""
    source, other = (pl.col(name).cast(pl.String) for name in ("stage_source", "other_source"))
    return int(opinions.filter(source == other)["total_ns"].sum())
