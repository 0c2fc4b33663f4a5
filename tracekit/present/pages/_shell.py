"""Frame of every page: style, script, and a security policy that forbids sending data.

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

from tracekit.present._figures import DARK, DARK_SCALES, faint
from tracekit.present._palette import CAUSE_COLOURS, DARK_COLOURS, PATH_COLOURS, ink_on
from tracekit.present.pages._fragments import environment


class PageSection(NamedTuple):
    """A section of a page, with its content."""

    key: str
    """Id of the section: the part of the address after ``#``."""
    title: str
    """Its heading."""
    question: str
    """Question that the section answers; may be empty."""
    body: Markup
    """Content of the section."""


def page_of(
    title: str,
    subtitle: str,
    sections: Sequence[PageSection],
    *,
    what: str = "page",
    version: str = "",
    has_contents: bool = True,
    asks: bool = False,
) -> str:
    """Return an HTML page: one self-contained file, under a policy that forbids sending data.

    The code that draws charts and figures is included if the page has any.

    Parameters
    ----------
    title, subtitle
        Heading of the page, and the line below it.
    sections
        Sections in order.
    what
        Word for the page in the link that skips its header.
    version
        Version of tracekit.
    has_contents
        Whether the sections have headings and a table of contents.
    asks
        Whether the page may send requests to the server that it came from.
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
            style=Markup(_colours() + _asset("page.css")),  # noqa: S704 - our own
            script=Markup(script),  # noqa: S704 - our own
            sections=sections,
            has_contents=has_contents,
            blocks=() if drawn is None else drawn.blocks,
        )
    )


def _colours() -> str:
    """Return the CSS properties of idle causes and parts of paths: colour, and text on it.

    What has such a name as its class has that colour.
    """
    parts = {part: PATH_COLOURS[part] for part in ("comm", "host", "latency")}
    named = {**CAUSE_COLOURS, **parts}
    light, dark = (
        "".join(f"--{name}:{colour};--on-{name}:{ink_on(colour)};" for name, colour in each.items())
        for each in (named, {n: DARK_COLOURS[c] for n, c in named.items() if c in DARK_COLOURS})
    )
    by_theme = {
        "@media screen": "[data-theme=dark]",  # paper is light
        "@media screen and (prefers-color-scheme:dark)": ":not([data-theme=light])",
    }
    darker = (f"{media}{{:root{which}{{{dark}}}}}" for media, which in by_theme.items())
    classes = (
        f".{each},.piece.{each} b{{color:var(--on-{each});background-color:var(--{each})}}"
        for each in named
    )
    return "\n".join([f":root{{{light}}}", *darker, *classes, ""])


def _asset(name: str) -> str:
    return (files("tracekit.present.pages") / "assets" / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _policy(digests: Sequence[str], *, asks: bool) -> str:
    """Return a content security policy: only scripts with these digests run, and nothing is loaded.

    With `asks`, the page may send requests to its own server.
    """
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
        + ("; connect-src 'self'" if asks else "")
    )


class Block(NamedTuple):
    """Data for the script of a page, embedded as inert JSON."""

    key: str
    kind: str
    content: Markup


class Library(NamedTuple):
    """Drawing code of a page, and its digest for the content security policy."""

    blocks: Sequence[Block]
    digest: str


@cache
def library() -> Library:
    """Return the drawing code, which a page includes once."""
    from plotly.offline import get_plotlyjs

    code = get_plotlyjs().encode()
    packed = base64.b64encode(gzip.compress(code, 9, mtime=0)).decode()
    faded = {faint(light): faint(dark) for light, dark in DARK.items() if light != "white"}
    blocks = [
        Block("library", "application/octet-stream", Markup(packed)),  # noqa: S704 - letters
        Block("dark-colours", "application/json", harmless(json.dumps(DARK | faded | DARK_SCALES))),
    ]
    return Library(blocks, base64.b64encode(hashlib.sha256(code).digest()).decode())


def harmless(text: str) -> Markup:
    """Return JSON escaped so that no text in it can end an HTML element."""
    escaped = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup(escaped)  # noqa: S704 - nothing in it is taken for markup
