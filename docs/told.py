"""Pages that show what commands print: the commands are run, and what they print is put in."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

from typer.testing import CliRunner

from tracekit.cli import app

_TOLD = re.compile(r"(<!-- run -->\n```sh\n)(.*?)(```\n\n```text\n)(.*?)(```\n)", re.DOTALL)
_ID = re.compile(r"(?<=  )[0-9a-f]{12}$", re.MULTILINE)
"""Of a run, which is another each time."""
_ROOT = Path(__file__).resolve().parents[1]


def told(page: Path) -> str:
    """Return a page with what its commands print, each command run after those before it.

    They run in an empty folder that holds the sample traces, with a store of its own.

    Raises
    ------
    RuntimeError
        If a command fails.
    """
    with _folder():
        return _TOLD.sub(_with_output, page.read_text(encoding="utf-8"))


def _with_output(block: re.Match[str]) -> str:
    outputs = [_run(command) for command in block[2].splitlines()]
    return f"{block[1]}{block[2]}{block[3]}{outputs[-1]}{block[5]}"


def _run(command: str) -> str:
    words = shlex.split(command)
    done = CliRunner().invoke(app, words[1:])
    if done.exit_code != 0:
        raise RuntimeError(f"{command}: {done.output}")
    text = _ID.sub("...", done.stdout)
    return "".join(f"{line}\n".removeprefix(" ") for line in text.splitlines())


@contextmanager
def _folder() -> Iterator[None]:
    store = os.environ.pop("TRACEKIT_STORE", None)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        Path("sample_traces").symlink_to(_ROOT / "sample_traces")
        try:
            yield
        finally:
            if store is not None:
                os.environ["TRACEKIT_STORE"] = store
