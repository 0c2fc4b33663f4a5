"""Strong and weak scaling of literal tables."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.analysis.statistics import quantile
from tracekit.analysis.studies import read_times, scaling
from tracekit.analysis.studies._study import STUDY
from tracekit.errors import InputError, UsageError

K256 = 256 * 1024


def table(*rows: dict[str, Any]) -> pl.DataFrame:
    """Return a study of LeNet with batch 16 by p2p, unless rows say otherwise."""
    usual = {"network": "lenet", "batch": 16, "method": "p2p"}
    full = [{name: ({**usual, **row}).get(name) for name in STUDY} for row in rows]
    return pl.DataFrame(full, schema=STUDY)


def epochs(times: dict[int, float], **row: Any) -> list[dict[str, Any]]:
    return [{"gpus": gpus, "epoch_ns": time, **row} for gpus, time in times.items()]


def column(frame: pl.DataFrame, name: str, digits: int = 4) -> list[Any]:
    return [None if value is None else round(value, digits) for value in frame[name].to_list()]


# Pooled, and not.


def test_runs_that_stand_by_themselves_are_not_pooled() -> None:
    rows = [
        {"run": name, "gpus": gpus, "step_ns": time}
        for name, gpus, time in (("one", 1, 100.0), ("two", 2, 80.0), ("again", 2, 40.0))
    ]
    columns = ("gpus", "run", "runs", "time_ns", "speedup", "speedup_low", "speedup_high")
    assert scaling(table(*rows)).rows.select(columns).rows() == [
        (1, "one", 1, 100, 1, None, None), (2, None, 2, 60, pytest.approx(10 / 3), 2.5, 5),
    ]  # fmt: skip
    assert scaling(table(*rows), apart=True).rows.select(columns).rows() == [
        (1, "one", 1, 100, 1, None, None),
        (2, "again", 1, 40, 5, None, None),
        (2, "two", 1, 80, 2.5, None, None),
    ]


def test_evaluation_in_steps_of_some_runs_is_told() -> None:
    rows = [
        {"run": f"{gpus}", "gpus": gpus, "step_ns": 100.0, "me_exposed_ns": time}
        for gpus, time in ((1, 0.0), (2, None), (4, 20.0))
    ]
    sentence = (
        "steps of 1 of 3 runs (such as 4) contain evaluation, those of 1 (such as 1) do not: they "
        "are compared all the same"
    )
    assert sentence in scaling(table(*rows)).meta["warnings"]
    assert sentence not in scaling(table(*rows[:2])).meta["warnings"]


def test_one_epoch_that_was_measured_is_what_is_compared() -> None:
    rows = table(*epochs({1: 100.0}), {"gpus": 2, "step_ns": 7.0})
    found = scaling(rows)
    assert found.meta["time"] == "epoch"
    assert found.rows["gpus"].to_list() == [1]


def test_the_spread_of_a_speedup_is_that_of_both_sides() -> None:
    rows = epochs({1: 100.0, 2: 50.0}) + epochs({1: 120.0, 2: 60.0})
    found = scaling(table(*rows)).rows.row(1, named=True)
    assert (found["speedup_low"], found["speedup_high"]) == (100 / 60, 120 / 50)


def test_several_named_runs_on_the_fewest_gpus_give_no_speedup() -> None:
    rows = [
        {"run": name, "gpus": gpus, "step_ns": 100.0 / gpus}
        for name, gpus in (("a", 1), ("b", 1), ("c", 2))
    ]
    found = scaling(table(*rows), apart=True).rows
    assert found.select("run", "speedup", "baseline_gpus").rows() == [
        ("a", None, 1), ("b", None, 1), ("c", None, 1),
    ]  # fmt: skip
    warnings = scaling(table(*rows), apart=True).meta["warnings"]
    assert "several runs on the smallest number of GPUs" in warnings[0]
    assert not scaling(table(*rows)).meta["warnings"]


# Strong.


@pytest.mark.parametrize(
    ("method", "speedups", "efficiencies", "serial"),
    [
        ("p2p", (1.62, 2.37, 3.36), (0.81, 0.5925, 0.42), (0.2346, 0.2293, 0.1973)),
        ("nccl", (1.56, 2.27, 2.77), (0.78, 0.5675, 0.34625), (0.2821, 0.2540, 0.2697)),
    ],
)
def test_lenet_of_the_slides(method: str, speedups: Any, efficiencies: Any, serial: Any) -> None:
    times = dict(zip((1, 2, 4, 8), (100.0, *(100 / s for s in speedups)), strict=True))
    found = scaling(table(*epochs(times, method=method))).rows
    assert found["gpus"].to_list() == [1, 2, 4, 8]
    assert column(found, "speedup") == [1.0, *speedups]
    assert column(found, "efficiency", 5) == [1.0, *efficiencies]
    assert column(found, "karp_flatt") == [None, *serial]
    assert found["baseline_gpus"].to_list() == [1] * 4
    assert found["mode"].unique().to_list() == ["strong"]
    assert found["reduction_percent"].null_count() == 4


def test_nccl_over_p2p_on_eight_gpus() -> None:
    rows = epochs({1: 100.0, 8: 100 / 3.36}) + epochs({1: 116.4, 8: 116.4 / 2.77}, method="nccl")
    times = dict(scaling(table(*rows)).rows.filter(gpus=8).select("method", "time_ns").iter_rows())
    assert times["nccl"] / times["p2p"] == pytest.approx(1.412, abs=5e-4)


def test_epochs_of_step_times() -> None:
    # 2 ms a step on one GPU, 16384 steps; 2.5 ms on eight, 2048 steps.
    rows = table({"gpus": 1, "step_ns": 2e6}, {"gpus": 8, "step_ns": 2.5e6})
    found = scaling(rows, images=K256).rows
    assert found["iterations_per_epoch"].to_list() == [16384, 2048]
    assert found["time_ns"].to_list() == [2e6 * 16384, 2.5e6 * 2048]
    assert found["speedup"].to_list() == [1.0, 6.4]
    assert found["efficiency"].to_list() == [1.0, 0.8]
    assert column(found, "images_per_s", 6) == [8000.0, 51200.0]
    assert scaling(rows, images=K256).meta["time"] == "epoch"


def test_step_times_alone_are_taken_per_image() -> None:
    rows = table({"gpus": 1, "step_ns": 2e6}, {"gpus": 8, "step_ns": 2.5e6})
    found = scaling(rows).rows
    assert found["time_ns"].to_list() == [2e6, 2.5e6]
    assert found["speedup"].to_list() == [1.0, 6.4]
    assert found["iterations_per_epoch"].to_list() == [None, None]
    assert column(found, "images_per_s", 6) == [8000.0, 51200.0]
    assert scaling(rows).meta == {
        "mode": "strong",
        "time": "step",
        "images": None,
        "batch_scope": "gpu",
        "runs": 2,
        "other_mode": 0,
        "untimed": 0,
        "warnings": [],
    }


def test_a_global_batch_makes_steps_of_equal_work() -> None:
    rows = table({"gpus": 1, "step_ns": 8e6, "batch": 64}, {"gpus": 8, "step_ns": 2e6, "batch": 64})
    for images in (None, 64_000):
        found = scaling(rows, batch_scope="global", images=images).rows
        assert found["speedup"].to_list() == [1.0, 4.0]
        assert column(found, "images_per_s", 6) == [8000.0, 32000.0]
    assert found["iterations_per_epoch"].to_list() == [1000, 1000]


def test_efficiency_of_throughput() -> None:
    # 100 images per second on one GPU, 5760 on 64.
    rows = [
        {"gpus": n, "batch": 64, "step_ns": 64 * n / x * 1e9} for n, x in ((1, 100), (64, 5760))
    ]
    found = scaling(table(*rows)).rows
    assert column(found, "images_per_s", 6) == [100.0, 5760.0]
    assert column(found, "efficiency", 9) == [1.0, 0.9]


def test_each_batch_size_has_its_own_baseline() -> None:
    # Larger batches: more images per second on one GPU, and better efficiency.
    rows = [
        {"gpus": n, "batch": b, "step_ns": step}
        for n, b, step in ((1, 16, 2e6), (4, 16, 4e6), (1, 64, 4e6), (4, 64, 5e6))
    ]
    found = scaling(table(*rows)).rows
    assert found.select("batch", "gpus", "efficiency").rows() == [
        (16, 1, 1.0), (16, 4, 0.5), (64, 1, 1.0), (64, 4, 0.8),
    ]  # fmt: skip
    assert column(found, "images_per_s", 3) == [8000.0, 16000.0, 16000.0, 51200.0]


def test_stages_have_speedups_of_their_own() -> None:
    rows = epochs({1: 140.0, 2: 80.0})
    rows[0] |= {"fp_bp_ns": 100.0, "wu_ns": 40.0}
    rows[1] |= {"fp_bp_ns": 40.0, "wu_ns": 50.0}
    found = scaling(table(*rows)).rows
    assert found["speedup"].to_list() == [1.0, 1.75]
    assert found["speedup_fp_bp"].to_list() == [1.0, 2.5]
    assert found["speedup_wu"].to_list() == [1.0, 0.8]


def test_speedups_of_stages_have_intervals_by_several_runs() -> None:
    """Variances of means as shares of their squares are (8 / 102^2) / 2 and (8 / 52^2) / 2."""
    times = {1: (100.0, 104.0), 2: (50.0, 54.0)}
    rows = [
        row | {"fp_bp_ns": time, "wu_ns": 10.0}
        for gpus, both in times.items() for time in both for row in epochs({gpus: time + 10})
    ]  # fmt: skip
    first, second = scaling(table(*rows)).rows.iter_rows(named=True)
    a, b = 4 / 102**2, 4 / 52**2
    freedom = (a + b) ** 2 / (a**2 + b**2)
    reach = math.exp(float(quantile(np.array([freedom]), 0.975)[0]) * math.sqrt(a + b))
    assert second["speedup_fp_bp"] == pytest.approx(102 / 52)
    assert second["speedup_fp_bp_from"] == pytest.approx(102 / 52 / reach)
    assert second["speedup_fp_bp_to"] == pytest.approx(102 / 52 * reach)
    assert (second["speedup_wu_from"], second["speedup_wu_to"]) == (1, 1)  # they do not scatter
    assert first["speedup_fp_bp_from"] is None
    alone = scaling(table(*(rows[0], rows[2]))).rows
    assert alone["speedup_fp_bp_from"].to_list() == [None, None]


def test_stages_of_steps_count_as_often_as_steps() -> None:
    rows = table(
        {"gpus": 1, "step_ns": 4e6, "fp_bp_ns": 3e6, "wu_ns": 0.0},
        {"gpus": 2, "step_ns": 5e6, "fp_bp_ns": 3e6, "wu_ns": 1e6},
    )
    for images in (None, K256):
        found = scaling(rows, images=images).rows
        assert found["speedup"].to_list() == [1.0, 1.6]
        assert found["speedup_fp_bp"].to_list() == [1.0, 2.0]
        # No time at all is nothing to be faster than.
        assert found["speedup_wu"].to_list() == [None, 0.0]


def test_bytes_of_an_epoch() -> None:
    rows = [{"gpus": 8, "batch": b, "step_ns": 1.0, "bytes_between_gpus": 3.36e9} for b in (16, 32)]
    found = scaling(table(*rows), images=K256).rows
    assert [round(each / 1e12, 2) for each in found["bytes_per_epoch"]] == [6.88, 3.44]
    assert scaling(table(*rows)).rows["bytes_per_epoch"].to_list() == [None, None]


def test_several_runs_of_a_configuration_count_by_their_median() -> None:
    rows = epochs({1: 90.0}) + epochs({1: 100.0}) + epochs({1: 400.0}) + epochs({2: 50.0})
    found = scaling(table(*rows)).rows
    assert found.select("gpus", "runs", "time_ns", "speedup").rows() == [
        (1, 3, 100.0, 1.0), (2, 1, 50.0, 2.0),
    ]  # fmt: skip
    # The time that is listed, not the median of the runs' own 10, 2.5 and so on per second.
    found = scaling(table(*epochs({1: 100.0}), *epochs({1: 400.0})), images=1000).rows
    assert found.select("time_ns", "images_per_s").row(0) == (250.0, 1000 / 250.0 * 1e9)


def test_without_one_gpu_speedup_is_relative_to_the_fewest() -> None:
    rows = table(*epochs({2: 60.0, 8: 20.0}))
    found = scaling(rows).rows
    assert found["baseline_gpus"].to_list() == [2, 2]
    assert found["speedup"].to_list() == [1.0, 3.0]
    assert found["efficiency"].to_list() == [1.0, 0.75]
    assert found["karp_flatt"].to_list() == [None, None]
    (warning,) = scaling(rows).meta["warnings"]
    assert "1 of 1 configuration not measured on one GPU: speedup" in warning
    alone = [{**row, "method": "none"} for row in epochs({1: 110.0})]
    found = scaling(table(*epochs({2: 60.0, 8: 20.0}), *alone))
    assert found.meta["warnings"][1] == (
        "1 of these have a run of the method `none` on one GPU; label it with their method "
        "to make it their baseline"
    )


def test_configurations_are_never_mixed() -> None:
    rows = [
        {"gpus": n, "epoch_ns": t, "network": net, "batch": b, "method": m}
        for net, b, m, n, t in (
            ("a", 16, "p2p", 1, 100.0), ("a", 16, "nccl", 2, 50.0), ("a", 32, "p2p", 2, 25.0),
            ("b", 16, "p2p", 2, 12.5), (None, None, None, 1, 10.0), (None, None, None, 2, 5.0),
        )
    ]  # fmt: skip
    found = scaling(table(*rows)).rows
    assert found.select("network", "method", "batch", "gpus", "speedup").rows() == [
        ("a", "nccl", 16, 2, 1.0), ("a", "p2p", 16, 1, 1.0), ("a", "p2p", 32, 2, 1.0),
        ("b", "p2p", 16, 2, 1.0), (None, None, None, 1, 1.0), (None, None, None, 2, 2.0),
    ]  # fmt: skip


def test_runs_without_time_or_gpus_are_counted() -> None:
    rows = table(*epochs({1: 10.0}), {"gpus": 2}, {"epoch_ns": 3.0}, {"gpus": 4, "epoch_ns": 0.0})
    assert scaling(rows).rows["gpus"].to_list() == [1]
    meta = scaling(rows).meta
    assert (meta["runs"], meta["untimed"]) == (1, 3)
    for why in ("1 run left out, whose number of GPUs is", "1 run left out, of which no step is"):
        assert any(why in text for text in meta["warnings"])


def test_an_empty_study() -> None:
    assert scaling(table()).rows.is_empty()
    assert scaling(table()).meta["runs"] == 0


# Weak.


def _weak_and_strong() -> pl.DataFrame:
    return table(
        *epochs({1: 200.0}),
        *epochs({8: 30.0}, scaling="strong"),
        *epochs({8: 211.2}, scaling="weak"),
    )


def test_weak_scaling() -> None:
    found = scaling(_weak_and_strong(), mode="weak").rows
    assert found["gpus"].to_list() == [1, 8]
    assert found["time_ns"].to_list() == [200.0, 211.2]
    assert column(found, "speedup", 3) == [1.0, 7.576]
    assert column(found, "efficiency") == [1.0, 0.947]
    assert column(found, "reduction_percent", 9) == [None, 12.0]
    assert found["karp_flatt"].to_list() == [None, None]
    assert scaling(_weak_and_strong(), mode="weak").meta["other_mode"] == 1


def test_strong_scaling_beside_it() -> None:
    found = scaling(_weak_and_strong()).rows
    assert column(found, "speedup", 3) == [1.0, 6.667]
    assert found["reduction_percent"].to_list() == [None, None]


def test_a_run_on_one_gpu_serves_both_modes() -> None:
    rows = table(*epochs({1: 200.0}, scaling="strong"), *epochs({8: 211.2}, scaling="weak"))
    assert column(scaling(rows, mode="weak").rows, "speedup", 3) == [1.0, 7.576]


def test_weak_scaling_of_step_times() -> None:
    # Eight times the images on eight GPUs: as many steps.
    rows = table({"gpus": 1, "step_ns": 200.0}, {"gpus": 8, "step_ns": 211.2})
    for images in (None, K256):
        found = scaling(rows, mode="weak", images=images).rows
        assert column(found, "speedup", 3) == [1.0, 7.576]
        assert found["reduction_percent"].to_list() == [None, None]
    assert found["iterations_per_epoch"].to_list() == [16384, 16384]
    assert found["time_ns"].to_list() == [200.0 * 16384, 211.2 * 16384]


def test_the_reduction_of_step_times() -> None:
    # 240 a step against 211.2, on eight GPUs each with its own batch.
    rows = table(
        {"gpus": 8, "step_ns": 240.0, "scaling": "strong"},
        {"gpus": 8, "step_ns": 211.2, "scaling": "weak"},
    )
    assert column(scaling(rows, mode="weak").rows, "reduction_percent", 9) == [12.0]


def test_weak_scaling_with_a_global_batch_takes_more_steps() -> None:
    rows = table({"gpus": 1, "step_ns": 100.0}, {"gpus": 4, "step_ns": 30.0})
    for images in (None, 1600):
        found = scaling(rows, mode="weak", batch_scope="global", images=images).rows
        assert column(found, "speedup") == [1.0, 3.3333]
        assert column(found, "efficiency") == [1.0, 0.8333]
    assert found["iterations_per_epoch"].to_list() == [100, 400]


# What holds of all.

_TIMES = st.dictionaries(
    st.integers(1, 64), st.floats(1.0, 1e12, allow_nan=False), min_size=1, max_size=6
)


@settings(deadline=None)
@given(_TIMES, st.sampled_from(["strong", "weak"]))
def test_efficiency_is_speedup_for_each_gpu(times: dict[int, float], mode: Any) -> None:
    found = scaling(table(*epochs(times)), mode=mode).rows
    first = min(times)
    for n, speedup, efficiency, serial in found.select(
        "gpus", "speedup", "efficiency", "karp_flatt"
    ).iter_rows():
        expected = times[first] / times[n] * (n / first if mode == "weak" else 1)
        assert speedup == pytest.approx(expected)
        assert efficiency == pytest.approx(speedup / (n / first))
        if serial is not None:  # Amdahl's law with that serial fraction gives the speedup again
            again = serial + (1 - serial) / n  # near 0, terms of the size of 1 have cancelled
            assert 1 / speedup == pytest.approx(again, rel=1e-9, abs=1e-9)
        assert (serial is not None) == (mode == "strong" and first == 1 and n > 1)


@settings(deadline=None, max_examples=examples(25, thorough=1000))
@given(_TIMES)
def test_step_times_give_the_same_speedups_as_their_epochs(times: dict[int, float]) -> None:
    rows = [{"gpus": n, "step_ns": time, "batch": 1} for n, time in times.items()]
    by_step = scaling(table(*rows)).rows["speedup"].to_list()
    # A data set that every number of GPUs divides: no last step is smaller than others.
    images = 1
    for n in times:
        images *= n
    if images < 10**12:
        assert scaling(table(*rows), images=images).rows["speedup"].to_list() == pytest.approx(
            by_step
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"images": 0}, "the number of images is 0"),
        ({"time": "epoch"}, "the number of steps of an epoch is unknown"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        scaling(table({"gpus": 1, "step_ns": 1.0}), **options)


# Times that were measured elsewhere.


def _write(folder: Path, text: str) -> Path:
    path = folder / "times.csv"
    path.write_bytes(text.encode())
    return path


def test_a_table_of_times(tmp_path: Path) -> None:
    text = (
        "\ufeff# measured with a watch\n"
        "Network, batch,gpus,method,step_ms,wu_us,run\r\n"
        "lenet,16,1,p2p,2,500,first\r\n"
        "\n"
        '"net, deep",,8,,2.5e-1,,\n'
    )
    found = read_times(_write(tmp_path, text))
    assert found.schema == STUDY
    columns = ("run", "network", "batch", "gpus", "method", "method_source", "step_ns", "wu_ns")
    assert found.select(columns).rows() == [
        ("first", "lenet", 16, 1, "p2p", "table", 2e6, 500e3),
        ("row 2", "net, deep", None, 8, None, None, 250e3, None),
    ]
    assert found["epoch_ns"].null_count() == 2


def test_scaling_of_a_table_of_times(tmp_path: Path) -> None:
    text = "network,batch,gpus,method,time_s\nlenet,16,1,p2p,100\nlenet,16,8,p2p,29.762\n"
    found = scaling(read_times(_write(tmp_path, text))).rows
    assert column(found, "speedup", 2) == [1.0, 3.36]
    assert column(found, "efficiency", 2) == [1.0, 0.42]


HEAD = "network,batch,gpus,method,epoch_s\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "as comma-separated text"),
        ("# nothing\n", "as comma-separated text"),
        (HEAD, "has no rows below its column names network, batch, gpus, method, epoch_s"),
        (HEAD + ",,,,\n", "has no rows below"),
        ("network,batch,gpus,epoch_s\na,1,1,1\n", "has no column method: its columns are as"),
        (HEAD.replace("epoch_s", "epoch_h") + "a,1,1,b,1\n", "unknown column 'epoch_h': known: "),
        (HEAD.replace(",epoch_s", "") + "a,1,1,b\n", "has no columns for times: give one of"),
        ("step_s," + HEAD + "1,a,1,1,b,1\n", "has step_s, epoch_s for times: give one of"),
        ("wu_s,wu_ms," + HEAD + "1,1,a,1,1,b,1\n", "has wu_s, wu_ms, epoch_s for times"),
        ("gpus," + HEAD + "1,a,1,1,b,1\n", "give each column a different name"),
        ("," + HEAD + "1,a,1,1,b,1\n", "give each column a different name"),
        (HEAD + "a,1,1,b,1\na,x,1,b,1\n", "row 2: batch is 'x': give a whole number from 1 to"),
        (HEAD + "a,0,1,b,1\n", "row 1: batch is '0': give a whole number"),
        (HEAD + "a,1,1.5,b,1\n", "row 1: gpus is '1.5': give a whole number"),
        (HEAD + "a,1,99999999999999999999,b,1\n", "row 1: gpus is '99999999999999999999'"),
        (HEAD + "a,1,,b,1\n", "row 1: gpus is empty"),
        (HEAD + "a,1,1,b,\n", "row 1: epoch_s is empty"),
        (HEAD + "a,1,1,b,-1\n", "row 1: epoch_s is '-1': give a time above 0"),
        (HEAD + "a,1,1,b,0\n", "row 1: epoch_s is '0': give a time above 0"),
        (HEAD + "a,1,1,b,nan\n", "row 1: epoch_s is 'nan': give a time above 0"),
        (HEAD + "a,1,1,b,1e999\n", "row 1: epoch_s is '1e999': give a time above 0"),
        (HEAD + "a,1,1,b,1.2.3\n", "row 1: epoch_s is '1.2.3': give a time above 0"),
        (HEAD + "a,1,1,b,1,2\n", "as comma-separated text"),
        ("scaling," + HEAD + "both,a,1,1,b,1\n", "row 1: scaling is 'both': give strong or weak"),
    ],
)
def test_tables_that_are_wrong(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        read_times(_write(tmp_path, text))
    assert "times.csv" in str(raised.value)


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_times(tmp_path / "absent.csv")
    with pytest.raises(InputError, match="cannot be read"):
        read_times(tmp_path)
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"SQLite format 3\x00\xff\xfe\x00" * 100)
    with pytest.raises(InputError):
        read_times(binary)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_garbage_is_refused_in_words(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("garbage") / "times.csv"
    path.write_bytes(HEAD.encode() + data)
    try:
        found = read_times(path)
    except InputError:
        return
    assert found.schema == STUDY
    assert found["gpus"].null_count() == found["epoch_ns"].null_count() == 0


def test_runs_without_a_network_are_said_to_be_taken_as_one() -> None:
    rows = [{"gpus": gpus, "step_ns": 100.0 / gpus, "network": None} for gpus in (1, 2)]
    (warning,) = scaling(table(*rows)).meta["warnings"]
    assert warning == "2 runs have no label `network` and are taken to be of one network"


def test_recordings_without_a_network_are_not_set_against_each_other() -> None:
    """A U-Net on one GPU and a ResNet on eight had a speedup of 13.05, an efficiency of 163 %."""
    rows = [
        {
            "run": f"of {gpus}",
            "gpus": gpus,
            "step_ns": 100.0,
            "network": None,
            "basis": "gpu",
        }
        for gpus in (1, 8)
    ]
    found = scaling(table(*rows))
    assert found.rows.is_empty()
    (warning,) = found.meta["warnings"]
    assert warning.startswith("left out: of 1, of 8; they lack labels network or batch")
    assert scaling(table(*rows), apart=True).rows["speedup"].to_list() == [1.0, 8.0]  # named


@pytest.mark.parametrize(
    ("time", "measured", "images", "is_known"),
    [
        ("epoch", False, None, False), ("epoch", True, None, True), ("epoch", False, K256, True),
        ("step", False, None, True), ("step", True, None, True), (None, False, None, True),
    ],
)  # fmt: skip
def test_an_epoch_is_known_where_it_was_measured_or_the_images_are(
    time: Any, measured: bool, images: int | None, is_known: bool
) -> None:
    lengths = {"epoch_ns": 100.0} if measured else {}
    rows = table(*({"gpus": n, "batch": 16, "step_ns": 50.0 / n, **lengths} for n in (1, 2)))
    if is_known:
        assert scaling(rows, images=images, time=time).meta["time"] == (time or "step")
    else:
        with pytest.raises(UsageError, match="the number of steps of an epoch is unknown"):
            scaling(rows, images=images, time=time)
