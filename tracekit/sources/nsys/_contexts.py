"""Which GPU a CUDA context belongs to, for copies that name contexts but no GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import polars as pl

from tracekit.sources._tables import ExportFile
from tracekit.sources.nsys._ids import pid_of, small

_DECLARING = ("TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_CUDA_NULL_STREAM")
_KEY = ["pid", "context"]


class Contexts:
    """The CUDA ordinal of every context's GPU.

    Parameters
    ----------
    file
        The export.
    tables
        Its tables of GPU work, which show a context where no other table does.
    """

    def __init__(self, file: ExportFile, tables: Sequence[str]) -> None:
        self._file = file
        self._tables = tables

    def ordinals(self, contexts: pl.DataFrame) -> pl.Series:
        """Return the ordinal of each context, null where it is not known.

        Parameters
        ----------
        contexts
            ``process_gid, context``; a context that is null is not looked for.
        """
        keys = contexts.select("context", pid=pid_of(pl.col("process_gid")))
        found = _looked_up(keys, self._declared)
        lacking = found.is_null() & keys["context"].is_not_null()
        return (
            found.zip_with(~lacking, _looked_up(keys, self._observed)) if lacking.any() else found
        )

    @cached_property
    def _declared(self) -> pl.DataFrame:
        columns = ("processId", "contextId", "deviceId")
        rows = [self._file.read(table, dict.fromkeys(columns, "int")) for table in _DECLARING]
        return _unequivocal(
            pl.concat(rows).select(
                pid="processId", context="contextId", ordinal=small(pl.col("deviceId"))
            )
        )

    @cached_property
    def _observed(self) -> pl.DataFrame:
        columns = ("globalPid", "contextId", "deviceId")
        seen = pl.DataFrame(schema=dict.fromkeys((*_KEY, "ordinal"), pl.Int64))
        for table in self._tables:
            for batch in self._file.batches(table, dict.fromkeys(columns, "int")):
                rows = batch.select(
                    pid=pid_of(pl.col("globalPid")),
                    context="contextId",
                    ordinal=small(pl.col("deviceId")),
                )
                seen = pl.concat([seen, rows.unique()]).unique()
        return _unequivocal(seen)


def _looked_up(keys: pl.DataFrame, known: pl.DataFrame) -> pl.Series:
    found = keys.join(known, on=_KEY, how="left", maintain_order="left")
    return found["ordinal"].cast(pl.Int32)


def _unequivocal(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the contexts that are said to be of one GPU only."""
    return rows.drop_nulls().unique().filter(pl.len().over(_KEY) == 1)
