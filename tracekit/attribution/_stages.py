"""Decide the stage of each op, once per case (combination of evidence).

The rules are tried in a fixed order and the first that applies decides; ``docs/stages.md`` states
them for users. Their inputs take few distinct combinations of values (cases), so each case is
decided once, and its ops get the result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit.attribution._arrays import Array, CaseKeys, CaseRows, Distinct, KindPlaces
from tracekit.attribution._evidence import (
    IN_AUTOGRAD,
    IN_EVALUATION,
    IN_WINDOW,
    KIND_PLACE,
    ON_INPUT_STREAM,
    PLACE,
    PROCESS,
    PROCESS_STAGE,
    RANGE_STAGE,
    RELAYED,
    SIZE,
    STRUCTURE,
    TRAINER_EVALUATES,
    TRAINER_STAGE,
)
from tracekit.attribution._evidence import STAGE as _STAGE_BITS
from tracekit.attribution._names import classify_kernels, codes_of
from tracekit.attribution._op_loops import (
    BACKWARD_PART,
    INPUT_PART,
    OTHER_PART,
    UPDATE_PART,
    describe,
    number_cases,
)
from tracekit.attribution._rules import Entry, Rules, Unmatched, first_outcome
from tracekit.model import COLLECTIVE, KERNEL_KINDS, KIND, KINDS, STAGE, STAGE_SOURCE, is_migration
from tracekit.support.compiled import compiled, given

_WRITTEN = pl.Series([None, *STAGE.categories])
"""Stages by their number in `follow`'s evidence; 0 is none."""
_ROOM = 1 << 10
"""Initial room for cases."""


@dataclass(frozen=True)
class Evidence:
    """Evidence for the stages of ops, by launching thread and by process."""

    threads: pl.DataFrame
    """``thread, thread_stage`` (stage that the thread's name implies), ``autograd`` (whether it
    runs backward passes), ``drives`` (whether it drives the training of its process) and ``fills``
    (whether structure, that is launch order, may decide ops of this thread for which ranges give no
    stage; null: as for its process)."""
    processes: pl.DataFrame
    """``process``; ``ranged``, whether ranges mark its backward passes; ``trains`` and ``infers``,
    whether it trains or runs inference; ``loads``, whether it has a data loader that launches GPU
    work; ``structured``, whether structure may decide stages; and ``hands_on``, whether its copies
    between GPUs carry activations."""

    def of(self, cases: pl.DataFrame) -> pl.DataFrame:
        """Return the evidence for the stage of each launch.

        `cases` has ``process, thread, code`` of each launch: `code` is evidence from `follow`.

        Returns
        -------
        ``range_stage``: stage of the innermost open range with a stage on the launching thread.
        ``process_stage``: stage of the process's open start/end ranges, null if unclear.
        ``evaluates``: whether the launch lies in metric evaluation. ``differentiates``: whether the
        launch lies in an autograd marker. ``backward_stage``, only for launches by an autograd
        thread: ME while the training thread evaluates; else, if ranges mark backward passes, the
        stage of the training thread at that time; else BP in backward windows (intervals in which a
        backward pass may run). ``between``: whether the launch is by a training thread and outside
        of backward windows. ``thread_stage, autograd, trains, infers, loads, structured,
        hands_on``: as in `Evidence`.
        """
        code = cases["code"].to_numpy()
        stages = {
            "range_stage": RANGE_STAGE, "process_stage": PROCESS_STAGE,
            "trainer_stage": TRAINER_STAGE,
        }  # fmt: skip
        flags = {
            "evaluates": IN_EVALUATION, "differentiates": IN_AUTOGRAD,
            "trainer_evaluates": TRAINER_EVALUATES, "in_window": IN_WINDOW,
        }  # fmt: skip
        bits = pl.DataFrame(
            [cases["thread"], cases["process"]]
            + [_WRITTEN[code >> first & _STAGE_BITS].alias(name) for name, first in stages.items()]
            + [pl.Series(name, code & flag != 0) for name, flag in flags.items()]
        )
        known = bits.join(self.threads, on="thread", how="left", maintain_order="left").join(
            self.processes, on="process", how="left", maintain_order="left"
        )
        return known.select(_OF_LAUNCHES)


_BACKWARD = (
    pl.when("trainer_evaluates").then(pl.lit("ME"))
    .when("ranged").then("trainer_stage")
    .when("in_window").then(pl.lit("BP"))
)  # fmt: skip
_OF_LAUNCHES = [
    pl.col("range_stage", "process_stage", "evaluates", "differentiates", "thread_stage"),
    pl.coalesce("fills", "structured").alias("structured").fill_null(value=False),
    pl.col("autograd", "trains", "infers", "loads", "hands_on").fill_null(value=False),
    pl.when("autograd").then(_BACKWARD).alias("backward_stage"),
    (pl.col("drives").fill_null(value=False) & ~pl.col("in_window")).alias("between"),
]


@dataclass(frozen=True)
class Launch:
    """Evidence for the stages of a chunk's ops, except their names: one element per op."""

    codes: Array
    """Evidence bits of the launch from `follow`, 0 if the launch is unknown."""
    threads: Array
    """The launching thread, -1 if unknown."""
    structure: Array
    """Stage inferred from threads and launch order, as index in the list of stages; -1 for none."""
    on_input_stream: Array
    """Whether the launch is unknown, and all work with a known launch on the op's stream is
    input."""
    relayed: Array
    """Whether the op is part of a backward thread's copy between GPUs through the host; see
    `find_relayed`."""
    place: Array
    """Stage of a collective by the layer kernels around it, see `Places`; 0 if unknown."""


@dataclass(frozen=True)
class Staged:
    """Kinds and stages of a chunk of ops."""

    case: Array
    """Per op: number of its case (distinct combination of evidence)."""
    decided: pl.DataFrame
    """Per case: ``kind, collective, stage, stage_source``."""

    def columns(self, again: Array) -> list[pl.Series]:
        """Return per op ``kind, collective, stage, stage_source, recomputed``.

        Parameters
        ----------
        again
            Per op: 1 if it recomputes a part of a forward pass, 0 if not, -1 if unknown. The result
            ``recomputed`` is null where unknown, and outside of backward passes.
        """
        cases = pl.Series(self.case)
        columns = [column[cases] for column in self.decided]
        known = pl.Series(again >= 0) & (columns[-2] == "BP")
        return [*columns, pl.Series("recomputed", again > 0).set(~known, None)]

    def parts(self) -> Array:
        """Return for each case a code of the part of a step: input, backward, update or other."""
        stage, kind = (pl.col(name).cast(pl.String) for name in ("stage", "kind"))
        updates = (stage == "WU") & (kind == "compute")
        part = (
            pl.when(stage == "IO").then(INPUT_PART)
            .when(stage == "BP").then(BACKWARD_PART)
            .when(updates).then(UPDATE_PART)
            .otherwise(OTHER_PART)
        )  # fmt: skip
        return self.decided.select(part.cast(pl.Int8)).to_series().to_numpy()


class Stages:
    """Decides the stages of ops, chunk by chunk.

    Parameters
    ----------
    evidence
        Evidence on launching threads and processes.
    rules
        Rules that give names a meaning.
    unmatched
        The user's rules that have matched nothing so far; updated.
    """

    def __init__(self, evidence: Evidence, rules: Rules, unmatched: Unmatched) -> None:
        self._evidence = evidence
        self._rules = rules
        self._unmatched = unmatched
        thresholds = {entry["min_bytes"] for entry in rules["copy"] if "min_bytes" in entry}
        self._thresholds = np.array([0, *sorted(thresholds - {0})])
        self._lock = threading.Lock()
        self._kinds = _KINDS
        self._places = np.full(0, -1)
        self._cases = Cases()
        self._decided = _SAID
        self._opinions: list[pl.DataFrame] = []

    def of(self, ops: pl.DataFrame, launch: Launch) -> Staged:
        """Return kind, stage, and source of the stage, of each op of a chunk.

        Parameters
        ----------
        ops
            Ops with kernel names.
        launch
            Evidence on each op's launch.
        """
        keys = self._described(ops, launch)
        took_ns = ops["end"].to_numpy() - ops["start"].to_numpy()
        cases = grouped_cases(keys, took_ns, ops.height)
        with self._lock:
            numbers = self._cases.add(cases)
            self._decide()
            return Staged(cases.case, self._decided[numbers])

    def _described(self, ops: pl.DataFrame, launch: Launch) -> CaseKeys:
        """Return two integers per op that encode all evidence for its stage (its case key)."""
        rows = CaseRows(
            launch.codes, launch.threads, given(ops["process"]), codes_of(ops["name"]),
            given(ops["kind"].to_physical()), self._reached(ops), launch.structure,
            launch.on_input_stream, launch.relayed, launch.place,
        )  # fmt: skip
        keys = CaseKeys(*(np.empty(ops.height, np.int64) for _ in CaseKeys._fields))
        loop = compiled(describe, ops.height)
        with self._lock:
            places = self._places
        if loop(rows, KindPlaces(len(KINDS), places), keys):
            with self._lock:
                places = self._learn(ops, (rows.name + np.int64(1)) * len(KINDS) + rows.kind)
            loop(rows, KindPlaces(len(KINDS), places), keys)
        return keys

    def _reached(self, ops: pl.DataFrame) -> Array:
        """Count the rules' size thresholds (bytes) that each op reaches; 0 if its size is unknown.

        Sizes of migrations of unified memory count as unknown: they show no purpose.
        """
        reached = np.zeros(ops.height, np.int32)
        known = ops["bytes"].is_not_null().arg_true()  # few: kernels have no size
        size = pl.when(is_migration()).then(-1).otherwise("bytes")
        some = ops.select("bytes", "copy_kind")[known].select(size).to_series().to_numpy()
        reached[known.to_numpy()] = np.searchsorted(self._thresholds, some, side="right")
        return reached

    def _decide(self) -> None:
        """Decide the stages of new cases (combinations of evidence)."""
        by, rest = (column[self._decided.height :] for column in self._cases.keys)
        if not by.size:
            return
        process = (by + 1) >> PROCESS  # a thread that is not known is -1
        launches = pl.DataFrame(
            {
                "code": (rest & (ON_INPUT_STREAM - 1)).astype(np.int32),
                "thread": (by - (process << PROCESS)).astype(np.int32),
                "process": process.astype(np.int32),
            }
        )
        kinds, size = (
            self._kinds[rest >> KIND_PLACE],
            rest >> SIZE & ((1 << KIND_PLACE - SIZE) - 1),
        )
        bytes_ = pl.Series(np.array([-1, *self._thresholds]))[size]
        structure, place = (_WRITTEN[rest >> first & _STAGE_BITS] for first in (STRUCTURE, PLACE))
        cases = pl.concat(
            [
                kinds.select(_EVIDENCE).with_columns(
                    bytes=pl.when(bytes_ >= 0).then(bytes_),
                    structure_stage=structure,
                    place=place,
                    on_input_stream=pl.Series(rest & ON_INPUT_STREAM != 0),
                    relayed=pl.Series(rest & RELAYED != 0),
                ),
                self._evidence.of(launches),
            ],
            how="horizontal",
        )
        for name in ("exchange", "copy", "between"):
            self._unmatched.see(name, cases, _in_sets)
        opinions = _opinions(cases, self._rules)
        stages = opinions.select(**_DECIDED)
        decided = kinds.select("kind", "collective").hstack(stages)
        self._decided = pl.concat([self._decided, decided])
        self._opinions.append(
            pl.concat([launches["process"].to_frame(), opinions, stages], how="horizontal")
        )

    def opinions(self) -> pl.DataFrame:
        """Return number and time of ops by decided stage and by the stage that each source gives.

        A source is a kind of evidence, such as range names, thread names or launch order. An op
        counts in one row per source that gives it a stage. A source that is tried twice in the
        order of precedence counts with the first stage that it gives. The source ``none`` (stage
        OTHER) counts only for ops that no other source decides.
        """
        if not self._opinions:
            return _NOTHING_TOLD
        sums = pl.DataFrame({"ops": self._cases.ops, "total_ns": self._cases.total_ns})
        sources = {name: source for name, (source, _) in zip(_NAMES, _SOURCES, strict=True)}
        opinions = pl.concat([pl.concat(self._opinions), sums], how="horizontal")
        found = (
            # Launches make many cases, of which few differ in what is said.
            opinions.group_by(self._opinions[0].columns)
            .agg(pl.col("ops", "total_ns").sum())
            .with_row_index("case")
            .unpivot(
                on=list(sources),
                index=["process", "stage", "stage_source", "ops", "total_ns", "case"],
                variable_name="other_source",
                value_name="other_stage",
            )
            .drop_nulls("other_stage")
            .with_columns(pl.col("other_source").replace_strict(sources))
            .filter((pl.col("other_source") != "none") | (pl.col("stage_source") == "none"))
            .unique(["case", "other_source"], keep="first", maintain_order=True)
        )
        return found.group_by(_OPINION).agg(pl.col("ops", "total_ns").sum()).sort(_OPINION)

    def _learn(self, ops: pl.DataFrame, keys: Array) -> Array:
        """Classify new pairs of kernel name and kind; return each op's index in the list of kinds.

        `keys` has the number of each op's pair of name and recorded kind.
        """
        missing = int(keys.max(initial=-1)) + 1 - self._places.size
        # What another thread looks at stays as it is.
        places = np.pad(self._places, (0, max(missing, 0)), constant_values=-1)
        unknown = np.flatnonzero(places[keys] < 0)
        new, example = np.unique(keys[unknown], return_index=True)
        if new.size:
            some = ops.select("name", "kind")[unknown[example]]
            self._unmatched.see_kernels(some)
            kinds = classify_kernels(some, self._rules).select(_KINDS.columns).cast(_KINDS.schema)
            # Of many names most mean the same.
            self._kinds = pl.concat([self._kinds, kinds]).unique(maintain_order=True)
            numbered = self._kinds.with_row_index("place")
            places[new] = kinds.join(
                numbered, on=_KINDS.columns, how="left", nulls_equal=True, maintain_order="left"
            )["place"].to_numpy()
            self._places = places
        return places


_KINDS = pl.DataFrame(
    schema={
        "kind": KIND,
        "collective": COLLECTIVE,
        "kernel_stage": pl.String,
        "between_stage": pl.String,
        "packed_stage": pl.String,
    }
)
_OPINION = ("process", "stage", "stage_source", "other_source", "other_stage")
_NOTHING_TOLD = pl.DataFrame(
    schema={
        "process": pl.Int32, "stage": STAGE, "stage_source": STAGE_SOURCE,
        "other_source": pl.String, "other_stage": pl.String, "ops": pl.Int64, "total_ns": pl.Int64,
    }
)  # fmt: skip
_EVIDENCE = pl.all().cast(pl.String)
_SAID = pl.DataFrame(
    schema={"kind": KIND, "collective": COLLECTIVE, "stage": STAGE, "stage_source": STAGE_SOURCE}
)


_FORWARD_ON_AUTOGRAD = (pl.col("autograd") & (pl.col("kernel_stage") == "FP")).fill_null(
    value=False
)
"""Kernels named after the forward pass on an autograd thread: cuDNN computes gradients with kernels
of this name."""
_SOURCES: tuple[tuple[str, Callable[[Rules], pl.Expr]], ...] = (
    ("nvtx", lambda _: pl.when("evaluates").then(pl.lit("ME"))),
    ("process_range", lambda _: _where(pl.col("process_stage") == "ME", "process_stage")),
    ("pass_exchange", lambda rules: _where(_by_place(rules) & (pl.col("place") != "WU"), "place")),
    (
        "weight_exchange",
        lambda rules: pl.coalesce(
            _where(_by_place(rules), "place"), _where("trains", "packed_stage")
        ),
    ),
    ("gradient_exchange", lambda rules: _where("trains", _exchanged(rules["exchange"]))),
    ("none", lambda _: _where(_may_exchange(), pl.lit("OTHER"))),
    ("nvtx", lambda _: pl.col("range_stage")),
    ("thread_name", lambda _: pl.col("thread_stage")),
    # An update that is open around passes, as that of a closure is, hides none of them.
    ("backward_thread", lambda _: _where(pl.col("process_stage") == "WU", "backward_stage")),
    ("process_range", lambda _: pl.col("process_stage")),
    ("backward_thread", lambda _: pl.col("backward_stage")),
    ("autograd", lambda _: pl.when("differentiates").then(pl.lit("BP"))),
    ("structure", lambda _: _where("structured", "structure_stage")),
    ("kernel_name", lambda _: _where(pl.col("trains") & ~_FORWARD_ON_AUTOGRAD, "kernel_stage")),
    ("kernel_name", lambda _: _where(pl.col("trains") & pl.col("between"), "between_stage")),
    ("copy_kind", lambda rules: _where(pl.col("trains") & pl.col("between"), _handed(rules))),
    ("copy_kind", lambda rules: _where("trains", _by_sets(rules["copy"]))),
    ("copy_kind", lambda _: pl.when("on_input_stream").then(pl.lit("IO"))),
    ("verdict", lambda _: _where(pl.col("infers") & _may_infer(), pl.lit("FP"))),
    ("none", lambda _: pl.lit("OTHER")),
    ("structure", lambda _: pl.col("structure_stage")),  # a second opinion, after all is decided
)
"""Sources of evidence for stages, in the order in which they are tried, with the stage that each
gives."""
_NAMES = [f"{number} {source}" for number, (source, _) in enumerate(_SOURCES)]
_DECIDED = {
    "stage": pl.coalesce(_NAMES).cast(STAGE),
    "stage_source": pl.coalesce(
        pl.when(pl.col(name).is_not_null()).then(pl.lit(source))
        for name, (source, _) in zip(_NAMES, _SOURCES, strict=True)
    ).cast(STAGE_SOURCE),
}
"""``stage, stage_source`` from the first source that gives a stage."""


def _may_infer() -> pl.Expr:
    is_kernel = pl.col("kind").cast(pl.String).is_in([*KERNEL_KINDS, "graph"])
    # A broadcast may bring the weights of a training elsewhere.
    return is_kernel & pl.col("collective").ne_missing("broadcast")


def _may_exchange() -> pl.Expr:
    """Return an expression: whether an op is a collective of unknown operation in a backward pass.

    Such a collective (kernel names of RCCL do not tell the operation) may exchange gradients or be
    part of the pass.
    """
    stage = pl.coalesce(
        "range_stage", "thread_stage", "process_stage", "backward_stage",
        pl.when("differentiates").then(pl.lit("BP")), pl.when("structured").then("structure_stage"),
    )  # fmt: skip
    return pl.col("trains") & (pl.col("collective") == "unknown") & (stage == "BP")


def _where(applies: str | pl.Expr, stage: str | pl.Expr) -> pl.Expr:
    return pl.when(applies).then(stage)


def stages_of_launches(launches: pl.DataFrame, evidence: Evidence, rules: Rules) -> pl.Series:
    """Return the stage of each launch from ranges, threads and launch order, without kernel names.

    Parameters
    ----------
    launches
        ``process, thread`` of the launch, ``code`` (its evidence bits) and ``structure`` (stage by
        launch order, -1 for none).
    evidence, rules
        As in `Stages`.
    """
    different = launches.unique()
    structure = different["structure"].cast(pl.Int64) + 1
    names = ("collective", "kernel_stage", "between_stage", "packed_stage", "place")
    nothing = dict.fromkeys(names, _NO_TEXT)
    cases = different.select(
        **nothing, kind=pl.lit("compute"), bytes=pl.lit(None, pl.Int64),
        structure_stage=_WRITTEN[structure],
        on_input_stream=pl.lit(value=False), relayed=pl.lit(value=False),
    )  # fmt: skip
    known = evidence.of(different.select(pl.col("code", "thread", "process").cast(pl.Int32)))
    opinions = _opinions(pl.concat([cases, known], how="horizontal"), rules)
    stage = different.hstack(opinions.select(stage=_DECIDED["stage"].cast(pl.String)))
    return launches.join(stage, on=launches.columns, how="left", maintain_order="left")["stage"]


_NO_TEXT = pl.lit(None, pl.String)


def _by_place(rules: Rules) -> pl.Expr:
    """Mask collectives whose stage may be decided by the layers around them.

    They are of training processes, and no rule of the user's own for exchanges matches them.
    """
    spoken_of = [_in_sets(entry) for entry in rules["exchange"][: rules.given.get("exchange", 0)]]
    by_user = pl.any_horizontal(pl.lit(value=False), *spoken_of)
    return pl.col("trains") & pl.col("place").is_not_null() & ~by_user


def _exchanged(entries: Sequence[Entry]) -> pl.Expr:
    """Return an expression: stage that the rules give to gradient exchanges; null for other ops.

    Copies relayed through the host count as copies between GPUs. Copies between GPUs that carry
    activations are no exchange.
    """
    staged = (entry["stage"] for entry in entries if "staged" in entry.get("kind", ()))
    relayed = pl.when("relayed").then(pl.lit(next(staged, None), pl.String))
    carries = pl.col("hands_on") & pl.col("kind").cast(pl.String).is_in(["p2p", "staged"])
    # A kernel may not name its operation; the range around it does.
    unnamed = pl.col("kind").cast(pl.String).eq("collective") & (pl.col("collective") == "unknown")
    by_range = pl.when(unnamed & (pl.col("range_stage") == "WU")).then("range_stage")
    return pl.when(~carries).then(pl.coalesce(_by_sets(entries), relayed, by_range))


def _handed(rules: Rules) -> pl.Expr:
    """Return an expression: stage that the rules for launches between passes give to copies."""
    entries = [entry for entry in rules["between"] if "kind" in entry]
    cases = (
        (_in_sets(entry) & (pl.col("loads") if entry.get("loader") else pl.lit(value=True)), entry)
        for entry in entries
    )
    return first_outcome(cases, "stage")


def _opinions(cases: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Return for each case the stage that each of `_SOURCES` (of evidence) gives; null for none."""
    return cases.select(
        rules.made(
            ("opinions",),
            lambda: [stage(rules).alias(n) for n, (_, stage) in zip(_NAMES, _SOURCES, strict=True)],
        )
    )


def _by_sets(entries: Iterable[Entry]) -> pl.Expr:
    """Return an expression: stage of the first rule that lists the op's kind and collective."""
    return first_outcome(((_in_sets(entry), entry) for entry in entries), "stage")


def _in_sets(entry: Entry) -> pl.Expr:
    """Return an expression: whether an op matches an entry by kind, collective and least size.

    Entries that test a name match no op.
    """
    tests = [
        pl.col(key).cast(pl.String).is_in(values).fill_null(value=False)
        for key, values in entry.items()
        if key in ("kind", "collective") and isinstance(values, list)
    ]
    if "min_bytes" in entry:
        tests.append((pl.col("bytes") >= entry["min_bytes"]).fill_null(value=False))
    return pl.all_horizontal(pl.lit(not {"name", "kernel"} & {*entry}), *tests)


# Ops that agree in everything that decides their stage are one case: few against ops, and hardly
# more in a report than in a chunk. A loop tells the ops of a chunk apart, and its cases from those
# that came before.


def grouped_cases(keys: CaseKeys, took_ns: Array, height: int) -> Distinct:
    """Group ops with equal evidence into cases, in arrays that grow as needed.

    Parameters
    ----------
    keys
        Case keys of the ops.
    took_ns
        Duration of each op, ns.
    height
        Number of ops; if `keys` are of cases instead of ops, the number of ops that these stand
        for.
    """
    case, room = np.empty(took_ns.size, np.uint32), _ROOM
    while True:
        by, rest, ops, total_ns = np.zeros((4, room), np.int64)
        slots = np.full(4 * room, -1, np.int32)
        found = Distinct(case, CaseKeys(by, rest), ops, total_ns)
        count = compiled(number_cases, height)(keys, took_ns, slots, found)
        if count >= 0:
            return Distinct(case, CaseKeys(by[:count], rest[:count]), ops[:count], total_ns[:count])
        room *= 8


class Cases:
    """Distinct combinations of evidence (cases) over all ops; op count and time of each."""

    def __init__(self) -> None:
        none = np.empty(0, np.int64)
        self.keys = CaseKeys(none, none)
        """Case key of each case: what all its ops have in common."""
        self.ops = none
        """Number of ops of each case."""
        self.total_ns = none
        """Total duration of the ops of each case, ns."""

    def add(self, cases: Distinct) -> Array:
        """Add the cases of a chunk to the sums; return the number that identifies each of them."""
        both = CaseKeys(*map(np.concatenate, zip(self.keys, cases.keys, strict=True)))
        known = self.ops.size
        took_ns = np.concatenate([self.total_ns, cases.total_ns])
        # A case that came before has its number already, for they are numbered as they come.
        again = grouped_cases(both, took_ns, cases.case.size)
        numbers = again.case[known:]
        self.keys, self.total_ns = again.keys, again.total_ns
        self.ops = np.pad(self.ops, (0, again.ops.size - known))
        np.add.at(self.ops, numbers, cases.ops)
        return numbers
