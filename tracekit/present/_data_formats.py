"""Answers in other formats: JSON, CSV, Parquet, Markdown, HTML, SARIF and JUnit."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import date, time
from decimal import Decimal
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import polars as pl
import polars.selectors as cs

from tracekit.model import Answer
from tracekit.present._columns import ShownColumn, shown, shown_with_totals, time_unit, with_parts
from tracekit.present._notes import headed, notes
from tracekit.present._palette import colour_of
from tracekit.support.wording import count, printable

if TYPE_CHECKING:
    import plotly.graph_objects as go

# Everything that Markdown or HTML inside it could take for markup; an underscore only where it is
# not within a word.
_MARKDOWN = re.compile(r"[\\`*\[\]<>|~&$#]|(?<![^\W_])_|_(?![^\W_])")
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"measured": "warning", "likely": "warning", "hint": "note", "perhaps": "note"}
_NUMBERS = (
    "win_ns", "win_low_ns", "win_high_ns", "share", "base_win_ns", "base_share", "confidence",
    "evidence", "win_unknown",
)  # fmt: skip
_BASELINE = {
    "new": "new", "grown": "updated", "shrunk": "updated", "unchanged": "unchanged",
    "uncovered": "unchanged",
    "gone": "absent",
}  # fmt: skip
_KINDS = {"pass": "pass", "fail": "fail", "undecided": "open"}
_WORSE = ("new", "grown")


def to_json(
    command: str,
    run: str | None,
    meta: Mapping[str, Any],
    rows: pl.DataFrame,
    parts: Mapping[str, Answer] | None = None,
    tables: Mapping[str, pl.DataFrame] | None = None,
) -> str:
    """Return `{"command", "run", "meta", "rows"}` as JSON text, one line per row.

    Answers with parts get a member ``parts``: name -> ``title``, ``meta`` and ``rows`` of the part.
    Answers with tables get ``tables``: name -> rows.

    Times of day are ISO 8601 texts, durations ns, binary values hexadecimal texts; a number that is
    not finite is null. The text is ASCII.
    """
    head = {"command": command, "run": run, "meta": meta}
    members = [f'  "{key}": {_dumps(value)}' for key, value in head.items()]
    members.append(f'  "rows": {_json_rows(rows, "  ")}')
    if parts:
        blocks = [
            f'    {_dumps(name)}: {{"title": {_dumps(part.title)}, "meta": {_dumps(part.meta)}, '
            f'"rows": {_json_rows(part.rows, "    ")}}}'
            for name, part in parts.items()
        ]
        members.append('  "parts": {\n' + ",\n".join(blocks) + "\n  }")
    if tables:
        blocks = [f"    {_dumps(name)}: {_json_rows(t, '    ')}" for name, t in tables.items()]
        members.append('  "tables": {\n' + ",\n".join(blocks) + "\n  }")
    return "{\n" + ",\n".join(members) + "\n}\n"


def _json_rows(rows: pl.DataFrame, margin: str) -> str:
    lines = (f"{margin}  {_dumps(row)}" for row in _portable(rows).iter_rows(named=True))
    block = ",\n".join(lines)
    return f"[\n{block}\n{margin}]" if block else "[]"


def to_csv(rows: pl.DataFrame) -> str:
    """Return comma-separated values with a header; lists and structs are JSON texts in a cell."""
    rows = _portable(rows)
    return rows.with_columns(
        pl.Series(s.name, [None if v is None else _cell(v) for v in s.to_list()], pl.String)
        for s in rows.get_columns()
        if s.dtype.is_nested() or s.dtype == pl.Binary
    ).write_csv()


def to_parquet(rows: pl.DataFrame) -> bytes:
    """Return the content of a Parquet file, with the types of the frame."""
    buffer = BytesIO()
    rows.write_parquet(buffer)
    return buffer.getvalue()


def to_markdown(
    rows: pl.DataFrame, meta: Mapping[str, Any], title: str = "", *, is_whole: bool = True
) -> str:
    """Return a Markdown table as displayed to readers, with a title above and notes below.

    If no rows were left out (`is_whole`), totals follow as last rows.
    """
    rows = with_parts(rows, meta)
    columns = shown_with_totals(rows, meta, is_whole=is_whole)
    above = headed(printable(title), meta, time_unit(rows))
    lines = [part for line in above for part in (f"**{_escaped(line)}**", "")]
    if columns:
        lines.append(_line(_escaped(column.header) for column in columns))
        lines.append(_line("---:" if column.numeric else "---" for column in columns))
        texts = zip(*(column.texts for column in columns), strict=True)
        lines += [_line(map(_indented, row)) for row in texts]
    lines += [part for note in notes(meta) for part in ("", _escaped(note))]
    return "\n".join(lines) + "\n"


def _indented(text: str) -> str:
    # Markdown drops spaces at the beginning of a cell.
    inner = text.lstrip(" ")
    return "&nbsp;" * (len(text) - len(inner)) + _escaped(inner)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return _MARKDOWN.sub(r"\\\g<0>", text)


def _cell(value: object) -> str:
    plain = _plain(value)
    return plain if isinstance(plain, str) else _dumps(plain)


def _dumps(value: object) -> str:
    return json.dumps(_plain(value), allow_nan=False)


def _portable(rows: pl.DataFrame) -> pl.DataFrame:
    """Return `rows` with durations as integers of ns, as Python's timedelta resolves only us."""
    return rows.with_columns(cs.duration().dt.total_nanoseconds())


def _plain(value: object) -> object:
    """Return `value` converted to types that JSON has."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float | Decimal):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, date | time):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)


def to_sarif(answer: Answer, version: str) -> str:
    """Return findings as SARIF 2.1.0: a result for each, with its measures as properties.

    Parameters
    ----------
    answer
        Answer of `diagnose` or `gate` with the table ``findings``; `Answer.source` has the names of
        the rules that were checked. The ``state`` of a row (such as new) becomes SARIF's
        ``baselineState``; the ``outcome`` of a check of `gate` becomes its ``kind``.
    version
        Version of tracekit.
    """
    driver = {
        "name": "tracekit",
        "version": version,
        "rules": [{"id": rule, "name": rule} for rule in answer.source],
    }
    order = {rule: place for place, rule in enumerate(answer.source)}
    results = [
        _result(row, order[row["rule"]], answer.run)
        for row in answer.tables["findings"].iter_rows(named=True)
    ]
    run = {"tool": {"driver": driver}, "results": results}
    content = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def _result(row: Mapping[str, Any], place: int, run: str | None) -> dict[str, Any]:
    """Return a finding or check as SARIF result; only a failure has a level."""
    kind = "fail" if row.get("confidence") else _KINDS[row["outcome"]]
    level = _LEVELS.get(row.get("confidence") or "", "error") if kind == "fail" else "none"
    values = {name: row[name] for name in _NUMBERS if name in row}
    state = row.get("state")
    return {
        "ruleId": row["rule"],
        "ruleIndex": place,
        "kind": kind,
        "level": level,
        "message": {"text": " ".join(filter(None, (row["finding"], row.get("advice"))))},
        "locations": [{"logicalLocations": [{"name": run, "kind": "run"}]}] if run else [],
        "partialFingerprints": {"tracekit/v1": row.get("fingerprint") or row["rule"]},
        **({"baselineState": _BASELINE[state]} if state else {}),
        "properties": values,
    }


def to_junit(answer: Answer) -> str:
    """Return findings of `diagnose`, or checks of `gate`, as JUnit XML: one test case per rule.

    A finding is a failure if it is new or has grown since the base run, or if there is no base run.
    A check is a failure if it fails; an undecided check is an error, or skipped if undecided checks
    are to pass.

    Parameters
    ----------
    answer
        Answer with findings, as for `to_sarif`.
    """
    found = {row["rule"]: row for row in answer.tables["findings"].iter_rows(named=True)}
    suites = ET.Element("testsuites")
    suite = ET.SubElement(suites, "testsuite", {"name": printable(answer.run or "run")})
    unknown = "skipped" if answer.meta.get("undecided_passes") else "error"
    classname = f"tracekit.{answer.command or 'diagnose'}"
    for rule in answer.source:
        case = ET.SubElement(suite, "testcase", {"classname": classname, "name": rule})
        row = found.get(rule)
        if row is not None:
            _close(case, row, {"fail": "failure", "undecided": unknown}.get(_outcome(row)))
    for each in (suites, suite):
        each.set("tests", str(len(suite)))
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            each.set(name, str(len(suite.findall(f"testcase/{tag}"))))
    ET.indent(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'


def _outcome(row: Mapping[str, Any]) -> str:
    """Return the outcome of a check as stated, or `fail` for a finding that is new or has grown.

    Without a base run, each finding is a `fail`; a finding that is neither new nor has grown is a
    `pass`.
    """
    is_worse = row.get("state") in (None, *_WORSE)
    return str(row.get("outcome") or ("fail" if is_worse else "pass"))


def _close(case: ET.Element, row: Mapping[str, Any], tag: str | None) -> None:
    """Add a finding's text to its test case, as element `tag`; as plain output if `tag` is None."""
    state = [f"since the base: {row['state']}"] if row.get("state") else []
    lines = [*state, *(row.get("evidence") or ()), *filter(None, [row.get("advice")])]
    if tag is None:
        lines, message = [row["finding"], *lines], {}
    else:
        message = {
            "message": printable(row["finding"]),
            "type": row.get("confidence") or row["rule"],
        }
    text = "\n".join(printable(part) for line in lines for part in line.split("\n"))
    ET.SubElement(case, tag or "system-out", message).text = text


_MOST_ROWS = 100
_TABLE = "border-collapse:collapse;font-variant-numeric:tabular-nums"
_CELL = "padding:0.15em 0.8em 0.15em 0;text-align:"
_SQUARE = "display:inline-block;width:0.7em;height:0.7em;margin-right:0.5em;background:"
_RULE = "border-top:1px solid currentColor"


class _Renderer:
    """Implementation of `tracekit.model.Renderer`; drawing code is loaded on first use."""

    def html(self, answer: Answer) -> str:
        """Return the answer as an HTML table with its notes."""
        from tracekit.model import with_readable_names

        rows = with_readable_names(answer.readable_rows, answer.every)
        return html(rows, answer.meta, answer.title)

    def draw(self, answer: Answer, drawing: str) -> go.Figure:
        """Draw the figure `drawing` of an answer; without data, a text on how to record these."""
        from tracekit.present._drawings import DRAWINGS
        from tracekit.present._figures import NOTHING, RECORD_WITH
        from tracekit.present._link_figures import NO_TRANSFERS

        figure = DRAWINGS[drawing](answer)
        nothing = (figure.layout.meta or {}).get(NOTHING)
        # Counters, which `links` asks for, show no transfers between GPUs.
        if nothing not in (None, NO_TRANSFERS) and answer.lacking is not None:
            figure.layout.meta = {**figure.layout.meta, RECORD_WITH: answer.lacking()}
        return figure


RENDERER = _Renderer()
"""The renderer that answers get when they are displayed."""


def html(frame: pl.DataFrame, meta: Mapping[str, Any], title: str = "") -> str:
    """Return `frame` as an HTML table with its notes, for `_repr_html_`.

    All text is escaped and the markup is self-contained: no scripts, classes or links. Only the
    first hundred rows are shown, with a note.

    Parameters
    ----------
    frame
        Rows of an answer.
    meta
        Meta of the answer; becomes the lines below the table.
    title
        Caption of the table.
    """
    frame = with_parts(frame, meta)
    head = frame.head(_MOST_ROWS)
    is_cut = head.height < frame.height
    columns = shown(head) if is_cut else shown_with_totals(head, meta)
    below = notes(meta)
    if is_cut:
        below.insert(0, f"{count(frame.height - head.height, 'more row')} not shown")
    caption = f"<caption><b>{escape(printable(title))}</b></caption>" if title else ""
    rows = [
        _row(columns, row, head.height) for row in range(len(columns[0].texts) if columns else 0)
    ]
    return (
        f'<table style="{_TABLE}">{caption}<thead><tr>{_header(columns)}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
        + "".join(f"<div><small>{escape(note)}</small></div>" for note in below)
    )


def _header(columns: list[ShownColumn]) -> str:
    return "".join(
        f'<th style="{_CELL}{_side(column)}">{escape(column.header)}</th>' for column in columns
    )


def _row(columns: list[ShownColumn], row: int, height: int) -> str:
    rule = f' style="{_RULE}"' if row == height else ""
    return f"<tr{rule}>{''.join(_html_cell(column, row) for column in columns)}</tr>"


def _html_cell(column: ShownColumn, row: int) -> str:
    text = column.texts[row]
    colour = colour_of(column.name, text)
    square = f'<span style="{_SQUARE}{colour}"></span>' if colour else ""
    return f'<td style="{_CELL}{_side(column)}">{square}{escape(text)}</td>'


def _side(column: ShownColumn) -> str:
    return "right" if column.numeric else "left"
