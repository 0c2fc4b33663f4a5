"""Numbers in labels of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

from tracekit.analysis.studies._epochs import MOST_BATCH
from tracekit.errors import UsageError

_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
_MOST_PARAMETERS = 10**15
"""Larger numbers are mistakes; up to this, bytes stay within 64 bits."""


def batch_label(labels: Mapping[str, str], run: str) -> int | None:
    """Return the batch size that the labels of a run give; None where they give none.

    Raises
    ------
    UsageError
        If it is no whole number, or out of range.
    """
    return label_number(labels, "batch", MOST_BATCH, run)


def parameters_label(labels: Mapping[str, str], run: str) -> int | None:
    """Return the number of parameters that the labels of a run give, as ``60M`` or ``60000``.

    Raises
    ------
    UsageError
        If it is none.
    """
    if "parameters" not in labels:
        return None
    number = parameter_count(labels["parameters"])
    if number is None:
        raise UsageError(
            f"run {run!r} has the label parameters={labels['parameters']}",
            "give a number, as parameters=60M",
        )
    return number


def parameter_count(text: str) -> int | None:
    """Return the number that a text such as ``60M``, ``1.3B`` or ``60000`` means; None if none."""
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([kmb]?)", text.strip().lower())
    number = int(Decimal(found[1]) * _FACTORS[found[2]]) if found else 0
    return number if 1 <= number <= _MOST_PARAMETERS else None


def label_number(labels: Mapping[str, str], key: str, most: int, run: str) -> int | None:
    """Return the number from 1 to `most` that a label of a run is; None without that label.

    Raises
    ------
    UsageError
        If it is none.
    """
    if key not in labels:
        return None
    text = labels[key].strip()
    # No underscores, signs or other scripts' digits, all of which int() takes.
    short = text.isascii() and text.isdecimal() and len(text) <= len(str(most))
    if not short or not 1 <= int(text) <= most:
        raise UsageError(
            f"run {run!r} has the label {key}={labels[key]}", f"give a whole number, as {key}=16"
        )
    return int(text)
