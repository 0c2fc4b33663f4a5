"""The examples of docs/evidence/rules.md are true; docs/stages.md has the code's order of rules."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from trace_builder import TraceBuilder

from tracekit.attribution import Rules
from tracekit.attribution._rules import _LISTS
from tracekit.attribution._stages import _SOURCES
from tracekit.model import STAGE_SOURCES, Trace

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "stages.md").read_text(encoding="utf-8")
EXAMPLES_PAGE = (DOCS / "evidence" / "rules.md").read_text(encoding="utf-8")
BYTES = {"KiB": 1 << 10, "MiB": 1 << 20}
METHODS = {"by threads": "threads", "estimated from order": "order"}
DECISIONS = len(_SOURCES) - 1
"""Structure's second opinion comes last, and decides nothing."""


@dataclass(frozen=True)
class Example:
    """A table of the page: its comment; rows of time, thread, event, stage and source."""

    said: str
    rows: list[list[str]]

    @property
    def times(self) -> list[int]:
        """When the table begins, each time that it happens."""
        found = re.search(r"(\d+) times, (\d+) apart", self.said)
        return [n * int(found[2]) for n in range(int(found[1]))] if found else [0]

    def trace(self) -> Trace:
        """Attribute what happens."""
        builder = TraceBuilder()
        threads: dict[str, int] = {}
        for time, thread, event, *_ in self.rows:
            number = threads.setdefault(thread, len(threads))
            builder.thread(number, thread.strip("`") if thread.startswith("`") else None)
            for begin in self.times:
                self._happens(builder, begin, time, event, number)
        given = re.search(r"as (training)", self.said)
        return builder.judged(Rules.load(verdict=given[1]) if given else None)

    @staticmethod
    def _happens(builder: TraceBuilder, begin: int, time: str, event: str, thread: int) -> None:
        if launched := re.fullmatch(r"launches `(.*)`(?: of ([\d,]+) threads)?", event):
            size = int(launched[2].replace(",", "")) if launched[2] else None
            builder.op(launched[1], begin + int(time), thread=thread, launch_size=size)
        elif copied := re.fullmatch(r"copies (\d+) (\w+), (\w+)", event):
            size = int(copied[1]) * BYTES[copied[2]]
            at = begin + int(time)
            builder.op("copy", at, thread=thread, kind=copied[3], bytes=size)
        else:
            start, end = (begin + int(edge) for edge in time.split(" to "))
            range_ = re.fullmatch(r"(start/end )?range `(.*)`", event)
            assert range_ is not None, event
            add = builder.start_end if range_[1] else builder.range
            add(start, end, range_[2], thread=thread)

    def expected(self) -> dict[int, tuple[str, str]]:
        """Return the stage and source of what is launched when."""
        return {
            begin + int(time): (stage, source)
            for time, _, _, stage, source in self.rows
            if stage
            for begin in self.times
        }


def _examples() -> Iterator[Example]:
    for said, table in re.findall(r"<!-- example(.*?) -->\n((?:\|.*\n)+)", EXAMPLES_PAGE):
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        assert rows[0] == ["time", "thread", "what happens", "stage", "source"]
        yield Example(said, rows[2:])


EXAMPLES = list(_examples())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.rows[-1][-1] + each.said)
def test_examples_are_true(example: Example) -> None:
    trace = example.trace()
    ops = trace.read("ops").select("launch_start", "stage", "stage_source").rows()
    assert {at: (stage, source) for at, stage, source in ops} == example.expected()
    for words, method in METHODS.items():
        if words in example.said:
            assert trace.read("verdicts")["structure"].to_list() == [method]


def test_each_kind_of_evidence_has_an_example() -> None:
    assert {row[-1] for each in EXAMPLES for row in each.rows} - {""} == set(STAGE_SOURCES)


def test_rules_are_in_the_order_of_the_code() -> None:
    section = PAGE[PAGE.index("## The order of rules") : PAGE.index("## What a process does")]
    rules = re.findall(r"^\| (\d+) \| `(\w+)` \|", section, re.MULTILINE)
    assert rules == [
        (str(number), source) for number, (source, _) in enumerate(_SOURCES[:DECISIONS], 1)
    ]


def test_every_list_of_a_rules_file_is_explained(tmp_path: Path) -> None:
    section = PAGE[PAGE.index("## Rules files") :]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(_LISTS)
    written = re.search(r"```toml\n(.*?)```", section, re.DOTALL)
    assert written is not None
    file = tmp_path / "rules.toml"
    file.write_text(written[1])
    assert Rules.load(file).given["between"] == 1


def test_the_picture_can_be_drawn() -> None:
    names = re.findall(r"!\[.+\]\((.+\.svg)\)", PAGE)
    assert names == ["stages.svg"]
    assert ET.parse(DOCS / names[0]).getroot().tag == "{http://www.w3.org/2000/svg}svg"
