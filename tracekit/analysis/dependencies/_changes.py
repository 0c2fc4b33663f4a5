"""Changes for `whatif`: each gives edges of the dependency graph other lengths."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Protocol

import polars as pl

from tracekit.analysis.dependencies._buckets import Bucket
from tracekit.analysis.dependencies._edges import HOLDS_NOTHING
from tracekit.analysis.dependencies._links_of import NARROWEST_FIRST
from tracekit.errors import UndecidedError, UsageError
from tracekit.model import STAGES

_LATENCY_NS = {"collective": 50_000, "copy": 10_000}
"""What of them no link makes faster is at most this, and no more than the shortest takes."""
_LEAST_BUCKET = 1_024
"""Who asks for fewer bytes forgot the unit."""
WORKERS = " workers"
"""The end of the label of a change of workers."""
_EACH = 0.5
"""Least throughput of each of several workers, as a share of one that works alone."""
_LAUNCHES = r"(?i)launch"
"""Names of calls that launch kernels."""
_LAUNCHING_NS = 1_000_000
"""Most time that a thread takes to prepare a launch."""
_DONE = ("work", "transfer")
_OF_HOST = ("host", "call", "handover", "launch")
_WAITS = ("event", "return", "block", "stream")


class Change(Protocol):
    """A change for `whatif`."""

    @property
    def label(self) -> str:
        """Option that asks for it."""

    def touches(self) -> pl.Expr:
        """Return which edges it changes."""

    def length(self, *, slowest: bool) -> pl.Expr:
        """Return their new ``weight``: the most that it may be, or the least."""


@dataclass(frozen=True)
class Speed:
    """Faster kernels, chosen by name or by stage."""

    factor: float
    name: str | None = None
    stage: str | None = None

    @property
    def label(self) -> str:
        """Option that asks for it."""
        if self.stage is not None:
            return f"stage {self.stage}={_times(self.factor)}"
        return f"speed {self.name}={_times(self.factor)}"

    def touches(self) -> pl.Expr:
        """Return the work of these kernels, collectives aside."""
        kernels = pl.col("kind").is_in(_DONE) & (pl.col("work") == "compute")
        if self.stage is not None:
            return kernels & (pl.col("stage") == self.stage)
        return kernels & pl.col("name").cast(pl.String).str.contains(f"(?i){self.name}")

    def length(self, *, slowest: bool) -> pl.Expr:  # noqa: ARG002 - it is the same
        """Return their time."""
        return _divided(pl.col("weight"), self.factor)


@dataclass(frozen=True)
class Bandwidth:
    """Faster links of a type, for the copies and collectives that they limit."""

    link: str
    factor: float

    @property
    def label(self) -> str:
        """Option that asks for it."""
        return f"bandwidth {self.link}={_times(self.factor)}"

    def touches(self) -> pl.Expr:
        """Return the transfers that a link of this type holds up."""
        over = pl.col("work") == "comm" if self.link == "collective" else pl.lit(value=True)
        own = pl.col("op_kind") == "collective" if self.link == "collective" else (
            pl.col("link") == self.link
        )  # fmt: skip
        return pl.col("kind").is_in(_DONE) & own & over

    def length(self, *, slowest: bool) -> pl.Expr:
        """Return the time of a transfer: other links on its way carry no more than they can.

        How much of it is no bandwidth is not recorded: nothing, or as much as the shortest takes.
        """
        bound = (1 / pl.col("others_use")).clip(lower_bound=1.0).fill_null(float("inf"))
        constant = _latency() if slowest == (self.factor > 1) else pl.lit(0)
        moving = pl.col("weight") - constant
        return constant + _divided(moving, pl.min_horizontal(pl.lit(self.factor), bound))


@dataclass(frozen=True)
class Loader:
    """A data loader that prepares batches faster, by one factor or between two."""

    factor: float
    least: float | None = None
    workers: int | None = None

    @property
    def label(self) -> str:
        """Option that asks for it."""
        if self.workers is not None:
            return f"{self.workers}{WORKERS}"
        return f"loader {_times(self.factor)}"

    def touches(self) -> pl.Expr:
        """Return the edges of waits for batches, and of their pace."""
        return pl.col("kind").is_in(["loader", "wait", "pace"]) & (pl.col("weight") >= 0)

    def length(self, *, slowest: bool) -> pl.Expr:
        """Return shorter waits: a batch may be there already, or come sooner."""
        least = self.factor if self.least is None else self.least
        sooner = _divided(pl.col("weight"), least if slowest else self.factor)
        is_wait = pl.col("kind") == "wait"
        if self.factor <= 1:
            return pl.when(is_wait & pl.lit(not slowest)).then("weight").otherwise(sooner)
        return pl.when(is_wait).then(HOLDS_NOTHING).otherwise(sooner)


@dataclass(frozen=True)
class Workers:
    """A data loader with this number of workers; see `known`."""

    count: int

    def known(self, workers: int | None) -> Loader:
        """Return the change for a run whose loader has this number of workers.

        More of them make as many batches more, or are in each other's way so that each makes half
        as many as before.

        Raises
        ------
        UndecidedError
            If it is not known how many it has.
        """
        if workers is None:
            raise UndecidedError(
                "how many workers prepare batches does not show: no rhythm of waits for them",
                "ask for a factor: --loader 2x",
            )
        more = self.count / workers
        return Loader(more, max(1.0, more * _EACH) if more > 1 else more, self.count)


@dataclass(frozen=True)
class Host:
    """A host that launches faster: its calls, and what it does between them."""

    factor: float

    @property
    def label(self) -> str:
        """Option that asks for it."""
        return f"host {_times(self.factor)}"

    def touches(self) -> pl.Expr:
        """Return the calls of threads, the time between these, and what waits for a launch."""
        return pl.col("kind").is_in(_OF_HOST) & (pl.col("weight") > 0)

    def length(self, *, slowest: bool) -> pl.Expr:
        """Return their time: all of it changes, or that of launches and of short times before them.

        A host that launches nothing for longer does something else, which may be as fast as before.
        Where GPUs meet in collectives nothing of it may come of that: they meet others than before.
        """
        changed = _divided(pl.col("weight"), self.factor)
        if slowest != (self.factor > 1):
            return changed
        launches = pl.col("name").cast(pl.String).str.contains(_LAUNCHES).fill_null(value=False)
        is_short = (pl.col("kind") == "call") | (pl.col("weight") <= _LAUNCHING_NS)
        is_launch = (launches & is_short) | (pl.col("kind") == "launch")
        meets = (pl.col("op_kind").cast(pl.String) == "collective").any()
        return pl.when(is_launch & ~meets).then(changed).otherwise("weight")


@dataclass(frozen=True)
class NoSync:
    """A host that does not synchronise; freeing and pageable copies still wait."""

    label: str = "no synchronisation"

    def touches(self) -> pl.Expr:
        """Return the waits of calls."""
        return pl.col("kind") == "return"

    def length(self, *, slowest: bool) -> pl.Expr:  # noqa: ARG002 - it is the same
        """Return length 0: the edges wait for nothing."""
        return pl.lit(HOLDS_NOTHING, pl.Int64)


@dataclass(frozen=True)
class Overlap:
    """Communication between GPUs that nothing but communication waits for."""

    label: str = "perfect overlap"

    def touches(self) -> pl.Expr:
        """Return the edges by which other work and calls wait for communication."""
        return (
            pl.col("kind").is_in(_WAITS)
            & (pl.col("of_source") == "comm")
            & pl.col("work").ne_missing(pl.lit("comm"))
        )

    def length(self, *, slowest: bool) -> pl.Expr:  # noqa: ARG002 - it is the same
        """Return length 0: the edges wait for nothing."""
        return pl.lit(HOLDS_NOTHING, pl.Int64)


def _times(factor: float) -> str:
    return f"{factor:g}x" if isfinite(factor) else "inf"


def _latency() -> pl.Expr:
    """Return the most of a transfer's time that bandwidth does not shorten."""
    most = pl.when(pl.col("op_kind") == "collective").then(_LATENCY_NS["collective"]).otherwise(
        _LATENCY_NS["copy"]
    )  # fmt: skip
    took = pl.when(pl.col("kind").is_in(_DONE)).then("weight")
    return pl.min_horizontal(took.min().over("op_kind", "link"), most).clip(lower_bound=0)


def _divided(length: pl.Expr, factor: float | pl.Expr) -> pl.Expr:
    """Return times at a factor of the speed; with an infinite one they take nothing."""
    return (length / factor).round().cast(pl.Int64)


def parse_changes(
    *,
    speed: Sequence[str] = (),
    stage: Sequence[str] = (),
    bandwidth: Sequence[str] = (),
    host: str | None = None,
    loader: str | None = None,
    workers: int | None = None,
    no_sync: bool = False,
    overlap: bool = False,
    bucket: int | None = None,
) -> list[Change | Workers]:
    """Return the changes that texts such as ``gemm=2x`` mean.

    Raises
    ------
    UsageError
        If one means none, or nothing is changed.
    """
    changes: list[Change | Workers] = []
    for text in speed:
        name, factor = _pair(text, "speed", "gemm=2x")
        changes.append(Speed(factor, name=_pattern(name)))
    for text in stage:
        name, factor = _pair(text, "stage", "BP=1.5x")
        changes.append(Speed(factor, stage=_one_of(name.upper(), STAGES, "stage")))
    for text in bandwidth:
        name, factor = _pair(text, "bandwidth", "nvlink=2x")
        known = (*NARROWEST_FIRST, "collective")
        changes.append(Bandwidth(_one_of(name.lower(), known, "type of link"), factor))
    changes += [] if host is None else [Host(_factor(host, "host", "2x"))]
    changes += [] if loader is None else [Loader(_factor(loader, "loader", "2x"))]
    if workers is not None:
        if workers < 1 or loader is not None:
            raise UsageError(
                "a loader has 1 worker or more, and is faster by their number or by a factor",
                "write --workers 4, or --loader 2x",
            )
        changes.append(Workers(workers))
    if bucket is not None:
        if bucket < _LEAST_BUCKET:
            raise UsageError(f"a bucket of {bucket} bytes holds no gradient", "write --bucket 25MB")
        changes.append(Bucket(bucket))
    changes += [*([NoSync()] if no_sync else []), *([Overlap()] if overlap else [])]
    if not changes:
        raise UsageError(
            "nothing is changed", "name a change: --speed gemm=2x, --loader 2x, --no-sync"
        )
    return changes


def _pair(text: str, option: str, example: str) -> tuple[str, float]:
    name, equals, factor = text.rpartition("=")
    if not equals or not name.strip():
        raise UsageError(f"{text!r} does not name what gets faster", f"write --{option} {example}")
    return name.strip(), _factor(factor, option, example)


def _factor(text: str, option: str, example: str) -> float:
    found = re.fullmatch(r"\s*([0-9]{1,6}(?:\.[0-9]{1,6})?|inf)\s*x?\s*", text.lower())
    factor = float(found[1]) if found else 0.0
    if not factor:
        raise UsageError(
            f"{text!r} is not a factor of speed", f"write --{option} {example}, or inf for no time"
        )
    return factor


def _one_of(name: str, known: Sequence[str], what: str) -> str:
    if name not in known:
        raise UsageError(f"no {what} {name!r}", f"there is {', '.join(known)}")
    return name


def _pattern(text: str) -> str:
    """Return a pattern that names are held against; what is none is taken as it stands."""
    try:
        pl.Series([""]).str.contains(f"(?i){text}")
    except pl.exceptions.ComputeError as error:
        raise UsageError(f"{text!r} is not a pattern of names: {error}", "escape it") from error
    return text
