from __future__ import annotations

import base64
import gzip
import json
import os
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
import pytest
from present_frames import HOSTILE

from tracekit.errors import MissingDataError, UsageError
from tracekit.present import (
    Heading,
    check_figure_file,
    figure_layout,
    figure_text,
    one_browser,
    save_figure,
    unit_of,
)
from tracekit.present._figures import SCALE, colour_at, empty_figure


def figure(title: str = "Links", subtitle: str = "run mnist") -> go.Figure:
    return go.Figure(go.Scatter(x=[1, 2], y=[3, 4]), figure_layout(Heading(title, subtitle)))


def texts(shown: go.Figure) -> list[str]:
    return [each.text for each in shown.layout.annotations]


def test_text_is_no_markup() -> None:
    assert figure_text("<b>a</b> & <a href='x'>") == "&lt;b&gt;a&lt;/b&gt; &amp; &lt;a href='x'&gt;"
    assert figure_text("$x^2$") == "&#36;x^2&#36;"
    assert figure_text("a\x1b[0m\u202e") == "a␛[0m\ufffd"


def test_a_layout_says_what_is_shown() -> None:
    layout = figure_layout(
        Heading("Links", "run mnist, 1.2 s"), notes=["* modelled"], width=500, height=300
    )
    assert layout["title"]["text"] == "<b>Links</b>"
    assert [line["text"] for line in layout["annotations"]] == ["run mnist, 1.2 s", "* modelled"]
    assert (layout["width"], layout["height"]) == (500, 318)
    assert go.Figure(layout=layout).layout.template.layout.paper_bgcolor == "white"


def test_long_lines_are_broken_and_the_figure_grows_with_them() -> None:
    short, long = figure_layout(Heading("t", "s")), figure_layout(Heading("t", "words " * 400))
    assert len(short["annotations"]) == 1
    assert len(long["annotations"]) == 3
    assert long["height"] - short["height"] == long["margin"]["t"] - short["margin"]["t"] == 36
    wide = figure_layout(Heading("long " * 20, "s"))
    assert "…" not in wide["title"]["text"]
    assert wide["height"] - short["height"] == wide["margin"]["t"] - short["margin"]["t"] == 24
    lines = figure_layout(Heading("long " * 400, ""))["title"]["text"].split("<br>")
    assert [len(line) < 120 for line in lines] == [True, True]


def test_hostile_titles_stay_text() -> None:
    layout = figure_layout(Heading(HOSTILE, HOSTILE), notes=[HOSTILE], width=3000)
    for text in (layout["title"]["text"], *(line["text"] for line in layout["annotations"])):
        assert "␛[31mred" in text
        assert "&lt;b&gt;&amp;amp;&lt;/b&gt;" in text
        assert not set(text) & {"\x1b", "\x9b", "\u202e", "\n"}


def test_nothing_to_show_is_said() -> None:
    assert texts(empty_figure(Heading("t", "s"), "no <transfers>")) == ["s", "no &lt;transfers&gt;"]


def test_colours_run_from_none_to_all() -> None:
    assert colour_at(0) == colour_at(-1) == SCALE[0]
    assert colour_at(1) == colour_at(float("inf")) == SCALE[-1]
    assert colour_at(0.5) == SCALE[4]
    # Half way between #BCDF2A and #74CF54.
    assert colour_at(1 / 16) == "#98D73F"


@pytest.mark.parametrize(
    ("largest", "unit"), [(0, (1, "B")), (999, (1, "B")), (1000, (10**3, "kB"))]
)
def test_a_unit_suits_the_largest(largest: int, unit: tuple[int, str]) -> None:
    assert unit_of(largest, ((10**3, "kB"), (1, "B"))) == unit


class Page(HTMLParser):
    """Collects the addresses that a page would load and what its scripts begin with."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str | None] = []
        self.scripts = 0
        self.title = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value for key, value in attrs if key in {"src", "href"}]
        self.scripts += tag == "script"

    def handle_data(self, data: str) -> None:
        if self.lasttag == "title" and not self.title:
            self.title = data


def test_a_page_holds_all_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "links.HTML"
    save_figure(figure("Links & <more>"), path)
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.addresses == ["#main"]
    assert page.title == "Links & <more> · tracekit"
    assert len(text) < 2_000_000
    packed = text.partition('id="library">')[2].partition("<")[0]
    assert "plotly.js v" in gzip.decompress(base64.b64decode(packed)).decode()[:100]
    save_figure(figure("Links & <more>"), tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == text


def test_a_name_ends_no_script(tmp_path: Path) -> None:
    hostile = "</script><script>alert(1)</script>"
    plain, odd = tmp_path / "plain.html", tmp_path / "odd.html"
    save_figure(figure(), plain)
    save_figure(figure(hostile, hostile).update_layout(xaxis_title_text=hostile), odd)
    assert hostile not in odd.read_text(encoding="utf-8")
    counts = [Page(path.read_text(encoding="utf-8")).scripts for path in (plain, odd)]
    assert counts[0] == counts[1]


def test_json_is_plotlys_own(tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    save_figure(figure(), str(path))
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["data"][0]["x"] == [1, 2]
    assert pio.from_json(path.read_text(encoding="utf-8")) == figure()


def browser() -> str | None:
    from choreographer.browsers.chromium import Chromium

    return os.environ.get("BROWSER_PATH") or Chromium.find_browser(skip_local=False)


@pytest.mark.slow
def test_images_share_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kaleido = pytest.importorskip("kaleido", reason="images take the package kaleido")
    if browser() is None:
        pytest.skip("images take a Chrome or Chromium browser, and none is found")
    begun: list[object] = []
    start = kaleido.start_sync_server
    monkeypatch.setattr(
        kaleido, "start_sync_server", lambda **options: begun.append(start(**options))
    )
    begins = {"png": b"\x89PNG", "svg": b"<svg", "pdf": b"%PDF", "html": b"<!"}
    paths = [tmp_path / f"links.{ending}" for ending in begins]
    with one_browser(paths):
        for path in paths:
            save_figure(figure(), path)
    assert len(begun) == 1
    for path, magic in zip(paths, begins.values(), strict=True):
        assert path.read_bytes().startswith(magic)


@pytest.mark.parametrize("name", ["links.txt", "links", "links.csv"])
def test_other_endings_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"name a file that ends in \.html"):
        save_figure(figure(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_figure_of_nothing_is_refused(tmp_path: Path) -> None:
    nothing = empty_figure(Heading("Links", "run mnist"), "no transfers")
    with pytest.raises(MissingDataError, match=r"no transfers: `tracekit info` lists what"):
        save_figure(nothing, tmp_path / "links.html")
    assert list(tmp_path.iterdir()) == []


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(UsageError, match="it is a folder"):
        save_figure(figure(), tmp_path / "folder.html")
    with pytest.raises(UsageError, match=r"there is no folder .*: create it first"):
        save_figure(figure(), tmp_path / "absent" / "links.html")
    with pytest.raises(UsageError, match=r"cannot write .*: choose another file"):
        save_figure(figure(), tmp_path / f"{'x' * 300}.json")


def test_a_file_stays_as_it_was_if_the_figure_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "links.json"
    path.write_text("before", encoding="utf-8")

    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(UsageError, match="No space left on device"):
        save_figure(figure(), path)
    assert path.read_text(encoding="utf-8") == "before"
    assert [each.name for each in tmp_path.iterdir()] == ["links.json"]


def test_images_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with pytest.raises(UsageError, match=r"pip install 'tracekit\[images\]'"):
        save_figure(figure(), tmp_path / "links.png")


def failing(error: Exception) -> Any:
    def fail(*_: object, **__: object) -> bytes:
        raise error

    return fail


def test_images_without_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kaleido = pytest.importorskip("kaleido")
    from choreographer.browsers.chromium import Chromium
    from kaleido.errors import ChromeNotFoundError

    told = "no Chrome or Chromium browser is found: install one"
    monkeypatch.setenv("BROWSER_PATH", "/gone/since")
    monkeypatch.setattr(kaleido, "calc_fig_sync", failing(ChromeNotFoundError("no chrome")))
    with pytest.raises(UsageError, match=told):
        save_figure(figure(), tmp_path / "links.pdf")
    monkeypatch.delenv("BROWSER_PATH")
    monkeypatch.setattr(Chromium, "find_browser", lambda **_: None)
    with pytest.raises(UsageError, match=told):
        check_figure_file(tmp_path / "links.pdf")


def test_a_browser_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kaleido = pytest.importorskip("kaleido")
    monkeypatch.setenv("BROWSER_PATH", sys.executable)
    monkeypatch.setattr(kaleido, "calc_fig_sync", failing(RuntimeError("gone\x1b[0m")))
    with pytest.raises(UsageError, match=r"the browser failed \(gone␛\[0m\)"):
        save_figure(figure(), tmp_path / "links.svg")
    assert list(tmp_path.iterdir()) == []
