"""Read GPU samples (memory, utilisation) from the CSV output of ``nvidia-smi``."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from tracekit.errors import InputError

_RECORD_WITH = (
    "record with `nvidia-smi --query-gpu=timestamp,index,uuid,memory.used --format=csv -lms 100`"
)
_RECOMMENDED = ("timestamp", "index", "uuid", "memory.used")
_MIB = 1 << 20
_LARGEST = 1 << 30
"""Largest file that is read, bytes: a day of eight GPUs every 100 ms."""
_HEAD = 4096
_ROWS = 1 << 18
"""Number of lines that are parsed at once."""

_SCHEMA = {
    "time": pl.Int64,
    "gpu": pl.Int32,
    "uuid": pl.String,
    "memory_used": pl.Int64,
    "memory_total": pl.Int64,
    "utilisation_gpu": pl.Float64,
}
# Of ASCII digits: what else Unicode calls a digit is no number to polars.
_TIME = r"^(2[01][0-9]{2}/[0-9]{2}/[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?)$"
_UUID = r"^(?:GPU-)?([0-9A-Za-z-]{1,64})$"
_INDEX = "^([0-9]{1,4})$"
_SIZE = "^([0-9]{1,9})(?: MiB)?$"
_PERCENT = "^([0-9]{1,3})(?: %)?$"
_HEADER = (
    r"(?i)(?:^|,)\s*timestamp\s*(?:,|$)",
    r"(?i)(?:^|,)\s*memory\.used\s*(?:\[[^\]]*\])?\s*(?:,|$)",
)
_ENDS = (" MiB", " %", "]")
"""Endings of a last line without a line break that is still complete."""


def read_smi(path: Path) -> pl.DataFrame:
    """Read GPU samples from the output of ``nvidia-smi --query-gpu=... --format=csv -lms 100``.

    Columns may be in any order, with or without units; further columns are ignored, and headers may
    repeat. A line that is cut short, and any other text, is left out. Files without a header
    (``--format=csv,noheader``) are taken for ``timestamp,index,uuid,memory.used`` if they look like
    it. Times, which are local without a time zone, are taken for UTC.

    Returns
    -------
    polars.DataFrame
        One row per sample and GPU, in the order of time:

        - ``time`` (Int64): ns since the Unix epoch
        - ``gpu`` (Int32): index of the GPU as ``nvidia-smi`` counts, which follows PCI bus
          locations and so may differ from CUDA ordinals; null if it was not queried
        - ``uuid`` (String): without the prefix GPU-; null if it was not queried
        - ``memory_used``, ``memory_total`` (Int64): bytes; null where unknown
        - ``utilisation_gpu`` (Float64): per cent of the time since the last sample in which any
          kernel ran; null where unknown

    Raises
    ------
    InputError
        If the file cannot be read, or contains no such samples.
    """
    lines = _lines(path).to_frame("line").with_columns(
        header=pl.when(_is_header()).then("line").forward_fill()
    )  # fmt: skip
    parts = [pl.DataFrame(schema=_SCHEMA)]
    for (header,), part in lines.filter(~_is_header()).partition_by("header", as_dict=True).items():
        queried = None if header is None else str(header).split(",")
        parts += (_samples(some["line"], queried) for some in part.iter_slices(_ROWS))
    samples = pl.concat(parts)
    if samples.is_empty():
        raise _not_smi(path)
    return samples.sort("time", maintain_order=True)


def _not_smi(path: Path) -> InputError:
    return InputError(f"cannot read {path} as CSV of nvidia-smi", _RECORD_WITH)


def _lines(path: Path) -> pl.Series:
    """Return the complete lines of a file, stripped."""
    try:
        with path.open("rb") as file:
            data = file.read(_HEAD)
            wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # from PowerShell
            if b"\0" in data and not wide:
                raise _not_smi(path)
            data += file.read(_LARGEST)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})", "check the path") from error
    if len(data) > _LARGEST:
        raise InputError(f"{path} is larger than 1 GiB", "split it, or sample less often")
    text = data.decode("utf-16" if wide else "utf-8-sig", errors="replace")
    lines = pl.Series("line", [text]).str.split("\n").explode().str.strip_chars()
    is_whole = text.endswith("\n") or text.rstrip().endswith(_ENDS)
    return lines if is_whole else lines.head(-1)


def _is_header() -> pl.Expr:
    return pl.all_horizontal(pl.col("line").str.contains(column) for column in _HEADER)


def _samples(lines: pl.Series, queried: Sequence[str] | None) -> pl.DataFrame:
    """Parse the data lines of one CSV table; `queried` names its columns, None without a header."""
    names = [_name(field) for field in queried or _RECOMMENDED]
    places = {name: names.index(name) for name in dict.fromkeys(names)}
    if not {"timestamp", "memory.used"} <= set(places) or not {"index", "uuid"} & set(places):
        return pl.DataFrame(schema=_SCHEMA)
    fields = lines.str.split(",").to_frame("fields")
    fields = fields.filter(pl.col("fields").list.len() == len(names))
    samples = fields.select(
        time=_field(places, "timestamp", _TIME)
        .str.to_datetime("%Y/%m/%d %H:%M:%S%.f", time_unit="ns", strict=False)
        .cast(pl.Int64),
        gpu=_field(places, "index", _INDEX).cast(pl.Int32),
        uuid=_field(places, "uuid", _UUID),
        memory_used=_field(places, "memory.used", _SIZE).cast(pl.Int64) * _MIB,
        memory_total=_field(places, "memory.total", _SIZE).cast(pl.Int64) * _MIB,
        utilisation_gpu=_field(places, "utilization.gpu", _PERCENT).cast(pl.Float64),
    )
    needed = ["time", "gpu" if "index" in places else "uuid"]
    # Without a header nothing but its look says what a line is.
    return samples.drop_nulls(needed if queried else [*needed, "uuid", "memory_used"])


def _field(places: Mapping[str, int], name: str, pattern: str) -> pl.Expr:
    """Return what `pattern` matches in the field `name` of each line.

    Null without a match, or if the field was not queried. `places` maps field -> position.
    """
    if name not in places:
        return pl.lit(None, pl.String)
    return pl.col("fields").list.get(places[name]).str.strip_chars().str.extract(pattern)


def _name(field: str) -> str:
    """Return a column's name as in ``--query-gpu``, given a queried name or a header cell."""
    name = re.sub(r"\[[^\]]*\]$", "", field.strip().lower()).strip()
    return {"gpu_uuid": "uuid"}.get(name, name)
