"""Dask's commands, each forked from one process that has imported all and done nothing."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path

_FORKED = multiprocessing.get_context("forkserver")


@contextmanager
def command(name: str, log: Path, *words: str) -> Iterator[BaseProcess]:
    """Run a command of Dask, which writes to `log`; it is killed at the end."""
    _FORKED.set_forkserver_preload(
        ["forked", "distributed.cli.dask_scheduler", "distributed.cli.dask_worker",
         "tracekit.attribution", "tracekit.sources.nsys", "tracekit.store._dask"]
    )  # fmt: skip
    log.touch()
    running = _FORKED.Process(target=_run, args=(name, log, words, {**os.environ}), daemon=True)
    running.start()
    try:
        yield running
    finally:
        running.kill()
        running.join()


def _run(name: str, log: Path, words: tuple[str, ...], environment: Mapping[str, str]) -> None:
    import dask

    with log.open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.update(environment)
    sys.path.remove(str(Path(__file__).parent))  # as nobody else has tests there
    dask.config.refresh()
    import_module(f"distributed.cli.dask_{name}").main(words)
