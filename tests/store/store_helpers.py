"""Words for short tests of the store: a tiny trace, an ingest here, an ingest in a process."""

from __future__ import annotations

import multiprocessing
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import ingesting
import polars as pl
import pytest

from tracekit.model import Trace
from tracekit.store import Made
from tracekit.store._staging import file_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.store import RunRecord, Store

    Maker = Callable[[Path], Made]

_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(
    ["tracekit.store._store", "tracekit.store._catalogue", "tracekit.model", "psycopg", "filelock",
     "tracekit.support.parquet", "polars._utils.parquet", "sqlalchemy.dialects.sqlite",
     "sqlalchemy.dialects.postgresql", "ssl"]
)  # fmt: skip


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
        "name": None,
        "default_name": content,
        "labels": {},
        "summarise": count_devices,
    } | changes
    trace = request.pop("trace", tiny)
    files = request.pop("files", [f"{content}.sqlite"])

    def make(folder: Path) -> Made:
        return written(trace(), request["digest"], files)(folder)

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
    """An ingest in a process of its own, forked from one that has imported all and done nothing."""

    def __init__(self, store: Store, catalog: str | None, *arguments: str) -> None:
        self._said, said = _FORKED.Pipe()
        options = (said, store.root, catalog, *arguments)
        self._process = _FORKED.Process(target=ingesting.main, args=options)
        self._process.start()
        said.close()

    def pause(self) -> None:
        """Wait until it has come to the point where it was told to pause."""
        assert self._said.recv() == ["paused"]

    def interrupt(self) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGINT)

    def end(self) -> tuple[int | None, list[str]]:
        """Let it go on; return its exit status and the words that it wrote."""
        words: list[str] = []
        with suppress(BrokenPipeError):
            self._said.send("go")
        with suppress(ConnectionResetError, EOFError):
            while self._said.poll(60):
                words += self._said.recv()
        self._process.join(60)
        return self._process.exitcode, words

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._said.close()
