from __future__ import annotations

from html.parser import HTMLParser

import polars as pl
from present_frames import HOSTILE, STAGES, STAGES_META

from tracekit.present import html, printable


class Reader(HTMLParser):
    """Collects the tags and the texts of a piece of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert {key for key, _ in attrs} <= {"style"}
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_table_with_caption_rows_and_notes() -> None:
    page = Reader(html(STAGES, STAGES_META, "mnist"))
    assert page.tags.count("tr") == 1 + STAGES.height + 2
    assert page.texts[:7] == [
        "mnist", "stage", "ops", "busy (ms)", "exposed (ms)", "overlap (ms)", "share (%)",
    ]  # fmt: skip
    assert page.texts[7:13] == ["FP", "1,200", "40.000", "40.000", "0.000", "40.0"]
    assert page.texts[-1] == "share: exposed_ns / window_ns"


def test_a_stage_has_its_colour() -> None:
    assert 'background:#0072B2"></span>FP</td>' in html(STAGES, {})


def test_nothing_from_a_trace_becomes_markup() -> None:
    hostile = HOSTILE + '"><script>alert(1)</script>'
    page = Reader(html(pl.DataFrame({hostile: [hostile]}), {hostile: hostile}, hostile))
    assert "script" not in page.tags
    assert " ".join(page.tags) == "table caption b thead tr th tbody tr td div small"
    assert page.texts[0] == printable(hostile)


def test_a_long_frame_is_cut_and_says_so() -> None:
    page = Reader(html(pl.DataFrame({"op": range(250)}), {}, "ops"))
    assert page.tags.count("tr") == 101
    assert page.texts[-1] == "150 more rows not shown"


def test_a_frame_without_columns() -> None:
    assert Reader(html(pl.DataFrame(), {})).tags == ["table", "thead", "tr", "tbody"]
