"""`tracekit ingest --run`: one run of many files."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cli_helpers import ROOT, SAMPLE, SAMPLES, on_terminal, tracekit

from tracekit.errors import UsageError
from tracekit.support.quantities import parse_size

OTHER, STAR = SAMPLES / "p2p_2gpu_start_end.sqlite", SAMPLES / "p2p_4gpu_star.sqlite"


def rows(*words: str | Path) -> list[dict[str, Any]]:
    done = tracekit(*words, "--format", "json")
    document = json.loads(done.stdout)
    name = "-".join(document["command"].split())
    schema = json.loads((ROOT / "schemas" / "json" / f"{name}.schema.json").read_text())
    jsonschema.validate(document, schema)
    found = document["rows"]
    assert isinstance(found, list)
    return found


@pytest.mark.slow
def test_all_files_are_one_run() -> None:
    done = tracekit("ingest", OTHER, SAMPLE, "--run", "job", "--label", "a=b")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith(" job\n")
    [run] = rows("runs")
    assert (run["name"], run["labels"]) == ("job", ["a=b"])
    assert run["files"] == [SAMPLE.name, OTHER.name]
    [again] = rows("ingest", SAMPLE, OTHER, "--run", "job")
    assert again["status"] == "already in the store"
    assert str(OTHER) in str(again["file"])
    assert any("clocks of 2 reports are not aligned" in text for text in again["warnings"])
    assert len(rows("breakdown", "job", "--by", "device")) == 6


def test_run_names_one_file_too() -> None:
    [row] = rows("ingest", SAMPLE, "--run", "one", "--processes", "4")
    assert (row["name"], row["file"]) == ("one", str(SAMPLE))


def test_a_file_that_fails_stops_the_run(tmp_path: Path, store: Path) -> None:
    bad = tmp_path / "bad.sqlite"
    bad.write_text("no trace")
    for words in ([], ["--on-error", "stop"], ["--processes", "2"]):
        done = tracekit("ingest", SAMPLE, OTHER, bad, "--run", "job", *words)
        assert (done.exit_code, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1
        assert "bad.sqlite" in done.stderr
        assert not store.exists()


@pytest.mark.slow
def test_files_that_fail_are_skipped_and_listed(tmp_path: Path) -> None:
    bad = tmp_path / "bad.sqlite"
    bad.write_text("no trace")
    words = ["ingest", SAMPLE, OTHER, bad, "absent.sqlite", "--run", "job", "--on-error", "skip"]
    done = tracekit(*words)
    assert done.exit_code == 0
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == ["skipped"] * 2
    run, *skipped = rows(*words)
    assert run["status"] == "already in the store"
    assert {row["file"] for row in skipped} == {"absent.sqlite", str(bad)}
    for row in skipped:
        assert str(row["status"]).startswith("skipped: ")
        assert (row["name"], row["id"], row["ops"]) == ("job", None, None)
    [shown] = rows("runs", "show", "job")
    assert sum("is left out" in text for text in shown["warnings"]) == 2


def test_a_run_of_which_nothing_is_left(tmp_path: Path, store: Path) -> None:
    done = tracekit("ingest", "absent.sqlite", "--run", "job", "--on-error", "skip")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "none of the 1 reports could be read" in done.stderr.splitlines()[-1]
    assert not store.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--run", "a", "--name", "b"], "--name and --run both name the run: give --run alone"),
        (
            ["--processes", "2"],
            "--processes is for one run of many reports: name that run with --run NAME",
        ),
        (["--dask", "x"], "--dask is for one run of many reports: name that run with --run NAME"),
        (
            ["--on-error", "skip"],
            "--on-error is for one run of many reports: name that run with --run NAME",
        ),
        (["--memory", "lots"], "'lots' is not a size of memory: write it as 4GiB, 500MB or bytes"),
        (
            ["--run", "a", "--dask", "tcp://x:1", "--processes", "2"],
            "a Dask cluster has processes of its own: give either processes or dask, not both",
        ),
    ],
)
def test_options_that_make_no_sense(store: Path, words: list[str], message: str) -> None:
    done = tracekit("ingest", SAMPLE, OTHER, *words)
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"tracekit: {message}\n")
    assert not store.exists()


@pytest.mark.slow
def test_no_dask_scheduler_is_one_message(store: Path) -> None:
    done = tracekit("ingest", SAMPLE, OTHER, "--run", "a", "--dask", "tcp://127.0.0.1:1")
    assert (done.exit_code, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("tracekit: no Dask scheduler answers at tcp://127.0.0.1:1")
    assert not store.exists()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1), ("4GiB", 4 << 30), ("4gib", 4 << 30), ("500MB", 500_000_000), ("1.5 KiB", 1536),
        (" 2 TB ", 2 * 10**12), ("10b", 10),
    ],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "4G", "GiB", "1e9", "0.1b", "4 GiB x", "٤GB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size of memory"):
        parse_size(text)


@pytest.mark.slow
def test_each_report_has_a_line_on_a_terminal() -> None:
    words = ("ingest", STAR, OTHER, "--run", "job", "--processes", "2")
    done = on_terminal(*words, stream="stderr")
    assert done.code == 0
    for text in ("job", STAR.name, OTHER.name, "reports"):
        assert text in done.stderr
    assert done.stderr.endswith("\x1b[2K")
    assert done.stdout.startswith(" job\n")


@pytest.mark.slow
def test_clocks_that_the_user_gives() -> None:
    words = ["ingest", SAMPLE, OTHER, "--run", "job"]
    for text, says in (
        ("+1ms", "names no report"), ("report1=soon", "'soon' is not a time"),
        ("report1=1ms,soon", "cannot read the clock drift 'soon'"),
        ("report1=2e4ppm", "'2e4ppm' is not a time"), ("report1=20000ppm", "of at most 10,000 ppm"),
        ("report1=1ms,20ppm@9", "'9' is not a time"),
    ):  # fmt: skip
        wrong = tracekit(*words, "--clock", text)
        assert wrong.exit_code == 2
        assert says in " ".join(wrong.stderr.split())
    done = tracekit(*words, "--clock", "p2p_2gpu_start_end=+1.5ms")
    assert done.exit_code == 0, done.stderr
    found = rows("info", "job", "--clocks")
    assert (found[1]["known_by"], found[1]["offset_ns"]) == ("given", 1_500_000)
    done = tracekit(*words, "--clock", "p2p_2gpu_start_end=-1us,-20.5ppm@10s")
    assert done.exit_code == 0, done.stderr
    found = rows("info", "job", "--clocks")
    assert (found[1]["offset_ns"], found[1]["drift_ppm"]) == (-1_000, pytest.approx(-20.5))
    assert found[1]["evidence"] == "given by the user, on time at 10 s of the report"


@pytest.mark.slow
def test_reports_of_two_jobs_are_forced_to_be_one(tmp_path: Path) -> None:
    copy = tmp_path / "other.sqlite"
    copy.write_bytes(SAMPLE.read_bytes())
    with sqlite3.connect(copy) as database:
        table = "TARGET_INFO_SESSION_START_TIME"
        database.execute(f"UPDATE {table} SET utcEpochNs = utcEpochNs + {10**15}")
    database.close()
    refused = tracekit("ingest", SAMPLE, copy, "--run", "job")
    assert refused.exit_code == 2
    assert "--force takes it anyway" in " ".join(refused.stderr.split())
    [row] = rows("ingest", SAMPLE, copy, "--run", "job", "--force")
    assert any("forced to be one run" in text for text in row["warnings"])
