"""`--where`, `--sort`, `--top` and `--full-names`: rows, and how kernels are named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import tracekit

from tracekit.model import readable_names

KERNELS = ("breakdown", "ddp", "--by", "kernel")


def rows(*words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(tracekit(*words, "-f", "json").stdout)["rows"]
    return found


@pytest.fixture(autouse=True)
def _with_run(stored: Path) -> None:
    """Each test has the run `ddp`."""


def test_rows_are_chosen_ordered_and_counted() -> None:
    every = rows(*KERNELS)
    expected = sorted(
        (row for row in every if row["mean_ns"] > 20_000 and "gemm" in row["name"]),
        key=lambda row: -row["ops"],
    )
    assert len(expected) > 2
    chosen = rows(*KERNELS, "--where", "mean>20us", "--where", "name~gemm", "--sort", "ops")
    assert chosen == expected
    assert rows(*KERNELS, "--sort", "ops", "--top", "3") == sorted(
        every, key=lambda row: -row["ops"]
    )[:3]  # fmt: skip
    assert rows(*KERNELS, "--sort", "-total")[0]["total_ns"] == min(r["total_ns"] for r in every)
    table = tracekit(*KERNELS, "--top", "2", "--sort", "mean").stdout
    assert f"2 of {len(every)} rows · by mean" in table


def test_conditions_on_names_of_a_table_are_on_the_numbers_that_it_shows() -> None:
    """A step is shown as the mean over four GPUs; `window_ns` is their sum."""
    steps = ("breakdown", "ddp", "--by", "iteration")
    every = [row for row in rows(*steps) if row["iteration"] is not None]
    devices, lengths = every[0]["devices"], sorted(row["window_ns"] for row in every)
    assert devices > 1
    middle = (lengths[0] + lengths[-1]) // 2
    longer = {row["iteration"] for row in every if row["window_ns"] > middle}
    for condition in (f"window>{middle // devices}ns", f"window_ns>{middle}"):
        chosen = rows(*steps, "--where", condition, "--where", "iteration>=0")
        assert {row["iteration"] for row in chosen} == longer


def test_kernels_are_found_by_the_names_that_a_table_shows_and_by_recorded_ones() -> None:
    every = rows(*KERNELS)
    short = readable_names(row["name"] for row in every)
    name, shown = next(
        (long, text) for long, text in short.items() if re.sub(r"\W.*", "", text) not in long
    )
    found = [row for row in every if row["name"] == name]
    for condition in (f"name={shown}", f"name={name}", f"name~^{re.escape(shown)}$"):
        assert rows(*KERNELS, "--where", condition) == found
    for condition in (f"name!={shown}", f"name!~^{re.escape(shown)}$"):
        others = rows(*KERNELS, "--where", condition)
        assert others == [row for row in every if row["name"] != name]


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("stage=FP", lambda row: row["stage"] == "FP"),
        ("stage!=FP", lambda row: row["stage"] != "FP"),
        ("stage!~^[FB]P$", lambda row: row["stage"] not in ("FP", "BP")),
        ("share >= 10%", lambda row: row["share"] >= 0.1),
        ("share<.1", lambda row: row["share"] < 0.1),
        ("exposed_ns<=1ms", lambda row: row["exposed_ns"] <= 1_000_000),
        ("ops>0.1k", lambda row: row["ops"] > 100),
        (
            "stage=IO or ops>0.1k and share >= 10% or stage~ and ",
            lambda row: row["stage"] == "IO" or (row["ops"] > 100 and row["share"] >= 0.1),
        ),
    ],
)
def test_conditions(condition: str, holds: Any) -> None:
    every = rows("breakdown", "ddp")
    expected = [row for row in every if holds(row)]
    assert 0 < len(expected) < len(every)
    assert rows("breakdown", "ddp", "--where", condition) == expected


def test_shares_are_closed_by_idle_time_only_where_all_rows_are_there() -> None:
    assert " idle  " in tracekit("breakdown", "ddp").stdout
    assert " idle  " not in tracekit("breakdown", "ddp", "--where", "stage=FP").stdout
    assert "no row meets ops>1G" in tracekit("breakdown", "ddp", "--where", "ops>1G").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sort", "shar"], "did you mean 'share'?"),
        (["--where", "stage=XX"], "stage 'XX' is unknown: choose among FP, BP"),
        (["--where", "nothing"], "cannot read the condition"),
        (["--where", "nothing=1"], "unknown column 'nothing'"),
        (["--where", "stage<FP"], "does not order"),
        (["--where", "stage~("], "cannot read the pattern"),
        (["--where", "share>many%"], "cannot read the number"),
        (["--where", "exposed>long"], "is not a time"),
        (["--where", "exposed>10"], "names no unit: write it as exposed>10ms, or exposed>10ns"),
        (["--by", "stgae"], "did you mean 'stage'?"),
        (["-o", "table.xlsx"], "no format has the ending of table.xlsx"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: list[str], said: str) -> None:
    answer = tracekit("breakdown", "ddp", *words)
    assert answer.exit_code == 2
    assert said in answer.stderr
    assert not answer.stdout


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["diff"], "compare"), (["stats"], "breakdown"), (["ls"], "runs list"),
        (["rm", "x"], "runs remove"), (["runs", "ls"], "list"), (["runs", "rm", "x"], "remove"),
        (["brekdown"], "breakdown"),
    ],
)  # fmt: skip
def test_commands_of_other_programs_are_understood(words: list[str], meant: str) -> None:
    answer = tracekit(*words)
    assert answer.exit_code == 2
    assert f"Did you mean '{meant}'?" in " ".join(answer.stderr.split())


def test_names_are_full_where_that_is_asked_for_and_in_data() -> None:
    name = next(row["name"] for row in rows(*KERNELS) if row["name"].startswith("void "))
    assert name not in tracekit(*KERNELS).stdout
    assert name in tracekit(*KERNELS, "--full-names").stdout
    assert name in tracekit(*KERNELS, "--format", "csv").stdout.replace('""', '"')


def test_metric_evaluation_is_explained_where_it_is_first_seen() -> None:
    assert "ME: metric evaluation" in tracekit("breakdown", "ddp").stdout


def test_csv_on_a_terminal_sends_it_no_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracekit.cli._output import _without_controls

    assert _without_controls("a,b\n\x1b[31mred,1\n") == "a,b\n␛[31mred,1\n"
