"""Overhead of one communication method against another, and where they break even."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import polars as pl

from tracekit.analysis.facts import largest
from tracekit.analysis.studies._ratios import PRECISION, RELATIVE, STEPS, precision, ratio_interval
from tracekit.analysis.studies._study import (
    basis_of,
    is_told_apart,
    name_of_one,
    pool,
    pooling_warnings,
    without_empty,
)
from tracekit.errors import UsageError
from tracekit.model import Answer
from tracekit.support.wording import count, first_line, percent

_CONFIGURATION = ["network", "batch", "gpus", "scaling"]
_TIMES = ("step_ns", "epoch_ns")
_ENDS = tuple(f"{end}_{name}" for name in _TIMES for end in ("low", "high"))
_KNOWN = ("runs", "steps", *(f"{name}_{kind}" for name in PRECISION for kind in _TIMES))
_COLUMNS = (
    *_CONFIGURATION[:3], "method", "scaling", "run", "baseline_run", "runs", "baseline_runs",
    "time", "time_ns",
    "time_low_ns", "time_high_ns", "baseline_ns", "baseline_low_ns", "baseline_high_ns",
    "overhead_percent", "from_percent", "to_percent", "interval_of", "low_percent", "high_percent",
    "throughput_ratio", "steps", "baseline_steps", "parameters",
)  # fmt: skip
_OF_SEVERAL = (
    "run", "baseline_run", "time_low_ns", "time_high_ns", "baseline_low_ns", "baseline_high_ns",
    "low_percent", "high_percent", "from_percent", "to_percent", "interval_of", "steps",
    "baseline_steps", "parameters",
)  # fmt: skip
"""Columns that have values only for pooled runs, or only for single runs."""


def overhead(study: pl.DataFrame, *, baseline: str = "p2p", apart: bool = False) -> Answer:
    """Compare the step times of communication methods with those of a baseline method.

    The function `overhead` in `questions.py` lists options and columns.

    Runs of equal network, batch and number of GPUs (and of equal label ``scaling``) are compared by
    the medians of their times; an unknown value equals only an unknown value. Runs of unknown
    method are left out. So are runs without ``network`` or ``batch`` that agree with another run in
    all known labels, since both may be different programs. With `apart`, runs are not pooled: each
    run is compared with each run of the baseline, and no run is left out. With times T of a method
    m and of the baseline b

        overhead_percent = 100 (T_m - T_b) / T_b
        throughput_ratio = T_b / T_m         images per second, method over baseline

    There is a row per configuration and other method, or per pair of runs; ``method`` is null if a
    run of the baseline has no run to compare with. Intervals are those of `ratio_interval`.

    Raises
    ------
    UsageError
        If no run uses the baseline method.
    """
    basis_of(study)
    methods = study["method"].drop_nulls().unique().sort().to_list()
    if baseline not in methods:
        known = f"theirs are {str(methods)[1:-1]} (--baseline)" if methods else "theirs are unknown"
        raise UsageError(
            f"no run of the method {baseline!r}",
            f"{known}; record the same program with {baseline}, and `--label method={baseline}` if "
            "its trace does not show the method",
        )
    alike = study.filter(is_told_apart(apart=apart))
    medians = _medians(alike.with_columns(pool(apart=apart)))
    base = medians.filter(pl.col("method") == baseline).select(
        *_CONFIGURATION,
        pl.col("run", *_TIMES, *_ENDS, *_KNOWN).name.prefix("baseline_"),
    )
    others = medians.filter(pl.col("method") != baseline)
    table = _timed(
        others.join(base, on=_CONFIGURATION, how="full", nulls_equal=True, coalesce=True)
    )
    time, other = pl.col("time_ns"), pl.col("baseline_ns")
    table = _with_intervals(table)
    rows = (
        table.with_columns(
            overhead_percent=100 * (time - other) / other,
            throughput_ratio=other / time,
            low_percent=_farthest("low", "high"),
            high_percent=_farthest("high", "low"),
        )
        .select(_COLUMNS)
        .sort(
            "method", "network", "batch", "gpus", "scaling", "run", "baseline_run", nulls_last=True
        )
    )
    return Answer(
        rows=rows,
        meta=_meta(study, rows, baseline, apart=apart),
        title=f"overhead against {baseline}",
        readable=without_empty(rows, _OF_SEVERAL),
        empty="nothing to compare: runs without labels may be different programs; name them",
        command="overhead",
        figures={"figure": "overheads", "heat-map": "overhead map"},
    )


def _with_intervals(table: pl.DataFrame) -> pl.DataFrame:
    """Add the intervals of overheads, from the precision of the times of both methods."""
    kinds = {"step_ns": pl.col("time") == "step", "epoch_ns": pl.col("time") == "epoch"}
    chosen = [
        pl.coalesce(
            pl.when(is_it).then(f"{side}{name}_{kind}") for kind, is_it in kinds.items()
        ).alias(f"{side}{name}")
        for side in ("", "baseline_")
        for name in PRECISION
    ]
    table = table.with_columns(*chosen, ratio=pl.col("time_ns") / pl.col("baseline_ns"))
    found = ratio_interval(table, "ratio", "", "baseline_")
    return table.with_columns(
        from_percent=100 * (found["low"] - 1),
        to_percent=100 * (found["high"] - 1),
        interval_of=found["of"],
    )


def _farthest(time_end: str, base_end: str) -> pl.Expr:
    """Return the overhead, %, of one end of the method's interval over one end of the baseline's.

    An end is ``low`` or ``high``; of a time without an interval, both ends are the time itself.
    """
    time, base = pl.col(f"time_{time_end}_ns"), pl.col(f"baseline_{base_end}_ns")
    ratio = pl.coalesce(time, "time_ns") / pl.coalesce(base, "baseline_ns")
    return pl.when(time.is_not_null() | base.is_not_null()).then(100 * (ratio - 1))


def _meta(
    study: pl.DataFrame, table: pl.DataFrame, baseline: str, *, apart: bool
) -> dict[str, Any]:
    """Return metadata: runs compared and not compared, and why; `apart`: runs are not pooled."""
    found = table["overhead_percent"]
    alone = table.filter(pl.any_horizontal(pl.col("runs", "baseline_runs").is_null())).height
    return {
        "baseline": baseline,
        "compared": found.count(),
        "min_percent": found.min(),
        "max_percent": found.max(),
        "without_partner": alone,
        "untimed": table.height - alone - found.count(),
        "without_method": study["method"].null_count(),
        **basis_of(study),
        **({"warnings": warnings} if (warnings := pooling_warnings(study, apart=apart)) else {}),
    }


def overhead_matrix(table: pl.DataFrame) -> pl.DataFrame:
    """Pivot the rows of `overhead`: one row per network, one column per batch.

    Returns
    -------
    ``method, gpus, scaling, network`` (and ``run, baseline_run`` if runs of a configuration are not
    pooled), and one column per batch with the overhead in percent, named by the batch (``batch
    unknown`` without one); rows without any overhead are left out. Ends of known confidence
    intervals follow in further columns, such as ``16 from`` and ``16 to`` for the batch 16.
    """
    named = pl.coalesce(pl.col("batch").cast(pl.String), pl.lit("batch unknown"))
    rows = table.drop_nulls("overhead_percent").sort("batch", nulls_last=True)
    batches = rows.select(named).to_series().unique(maintain_order=True).to_list()
    keys = ["method", "gpus", "scaling", "network"]
    if rows.select(*_CONFIGURATION, "method").is_duplicated().any():
        keys += ["run", "baseline_run"]
    ends = {"": "overhead_percent"}
    if rows["from_percent"].count():
        ends |= {" from": "from_percent", " to": "to_percent"}
    return (
        rows.group_by(keys)
        .agg(
            pl.col(column).filter(named == batch).first().alias(batch + end)
            for batch in batches
            for end, column in ends.items()
        )
        .sort(keys, nulls_last=True)
    )


def _medians(study: pl.DataFrame) -> pl.DataFrame:
    known = {
        f"{name}_{kind}": each
        for kind in _TIMES
        for name, each in precision(kind, RELATIVE if kind == "step_ns" else None).items()
    }
    return study.group_by(*_CONFIGURATION, "method", "pool").agg(
        name_of_one(),
        pl.col(_TIMES).median(),
        *(_ends(name, end) for name in _TIMES for end in ("low", "high")),
        runs=pl.len().cast(pl.Int64),
        parameters=pl.col("parameters").max(),
        steps=STEPS,
        **known,
    )


def _ends(name: str, end: str) -> pl.Expr:
    """Return the least (`end` ``low``) or greatest of `name` over pooled runs; null for one run."""
    value = pl.col(name).min() if end == "low" else pl.col(name).max()
    return pl.when(pl.len() > 1).then(value).alias(f"{end}_{name}")


def _timed(pairs: pl.DataFrame) -> pl.DataFrame:
    """Choose which times to compare: steps', if run and baseline have them, else epochs'."""
    alone = pl.any_horizontal(pl.col("runs", "baseline_runs").is_null())

    def known(name: str) -> pl.Expr:
        sides = [(pl.col(side) > 0).fill_null(value=False) for side in (name, f"baseline_{name}")]
        return pl.all_horizontal(sides) | (alone & pl.any_horizontal(sides))

    kind = pl.when(known("step_ns")).then(pl.lit("step"))
    pairs = pairs.with_columns(time=kind.when(known("epoch_ns")).then(pl.lit("epoch")))
    return pairs.with_columns(
        pl.when(pl.col("time") == "step").then(f"{side}{end}step_ns")
        .when(pl.col("time") == "epoch").then(f"{side}{end}epoch_ns")
        .alias(f"{name}_{end}ns")
        for name, side in {"time": "", "baseline": "baseline_"}.items()
        for end in ("", "low_", "high_")
    )  # fmt: skip


Along = Literal["batch", "parameters"]
_OTHERS = {
    "batch": ["network", "gpus", "method", "scaling"],
    "parameters": ["batch", "gpus", "method", "scaling"],
}
_SCHEMA = {
    "points": pl.Int64,
    "smallest": pl.Int64,
    "largest": pl.Int64,
    "crossing": pl.Float64,
    "crossing_from": pl.Int64,
    "crossing_to": pl.Int64,
    "found": pl.String,
}


def crossovers(overheads: pl.DataFrame, along: Along = "batch") -> Answer:
    """Find the batch or network size at which a method overtakes the baseline (``--crossover``).

    ``crossing`` lies between two neighbouring sizes, one with an overhead above 0 and one of at
    most 0: there the logarithm of the ratio of times is interpolated linearly over that of the
    size. Its interval goes from ``crossing_from`` to ``crossing_to``. ``crossing_from`` is the last
    smaller size at which the method is significantly slower (the whole interval of the overhead is
    above 0), ``crossing_to`` the first larger size at which the method is significantly faster. If
    the method falls behind the baseline as the size grows, slower and faster are swapped. Times
    from a table have no intervals: the sign of their overhead counts as significant. A recorded run
    without an interval is never significant. An end is null if no size is significant; all three
    are null if the sign of the overhead never changes, or changes several times.

    Parameters
    ----------
    overheads
        Rows of `overhead`; for `along` = ``parameters`` with a column ``parameters``.
    along
        The size that grows: ``batch`` (within each network) or ``parameters`` (over networks).
    """
    keys = _OTHERS[along]
    known = overheads.drop_nulls(["overhead_percent", along]).sort(*keys, along)
    rows = [
        {**dict(zip(keys, key, strict=True)), **_crossing(of_key, along)}
        for key, of_key in known.group_by(keys, maintain_order=True)
    ]
    schema = {key: overheads.schema[key] for key in keys} | _SCHEMA
    return Answer(
        rows=pl.DataFrame(rows, schema=schema),
        meta={"along": along},
        title=f"where methods overtake, by {along}",
        empty="nothing to compare",
        command="overhead",
    )


def _crossing(rows: pl.DataFrame, along: str) -> dict[str, Any]:
    sizes, values = rows[along].to_list(), rows["overhead_percent"].to_list()
    found = {"points": len(sizes), "smallest": sizes[0], "largest": sizes[-1]}
    slower = [value > 0 for value in values]
    turns = [at for at in range(1, len(slower)) if slower[at] != slower[at - 1]]
    if not turns:
        several = sizes[0] < sizes[-1]
        if slower[0]:
            return {**found, "found": "always slower" if several else "slower at one size"}
        return {**found, "found": "never slower" if several else "not slower at one size"}
    if len(turns) > 1:
        return {**found, "found": "several times"}
    at = turns[0]
    shares = np.log1p(np.array(values[at - 1 : at + 1]) / 100)
    logs = np.log(np.array(sizes[at - 1 : at + 1], dtype=np.float64))
    crossing = float(np.exp(logs[0] - shares[0] * (logs[1] - logs[0]) / (shares[1] - shares[0])))
    # Times of a table are taken as they are; runs without an interval show nothing.
    value = pl.when(pl.col("steps").is_null()).then("overhead_percent")
    ends = rows.select(
        pl.coalesce("from_percent", value, pl.lit(-np.inf)),
        pl.coalesce("to_percent", value, pl.lit(np.inf)).alias("to_percent"),
    ).rows()
    above = [size for size, (low, _) in zip(sizes, ends, strict=True) if low > 0]
    below = [size for size, (_, high) in zip(sizes, ends, strict=True) if high < 0]
    before, after = (above, below) if slower[0] else (below, above)
    return {
        **found,
        "crossing": crossing,
        "crossing_from": max((size for size in before if size < crossing), default=None),
        "crossing_to": min((size for size in after if size > crossing), default=None),
        "found": "overtakes" if slower[0] else "falls behind",
    }


@first_line("overhead")
def _first_line(rows: pl.DataFrame, meta: Mapping[str, Any]) -> str | None:
    if "times" in rows.columns and (most := largest(rows.filter(name="all"), "share", "run")):
        return f"The profiler takes up to {percent(most['share'])} of a run ({most['run']})"
    if meta.get("min_percent") is None or not meta.get("compared"):
        return None
    ends = dict.fromkeys(f"{meta[name]:+.1f} %" for name in ("min_percent", "max_percent"))
    where = count(meta["compared"], "configuration")
    return f"Time over that of {meta['baseline']}: {' to '.join(ends)} in {where}"
