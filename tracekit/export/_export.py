"""Export of a run, or of some of its steps, to a file for another program."""

from __future__ import annotations

import gzip
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import polars as pl

from tracekit.analysis import step_detail
from tracekit.engine import chosen_steps
from tracekit.errors import MissingDataError, UsageError
from tracekit.export import _chrome, _perfetto
from tracekit.export._tracks import tracks_of
from tracekit.model import Trace
from tracekit.support.files import writing_whole
from tracekit.support.memory import SOME_STEPS

_WRITERS = {"perfetto": _perfetto.write, "chrome": _chrome.write}
FORMATS = tuple(_WRITERS)
"""Names of the formats."""

_MOST_OPS = 1_000_000


def export(
    trace: Trace, path: Path, to: str = "perfetto", iterations: tuple[int, int] | None = None
) -> None:
    """Write a run in the trace format of another program; see ``docs/export.md``.

    Parameters
    ----------
    trace
        The run.
    path
        File to write; gzipped if its name ends in ``.gz``.
    to
        Format, one of `FORMATS`.
    iterations
        First and last step to write; None writes the whole run.

    Raises
    ------
    UsageError
        If the format is unknown, the steps are not there, or the run is too large to be written
        as a whole.
    MissingDataError
        If the run holds no GPU work.
    """
    if to not in _WRITERS:
        raise UsageError(f"{to!r} is no format to export to", f"there is {', '.join(FORMATS)}")
    steps = step_detail.step_spans(trace)
    if steps.is_empty():
        raise MissingDataError("this run holds no GPU work", "record with `nsys profile -t cuda`")
    if iterations is None:
        _check_size(trace)
        spans = step_detail.whole_spans(trace)
    else:
        steps = chosen_steps(steps, *iterations)
        spans = steps.group_by("process", "device").agg(pl.col("start").min(), pl.col("end").max())
    tracks = tracks_of(trace, spans.sort("process", "device"), steps, is_whole=iterations is None)
    with writing_whole(path) as file:
        out: Any = nullcontext(file)
        if path.suffix == ".gz":
            out = gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0)
        with out as written:
            _WRITERS[to](tracks, written)


def _check_size(trace: Trace) -> None:
    number = int(trace["ops"].select(pl.len()).collect().item())
    if number > _MOST_OPS:
        raise UsageError(
            f"the run holds {number:,} ops, too many to write and to look at at once",
            SOME_STEPS,
        )
