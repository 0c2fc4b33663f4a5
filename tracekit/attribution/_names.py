"""Meanings (stage, step, collective) that the rules give to names of ranges, threads, kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import polars as pl

from tracekit.attribution._arrays import Array, NameMeanings
from tracekit.attribution._rules import Entry, Rules, by_distinct, first_outcome, matches
from tracekit.model import STAGES
from tracekit.support.compiled import given

# PyTorch appends numbers and shapes to the name of an operator's range.
_SUFFIX = (
    r"(?:, seq ?= ?\d+|, op_id = \d+|, sizes = \[|, input_op_ids = \[).*$|(, stashed seq) ?=.*$"
)


def base_name(name: pl.Expr) -> pl.Expr:
    """Return a range's name without the sequence numbers and shapes that PyTorch appends."""
    return name.str.replace(_SUFFIX, "${1}")


def codes_of(texts: pl.Series) -> Array:
    """Return the category code of each text of a categorical column, -1 for null."""
    return given(texts.to_physical().cast(pl.Int32), null=-1)


def classify_ranges(ranges: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Add to ranges ``stage`` and ``autograd``, as their names imply.

    ``stage`` is null if the name implies none; ``autograd`` is whether it marks work of the
    backward pass.
    """
    frame = ranges.drop("stage", strict=False).with_columns(base=base_name(pl.col("name")))
    columns = {"name": "base_text", "domain": "domain_text"}
    return by_distinct(
        frame,
        ["domain", "base"],
        rules,
        lambda: {
            "stage": rules.outcome("range", "stage", columns),
            "autograd": rules.any_of("autograd", {"name": "base_text"}),
        },
    ).drop("base")


class RangeNames:
    """Distinct range names with ids and meanings (such as stage, step number), extended by chunks.

    Parameters
    ----------
    rules
        Rules that give names a meaning.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.table = pl.DataFrame(schema=_MEANING)
        """``id, domain, base`` of the distinct names, with their meanings ``stage, autograd, rule,
        number``."""
        self._meant = NameMeanings(np.zeros(0, np.int8), *np.zeros((2, 0), np.bool_))
        self._forget()
        self.doubts: tuple[str, ...] = ()

    def _forget(self) -> None:
        """Drop the cache of ids by name, to limit memory; `table` keeps the ids."""
        self._domains, self._texts = _Numbers(), _Numbers()
        self._ids = np.full((1, 1), _UNKNOWN)

    def settle(self, skeleton: pl.DataFrame) -> pl.DataFrame:
        """Drop stage WU of range names of L-BFGS steps if no range is named after a forward pass.

        `skeleton` are the ranges that may mark steps and passes; they are returned, with this stage
        dropped as well. A stage set by the user's own rules stays.
        """
        user_rules = self._rules["range"][: self._rules.given.get("range", 0)]
        of_user = (matches(entry, {"name": "base", "domain": "domain"}) for entry in user_rules)
        closure = (
            pl.col("base").str.contains(_CLOSURE)
            & (pl.col("stage") == "WU")
            & ~pl.any_horizontal(pl.lit(value=False), *of_user)
        ).fill_null(value=False)
        if "FP" in self.table["stage"] or self.table.filter(closure).is_empty():
            return skeleton
        stage = pl.when(~closure).then("stage")
        self.table = self.table.with_columns(stage=stage)
        self._meant = self._meant._replace(place=self._meant.place[:0])
        self.doubts = (_CLOSURES,)
        return skeleton.with_columns(stage=stage)

    def of(self, ranges: pl.DataFrame) -> pl.Series:
        """Return the id of each range's name: its row in `table`."""
        if self._ids.size > _KEPT:
            self._forget()
        domain, text = self._domains.of(ranges["domain"]), self._texts.of(ranges["name"])
        size = (self._domains.count, self._texts.count)
        if size[0] * size[1] > _DENSE:
            self._forget()
            return self._known(ranges.select(_PAIR))["id"]
        more = [(0, now - before) for now, before in zip(size, self._ids.shape, strict=True)]
        self._ids = np.pad(self._ids, more, constant_values=_UNKNOWN)
        ids = self._ids.reshape(-1)
        pair = text if size[0] == 1 else domain * size[1] + text
        found = ids[pair]
        if (found == _UNKNOWN).any():
            example = np.full(ids.size, -1)
            example[pair] = np.arange(pair.size)
            new = np.flatnonzero((example >= 0) & (ids == _UNKNOWN))
            ids[new] = self._known(ranges[example[new]].select(_PAIR))["id"].to_numpy()
            found = ids[pair]
        return pl.Series("id", found)

    def _known(self, names: pl.DataFrame) -> pl.DataFrame:
        """Return range names with their ``id`` in `table`; new ones are classified and added.

        The numbers that PyTorch appends to names are removed first, as most names differ only in
        these numbers.
        """
        based = names.cast(pl.String).with_columns(base=base_name(pl.col("name")))
        new = based[list(_NAME)].unique(maintain_order=True)
        if self.table.height:
            new = new.join(self.table, on=list(_NAME), how="anti", nulls_equal=True)
        if new.height:
            self.table = pl.concat([self.table, self._meanings(new)])
        known = self.table[["id", *_NAME]]
        return based.join(
            known, on=list(_NAME), how="left", nulls_equal=True, maintain_order="left"
        )

    @property
    def meanings(self) -> NameMeanings:
        """Meanings of the names seen so far."""
        if self._meant.place.size < self.table.height:
            place = self.table["stage"].cast(pl.Enum(STAGES), strict=False).to_physical()
            self._meant = NameMeanings(
                given(place.cast(pl.Int8), null=-1),
                self.table["autograd"].to_numpy(),
                self.table["rule"].is_not_null().to_numpy(),
            )
        return self._meant

    def _meanings(self, names: pl.DataFrame) -> pl.DataFrame:
        first = self.table.height
        classified = classify_ranges(names.rename({"base": "name"}), self._rules)
        steps = step_names(classified.rename({"name": "base"}), self._rules)
        return steps.select(
            pl.int_range(first, first + names.height, dtype=pl.UInt32).alias("id"),
            *_NAME, "stage", "autograd", "rule", "number",
        )  # fmt: skip


_CLOSURE = r"(?i)lbfgs\w*\.step"
"""Optimizers whose step runs forward and backward passes, in a closure that it calls."""
_CLOSURES = (
    "L-BFGS calls a closure, and no range names its forward pass: the optimizer's range names no "
    "stage; put a range forward into the closure"
)
_PAIR = ["domain", "name"]
_DENSE = 1 << 22
"""Largest number of possible pairs of texts for which a table of all pairs is used."""


_KEPT = 1 << 18
"""Largest number of pairs that are kept from chunk to chunk."""
_UNKNOWN = np.uint32((1 << 32) - 1)


class _Numbers:
    """Assigns integer codes to texts, equal for equal texts in all chunks; null is 0."""

    def __init__(self) -> None:
        self._type = pl.Categorical(pl.Categories.random())
        # Polars forgets categories that no series has.
        self._kept = pl.Series([], dtype=self._type)
        self._by_code = np.zeros(0, np.int64)
        """By category code of a text: its number, 0 if it has none yet."""
        self.count = 1

    def of(self, texts: pl.Series) -> Array:
        """Return the integer code of each text."""
        if texts.null_count():
            numbers = np.zeros(len(texts), np.int64)
            if texts.null_count() < len(texts):
                numbers[texts.is_not_null().to_numpy()] = self.of(texts.drop_nulls())
            return numbers
        if texts.dtype == pl.Categorical:
            return self._of_coded(texts)
        numbers = given(texts.cast(self._type).to_physical(), np.int64) + 1
        self.count = max(self.count, int(numbers.max(initial=0)) + 1)
        return numbers

    def _of_coded(self, texts: pl.Series) -> Array:
        codes = given(texts.to_physical())
        missing = int(codes.max(initial=0)) + 1 - self._by_code.size
        self._by_code = np.pad(self._by_code, (0, max(missing, 0)))
        numbers: Array = self._by_code[codes]
        unknown = np.flatnonzero(numbers == 0)
        if unknown.size:
            new = texts[unknown].unique()
            self._by_code[new.to_physical().to_numpy()] = self.of(new.cast(pl.String))
            numbers = self._by_code[codes]
        return numbers


_NAME = {"domain": pl.String, "base": pl.String}
_MEANING = {
    "id": pl.UInt32, **_NAME, "stage": pl.String, "autograd": pl.Boolean, "rule": pl.Int32,
    "number": pl.Int64,
}  # fmt: skip


def step_names(names: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Add to range names ``rule`` and ``number``, which identify training steps.

    ``rule`` is the index of the first matching rule of the list ``iteration`` (null: no step),
    ``number`` the step's number in the name. A name that implies a stage is not taken for a
    training step, unless the rule allows it or the stage is the weight update, since an update
    range may enclose a whole step.
    """
    rule = rules.made(("iteration", "rule"), lambda: _step_rule(rules["iteration"]))
    number = rules.made(("iteration", "number"), lambda: _step_number(rules["iteration"]))
    keys = ["base", "stage"]
    found = rules.meaning(
        "step",
        names.select(keys),
        lambda some: some.with_columns(rule=rule).with_columns(number=number),
    )
    return names.hstack(found.select("rule", "number"))


def _step_rule(entries: Sequence[Entry]) -> pl.Expr:
    rule: list[pl.Expr] = [pl.lit(None, pl.Int32)]
    for i in reversed(range(len(entries))):
        may = pl.lit(value=bool(entries[i].get("any_stage"))) | (
            pl.col("stage").fill_null("WU") == "WU"
        )
        named = pl.col("base").str.contains(entries[i]["name"]).fill_null(value=False) & may
        rule.insert(0, pl.when(named).then(pl.lit(i, pl.Int32)))
    return pl.coalesce(rule)


def _step_number(entries: Sequence[Entry]) -> pl.Expr:
    number: list[pl.Expr] = [pl.lit(None, pl.Int64)]
    for i in reversed(range(len(entries))):
        pattern = entries[i]["name"]
        if _has_group(pattern):
            found = pl.col("base").str.extract(pattern).cast(pl.Int64, strict=False)
            number.insert(0, pl.when(pl.col("rule") == i).then(found))
    return pl.coalesce(number)


@cache
def _has_group(pattern: str) -> bool:
    return bool(pl.Series([""]).str.extract_groups(pattern).struct.fields)


def classify_threads(threads: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Add to threads ``stage`` and ``autograd``, as their names imply.

    ``autograd`` is whether a thread with this name runs backward passes.
    """
    columns = {"name": "name_text"}
    return by_distinct(
        threads,
        ["name"],
        rules,
        lambda: {
            "stage": rules.outcome("thread", "stage", columns),
            "autograd": rules.any_of("thread", columns, flag="autograd"),
        },
    )


def _stage_of(entries: Sequence[Entry], key: str) -> pl.Expr:
    """Return an expression: stage of a kernel name by those rules that have a pattern `key`."""
    named = (entry for entry in entries if key in entry)
    return first_outcome(((matches(entry, {key: "name_text"}), entry) for entry in named), "stage")


def classify_kernels(
    ops: pl.DataFrame, rules: Rules, hints: Mapping[str, pl.Expr] | None = None
) -> pl.DataFrame:
    """Set ``kind`` and ``collective`` of communication kernels, and add stages by kernel name.

    `hints` are further columns to add, computed from the column ``name_text``.

    Returns
    -------
    The ops with ``kernel_stage``, the stage that the name implies, ``between_stage``, the stage
    that it implies for ops launched between passes, and ``packed_stage``, the stage of kernels that
    pack or unpack what is exchanged.
    """
    named = by_distinct(
        ops,
        ["name"],
        rules,
        lambda: {
            "collective": rules.outcome("collective", "collective", {"kernel": "name_text"}),
            "kernel_stage": rules.outcome("kernel", "stage", {"name": "name_text"}),
            "between_stage": rules.made(("between",), lambda: _stage_of(rules["between"], "name")),
            "packed_stage": rules.made(("packed",), lambda: _stage_of(rules["exchange"], "kernel")),
            **(hints or {}),
        },
    )
    return named.with_columns(_OF_KERNELS)


_KERNEL = pl.col("kind").cast(pl.String).is_in(["compute", "collective"])
_OF_KERNELS = [
    *(
        pl.when(_KERNEL).then(name)
        for name in ("collective", "kernel_stage", "between_stage", "packed_stage")
    ),
    pl.when(_KERNEL & pl.col("collective").is_not_null())
    .then(pl.lit("collective"))
    .when(_KERNEL)
    .then(pl.lit("compute"))
    .otherwise(pl.col("kind").cast(pl.String))
    .alias("kind"),
]
