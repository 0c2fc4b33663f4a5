from __future__ import annotations

import csv
import io
import json
import os
import stat
from typing import TYPE_CHECKING

import jsonschema
import polars as pl
import pytest
from cli_helpers import (
    ANSI,
    INSPECTOR,
    MEMORY,
    OTHER,
    PIPELINE,
    ROOT,
    SAMPLE,
    SAMPLES,
    TIMELINE,
    TIMES,
    TOPOLOGY,
    in_process,
    on_terminal,
    tracekit,
)

from tracekit.present import readable_names
from tracekit.runs import DECLARED
from tracekit.support.wording import cells

if TYPE_CHECKING:
    from pathlib import Path

SCHEMAS = ROOT / "schemas" / "json"
QUERY = "SELECT kind, count(*) AS n FROM ops GROUP BY kind ORDER BY kind"
LINK_KEYS = [
    "link", "pair", "route", "method", "stage", "rank", "node", "iteration", "link,stage",
    "pair,method",
]  # fmt: skip
IDLE_KEYS = ["cause", "stage", "iteration", "device", "rank", "range"]
PATH_KEYS = ["cause", "stage", "link", "device", "rank", "iteration", "kernel"]
FLOPS_KEYS = ["operator", "layer,precision", "sizes,stage", "kernel", "iteration", "device"]
COMPARED = [
    "step", "stage", "kind", "kernel", "range", "device", "rank", "node", "collective", "api",
    "link", "cause",
]  # fmt: skip
OF_MEMORY = ["use", "table", "extra", "growth", "largest-batch"]
PROJECTED = [
    "jobs", "components", "architectures", "hardware", "means", "distribution", "measured",
]  # fmt: skip
TRIED = ["--sweep", "ethernet=10Gb/s,100Gb/s"]
SIZED = ["--bytes", "all_reduce=25MB"]
KEYS = [
    "stage", "kind", "kernel", "range", "layer", "device", "stream", "rank", "node", "iteration",
]  # fmt: skip

LISTINGS: dict[str, list[list[str]]] = {
    **{name: [[name]] for name in (each.replace("_", "-") for each in DECLARED)},
    "breakdown": [
        *(["breakdown", "--by", key] for key in KEYS),
        *(["breakdown", "--by", key, "--per-iteration"] for key in ("stage", "kernel", "device")),
        ["breakdown", "ddp", "--by", "stage,device", "--skip", "1"],
        ["breakdown", "--by", "kernel", "--by", "stage,stream"],
        ["breakdown", "--by", "stage,iteration"],
        ["breakdown", "--as", "inference"],
        ["breakdown", "--by", "range", "--inclusive"],
        ["breakdown", "--by", "range,kernel", "--inclusive"],
        ["breakdown", "--by", "range", "--depth", "2", "--skip", "1"],
    ],
    "idle": [
        *(["idle", "--by", key] for key in IDLE_KEYS),
        ["idle", "--longest", "3", "--skip", "1"],
    ],
    "critical-path": [
        *(["critical-path", "ddp", "--by", key] for key in PATH_KEYS),
        ["critical-path", "ddp", "--kernels", "3"],
    ],
    "whatif": [
        ["whatif", "ddp", "--speed", "gemm=2x", "--stage", "bp=1.5x", "--overlap", "--no-sync"],
        ["whatif", "ddp", "--bandwidth", "collective=2x", "--bucket", "50MB", *SIZED],
    ],
    "roofline": [["roofline", "ddp", "--by", "kernel,stage", "--memory-bandwidth", "3TB"]],
    "flops": [
        *(["flops", str(SAMPLES / "closure_1gpu.sqlite"), "--by", key] for key in FLOPS_KEYS),
        ["flops", "ddp", "--skip", "1", "--peak", "312TFLOPS"],
    ],
    "diagnose": [
        ["diagnose", "ddp", "--all", "--topology", "dgx1v"],
        ["diagnose", str(OTHER), "--only", "input_bound,launch_bound"],
    ],
    "stragglers": [
        ["stragglers", str(SAMPLE)],
        ["stragglers", str(SAMPLE), "--by", "iteration"],
    ],
    "links": [
        *(["links", "--by", key, *SIZED] for key in LINK_KEYS),
        ["links"],
        ["links", "--counters"],
        ["links", "--parameters", "60M", "--topology", "dgx1v", *SIZED],
    ],
    "collectives": [
        ["collectives"],
        ["collectives", *SIZED],
        ["collectives", "--by", "collective,stage"],
        ["collectives", "--by", "collective,rank,node"],
    ],
    "compare": [
        *(["compare", "ddp", "ddp", "--by", key] for key in COMPARED),
        ["compare", "ddp", str(OTHER), "--by", "kernel"],
        ["compare", "ddp", "--against", str(OTHER), str(SAMPLES / "p2p_4gpu_star.sqlite")],
    ],
    "gate": [
        ["gate", "ddp", "ddp", "--new-findings", "--unknown", "pass"],
    ],
    "history": [["compare", "--history", "gpus"]],
    "study": [
        ["study", "--what", "exchange", "--parameters", "60M"],
        ["study", "--images", "256K"],
        ["study"],
        ["study", "--where", "gpus=4"],
        ["study", "--table", str(TIMES)],
    ],
    "study-dgx1": [
        ["study", "dgx1", "--where", "gpus=4"],
        *(["study", "dgx1", "ddp", "--what", what] for what in ("networks", "routes")),
    ],
    "scaling": [["scaling"], ["scaling", "--table", str(TIMES), "--images", "256K"]],
    "project": [
        *(["project", "--jobs", "worked", "--what", what] for what in PROJECTED),
        *(["project", "--jobs", "shares", "--what", w, *TRIED] for w in ("means", "distribution")),
        ["project", "--jobs", "shares", "--what", "means", "--to", "AllReduce-Local"],
        ["project", "--what", "jobs"],
        ["project", "ddp", "--what", "measured", "--flops", "10G", "--weight-bytes", "25MB"],
    ],
    "stalls": [
        ["stalls"],
        ["stalls", "ddp", str(OTHER), "--skip", "1"],
        ["stalls", "--preloaded", "100s", "--cached", "130s", "--cold", "170s"],
    ],
    "bubbles": [
        ["bubbles", "ddp", "--micro-batches", "4"],
        ["bubbles", str(PIPELINE), "--per-step"],
        ["bubbles", str(PIPELINE), "ddp", "--skip", "1", "--schedule", "1f1b"],
        ["bubbles", "--stages", "4", "--micro-batches", "8"],
    ],
    "overhead": [
        ["overhead", "--table", str(TIMES)],
        ["overhead", "--table", str(TIMES), "--as-matrix"],
        ["overhead", "--table", str(TIMES), "--crossover", "batch"],
        ["overhead", "--api"],
        ["overhead", "--profiler"],
    ],
    "memory": [
        ["memory"],
        *(["memory", "--table", str(MEMORY), "--what", w, "--capacity", "16GB"] for w in OF_MEMORY),
    ],
    "straggler-cost": [
        ["straggler-cost", str(TIMELINE), "--by", k] for k in ("stage", "worker", "kind")
    ],
    "nccl-inspector": [
        ["nccl-inspector", str(INSPECTOR), "--by", k] for k in ("size", "collective", "rank")
    ],
    "hang": [["hang", str(ROOT / "sample_traces/hang")]],
    "latency": [
        *(["latency", *SIZED, "--buckets", each] for each in ("power2", "exact", "class")),
        *(["latency", "--what", w] for w in ("histogram", "pointer-queries", "staging")),
        ["latency", str(OTHER), "--against", "ddp"],
    ],
    "topology-show": [
        *(
            ["topology", "show", "dgx1v", "--what", w]
            for w in ("matrix", "links", "routes", "relays")
        ),
        ["topology", "show"],
        ["topology", "show", "dgx2"],
    ],
    "topology-list": [["topology", "list"]],
    "topology-check": [["topology", "check", str(TOPOLOGY)], ["topology", "check", "ddp"]],
    "info": [["info"], ["info", "ddp"], ["info", "ddp", "--stages"]],
    "info-clocks": [["info", "--clocks"], ["info", "ddp", "--clocks"]],
    "record": [["record", "--study", "dgx1"], ["record", "--study", "dgx1", "--where", "gpus=2"]],
    "sql": [["sql", "@latest", QUERY], ["sql", "ddp", "SELECT * FROM ranges LIMIT 20"]],
    "runs": [["runs"], ["runs", "list"], ["runs", "--label", "gpus=4"], ["runs", "--label", "a=b"]],
    "runs-check": [["runs", "check"], ["runs", "check", "--repair"]],
    "runs-show": [["runs", "show"], ["runs", "show", "ddp"]],
    "ingest": [["ingest", str(SAMPLE)], ["ingest", "no-such-file.sqlite"]],
}
AT_NIGHT = [
    *(["breakdown", "--by", key] for key in ("kind", "device", "stream", "node")),
    *(["idle", "--by", key] for key in IDLE_KEYS[1:-1]),
    *(["critical-path", "ddp", "--by", key] for key in PATH_KEYS[1:-1]),
    *(["flops", str(SAMPLES / "closure_1gpu.sqlite"), "--by", key] for key in FLOPS_KEYS[2:]),
    *(["links", "--by", key, *SIZED] for key in LINK_KEYS[1:-2]),
    *(["compare", "ddp", "ddp", "--by", key] for key in COMPARED[1:-2] if key != "range"),
]
"""Keys of which others, tried by day, have the same columns."""
CASES = [
    pytest.param(
        name,
        words,
        id=" ".join(words[:4]),
        marks=[pytest.mark.nightly] if words in AT_NIGHT else [],
    )
    for name, cases in LISTINGS.items()
    for words in cases
]


@pytest.mark.parametrize("name", LISTINGS)
def test_schemas_are_schemas(name: str) -> None:
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)


def test_every_schema_is_tested() -> None:
    assert {path.name for path in SCHEMAS.iterdir()} == {f"{n}.schema.json" for n in LISTINGS}


@pytest.mark.parametrize(("name", "words"), CASES)
def test_json_is_as_its_schema_says(
    stored: Path, name: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # nothing is recorded
    done = tracekit(*words, "--format", "json")
    document = json.loads(done.stdout)
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    assert [error.message for error in validator.iter_errors(document)] == []
    assert document["command"].replace("-", " ") == name.replace("-", " ")


def test_all_formats_hold_the_same_rows(stored: Path) -> None:
    words = ["breakdown", "--by", "kernel"]
    rows = json.loads(tracekit(*words, "--format", "json").stdout)["rows"]
    assert rows
    frame = pl.read_parquet(io.BytesIO(tracekit(*words, "--format", "parquet").stdout_bytes))
    assert frame.to_dicts() == rows
    texts = list(csv.DictReader(io.StringIO(tracekit(*words, "--format", "csv").stdout)))
    assert [row["name"] for row in texts] == [row["name"] for row in rows]
    assert [int(row["total_ns"]) for row in texts] == [row["total_ns"] for row in rows]
    table = tracekit(*words).stdout.splitlines()
    short = readable_names(row["name"] for row in rows)
    begin = next(number for number, line in enumerate(table) if line.startswith(" ──")) + 1
    assert [line.split()[0] for line in table[begin : begin + len(rows)]] == [
        short[row["name"]].split()[0] for row in rows
    ]
    markdown = tracekit(*words, "--format", "markdown").stdout.splitlines()
    assert markdown[2].startswith("| name | kind | ops |")
    assert markdown[3].count("---:") == len(frame.columns) - 2
    assert len(markdown[4 : markdown.index("", 4)]) == len(rows)


@pytest.mark.slow
def test_the_ending_of_the_output_file_names_the_format(stored: Path, tmp_path: Path) -> None:
    beginnings = {
        "json": b"{",
        "csv": b"stage,",
        "parquet": b"PAR1",
        "md": b"**ddp",
        "html": b"<!doctype html>",
        "txt": b" Of the time BP",
        "": b" Of the time BP",
    }
    for ending, begins in beginnings.items():
        path = tmp_path / f"out.{ending}".rstrip(".")
        done = tracekit("breakdown", "--output", path)
        assert (done.exit_code, done.stdout) == (0, "")
        assert path.read_bytes().startswith(begins)
    assert not tracekit("breakdown", "--format", "json", "-o", tmp_path / "out.csv").stdout
    assert json.loads((tmp_path / "out.csv").read_text())["command"] == "breakdown"


def test_an_output_file_is_replaced_as_a_whole(stored: Path, tmp_path: Path) -> None:
    path, link = tmp_path / "out.csv", tmp_path / "link.csv"
    path.write_text("old")
    link.symlink_to(path)
    assert tracekit("breakdown", "-o", link).exit_code == 0
    assert link.is_symlink()
    assert path.read_text().startswith("stage,ops")
    before = {p.name for p in tmp_path.iterdir()}
    assert before == {"out.csv", "link.csv", "store"}
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_a_device_is_written_to_and_not_replaced(stored: Path) -> None:
    assert tracekit("breakdown", "--output", "/dev/null").exit_code == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)  # noqa: PTH116 - not a file's


LONG = "x" * 300


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (".", "cannot write ., it is a folder: name a file with --output"),
        ("a/b.csv", "cannot write a/b.csv, there is no folder a: create it first"),
        ("file/b.csv", "cannot write file/b.csv, there is no folder file: create it first"),
        (LONG, f"cannot write {LONG}, File name too long: choose another file with --output"),
        (
            "trace.sqlite",
            "will not overwrite trace.sqlite, which is an SQLite database as traces are",
        ),
    ],
    ids=["folder", "no-folder", "below-a-file", "long", "trace"],
)
def test_an_output_that_cannot_be_written_is_one_message(
    stored: Path, tmp_path: Path, output: str, message: str
) -> None:
    (tmp_path / "file").write_text("a file")
    trace = tmp_path / "trace.sqlite"
    trace.write_bytes(SAMPLE.read_bytes())
    done = tracekit("breakdown", "--output", output)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"tracekit: {message}")
    assert len(done.stderr.splitlines()) == 1
    assert trace.read_bytes() == SAMPLE.read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_a_full_disk_is_one_message(stored: Path) -> None:
    done = tracekit("breakdown", "--output", "/dev/full")
    assert done.exit_code == 2
    assert done.stderr == (
        "tracekit: cannot write /dev/full, No space left on device:"
        " choose another file with --output\n"
    )


def test_a_pipe_gets_whole_names_and_no_colours(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("TERM", "xterm-256color")
    done = tracekit("breakdown", "--by", "kernel")
    short = readable_names(row["name"] for row in rows_by_kernel())
    assert all(name in done.stdout for name in short.values())
    assert max(map(len, short.values())) > 30
    assert "…" not in done.stdout
    assert "\x1b" not in done.stdout
    assert "■" not in done.stdout


def rows_by_kernel() -> list[dict[str, str]]:
    rows = json.loads(tracekit("breakdown", "--by", "kernel", "--format", "json").stdout)["rows"]
    assert isinstance(rows, list)
    return rows


@pytest.mark.slow
def test_a_terminal_is_not_overrun(stored: Path) -> None:
    """Its width is asked for; that tables keep to it is seen in `test_cli_tables.py`."""
    done = on_terminal("breakdown", "--by", "kernel", columns=140)
    assert done.code == 0
    assert 80 < max(cells(line) for line in ANSI.sub("", done.stdout).splitlines()) <= 140


@pytest.mark.slow
def test_colours_are_for_terminals_and_for_who_asks(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["breakdown"]
    assert "\x1b[38;5;" in on_terminal(*words).stdout
    assert "\x1b" not in on_terminal(*words, NO_COLOR="1").stdout
    assert "\x1b" not in on_terminal(*words, TERM="dumb").stdout
    for name, value in {"FORCE_COLOR": "1", "COLORTERM": "truecolor", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    assert "\x1b[38;2;" in tracekit(*words).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in tracekit(*words).stdout


def test_parquet_is_not_written_to_a_terminal(stored: Path) -> None:
    done = on_terminal("breakdown", "--format", "parquet")
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr == (
        "tracekit: parquet is binary and standard output is a terminal:"
        " name a file with --output, or pipe it\n"
    )


@pytest.mark.slow
def test_a_stream_that_cannot_show_a_character_replaces_it(stored: Path) -> None:
    done = in_process("breakdown", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.code == 0
    assert "ddp ? time by stage" in done.stdout
