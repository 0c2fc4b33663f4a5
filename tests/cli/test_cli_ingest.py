from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli_helpers import SAMPLE, SAMPLES, on_terminal, tracekit
from nsys_builder import NsysBuilder

from tracekit.view import _lanes

if TYPE_CHECKING:
    from collections.abc import Iterator

OTHER = SAMPLES / "p2p_2gpu_start_end.sqlite"


def runs() -> list[dict[str, object]]:
    rows = json.loads(tracekit("runs", "--format", "json").stdout)["rows"]
    assert isinstance(rows, list)
    return rows


@pytest.mark.slow
def test_what_other_traces_and_terminals_take_is_not_loaded(tmp_path: Path) -> None:
    code = (
        "import atexit, sys; from tracekit.cli import main;"
        "atexit.register(lambda: print(*sorted(sys.modules)));"
        f"sys.argv = ['tracekit', 'ingest', {str(SAMPLE)!r}, '--store', {str(tmp_path / 's')!r}];"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "tracekit.sources.nsys._nsys_export" in loaded
    for name in ("rich.console", "tracekit.sources.kineto._kineto", "tracekit.sources.nvprof._csv"):
        assert name not in loaded
    # Where they are installed, these two take 70 MiB and half of the time of loading.
    assert not loaded & {"pyarrow", "pandas"}


def test_the_summary_of_a_new_run() -> None:
    done = tracekit("ingest", SAMPLE)
    assert done.exit_code == 0
    assert done.stderr == ""
    lines = re.sub(r"\n {8,}", " ", done.stdout).splitlines()
    assert lines[0] == " ddp_4gpu"
    assert lines[-2:] == ["", " unknown or none: labels, warnings"]
    fields = dict(re.split(r"  +", line.strip(), maxsplit=1) for line in lines[1:-2])
    assert fields.pop("id") == runs()[0]["id"]
    assert fields == {
        "file": str(SAMPLE),
        "status": "ingested",
        "devices": "4",
        "gpus": "NVIDIA A100-SXM4-40GB",
        "processes": "4",
        "ops": "1,068",
        "kernels": "904",
        "ranges": "1,444",
        "iterations": "6",
        "verdict": "training (12 forward ranges, 6 backward ranges, 18 weight update ranges, "
        "1 autograd thread, 18 kernels of optimizers (by name), 60 kernels of backward passes "
        "(by name), 20 collectives of data parallelism, the structure of its GPU work; by place 1 "
        "collective of weights)",
        "launches known": "100.0 %",
        "coverage (stages known)": ">99.9 %",
    }


def test_the_same_content_is_one_run(tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    copy.write_bytes(SAMPLE.read_bytes())
    first = tracekit("ingest", SAMPLE, "--label", "gpus=4")
    again = tracekit("ingest", copy, "--label", "model=unet")
    assert (first.exit_code, again.exit_code) == (0, 0)
    assert "   already in the store\n" in again.stdout
    assert [run["name"] for run in runs()] == ["ddp_4gpu"]
    assert runs()[0]["labels"] == ["gpus=4", "model=unet"]


def test_another_name_renames_and_says_so() -> None:
    tracekit("ingest", SAMPLE, "--name", "first")
    done = tracekit("ingest", SAMPLE, "--name", "second", "--format", "json")
    [row] = json.loads(done.stdout)["rows"]
    assert (row["name"], row["status"]) == ("second", "already in the store, renamed from 'first'")
    again = tracekit("ingest", SAMPLE, "--run", "third", "--format", "json")
    [row] = json.loads(again.stdout)["rows"]
    assert row["status"] == "already in the store, renamed from 'second'"


def test_name_labels_and_json() -> None:
    done = tracekit(
        "ingest", SAMPLE, "--name", "ddp", "--label", "a=b=c", "--label", "d=", "--format", "json"
    )
    document = json.loads(done.stdout)
    assert document["run"] == "ddp"
    [row] = document["rows"]
    assert (row["name"], row["status"], row["labels"]) == ("ddp", "ingested", ["a=b=c", "d="])


@pytest.mark.slow
def test_every_file_is_a_run() -> None:
    done = tracekit("ingest", SAMPLE, OTHER, "--format", "json")
    document = json.loads(done.stdout)
    assert document["run"] is None
    assert [row["name"] for row in document["rows"]] == ["ddp_4gpu", "p2p_2gpu_start_end"]
    assert len(runs()) == 2


@pytest.mark.slow
def test_a_file_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "empty.sqlite").touch()
    done = tracekit("ingest", SAMPLE, "empty.sqlite", "nothing.sqlite", OTHER)
    assert done.exit_code == 2
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["tracekit", "tracekit"]
    assert "empty.sqlite" in done.stderr.splitlines()[0]
    assert "nothing.sqlite" in done.stderr.splitlines()[1]
    assert [run["name"] for run in runs()] == ["ddp_4gpu", "p2p_2gpu_start_end"]
    assert " ddp_4gpu\n" in done.stdout
    assert " p2p_2gpu_start_end\n" in done.stdout


def test_what_would_fail_for_every_file_stops(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text("not = [toml")
    done = tracekit("ingest", SAMPLE, OTHER, "--rules", "rules.toml")
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    assert "rules.toml" in done.stderr
    assert done.stdout == ""
    assert runs() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--name", "x", str(OTHER)],
            (
                "--name 'x' cannot name 2 files: make one run of them with --run, "
                "or ingest them one by one to name them"
            ),
        ),
        (["--label", "gpus"], "label 'gpus' is not of the form key=value: write --label gpus=4"),
        (["--label", "=4"], "label '=4' is not of the form key=value: write --label gpus=4"),
        (["--label", "a=1", "--label", "a=2"], "label 'a' is given twice: give each label once"),
    ],
)
def test_options_that_make_no_sense(store: Path, options: list[str], message: str) -> None:
    done = tracekit("ingest", SAMPLE, *options)
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"tracekit: {message}\n")
    assert not store.exists()


@pytest.mark.parametrize("name", ["", "@x", "a/b", "x\x1b[31m"])
def test_names_that_no_run_may_have(name: str) -> None:
    done = tracekit("ingest", SAMPLE, "--name", name)
    assert done.exit_code == 2
    assert done.stderr.startswith("tracekit: ")
    assert "\x1b" not in done.stderr
    assert runs() == []


def bad_input(kind: str, folder: Path) -> Path:
    path = folder / f"{kind}.sqlite"
    if kind == "directory":
        path.mkdir()
    elif kind == "empty":
        path.touch()
    elif kind == "text":
        path.write_text("step,loss\n1,0.5\n")
    elif kind == "foreign":
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE albums (title TEXT)")
        database.close()
    elif kind == "truncated":
        path.write_bytes(SAMPLE.read_bytes()[:40_000])
    return path


@pytest.mark.parametrize("kind", ["missing", "directory", "empty", "text", "foreign", "truncated"])
@pytest.mark.parametrize("words", [["ingest"], ["breakdown"], ["info"]], ids=lambda w: str(w[0]))
def test_bad_input_is_one_message_and_leaves_the_store(
    stored: Path, tmp_path: Path, kind: str, words: list[str]
) -> None:
    path = bad_input(kind, tmp_path)
    before = runs()
    content = path.read_bytes() if path.is_file() else None
    done = tracekit(*words, path)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("tracekit: ")
    assert path.name in done.stderr
    assert runs() == before
    assert not list((stored / "staging").glob("*"))
    assert (path.read_bytes() if path.is_file() else None) == content


@contextmanager
def without_privileges() -> Iterator[None]:
    """Be another user than root, who may read everything."""
    me = os.geteuid()
    if me == 0:
        os.seteuid(65534)
    yield
    os.seteuid(me)


def test_a_file_without_permission(store: Path) -> None:
    # Not below pytest's folders, which another user may not enter.
    with tempfile.TemporaryDirectory(prefix="tracekit-cli-") as folder:
        path = Path(folder) / "secret.sqlite"
        path.write_bytes(SAMPLE.read_bytes())
        path.chmod(0)
        Path(folder).chmod(0o755)
        tracekit("ingest", folder)  # imports what that other user may not be allowed to
        with without_privileges():
            done = tracekit("ingest", path)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("tracekit: ")
    assert "secret.sqlite" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not store.exists()


@pytest.mark.slow
def test_progress_is_shown_on_a_terminal_and_wiped(tmp_path: Path) -> None:
    path = tmp_path / "[red]x.sqlite"
    path.write_bytes(OTHER.read_bytes())
    done = on_terminal("ingest", path, stream="stderr")
    assert done.code == 0
    assert "[red]x.sqlite" in done.stderr
    assert done.stderr.endswith("\x1b[2K")
    assert done.stdout.startswith(" [red]x\n")
    again = on_terminal("breakdown", stream="stderr")
    assert (again.code, again.stderr) == (0, "")


def test_a_trace_of_names_that_attack_a_terminal(tmp_path: Path) -> None:
    hostile = "\x1b]0;owned\x07[bold red]k[/]\u202e|<b>\n(int)"
    path = tmp_path / "hostile.sqlite"
    with NsysBuilder(path) as nsys:
        nsys.push_pop(0, 1000, hostile)
        nsys.launch(100, 200, 300, name=hostile)
    for words in (
        ["ingest", path],
        ["breakdown", path, "--by", "kernel,range"],
        ["breakdown", path, "--by", "kernel,range", "--format", "markdown"],
        ["sql", path, "SELECT name FROM ops"],
    ):
        done = tracekit(*words)
        assert done.exit_code == 0, done.stderr
        assert not set(done.stdout) & {"\x1b", "\x07", "\u202e"}
        if words[0] != "ingest":
            assert "owned␇" in done.stdout
            assert "k[/]" in done.stdout.replace("\\", "")
    rows = json.loads(tracekit("sql", path, "SELECT name FROM ops", "-f", "json").stdout)["rows"]
    assert rows == [{"name": hostile}]


def test_tiles_are_kept_where_they_are_asked_for(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_lanes, "_WORTH_KEEPING", 1)
    for more, number in (((), 0), (("--tiles",), 1)):
        assert tracekit("ingest", OTHER, *more).exit_code == 0
        assert len([*store.glob("runs/*/kept/*")]) == number
