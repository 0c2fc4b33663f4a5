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
from told import pages_with_output

from tracekit.analysis.facts import REQUIREMENTS
from tracekit.analysis.overview._features import CAPABILITIES
from tracekit.model import DERIVED, TABLES, Column, Table

FOLDER = Path(__file__).parent

_HEAD = """# Tables

tracekit reads every trace file (*report*) into these tables. `tracekit sql` queries them,
`run.table(name)` returns them, and the store keeps them as Parquet. The tables `transfers`,
`collectives` and `path_texts` are not stored: tracekit computes them from other tables on request.

Times are nanoseconds since the start of the report's recording session, sizes are bytes, and a null
means unknown. Two times of a report differ by at most 2^53 ns, and the durations of a table's rows
add up to at most 2^56 ns, so sums fit into Int64;
[other data](evidence/inputs.md#how-data-are-treated) are not read. `docs/generate.py` writes this
page from the declarations in `tracekit/model/_tables.py`.

A range refers to its path by number. `path_texts` has it in words:

    SELECT text, count(*) AS times
    FROM ranges JOIN path_texts USING (path) GROUP BY path, text ORDER BY times DESC
"""

_NEEDS_HEAD = """# What each command needs, and how to record it

[`tracekit info RUN`](info.md) lists which of these needs a run meets. `memory events` are recorded
allocations; `memory` is these, or samples of nvidia-smi; `profiler` is the overhead that the
profiler records of itself.
"""


def pages() -> dict[str, str]:
    """Return the pages by their names."""
    return {
        "tables.md": _tables_page(),
        "needs.md": _needs_page(),
        "commands.md": commands_page(),
        "api.md": api_page(),
        "gallery.md": gallery_page(),
        "notebook.md": notebook_page(),
        **pages_with_output(),
        "architecture.svg": architecture.picture(),
        **{f"../schemas/json/{name}": text for name, text in schema_files().items()},
    }


def _needs_page() -> str:
    says = [[each.command, each.feature, ", ".join(each.requirements)] for each in CAPABILITIES]
    return "\n".join(
        (
            _NEEDS_HEAD,
            "## What each command needs\n",
            _markdown(["command", "finds", "needs"], says),
            "## How that is recorded\n",
            "A recorder that is not listed for a need does not record it.\n",
            _markdown(["needs", "recorder", "how"], _ways()),
        )
    )


def _ways() -> list[list[str]]:
    """Return needs that are recorded alike, the recorders that do it in one way, and that way."""
    needs: dict[tuple[str, str], list[str]] = {}
    for name in dict.fromkeys(name for each in CAPABILITIES for name in each.requirements):
        by_way: dict[str, list[str]] = {}
        for recorder, way in REQUIREMENTS[name].record.items():
            by_way.setdefault(way, []).append(recorder or "any")
        for way, recorders in by_way.items():
            needs.setdefault((", ".join(recorders), way), []).append(name)
    return [[", ".join(names), recorders, way] for (recorders, way), names in needs.items()]


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


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
