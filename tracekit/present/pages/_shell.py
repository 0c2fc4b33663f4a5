"""Frame of every page: its look, its script, and a policy under which it sends nothing.

The drawing code in it takes 4.8 MB, or 1.4 MB compressed.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from markupsafe import Markup

from tracekit.present._figures import DARK, faint
from tracekit.present.pages._fragments import environment


class PageSection(NamedTuple):
    """A part of a page, filled.

    Parameters
    ----------
    key
        Its place in the page: what comes after ``#``.
    title
        Its heading.
    question
        What it answers; may be empty.
    body
        What it says.
    """

    key: str
    title: str
    question: str
    body: Markup


def page_of(
    title: str,
    subtitle: str,
    sections: Sequence[PageSection],
    *,
    what: str = "page",
    version: str = "",
    style: str = "",
    has_contents: bool = True,
    asks: bool = False,
) -> str:
    """Return a page: one file that holds all that it needs, and under whose policy nothing leaves.

    What draws its charts and figures is part of it where there are any.

    Parameters
    ----------
    title, subtitle
        Heading of the page, and the line below it.
    sections
        Its parts in order.
    what
        What the page is called in the link that leads past its head.
    version
        Version of what wrote it.
    style
        Rules beside those of all pages.
    has_contents
        Whether the sections have headings, and are listed beside them.
    asks
        Whether the page may ask where it is from.
    """
    bodies = [section.body for section in sections]
    has_figures = any(" data-figure>" in body for body in bodies)
    names = ["page.js"]
    names += ["chart.js", "steps.js"] if any(" data-gantt>" in body for body in bodies) else []
    names += ["chart.js", "view.js"] if any(" data-view " in body for body in bodies) else []
    names += ["figures.js"] if has_figures else []
    script = "\n".join(_asset(name) for name in names)
    drawn = library() if has_figures else None
    return (
        environment()
        .get_template("page.jinja")
        .render(
            policy=_policy(
                [_digest(script), *([] if drawn is None else [drawn.digest])], asks=asks
            ),
            title=title,
            subtitle=subtitle,
            what=what,
            version=version,
            style=Markup(_asset("page.css") + style),  # noqa: S704 - our own
            script=Markup(script),  # noqa: S704 - our own
            sections=sections,
            has_contents=has_contents,
            blocks=() if drawn is None else drawn.blocks,
        )
    )


def _asset(name: str) -> str:
    return (files("tracekit.present.pages") / "assets" / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _policy(digests: Sequence[str], *, asks: bool) -> str:
    """Return a policy by which the page runs these scripts alone, and loads nothing."""
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
        + ("; connect-src 'self'" if asks else "")
    )


class Block(NamedTuple):
    """Data that the script of a page reads: no script itself."""

    key: str
    kind: str
    content: Markup


class Library(NamedTuple):
    """Drawing code of a page, and the digest by which the page's policy allows it."""

    blocks: Sequence[Block]
    digest: str


@cache
def library() -> Library:
    """Return the drawing code that a page holds once."""
    from plotly.offline import get_plotlyjs

    code = get_plotlyjs().encode()
    packed = base64.b64encode(gzip.compress(code, 9, mtime=0)).decode()
    faded = {faint(light): faint(dark) for light, dark in DARK.items() if light != "white"}
    blocks = [
        Block("library", "application/octet-stream", Markup(packed)),  # noqa: S704 - letters
        Block("dark-colours", "application/json", harmless(json.dumps(DARK | faded))),
    ]
    return Library(blocks, base64.b64encode(hashlib.sha256(code).digest()).decode())


def harmless(text: str) -> Markup:
    """Return JSON that ends no element of a page, whatever its texts are."""
    escaped = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup(escaped)  # noqa: S704 - nothing in it is taken for markup
