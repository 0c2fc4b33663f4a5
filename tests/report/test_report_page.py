from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from hostile import KERNEL, MARKUP, RANGE, SAMPLES

import tracekit
from tracekit.analysis import step_detail
from tracekit.errors import UsageError
from tracekit.present import to_json
from tracekit.report import _verdict_section as _verdict
from tracekit.report._gantt import LOOKS, _legend
from tracekit.report._subject import Subject
from tracekit.runs._report_page import _Library, report_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow  # pages are long

MOST_BYTES = 2_500_000
ORDER = [
    "verdict", "findings", "step", "stages", "steps", "ranges", "idle", "communication", "ranks",
    "memory",
    "unknown", "provenance",
]  # fmt: skip


class Page(HTMLParser):
    """What of a page matters here: its tags with their attributes, tables, and data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str | None]]] = {}
        self.headers: dict[str, list[str]] = {}
        self._key: str | None = None
        self._in_body = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = dict(attrs)
        self.tags.append((tag, own))
        if tag == "table":
            self._key = own.get("data-key")
        if self._key is None:
            return
        if tag == "th" and own.get("data-name"):
            self.headers.setdefault(self._key, []).append(str(own["data-name"]))
        if tag == "tbody":
            self._in_body = True
            self.tables.setdefault(self._key, [])
        if tag == "tr" and self._in_body:
            self.tables[self._key].append([])
        if tag == "td" and self._in_body:
            self.tables[self._key][-1].append(own.get("data-v"))

    def handle_endtag(self, tag: str) -> None:
        if tag == "tbody":
            self._in_body = False

    def column(self, key: str, name: str) -> list[str | None]:
        place = self.headers[key].index(name)
        return [row[place] for row in self.tables[key]]


@pytest.fixture(scope="module")
def parsed(page: str) -> Page:
    return Page(page)


def packed(page: str) -> dict[str, Any]:
    """Return what the script of a page draws the Gantt chart of."""
    (data,) = re.findall(r'<script type="application/octet-stream">([^<]*)</script>', page)
    content: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(data)))
    return content


def test_sections_come_in_their_order(parsed: Page) -> None:
    assert [own["id"] for tag, own in parsed.tags if tag == "section"] == ORDER


def test_nothing_is_loaded(page: str, parsed: Page) -> None:
    loading = {"src", "srcset", "href", "action", "data", "poster", "formaction"}
    found = [
        (name, own[name]) for _, own in parsed.tags for name in loading & own.keys()
    ]  # fmt: skip
    assert all(str(value).startswith("#") for _, value in found)
    assert "@import" not in page
    assert "url(" not in page


def test_the_policy_lets_the_script_of_the_page_run_and_no_other(page: str, parsed: Page) -> None:
    (policy,) = [
        str(own["content"]) for _, own in parsed.tags
        if own.get("http-equiv") == "Content-Security-Policy"
    ]  # fmt: skip
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "style-src 'unsafe-inline'; img-src data: blob:" in policy


def test_names_of_a_trace_are_text(page: str, parsed: Page) -> None:
    assert KERNEL not in page
    assert MARKUP not in page
    assert "\u202e" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert not any(tag == "img" for tag, _ in parsed.tags)
    assert not any(name.startswith("on") for _, own in parsed.tags for name in own)
    assert RANGE in packed(page)["full"]
    assert KERNEL in packed(page)["full"]


def test_the_same_run_gives_the_same_page(page: str, hostile_run: tracekit.Run) -> None:
    assert report_of([hostile_run]) == page
    assert len(page.encode()) < MOST_BYTES


@pytest.mark.parametrize(
    ("key", "question", "options", "names"),
    [
        ("stages", "breakdown", {"by": "stage"}, ["ops", "busy_ns", "exposed_ns", "share"]),
        ("steps", "breakdown", {"by": "iteration"}, ["window_ns", "busy_ns", "idle_ns"]),
        ("kernels", "breakdown", {"by": "kernel"}, ["ops", "total_ns", "median_ns", "share"]),
        ("idle", "idle", {"by": "cause"}, ["gaps", "idle_ns", "step_ns"]),
    ],
)
def test_tables_hold_the_numbers_of_data_formats(
    parsed: Page,
    hostile_run: tracekit.Run,
    key: str,
    question: str,
    options: dict[str, str],
    names: list[str],
) -> None:
    answer = getattr(hostile_run, question).answer(**options)
    rows = json.loads(to_json("", "", {}, answer.readable_rows))["rows"]
    assert rows
    for name in names:
        shown = [None if text is None else float(text) for text in parsed.column(key, name)]
        assert shown == [row[name] for row in rows], name


def test_findings_are_those_of_a_diagnosis(hostile_run: tracekit.Run, page: str) -> None:
    rows = hostile_run.diagnose().to_dicts()
    listed = re.findall(r'<li data-rule="(\w+)">', page)
    assert listed == [row["rule"] for row in rows]
    for row in rows:
        assert html.escape(row["finding"], quote=False) in page


def test_tiles_are_the_numbers_of_the_study(parsed: Page, hostile_run: tracekit.Run) -> None:
    tiles = {
        str(own["data-name"]): own.get("data-value")
        for _, own in parsed.tags if own.get("class") == "tile"
    }  # fmt: skip
    facts = tracekit.study([hostile_run]).row(0, named=True)
    spans = Subject(_Library(), (hostile_run,)).close.usual
    found = step_detail.work_in_steps(hostile_run.trace, spans).communication.sum()
    assert list(tiles) == [
        "step_ns", "busy_share", "communication_share", "idle_ns", "images_per_s"
    ]  # fmt: skip
    numbers = {name: float(str(value)) for name, value in tiles.items()}
    assert numbers["step_ns"] == facts["step_ns"]
    assert numbers["idle_ns"] == facts["idle_ns"] + facts["between_steps_ns"]
    assert numbers["busy_share"] == pytest.approx(1 - numbers["idle_ns"] / facts["step_ns"])
    assert numbers["images_per_s"] == facts["images_per_s"]
    assert numbers["communication_share"] == found["exposed_ns"][0] / found["step_ns"][0]


def test_the_busy_share_and_what_it_is_made_of_are_of_the_steps(hostile_run: tracekit.Run) -> None:
    """Of the recording beside the mean step, computing was more than the whole."""
    subject = Subject(_Library(), (hostile_run,))
    found, spans = _verdict._kinds_in_steps(subject), subject.close.usual
    busy: dict[str, int] = {}
    for process, device, _, start, end, _ in spans.rows():
        own = hostile_run.trace.read("ops").filter(process=process, device=device)
        for kind, ops in own.group_by(pl.col("kind").cast(pl.String)):
            inside = {
                now for begin, until in ops.select("start", "end").rows()
                for now in range(max(begin, start) // 1000, min(until, end) // 1000)
            }  # fmt: skip
            busy[str(kind[0])] = busy.get(str(kind[0]), 0) + 1000 * len(inside)
    whole = (spans["end"] - spans["start"]).sum()
    told = dict(found.select(pl.col("kind").cast(pl.String), "share").iter_rows())
    assert told == pytest.approx({kind: ns / whole for kind, ns in busy.items() if ns}, abs=0.02)


def test_the_chart_holds_every_op_of_its_steps(page: str, hostile_run: tracekit.Run) -> None:
    trace = hostile_run.trace
    spans = step_detail.step_spans(trace)
    lengths = step_detail.step_lengths(spans)
    chart = packed(page)
    wanted = [step_detail.median_step(lengths), step_detail.slowest_step(lengths)]
    assert [view["step"] for view in chart["views"]][:2] == wanted
    for view, step in ((view, view["step"]) for view in chart["views"]):
        window = spans.filter(iteration=step).with_columns(
            pl.col("start").min().over("clock"), pl.col("end").max().over("clock")
        )
        ops = step_detail.ops_inside(trace, window, reaching=True)
        lanes = [lane for lane in view["lanes"] if "told" in lane]
        assert sum(len(lane["start"]) for lane in lanes) == ops.height
        assert sum(sum(lane["length"]) for lane in lanes) == int(
            ops.select((pl.col("end") - pl.col("start")).sum()).item()
        )
        assert all(difference >= 0 for lane in lanes for difference in lane["start"][1:])


def test_the_path_and_links_of_a_step_add_up_to_what_commands_say(
    page: str, hostile_run: tracekit.Run
) -> None:
    chart = packed(page)
    crossed = hostile_run.traffic().crossings.drop_nulls("bytes")
    for view in chart["views"]:
        (path,) = (lane for lane in view["lanes"] if lane["kind"] == "path")
        lengths = dict.fromkeys(("works", "host", "input", "latency", "unexplained"), 0)
        for place, length in zip(path["stage"], path["length"], strict=True):
            cause = chart["stages"][place]
            lengths[cause if cause in lengths else "works"] += length
        told = hostile_run.critical_path(by="cause", iterations=(view["step"], view["step"]))
        wanted = dict(told.select("cause", "path_ns").iter_rows())
        wanted["works"] = sum(wanted.pop(work, 0) for work in ("gpu", "comm", "copy"))
        assert lengths == {**dict.fromkeys(lengths, 0), **wanted}

        spans = step_detail.step_spans(hostile_run.trace).filter(iteration=view["step"])
        begin, end = spans["start"].min(), spans["end"].max()
        own = crossed.filter(pl.col("start") < end, pl.col("end") > begin)
        sums = own.group_by("src", "dst").agg(pl.col("bytes").sum())
        assert {
            lane["label"]: sum(lane["bytes"]) for lane in view["lanes"] if lane["kind"] == "link"
        } == {f"{src} → {dst}": size for src, dst, size in sums.iter_rows()}


def test_of_very_many_ops_neither_path_nor_links_are_drawn(
    hostile_run: tracekit.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracekit.report._gantt.MOST_OPS", 10)
    page = report_of([hostile_run])
    kinds = {lane["kind"] for view in packed(page)["views"] for lane in view["lanes"]}
    assert kinds == {"ops", "range", "idle"}
    assert "the critical path of" in page
    assert "directions of links are not shown" in page


def test_steps_of_two_runs_are_aligned_by_their_passes(
    change_page: str, hostile_run: tracekit.Run, base_run: tracekit.Run
) -> None:
    begins = {}
    for side, run in (("A", base_run), ("B", hostile_run)):
        spans = step_detail.step_spans(run.trace)
        own = spans.filter(iteration=step_detail.median_step(step_detail.step_lengths(spans)))
        ops = step_detail.ops_inside(run.trace, own).filter(pl.col("kind") == "compute")
        begins[side] = {
            stage: ops.filter(pl.col("stage") == stage)["start"].min() - own["start"].min()
            for stage in ("FP", "BP", "WU")
        }
    first, *others = packed(change_page)["views"]
    assert [view["step"] for view in others] == ["FP", "BP", "WU"]
    for view in others:
        at = {side: begins[side][view["step"]] + view["shift"][side] for side in "AB"}
        assert at["A"] == at["B"]
        assert min(view["shift"].values()) == 0
        assert view["span"] >= first["span"]
        assert "lanes" not in view
    assert {lane["side"] for lane in first["lanes"]} == {"A", "B"}


def test_a_comparison(change_page: str, hostile_run: tracekit.Run, base_run: tracekit.Run) -> None:
    found = tracekit.compare(base_run, hostile_run)
    parsed = Page(change_page)
    assert [own["id"] for tag, own in parsed.tags if tag == "section"] == [
        "verdict", "parts", "distributions", "step", "changes", "method", "unknown",
    ]  # fmt: skip
    shown = [float(str(text)) for text in parsed.column("parts", "delta_ns")]
    assert shown == found.contributions["delta_ns"].to_list()
    lanes = {lane["label"][:1] for lane in packed(change_page)["views"][0]["lanes"]}
    assert lanes == {"A", "B"}


def test_a_study_and_what_cannot_be_compared(
    hostile_run: tracekit.Run, base_run: tracekit.Run
) -> None:
    parsed = Page(report_of([hostile_run, base_run]))
    steps = [float(str(text)) for text in parsed.column("study", "step_ns")]
    assert sorted(steps) == sorted(tracekit.study([hostile_run, base_run])["step_ns"].to_list())
    with pytest.raises(UsageError, match="one run with another"):
        report_of([hostile_run, base_run], against=base_run)


def test_a_run_without_gpu_work(tmp_path: Path) -> None:
    sample = SAMPLES / "recorded" / "lenet_gloo.sqlite"
    run, _ = tracekit.ingest(sample, store=tmp_path / "store")
    run.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "no GPU work was recorded" in page
    lanes = packed(page)["views"][0]["lanes"]
    assert lanes
    assert all(lane["label"].startswith("NVTX") for lane in lanes)


def test_outliers_are_those_that_comparisons_name() -> None:
    from tracekit.report._time_sections import _outliers

    lengths = [100, 101, 99, 100, 102, 98, 30, 119, 150]
    steps = pl.DataFrame({"iteration": range(9), "step_ns": [float(each) for each in lengths]})
    assert _outliers(steps)["iteration"].to_list() == [8]
    assert _outliers(steps.head(4)).is_empty()


def test_every_cause_of_idle_time_has_words() -> None:
    from tracekit.analysis.idle_account import CAUSES
    from tracekit.present import CAUSE_COLOURS

    assert set(CAUSES) == set(CAUSE_COLOURS)


def test_what_a_page_says_of_idle_time_is_of_the_same_steps(tmp_path: Path) -> None:
    """The first step of this run is cold, and is left out where runs are compared."""
    run, _ = tracekit.ingest(SAMPLES / "ddp_4gpu.sqlite", store=tmp_path / "store")
    assert tracekit.study([run])["skipped"].item() == 1
    close = Subject(_Library(), (run,)).close
    idle = close.facts["idle_ns"] + close.facts["between_steps_ns"]
    assert close.idle.rows["step_ns"].sum() == pytest.approx(idle)


def test_the_legend_of_steps_names_the_causes_of_idle_time_in_sight() -> None:
    lanes = [
        {"kind": "idle", "stage": [LOOKS.index("launch_latency"), LOOKS.index("off_cpu")]},
        {"kind": "ops", "stage": [LOOKS.index("FP")]},
        {"kind": "path", "stage": [LOOKS.index("host")]},
    ]
    texts = [entry.text for entry in _legend([{"lanes": lanes}, {"lanes": []}])]
    assert texts[-2:] == ["idle: off cpu", "idle: launch latency"]
    assert texts == [entry.text for entry in _legend([])] + texts[-2:]
