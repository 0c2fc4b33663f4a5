"""Findings in the formats that continuous integration reads: SARIF and JUnit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from tracekit.present._text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.model import Answer

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"measured": "warning", "likely": "warning", "hint": "note"}
_NUMBERS = ("win_ns", "win_low_ns", "win_high_ns", "share", "sure", "evidence", "win_unknown")


def to_sarif(answer: Answer, version: str) -> str:
    """Return findings as SARIF 2.1.0: a result each, with its numbers as properties.

    Parameters
    ----------
    answer
        Its table ``findings``, and `Answer.source`, the names of the rules that were asked.
    version
        Version of this program.
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
    return {
        "ruleId": row["rule"],
        "ruleIndex": place,
        "level": _LEVELS[row["sure"]],
        "message": {"text": f"{row['finding']} {row['advice']}"},
        "locations": [{"logicalLocations": [{"name": run, "kind": "run"}]}] if run else [],
        "properties": {name: row[name] for name in _NUMBERS},
    }


def to_junit(answer: Answer) -> str:
    """Return findings as JUnit's XML: a test case per rule that was asked; a finding is a failure.

    Parameters
    ----------
    answer
        As for `to_sarif`.
    """
    found = {row["rule"]: row for row in answer.tables["findings"].iter_rows(named=True)}
    counts = {"tests": str(len(answer.source)), "failures": str(len(found)), "errors": "0"}
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", {"name": printable(answer.run or "run"), **counts})
    for rule in answer.source:
        case = ET.SubElement(suite, "testcase", {"classname": "tracekit.diagnose", "name": rule})
        if rule in found:
            row = found[rule]
            message = {"message": printable(row["finding"]), "type": row["sure"]}
            text = "\n".join([*row["evidence"], row["advice"]])
            ET.SubElement(case, "failure", message).text = "\n".join(
                printable(line) for line in text.split("\n")
            )
    ET.indent(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'
