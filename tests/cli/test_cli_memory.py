"""`--memory`: every command whose need is known refuses what does not fit before it reads."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from cli_helpers import ROOT, SAMPLE, Done, command, environment, tracekit
from typer.main import get_command

import tracekit as library
from tracekit.cli import app
from tracekit.errors import UsageError
from tracekit.model import Trace
from tracekit.runs._declared import DECLARED
from tracekit.support.memory import NEEDS

COMMANDS = [name for name in NEEDS if " " not in name and name != "attribution"]
GROUP_BYTES = 700_000_000


def _words(name: str) -> tuple[str, ...]:
    runs = ("ddp", "ddp") if name == "compare" else ("ddp",)
    return (name, *runs, *(("--no-sync",) if name == "whatif" else ()))


@pytest.fixture
def nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_trace: Trace, name: str) -> pl.LazyFrame:
        raise AssertionError(f"table {name} is read")

    monkeypatch.setattr(Trace, "__getitem__", read)
    monkeypatch.setattr(Trace, "read", read)


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.parametrize("name", COMMANDS)
def test_too_little_memory_is_a_refusal(name: str, filled: Path) -> None:
    done = tracekit(*_words(name), "--memory", "100MiB", "--store", filled)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "of memory, and 100 MiB are allowed" in done.stderr
    in_steps = NEEDS[name].beside_bytes is not None
    assert ("--iterations 10:20" in done.stderr) == in_steps
    # Others that take the option read all of the run all the same.
    assert not in_steps or "iterations" in {each.name for each in _options(name)}


def _options(name: str) -> list[Any]:
    found: Any = get_command(app)
    return list(found.get_command(None, name).params)


@pytest.mark.parametrize("name", [
    name for name, each in DECLARED.items() if not each.is_of_files and name != "project"
])  # fmt: skip
def test_every_question_to_a_run_has_a_limit(name: str) -> None:
    assert name.replace("_", "-") in NEEDS
    assert "memory" in {each.name for each in _options(name.replace("_", "-"))}


def test_memory_is_taken_by_allocations_alone(filled: Path, tmp_path: Path) -> None:
    """A run of many kernels and no allocation has little to look at."""
    limit = ("--memory", "301MiB", "--store")
    assert tracekit("memory", "ddp", *limit, filled).exit_code == 0
    export = tmp_path / "allocates.sqlite"
    shutil.copy(SAMPLE, export)
    with closing(sqlite3.connect(export)) as database, database:
        database.execute(
            "CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start INT, globalPid INT, deviceId INT,"
            " contextId INT, address INT, pc INT, bytes INT, memKind INT, memoryOperationType INT,"
            " name INT, correlationId INT)"
        )
        [pid] = database.execute("SELECT globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
        rows = [(n, pid, 0, 1, 4096 * n, 0, 512, 2, 0, None, 0) for n in range(10_000)]
        database.executemany(f"INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES "
                             f"({', '.join('?' * 11)})", rows)  # fmt: skip
    library.ingest(export, name="allocates", store=tmp_path / "store")
    done = tracekit("memory", "allocates", *limit, tmp_path / "store")
    assert done.exit_code == 2, done.stdout
    assert done.stderr.startswith("tracekit: memory of 10,000 rows takes about 302 MiB of memory")


def test_other_rules_are_asked_for_in_memory(filled: Path) -> None:
    limit = "--memory", "315000000"
    assert tracekit("breakdown", "ddp", *limit, "--store", filled).exit_code == 0
    done = tracekit("breakdown", "ddp", *limit, "--iteration", "^step", "--store", filled)
    assert done.exit_code == 2
    assert done.stderr.startswith("tracekit: attribution of ")


def test_python_takes_it_where_a_run_is_opened(filled: Path) -> None:
    run = library.open("ddp", store=filled, memory=100 << 20)
    for ask in (run.critical_path, run.critical_path.answer):
        with pytest.raises(UsageError, match="critical-path of 1,444 rows"):
            ask()
    with pytest.raises(UsageError, match="whatif of"):
        run.whatif(no_sync=True, iterations=(2, 3))
    with pytest.raises(UsageError, match="report of"):
        run.report("x.html")
    with pytest.raises(UsageError, match="compare by kernel of"):
        library.compare(library.open("ddp", store=filled), run, by="kernel")


def test_some_steps_are_as_they_are_among_all(filled: Path) -> None:
    run = library.open("ddp", store=filled)
    of_all, of_some = (
        run.critical_path.answer("iteration,cause", iterations=steps) for steps in (None, (2, 3))
    )
    columns = ["iteration", "cause", "path_ns"]
    wanted = of_all.rows.filter(pl.col("iteration").is_in([2, 3])).select(columns)
    found = of_some.rows.select(columns)
    both = wanted.join(found, on=columns[:2], how="full", suffix="_some").fill_null(0)
    # What is usual is that of the steps that are looked at, so lengths differ by microseconds.
    assert (both["path_ns"] - both["path_ns_some"]).abs().max() < 30_000  # type: ignore[operator]
    assert of_some.meta["steps"] == 2
    assert of_some.meta["steps_ns"] == wanted["path_ns"].sum()
    replayed = run.whatif.answer(no_sync=True, iterations=(2, 3))
    assert replayed.meta["steps"] == 2
    assert replayed.rows["step_ns"][0] == wanted["path_ns"].sum() / 2


def test_steps_that_are_not_there_are_said(filled: Path) -> None:
    done = tracekit("critical-path", "ddp", "--iterations", "20:30", "--store", filled)
    assert done.exit_code == 2
    assert "the run has no step from 20 to 30: there are 0 to 5" in done.stderr


def test_nothing_to_change_is_said_before_a_file_is_read(store: Path) -> None:
    done = tracekit("whatif", SAMPLE)
    assert done.exit_code == 2
    assert "nothing is changed" in done.stderr
    assert not store.exists()


@pytest.fixture
def grouped() -> Iterator[Callable[..., Done]]:
    """Run commands in a cgroup of 700 MB."""
    folder = Path("/sys/fs/cgroup/memory")
    limit = "memory.limit_in_bytes"
    if not folder.is_dir():
        folder, limit = folder.parent, "memory.max"
    group = folder / f"tracekit-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(GROUP_BYTES))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"no cgroup can be made here: {error}")

    def run(*words: str | Path) -> Done:
        enter = f'echo $$ > "{group}/cgroup.procs" && exec "$@"'
        done = subprocess.run(
            ["sh", "-c", enter, "sh", *command(*words)],
            capture_output=True, text=True, env=environment(), check=False,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    yield run
    group.rmdir()


@pytest.mark.nightly
@pytest.mark.parametrize("step", ["training", "kernels"])
def test_nothing_is_killed_in_a_small_group(
    step: str, tmp_path: Path, grouped: Callable[..., Done]
) -> None:
    export = tmp_path / "large.sqlite"
    script = ROOT / "benchmarks" / "generate_export.py"
    shape = ("--step", step, *(("--processes", "8", "--threads", "1") * (step == "kernels")))
    subprocess.run([sys.executable, script, export, "--kernels", "1500000", *shape], check=True)
    assert grouped("ingest", export).code == 0
    for name in COMMANDS:
        runs = ("large", "large") if name == "compare" else ("large",)
        more = ("--no-sync",) if name == "whatif" else ()
        output = {"report": ("-o", "x.html"), "export": ("-o", "x.json", "--to", "chrome")}
        done = grouped(name, *runs, *more, *output.get(name, ()))
        assert done.code in (0, 2, 3), (name, done)
        if name in ("critical-path", "whatif"):
            assert done.code == 2
            assert "are free: choose some steps with --iterations 10:20" in done.stderr
            assert grouped(name, *runs, *more, "--iterations", "10:20").code == 0
