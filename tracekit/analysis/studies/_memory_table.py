"""Memory that was measured elsewhere."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from tracekit.analysis.studies._epochs import MOST_BATCH
from tracekit.analysis.studies._times import check_values, text_table, whole_number
from tracekit.errors import InputError

_WORDS = ("network", "method")
_BYTES = ("pre_bytes", "training_bytes")
_MOST_GPU, _MOST_BYTES = 1 << 20, 1 << 60
_REQUIRED = ("batch", "gpu", "training_bytes")
_EXAMPLE = "network,batch,gpu,pre_bytes,training_bytes"


def read_memory_table(path: Path) -> pl.DataFrame:
    """Read a table of memory by GPU, as comma-separated text with a line of column names.

    Parameters
    ----------
    path
        The file, with columns in any order: ``network`` and ``method`` (words, may be absent),
        ``batch``, ``gpu`` (its number), ``pre_bytes`` (may be absent) and ``training_bytes``.

    Returns
    -------
    ``network, method, batch, gpu, pre_bytes, training_bytes``; what the file does not say is null.

    Raises
    ------
    InputError
        If the file cannot be read, a column is missing or unknown, or a value is not what it has
        to be. The message says which.
    """
    table = text_table(path)
    absent = [name for name in _REQUIRED if name not in table.columns]
    unknown = [name for name in table.columns if name not in (*_WORDS, *_BYTES, *_REQUIRED)]
    if absent or unknown:
        what = f"no column {absent[0]}" if absent else f"the unknown column {unknown[0]!r}"
        raise InputError(f"{path} has {what}", f"its columns are as {_EXAMPLE}")
    ranges = {"batch": (1, MOST_BATCH), "gpu": (0, _MOST_GPU)} | dict.fromkeys(
        _BYTES, (0, _MOST_BYTES)
    )
    numbers = {
        name: whole_number(name, most, least)
        for name, (least, most) in ranges.items()
        if name in table.columns
    }
    for name, read in numbers.items():
        least, most = ranges[name]
        check_values(table, path, name, read, f"a whole number from {least} to {most}")
    return table.select(
        *(
            (pl.col(name) if name in table.columns else pl.lit(None, pl.String)).alias(name)
            for name in _WORDS
        ),
        *(numbers.get(name, pl.lit(None, pl.Int64)).alias(name) for name in ranges),
    )
