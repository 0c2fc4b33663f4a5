"""A figure as a page of its own: it holds all that it needs, follows the theme, and is small.

The library that draws takes 4.8 MB. It is held compressed, and unpacked by the browser. What a
trace says is data that the page parses, and never part of a script or of markup.
"""

from __future__ import annotations

import base64
import gzip
import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import plotly.graph_objects as go

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ margin: 0; background: white; overflow-x: auto }}
@media (prefers-color-scheme: dark) {{ body {{ background: {dark} }} }}
@media print {{ body {{ background: white }} }}
#figure {{ margin: 0 auto; width: fit-content }}
</style>
</head>
<body>
<div id="figure">This page needs JavaScript.</div>
<script type="application/octet-stream" id="library">{library}</script>
<script type="application/json" id="content">{content}</script>
<script>
const text = document.getElementById("content").textContent;
const colours = {colours};
const isDark = matchMedia("(prefers-color-scheme: dark)");
const printing = matchMedia("print");
function draw() {{
  let themed = text;
  if (isDark.matches && !printing.matches)
    for (const [light, dark] of Object.entries(colours))
      themed = themed.replaceAll(`"${{light}}"`, `"${{dark}}"`);
  const {{ data, layout }} = JSON.parse(themed);
  Plotly.react("figure", data, layout, {config});
}}
const packed = document.getElementById("library").textContent;
const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
new Response(stream).text().then((code) => {{
  const script = document.createElement("script");
  script.textContent = code;
  document.head.append(script);
  document.getElementById("figure").textContent = "";
  draw();
  isDark.addEventListener("change", draw);
  printing.addEventListener("change", draw);
}});
</script>
</body>
</html>
"""


def figure_page(figure: go.Figure, colours: Mapping[str, str], config: str) -> str:
    """Return the page of a figure.

    Parameters
    ----------
    figure
        The figure.
    colours
        Of each colour of a light page that of a dark one.
    config
        What plotly is configured with, as JSON.
    """
    import json

    title = re.sub("<[^>]*>", "", figure.layout.title.text or "tracekit")
    return _PAGE.format(
        title=title,
        dark=colours["white"],
        library=_library(),
        content=_harmless(figure.to_json()),
        colours=json.dumps(dict(colours)),
        config=config,
    )


def _harmless(text: str) -> str:
    """Return JSON that ends no element of a page, whatever its texts are."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _library() -> str:
    """Return the code that draws, compressed, in letters that a page may hold."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode()
