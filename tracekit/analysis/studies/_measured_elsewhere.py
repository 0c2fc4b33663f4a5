"""Times and other values measured or published elsewhere, as rows of a study."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from tracekit.analysis.studies._epochs import MOST_BATCH, MOST_GPUS, parameter_count
from tracekit.analysis.studies._study import SCALING_MODES, STUDY
from tracekit.errors import InputError
from tracekit.support.files import schemas
from tracekit.support.toml import read_toml

_REQUIRED = ("network", "batch", "gpus", "method")
_WORDS = ("run", "network", "method", "scaling")
_WHOLE = {"batch": MOST_BATCH, "gpus": MOST_GPUS}
_NS = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
_TIMES = {"step": "step_ns", "epoch": "epoch_ns", "time": "epoch_ns"}
_PARTS = {"fp_bp": "fp_bp_ns", "wu": "wu_ns"}
_PARAMETERS = "parameters"
_TIMED = re.compile(rf"({'|'.join((*_TIMES, *_PARTS))})_({'|'.join(_NS)})")
_MOST_BYTES = 64 << 20
_EXAMPLE = "network,batch,gpus,method,epoch_s"


def read_times(path: Path) -> pl.DataFrame:
    """Read a table of times, as comma-separated text with a line of column names.

    Parameters
    ----------
    path
        The file. Lines that begin with ``#`` are comments. Its columns, in any order:

        ==========================  ===============================================================
        ``network``, ``method``     words; null where empty
        ``batch``, ``gpus``         integers; a batch may be empty
        ``step_s`` or ``epoch_s``   measured time of a step or an epoch; or ``time_s``, the time of
                                    an unnamed amount of work, equal in all rows, which counts as
                                    an epoch
        ``fp_bp_s``, ``wu_s``       optional: parts of that time, FP+BP and weight update
        ``scaling``                 optional: ``strong`` or ``weak``; null: the time counts in both
        ``parameters``              optional: the network's number of parameters, such as ``60M``
        ``run``                     optional: a name ==========================
        ===============================================================

        The ending of a time column names its unit: s, ms, us or ns, such as ``step_ms``.

    Returns
    -------
    The columns `STUDY`; null for columns that the file lacks.

    Raises
    ------
    InputError
        If the file cannot be read, a column is missing, unknown or duplicate, or a value is
        invalid. The message names it.
    """
    table = text_table(path)
    timed = _timed_columns(table.columns, path)
    words = [name for name in _WORDS if name in table.columns]
    for name, most in _WHOLE.items():
        check_values(
            table, path, name, whole_number(name, most), f"a whole number from 1 to {most}"
        )
    for name in timed:
        check_values(table, path, name, _time(name), "a time above 0")
    has_parameters = _PARAMETERS in table.columns
    if has_parameters:
        check_values(table, path, _PARAMETERS, _count(), "a number, as 60M")
    _check_present(table, path, ["gpus", *(name for name in timed if timed[name] in _times())])
    _check_modes(table, path)
    numbered = pl.format("row {}", pl.int_range(1, pl.len() + 1))
    found = table.select(
        *words,
        *(whole_number(name, most) for name, most in _WHOLE.items()),
        *(
            (_time(name) * _NS[name.rpartition("_")[2]]).alias(column)
            for name, column in timed.items()
        ),
        *([_count()] if has_parameters else []),
        method_source=pl.when(pl.col("method").is_not_null()).then(pl.lit("table")),
        row=numbered,
    )
    run = pl.coalesce("run", "row") if "run" in words else pl.col("row")
    found = found.with_columns(run=run)
    return found.select(
        (pl.col(name) if name in found.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in STUDY.items()
    )


def text_table(path: Path) -> pl.DataFrame:
    """Read comma-separated text with a line of column names.

    Returns
    -------
    Its columns, named in lower case, as stripped text; null for empty cells. Empty rows, and lines
    that begin with ``#``, are left out.

    Raises
    ------
    InputError
        If the file cannot be read, has no rows, or has an unnamed or duplicate column.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"{path} is too large for a table of text")
        content = path.read_bytes()
        # Read as rows: a name that is there twice would get another one.
        rows = pl.read_csv(content, has_header=False, infer_schema=False, comment_prefix="#")
    except OSError as error:
        raise InputError(f"{path} cannot be read", error.strerror) from error
    except pl.exceptions.PolarsError as error:
        why = str(error).partition("\n")[0]
        raise InputError(f"cannot read {path} as comma-separated text", why) from error
    text = pl.all().str.strip_chars("\ufeff \t\r")
    rows = rows.with_columns(text).with_columns(
        pl.when(pl.all() != "").then(pl.all())  # an empty text is as unknown as none
    )
    names = ["" if name is None else name.lower() for name in rows.row(0)]
    if len(set(names)) < len(names) or "" in names:
        raise InputError(
            f"{path} names the columns {', '.join(names)}", "give each column a different name"
        )
    table = rows[1:].rename(dict(zip(rows.columns, names, strict=True)))
    table = table.filter(~pl.all_horizontal(pl.all().is_null()))
    if table.is_empty():
        raise InputError(f"{path} has no rows below its column names {', '.join(names)}")
    return table


def _times() -> set[str]:
    return set(_TIMES.values())


def _timed_columns(names: Sequence[str], path: Path) -> dict[str, str]:
    """Return name of each time column in the file -> its name in the study table."""
    known = (*_REQUIRED, *_WORDS)
    absent = [name for name in _REQUIRED if name not in names]
    if absent:
        raise InputError(f"{path} has no column {absent[0]}", f"its columns are as {_EXAMPLE}")
    timed = {}
    for name in names:
        found = _TIMED.fullmatch(name)
        if found:
            timed[name] = (_TIMES | _PARTS)[found[1]]
        elif name not in (*known, _PARAMETERS):
            raise InputError(f"{path} has the unknown column {name!r}", f"known: {_known()}")
    step_columns = [name for name, column in timed.items() if column in _times()]
    if len(step_columns) != 1 or len(set(timed.values())) < len(timed):
        raise InputError(
            f"{path} has {', '.join(timed) or 'no columns'} for times",
            "give one of step_s, epoch_s and time_s, and stages once each",
        )
    return timed


def _known() -> str:
    times = [f"{name}_s" for name in (*_TIMES, *_PARTS)]
    return ", ".join(dict.fromkeys([*_REQUIRED, *times, *_WORDS, _PARAMETERS]))


def whole_number(name: str, most: int, least: int = 1) -> pl.Expr:
    """Parse a column of text as integers; null if invalid or not from `least` to `most`."""
    written = pl.when(pl.col(name).str.contains(r"^[0-9]{1,19}$")).then(pl.col(name))
    number = written.cast(pl.Int64, strict=False)
    return pl.when(number.is_between(least, most)).then(number).alias(name)


def _count() -> pl.Expr:
    """Parse a column of parameter counts, such as ``60M``; null if invalid."""
    read = pl.col(_PARAMETERS).map_elements(parameter_count, return_dtype=pl.Int64)
    return read.alias(_PARAMETERS)


def _time(name: str) -> pl.Expr:
    written = pl.when(pl.col(name).str.contains(r"^[0-9.]+([eE][-+]?[0-9]+)?$")).then(pl.col(name))
    number = written.cast(pl.Float64, strict=False)
    # A time of which the nanoseconds would be infinite is none.
    return pl.when((number > 0) & (number < 1e290)).then(number).alias(name)  # noqa: PLR2004


def check_values(table: pl.DataFrame, path: Path, name: str, read: pl.Expr, wanted: str) -> None:
    """Raise an error if a column has text that could not be parsed.

    Parameters
    ----------
    table, path
        The table as text, and its file.
    name
        Name of the column.
    read
        Expression of the parsed values; null where parsing failed.
    wanted
        Description of valid values, for the message.

    Raises
    ------
    InputError
        If any text could not be parsed.
    """
    wrong = table.with_row_index("row", 1).filter(pl.col(name).is_not_null() & read.is_null())
    if wrong.height:
        row, text = wrong.select("row", name).row(0)
        raise InputError(f"{path}, row {row}: {name} is {text[:80]!r}", f"give {wanted}")


def _check_present(table: pl.DataFrame, path: Path, names: Sequence[str]) -> None:
    for name in names:
        absent = table[name].is_null().arg_true()
        if len(absent):
            raise InputError(f"{path}, row {absent[0] + 1}: {name} is empty", "give it, or no row")


def _check_modes(table: pl.DataFrame, path: Path) -> None:
    if "scaling" in table.columns:
        known = pl.when(pl.col("scaling").is_in(SCALING_MODES)).then("scaling")
        check_values(table, path, "scaling", known, f"{' or '.join(SCALING_MODES)}, or nothing")


@dataclass(frozen=True)
class Published:
    """Published results of a measurement study, to compare measured values with."""

    images: int
    """Number of images of the data set."""
    batch: int
    """Batch size of the published speedups."""
    speedups: pl.DataFrame
    """``network, method, batch, gpus, published`` (value), ``relation`` (if it is a bound)."""
    overheads: pl.DataFrame
    memory_extra: pl.DataFrame
    memory_growth: pl.DataFrame
    """``network, batch, published``, percent."""
    bounds: Mapping[str, float]
    """Name -> single published number."""


def load_published(name: str) -> Published:
    """Load a study's published results from ``schemas/published``."""
    content = read_toml(schemas() / "published" / f"{name}.toml")
    return Published(
        content["images"],
        content["batch"],
        _speedups(content),
        _by_batch(content["overhead"]),
        _by_batch(content["memory_extra"]),
        _by_batch(content["memory_growth"]),
        content["bounds"],
    )


def _speedups(content: Mapping[str, Any]) -> pl.DataFrame:
    rows = [
        {
            "network": network, "method": each["method"], "batch": content["batch"],
            "gpus": int(gpus), "published": float(value), "relation": each["relation"],
        }
        for each in content["speedup"]
        for network in each["networks"]
        for gpus, value in each["by_gpus"].items()
    ]  # fmt: skip
    return pl.DataFrame(rows)


def _by_batch(content: Mapping[str, Any]) -> pl.DataFrame:
    rows = [
        {"network": network, "batch": batch, "published": float(value)}
        for network, values in content.items()
        if network != "batches"
        for batch, value in zip(content["batches"], values, strict=True)
    ]
    return pl.DataFrame(rows)


def beside(rows: pl.DataFrame, published: pl.DataFrame, value: str) -> pl.DataFrame:
    """Add to measured values the published values, and the deviation from the published values.

    Parameters
    ----------
    rows
        Measured rows, with the column `value`.
    published
        ``published``, optionally ``relation``, and columns shared with `rows`, on which both tables
        are joined.
    value
        Name of the column with the measured value.

    Returns
    -------
    `rows` with ``published, relation``; ``error_percent``, 100 (measured - published) / published,
    if a value was published; ``within``, whether the measured value satisfies the bound, if a bound
    (relation ``<`` or ``<=``) was published. All are null for rows without a published number.
    """
    keys = [name for name in published.columns if name not in ("published", "relation")]
    if "relation" not in published.columns:
        published = published.with_columns(relation=pl.lit("="))
    joined = rows.join(published, on=keys, how="left", maintain_order="left")
    one, other, relation = pl.col(value), pl.col("published"), pl.col("relation")
    return joined.with_columns(
        error_percent=pl.when(relation == "=").then(100 * (one - other) / other),
        within=pl.when(relation == "<").then(one < other).when(relation == "<=").then(one <= other),
    )
