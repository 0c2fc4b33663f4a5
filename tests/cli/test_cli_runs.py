from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from cli_helpers import SAMPLES, tracekit

if TYPE_CHECKING:
    from pathlib import Path

OTHER = SAMPLES / "p2p_2gpu_start_end.sqlite"


def names(*options: str) -> list[str]:
    document = json.loads(tracekit("runs", *options, "--format", "json").stdout)
    return [row["name"] for row in document["rows"]]


def test_runs_alone_lists(stored: Path) -> None:
    assert tracekit("runs").stdout == tracekit("runs", "list").stdout
    assert tracekit("runs", "--format", "csv").stdout.startswith("name,id,created,devices,")


def test_a_list_shows_what_tells_runs_apart(stored: Path) -> None:
    tracekit("ingest", OTHER, "--name", "p2p")
    lines = tracekit("runs").stdout.splitlines()
    assert lines[0] == " 2 runs, the latest p2p"
    assert lines[2].split() == [
        "name", "id", "created", "devices", "iterations", "ops", "labels", "files",
    ]  # fmt: skip
    assert lines[4].split()[0] == "ddp"
    assert lines[4].split()[-5:] == ["4", "6", "1,068", "gpus=4", "ddp_4gpu.sqlite"]
    assert lines[5].split()[-5:] == ["2", "6", "418", "-", "p2p_2gpu_start_end.sqlite"]
    assert lines[-1] == f" store: {stored}"


def test_a_list_of_nothing() -> None:
    done = tracekit("runs")
    assert done.exit_code == 0
    assert "no runs; `tracekit ingest FILE` makes one" in done.stdout
    assert tracekit("runs", "--format", "csv").stdout == (
        "name,id,created,devices,iterations,ops,labels,files\n"
    )


def test_labels_choose_runs(stored: Path) -> None:
    tracekit("ingest", OTHER, "--name", "p2p", "--label", "gpus=2", "--label", "a=b")
    assert names() == ["ddp", "p2p"]
    assert names("--label", "gpus=2") == ["p2p"]
    assert names("--label", "gpus=2", "--label", "a=c") == []


def test_another_store(stored: Path, tmp_path: Path) -> None:
    assert names("--store", str(tmp_path / "elsewhere")) == []
    assert not (tmp_path / "elsewhere").exists()
    assert names("--store", str(stored)) == ["ddp"]


def test_show(stored: Path) -> None:
    lines = tracekit("runs", "show").stdout.splitlines()
    assert lines[:3] == [" 6 iterations, 1,068 ops on 4 devices", "", " ddp"]
    *told, empty, below = lines[3:]
    assert (empty, below.split(":")[0]) == ("", " unknown or none")
    fields = dict(line.split(maxsplit=1) for line in told)
    assert fields["labels"] == "gpus=4"
    assert fields["files"] == "ddp_4gpu.sqlite"
    assert fields["iterations"] == "6"
    assert len(fields["digest"]) == 64
    assert tracekit("runs", "show", fields["id"][:6]).stdout.splitlines()[2] == " ddp"


def test_rename(stored: Path) -> None:
    done = tracekit("runs", "rename", "@latest", "unet")
    assert (done.exit_code, done.stdout) == (0, "renamed ddp to unet\n")
    assert names() == ["unet"]


def test_remove(stored: Path) -> None:
    tracekit("ingest", OTHER, "--name", "p2p")
    before = OTHER.read_bytes()
    done = tracekit("runs", "remove", "p2p", "ddp", "p2p")
    assert done.exit_code == 0
    assert [line.split("(")[0] for line in done.stdout.splitlines()] == [
        "removed p2p ", "removed ddp ",
    ]  # fmt: skip
    assert names() == []
    assert OTHER.read_bytes() == before


@pytest.mark.parametrize(
    "words",
    [
        ["runs", "show", "ddq"],
        ["runs", "rename", "ddq", "x"],
        ["runs", "remove", "ddp", "ddq"],
        ["breakdown", "ddq"],
        ["info", "ddq"],
        ["sql", "ddq", "SELECT 1"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_run_that_is_not_there_names_a_near_one(stored: Path, words: list[str]) -> None:
    done = tracekit(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("tracekit: no run 'ddq' in the store ")
    assert "did you mean 'ddp'?" in done.stderr
    assert names() == ["ddp"]


def test_a_name_that_is_taken(stored: Path) -> None:
    tracekit("ingest", OTHER, "--name", "p2p")
    done = tracekit("runs", "rename", "p2p", "ddp")
    assert done.exit_code == 2
    assert "'ddp'" in done.stderr
    assert names() == ["ddp", "p2p"]


def test_a_label_that_is_none(stored: Path) -> None:
    done = tracekit("runs", "--label", "gpus")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "key=value" in done.stderr
