"""Ingests on a Dask cluster whose client is killed at any moment."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from many_helpers import left_over
from test_many_dask import ROOT, Cluster

import tracekit
from tracekit.store import Store

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("default::ResourceWarning:distributed"),
]
KILLS = 12


def test_a_client_of_a_cluster_that_is_killed_leaves_whole_runs(
    tmp_path: Path, long_ranks: list[Path], ranks: list[Path], store: Path
) -> None:
    pick = random.Random(22)
    tracekit.ingest(ranks, name="kept")
    with ExitStack() as stack:
        cluster = Cluster(stack, tmp_path)
        cluster.add_worker()
        cluster.add_worker()
        words = ("ingest", *map(str, long_ranks), "--store", str(store), "--run", "job")
        words = (*words, "--dask", cluster.address)
        for _ in range(2):  # of which the first one has the workers import what it takes
            began = time.monotonic()
            assert _start(*words).wait(120) == 0
            longest = time.monotonic() - began
            Store(store).remove("job")
        killed = 0
        for _ in range(KILLS):
            client = _start(*words)
            time.sleep(pick.uniform(longest / 4, longest * 0.9))
            client.kill()
            ended = client.wait()
            killed += ended == -signal.SIGKILL
            assert ended in (0, -signal.SIGKILL)
            for record in Store(store).runs():
                trace = Store(store).open(record)
                assert sum(trace.read(table).height for table in trace.tables) > 0
            assert [run.name for run in Store(store).runs()][:1] == ["kept"]
            for record in Store(store).runs()[1:]:
                Store(store).remove(record.id)
        assert killed >= KILLS / 3
        run = tracekit.ingest(long_ranks, name="job", dask=cluster.address)[0]
        assert len(run.record.files) == len(long_ranks)
    assert Store(store).check() == []
    assert left_over(store) == []


def _start(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tracekit", *words],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
