"""The questions of the DGX-1 study, of a small table worked by hand."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tracekit.analysis.studies import load_published, study
from tracekit.analysis.studies._measured_elsewhere import beside
from tracekit.model import Answer
from tracekit.papers import QUESTIONS, Measured, dgx1_questions
from tracekit.papers._dgx1_questions import _apart, ends, holds

PUBLISHED = load_published("dgx1")
MS = 1_000_000


def _run(network: str, method: str, gpus: int, step: float, **row: Any) -> dict[str, Any]:
    """A run with so many ms a step, of which the passes take 2 and the weight update waits 1."""
    return {
        "run": f"{network}-{method}-{gpus}-{row}", "network": network, "batch": 16, "gpus": gpus,
        "method": method, "scaling": "strong", "basis": "gpu", "step_ns": step * MS,
        "epoch_ns": None, "fp_bp_ns": 2.0 * MS, "wu_ns": 1.5 * MS, "wu_exposed_ns": 1.0 * MS,
        "wu_residual_ns": None, "io_exposed_ns": 0.0, "me_exposed_ns": 0.0,
        "other_exposed_ns": 0.0, "idle_ns": 0.0, "between_steps_ns": 0.0,
        "bytes_between_gpus": None,
    } | row  # fmt: skip


RUNS = [
    _run("lenet", "p2p", 1, 4.0), _run("lenet", "nccl", 1, 4.0),
    _run("lenet", "p2p", 8, 10.0), _run("lenet", "nccl", 8, 11.0),
    _run("lenet", "p2p", 8, 5.0, batch=32),
    _run("lenet", "p2p", 8, 9.0, scaling="weak"),
    _run("googlenet", "p2p", 1, 40.0), _run("googlenet", "nccl", 1, 41.0),
    _run("googlenet", "p2p", 8, 160.0), _run("googlenet", "nccl", 8, 80.0),
]  # fmt: skip
MEMORY = [
    {"network": "lenet", "method": method, "batch": batch, "gpus": 8, "gpu": gpu, "source": "smi",
     "pre_bytes": 0, "training_bytes": size}
    for method, batch, gpu, size in (
        ("p2p", 16, 0, 150), ("p2p", 16, 1, 100), ("p2p", 16, 2, 100), ("p2p", 32, 0, 165),
        ("p2p", 32, 1, 110), ("nccl", 16, 0, 160), ("nccl", 16, 1, 100),
    )
]  # fmt: skip
ROUTES = [
    {"network": "lenet", "batch": 16, "gpus": 8, "method": "p2p", "route_type": kind,
     "transfers": 4, "bytes": size, "busy_ns": time}
    for kind, size, time in (("nvlink", 6_000, 300), ("socket", 2_000, 700))
]  # fmt: skip


def _answers(runs: list[dict[str, Any]] | None = None) -> dict[str, Answer]:
    table = study(RUNS if runs is None else runs)
    return dgx1_questions(Measured(table, pl.DataFrame(MEMORY), pl.DataFrame(ROUTES), PUBLISHED))


@pytest.fixture(scope="module")
def answers() -> dict[str, Answer]:
    return _answers()


def test_every_question_is_asked_in_order(answers: dict[str, Answer]) -> None:
    assert list(answers) == list(QUESTIONS) == [
        "scaling", "methods", "networks", "batches", "stages", "memory", "weak", "routes",
    ]  # fmt: skip
    assert all(answer.meta["question"].endswith("?") for answer in answers.values())
    assert all(answer.meta["headline"].endswith(".") for answer in answers.values())
    assert all(answer.rows.height for answer in answers.values())


def test_speedups_stand_beside_published_ones(answers: dict[str, Answer]) -> None:
    """A step on 8 GPUs handles 8 times the images: 8 x 4 / 10 = 3.2 against 3.36."""
    rows = answers["scaling"].rows.filter(pl.col("gpus") == 8)
    found = {(n, m): rest for n, m, *rest in rows.select(
        "network", "method", "speedup", "published", "relation", "error_percent", "within"
    ).rows()}  # fmt: skip
    assert found["lenet", "p2p"] == [3.2, 3.36, "=", pytest.approx(100 * (3.2 / 3.36 - 1)), None]
    assert found["googlenet", "p2p"] == [2.0, 3.0, "<", None, True]
    assert found["googlenet", "nccl"] == [pytest.approx(4.1), 4.4, "<", None, True]
    said = answers["scaling"].meta["headline"]
    assert said.startswith(
        "On 8 GPUs training is 2.00 (googlenet, p2p, batch 16) to 4.10 (googlenet, nccl, batch 16)"
    )
    assert said.endswith("2 of 2 published bounds are met.")


def test_nccl_against_p2p(answers: dict[str, Answer]) -> None:
    answer = answers["methods"]
    rows = answer.rows.select("network", "gpus", "overhead_percent", "published").sort(
        "network", "gpus"
    )
    assert rows.rows() == [
        ("googlenet", 1, 2.5, 18.7), ("googlenet", 8, -50.0, 18.7),
        ("lenet", 1, 0.0, 16.4), ("lenet", 8, pytest.approx(10.0), 16.4),
    ]  # fmt: skip
    assert "in 0 of 2 on 1 GPU, 1 of 2 on 8 GPUs" in answer.meta["headline"]
    assert set(answer.meta["claims"].values()) == {True}


def test_alexnet_beside_lenet() -> None:
    """Of lenet's 2 on two GPUs 1.8 is 10 % off, 1.5 is 25 %."""
    for step, is_alike in ((40 / 1.8, True), (40 / 1.5, False)):
        runs = [
            _run("lenet", "p2p", 1, 4.0), _run("lenet", "p2p", 2, 4.0),
            _run("alexnet", "p2p", 1, 20.0), _run("alexnet", "p2p", 2, step),
        ]  # fmt: skip
        (found,) = _answers(runs)["scaling"].meta["claims"].values()
        assert found is is_alike


def _precise(network: str, method: str, gpus: int, step: float, error: float) -> dict[str, Any]:
    """A run of twenty steps, the mean of which has a standard error of so many percent."""
    return _run(
        network, method, gpus, step, iterations=20, step_se_ns=step * MS * error / 100,
        step_effective=20.0,
    )  # fmt: skip


@pytest.mark.parametrize(("error", "shown"), [(5.0, 0), (0.1, 1)])
def test_what_may_be_noise_is_not_counted(error: float, shown: int) -> None:
    """Of 3 % less on one GPU nothing is shown where means are known to 5 %."""
    runs = [
        _precise("googlenet", method, gpus, step, error if gpus == 1 else 0.1)
        for method, gpus, step in (
            ("p2p", 1, 40.0), ("nccl", 1, 38.8), ("p2p", 8, 160.0), ("nccl", 8, 80.0),
        )
    ]  # fmt: skip
    answer = _answers(runs)["methods"]
    assert f"in {shown} of 1 on 1 GPU, 1 of 1 on 8 GPUs" in answer.meta["headline"]
    assert list(answer.meta["claims"].values()) == [False]  # on 8 it takes half as long


@pytest.mark.parametrize(("error", "claim"), [(5.0, False), (0.1, True)])
def test_what_may_be_noise_is_no_finding(error: float, claim: bool) -> None:
    runs = [
        _precise("googlenet", method, gpus, step, error)
        for method, gpus, step in (
            ("p2p", 1, 40.0), ("nccl", 1, 40.0), ("p2p", 8, 80.0), ("nccl", 8, 82.0),
        )
    ]  # fmt: skip
    assert list(_answers(runs)["methods"].meta["claims"].values()) == [claim]


def test_what_one_case_leaves_open_is_not_said_of_all() -> None:
    """Of two large networks one has no interval; that the other is slower would still tell."""
    for step, claim in ((80.0, None), (320.0, False)):
        runs = [
            _precise(network, method, gpus, time, 0.1)
            for network in ("googlenet", "inception-v3")
            for method, gpus, time in (
                ("p2p", 1, 40.0), ("nccl", 1, 40.0), ("p2p", 8, 160.0), ("nccl", 8, step),
            )
        ]  # fmt: skip
        runs[-1] |= {"step_se_ns": None, "step_effective": None}
        answers = _answers(runs)
        large, _ = answers["networks"].meta["claims"].values()
        assert large is claim
        assert list(answers["routes"].meta["claims"].values()) == [claim]


def test_networks_on_most_gpus(answers: dict[str, Answer]) -> None:
    answer = answers["networks"]
    assert answer.rows.filter(network="lenet", method="p2p")["wu_share"].item() == 0.1
    assert list(answer.meta["claims"].values()) == [True, True]


def test_runs_that_only_their_names_tell_apart_have_bars_of_their_own() -> None:
    unlabelled = [_run(None, None, 8, 9.0, run=name, batch=None) for name in ("one", "other")]
    (told, apart) = (_answers(runs)["networks"].tables["stages"] for runs in (None, unlabelled))
    assert "run" not in told.columns
    assert apart["run"].unique().sort().to_list() == ["one", "other"]


def test_epochs_by_batch(answers: dict[str, Answer]) -> None:
    """Half the steps, each half as long."""
    rows = answers["batches"].rows
    assert rows.select("batch", "change_percent", "proportional_percent").rows() == [
        (32, -75.0, -50.0)
    ]
    assert list(answers["batches"].meta["claims"].values()) == [False]


def test_memory_of_the_root(answers: dict[str, Answer]) -> None:
    rows = answers["memory"].rows.select(
        "method", "batch", "extra_percent", "published", "increase_percent",
        "published_increase_percent",
    )  # fmt: skip
    assert rows.rows() == [
        ("nccl", 16, 60.0, 41.1, 0.0, None),
        ("p2p", 16, 50.0, 41.1, 0.0, None),
        ("p2p", 32, 50.0, 39.4, 10.0, 3.0),
    ]
    more, apart = answers["memory"].meta["claims"].values()
    assert (more, apart) == (True, False)  # 160 and 150 bytes are 6.7 % apart


def test_weak_against_strong(answers: dict[str, Answer]) -> None:
    assert answers["weak"].rows["reduction_percent"].to_list() == [pytest.approx(10.0)]
    assert set(answers["weak"].meta["claims"].values()) == {True}


def test_kinds_of_routes(answers: dict[str, Answer]) -> None:
    rows = answers["routes"].rows.select("route_type", "achieved_gb_s", "bytes_share", "time_share")
    assert rows.rows() == [
        ("nvlink", 20.0, 0.75, 0.3), ("socket", pytest.approx(2 / 0.7), 0.25, 0.7)
    ]  # fmt: skip
    assert set(answers["routes"].meta["claims"].values()) == {False}  # it does not for lenet


def test_what_was_not_measured_on_one_gpu_is_set_beside_nothing() -> None:
    found = _answers([run for run in RUNS if run["gpus"] == 8 and run["method"] == "p2p"])
    for key in ("scaling", "methods", "stages", "weak"):
        assert found[key].rows.is_empty()
        assert found[key].meta["headline"].startswith("No run shows it")
    assert set(found["networks"].meta["claims"].values()) == {None}
    assert found["routes"].meta["headline"].startswith("On 8 GPUs NCCL and P2P are not both known.")


def test_what_was_published() -> None:
    assert PUBLISHED.images == 262_144
    assert PUBLISHED.speedups.height == 2 * 3 + 2 * 3 * 3
    assert PUBLISHED.overheads["published"].min() == 16.2
    assert PUBLISHED.overheads["published"].max() == 31.8
    assert (PUBLISHED.memory_extra.height, PUBLISHED.memory_growth.height) == (15, 10)


@pytest.mark.parametrize(
    ("relation", "own", "error", "within"),
    [
        ("=", 3.0, 50.0, None),
        ("<", 2.0, None, False),
        ("<=", 2.0, None, True),
        ("?", 2.0, None, None),
    ],
)
def test_errors_are_of_values_and_bounds_hold_or_not(
    relation: str, own: float, error: float | None, within: bool | None
) -> None:
    published = pl.DataFrame({"key": [1], "published": [2.0], "relation": [relation]})
    row = beside(pl.DataFrame({"key": [1, 2], "own": [own, 1.0]}), published, "own")
    assert row.select("error_percent", "within").rows() == [(error, within), (None, None)]


def test_ends_say_what_they_are_of() -> None:
    rows = pl.DataFrame({"network": ["a", "b", "c"], "value": [3.0, 1.0, None]})
    assert ends(rows, "value", "{:.0f}") == "1 (b) to 3 (a)"
    assert ends(rows.head(1), "value", "{:.0f} %") == "3 %"
    assert ends(rows.tail(1), "value", "{:.0f}") == "an unknown number"
    assert holds(rows["value"], lambda values: (values > 0).all()) is True
    assert holds(rows["value"].tail(1), lambda values: (values > 0).all()) is None


def test_methods_are_apart_by_what_the_one_takes_more_than_the_other() -> None:
    rows = pl.DataFrame(
        {
            "network": ["a", "a", "b", "b", "a"],
            "batch": [16, 16, 16, 32, 32],
            "root_bytes": [110, 100, 5, 7, 9],
        }
    )
    assert _apart(rows).to_list() == [pytest.approx(10)]


def test_recordings_of_hosts_answer_six_of_eight_questions() -> None:
    """Without a GPU's work there is no memory and no copy between GPUs; Gloo stands for NCCL."""
    of_hosts = [
        {**run, "basis": "host", "method": {"nccl": "gloo"}.get(run["method"], run["method"])}
        for run in RUNS
    ]
    nothing = (pl.DataFrame(rows).clear() for rows in (MEMORY, ROUTES))
    found = dgx1_questions(Measured(study(of_hosts), *nothing, PUBLISHED))
    told = {key for key, answer in found.items() if answer.rows.height}
    assert told == set(QUESTIONS) - {"memory", "routes"}
    assert found["memory"].meta["headline"].startswith("No run shows it: it takes recordings of")
    assert found["routes"].meta["headline"] == "No run shows it: it takes copies between GPUs."
    rows = found["methods"].rows.filter(gpus=8, network="lenet")
    assert rows.select("method", "overhead_percent").rows() == [("gloo", pytest.approx(10.0))]
    assert found["methods"].meta["headline"].startswith("Gloo is shown to take less time than P2P")
    assert found["methods"].meta["claims"] == {}  # they are of NCCL
    assert set(found["networks"].meta["claims"].values()) == {None}
    assert found["networks"].meta["per"] == "step/process"
    speedups = found["scaling"].rows.filter(network="lenet", method="p2p", gpus=8)
    assert speedups.select("speedup", "published").rows() == [(3.2, 3.36)]


@pytest.mark.parametrize("name", ["dgx1", "pai", "mpi", "survey"])
def test_every_published_claim_is_on_the_page(name: str) -> None:
    root = Path(__file__).parents[2]
    published = tomllib.loads((root / "schemas" / "published" / f"{name}.toml").read_text("utf-8"))
    page = (root / "docs" / "evidence" / "studies.md").read_text("utf-8")
    assert published["claim"]
    for claim in published["claim"]:
        assert claim["verdict"] in {"hit", "miss", "untested"}
        assert f"| {name} | {claim['says']} | {claim['verdict']} | {claim['by']} |" in page
