"""Tables as they are read: of every listing command, at three widths and in a pipe.

`pytest tests/cli/test_cli_tables.py --snapshots` writes the snapshots anew; read what changed.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli_helpers import MEMORY, SAMPLES, TIMES, TOPOLOGY, tracekit

import tracekit as tk
from tracekit.cli import _output
from tracekit.support.wording import cells

if TYPE_CHECKING:
    from tracekit.model import Answer

SNAPSHOTS = Path(__file__).parents[1] / "snapshots"
WIDTHS = (80, 100, 120, None)
PIPED = 200
PLACES = {"store": "STORE", "table": "TABLE"}
"""What stands for paths of this machine, whose lengths would break lines elsewhere."""
VOLATILE = re.compile(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ?")
RUN_ID = re.compile(r"\b(?=[0-9a-f]*[0-9])[0-9a-f]{12}\b")

RUNS = {
    "ddp": (
        "ddp_4gpu.sqlite",
        {"network": "toy", "night": "1", "method": "nccl", "gpus": "4", "batch": "16"},
    ),
    "quiet": ("ddp_4gpu_no_backward_range.sqlite", {"network": "toy", "night": "2"}),
    "star": ("p2p_4gpu_star.sqlite", {"network": "toy", "method": "p2p", "gpus": "4"}),
    "late": ("simulated/exposed_nccl.sqlite", {"network": "sim", "method": "nccl", "batch": "32"}),
    "fed": ("simulated/input_bound.sqlite", {"network": "sim", "gpus": "1", "batch": "32"}),
    "pipe": ("recorded/pipeline_1f1b.sqlite", {}),
}
SIZED = "--bytes all_reduce=25MB"
TABLES = {
    "breakdown": [
        "breakdown ddp",
        "breakdown ddp --by kernel",
        "breakdown ddp --by range --inclusive --depth 1",
        "breakdown ddp --by stage,device --top 6",
        "breakdown ddp --by iteration",
        "breakdown ddp --by stage --per-iteration",
        "breakdown star --by kind",
    ],
    "diagnose": ["diagnose late", "diagnose fed --all"],
    "idle": ["idle fed", "idle ddp --longest 3"],
    "stragglers": ["stragglers late"],
    "critical-path": ["critical-path ddp", "critical-path ddp --by kernel --top 8"],
    "whatif": [f"whatif late --overlap --no-sync {SIZED}"],
    "compare": [
        "compare ddp quiet",
        "compare ddp quiet --by kernel --top 8",
        "compare ddp quiet --by step",
        "compare --history night ddp quiet",
    ],
    "links": [f"links ddp {SIZED}", "links star", "links star --by pair"],
    "collectives": [f"collectives ddp {SIZED}", "collectives late --by collective,rank"],
    "latency": [f"latency ddp {SIZED}", "latency star --what histogram"],
    "memory": [
        *(f"memory --table {MEMORY} --what {what}" for what in ("use", "extra", "growth")),
        f"memory --table {MEMORY} --what largest-batch --capacity 16GB",
    ],
    "study": ["study ddp late fed", f"study --table {TIMES}"],
    "scaling": [f"scaling --table {TIMES}"],
    "overhead": [f"overhead --table {TIMES}", "overhead ddp --api --top 8"],
    "project": [
        *(f"project --jobs worked --what {what}" for what in ("components", "hardware")),
        "project --jobs shares --what means",
    ],
    "waits": ["stalls ddp fed", "bubbles pipe"],
    "topology": [
        *(f"topology show dgx1v --what {what}" for what in ("matrix", "links", "routes")),
        "topology list",
        f"topology check {TOPOLOGY}",
    ],
    "info": ["info fed --top 12"],
    "runs": ["runs", "runs check"],
    "sql": ["sql ddp 'SELECT kind, count(*) AS ops FROM ops GROUP BY kind ORDER BY kind'"],
}
"""What is read, by the file that it is kept in."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables") / "store"
    for name, (file, labels) in RUNS.items():
        tk.ingest(SAMPLES / file, name=name, labels=labels, store=folder)
    return folder


def _read(words: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what a command shows on terminals of each width; it is asked once."""
    answers: list[tuple[_output.Target, Answer]] = []

    def keep(target: _output.Target, answer: Answer) -> None:
        placed = {name: PLACES[name] for name in PLACES.keys() & answer.meta.keys()}
        answers.append((target, replace(answer, meta={**answer.meta, **placed})))

    monkeypatch.setattr(_output.Target, "write", keep)
    done = tracekit(*shlex.split(words))
    assert done.exit_code in (0, 1), done.output
    shown = []
    for width in WIDTHS:
        monkeypatch.setattr(_output, "_terminal", lambda width=width: (width, None))
        text = "\n".join(str(target._render(answer)) for target, answer in answers)
        lines = [line.rstrip() for line in text.splitlines()]
        assert max(map(cells, lines)) <= (width or PIPED), words
        shown += [f"--- {f'{width} columns' if width else 'piped'}", *lines]
    return _placeless("\n".join([f"$ tracekit {words}", *shown, ""]))


def _placeless(text: str) -> str:
    """Return a text without what is of this machine and this minute."""
    text = RUN_ID.sub("0123456789ab", VOLATILE.sub("2026-01-02 03:04:05", text))
    return text.replace(f"{TIMES.parent}{os.sep}", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_tables_are_as_they_were_read(
    runs: Path, name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("TRACEKIT_STORE", str(runs))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    file = SNAPSHOTS / f"{name}.txt"
    with monkeypatch.context() as patched:
        text = "\n".join(_read(words, patched) for words in TABLES[name])
    if request.config.getoption("snapshots"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def test_every_snapshot_is_read() -> None:
    assert {file.stem for file in SNAPSHOTS.iterdir()} == set(TABLES)
