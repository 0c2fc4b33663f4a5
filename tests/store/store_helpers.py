"""Words for short tests of the store: a tiny trace, an ingest here, an ingest in a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import polars as pl
import pytest

import tracekit
from tracekit.model import Trace
from tracekit.store import Made
from tracekit.store._staging import file_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.store import RunRecord, Store

    Maker = Callable[[Path], Made]

PROGRAM = Path(__file__).with_name("ingesting.py")


def tiny(devices: int = 1, warnings: tuple[str, ...] = ()) -> Trace:
    """A trace that is told apart from another by its number of GPUs."""
    frame = pl.DataFrame({"device": range(devices)})
    return Trace.of(
        {"devices": frame.with_columns(report=0, active=True, identity=pl.lit("assumed"))}, warnings
    )


def written(trace: Trace, content: str = "aa", files: Sequence[str] = ("aa.sqlite",)) -> Maker:
    """A `make` that writes a trace as that of a run's only report."""

    def make(folder: Path) -> Made:
        with file_errors(folder):
            trace.write(folder / "0")
        return Made(content, tuple(files), (trace.warnings,))

    return make


def count_devices(trace: Trace) -> dict[str, int]:
    return {"devices": trace.read("devices").height}


def add(store: Store, content: str = "aa", **changes: Any) -> tuple[RunRecord, bool]:
    """Add a run in few words: its content, and whatever matters to the test."""
    request: dict[str, Any] = {
        "digest": content,
        "options": "{}",
        "files": [f"{content}.sqlite"],
        "name": None,
        "default_name": content,
        "labels": {},
        "summarise": count_devices,
    } | changes
    trace = request.pop("trace", tiny)

    def make(folder: Path) -> Made:
        return written(trace(), request["digest"], request["files"])(folder)

    request.setdefault("make", make)
    return store.add(**request)


def never(*_: object) -> NoReturn:
    """A `make` for ingests that must not get so far."""
    pytest.fail("make was called")


def left_over(store: Store) -> list[str]:
    """What lies in the store's folders beyond one folder per run."""
    if not store.root.exists():
        return []
    staged = [path.name for path in (store.root / "staging").iterdir()]
    published = sorted(path.name for path in (store.root / "runs").iterdir())
    return staged + published[len(store.runs()) :]


class Child:
    """An ingest in a process of its own."""

    def __init__(self, store: Store, catalog: str | None, *arguments: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(Path(tracekit.__file__).parents[1])}
        command = [sys.executable, PROGRAM, store.root, catalog or "", *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def pause(self) -> None:
        """Wait until it has come to the point where it was told to pause."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "paused\n"

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, list[str]]:
        """Let it go on; return its exit status and the words that it wrote."""
        output, _ = self._process.communicate("go\n", timeout=60)
        return self._process.returncode, output.split()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()
