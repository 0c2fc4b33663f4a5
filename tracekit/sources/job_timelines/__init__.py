"""Read published timelines of pipeline-parallel jobs: start and length of each worker's ops.

An op is a forward, a backward or a transfer of a microbatch, for example. Format: Chrome events as
StragglerAnalysis publishes them (Lin et al., OSDI 2025), a JSON list. They contain no kernels, and
so are no traces.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from tracekit.errors import (
    DamagedTraceError,
    InputError,
    NotATraceError,
    UnsupportedTraceError,
)
from tracekit.sources._json_values import mapping
from tracekit.support.files import StrPath
from tracekit.support.wording import size_text

__all__ = ["TIMELINE_SCHEMA", "read_job_timeline"]

TIMELINE_SCHEMA: Mapping[str, Any] = {
    "step": pl.Int64,
    "rank": pl.Int64,
    "stage": pl.Int64,
    "lane": pl.String,
    "kind": pl.String,
    "number": pl.Int64,
    "start": pl.Int64,
    "length": pl.Int64,
}
"""Columns. ``rank``: data-parallel rank; ``stage``: stage of the pipeline; ``lane``: compute,
pp-comm, tp-comm, dp-comm or misc; ``kind``: such as forward-compute; ``number``: micro-batch of
that kind; ``start`` and ``length``: ns. The start of communication is the time at which its last
member came."""

_LANE = re.compile(r"PP rank (\d+), TP rank (\d+), (\S+)")
_MOST_BYTES = 10**9
_NS = 1_000
_MOST_US = 2**52


def read_job_timeline(path: StrPath) -> pl.DataFrame:
    """Read a timeline of a pipeline-parallel job as StragglerAnalysis publishes it (JSON).

    Returns
    -------
    One row per op, with the columns of `TIMELINE_SCHEMA`.

    Raises
    ------
    InputError
        If the file cannot be read.
    NotATraceError
        If the file is no such timeline.
    DamagedTraceError
        If an event lacks a required field.
    UnsupportedTraceError
        If stages of the pipeline are interleaved, or several tensor-parallel ranks are recorded.
    """
    file = Path(path)
    events = _events(file)
    lanes = {
        (event.get("pid"), event.get("tid")): match
        for event in events
        if event.get("ph") == "M"
        and (match := _LANE.fullmatch(str(mapping(event.get("args")).get("name")))) is not None
    }
    if not lanes:
        raise NotATraceError(f"cannot read the timeline {file.name}: no lane has a name")
    if len({match[2] for match in lanes.values()}) > 1:
        raise UnsupportedTraceError(
            f"{file.name} has workers of several tensor-parallel ranks",
            "keep the lanes of one of them",
        )
    rows = [_row(event, lanes, file) for event in events if event.get("ph") == "X"]
    return pl.DataFrame(rows, schema=dict(TIMELINE_SCHEMA), orient="row")


def _events(file: Path) -> list[Mapping[str, Any]]:
    opened = gzip.open if file.suffix == ".gz" else open
    try:
        with opened(file, "rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
        events = json.loads(data) if len(data) <= _MOST_BYTES else []
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        problem = f"cannot read the timeline {file.name}: its gzip stream is damaged or cut short"
        raise NotATraceError(problem, "copy it again") from error
    except (ValueError, RecursionError) as error:
        problem = f"cannot read the timeline {file.name}: it is not JSON"
        raise NotATraceError(problem, "for a trace, ask `tracekit stragglers`") from error
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror})", "check the path") from error
    if len(data) > _MOST_BYTES:
        raise UnsupportedTraceError(
            f"the timeline {file.name} has more than {size_text(_MOST_BYTES)}",
            "keep fewer of its steps",
        )
    if not isinstance(events, list) or not all(isinstance(each, dict) for each in events):
        raise NotATraceError(f"cannot read the timeline {file.name}: it is no list of events")
    return events


def _row(
    event: Mapping[str, Any], lanes: Mapping[Any, re.Match[str]], file: Path
) -> Mapping[str, Any]:
    args = mapping(event.get("args"))
    lane = lanes.get((event.get("pid"), event.get("tid")))
    numbers = [event.get("pid"), args.get("step"), args.get("seq_id")]
    times = [event.get("ts"), event.get("dur")]
    if (
        lane is None
        or not all(type(each) is int and abs(each) < 2**63 for each in numbers)
        or not all(_is_time(each) for each in times)
    ):
        raise DamagedTraceError(
            f"{file.name}: an event of {event.get('name')!r} has no lane, step, number or time"
        )
    if (args.get("model_chunk") or 0) > 0:
        raise UnsupportedTraceError(
            f"{file.name}: stages of the pipeline are interleaved (model_chunk > 0)",
            "which worker a message goes to is not known then",
        )
    rank, step, number = numbers
    start, length = (round(float(each or 0) * _NS) for each in times)
    return {
        "step": step, "rank": rank, "stage": int(lane[1]), "lane": lane[3],
        "kind": str(event.get("name")), "number": number, "start": start, "length": length,
    }  # fmt: skip


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < _MOST_US
