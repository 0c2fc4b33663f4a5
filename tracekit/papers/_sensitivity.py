"""Sensitivity of the simulated DGX-1: speedups as each assumption is varied over its range.

Step times come from the simulator, which does not use published values; these are listed beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from tracekit.analysis.studies import Published
from tracekit.model import Answer
from tracekit.papers._dgx1_questions import ALIKE, COMMAND, number_of

_FIGURE = ("network", "method", "gpus")
_CLOSE = 5.0
"""Percent within which the speedup at the assumed value counts as the published one."""
_FITTED, _POINT = "collective_call_ns", ("lenet", "nccl", 8)
_VARIANT = ("assumption", "value")


def sensitivity(
    steps: pl.DataFrame, assumptions: pl.DataFrame, known: Published
) -> dict[str, Answer]:
    """Test which assumptions of the simulator can reach published speedups; fit one of them.

    Parameters
    ----------
    steps
        Mean steps: ``assumption, value`` (the changed assumption, texts; null if none is changed),
        ``network, method, gpus, step_ns``. On one GPU there is one method.
    assumptions
        ``assumption, value, low, high, unit, source`` (texts): each assumption with its range.
    known
        The published values.

    Returns
    -------
    Two answers. `sensitivity`, one row per assumption and published speedup: ``speedup`` at the
    assumed value, ``speedup_low`` and ``speedup_high`` over the range, ``change_percent`` between
    these, ``published``, ``relation`` (``~`` for alexnet, published as similar to lenet's), and
    ``reached``, whether the range contains the published value. `fit`, one row per published
    speedup with NCCL: ``predicted`` with the host's cost of a collective (``cost_ns``) fitted to
    lenet's published speedup on 8 GPUs.
    """
    speedups = _speedups(steps)
    figures = _figures(known).join(speedups.select(_FIGURE).unique(), on=_FIGURE, how="semi")
    rows = _over_ranges(speedups, figures, assumptions)
    return {"sensitivity": _sensitivity(rows), "fit": _fit(_fits(speedups, figures))}


def _speedups(steps: pl.DataFrame) -> pl.DataFrame:
    """Return speedups: images per second over those on one GPU, with the same assumptions."""
    ones = steps.filter(pl.col("gpus") == 1).select(*_VARIANT, "network", one="step_ns")
    several = steps.filter(pl.col("gpus") > 1)
    joined = several.join(ones, on=[*_VARIANT, "network"], nulls_equal=True)
    speedup = pl.col("gpus") * pl.col("one") / pl.col("step_ns")
    return joined.select(*_VARIANT, *_FIGURE, speedup=speedup)


def _figures(known: Published) -> pl.DataFrame:
    """Return the published speedups; lenet's stand for alexnet's, too.

    Alexnet's were published only as similar to lenet's (relation ``~``).
    """
    speedups = known.speedups.select(*_FIGURE, "published", "relation")
    alike = speedups.filter(network="lenet").with_columns(
        network=pl.lit("alexnet"), relation=pl.lit("~")
    )
    return pl.concat([speedups, alike])


def _reached(low: pl.Expr, high: pl.Expr, slack: float = 0.0) -> pl.Expr:
    """Test whether the range from `low` to `high` contains the published speedup.

    The range is widened by `slack` percent (more where ``relation`` is ``~``); a published bound is
    reached if `low` is below it.
    """
    published, relation = pl.col("published"), pl.col("relation")
    near = pl.when(relation == "~").then(ALIKE).otherwise(slack) / 100
    between = (low <= published * (1 + near)) & (high >= published * (1 - near))
    return pl.when(relation.is_in(["=", "~"])).then(between).otherwise(low < published)


def _over_ranges(
    speedups: pl.DataFrame, figures: pl.DataFrame, assumptions: pl.DataFrame
) -> pl.DataFrame:
    as_it_is = speedups.filter(pl.col("assumption").is_null()).drop(_VARIANT)
    ends = speedups.drop_nulls("assumption").group_by(
        "assumption", *_FIGURE, maintain_order=True
    ).agg(
        least=pl.col("speedup").min(), most=pl.col("speedup").max()
    )  # fmt: skip
    rows = assumptions.join(ends, on="assumption", maintain_order="left")
    rows = rows.join(as_it_is, on=_FIGURE, maintain_order="left")
    rows = rows.join(figures, on=_FIGURE, maintain_order="left").with_columns(
        speedup_low=pl.min_horizontal("least", "speedup"),
        speedup_high=pl.max_horizontal("most", "speedup"),
    )
    low, high, speedup = (pl.col(f"speedup{end}") for end in ("_low", "_high", ""))
    return rows.drop("least", "most").with_columns(
        change_percent=100 * (high / low - 1),
        reached=_reached(low, high),
        reached_as_assumed=_reached(speedup, speedup, _CLOSE),
    )


def _names(rows: pl.DataFrame) -> str:
    """Return which published speedups are in `rows` as text, such as ``lenet nccl 2, 4`` (GPUs)."""
    texts = [
        f"{network} {method} {', '.join(map(str, sorted(of_method['gpus'])))}"
        for (network, method), of_method in rows.group_by("network", "method", maintain_order=True)
    ]
    return "; ".join(texts)


def _sensitivity(rows: pl.DataFrame) -> Answer:
    each = []
    for (_,), cases in rows.group_by("assumption", maintain_order=True):
        most = cases.sort("change_percent", descending=True, maintain_order=True).row(0, named=True)
        new = cases.filter("reached", ~pl.col("reached_as_assumed"))
        each.append({
            **{name: most[name] for name in ("assumption", "low", "value", "high", "unit")},
            "change_percent": most["change_percent"],
            "most_of": "{network} {method} {gpus}".format_map(most),
            "reaches": _names(new) or "none",
        })  # fmt: skip
    readable = pl.DataFrame(each).sort("change_percent", descending=True, maintain_order=True)
    as_it_is = rows.filter("reached_as_assumed").unique(_FIGURE, maintain_order=True)
    count = rows.select(_FIGURE).unique().height
    never = rows.group_by(_FIGURE, maintain_order=True).agg(pl.col("reached").any())
    missed = _names(never.filter(~pl.col("reached")))
    headline = (
        f"Of {count} published speedups {as_it_is.height} are reached as all is assumed"
        f"{f' ({_names(as_it_is)})' if as_it_is.height else ''}, and "
        f"{never['reached'].sum()} by one assumption or another in its range"
        f"{f'; none reaches {missed}' if missed else ''}."
    )
    meta = {"question": "Which assumption reaches which published speedup?", "headline": headline,
            "claims": {}}  # fmt: skip
    return Answer(
        rows=rows.drop("reached_as_assumed"), meta=meta, readable=readable,
        title="speedups over ranges of assumptions", figures={"figure": "sensitivity"},
        command=COMMAND,
    )  # fmt: skip


def _fits(speedups: pl.DataFrame, figures: pl.DataFrame) -> pl.DataFrame:
    """Fit the host's cost of a collective, ns, to one published speedup, and predict the others.

    There is one fit per assumption of the simulator that is such a cost.
    """
    network, method, gpus = _POINT
    wanted = figures.filter(network=network, method=method, gpus=gpus)["published"]
    parts = []
    for (curve,), of_curve in speedups.filter(
        pl.col("assumption").str.starts_with(_FITTED).fill_null(value=False)
    ).group_by("assumption", maintain_order=True):
        points = of_curve.with_columns(cost=pl.col("value").cast(pl.Float64)).sort("cost")
        by = dict(points.group_by(_FIGURE))
        if not wanted.len() or _POINT not in by:
            continue
        cost = _crossing(by[_POINT]["cost"].to_list(), by[_POINT]["speedup"].to_list(), wanted[0])
        rows = figures.filter(pl.col("method") == method).with_columns(
            assumption=pl.lit(str(curve)), cost_ns=pl.lit(cost, pl.Float64)
        )
        predictions = [
            None if cost is None else np.interp(cost, by[key]["cost"], by[key]["speedup"])
            for key in rows.select(_FIGURE).rows()
        ]
        parts.append(rows.with_columns(predicted=pl.Series(predictions, dtype=pl.Float64)))
    nothing = figures.clear().with_columns(
        assumption=pl.lit(""), cost_ns=pl.lit(0.0), predicted=pl.lit(0.0)
    )
    point = pl.all_horizontal(
        pl.col(name) == value for name, value in zip(_FIGURE, _POINT, strict=True)
    )
    predicted, published = pl.col("predicted"), pl.col("published")
    return pl.concat([nothing, *parts]).select(
        "assumption", "cost_ns", *_FIGURE, "published", "relation", "predicted",
        error_percent=pl.when(pl.col("relation").is_in(["=", "~"])).then(
            100 * (predicted / published - 1)
        ),
        within=pl.when(pl.col("relation") != "=").then(_reached(predicted, predicted)),
        fitted=point,
    )  # fmt: skip


def _crossing(costs: Sequence[float], values: Sequence[float], wanted: float) -> float | None:
    """Return the least cost at which the interpolated `values` (speedups) equal `wanted`.

    None if there is none.
    """
    for (cost, a), (next_cost, b) in pairwise(zip(costs, values, strict=True)):
        if min(a, b) <= wanted <= max(a, b) and a != b:
            return cost + (wanted - a) / (b - a) * (next_cost - cost)
    return None


def _fit(rows: pl.DataFrame) -> Answer:
    texts = []
    for (curve,), of_assumption in rows.group_by("assumption", maintain_order=True):
        cost, others = of_assumption["cost_ns"][0], of_assumption.filter(~pl.col("fitted"))
        messages = "layers" if "layers" in str(curve) else "arrays"
        if cost is None:
            texts.append(f"With messages of {messages} no cost in the range gives that")
            continue
        errors = others.filter(pl.col("relation") == "=")["error_percent"].abs()
        mean, most = (number_of(error, "{:.0f} %") for error in (errors.mean(), errors.max()))
        texts.append(
            f"With messages of {messages} {cost / 1000:.1f} us of the host for a collective give "
            f"that, and miss the other {errors.len()} values by {mean} in the mean and {most} at "
            "most"
        )
    network, method, gpus = _POINT
    headline = f"Fitted is one point, {network} with {method} on {gpus} GPUs. {'. '.join(texts)}."
    meta: dict[str, Any] = {
        "question": "What does one fitted point predict of the others?", "headline": headline,
        "claims": {},
    }  # fmt: skip
    return Answer(rows=rows, meta=meta, title="predictions by one fitted point", command=COMMAND)
