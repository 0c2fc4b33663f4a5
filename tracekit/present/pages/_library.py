"""Drawing code inside pages: 4.8 MB, or 1.4 MB compressed."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from markupsafe import Markup

from tracekit.present._figures import DARK, faint


@dataclass(frozen=True)
class Block:
    """Data that the script of a page reads: no script itself."""

    key: str
    kind: str
    content: Markup


@dataclass(frozen=True)
class Library:
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
