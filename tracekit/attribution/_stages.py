"""Why each op runs.

The rules are tried in a fixed order and the first that applies decides; ``docs/stages.md`` states
them for users. What they look at takes few distinct combinations of values, so each combination is
decided once, and the ops get what theirs says.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit._compiled import compiled
from tracekit.attribution._loops import Array, number_distinct
from tracekit.attribution._names import classify_kernels
from tracekit.attribution._rules import Entry, Rules, first_outcome
from tracekit.attribution._unmatched import Unmatched
from tracekit.model import COLLECTIVE, KIND, KINDS, STAGE, STAGE_SOURCE, STAGES

_CODES = pl.DataFrame(
    {"code": range(len(STAGES) + 1), "stage": [None, *STAGES]},
    schema={"code": pl.Int32, "stage": pl.String},
)
"""How `follow` writes a stage: 0 is none."""


@dataclass(frozen=True)
class Evidence:
    """What is known of launches.

    Parameters
    ----------
    threads
        ``thread, process, thread_stage`` (what the thread's name means) and ``autograd`` (whether
        it runs backward passes), by thread.
    ranged
        Processes that mark their backward passes with ranges.
    """

    threads: pl.DataFrame
    ranged: pl.Series

    def of(self, codes: pl.Series, threads: pl.Series) -> pl.DataFrame:
        """Return what the codes of `follow` say of launches by some threads.

        Returns
        -------
        ``range_stage``, of the innermost range with a stage that is open on the thread;
        ``process_stage``, of start/end ranges: ME, or the only one open; ``evaluates`` and
        ``differentiates``, whether the launch lies in metric evaluation or in an autograd marker;
        ``thread_stage``; ``backward_stage``, what the training thread does while an autograd thread
        launches: in a process without any backward range that is BP in the gaps that backward runs
        in. Metric evaluation dominates here as it does for the training thread's own launches.
        """
        bits = pl.DataFrame({"code": codes, "thread": threads}).select(
            "thread",
            range_code=_bits(0, 3), process_code=_bits(3, 3), trainer_code=_bits(6, 3),
            evaluates=_bits(9, 1) > 0, differentiates=_bits(10, 1) > 0,
            trainer_evaluates=_bits(11, 1) > 0, in_window=_bits(12, 1) > 0,
        )  # fmt: skip
        for who in ("range", "process", "trainer"):
            stages = _CODES.rename({"code": f"{who}_code", "stage": f"{who}_stage"})
            bits = bits.join(stages, on=f"{who}_code", how="left", maintain_order="left")
        known = bits.join(self.threads, on="thread", how="left", maintain_order="left")
        in_gap = pl.when("in_window").then(pl.lit("BP"))
        backward = (
            pl.when("trainer_evaluates").then(pl.lit("ME"))
            .when(pl.col("process").is_in(self.ranged.implode())).then("trainer_stage")
            .otherwise(in_gap)
        )  # fmt: skip
        return known.select(
            "range_stage", "process_stage", "evaluates", "differentiates", "thread_stage",
            backward_stage=pl.when("autograd").then(backward),
        )  # fmt: skip


def _bits(first: int, count: int) -> pl.Expr:
    return (pl.col("code") // (1 << first)) % (1 << count)


class Stages:
    """Gives ops their stages, chunk by chunk.

    Parameters
    ----------
    evidence
        What is known of launches.
    rules
        The rules.
    unmatched
        Told what is seen.
    """

    def __init__(self, evidence: Evidence, rules: Rules, unmatched: Unmatched) -> None:
        self._evidence = evidence
        self._rules = rules
        self._unmatched = unmatched
        thresholds = {entry["min_bytes"] for entry in rules["copy"] if "min_bytes" in entry}
        self._lock = threading.Lock()
        self._kinds = _KINDS
        self._places = np.full(0, -1)
        self._thresholds = np.array([0, *sorted(thresholds - {0})])

    def of(self, ops: pl.DataFrame, codes: Array, threads: Array) -> pl.DataFrame:
        """Set ``kind``, ``collective``, ``stage`` and ``stage_source``.

        Parameters
        ----------
        ops
            Ops with the names of kernels.
        codes, threads
            What `follow` said of each op's launch, 0 where none is known, and its thread or -1.
        """
        kinds, rows = self._classified(ops)
        # How many thresholds a size reaches; a size that is not known reaches none.
        sizes = ops["bytes"].fill_null(-1).to_numpy()
        reached = np.searchsorted(self._thresholds, sizes, side="right")
        keys, decided = _distinct(codes, threads + 1, rows, reached)
        code, thread, kind, size = (pl.Series(values) for values in decided)
        bytes_ = pl.Series(np.array([-1, *self._thresholds]))[size]
        cases = pl.concat(
            [
                kinds.select(_EVIDENCE)[kind].with_columns(bytes=pl.when(bytes_ >= 0).then(bytes_)),
                self._evidence.of(code.cast(pl.Int32), (thread - 1).cast(pl.Int32)),
            ],
            how="horizontal",
        )
        for name in ("exchange", "copy"):
            self._unmatched.see(name, cases, _in_sets)
        stages = _decided(cases, self._rules)
        chosen = pl.Series(keys)
        return ops.with_columns(
            *(kinds[name].gather(rows) for name in ("kind", "collective")),
            *(stages[name].gather(chosen) for name in stages.columns),
        )

    def _classified(self, ops: pl.DataFrame) -> tuple[pl.DataFrame, Array]:
        """Return what ops of some name and recorded kind are, and which of that each op is."""
        names, recorded = (ops[name].to_physical().cast(pl.Int64) for name in ("name", "kind"))
        keys = (names.fill_null(-1).to_numpy() + 1) * len(KINDS) + recorded.to_numpy()
        with self._lock:
            self._learn(ops, keys)
            return self._kinds, self._places[keys]

    def _learn(self, ops: pl.DataFrame, keys: Array) -> None:
        """Classify the names and kinds that are met for the first time."""
        missing = int(keys.max(initial=-1)) + 1 - self._places.size
        self._places = np.pad(self._places, (0, max(missing, 0)), constant_values=-1)
        unknown = np.flatnonzero(self._places[keys] < 0)
        new, example = np.unique(keys[unknown], return_index=True)
        if new.size:
            self._places[new] = np.arange(new.size) + self._kinds.height
            some = ops.select("name", "kind", "collective")[unknown[example]]
            self._unmatched.see_kernels(some)
            meant = classify_kernels(some, self._rules).select(_KINDS.columns)
            self._kinds = pl.concat([self._kinds, meant.cast(_KINDS.schema)])


_KINDS = pl.DataFrame(schema={"kind": KIND, "collective": COLLECTIVE, "kernel_stage": pl.String})
_EVIDENCE = pl.all().cast(pl.String)
_DENSE = 1 << 22
"""Up to how many values are told apart by a table of all that could be."""


def _distinct(*columns: Array) -> tuple[Array, list[Array]]:
    """Return which distinct combination each row is, and the combinations, column by column.

    The columns hold numbers from 0 on.
    """
    keys = np.zeros(columns[0].size, np.int64)
    values: list[Array] = []
    for column in columns:
        size = int(column.max(initial=0)) + 1
        keys, distinct = _dense(keys * size + column)
        before, value = np.divmod(distinct, size)
        values = [*(each[before] for each in values), value]
    return keys, values


def _dense(numbers: Array) -> tuple[Array, Array]:
    """Return which distinct number each is, and the distinct numbers."""
    most = int(numbers.max(initial=0)) + 1
    if most > _DENSE:
        distinct, places = np.unique(numbers, return_inverse=True)
        return places, distinct
    place = np.full(most, -1)
    out = np.empty_like(numbers)
    count = compiled(number_distinct, numbers.size)(numbers, place, out)
    distinct = np.empty(count, np.int64)
    known = np.flatnonzero(place >= 0)
    distinct[place[known]] = known
    return out, distinct


def _decided(cases: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Return ``stage, stage_source`` of some combinations of evidence."""
    ordered: tuple[tuple[pl.Expr, str], ...] = (
        (pl.when("evaluates").then(pl.lit("ME")), "nvtx"),
        (pl.when(pl.col("process_stage") == "ME").then(pl.lit("ME")), "process_range"),
        (_by_sets(rules["exchange"]), "gradient_exchange"),
        (pl.col("range_stage"), "nvtx"),
        (pl.col("thread_stage"), "thread_name"),
        (pl.col("process_stage"), "process_range"),
        (pl.col("backward_stage"), "backward_thread"),
        (pl.when("differentiates").then(pl.lit("BP")), "autograd"),
        (pl.col("kernel_stage"), "kernel_name"),
        (_by_sets(rules["copy"]), "copy_kind"),
        (pl.lit("OTHER"), "none"),
    )
    source = pl.coalesce(pl.when(stage.is_not_null()).then(pl.lit(s)) for stage, s in ordered)
    return cases.select(
        stage=pl.coalesce(stage for stage, _ in ordered).cast(STAGE),
        stage_source=source.cast(STAGE_SOURCE),
    )


def _by_sets(entries: Iterable[Entry]) -> pl.Expr:
    """Return the stage of the first entry whose sets hold an op's kind and collective."""
    return first_outcome(((_in_sets(entry), entry) for entry in entries), "stage")


def _in_sets(entry: Entry) -> pl.Expr:
    tests = [
        pl.col(key).cast(pl.String).is_in(values).fill_null(value=False)
        for key, values in entry.items()
        if key in ("kind", "collective") and isinstance(values, list)
    ]
    if "min_bytes" in entry:
        tests.append((pl.col("bytes") >= entry["min_bytes"]).fill_null(value=False))
    return pl.all_horizontal(tests)
