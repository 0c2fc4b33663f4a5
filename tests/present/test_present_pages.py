"""Answers as pages: parts in order, nothing from the network, no text taken for markup."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re

import plotly.graph_objects as go
import polars as pl

from tracekit.model import Answer
from tracekit.present import RENDERER, Heading, ShownColumn, figure_layout
from tracekit.present._figures import legend_above
from tracekit.present.pages import answer_page as page
from tracekit.present.pages import figure_block, fragment

HOSTILE = "<script>alert(1)</script>"


def _part(name: str) -> Answer:
    rows = pl.DataFrame(
        {"network": [name, name], "batch": [16, 16], "method": ["p2p", "p2p"], "gpus": [1, 2],
         "speedup": [1.0, 1.5]}
    )  # fmt: skip
    meta = {"question": f"Is it {name}?", "headline": f"It is {name}.", "mode": "strong"}
    return Answer(
        rows=rows,
        meta=meta,
        title="t",
        figures={"figure": "speedup"},
        source=name,
        renderer=RENDERER,
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


def test_the_title_of_a_page_is_not_repeated_above_its_rows() -> None:
    told = "rank 1 is missing at all_reduce 5"
    text = page(Answer(rows=pl.DataFrame({"rank": [1]}), title=told))
    assert text.count(told) == 2, "in the tab, and as heading"


def test_texts_are_no_markup() -> None:
    assert HOSTILE not in page(_whole())
    assert "&lt;script&gt;alert(1)" in page(_whole())


def test_a_page_brings_all_that_it_needs_once() -> None:
    text = page(_whole())
    (packed,) = re.findall('id="library">([^<]*)<', text)
    code = gzip.decompress(base64.b64decode(packed))
    assert b"plotly.js v" in code[:100]
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=", text)
    assert len(text) < 2_100_000


def test_the_policy_names_what_may_run() -> None:
    text = page(_whole())
    (packed,), (script,) = (
        re.findall(pattern, text, re.DOTALL)
        for pattern in ('id="library">([^<]*)<', "<script>(.*?)</script>")
    )
    codes = [script.encode(), gzip.decompress(base64.b64decode(packed))]
    digests = [base64.b64encode(hashlib.sha256(code).digest()).decode() for code in codes]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    assert f"default-src 'none'; script-src {allowed}; style-src" in html.unescape(text)


def test_a_page_without_figures_has_nothing_that_draws() -> None:
    text = page(Answer(rows=pl.DataFrame({"device": [0], "busy_ns": [1234]}), title="t"))
    assert len(text) < 40_000
    assert 'data-v="1234"' in text
    assert 'class="filter"' in text


def test_an_answer_alone_is_a_page_too() -> None:
    text = page(_part("one"))
    assert text.startswith("<!doctype html>")
    assert "<h2" not in text
    assert "It is one." in text


def test_a_table_without_rows_says_so() -> None:
    nothing = pl.DataFrame(schema={"device": pl.Int64})
    text = page(Answer(rows=nothing, title="t", empty="no copies"))
    assert "no copies" in text
    assert "<table" not in text
    told = page(Answer(rows=nothing, title="t", meta={"headline": "No run shows it."}))
    assert "No run shows it." in told
    assert "no rows" not in told


def test_texts_of_a_figure_are_in_the_page_and_their_room_is_not() -> None:
    layout = figure_layout(
        Heading("T & t", "sub <b>"), notes=["first", "second"], width=900, height=500
    )
    layout["legend"] = legend_above(layout)
    figure = go.Figure(go.Bar(x=[1], y=[2], name="a"), layout)
    text = str(figure_block(figure, "f"))
    for word in ("T &amp; t", "sub &lt;b&gt;", "<li>first</li>", "<li>second</li>"):
        assert word in text
    content = json.loads(text.partition('"application/json">')[2].partition("</script>")[0])
    drawn = content["layout"]
    assert "title" not in drawn
    assert drawn["annotations"] == []
    # Of 84 pixels above the plot 14 stay, and of those below all but two lines of 18.
    assert drawn["margin"]["t"] == 14
    assert layout["margin"]["b"] - drawn["margin"]["b"] == 36
    assert layout["height"] - drawn["height"] == 70 + 36
    assert drawn["meta"] == {"is_fluid": True, "width": 900, "across": 1, "least": None}


def test_what_is_typed_looks_so_and_is_no_markup() -> None:
    told = fragment("unknown", "use `a <b>` or `c`: <i>")
    assert "use <code>a &lt;b&gt;</code> or <code>c</code>: &lt;i&gt;" in told
    assert "one ` alone &lt;b&gt;" in fragment("unknown", "one ` alone <b>")


def test_columns_that_a_terminal_leaves_out_come_last_and_equal_ones_once() -> None:
    from tracekit.present.pages._answer_page import _each_once, _in_sight

    def column(name: str, texts: list[str]) -> ShownColumn:
        return ShownColumn(name, name, texts)

    numbers = [column(f"n{place}", [f"{10**12 + place}", "1", "2"]) for place in range(12)]
    columns = [*numbers, column("ops", ["7", "8", "9"]), column("verdict", ["1.5", "2", "3"])]
    ordered = [each.name for each in _in_sight(columns)]
    assert {*ordered} == {each.name for each in columns}
    assert ordered.index("verdict") < ordered.index("n11")
    twice = [*columns, column("again", ["7", "8", "9"])]
    kept, equal = _each_once(twice)
    assert equal == {"again": "ops"}
    assert [each.name for each in kept] == [each.name for each in columns]
    assert _each_once([column("a", ["0", "0"]), column("b", ["0", "0"])])[1] == {}
