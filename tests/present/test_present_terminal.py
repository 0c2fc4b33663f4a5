from __future__ import annotations

import re

import polars as pl
import pytest
from present_frames import HOSTILE, INFO, KERNELS, STAGES, STAGES_META

from tracekit.model import Answer
from tracekit.present import notes, records, terminal
from tracekit.support.wording import cells

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def lines(text: str) -> list[str]:
    return text.splitlines()


def test_stages_add_up_to_the_window() -> None:
    expected = """\
 mnist · time by stage

 stage     ops  busy (ms)  exposed (ms)  overlap (ms)  share (%)
 ───────────────────────────────────────────────────────────────
 FP      1,200     40.000        40.000         0.000       40.0
 BP      2,400     50.000        50.000         0.000       50.0
 WU         30     20.000         5.000        15.000        5.0
 OTHER       1      0.001         0.001         0.000       <0.1
 ───────────────────────────────────────────────────────────────
 idle                             4.999                      5.0
 window  3,631                  100.000                    100.0

 window 100.00 ms on 1 device · 59 iterations after 2 skipped · idle 4.999 ms (5.0 %)
 WU as a residual (window minus FP and BP): 10.000 ms
 stages known by: nvtx 87.5 %, none 12.5 % of busy time
 share: exposed_ns / window_ns
"""
    assert terminal(STAGES, STAGES_META, "mnist · time by stage") == expected


def test_a_terminal_shows_marks_and_bars_of_the_share() -> None:
    assert lines(terminal(STAGES, STAGES_META, width=90))[:9] == [
        " stage       ops  busy (ms)  exposed (ms)  overlap (ms)  share (%)",
        " ─────────────────────────────────────────────────────────────────",
        " ■ FP      1,200     40.000        40.000         0.000       40.0  ████████▍",
        " ■ BP      2,400     50.000        50.000         0.000       50.0  ██████████▌",
        " ■ WU         30     20.000         5.000        15.000        5.0  █",
        " ■ OTHER       1      0.001         0.001         0.000       <0.1",
        " ─────────────────────────────────────────────────────────────────",
        " ■ idle                             4.999                      5.0  █",
        "   window  3,631                  100.000                    100.0",
    ]


def test_units_suit_the_stages_and_not_the_window() -> None:
    text = terminal(STAGES, {"window_ns": 3_600_000_000_000, "idle_ns": 3_599_905_000_000})
    assert "busy (ms)" in text
    assert "3,600,000.000" in text


def test_colours_are_those_of_the_palette_and_change_no_text() -> None:
    coloured = terminal(STAGES, STAGES_META, "t", width=90, colours="truecolor")
    assert "\x1b[38;2;0;114;178m■ \x1b[0mFP" in coloured
    assert "\x1b[38;2;213;94;0m█" in coloured
    assert _ANSI.sub("", coloured) == terminal(STAGES, STAGES_META, "t", width=90)


def test_colours_without_a_terminal_mark_values_but_draw_no_bars() -> None:
    text = terminal(KERNELS, {}, colours="standard")
    assert "■" in text
    assert "█" not in text


def test_a_narrow_terminal_leaves_out_what_others_imply_and_says_so() -> None:
    assert lines(terminal(KERNELS, {}, width=80)) == [
        " name                               kind             ops   total    busy  share",
        "                                                            (ms)    (ms)    (%)",
        " ──────────────────────────────────────────────────────────────────────────────",
        " at::native::elementwis…<4, float>  ■ compute     12,000  500.00  490.00   42.0",
        " ncclKernel_AllReduce_R…_Sum_float  ■ collective     472  292.79  292.79   25.0",
        "",
        " left out to fit 80 columns: median_ns, min_ns, max_ns, mean_ns",
    ]


@pytest.mark.parametrize("width", range(12, 60))
def test_an_interval_loses_no_end_alone(width: int) -> None:
    frame = pl.DataFrame(
        {"stage": ["FP"], "delta_ns": [10**6], "low_ns": [10**5], "high_ns": [10**7]}
    )
    head = lines(terminal(frame, {}, width=width))[0].split()
    assert ("low" in head) == ("high" in head)


def test_nothing_is_shortened_or_left_out_without_a_terminal() -> None:
    text = terminal(KERNELS, {})
    assert "void at::native::elementwise_kernel<4, float>(int, float)" in text
    assert lines(text)[0].split("  ")[-1] == "share (%)"
    assert "…" not in text
    assert "median (us)" in text


@pytest.mark.parametrize("frame", [STAGES, KERNELS, INFO], ids=["stages", "kernels", "info"])
@pytest.mark.parametrize("width", [40, 60, 80, 100, 140, 200])
def test_tables_fit(frame: pl.DataFrame, width: int) -> None:
    text = terminal(frame, STAGES_META, "title", width=width)
    assert max(map(cells, lines(text))) <= width


def test_prose_goes_on_below_where_it_does_not_fit() -> None:
    assert lines(terminal(INFO, {}, width=80)) == [
        " feature           available  found → record_with",
        " ──────────────────────────────────────────────────────────────────────────────",
        " stages            ■ yes      19,118 NVTX ranges",
        " collective sizes  ■ no       -",
        "                              → nsys profile --trace=cuda,nvtx and export with",
        "                              --include-blobs=true",
    ]


def test_a_table_without_rows_says_so() -> None:
    assert terminal(STAGES.clear(), {}, "t", empty="no ops") == " t\n\n no ops\n"


def test_hostile_names_stay_text() -> None:
    frame = pl.DataFrame({HOSTILE: [HOSTILE], "n": [1]})
    for text in (
        terminal(frame, {HOSTILE: HOSTILE}, HOSTILE, width=300, colours="truecolor"),
        terminal(frame, {HOSTILE: HOSTILE}, HOSTILE),
        records(frame, {HOSTILE: HOSTILE}, colours="truecolor"),
    ):
        assert "\x1b[31m" not in text
        assert "\x9b" not in text
        assert "\u202e" not in text
        assert "␛[31mred␛[0m [bold]x[/bold] a|b␊" in text


def test_records_name_once_what_is_known_of_none() -> None:
    frame = pl.DataFrame(
        {"name": ["a", "b"], "ops": [1, None], "p5": [None, None], "labels": [[], []]},
        schema={"name": pl.String, "ops": pl.Int64, "p5": pl.Int64, "labels": pl.List(pl.String)},
    )
    assert lines(records(frame, {})) == [
        " a",
        "   ops  1",
        "",
        " b",
        "   ops  -",
        "",
        " unknown or none: p5, labels",
    ]


def test_rows_as_records() -> None:
    frame = pl.DataFrame(
        {
            "name": ["mnist", "unet"],
            "ops": [9345, None],
            "launched": [1.0, None],
            "labels": [["gpus=1"], []],
            "warnings": [["one thing that is long enough to be wrapped", "two"], []],
        }
    )
    assert lines(records(frame, {"store": "s"}, width=50)) == [
        " mnist",
        "   ops             9,345",
        "   launches known  100.0 %",
        "   labels          gpus=1",
        "   warnings        one thing that is long enough",
        "                   to be wrapped",
        "                   two",
        "",
        " unet",
        "   ops             -",
        "   launches known  -",
        "   labels          -",
        "   warnings        -",
        "",
        " store: s",
    ]
    assert records(frame.clear(), {}, empty="") == ""
    assert records(frame.clear(), {}, empty="none") == " none\n"


def test_a_long_table_is_written_in_little_time() -> None:
    frame = pl.DataFrame({"op": range(20_000), "name": ["kernel"] * 20_000})
    assert terminal(frame, {}).count("\n") == 20_002


def test_of_ranges_busy_time_stays_where_little_fits() -> None:
    row = {
        "range": ["a long name of a range that is not to be broken"], "style": ["push_pop"],
        "depth": [0], "instances": [59], "launching": [59], "host_ns": [9_000_000], "ops": [9_000],
        "projected_ns": [8_000_000], "busy_ns": [7_000_000], "self_busy_ns": [1_000_000],
        "share": [0.5],
    }  # fmt: skip
    found = terminal(pl.DataFrame(row), {}, width=80)
    assert max(map(cells, lines(found))) <= 80
    assert "busy" in lines(found)[0]
    assert "left out to fit 80 columns: style, launching, self_busy_ns" in found


def test_what_a_first_line_is_about_stays_where_little_fits() -> None:
    """80 columns had no time of operators, of gaps, and no number of the most frequent calls."""
    times = {f"{name}_ns": [1_000_000] for name in ("kernel", "min", "median", "max", "headroom")}
    of_names = {"tensor_core_ns": [1_000_000], "tensor_core_unknown_ns": [1_000_000]}
    rates = {"flops": [1e12], "bytes": [1e9], "flops_per_byte": [1e3], "achieved_flops_s": [1e12]}
    bound = {"bound": ["memory"], "bound_share": [0.5], "step_headroom_ns": [1_000], "share": [0.5]}
    roofline = {"operator": ["convolution_backward"], **times, **of_names, **rates, **bound}
    names = "participants", "ranks", "count", "algorithm_bandwidth_gb_s", "bus_bandwidth_gb_s"
    calls = {"bytes": [2**20], "duration_p50_ns": [1_000], "wait_ns": [1], "evidence": ["measured"]}
    collectives = {"collective": ["all_reduce"], **{name: [8] for name in names}, **calls}
    gaps = {"gaps": [5_918], "idle_ns": [134_660_000], "step_ns": [33_300], "share": [0.24]}
    causes = {"cause": ["between_steps"], "rests_on": ["API calls, waits"], **gaps}
    idle = {**causes, "window_share": [0.013]}
    for rows, width, name in (
        (roofline, 80, "kernel"),
        (collectives, 60, "count"),
        (idle, 70, "idle"),
    ):
        found = terminal(pl.DataFrame(rows), {}, width=width)
        assert name in lines(found)[0].split() + lines(found)[1].split()


def test_verdicts_are_told_where_not_all_processes_train() -> None:
    training = {"verdict": {"training": 2}}
    assert notes({"verdicts": {"a": training, "b": training, "old": {}}}) == []
    told = notes({"verdicts": {"a": training, "b": {"verdict": {"inference": 1, "training": 1}}}})
    assert told == ["verdict: a training; b inference, training"]


def test_what_a_table_is_about_leaves_it_last() -> None:
    times = {f"{name}_ns": [1_000_000] for name in ("a", "b", "low", "high", "delta")}
    words = {"verdict": ["no difference shown"], "only_in": ["A"], "a_count": [1.0]}
    frame = pl.DataFrame({"stage": ["FP"], **times, "p_value": [0.5], **words, "ratio": [1.0]})
    table = terminal(frame, {}, width=60)
    assert "no difference shown" in table
    assert "delta" in table
    left_out = table.partition("left out to fit 60 columns: ")[2]
    assert left_out.startswith("p_value, a_count, ")
    assert "stage" in terminal(frame, {}, width=20)


def test_how_numbers_were_found_is_said_where_it_is_asked_for() -> None:
    frame = pl.DataFrame({"stage": ["FP"], "ops": [1]})
    meta = {
        "window_ns": 10, "idle_ns": 0, "wu_residual_ns": 3, "devices": 1, "iterations": 2,
        "skip": 0,
        "coverage": {"nvtx": 1.0}, "launched": 1.0, "verdict": {"training": 2},
        "warnings": ["believe nothing"],
    }  # fmt: skip
    every = terminal(frame, meta)
    short = terminal(frame, meta, verbose=False)
    for line in (
        "stages known by",
        "launching call known",
        "verdict: training (2 processes)",
        "residual",
    ):
        assert line in every
        assert line not in short
    for text in (every, short):
        assert "window 10 ns on 1 device" in text
        assert "warning: believe nothing" in text
    assert "-v shows how this was found" in short
    assert "-v" not in every


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("launched", 0.5, "launching call known of 50.0 %"),
        ("launched", None, "launching call known of an unknown share"),
        ("verdict", {"training": 1, "other": 1}, "other (1 process)"),
        ("cut", "end", "may lack its end"),
    ],
)
def test_what_is_unusual_is_never_left_out(key: str, value: object, said: str) -> None:
    frame = pl.DataFrame({"stage": ["FP"], "ops": [1]})
    assert said in terminal(frame, {key: value}, verbose=False)


def test_stages_have_colours_of_their_own_among_sixteen() -> None:
    stages = ["FP", "BP", "WU", "IO", "ME", "OTHER"]
    frame = pl.DataFrame({"stage": stages, "ops": [1] * 6})
    text = terminal(frame, {}, width=80, colours="standard")
    marks = [line.split("m■")[0].rpartition("[")[2] for line in text.splitlines() if "■" in line]
    assert len(marks) == len({*marks}) == 6


def test_of_many_warnings_a_terminal_gets_the_first_and_their_number() -> None:
    frame = pl.DataFrame({"stage": ["FP"], "ops": [1]})
    meta = {"warnings": [f"thing {n} is odd" for n in range(9)]}
    short = terminal(frame, meta, verbose=False)
    assert [n for n in range(9) if f"thing {n} is odd" in short] == [0, 1, 2]
    assert "and 6 more warnings: -v" in short
    assert terminal(frame, meta).count("warning: ") == 9


def test_warnings_of_an_answer_come_before_those_of_its_run() -> None:
    """That a path is not to be trusted was the third warning, and a terminal shows two."""
    found = Answer(rows=pl.DataFrame(), meta={"warnings": ["do not trust it"]})
    assert found.warning(["recorded badly"]).warnings == ("do not trust it", "recorded badly")
