"""From which batch, or size of a network, on one way to communicate is quicker than another."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import polars as pl

from tracekit.errors import UsageError
from tracekit.model import Answer

Along = Literal["batch", "parameters"]
ALONG = ("batch", "parameters")
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
    """Find the batch or network size at which a method overtakes the baseline.

    Between two neighbouring points of which the overhead is above 0 at one and at most 0 at the
    next, it is 0 where a straight line through them crosses it, over the logarithm of the size.
    The interval goes from the last size before that at which the method is shown to be slower (all
    of the overhead's interval is above 0) to the first one after it at which it is shown to be
    quicker; of times from a table the overhead itself counts, and runs without an interval show
    nothing. It is open (null) on a side where nothing is shown.

    Parameters
    ----------
    overheads
        Rows of `overhead`, with a column ``parameters`` where that is what grows.
    along
        ``batch``, in each network, or ``parameters``, over networks.

    Returns
    -------
    ``network`` or ``batch``, ``gpus, method, scaling``; ``points``, the ``smallest`` and the
    ``largest`` size; ``crossing``, ``crossing_from``, ``crossing_to``; and ``found``:
    ``overtakes``, ``always slower``, ``never slower``, or ``falls behind`` and ``several times``
    where it is not as simple.

    Raises
    ------
    UsageError
        If `along` is unknown.
    """
    if along not in ALONG:
        raise UsageError(f"nothing crosses along {along!r}", f"choose among {', '.join(ALONG)}")
    keys = _OTHERS[along]
    known = overheads.drop_nulls(["overhead_percent", along]).sort(*keys, along)
    rows = [
        {**dict(zip(keys, key, strict=True)), **_crossing(own, along)}
        for key, own in known.group_by(keys, maintain_order=True)
    ]
    schema = {key: overheads.schema[key] for key in keys} | _SCHEMA
    return Answer(
        rows=pl.DataFrame(rows, schema=schema),
        meta={"along": along},
        title=f"where methods overtake, by {along}",
        empty="nothing to compare",
        command="overhead",
    )


def _crossing(own: pl.DataFrame, along: str) -> dict[str, Any]:
    sizes, values = own[along].to_list(), own["overhead_percent"].to_list()
    found = {"points": len(sizes), "smallest": sizes[0], "largest": sizes[-1]}
    slower = [value > 0 for value in values]
    turns = [at for at in range(1, len(slower)) if slower[at] != slower[at - 1]]
    if not turns:
        return {**found, "found": "always slower" if slower[0] else "never slower"}
    if len(turns) > 1:
        return {**found, "found": "several times"}
    at = turns[0]
    shares = np.log1p(np.array(values[at - 1 : at + 1]) / 100)
    logs = np.log(np.array(sizes[at - 1 : at + 1], dtype=np.float64))
    crossing = float(np.exp(logs[0] - shares[0] * (logs[1] - logs[0]) / (shares[1] - shares[0])))
    # Times of a table are taken as they are; runs without an interval show nothing.
    value = pl.when(pl.col("steps").is_null()).then("overhead_percent")
    ends = own.select(
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
