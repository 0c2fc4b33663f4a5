"""Ingests on a disk that fails, one after the other, in children of one process.

Arguments: a folder, how it fails (``EIO``: once; ``ENOSPC``: from then on, as a full one), and at
which call, counted from 0, or ``+N`` for every Nth. `failing_disk.c` is preloaded. What is said of
each is written as JSON.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

SAMPLES = Path(__file__).parents[2] / "sample_traces"
KEPT, OTHER = SAMPLES / "p2p_2gpu_start_end.sqlite", SAMPLES / "p2p_4gpu_star.sqlite"
LIBRARY = ctypes.CDLL(None)


def apart(do: Callable[[], str]) -> str:
    """Do something in a process of its own, and return what that says."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        code = 1
        try:
            os.write(writing, do().encode())
            code = 0
        except BaseException:  # noqa: BLE001 - which the parent cannot see
            traceback.print_exc()
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as told:
        said = told.read()
    assert os.waitpid(child, 0)[1] == 0, "a child failed"
    return said


def ingest(root: Path, path: Path, name: str) -> str:
    import tracekit

    tracekit.ingest(path, store=root, name=name)
    return str(LIBRARY.calls_so_far())


def failing(root: Path, call: int, number: int) -> str:
    """Ingest on a disk that fails, and return what is said of it."""
    from tracekit.errors import TracekitError

    ingest(root, KEPT, "kept")  # which loads what is needed, and finds its run there
    LIBRARY.fail_at(str(root).encode(), ctypes.c_long(call), number, number == errno.ENOSPC)
    try:
        ingest(root, OTHER, "other")
    except TracekitError as error:
        said = str(error)
    else:
        said = ""
    assert "\n" not in said
    return said


def check(root: Path, said: str) -> str:
    """See that what was whole is so, and that the next ingest finishes the job."""
    from tracekit.store import Store

    store = Store(root)
    assert all(each.mended for each in store.check(repair=True) if each.what != "folder")
    names = [run.name for run in store.runs()]
    assert names in (["kept"], ["kept", "other"]), (names, said)
    for run in store.runs():
        trace = store.open(run)
        assert sum(trace.read(table).height for table in trace.tables)
    ingest(root, OTHER, "other")
    store.collect()
    assert store.check() == []
    assert [run.name for run in store.runs()] == ["kept", "other"]
    assert not list((root / "staging").iterdir())
    return ""


def main(folder: Path, how: str, which: str) -> None:
    for name in ("numpy", "polars", "sqlalchemy"):
        importlib.import_module(name)
    number = getattr(errno, how)
    good = folder / "good"
    apart(partial(ingest, good, KEPT, "kept"))

    def copied(name: str) -> Path:
        shutil.rmtree(folder / name, ignore_errors=True)
        return Path(shutil.copytree(good, folder / name))

    def counted() -> str:
        failing(root := copied("counted"), -1, number)
        assert root.exists()
        return str(LIBRARY.calls_so_far())

    calls = int(apart(counted))
    wanted = range(0, calls, int(which)) if which[0] == "+" else [int(which)]
    told = {}
    for call in wanted:
        root = copied("tried")
        said = apart(partial(failing, root, call, number))
        apart(partial(check, root, said))
        told[call] = said
    json.dump({"calls": calls, "told": told}, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
