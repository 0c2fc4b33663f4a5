"""What labels say of a run, where they are numbers."""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.analysis.studies._epochs import MOST_BATCH
from tracekit.errors import UsageError


def batch_label(labels: Mapping[str, str], run: str) -> int | None:
    """Return the batch size that the labels of a run give; None where they give none.

    Raises
    ------
    UsageError
        If it is no whole number, or out of range.
    """
    return label_number(labels, "batch", MOST_BATCH, run)


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
