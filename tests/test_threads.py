"""What is told of a run does not depend on how many threads there are to work it out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import tracekit
from tracekit.model import TABLES

HERE = Path(__file__).resolve().parent
SAMPLE = HERE.parent / "sample_traces" / "ddp_4gpu.sqlite"
"""Of more ops and ranges than polars works on by one thread, where it has several."""
PROGRAM = """
import sys
import polars
from test_threads import told

assert polars.thread_pool_size() == 4
print(told(sys.argv[1]))
"""


def told(store: str | Path) -> str:
    """Return what a run holds, and what is answered about it."""
    run, _ = tracekit.ingest(SAMPLE, name="ddp", store=store)
    frames = [run.trace.read(name) for name in TABLES]
    frames += [run.breakdown(by) for by in ("kernel", "range", "stream", "stage,iteration")]
    frames += [run.breakdown("range", inclusive=True), run.breakdown("layer")]
    frames += [run.idle(by) for by in ("cause", "range", "iteration")]
    frames += [run.collectives("collective,rank"), run.links("pair"), run.critical_path("kernel")]
    frames += [run.info(clocks=True), run.diagnose()]
    plain = pl.selectors.categorical() | pl.selectors.enum()
    return "\n".join(frame.with_columns(plain.cast(pl.String)).write_json() for frame in frames)


@pytest.mark.slow
def test_four_threads_give_the_same(tmp_path: Path) -> None:
    """Among several processes of tests these are held against one."""
    paths = os.pathsep.join([str(HERE.parent), str(HERE)])
    by_four = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "four"],
        check=True, capture_output=True, text=True, cwd=HERE,
        env={**os.environ, "POLARS_MAX_THREADS": "4", "PYTHONPATH": paths},
    ).stdout  # fmt: skip
    by_fewer = told(tmp_path / "fewer")
    assert by_fewer.count("\n") > len(TABLES)
    assert by_four == f"{by_fewer}\n"
