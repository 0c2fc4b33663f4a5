"""Judge each process (does it train?), and infer its stages if need be, before ops get theirs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from tracekit.attribution._arrays import Array
from tracekit.attribution._exchanges import (
    MESSAGE,
    Places,
    find_handing,
    find_places,
    find_relayed,
    roles_of,
)
from tracekit.attribution._nesting import Nesting
from tracekit.attribution._op_loops import LAYER, OTHER
from tracekit.attribution._rules import Rules
from tracekit.attribution._stages import Evidence, stages_of_launches
from tracekit.attribution._structuring import SECOND_OPINION, Structures, find_structures
from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.attribution._trainers import Teams
from tracekit.attribution._verdict import judge, kernel_hints, summed, with_places
from tracekit.model import STAGES, TABLES, Stream
from tracekit.support.compiled import given
from tracekit.support.spool import Workspace

_PASSES = ("FP", "BP", "WU")
_Placing = Callable[..., Mapping[str, Array]]


@dataclass(frozen=True)
class Known:
    """Facts about processes (ranges, threads, kernel counts) that show which processes train."""

    nesting: Nesting
    """Parents, depths and flags of the ranges."""
    teams: Teams
    """Training threads with their helper threads."""
    windows: pl.DataFrame
    """Backward windows (intervals in which a backward pass may run), with ``process`` and
    ``ranged`` (whether a range of a backward pass marks the window)."""
    autograd: pl.Series
    """Threads that run backward passes."""
    threads: pl.DataFrame
    """The threads, with the stage that each name implies."""
    by_thread: Array
    """Number of ops by launching thread."""
    processes: pl.DataFrame
    """``process, report`` of all processes in the recording; a report is a trace file."""
    iterations: pl.DataFrame
    """The iterations (training steps) that ranges mark. Those found by repetition of ranges have no
    name."""
    counted: pl.DataFrame
    """Number of ops by process, name and kind, from `count_names`."""
    roles: Array
    """Role of each name in `counted` (layer, collective, neither), from `roles_by_name`."""

    @cached_property
    def passes(self) -> pl.DataFrame:
        """``process, stage, count``: number of ranges of passes on training threads."""
        skeleton = self.nesting.skeleton
        trains = pl.struct("process", "thread").is_in(
            self.teams.trainers.select(pl.struct("process", "thread")).to_series().implode()
        )
        return (
            skeleton.filter(
                ~pl.col("apart") & pl.col("stage").is_in(_PASSES) & (trains | ~pl.col("pushes"))
            )
            .group_by("process", "stage")
            .agg(count=pl.len())
        )

    @cached_property
    def backward_threads(self) -> pl.DataFrame:
        """``process, count``: number of autograd threads that launch ops or have markers.

        Markers are ranges that mark work of the backward pass, such as PyTorch's autograd
        functions.
        """
        works = self.by_thread[self.threads["thread"].to_numpy()] > 0
        marked = np.isin(self.threads["thread"], self.nesting.marked)
        is_autograd = np.isin(self.threads["thread"], self.autograd)
        kept = self.threads.filter((is_autograd & works) | marked)
        return kept.group_by("process").agg(count=pl.len())

    def serving(self, rules: Rules) -> pl.DataFrame:
        """Return ``process, count``: number of ranges typical of model servers."""
        serve = [n for n, entry in enumerate(rules["iteration"]) if entry.get("serves")]
        of_servers = self.nesting.skeleton.filter(pl.col("rule").is_in(serve))
        return of_servers.group_by("process").agg(count=pl.len())

    def launched(self) -> dict[int, int]:
        """Return process -> number of ops with a known launching call."""
        counts = pl.Series("count", self.by_thread[self.threads["thread"].to_numpy()])
        per_thread = pl.DataFrame([self.threads["process"], counts])
        return dict(per_thread.group_by("process").agg(pl.col("count").sum()).iter_rows())

    @cached_property
    def loaders(self) -> pl.DataFrame:
        """``process, thread``: data loaders, by thread or range name, that launch GPU work."""
        works = self.by_thread[self.threads["thread"].to_numpy()] > 0
        in_ranges = np.isin(self.threads["thread"], self.nesting.loading)
        drives = np.isin(self.threads["thread"], self.teams.trainers["thread"])
        loads = (pl.col("stage") == "IO").fill_null(value=False) | pl.lit(in_ranges)
        return self.threads.filter(loads, works & ~drives)[["process", "thread"]]


_STREAM = ("process", "context", "stream")


@dataclass(frozen=True)
class Verdicts:
    """Verdicts on processes (such as training, inference), and the evidence for stages of ops."""

    evidence: Evidence
    """Evidence on launches and processes that decides stages."""
    verdicts: pl.DataFrame
    """``process, verdict, given, evidence, trains, infers``: `verdict` is what the process does,
    `given` whether the user set it, `evidence` a sentence, and the last two whether it trains or
    runs inference."""
    structures: Structures
    """Stages and steps of ops inferred from structure (threads and launch order)."""
    decides: Sequence[int]
    """Processes whose stages are taken from structure, at least where ranges give none."""
    counts_steps: Sequence[int]
    """Processes whose iterations (training steps) are taken from structure."""
    serves: Sequence[int]
    """Processes whose forward ranges count as requests and not as steps: they show no training, and
    another process trains."""
    with_work: pl.Series
    """Processes with recorded GPU work."""
    input_streams: pl.DataFrame
    """``process, context, stream``: streams on which only data loaders are known to launch."""
    relayed: Array
    """Ids of the ops with which backward threads copy data between GPUs through the host; see
    `find_relayed`."""
    places: Places
    """Collectives whose purpose is known from the layer kernels around them."""
    reading: str | None = None
    """The user's definition of a step, see `Rules`."""

    def are_relayed(self, first: int, rows: int) -> Array:
        """Mask ops with which backward threads relay data between GPUs through the host.

        The mask is of `rows` ops from number `first` on.
        """
        found = np.zeros(rows, np.bool_)
        begin, end = np.searchsorted(self.relayed, (first, first + rows))
        found[self.relayed[begin:end] - first] = True
        return found

    def on_input_stream(self, ops: pl.DataFrame, threads: Array) -> Array:
        """Mask ops without a known launch on streams to which only data loaders launch work."""
        unknown = threads < 0
        if self.input_streams.is_empty() or not unknown.any():
            return np.zeros(ops.height, np.bool_)
        found = ops.select(_STREAM).join(
            self.input_streams.with_columns(found=pl.lit(value=True)),
            on=_STREAM, how="left", nulls_equal=True, maintain_order="left",
        )["found"]  # fmt: skip
        on_input: Array = found.fill_null(value=False).to_numpy() & unknown
        return on_input

    def iteration(self, ops: pl.DataFrame, step: Array) -> pl.Series:
        """Return the iteration of each op where steps are inferred from launch order; else null.

        `step` is the number of each op's inferred step.
        """
        steps = pl.Series(step, dtype=pl.Int64)
        in_steps = ops["process"].is_in(list(self.counts_steps)) & (steps >= 0)
        return steps.set(~in_steps, None)

    def table(self, cut: pl.DataFrame, reports: Mapping[int, int]) -> pl.DataFrame:
        """Return the table ``verdicts``: what each process does, and how its stages are known.

        `cut` is the result of the function `cuts`; `reports` has the trace file of each process.
        """
        rows = [self._verdict_row(process) for process in self.verdicts["process"]]
        process = self.verdicts["process"]
        return (
            self.verdicts.drop("trains", "infers")
            .with_columns(
                pl.DataFrame(rows, schema=_TOLD, orient="row"),
                report=process.replace_strict(reports, default=0, return_dtype=pl.Int32),
            )
            .join(cut, on="process", how="left")
        )

    def assumptions(self, reports: Mapping[int, int]) -> pl.DataFrame:
        """Return the table of assumptions behind inferred stages, of processes found to train."""
        found = ((p, f) for p, f in sorted(self.structures.of.items()) if f.training)
        rows = [
            (reports.get(process, 0), process, each.name, each.result, each.doubt_ns, each.said)
            for process, structure in found
            for each in structure.assumptions
        ]
        return pl.DataFrame(rows, schema=TABLES["assumptions"].schema, orient="row")

    def _verdict_row(self, process: int) -> tuple[object, ...]:
        found = self.structures.of.get(process)
        decides = process in self.decides and found is not None and bool(found.training)
        if found is None:
            return (None, decides, *(None for _ in range(len(_TOLD) - 3)), self._steps_by(process))
        return (
            found.method,
            decides,
            "; ".join(found.evidence) or None,
            "; ".join(found.contradictions) or None,
            found.gaps,
            found.usual_gaps,
            found.doubt_ns if found.training else None,
            found.period,
            found.repeats,
            self._steps_by(process),
        )

    def _steps_by(self, process: int) -> str | None:
        """Describe the definition of a step in use for a process whose steps were inferred.

        None if there was no choice and the user asked for none.
        """
        if process in self.counts_steps:
            return self.structures.of[process].reading
        if process in self.serves:
            return (
                "its forward ranges count as requests and not as steps: it shows no training, and "
                "another process trains"
            )
        no_steps = "`--step` finds none: ranges name the steps, or the order of launches shows none"
        return None if self.reading is None else no_steps


_TOLD = {
    "structure": pl.String, "decides": pl.Boolean, "structure_evidence": pl.String,
    "contradictions": pl.String, "gaps": pl.Int64, "usual_gaps": pl.Int64, "doubt_ns": pl.Int64,
    "period": pl.Int64, "repeats": pl.Float64, "steps_by": pl.String,
}  # fmt: skip


def judge_all(
    ops: Stream,
    launches: Callable[..., Mapping[str, Array]],
    known: Known,
    rules: Rules,
    workspace: Workspace,
    *,
    has_unlaunched: bool,
) -> Verdicts:
    """Decide what each process does, such as training; infer stages that its ranges do not give.

    Parameters
    ----------
    launches
        Function of a chunk of ops, or of rows of it, that returns the context of their launches.
    known
        Ranges, threads and kernel counts of processes.
    workspace
        Memory budget and folder for ops.
    has_unlaunched
        Whether there are ops without a known launching call.
    """
    signs = kernel_hints(known.counted, rules)
    seen = pl.Series(sorted({*known.processes["process"], *signs["process"]}), dtype=pl.Int32)
    untold = _untold(known, seen)
    launched = known.launched()
    left = _left_by_ranges(ops, launches, known, set(seen) - untold, rules)
    unexplained = [
        process
        for process, count in sorted(signs[["process", "ops"]].iter_rows())
        if (process in untold or process in left or count <= SECOND_OPINION)
        # The order in which ops start says neither who launched them nor when.
        and 2 * launched.get(process, 0) >= count
    ]
    structures = find_structures(
        ops, launches, unexplained, _main_threads(known.threads), rules, workspace
    )
    claims = {process: bool(found.training) for process, found in structures.of.items()}
    verdicts = judge(
        seen, known.passes, known.backward_threads, known.serving(rules), signs, claims, rules
    )
    trains = set(verdicts.filter("trains")["process"])
    decides = [
        process for process in unexplained
        if process in untold and process in trains and structures.of[process].training
    ]  # fmt: skip
    spoken_of, named = set(known.nesting.skeleton["process"]), set(known.iterations["process"])
    counts_steps = [
        process
        for process in unexplained
        if process not in named
        and structures.of[process].steps.height > 1
        # Of a network that does not train, a period may be that of its layers, which ranges tell;
        # beside one that trains, its requests are no steps of the run.
        and (process in trains or not (trains or process in spoken_of))
    ]
    repeats = set(known.iterations.filter(pl.col("name").is_null())["process"])
    serves = sorted(repeats - trains) if trains & {*named, *counts_steps} else []
    handing = find_handing(ops, launches, known.teams, known.nesting.skeleton)
    claimed = trains & left & {process for process, training in claims.items() if training}
    filled = _filled(ops, launches, known, structures, claimed, rules)
    agreeing = filled["process"].filter(filled["all_agree"])
    evidence = _evidence(known, verdicts, [*decides, *agreeing], handing, filled)
    decides += sorted({*filled["process"].filter(filled["fills"])})
    places = find_places(ops, launches, (known.counted, known.roles), evidence, structures, rules)
    return Verdicts(
        evidence, with_places(verdicts, places.counts()), structures, decides, counts_steps, serves,
        signs["process"],
        _input_streams(ops, launches, known) if has_unlaunched else pl.DataFrame(),
        find_relayed(ops, launches, known.autograd), places, rules.step,
    )  # fmt: skip


def _left_by_ranges(
    ops: Stream, launches: _Placing, known: Known, processes: Collection[int], rules: Rules
) -> set[int]:
    """Return processes in which range and thread names leave much kernel time without a stage.

    Much is more than the share `Thresholds.left`.
    """
    if not processes or not len(ops):
        return set()
    times = _time_of_launches(ops, launches, known, processes, rules)
    sums = times.group_by("process").agg(
        pl.col("ns").sum(), left=pl.col("ns").filter(pl.col("stage") == "OTHER").sum()
    )
    return set(sums.filter(pl.col("left") > THRESHOLDS.left * pl.col("ns"))["process"])


def _filled(
    ops: Stream,
    launches: _Placing,
    known: Known,
    structures: Structures,
    processes: Collection[int],
    rules: Rules,
) -> pl.DataFrame:
    """Return for which threads inferred stages agree with ranges, and so may fill in for ranges.

    Returns
    -------
    ``process, thread, fills, all_agree``, one row per thread that launches kernels. ``all_agree``
    is whether stages inferred from launch order and stages given by ranges agree, by kernel time,
    on the launches of the whole process. ``fills`` is the same for the thread's own launches; it
    equals ``all_agree`` if ranges give stages to too few of these.
    """
    if not processes:
        return _NO_FILLS.with_columns(all_agree="fills")
    times = _time_of_launches(ops, launches, known, processes, rules, structures)
    staged = times.filter(pl.col("stage") != "OTHER", pl.col("structure") >= 0).with_columns(
        agrees=pl.col("stage")
        == pl.col("structure").replace_strict(_STAGE_OF, return_dtype=pl.String)
    )
    sums = times.select("process", "thread").unique().join(
        staged.group_by("process", "thread").agg(
            pl.col("ns").sum(), agreed=pl.col("ns").filter("agrees").sum()
        ),
        on=["process", "thread"], how="left",
    ).with_columns(pl.col("ns", "agreed").fill_null(0))  # fmt: skip
    agrees = pl.col("agreed") > (1 - THRESHOLDS.disagreement) * pl.col("ns")
    of_all = pl.col("ns", "agreed").sum().over("process").name.suffix("_of_all")
    all_agree = pl.col("agreed_of_all") > (1 - THRESHOLDS.disagreement) * pl.col("ns_of_all")
    alone = pl.col("ns") > THRESHOLDS.left * pl.col("ns_of_all")
    fills = pl.when(alone).then(agrees).otherwise(all_agree)
    return sums.with_columns(of_all).select("process", "thread", fills=fills, all_agree=all_agree)


def _time_of_launches(
    ops: Stream,
    launches: _Placing,
    known: Known,
    processes: Collection[int],
    rules: Rules,
    structures: Structures | None = None,
) -> pl.DataFrame:
    """Return the time of kernels and messages of `processes`, by the evidence for their stage.

    Returns
    -------
    ``process``; ``thread``, the launching one; ``code``, the evidence bits of the launch;
    ``structure``, the stage inferred from launch order (-1: none); ``ns``, the kernel time; and
    ``stage``, the stage that ranges and threads give.
    """
    parts = []
    for number, height in enumerate(ops.heights):
        launch = launches(number)
        structure = -1 if structures is None else structures.read(number, height)[0]
        read = ops.read(number, "process", "name", "kind", "start", "end")
        rows = read.select(
            "process", ns=pl.col("end") - pl.col("start"),
            computes=roles_of(read, known.roles).is_in([LAYER, OTHER, MESSAGE])
            | (read["kind"] == "graph"),
            thread=pl.Series(launch["thread"]), code=pl.Series(launch["evidence"]),
            structure=pl.Series(np.broadcast_to(np.asarray(structure, np.int8), height)),
        )  # fmt: skip
        kernels = rows.filter("computes", pl.col("process").is_in(list(processes)))
        parts.append(kernels.group_by(*_LAUNCHED, "structure").agg(pl.col("ns").sum()))
    sums = summed(parts, (*_LAUNCHED, "structure"), "ns")
    alone = sums.select(*_LAUNCHED, structure=pl.lit(-1, pl.Int8))
    trains = pl.DataFrame({"process": list(processes)}, schema={"process": pl.Int32})
    nothing = trains.select("process", trains=False, infers=False)
    evidence = _evidence(known, nothing, [], pl.Series([], dtype=pl.Int32), _NO_FILLS)
    return sums.with_columns(stage=stages_of_launches(alone, evidence, rules))


_NO_FILLS = pl.DataFrame(schema={"process": pl.Int32, "thread": pl.Int32, "fills": pl.Boolean})
_STAGE_OF = dict(enumerate(STAGES))
_LAUNCHED = ("process", "thread", "code")


def _input_streams(
    ops: Stream, launches: Callable[[int], Mapping[str, Array]], known: Known
) -> pl.DataFrame:
    """Return the streams on which all ops with a known launch are launched by data loaders."""
    loaders = known.loaders["thread"]
    if loaders.is_empty():
        return pl.DataFrame()
    parts = [
        ops.read(number, *_STREAM)
        .with_columns(thread=pl.Series(launches(number)["thread"]).cast(pl.Int32))
        .filter(pl.col("thread") >= 0)
        .group_by(_STREAM)
        .agg(loads=pl.col("thread").is_in(loaders.implode()).all())
        for number in range(len(ops))
    ]
    return (
        pl.concat(parts).group_by(_STREAM).agg(pl.col("loads").all()).filter("loads").drop("loads")
    )


def _untold(known: Known, seen: pl.Series) -> set[int]:
    """Return the processes in `seen` that do not show all of FP, BP and WU.

    FP and WU are shown by ranges of passes, BP by such ranges or by a backward thread.
    """
    marked = known.passes.select("process", "stage").rows()
    has = {stage: {process for process, own in marked if own == stage} for stage in _PASSES}
    backward = has["BP"] | (set(known.backward_threads["process"]) & set(known.windows["process"]))
    return set(seen) - (has["FP"] & has["WU"] & backward)


def _main_threads(threads: pl.DataFrame) -> dict[int, int]:
    """Return process -> its main thread: the thread whose id equals the process id."""
    if "pid" not in threads.columns:
        return {}
    main = threads.filter(pl.col("tid") == pl.col("pid"))
    return dict(main.select("process", "thread").iter_rows())


def _evidence(
    known: Known,
    verdicts: pl.DataFrame,
    decides: Sequence[int],
    handing: pl.Series,
    filled: pl.DataFrame,
) -> Evidence:
    thread, process = given(known.threads["thread"]), given(verdicts["process"])
    fills, windows = filled.select(pl.col("thread").cast(pl.Int32), "fills"), known.windows
    return Evidence(
        known.threads.select(
            "thread",
            thread_stage="stage",
            autograd=np.isin(thread, given(known.autograd)),
            drives=np.isin(thread, given(known.teams.trainers["thread"])),
        ).join(fills, on="thread", how="left", maintain_order="left"),
        verdicts.select(
            "process",
            "trains",
            "infers",
            ranged=np.isin(process, given(windows["process"].filter(windows["ranged"]))),
            loads=np.isin(process, given(known.loaders["process"])),
            structured=np.isin(process, list(decides)),
            hands_on=np.isin(process, given(handing)),
        ),
    )
