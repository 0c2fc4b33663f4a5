"""Findings and checks in the formats that continuous integration reads: SARIF and JUnit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from tracekit.present._text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.model import Answer

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"measured": "warning", "likely": "warning", "hint": "note", "perhaps": "note"}
_NUMBERS = (
    "win_ns", "win_low_ns", "win_high_ns", "share", "base_win_ns", "base_share", "sure", "evidence",
    "win_unknown",
)  # fmt: skip
_BASELINE = {
    "new": "new", "grown": "updated", "shrunk": "updated", "unchanged": "unchanged",
    "gone": "absent",
}  # fmt: skip
_KINDS = {"pass": "pass", "fail": "fail", "undecided": "open"}
_WORSE = ("new", "grown")


def to_sarif(answer: Answer, version: str) -> str:
    """Return findings as SARIF 2.1.0: a result each, with its numbers as properties.

    Parameters
    ----------
    answer
        Its table ``findings``, and `Answer.source`, the names of the rules that were asked. What
        has a ``state`` gets the state since the baseline; a check without (``outcome``) its kind.
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
    """Return a result; only what fails has a level, and only a finding a state."""
    kind = "fail" if row.get("sure") else _KINDS[row["outcome"]]
    level = _LEVELS.get(row.get("sure") or "", "error") if kind == "fail" else "none"
    told = {name: row[name] for name in _NUMBERS if name in row}
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
        "properties": told,
    }


def to_junit(answer: Answer) -> str:
    """Return findings as JUnit XML, a test case per rule.

    A finding is a failure, but for one that a base had; so is a check that fails. What cannot be
    told is an error, or skipped where that is to pass.

    Parameters
    ----------
    answer
        As for `to_sarif`.
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
    """Return what a check came to; a finding fails, but for one that is no worse than before."""
    is_worse = row.get("state") in (None, *_WORSE)
    return str(row.get("outcome") or ("fail" if is_worse else "pass"))


def _close(case: ET.Element, row: Mapping[str, Any], tag: str | None) -> None:
    """Say what became of a test case; of one that passed, what there is to say."""
    state = [f"since the base: {row['state']}"] if row.get("state") else []
    lines = [*state, *(row.get("evidence") or ()), *filter(None, [row.get("advice")])]
    if tag is None:
        lines, message = [row["finding"], *lines], {}
    else:
        message = {"message": printable(row["finding"]), "type": row.get("sure") or row["rule"]}
    text = "\n".join(printable(part) for line in lines for part in line.split("\n"))
    ET.SubElement(case, tag or "system-out", message).text = text
