"""Write the reference page of the canonical tables from their declarations.

    python docs/generate.py

A test compares the committed page with what this would write.
"""

from __future__ import annotations

from pathlib import Path

from tracekit.model import DERIVED, TABLES, Column, Table

PAGE = Path(__file__).with_name("tables.md")

_HEAD = """# Tables

Every input becomes these tables; they are what `tracekit sql` queries, what `run.table(name)`
returns, and what a store keeps as Parquet (`transfers` and `collectives` excepted, which are worked
out of the others when they are asked for). Times are nanoseconds since the start of the report's
recording session, sizes are bytes, and a null means unknown. This page is written by
`docs/generate.py` from the declarations in `tracekit/model/_tables.py`.
"""


def page() -> str:
    """Return the page as Markdown."""
    tables = (*TABLES.values(), *DERIVED.values())
    return "\n".join([_HEAD, *(_section(table) for table in tables)])


def _section(table: Table) -> str:
    head = "| column | type | unit | null | meaning |\n| --- | --- | --- | --- | --- |"
    rows = "\n".join(_row(column) for column in table.columns)
    return f"## {table.name}\n\n{table.meaning}\n\n{head}\n{rows}\n"


def _row(column: Column) -> str:
    cells = (
        f"`{column.name}`",
        str(column.dtype).split("(")[0],
        column.unit or "",
        "yes" if column.nullable else "",
        column.meaning,
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
