"""tracekit reads simulated traces: its stages, steps, times, links and memory are the truth.

Where the two differ and tracekit is wrong, a test that fails says how; it is marked as such until
tracekit is mended.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from simulate.grid import BUNDLED, grid, scenarios
from simulate.job import Job
from simulate.run import usual_changes, write
from simulate.truth import read_truth
from trace_builder import default_rules

import tracekit as tk
from tracekit.analysis import breakdown
from tracekit.attribution import attribute
from tracekit.model import Trace
from tracekit.sources import read

FOLDER = Path(__file__).resolve().parents[2] / "sample_traces" / "simulated"


@cache
def _bundled(name: str) -> Trace:
    return _trace(FOLDER / f"{name}.sqlite")


def _trace(path: Path) -> Trace:
    return attribute(read(path, lambda *_: None), default_rules())


def _truth(path: Path) -> dict[str, Any]:
    return read_truth(path.with_name(f"{path.stem}.truth.json.gz"))


def _wrong_ops(trace: Trace, known: dict[str, Any]) -> pl.DataFrame:
    """Return the ops whose stage, step, device or bytes are others than the truth's."""
    told = ("stage", "step", "device", "bytes")
    columns = {name: known["ops"][name] for name in ("pid", "correlation", "role", *told)}
    true = pl.DataFrame(columns, schema_overrides={"step": pl.Int64, "device": pl.Int32})
    copy = pl.col("kind").cast(pl.String).is_in(["p2p", "h2d", "d2h", "staged"])
    found = (
        trace.read("ops")
        .join(trace.read("processes").select("process", "pid"), on="process")
        .select(
            "pid",
            "correlation",
            pl.col("stage").cast(pl.String),
            pl.col("iteration").alias("step"),
            "device",
            pl.when(copy).then("bytes").alias("bytes"),
        )
    )
    assert found.height == true.height
    both = true.join(found, on=["pid", "correlation"], how="full", suffix="_found")
    return both.filter(
        pl.any_horizontal(
            pl.col(name).ne_missing(pl.col(f"{name}_found")) for name in told if name != "bytes"
        )
        | pl.col("bytes_found").is_not_null() & (pl.col("bytes_found") != pl.col("bytes"))
    )


def _wrong_times(trace: Trace, known: dict[str, Any]) -> pl.DataFrame:
    """Return the stages of devices and steps whose busy or exposed time is another."""
    key = ["device", "step", "stage"]
    found = (
        breakdown(trace, "stage,device,iteration")
        .rows.drop_nulls(["iteration", "ops"])  # not the rows of idle time
        .select(
            "device",
            pl.col("iteration").alias("step"),
            pl.col("stage").cast(pl.String),
            "busy_ns",
            "exposed_ns",
        )
    )
    true = pl.DataFrame(known["stages"], schema_overrides={"device": pl.Int32})
    both = true.join(found, on=key, how="full", suffix="_found", coalesce=True)
    return both.filter(
        pl.any_horizontal(
            pl.col(name).ne_missing(pl.col(f"{name}_found")) for name in ("busy_ns", "exposed_ns")
        )
    )


def _idle(trace: Trace) -> dict[tuple[int, int], int]:
    table = breakdown(trace, "device,iteration").rows.drop_nulls("iteration")
    idle = table["idle_ns"] + table["between_steps_ns"]
    return dict(zip(table.select("device", "iteration").rows(), idle, strict=True))


def _idle_truth(known: dict[str, Any]) -> dict[tuple[int, int], int]:
    sums = dict.fromkeys(zip(known["windows"]["device"], known["windows"]["step"], strict=True), 0)
    idle = known["idle"]
    for device, step, ns in zip(idle["device"], idle["step"], idle["ns"], strict=True):
        sums[device, step] += ns
    return sums


def _agree(trace: Trace, known: dict[str, Any]) -> None:
    assert _wrong_ops(trace, known).rows() == []
    assert _wrong_times(trace, known).rows() == []
    assert _idle(trace) == _idle_truth(known)


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_traces_are_read_as_they_are(name: str) -> None:
    _agree(_bundled(name), _truth(FOLDER / f"{name}.sqlite"))


def _agree_about(job: Job, folder: Path) -> None:
    write(job, folder, "made")
    path = folder / "made.sqlite"
    _agree(_trace(path), _truth(path))


def test_backward_threads_belong_to_the_thread_that_drives_their_gpu(tmp_path: Path) -> None:
    job = Job(network="lenet", batch=16, gpus=2, method="p2p", steps=3, evaluate=0)
    _agree_about(job, tmp_path)


def _far(folder: Path, unlinked: str) -> Path:
    """A star of 8 GPUs, of which 3 share no NVLink with GPU 0."""
    job = Job(
        network="alexnet", batch=16, gpus=8, method="p2p", drivers="one", unlinked=unlinked,
        steps=2, evaluate=0, synchronise="never",
    )  # fmt: skip
    write(job, folder, "made")
    return folder / "made.sqlite"


def test_gradients_by_way_of_the_host_are_weight_update(tmp_path: Path) -> None:
    path = _far(tmp_path, "staged")
    assert _wrong_ops(_trace(path), _truth(path)).rows() == []


@pytest.mark.slow
@pytest.mark.parametrize("unlinked", ["staged", "two_hop"])
def test_the_two_copies_of_a_movement_are_one_transfer(unlinked: str, tmp_path: Path) -> None:
    path = _far(tmp_path, unlinked)
    run = tk.ingest([path], store=tmp_path / "store")[0]
    known = _truth(path)["ops"]
    numbers = pl.DataFrame({name: known[name] for name in ("correlation", "transfer")})
    ops = run.table("ops").collect().select("op", "correlation").join(numbers, on="correlation")
    parts = ops.drop_nulls("transfer").group_by("transfer").agg("op")["op"].to_list()
    moved = run.traffic(topology="dgx1v").transfers.drop_nulls("second_op")
    found = {frozenset(pair) for pair in moved.select("op", "second_op").rows()}
    assert found == {frozenset(pair) for pair in parts if len(pair) > 1}
    assert _carried(run) == _truly_carried(path)


@pytest.fixture(scope="module")
def star(tmp_path_factory: pytest.TempPathFactory) -> tk.Run:
    store = tmp_path_factory.mktemp("simulated") / "store"
    return tk.ingest([FOLDER / "star_8.sqlite"], store=store)[0]


def _carried(run: tk.Run) -> dict[str, tuple[int, int]]:
    """Bytes and movements of each direction of each link."""
    table = run.links(topology="dgx1v").with_columns(link=pl.format("{}>{}", "src", "dst"))
    sums = table.group_by("link").agg(pl.col("bytes").sum(), pl.col("transfers").sum())
    return {link: (size, count) for link, size, count in sums.rows()}


def _truly_carried(path: Path) -> dict[str, tuple[int, int]]:
    true = _truth(path)["links"]
    moved = zip(true["bytes"], true["movements"], strict=True)
    return dict(zip(true["link"], moved, strict=True))


def test_bytes_of_links_are_the_truth(star: tk.Run) -> None:
    assert _carried(star) == _truly_carried(FOLDER / "star_8.sqlite")


def test_busy_times_of_links_are_the_truth(star: tk.Run) -> None:
    table = star.links(topology="dgx1v")
    found = {f"{src}>{dst}": ns for src, dst, ns in table.select("src", "dst", "busy_ns").rows()}
    true = _truth(FOLDER / "star_8.sqlite")["links"]
    assert found == dict(zip(true["link"], true["copying_ns"], strict=True))


def test_routes_of_ops_are_the_truth(star: tk.Run) -> None:
    """Every copy between GPUs goes from where to where the truth says."""
    known = _truth(FOLDER / "star_8.sqlite")
    ops = star.table("ops").collect().select("op", "correlation")
    moved = star.traffic(topology="dgx1v").transfers.filter(pl.col("method") == "p2p")
    found = moved.join(ops, on="op").select("correlation", "src_device", "dst_device")
    true = set()
    for correlation, number, role in zip(
        *(known["ops"][name] for name in ("correlation", "route", "role")), strict=True
    ):
        if role in {"gradients", "weights"}:
            route = known["routes"][number]
            src, dst = route[0].split(">")[0], route[-1].split(">")[1]
            true.add((correlation, int(src[3:]), int(dst[3:])))
    assert set(found.rows()) == true


@pytest.mark.parametrize("name", BUNDLED)
def test_memory_peaks_are_the_truth(name: str) -> None:
    path = FOLDER / f"{name}.sqlite"
    table = _bundled(name).read("memory").group_by("device").agg(pl.col("in_use").max())
    true = _truth(path)["memory"]
    assert dict(table.rows()) == dict(zip(true["device"], true["peak_bytes"], strict=True))


@pytest.mark.parametrize("name", BUNDLED)
def test_traces_say_that_they_are_simulated(name: str) -> None:
    path = FOLDER / f"{name}.sqlite"
    with closing(sqlite3.connect(path)) as file:
        meta = dict(file.execute("SELECT name, value FROM META_DATA_EXPORT").fetchall())
        gpus = [name for (name,) in file.execute("SELECT name FROM TARGET_INFO_GPU")]
        programs = [name for (name,) in file.execute("SELECT name FROM PROCESSES")]
    assert "simulated" in meta["EXPORT_PRODUCT_NAME"]
    assert meta["EXPORT_SIMULATED"].startswith("yes")
    assert all(name.endswith("(simulated)") for name in (*gpus, *programs))


def test_programs_label_their_runs(star: tk.Run) -> None:
    job = scenarios()["star_8"].job
    assert star.labels.items() >= {key: str(value) for key, value in job.labels().items()}.items()
    assert star.labels["simulated"] == "yes"


def test_nothing_else_lies_beside_them_and_they_are_small() -> None:
    made = {f"{name}{end}" for name in BUNDLED for end in (".sqlite", ".truth.json.gz")}
    assert {path.name for path in FOLDER.iterdir()} == made
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 10_000_000


def _content(path: Path) -> dict[str, object]:
    """Everything a trace holds; its pages on disk depend on the SQLite that wrote them."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
        tables = [
            name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return {
            name: file.execute(f'SELECT * FROM "{name}" ORDER BY rowid').fetchall()
            for name in tables
        }


@pytest.mark.parametrize(
    "name",
    [
        name if name == "launch_bound" else pytest.param(name, marks=pytest.mark.nightly)
        for name in BUNDLED
    ],
)
def test_the_same_traces_are_made_again(name: str, tmp_path: Path) -> None:
    job = scenarios()[name].job
    write(job, tmp_path, name, usual_changes(job))
    assert _content(tmp_path / f"{name}.sqlite") == _content(FOLDER / f"{name}.sqlite")
    assert _truth(tmp_path / f"{name}.sqlite") == _truth(FOLDER / f"{name}.sqlite")


def _grid() -> Iterator[Any]:
    for name, job in grid(program="pytorch"):
        yield pytest.param(job, id=f"pytorch-{name}")
    for name, job in grid(program="mxnet"):
        yield pytest.param(job, id=f"mxnet-{name}")


@pytest.mark.nightly
@pytest.mark.parametrize("job", list(_grid()))
def test_the_grid_is_read_as_it_is(job: Job, tmp_path: Path) -> None:
    _agree_about(job, tmp_path)
