"""One report gives the same tables however it is handed over."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from effort import by_day
from polars.testing import assert_frame_equal

import tracekit as tk
from tracekit.model import TABLES
from tracekit.store import file_digest

REPORTS = ("ddp_unet_4xa100_rank0.nsys-rep", "unet_1xgpu_dali.qdrep")
_EVENTS = "records of CUDA events"
OF_THE_FILE = ["file", "format", "size", "digest"]


@pytest.fixture(scope="module")
def nsys() -> str:
    found = shutil.which("nsys")
    if found is None:
        pytest.skip("no nsys on the path")
    return found


@pytest.fixture(
    scope="module", params=[REPORTS[0], pytest.param(REPORTS[1], marks=pytest.mark.nightly)]
)
def report(request: pytest.FixtureRequest, real_trace: Callable[[str], Path]) -> Path:
    path = real_trace("ddp_unet_4xa100_rank0").with_name(request.param)
    if not path.is_file():
        pytest.skip(f"no {path.name} beside the real traces")
    return path


@pytest.fixture(scope="module")
def direct(nsys: str, report: Path, tmp_path_factory: pytest.TempPathFactory) -> tk.Run:
    return tk.ingest(report, store=tmp_path_factory.mktemp("direct"), nsys=nsys)[0]


def _exported(nsys: str, report: Path, kind: str, to: Path) -> Path:
    command = [nsys, "export", "--type", kind, "--output", str(to), str(report)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Possible values" in done.stdout + done.stderr or not to.exists():
        pytest.skip(f"this nsys has no export of type {kind}: {done.stderr.strip()[-200:]}")
    return to


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    by_day(
        [("sqlite", "x.sqlite"), ("parquetdir", "x_pqtdir"), ("arrowdir", "x_arwdir")],
        ("sqlite", "x.sqlite"),
    ),
)
def test_tables_are_those_of_the_report(nsys, report, direct, tmp_path, kind, name):
    path = _exported(nsys, report, kind, tmp_path / name)
    run, _ = tk.ingest(path, store=tmp_path / "store")
    assert run.name == "x"
    assert run.warnings == direct.warnings
    assert run.labels == direct.labels
    assert run.table("ops").collect().height > 10_000
    for table in TABLES:
        ours, theirs = run.table(table).collect(), direct.table(table).collect()
        if table == "reports":
            # Folders of columns hold nothing of the environment, which names job and rank.
            apart = OF_THE_FILE if kind == "sqlite" else (*OF_THE_FILE, "job", "rank", "ranks")
            ours, theirs = ours.drop(apart), theirs.drop(apart)
        if kind != "sqlite" and table == "event_records":
            assert ours.is_empty()  # nsys leaves them out of folders of columns
            continue
        if kind != "sqlite" and table == "contents":
            ours, theirs = (each.filter(pl.col("feature") != _EVENTS) for each in (ours, theirs))
        assert_frame_equal(ours, theirs)


def test_the_report_is_named_and_not_its_export(report, direct):
    row = direct.table("reports").collect().row(0, named=True)
    assert row["file"] == report.name
    assert row["format"] == "nsys report"
    assert row["size"] == report.stat().st_size
    assert row["digest"] == file_digest(report) == direct.record.digest
