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

_SHOWN = re.compile(
    r"(<!-- run(?:, first (\d+) lines)? -->\n```sh\n)(.*?)(```\n\n```text\n)(.*?)(```\n)", re.DOTALL
)
_ID = re.compile(r"(?<=  )[0-9a-f]{12}$", re.MULTILINE)
"""Of a run, which is another each time."""
_DOCS = Path(__file__).resolve().parent


def pages_with_output() -> dict[str, str]:
    """Return, by name, the pages of `docs/` that show what commands print.

    Each command is run after those before it, in an empty folder that holds the sample traces, with
    a store for each page. Of the output of the last command in a block a page shows all, or the
    first lines that `<!-- run, first 12 lines -->` asks for.

    Raises
    ------
    RuntimeError
        If a command fails, or prints nothing.
    """
    texts = {page.name: page.read_text("utf-8") for page in sorted(_DOCS.glob("*.md"))}
    return {name: _told(text) for name, text in texts.items() if _SHOWN.search(text)}


def _told(page: str) -> str:
    with _folder():
        return _SHOWN.sub(_with_output, page)


def _with_output(block: re.Match[str]) -> str:
    output = [_run(command) for command in block[3].splitlines()][-1]
    shown = output.splitlines(keepends=True)[: int(block[2]) if block[2] else None]
    return f"{block[1]}{block[3]}{block[4]}{''.join(shown).rstrip()}\n{block[6]}"


def _run(command: str) -> str:
    words = shlex.split(command)
    done = CliRunner().invoke(app, words[1:])
    # A command that finds something wrong ends with 1 and prints it.
    if done.exit_code not in (0, 1) or not done.stdout:
        raise RuntimeError(f"{command}: {done.output}")
    text = _ID.sub("...", done.stdout)
    return "".join(f"{line}\n".removeprefix(" ") for line in text.splitlines())


@contextmanager
def _folder() -> Iterator[None]:
    store = os.environ.pop("TRACEKIT_STORE", None)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        Path("sample_traces").symlink_to(_DOCS.parent / "sample_traces")
        try:
            yield
        finally:
            if store is not None:
                os.environ["TRACEKIT_STORE"] = store
