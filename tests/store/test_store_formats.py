"""Stores of each version of the format, as they were written then, are opened by this version.

A file is named after the versions of the store, of its catalogue, and of a run's columns. Whoever
raises one of them adds a store that the new version writes of the same trace:

    tracekit ingest sample_traces/p2p_2gpu_start_end.sqlite --name p2p --label gpus=2 --store store
    (cd store && zip -9 -r ../tests/store/formats/VERSIONS.zip store.json catalogue.sqlite runs)
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tracekit as tk
from tracekit.runs import _new_runs as _ingest
from tracekit.store import Store, _rows, _store

FOLDER = Path(__file__).with_name("formats")
STORES = sorted(FOLDER.glob("*.zip"))
TRACE = Path(__file__).parents[2] / "sample_traces" / "p2p_2gpu_start_end.sqlite"
BUSY_NS = {
    "FP": 9_234_654, "BP": 18_307_825, "WU": 12_924_193, "IO": 19_657_656, "ME": 9_870_124,
    "OTHER": 31_324,
}  # fmt: skip


@pytest.fixture(params=STORES, ids=lambda path: path.stem)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    shutil.unpack_archive(request.param, tmp_path / "store")
    (tmp_path / "store" / "staging").mkdir()
    return tmp_path / "store"


def test_there_is_a_store_of_this_version() -> None:
    versions = f"{_store._FORMAT}-{_rows.SCHEMA}-{_ingest._FORMAT}"
    assert versions in {path.stem for path in STORES}


def test_its_run_is_found_and_its_numbers_are_those_of_then(root: Path) -> None:
    [record] = Store(root).runs({"gpus": "2"})
    assert (record.name, record.files) == ("p2p", (TRACE.name,))
    found = tk.open("p2p", store=root).breakdown()
    assert dict(found.select("stage", "busy_ns").rows()) == BUSY_NS
    assert Store(root).check() == []


def test_the_same_trace_is_the_same_run_after_an_upgrade(root: Path) -> None:
    [before] = Store(root).runs()
    after = tk.ingest(TRACE, store=root)[0].record
    assert (after.id, after.name, after.labels) == (before.id, before.name, before.labels)
    assert len(Store(root).runs()) == 1
