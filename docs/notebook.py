"""The notebook: its cells run from top to bottom, what they show kept with them, and as a page.

    python docs/notebook.py

runs it and writes it anew; this takes the package kaleido and a Chromium, for its figures.
"""

from __future__ import annotations

import ast
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any
from unittest.mock import patch

import plotly.graph_objects as go
import polars as pl
from gallery import slim

from tracekit.present import save_figure
from tracekit.present._data_formats import _CELL as CELL

SVG = "image/svg+xml"
PICTURES = Path(__file__).parent / "pictures" / "notebook"
NOTEBOOK = Path(__file__).parent / "notebooks" / "first_look.ipynb"

Show = Callable[[Any], Mapping[str, Any]]
Cell = dict[str, Any]


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell as a notebook does, and return the value of its last expression, or None."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), names)  # noqa: S102 - our own notebook
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)  # noqa: S307


def cells() -> list[Cell]:
    """Return the cells of the notebook."""
    found: list[Cell] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return found


def with_outputs(written: Sequence[Cell], show: Show) -> list[Cell]:
    """Run cells in order, in the folder of the notebook, and return them with what they show."""
    names: dict[str, Any] = {"__name__": "__main__"}
    done = []
    with (
        tempfile.TemporaryDirectory() as folder,  # where a cell makes a store
        patch.object(tempfile, "tempdir", folder),
        chdir(NOTEBOOK.parent),
    ):
        for number, cell in enumerate(written, 1):
            if cell["cell_type"] != "code":
                done.append(cell)
                continue
            value = run_cell("".join(cell["source"]), names)
            outputs = [] if value is None else [_output(number, show(value))]
            done.append({**cell, "execution_count": number, "outputs": outputs})
    return done


def _output(number: int, data: Mapping[str, Any]) -> Cell:
    return {
        "output_type": "execute_result", "execution_count": number, "metadata": {},
        "data": dict(data),
    }  # fmt: skip


def shown(value: Any) -> Mapping[str, Any]:
    """Return what a notebook keeps of a value: a figure as a picture, a table as HTML, or text."""
    if isinstance(value, go.Figure):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "figure.svg"
            save_figure(value, path)
            slim(path)
            return {SVG: path.read_text(encoding="utf-8")}
    html = None if isinstance(value, pl.DataFrame) else getattr(value, "_repr_html_", None)
    return {"text/html": html()} if html else {"text/plain": repr(value)}


def notebook_page() -> str:
    """Return the notebook as a page of the site."""
    return "\n".join(_as_markdown(cell) for cell in cells())


def _as_markdown(cell: Cell) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] != "code":
        return f"{source}\n"
    pieces = [f"```python\n{source}\n```\n"]
    for output in cell["outputs"]:
        pieces += [_SHOWN[kind](text, cell["id"]) for kind, text in output["data"].items()]
    return "\n".join(pieces)


_SHOWN: Mapping[str, Callable[[str, str], str]] = {
    SVG: lambda _, name: f"![What the cell above draws](pictures/notebook/{name}.svg)\n",
    "text/html": lambda text, _: f"<div>{_cells_of_the_site(text)}</div>\n",
    "text/plain": lambda text, _: f"```text\n{text}\n```\n",
}


def _cells_of_the_site(table: str) -> str:
    """Leave padding of table cells to the site's own style."""
    right = table.replace(f' style="{CELL}right"', ' align="right"')
    return right.replace(f' style="{CELL}left"', "")


def pictures() -> dict[str, str]:
    """Return the figures of the notebook by the names of their cells."""
    return {
        cell["id"]: output["data"][SVG]
        for cell in cells()
        for output in cell.get("outputs", ())
        if SVG in output["data"]
    }


if __name__ == "__main__":
    document = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    document["cells"] = with_outputs(document["cells"], shown)
    NOTEBOOK.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PICTURES.mkdir(exist_ok=True)
    for name, picture in pictures().items():
        (PICTURES / f"{name}.svg").write_text(picture, encoding="utf-8")
