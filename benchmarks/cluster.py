"""A Dask cluster on this machine: a scheduler, and workers of one thread each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PATIENCE_S = 60
_CALM = {
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s",
    "DASK_DISTRIBUTED__WORKER__MEMORY__MONITOR_INTERVAL": "1s",
}
"""As ``docs/cluster.md`` advises: otherwise Dask's processes look at themselves 10 to 100 times a
second, also when they have nothing to do.
"""


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[str]:
    """Yield the address of a scheduler to which so many workers come.

    Raises
    ------
    RuntimeError
        If the scheduler does not begin.
    """
    told = folder / f"scheduler of {workers}.json"  # which removes it when it ends
    options = ("--scheduler-file", str(told), "--no-dashboard")
    own = ("--nworkers", str(workers), "--nthreads", "1", "--local-directory", str(folder))
    with _running("scheduler", "--host", "127.0.0.1", "--port", "0", *options) as scheduler:
        address = _address(told, scheduler)
        with _running("worker", *options, *own):
            yield address


@contextmanager
def _running(name: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Dask command, which ends what it has started when it is asked to end."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"distributed.cli.dask_{name}", *options],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | _CALM,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _address(told: Path, scheduler: subprocess.Popen[bytes]) -> str:
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until and scheduler.poll() is None:
        try:
            return str(json.loads(told.read_text(encoding="utf-8"))["address"])
        except (FileNotFoundError, json.JSONDecodeError):  # not there yet, or not all of it
            time.sleep(0.1)
    raise RuntimeError("no Dask scheduler began: pip install 'tracekit[dask]'")
