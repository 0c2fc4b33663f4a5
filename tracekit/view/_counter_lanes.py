"""Sampled counters and memory in use: values in bins, at levels each four times as coarse."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from tracekit.model import Answer, Trace
from tracekit.support.batches import at_least_one
from tracekit.view._tiles import FACTOR, first_width

IN_USE = "memory in use"
"""Name of the counter that the table ``memory`` is drawn as."""
KEY = {"device": pl.Int32, "nic": pl.String, "process": pl.Int32, "report": pl.Int32,
       "name": pl.String, "unit": pl.String}  # fmt: skip
"""Columns that identify a counter: name -> type."""
_VALUES = ("low", "high", "sum", "last")
BINS = {"bin": pl.Int64, "count": pl.Int64, **dict.fromkeys(_VALUES, pl.Float64)}
"""Columns of bins: name -> type."""
Bins: TypeAlias = tuple[int, pl.DataFrame]
"""Length of bins, ns, and the bins."""
_FEW = 64
_SUMS = (pl.col("count", "sum").sum(), pl.col("low").min(), pl.col("high").max(),
         pl.col("last").last())  # fmt: skip
SAMPLED = {
    "metrics": (["report", "device", "nic", "recorded_name", "unit"], [
        "count(*) AS samples", "min(value) AS min", "avg(value) AS mean", "max(value) AS max",
    ]),
    # Allocations last for different times, so that their mean says nothing.
    "memory": (["report", "process", "device"], [
        "count(*) AS samples", "min(in_use) AS min_sampled", "max(in_use) AS max_sampled",
    ]),
}  # fmt: skip
"""Keys of the tables of samples, and the fields of each counter, in SQL: table -> these."""


@dataclass(frozen=True)
class Counter:
    """Samples of one counter in bins.

    Parameters
    ----------
    key
        Values of the columns `KEY`.
    origin, width
        Start of the first bin, and length of a bin, ns.
    bins
        The bins that have samples, in order, with the columns `BINS`: number of samples, least and
        largest value, sum of values, and last value.
    """

    key: tuple[Any, ...]
    origin: int
    width: int
    bins: pl.DataFrame

    @cached_property
    def _levels(self) -> Sequence[Bins]:
        levels = [(self.width, self.bins)]
        while levels[-1][1].height > _FEW:
            width, bins = levels[-1]
            coarse = bins.group_by(pl.col("bin") // FACTOR, maintain_order=True).agg(_SUMS)
            levels.append((width * FACTOR, coarse))
        return levels

    @property
    def scale(self) -> dict[str, Any]:
        """Unit, top of the scale, and whether a value stays valid until the next sample."""
        unit, is_held = self.key[5], self.key[4] == IN_USE
        top = 100.0 if unit == "percent" else self.bins["high"].max()
        return {"unit": unit, "top": top, "held": is_held}

    def level(self, width: float, start: int, end: int, most: int) -> Bins | None:
        """Return length and bins of the coarsest level with bins of at most `width` ns.

        If the bins of all levels are longer, the number of samples near the interval decides: up to
        `most` samples are drawn singly and the result is None; else it is the finest level.
        """
        fitting = [each for each in self._levels if each[0] <= width]
        first, last = self._places(self.width, start, end)
        is_near = pl.col("bin").is_between(first - 1, last + 1)
        if not fitting and self.bins.filter(is_near)["count"].sum() <= most:
            return None
        return fitting[-1] if fitting else self._levels[0]

    def singly(self, samples: pl.DataFrame, start: int) -> Bins:
        """Return single samples as bins of length 0, and before them the value held at `start`."""
        before = self.bins.filter((pl.col("bin") + 1) * self.width + self.origin <= start).tail(1)
        last_valid = before.select(
            bin=(pl.col("bin") + 1) * self.width, count=pl.lit(0, pl.Int64),
            **dict.fromkeys(_VALUES, pl.col("last")),
        )  # fmt: skip
        values = dict.fromkeys(_VALUES, pl.col("value"))
        points = samples.sort("time").select(
            bin=pl.col("time") - self.origin, count=pl.lit(1, pl.Int64), **values
        )
        points = points.filter(pl.col("bin") >= (last_valid["bin"].max() or 0))
        return 0, pl.concat([last_valid, points]) if self.scale["held"] else points

    def drawn(self, level: Bins, start: int, end: int) -> dict[str, Any]:
        """Return as JSON the bins of a level that overlap an interval, and the bin before them."""
        width, bins = level
        places = self._places(width, start, end) if width else (0, end - self.origin)
        first, last = np.searchsorted(bins["bin"].to_numpy(), (places[0], places[1] + 1))
        shown = bins[max(int(first) - 1, 0) : int(last) + (not width)]
        mean = shown["sum"] / pl.Series(shown["count"]).clip(1)
        return {
            "width": width, "begin": self.origin,
            "bin": np.diff(shown["bin"].to_numpy(), prepend=0).tolist(), "mean": mean.to_list(),
            **{name: shown[name].to_list() for name in ("count", "low", "high", "last")},
        }  # fmt: skip

    def _places(self, width: int, start: int, end: int) -> tuple[int, int]:
        return (start - self.origin) // width, (end - 1 - self.origin) // width


def samples_of(trace: Trace) -> pl.LazyFrame:
    """Return the samples of all counters: the columns `KEY`, ``time`` (ns), ``value``."""
    none = {name: pl.lit(None, kind) for name, kind in KEY.items()}
    metrics = trace["metrics"].with_columns(process=none["process"], name="recorded_name")
    used = {"name": pl.lit(IN_USE), "unit": pl.lit("bytes"), "value": pl.col("in_use")}
    memory = trace["memory"].with_columns(nic=none["nic"], **used)
    types = {**KEY, "time": pl.Int64, "value": pl.Float64}
    columns = [pl.col(name).cast(kind) for name, kind in types.items()]
    return pl.concat([metrics.select(columns), memory.select(columns)])


def counters_of(trace: Trace, edges: tuple[int, int]) -> list[Counter]:
    """Return a run's counters, their samples between the run's start and end (`edges`) in bins.

    The bins of a long run are cached.
    """
    extent = pl.DataFrame({"first": edges[0], "last": edges[1]})
    found = trace.sums_of_parts([partial(_binned, trace, extent)])[0]
    width = int(found["width"].item())
    by_key = found["bins"].partition_by(*KEY, as_dict=True, maintain_order=True)
    return [Counter(key, edges[0], width, rows.select(*BINS)) for key, rows in by_key.items()]


def _binned(trace: Trace, edges: pl.DataFrame) -> dict[str, pl.DataFrame]:
    first, last = edges.row(0)
    samples = samples_of(trace).filter(pl.col("time").is_between(first, last))
    counts = pl.concat(each.group_by(*KEY).len() for each in at_least_one(samples))
    most = counts.group_by(*KEY).sum()["len"].max()
    width = first_width(int(most or 0), last - first)  # type: ignore[arg-type]
    place, value = (pl.col("time") - first) // width, pl.col("value")
    parts = [
        batch.sort("time").group_by(*KEY, bin=place).agg(
            count=pl.len().cast(pl.Int64), low=value.min(), high=value.max(), sum=value.sum(),
            last=value.last(), time=pl.col("time").last(),
        )
        for batch in at_least_one(samples)
    ]  # fmt: skip
    bins = pl.concat(parts).sort("time").group_by(*KEY, "bin").agg(_SUMS)
    return {"bins": bins.sort(*KEY, "bin", nulls_last=True), "width": pl.DataFrame([width])}


def sampled(trace: Trace, table: str, start: int, end: int, gpus: Collection[int] = ()) -> Answer:
    """Return the least, mean and largest sample of each counter in an interval of time.

    With `gpus`, only counters of these GPUs are listed. The answer's meta has the SQL ``query`` on
    `table` that returns the same rows.
    """
    keys, measures = SAMPLED[table]
    inside = pl.col("time").is_between(start, end, closed="left")
    if gpus:
        inside &= pl.col("device").is_in(gpus)
    rows = trace[table].filter(inside).group_by(keys).agg(map(pl.sql_expr, measures))
    columns, during = ", ".join(keys), f"time >= {start} AND time < {end}"
    during += f" AND device IN ({', '.join(map(str, gpus))})" if gpus else ""
    words = ("SELECT", ", ".join([*keys, *measures]), "FROM", table, "WHERE", during,
             "GROUP BY", columns, "ORDER BY", columns)  # fmt: skip
    rows = rows.sort(keys, nulls_last=True)
    return Answer(rows=rows.collect(), meta={"query": " ".join(words)}, command="sql")
