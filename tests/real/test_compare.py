"""The same U-Net training without and with mixed precision, side by side."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from compared_traces import compare

from tracekit.analysis.communication import Traffic
from tracekit.analysis.comparison import Comparison, check_limit
from tracekit.attribution import Rules, attribute
from tracekit.machine import machine_of
from tracekit.model import Trace
from tracekit.sources import read

Pair = tuple[Trace, Trace]
BACKWARD = {"faster": "slower", "slower": "faster"}
KEYS = {
    "stage": ["stage"], "kind": ["kind"], "kernel": ["name", "kind"], "range": ["range"],
    "api": ["api"], "link": ["link", "src", "dst"], "device": ["device"],
}  # fmt: skip


@pytest.fixture(scope="module")
def pair(nsys_export: Callable[[str], Path]) -> Pair:
    names = ("unet_1xgpu_dali.qdrep", "unet_1xgpu_dali_amp.qdrep")
    runs = [attribute(read(nsys_export(name), lambda *_: None), Rules.load()) for name in names]
    return runs[0], runs[1]


@pytest.fixture(scope="module")
def compared(pair: Pair) -> Callable[..., Comparison]:
    moved = tuple(Traffic(run, machine_of(run.read("devices"), None)) for run in pair)

    def compare_by(by: str, a: int = 0, b: int = 1, **options: bool) -> Comparison:
        return compare(pair[a], pair[b], by, traffic=(moved[a], moved[b]), **options)

    return compare_by


def test_these_are_the_runs(pair: Pair) -> None:
    """Numbers of the traces' README."""
    length = pl.col("end") - pl.col("start")
    found = [
        run["ops"].filter(pl.col("kind") == "compute")
        .select(pl.len(), length.sum() / 1e6).collect().row(0)
        for run in pair
    ]  # fmt: skip
    assert [count for count, _ in found] == [17_722, 19_984]
    assert [total for _, total in found] == pytest.approx([4_833.8, 3_157.3], abs=0.05)


def test_which_stages_changed(compared: Callable[..., Comparison]) -> None:
    found = compared("stage")
    assert found.meta["not_comparable"] == []
    assert found.meta["a_iterations"] == found.meta["b_iterations"] == 29
    stages = {row["stage"]: row for row in found.table.iter_rows(named=True)}
    assert {name: row["verdict"] for name, row in stages.items()} == {
        "FP": "faster", "BP": "faster", "WU": "slower", "IO": "slower",
        "OTHER": "slower", "idle": "slower", "between_steps": "no difference shown",
    }  # fmt: skip
    expected = {"FP": -19.036, "BP": -38.312, "WU": 0.959, "IO": 19.236, "between_steps": 19.676}
    for name, change in expected.items():
        assert stages[name]["delta_ns"] / 1e6 == pytest.approx(change, abs=5e-4)
        assert stages[name]["low_ns"] < stages[name]["delta_ns"] < stages[name]["high_ns"]
    # Forward and backward pass get what mixed precision promises; the loader takes half of it.
    assert stages["FP"]["ratio"] == pytest.approx(0.674, abs=1e-3)


def test_contributions_add_up(pair: Pair, compared: Callable[..., Comparison]) -> None:
    found = compared("stage")
    parts, step = found.contributions, found.meta["step"]
    for side, run in zip("ab", pair, strict=True):
        total = parts[f"{side}_total_ns"].sum()
        assert total / 29 == step[f"{side}_ns"]
        # Steps follow each other, from the first op of the first one to the last one's last.
        ops = run.read("ops").drop_nulls("iteration").filter(pl.col("stage") != "IO")
        assert total == pytest.approx(ops["end"].max() - ops["start"].min(), rel=0.01)
    assert parts["delta_ns"].sum() == pytest.approx(step["delta_ns"])
    assert parts["share"].sum() == pytest.approx(1)


def test_the_gain_is_lost_to_loading(compared: Callable[..., Comparison]) -> None:
    """Steps vary so much more with mixed precision that no change of them is shown."""
    found = compared("stage")
    step = found.meta["step"]
    assert step["delta_ns"] / 1e6 == pytest.approx(-16.743, abs=5e-4)
    assert step["verdict"] == "no difference shown"
    assert step["low_ns"] < 0 < step["high_ns"]
    # Four steps of more than 200 ms, where a median one takes 136 ms; without, all are alike.
    assert [round(step[f"{side}_median_ns"] / 1e6) for side in "ab"] == [165, 136]
    idle = found.contributions.filter(part="idle").row(0, named=True)
    assert idle["verdict"] == "slower"
    assert check_limit(compared("stage"), 5).outcome == "within"
    back = check_limit(compared("stage", 1, 0), 5)
    # The four long steps are named, and hide no longer that all others lose by going back.
    assert back.outcome == "above"
    assert " without step " in back.sentence


def test_a_typical_step_gains(pair: Pair) -> None:
    """Four long steps hide from the mean what nearly all steps of mixed precision gain."""
    found = compare(*pair, metric="median", least=5)
    step = found.meta["step"]
    assert step["shift_verdict"] == found.meta["judged"]["verdict"] == "faster"
    assert step["shift_ns"] / 1e6 == pytest.approx(-31.029, abs=5e-3)
    assert compare(*pair, least=5).meta["judged"]["verdict"] == "unknown"
    cause = "(180.24 ms more idle)"
    assert f"step 8 of B: 2.3 times the median {cause}" in found.meta["notes"]


def test_which_kernels_changed(compared: Callable[..., Comparison]) -> None:
    found = compared("kernel").table
    assert found.height == 97  # 93 names of kernels, 3 of copies, 1 of fills
    top = found.row(0, named=True)
    assert top["name"].startswith("void convolveNd_dgrad_float_engine<float")
    assert (top["a_count"], top["b_count"], top["only_in"]) == (3, 0, "A")
    assert top["verdict"] == "faster"
    # By normalised names those of either precision are one.
    matched = compared("kernel", match_names=True).table
    assert matched.height == 44
    both = matched.filter(name="convolveNd_dgrad_float_engine").row(0, named=True)
    assert (both["a_count"], both["b_count"], both["only_in"]) == (3, 2, None)
    assert matched["a_ns"].sum() == pytest.approx(found["a_ns"].sum(), rel=1e-3)


@pytest.mark.parametrize("by", KEYS)
def test_a_run_does_not_differ_from_itself(compared: Callable[..., Comparison], by: str) -> None:
    for run in (0, 1):
        found = compared(by, run, run)
        for table in (found.table, found.contributions):
            assert set(table["verdict"]) == {"too small to matter"}
            for name in ("delta_ns", "low_ns", "high_ns"):
                assert set(table[name]) == {0}


@pytest.mark.parametrize("by", KEYS)
def test_swapping_flips_every_sign(compared: Callable[..., Comparison], by: str) -> None:
    there, back = compared(by), compared(by, 1, 0)
    pairs = ((there.table, back.table, KEYS[by]), (there.contributions, back.contributions, "part"))
    for table, mirror, columns in pairs:
        both = table.join(mirror, on=columns, nulls_equal=True, suffix="_of_mirror")
        assert both.height == table.height == mirror.height > 0
        for name, other in (("delta_ns", "delta_ns"), ("low_ns", "high_ns"), ("a_ns", "b_ns")):
            sign = 1 if name == "a_ns" else -1
            assert (both[name] == sign * both[f"{other}_of_mirror"]).all()
        turned = [BACKWARD.get(verdict, verdict) for verdict in both["verdict"]]
        assert turned == both["verdict_of_mirror"].to_list()


# Step, idle time inside of step ranges and between them, by SQL alone: the first op and the last
# one that calls inside of the ranges launched, and the gaps of all ops between these two. The last
# is no input (copies to the GPU, kernels of DALI), which is for a later step.
_BY_SQL = """
    WITH steps AS (
        SELECT n.start, n.end FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId
        WHERE n.end IS NOT NULL AND COALESCE(n.text, s.value) GLOB :steps),
    ops AS (
        SELECT start, end, correlationId, value LIKE '%dali%' AS is_input
        FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName
        UNION ALL SELECT start, end, correlationId, copyKind = 1 FROM CUPTI_ACTIVITY_KIND_MEMCPY
        UNION ALL SELECT start, end, correlationId, 0 FROM CUPTI_ACTIVITY_KIND_MEMSET),
    launched AS (
        SELECT o.start, o.end, o.is_input, r.start AS at
        FROM ops o JOIN CUPTI_ACTIVITY_KIND_RUNTIME r USING (correlationId)),
    edges AS (
        SELECT
            (SELECT MIN(start) FROM launched WHERE at >= (SELECT MIN(start) FROM steps)) AS first,
            (SELECT MAX(end) FROM launched WHERE NOT is_input AND at BETWEEN
                (SELECT MAX(start) FROM steps) AND (SELECT MAX(end) FROM steps)) AS last),
    inside AS (
        SELECT MAX(start, first) AS start, MIN(end, last) AS end FROM ops, edges
        WHERE end > first AND start < last),
    gaps AS (
        SELECT start AS until, MAX(end) OVER (
            ORDER BY start, end ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS since
        FROM inside),
    idle AS (SELECT since, until FROM gaps WHERE until > since)
    SELECT last - first, (
            SELECT SUM(MIN(i.until, s.end) - MAX(i.since, s.start))
            FROM idle i JOIN steps s ON s.start < i.until AND s.end > i.since),
        (SELECT SUM(until - since) FROM idle)
    FROM edges
"""
FIRST_LINES = {
    ("mnist_1xa100_phases", "mnist_1xa100_first_optimization"): (
        "Batch [0-9]*",
        (r"step: 151.37 ms in A, 115.06 ms in B: faster by 36.32 ms \(-24.0 %\); shown of .*, .*; "
         r"carried by idle time between steps \(-35.85 ms\)"),
    ),
    ("unet_1xa100_4workers", "unet_1xa100_dali"): (
        "step [0-9]*",
        (r"step: 1.24 s in A, 1.20 s in B: faster by 41.02 ms \(-3.3 %\); shown of .*, .*; "
         r"carried by IO \(-21.48 ms\); "
         r"not comparable \(.*40GB in A, .*80GB in B\)"),
    ),
    ("unet_1xgpu_dali", "unet_1xgpu_dali_amp"): (
        "step [0-9]*",
        (r"step: 166.58 ms in A, 149.83 ms in B: faster by 16.74 ms \(-10.1 %\); not shown, .*; "
         r"carried by BP \(-38.31 ms\); without step 8 of B \(.*\) and 3 more B is faster by .*"),
    ),
}  # fmt: skip


def test_steps_that_take_turns(nsys_export: Callable[[str], Path]) -> None:
    """One reading of a file serves two steps: 8 and 232 ms by turns, whose mean is well known."""
    path = nsys_export("mnist_1xa100_first_optimization.nsys-rep")
    run = attribute(read(path, lambda *_: None), Rules.load())
    found = compare(run, run)
    step = found.meta["step"]
    assert step["a_effective"] > 2 * found.meta["a_iterations"]
    assert (step["shift_ns"], step["shift_verdict"]) == (None, "unknown")
    assert (
        "steps of A are of two kinds: 31 of 8.46 ms and 28 of 232.07 ms (medians); none is typical "
        "of all"
    ) in found.meta["notes"]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(names, marks=[pytest.mark.nightly] if "unet_1xa100_dali" in names else [])
        for names in FIRST_LINES
    ],
    ids="-".join,
)
def test_the_first_line_is_what_plain_sql_says(
    names: tuple[str, str], nsys_export: Callable[[str], Path]
) -> None:
    exports = [nsys_export(name) for name in names]
    runs = [attribute(read(path, lambda *_: None), Rules.load()) for path in exports]
    steps, line = FIRST_LINES[names]
    found = compare(runs[0], runs[1], anyway=True, skip=0)  # SQL adds up all steps
    assert re.fullmatch(line, found.meta["headline"])
    parts = found.contributions
    for side, path in zip("ab", exports, strict=True):
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            total, inside, idle = connection.execute(_BY_SQL, {"steps": steps}).fetchone()
        assert found.meta["step"][f"{side}_total_ns"] == total
        known = dict(parts.select("part", f"{side}_total_ns").iter_rows())
        assert (known["idle"], known["between_steps"]) == (inside, idle - inside)
