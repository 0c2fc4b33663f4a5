"""Answers as pages: parts in order, nothing from the network, no text taken for markup."""

from __future__ import annotations

import re

import polars as pl

from tracekit.model import Answer
from tracekit.present import FACE, page

HOSTILE = "<script>alert(1)</script>"


def _part(name: str) -> Answer:
    rows = pl.DataFrame(
        {"network": [name, name], "batch": [16, 16], "method": ["p2p", "p2p"], "gpus": [1, 2],
         "speedup": [1.0, 1.5]}
    )  # fmt: skip
    meta = {"question": f"Is it {name}?", "headline": f"It is {name}.", "mode": "strong"}
    return Answer(
        rows=rows, meta=meta, title="t", figures={"figure": "speedup"}, source=name, face=FACE
    )


def _whole() -> Answer:
    parts = {"a": _part("one"), "b": _part(HOSTILE), "c": Answer(rows=pl.DataFrame())}
    return Answer(rows=pl.DataFrame(), meta={"of_runs": "2 runs"}, title="All", parts=parts)


def test_parts_follow_each_other_with_contents() -> None:
    text = page(_whole())
    places = [text.index(word) for word in ("2 runs", 'href="#a"', 'id="a"', 'id="b"', 'id="c"')]
    assert places == sorted(places)
    assert text.index("It is one.") < text.index('id="a-figure"')
    assert {'id="a-figure"', 'id="b-figure"'} <= set(re.findall(r'id="[abc]-\w+"', text))


def test_texts_are_no_markup() -> None:
    assert HOSTILE not in page(_whole())
    assert "&lt;script&gt;alert(1)" in page(_whole())


def test_a_page_brings_all_that_it_needs_once() -> None:
    text = page(_whole())
    assert text.count("plotly.js v") == 1
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=", text)


def test_an_answer_alone_is_a_page_too() -> None:
    text = page(_part("one"))
    assert text.startswith("<!doctype html>")
    assert "<h2" not in text
    assert "It is one." in text
