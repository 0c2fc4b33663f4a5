"""A comparison as it is printed contradicts itself nowhere, whatever was measured."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from compared_traces import compare
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

from tracekit.model import Answer, Trace
from tracekit.model._tables import ITERATIONS
from tracekit.present import terminal

_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_LENGTH = r"([-+]?[\d,.]+) (s|ms|us|ns)"
_NAMES = {
    "idle time": "idle",
    "idle time inside steps": "idle",
    "idle time between steps": "between_steps",
}
_PARTS = st.tuples(*[st.integers(0, 7)] * 4)
"""Powers of ten of a forward pass, an update, and idle time inside of steps and between them."""
_SPREADS = st.tuples(*[st.sampled_from([0, 1, 30, 400])] * 4)
"""Standard deviations of these, in thousandths."""


def _run(means: np.ndarray, spreads: tuple[int, ...], steps: int, seed: int) -> Trace:
    random = np.random.default_rng(seed)
    b, at = TraceBuilder(), 0
    for number in range(steps):
        drawn = random.normal(means, means * np.array(spreads) / 1000)
        forward, update, inside, between = (max(1, int(each)) for each in drawn)
        end = at + forward + inside + update
        b.iteration(number, at, end)
        b.op("fw", at=at, start=at, end=at + forward, stage="FP")
        b.op("sgd", at=at + 1, start=end - update, end=end, stage="WU")
        at = end + between
    return b.trace()


@st.composite
def _comparisons(draw: st.DrawFn) -> Answer:
    means = 10.0 ** np.array(draw(_PARTS))
    change = np.array(draw(st.tuples(*[st.sampled_from([1.0, 1.0002, 1.02, 1.5])] * 4)))
    steps, spreads = draw(st.tuples(*[st.integers(5, 30)] * 2)), draw(_SPREADS)
    seed = draw(st.integers(0, 2**32 - 1))
    a = _run(means, spreads, steps[0], seed)
    return compare(a, _run(means * change, spreads, steps[1], seed + 1))


def _cells(line: str, edges: dict[str, tuple[int, int]]) -> dict[str, float | None]:
    """Read numbers, of which one may be told to be smaller than what is shown."""
    texts = {name: line[begin:end].split()[-1:] for name, (begin, end) in edges.items()}
    known = {name: "".join(text).strip("<>").replace(",", "") for name, text in texts.items()}
    return {
        name: float(text) if re.fullmatch(r"-?[\d.]+", text) else None
        for name, text in known.items()
    }


def _printed(text: str) -> dict[str, dict[str, float | None]]:
    """Read the numbers of a printed table by its rows and columns; these end where labels do."""
    lines = text.splitlines()
    at = next(n for n, line in enumerate(lines) if line.split()[:1] in (["stage"], ["part"]))
    ends = {each[0]: each.end() for each in re.finditer(r"\S+", lines[at])}
    begins = dict(zip(ends, [0, *ends.values()], strict=False))
    edges = {name: (begins[name], ends[name]) for name in ("a", "b", "delta", "low", "high")
             if name in ends}  # fmt: skip
    rows: dict[str, dict[str, float | None]] = {}
    for line in itertools.takewhile(str.strip, lines[at + 3 :]):
        name = re.match(r" (?:■ |  )?(\w+) ", line)
        if name:
            rows[name[1]] = _cells(line, edges)
    return rows


@pytest.mark.parametrize("width", [80, pytest.param(120, marks=pytest.mark.nightly)])
@settings(max_examples=examples(8, thorough=200), deadline=None)
@given(found=_comparisons())
def test_a_change_is_printed_inside_of_its_own_interval(width: int, found: Answer) -> None:
    rows = _printed(terminal(found.readable, found.meta, "t", width=width))
    assert {"FP", "WU", "step"} <= rows.keys()
    for name, row in rows.items():
        low, high = row.get("low"), row.get("high")
        if low is not None and high is not None:
            assert low <= row["delta"] <= high, (name, row)
        assert row.get("a") != 0 or name in ("rounding", "idle", "between_steps"), row


@settings(max_examples=examples(8, thorough=200), deadline=None)
@given(found=_comparisons())
def test_the_first_line_agrees_with_the_table(found: Answer) -> None:
    line, step = found.meta["headline"], found.meta["step"]
    change = re.search(rf"(faster|slower) by {_LENGTH}", line)
    ends = re.search(rf"95 % interval {_LENGTH} to {_LENGTH}", line)
    if change and ends:
        sign = 1 if change[1] == "slower" else -1
        numbers = (change[2], change[3]), (ends[1], ends[2]), (ends[3], ends[4])
        middle, low, high = (float(n.replace(",", "")) * _UNITS[unit] for n, unit in numbers)
        assert low <= sign * middle <= high
    carried = re.search(r"carried by ([^;]*?)(?:, against|;|$)", line)
    if carried:
        verdicts = dict(found.tables["contributions"].select("part", "verdict").iter_rows())
        for name in re.findall(r"([A-Za-z ]+?) \([-+]", carried[1].replace(" and ", " ")):
            part = _NAMES.get(name.strip(), name.strip())
            assert verdicts[part] == ("slower" if step["delta_ns"] > 0 else "faster"), line


@settings(max_examples=examples(8, thorough=200), deadline=None)
@given(found=_comparisons())
def test_a_verdict_is_told_exactly_where_the_interval_excludes_zero(found: Answer) -> None:
    rows = [*found.rows.iter_rows(named=True), *found.tables["contributions"].iter_rows(named=True)]
    for row in (*rows, found.meta["step"]):
        if row["low_ns"] is None:
            assert row["verdict"] in ("unknown", "not enough iterations")
        else:
            is_told = row["verdict"] in ("faster", "slower")
            assert is_told == (row["low_ns"] > 0 or row["high_ns"] < 0), row


def test_a_comparison_of_whole_recordings_tells_of_no_steps() -> None:
    a = _run(np.array([900, 300, 200, 100]), (0, 0, 0, 0), 6, 0)
    found = compare(a, a.with_tables({"iterations": ITERATIONS.empty()}))
    text = terminal(found.readable, found.meta, "t", width=120)
    assert re.search(r"^ +recording  ", text, re.MULTILINE)
    assert "A, whole recording on 1 GPU · B, whole recording on 1 GPU" in text
    assert not re.search(r"^ +step  |between_steps|\d iteration", text, re.MULTILINE)
