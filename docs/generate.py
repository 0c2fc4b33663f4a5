"""Write what only repeats the code: tables, commands and what they write, who imports whom.

    python docs/generate.py

A test compares the committed pages with what this would write.
"""

from __future__ import annotations

from pathlib import Path

import architecture
from api_page import api_page
from commands_page import commands_page
from gallery import gallery_page
from json_schemas import schema_files
from notebook import notebook_page
from told import told

from tracekit.analysis import capabilities
from tracekit.model import DERIVED, TABLES, Column, Table

FOLDER = Path(__file__).parent

_HEAD = """# Tables

Every input becomes these tables; they are what `tracekit sql` queries, what `run.table(name)`
returns, and what a store keeps as Parquet (`transfers`, `collectives` and `path_texts` excepted,
which are worked out of the others when they are asked for). Times are nanoseconds since the start
of the report's recording session, sizes are bytes, and a null means unknown. Two times of a report
differ by at most 2^53 ns, and the rows of a table last at most 2^56 ns together
([inputs.md](inputs.md)): their sums fit into Int64. This page is written by `docs/generate.py`
from the declarations in `tracekit/model/_tables.py`.

A range refers to its path by number. `path_texts` says it in words:

    SELECT text, count(*) AS times
    FROM ranges JOIN path_texts USING (path) GROUP BY path, text ORDER BY times DESC
"""


_INFO_HEAD = """# What a run can be asked

`tracekit info RUN` says what a run was recognised as, which version of which product wrote it, and
what each command can say of it: `yes`; `partly`, where some of what that takes is missing; `none`,
where it was recorded and nothing such ran; or `no`, with how it is recorded by what recorded the
rest of the run. Below that it lists the kinds of data that the reports hold. Environment variables
are neither stored nor printed.

Every format is asked for the same, and each recorder records it in its own way. This page is
written by `docs/generate.py` from the declarations in `tracekit/analysis/`.

"""


def pages() -> dict[str, str]:
    """Return the pages by their names."""
    return {
        "tables.md": _tables_page(),
        "commands.md": commands_page(),
        "api.md": api_page(),
        "gallery.md": gallery_page(),
        "notebook.md": notebook_page(),
        "tutorial.md": told(FOLDER / "tutorial.md"),
        "info.md": _info_page(),
        "architecture.svg": architecture.picture(),
        **{f"../schemas/json/{name}": text for name, text in schema_files().items()},
    }


def _info_page() -> str:
    table = capabilities().rename({"feature": "says"})
    rows = [table.columns, ["---"] * table.width, *table.iter_rows()]
    return _INFO_HEAD + "".join(f"| {' | '.join(map(_cell, row))} |\n" for row in rows)


def _cell(text: str) -> str:
    # What stands in angle brackets or between bars is no HTML and no column.
    return text.replace("|", "\\|").replace("<", "&lt;")


def _tables_page() -> str:
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
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
