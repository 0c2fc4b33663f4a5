"""The picture of the architecture: rooms of the package and who imports whom, from the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx

PACKAGE = Path(__file__).resolve().parents[1] / "tracekit"
EVERYWHERE = "support"
"""The room that all others may use, which no arrow leads to."""
FRONT = "tracekit"
"""What stands for the modules beside the rooms that import rooms: the door for Python."""

WIDTH, LAYER, BOX, HEIGHT = 720, 84, 120, 36

_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" \
aria-labelledby="title">
  <title id="title">{title}</title>
  <style>
    text {{ font: 14px system-ui, sans-serif; fill: #ffffff; text-anchor: middle; }}
    rect {{ fill: #0060a0; }}
    path {{ stroke: #6e7781; stroke-width: 1.5; fill: none; marker-end: url(#head); }}
    .head {{ fill: #6e7781; stroke: none; }}
  </style>
  <marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" \
orient="auto"><path class="head" d="M0 0L8 4L0 8Z" style="marker-end: none"/></marker>
"""


@cache
def imports(package: Path = PACKAGE) -> nx.DiGraph:
    """Return who imports whom: the rooms, and the modules beside them that import rooms."""
    used = {
        file: set(_imported(file))
        for file in package.rglob("*.py")
        if file.name != "__main__.py"  # which only starts the command line
    }
    rooms = {file.parent.name for file in package.glob("*/__init__.py")} - {EVERYWHERE}
    front = {file.stem for file in used if file.parent == package and used[file] & rooms}
    homes = {room: room for room in rooms} | dict.fromkeys((*front, FRONT), FRONT)
    known = nx.DiGraph()
    for file, names in used.items():
        home = homes.get(file.relative_to(package).parts[0].removesuffix(".py"))
        targets = {homes[name] for name in names & homes.keys()} - {home}
        known.add_edges_from((home, target) for target in targets if home)
    return known


def _imported(file: Path) -> Iterator[str]:
    """Yield the first name below the package of all that a module imports of it, anywhere in it."""
    for node in statements(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            first, *rest = node.module.split(".")
            if first == PACKAGE.name:
                yield from rest[:1] or (alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            parts = [alias.name.split(".") for alias in node.names]
            yield from ((*part, FRONT)[1] for part in parts if part[0] == PACKAGE.name)


def statements(tree: ast.AST) -> list[ast.AST]:
    """Return a module and all statements in it: a tenth of what `ast.walk` goes through."""
    found = [tree]
    for node in found:
        for part in ("body", "handlers", "orelse", "finalbody", "cases"):
            below = getattr(node, part, None)
            found += below if isinstance(below, list) else []
    return found


def picture(package: Path = PACKAGE) -> str:
    """Return the picture as SVG: each room above all that it imports.

    An arrow that others imply, by way of a room between, is left out.
    """
    known = nx.transitive_reduction(imports(package))
    layers = _layers(known)
    places = _places(layers)
    arrows = [_arrow(places[one], places[other]) for one, other in sorted(known.edges)]
    boxes = [_box(name, *place) for name, place in places.items()]
    title = "The rooms of tracekit, each above those that it imports"
    head = _HEAD.format(width=WIDTH, height=LAYER * len(layers), title=title)
    return head + "\n".join([*arrows, *boxes, "</svg>\n"])


def _layers(known: nx.DiGraph) -> list[list[str]]:
    """Sort rooms into layers, each room below all that import it, and beneath them where it can."""
    at: dict[str, float] = {}

    def under(room: str) -> tuple[float, str]:
        above = [at[one] for one in known.predecessors(room)]
        return sum(above) / max(1, len(above)), room

    layers: list[list[str]] = []
    for layer in nx.topological_generations(known):
        layers.append(sorted(layer, key=under))
        at |= {room: (place + 0.5) / len(layer) for place, room in enumerate(layers[-1])}
    return layers


def _places(layers: list[list[str]]) -> dict[str, tuple[float, float]]:
    """Return the middle of each room's box."""
    return {
        room: ((place + 0.5) * WIDTH / len(layer), (level + 0.5) * LAYER)
        for level, layer in enumerate(layers)
        for place, room in enumerate(layer)
    }


def _box(name: str, x: float, y: float) -> str:
    corner = f'x="{x - BOX / 2:.0f}" y="{y - HEIGHT / 2:.0f}"'
    shape = f'<rect {corner} width="{BOX}" height="{HEIGHT}" rx="4"/>'
    return f'  {shape}<text x="{x:.0f}" y="{y + 5:.0f}">{name}</text>'


def _arrow(one: tuple[float, float], other: tuple[float, float]) -> str:
    (x, y), (to_x, to_y) = one, other
    top, bottom = y + HEIGHT / 2, to_y - HEIGHT / 2
    middle = (top + bottom) / 2
    bend = f"C{x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f} {to_x:.0f} {bottom:.0f}"
    return f'  <path d="M{x:.0f} {top:.0f}{bend}"/>'
