"""Labels that a program gives its run, as names of NVTX marks or ranges of whatever domain."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from tracekit.support.labels import MOST, label_fault

_PREFIX = "tracekit"
_SEVERAL = 2
_LABEL = r"(?s)^tracekit[.:]label[ :](?<key>[^\s=]+)=(?<value>.*)$"


class RunLabels:
    """Labels among the names of NVTX events, collected as these come in.

    No more than is needed to know the first `MOST` keys, and whether each has one value, is kept:
    a program may well write another value in each iteration.
    """

    def __init__(self) -> None:
        self._found = pl.DataFrame(schema={"key": pl.String, "value": pl.String})

    def add(self, names: pl.Series) -> None:
        """Look at the names of some events."""
        if names.dtype != pl.String:
            names = names.unique(maintain_order=True).cast(pl.String)
        ours = names.filter(names.str.starts_with(_PREFIX))
        if ours.is_empty():
            return
        found = ours.str.extract_groups(_LABEL).struct.unnest().drop_nulls("key")
        values = pl.concat([self._found, found]).unique(maintain_order=True)
        keys = values["key"].unique(maintain_order=True).head(MOST + 1)
        self._found = values.filter(
            pl.col("key").is_in(keys.implode()), pl.int_range(pl.len()).over("key") < _SEVERAL
        )

    @property
    def _values(self) -> Mapping[str, list[str]]:
        grouped = self._found.group_by("key", maintain_order=True).agg("value")
        return dict(grouped.rows())

    @property
    def labels(self) -> Mapping[str, str]:
        """Valid labels with one value."""
        clear = ((key, values[0]) for key, values in self._values.items() if len(values) == 1)
        return dict([each for each in clear if label_fault(*each) is None][:MOST])

    @property
    def losses(self) -> tuple[str, ...]:
        """Labels that were left out, in words."""
        losses = []
        for key, values in self._values.items():
            fault = next(filter(None, (label_fault(key, value) for value in values)), None)
            if fault is not None:
                losses.append(f"a label that the program gave its run {fault} and was left out")
            elif len(values) > 1:
                losses.append(
                    f"the program gave its run the label {key!r} with several values, so none is "
                    "taken"
                )
        if len(self._values) > MOST:
            losses.append(f"the program gave its run more than {MOST} labels; others are left out")
        return tuple(dict.fromkeys(losses))
