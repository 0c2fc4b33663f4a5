from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from cli_helpers import SAMPLE, document, tracekit

import tracekit as tk
from tracekit.analysis.facts._keys import KEYS

if TYPE_CHECKING:
    from pathlib import Path


def test_by_stage_has_the_documented_columns(stored: Path) -> None:
    content = document("breakdown")
    assert content["command"] == "breakdown"
    assert content["run"] == "ddp"
    columns = ["stage", "ops", "busy_ns", "exposed_ns", "overlap_ns", "share"]
    assert [list(row) for row in content["rows"]] == [columns] * len(content["rows"])
    meta = content["meta"]
    assert (meta["devices"], meta["iterations"], meta["skip"]) == (4, 6, 0)
    exposed = sum(row["exposed_ns"] for row in content["rows"])
    assert exposed + meta["idle_ns"] == meta["window_ns"]
    assert all(isinstance(row["busy_ns"], int) for row in content["rows"])


def test_by_kernel_has_the_documented_columns(stored: Path) -> None:
    rows = document("breakdown", "--by", "kernel")["rows"]
    assert list(rows[0]) == [
        "name", "kind", "ops", "total_ns", "mean_ns", "median_ns", "min_ns", "max_ns", "busy_ns",
        "share",
    ]  # fmt: skip


@pytest.mark.parametrize("key", [key for key in KEYS if key != "phase"])
def test_the_library_gives_the_same_rows(stored: Path, key: str) -> None:
    run = tk.open("ddp", store=stored)
    assert document("breakdown", "ddp", "--by", key)["rows"] == run.breakdown(key).to_dicts()


def test_keys_are_joined_by_commas_or_options(stored: Path) -> None:
    joined = document("breakdown", "--by", "stage, device")
    assert document("breakdown", "--by", "stage", "--by", "device") == joined
    assert {"stage", "device"} <= set(joined["rows"][0])


def test_skip_leaves_iterations_out(stored: Path) -> None:
    assert document("breakdown", "--skip", "2")["meta"]["iterations"] == 4
    assert document("breakdown", "--skip", "2")["meta"]["skip"] == 2


def test_per_iteration_adds_statistics(stored: Path) -> None:
    row = document("breakdown", "--per-iteration")["rows"][0]
    assert row["p5_ns"] <= row["median_ns"] <= row["p95_ns"]


def test_an_iteration_pattern_changes_what_is_found_and_not_the_store(stored: Path) -> None:
    before = document("breakdown")
    assert before["meta"]["iterations"] == 6
    assert document("breakdown", "--iteration", "^iteration [0-2]$")["meta"]["iterations"] == 3
    assert document("breakdown") == before


def test_a_file_is_ingested_on_the_way() -> None:
    content = document("breakdown", SAMPLE)
    assert content["run"] == "ddp_4gpu"
    assert document("breakdown") == content
    assert [row["name"] for row in document("runs")["rows"]] == ["ddp_4gpu"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--by", "stages"], "no breakdown by 'stages'"),
        (["--by", "stage,"], "no breakdown by ''"),
        (["--by", "stage", "--by", "stage"], "no breakdown by 'stage,stage': name each of"),
        (["--skip", "99"], "all iterations would be skipped (99 of 6)"),
        (["--iteration", "("], "("),
        (["--rules", "none.toml"], "none.toml"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_a_breakdown_cannot_do_is_one_message(
    stored: Path, words: list[str], message: str
) -> None:
    done = tracekit("breakdown", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("tracekit: ")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_title_says_which_run_and_what(stored: Path) -> None:
    titles = {
        ("--by", "stage,device"): " ddp · time by stage, device",
        (): " ddp · time by stage · sum over 4 GPUs",
        ("--by", "iteration"): " ddp · time by iteration · ms/step/GPU",
        ("--per-iteration",): (" ddp · time by stage · sum over 4 GPUs · percentiles: ms/step/GPU"),
    }
    for words, title in titles.items():
        headline, second = tracekit("breakdown", *words).stdout.splitlines()[:2]
        assert second == title
        assert "%" in headline or "step" in headline


def test_info(stored: Path) -> None:
    content = document("info")
    assert content["run"] == "ddp"
    by_feature = {row["feature"]: row for row in content["rows"]}
    assert by_feature["kernels"]["available"] == "yes"
    assert by_feature["kernels"]["record_with"] is None
    assert all(row["record_with"] for row in content["rows"] if row["available"] == "no")


def test_sql(stored: Path) -> None:
    query = "SELECT kind, count(*) AS n FROM ops GROUP BY kind ORDER BY n DESC LIMIT 1"
    content = document("sql", "@latest", query)
    assert content["rows"] == [{"kind": "compute", "n": 824}]
    assert content["meta"] == {"query": query}


def test_sql_of_no_rows(stored: Path) -> None:
    done = tracekit("sql", "@latest", "SELECT op FROM ops WHERE op < 0")
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, " no rows")


@pytest.mark.parametrize(
    "query", ["", "SELEC 1", "SELECT nothing FROM ops", "SELECT * FROM nowhere", "DROP TABLE ops"]
)
def test_sql_that_is_wrong(stored: Path, query: str) -> None:
    done = tracekit("sql", "@latest", query)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("tracekit: ")
    assert "Traceback" not in done.stderr
    assert tracekit("sql", "@latest", "SELECT count(*) AS n FROM ops").exit_code == 0


def test_a_breakdown_by_range_may_be_inclusive(stored: Path) -> None:
    run = tk.open("ddp", store=stored)
    content = document("breakdown", "ddp", "--by", "range", "--inclusive")
    assert content["rows"] == run.breakdown("range", inclusive=True).to_dicts()
    assert (content["meta"]["inclusive"], content["meta"]["depth"]) == (True, None)
    few = document("breakdown", "ddp", "--by", "range", "--depth", "2")
    assert few["rows"] == run.breakdown("range", depth=2).to_dicts()
    assert {row["depth"] for row in few["rows"]} == {0, 1}


def test_a_table_of_ranges_is_a_tree(stored: Path) -> None:
    table = tracekit("breakdown", "ddp", "--by", "range", "--depth", "2").stdout.splitlines()
    assert table[0] == " ddp · time by range, with all inside"
    begin = next(number for number, line in enumerate(table) if line.startswith(" iteration N"))
    assert [line.split("push_pop")[0].rstrip() for line in table[begin : begin + 3]] == [
        " iteration N", "   data", "   forward"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--inclusive"], "an inclusive breakdown is by range, or by range and kernel"),
        (["--by", "layer,device"], "a breakdown by layer is by layer alone"),
        (["--by", "range", "--depth", "0"], "Invalid value for '--depth'"),
    ],
)
def test_what_has_no_breakdown_is_wrong_usage(stored: Path, words: list[str], message: str) -> None:
    done = tracekit("breakdown", "ddp", *words)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize("name", ["breakdown", "links"])
def test_a_stretch_is_that_of_the_library(stored: Path, name: str) -> None:
    run = tk.open("ddp", store=stored)
    ask = getattr(run, name.replace("-", "_"))
    times = document(name, "--between", "0.1808s:195ms")
    assert times["rows"] == json.loads(json.dumps(ask(between="0.1808s:195ms").to_dicts()))
    steps = document(name, "--iterations", "1:2")
    assert steps["rows"] == json.loads(json.dumps(ask(iterations=(1, 2)).to_dicts()))
    assert steps["rows"] != times["rows"]


def test_times_of_a_stretch_have_any_unit(stored: Path) -> None:
    rows = document("breakdown", "--between", "0.1808s:195ms")["rows"]
    assert rows == document("breakdown", "--between", "180800us:195000000ns")["rows"]
    assert rows != document("breakdown")["rows"]


@pytest.mark.parametrize("text", ["12:13", "0.2s:0.1s", "8s:9s"])
def test_times_without_unit_order_or_work_are_refused(stored: Path, text: str) -> None:
    done = tracekit("breakdown", "--between", text)
    assert done.exit_code == 2
    assert done.stderr.startswith("tracekit: ")
    assert done.stderr.count("\n") == 1
