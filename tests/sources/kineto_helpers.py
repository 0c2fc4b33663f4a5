"""Small PyTorch traces for tests: literal events in, literal rows out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from tracekit.model import Trace
from tracekit.sources import read

Event = dict[str, Any]
PID, TID, WORKER = 100, 101, 102


def event(cat: str, name: str, ts: Any, dur: Any = None, **more: Any) -> Event:
    """An event of the host; `more` beside ``pid`` and ``tid`` are its arguments."""
    place = {"pid": more.pop("pid", PID), "tid": more.pop("tid", TID)}
    length = {} if dur is None else {"dur": dur}
    given = {key.replace("_", " "): value for key, value in more.items()}
    return {"ph": "X", "cat": cat, "name": name, **place, "ts": ts, **length, "args": given}


def kernel(name: str, ts: Any, dur: Any, correlation: int, **more: Any) -> Event:
    """A kernel on stream 7 of device 0."""
    place = {"device": 0, "context": 1, "stream": 7, **more}
    return event("kernel", name, ts, dur, pid=0, tid=7, correlation=correlation, **place)


def launch(ts: Any, dur: Any, correlation: int, **more: Any) -> Event:
    """A call that launches."""
    return event("cuda_runtime", "cudaLaunchKernel", ts, dur, correlation=correlation, **more)


def text_of(*events: Event, **around: Any) -> str:
    """A trace's text as Kineto writes it: what stands around its events partly before them."""
    before = {"schemaVersion": 1, "deviceProperties": [], **around}
    after = {key: before.pop(key) for key in ("baseTimeNanoseconds",) if key in before}
    return json.dumps({**before, "traceEvents": list(events), "traceName": "t.json", **after})


def write(path: Path, text: str | bytes) -> Path:
    """Write a trace, gzipped if its name says so."""
    content = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def trace_of(folder: Path, *events: Event, **around: Any) -> Trace:
    """Read a trace of some events."""
    return read(write(folder / "t.json", text_of(*events, **around)))
