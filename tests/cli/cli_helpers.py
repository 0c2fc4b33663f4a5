"""Running the command line: in this process, in one of its own, and on a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from tracekit.cli import app

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_traces"
SAMPLE = SAMPLES / "ddp_4gpu.sqlite"
OTHER = SAMPLES / "ddp_4gpu_no_backward_range.sqlite"
PIPELINE = SAMPLES / "recorded" / "pipeline_1f1b.sqlite"
TIMES = Path(__file__).with_name("times.csv")
MEMORY = Path(__file__).with_name("memory.csv")
TOPOLOGY = Path(__file__).with_name("topo_2gpu.txt")
INSPECTOR = SAMPLES / "nccl_inspector"
TIMELINE = Path(__file__).with_name("job_timeline.json")
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Done:
    """What a command in a process of its own left behind."""

    code: int
    stdout: str
    stderr: str


def tracekit(*arguments: str | Path) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def document(*words: str | Path, code: int = 0) -> dict[str, Any]:
    """Return what a command writes as JSON."""
    done = tracekit(*words, "--format", "json")
    assert done.exit_code == code, done.stderr
    content = json.loads(done.stdout)
    assert isinstance(content, dict)
    return content


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "tracekit", *map(str, arguments)]


def environment(**changes: str | None) -> dict[str, str]:
    """Return the environment for a process that imports this working copy."""
    known = {**os.environ, "PYTHONPATH": str(ROOT), **changes}
    return {key: value for key, value in known.items() if value is not None}


def in_process(*arguments: str | Path, user: str | None = None, **changes: str | None) -> Done:
    """Run the command line in a process of its own, without a terminal."""
    done = subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        env=environment(**changes),
        check=False,
        user=user,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def on_terminal(
    *arguments: str | Path, stream: str = "stdout", columns: int = 80, **changes: str | None
) -> Done:
    """Run the command line with one of its streams on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    changes = {"TERM": "xterm-256color", "COLUMNS": None, "LINES": None} | changes
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | {stream: theirs}
    with subprocess.Popen(
        command(*arguments), stdin=subprocess.DEVNULL, env=environment(**changes), **streams
    ) as process:
        os.close(theirs)
        shown = _read_all(ours).decode().replace("\r\n", "\n")
        piped = process.stderr or process.stdout
        assert piped is not None
        other = piped.read().decode()
    os.close(ours)
    texts = (shown, other) if stream == "stdout" else (other, shown)
    return Done(process.returncode, *texts)


def _read_all(terminal: int) -> bytes:
    pieces = []
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux's way of saying that the other side has closed
            piece = b""
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
