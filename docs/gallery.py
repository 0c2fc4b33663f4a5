"""Every figure with the command that draws it, and what it tells.

    python docs/gallery.py [NAME ...]

draws the pictures anew, or some of them; this takes the package kaleido and a Chromium. The page is
written by `docs/generate.py`.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
import tomllib
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from typer.testing import CliRunner

from tracekit.cli import app

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures" / "gallery"


class Picture(NamedTuple):
    """A figure: the drawing, the command, to which the file is added, and what it tells."""

    section: str
    name: str
    drawing: str
    command: str
    tells: str


_TAG = re.compile(r"""<(?:"[^"]*"|'[^']*'|[^"'>])*>""")
_USUAL = re.compile(
    r' (?:data-unformatted|data-math|class)="[^"]*"|'
    r"(?:(?:stroke-|fill-|(?<![-\w]))opacity: 1|vector-effect: none|stroke-width: 1px); ?"
)
_FAMILY = re.compile(r"font-family: ([^;]*); ?")
_HEAD = """# Gallery

This page shows the figures of tracekit, each with the command that draws it. Type the commands in
the folder of tracekit's source: the traces are bundled samples, some of them simulated; the numbers
in `docs/gallery/` are made up. A file `.html` is a [page](report.md#figures-and-answers-as-pages);
`.svg`, `.png` or `.pdf` is a picture, which needs a browser and `pip install 'tracekit[images]'`.
In a notebook, `run.breakdown.answer(by="kernel").figure()` shows a figure.

Not shown are the [history](compare.md#a-nightly-job) of a run's step (`tracekit compare --history
LABEL --figure FILE`), the [roofline](roofline.md), and figures of [`tracekit study
dgx1`](evidence/studies.md).
"""


def every_picture() -> list[Picture]:
    """Return the figures in order."""
    listed = tomllib.loads((ROOT / "docs/gallery/figures.toml").read_text(encoding="utf-8"))
    return [Picture(**figure) for figure in listed["figure"]]


def gallery_page() -> str:
    """Return the page."""
    parts = [_HEAD]
    for section, pictures in groupby(every_picture(), key=lambda picture: picture.section):
        parts += [f"## {section}\n", *map(_told, pictures)]
    return "\n".join(parts)


def _told(picture: Picture) -> str:
    shown = f"{picture.name}.svg"
    command = f"tracekit {picture.command} {picture.name}.html"
    return (
        f"{picture.tells}\n\n```sh\n{command}\n```\n\n"
        f"![{picture.name.replace('-', ' ')}](pictures/gallery/{shown})\n"
    )


def draw(picture: Picture, path: Path) -> None:
    """Draw a figure into a file, in the format of its ending."""
    done = CliRunner().invoke(app, [*shlex.split(picture.command), str(path)])
    if done.exit_code:
        raise SystemExit(f"{picture.name}: {done.output}")


def slim(path: Path) -> None:
    """Take out of a picture what does not show: hairs of pixels, and looks that are so anyway."""
    text = _TAG.sub(_slim_tag, path.read_text(encoding="utf-8"))
    family = _FAMILY.search(text)
    if family:
        text = _FAMILY.sub("", text).replace("<svg ", f'<svg font-family="{family[1]}" ', 1)
    path.write_text(text, encoding="utf-8")


def _slim_tag(tag: re.Match[str]) -> str:
    bare = _USUAL.sub("", tag[0])
    return re.sub(r"(\d+\.\d\d)\d+", r"\1", bare).replace(' style=""', "")


if __name__ == "__main__":
    os.chdir(ROOT)
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as store:
        os.environ["TRACEKIT_STORE"] = store
        for each in every_picture():
            if not sys.argv[1:] or each.name in sys.argv[1:]:
                draw(each, PICTURES / f"{each.name}.svg")
                slim(PICTURES / f"{each.name}.svg")
