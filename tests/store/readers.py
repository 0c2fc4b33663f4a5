"""Eight readers beside a writer, in children of one process.

Arguments: a folder, and how many rounds the writer does: it adds a run, renames it and removes it.
Meanwhile the readers list all runs and read them; that which is always there they can always read.
What each has read is written as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

SAMPLES = Path(__file__).parents[2] / "sample_traces"
READERS = 8


def child(do: Callable[[], object]) -> int:
    if not (made := os.fork()):
        code = 1
        try:
            do()
            code = 0
        except BaseException:  # noqa: BLE001 - which the parent cannot see
            traceback.print_exc()
        os._exit(code)
    return made


def write(root: Path, rounds: int) -> None:
    from store_helpers import add

    from tracekit.store import Store

    store = Store(root)
    for number in range(rounds):
        record, _ = add(store, f"{number:064x}")
        store.rename(record.id, f"round {number}")
        store.remove(record.id)


def read(root: Path, done: Path, told: Path) -> None:
    """Read until the writer is done; a run may be gone that was listed, but not the one kept."""
    from tracekit.errors import StoreError, UnknownRunError
    from tracekit.store import Store

    store, counts = Store(root), {"kept": 0, "others": 0, "gone": 0}
    while not (done.exists() and counts["kept"]):
        runs = store.runs()
        assert [run.name for run in runs][:1] == ["kept"]
        for run in runs:
            try:
                assert store.open(run).read("devices").height
                counts["kept" if run is runs[0] else "others"] += 1
            except (UnknownRunError, StoreError, OSError):
                assert run is not runs[0]
                counts["gone"] += 1
    told.write_text(json.dumps(counts))


def main(folder: Path, rounds: int) -> None:
    for name in ("numpy", "polars", "sqlalchemy"):
        importlib.import_module(name)
    root, done = folder / "store", folder / "done"

    def keep() -> None:
        import tracekit

        tracekit.ingest(SAMPLES / "p2p_2gpu_start_end.sqlite", name="kept", store=root)

    assert os.waitpid(child(keep), 0)[1] == 0
    told = [folder / f"{number}.json" for number in range(READERS)]
    readers = [child(lambda each=each: read(root, done, each)) for each in told]
    status = os.waitpid(child(lambda: write(root, rounds)), 0)[1]
    done.touch()
    ends = [os.waitpid(each, 0)[1] for each in readers]
    assert [status, *ends] == [0] * (READERS + 1)
    json.dump([json.loads(each.read_text()) for each in told], sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
