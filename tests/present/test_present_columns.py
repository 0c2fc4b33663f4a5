from __future__ import annotations

from datetime import UTC, datetime

import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tracekit.present import duration, notes, percent, printable
from tracekit.present._columns import shown, unknown_note, with_values
from tracekit.support.wording import cells, scaled, shorten, wrap


def show(**columns: object) -> list[tuple[str, list[str]]]:
    return [(c.header, c.texts) for c in shown(pl.DataFrame(columns, strict=False))]


@pytest.mark.parametrize(
    ("largest", "header", "text"),
    [
        (999, "busy (ns)", "999"),
        (1_000, "busy (us)", "1.000"),
        (999_999, "busy (us)", "1,000.00"),
        (1_000_000, "busy (ms)", "1.000"),
        (123_456_789, "busy (ms)", "123.46"),
        (9_999_000_000, "busy (ms)", "9,999.0"),
        (31_900_000_000, "busy (s)", "31.900"),
    ],
)
def test_a_time_column_takes_the_unit_of_its_largest_value(
    largest: int, header: str, text: str
) -> None:
    assert show(busy_ns=[largest, 0, None])[0][0] == header
    assert show(busy_ns=[largest])[0][1] == [text]


def test_totals_share_one_unit_and_statistics_another() -> None:
    assert show(total_ns=[50_000_000], busy_ns=[1_000_000], mean_ns=[50_000.0], max_ns=[9]) == [
        ("total (ms)", ["50.000"]),
        ("busy (ms)", ["1.000"]),
        ("mean (us)", ["50.000"]),
        ("max (us)", ["0.009"]),
    ]


def test_time_outside_of_steps_takes_no_digits_from_that_of_steps() -> None:
    assert show(a_ns=[77_000], b_ns=[143_000], a_outside_steps_ns=[2_419_000_000]) == [
        ("a (us)", ["77.00"]),
        ("b (us)", ["143.00"]),
        ("a_outside_steps (ms)", ["2,419.0"]),
    ]


def test_what_is_not_zero_is_not_shown_as_zero() -> None:
    times = show(busy_ns=[5_000_000_000, 400, 0, -400, -0.0])
    assert times == [("busy (ms)", ["5,000.0", "0.0004", "0.0", "-0.0004", "0.0"])]
    shares = show(share=[0.5, 0.00001, 0.0, None, -0.00001])
    assert shares == [("share (%)", ["50.0", "<0.1", "0.0", "-", ">-0.1"])]


def test_sizes_are_decimal() -> None:
    assert show(bytes=[2_500_000_000, None]) == [("bytes (GB)", ["2.500", "-"])]
    assert show(memory_bytes=[65_536]) == [("memory_bytes (kB)", ["65.536"])]
    assert show(bytes=[999]) == [("bytes (B)", ["999"])]


def test_counts_are_grouped_and_identifiers_are_not() -> None:
    assert show(ops=[22_340], correlation=[1_234_567], launch_thread=[12_345]) == [
        ("ops", ["22,340"]),
        ("correlation", ["1234567"]),
        ("launch_thread", ["12345"]),
    ]


def test_unknown_values_are_dashes() -> None:
    rows = show(ops=[None, 1], x=[float("nan"), 0.25], range=[None, "a"], t_ns=[None, 7])
    assert rows == [
        ("ops", ["-", "1"]),
        ("x", ["-", "0.25"]),
        ("range", ["-", "a"]),
        ("t (ns)", ["-", "7"]),
    ]


def test_other_types_have_a_text() -> None:
    frame = pl.DataFrame(
        {
            "is": [True],
            "list": [["a", "b\n"]],
            "empty": pl.Series([[]], dtype=pl.List(pl.String)),
            "raw": [b"\x00\xff"],
            "at": [datetime(2024, 2, 3, 4, 5, 6, 7, tzinfo=UTC)],
            "inf": [float("inf")],
        }
    )
    assert [c.texts for c in shown(frame)] == [
        ["yes"], ["a; b␊"], ["-"], ["00ff"], ["2024-02-03 04:05:06Z"], ["inf"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_500, "1.500 us"),
        (31_900_000, "31.900 ms"),
        (1_884_912_345, "1.885 s"),
    ],
)
def test_one_duration(value: int, text: str) -> None:
    assert duration(value) == text


def test_percent() -> None:
    fractions = (0.0, 0.00001, 0.1234, 1.0)
    assert [percent(x) for x in fractions] == ["0.0 %", "<0.1 %", "12.3 %", "100.0 %"]


@given(st.lists(st.integers(-(2**60), 2**60), min_size=1))
def test_scaled_numbers_read_back(values: list[int]) -> None:
    for value, text in zip(values, scaled(values, 1000, 3), strict=True):
        number = float(text.replace(",", ""))
        assert number == pytest.approx(value / 1000, rel=1e-12, abs=5e-4)


@given(st.text())
def test_printable_text_holds_no_controls(text: str) -> None:
    safe = printable(text)
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000 for c in safe)
    assert len(safe) == len(text)
    safe.encode()


def test_printable_shows_what_a_control_was() -> None:
    assert printable("a\x1b[31m\tb\x7f\x9b\u202e\u2028é") == "a␛[31m␉b␡���é"


@given(st.text(st.characters(exclude_categories=("C", "M", "Z"))), st.integers(1, 40))
def test_shortened_text_fits_and_keeps_its_ends(text: str, width: int) -> None:
    assume(not text.endswith(")"))
    short = shorten(text, width)
    assert cells(short) <= width
    if short != text:
        head, _, tail = short.partition("…")
        assert text.startswith(head)
        assert text.endswith(tail)


def test_shorten_counts_wide_characters_twice() -> None:
    assert shorten("カーネル名前の長い", 10) == "カーネ…い"


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (40, "void ns::kernel<float>(int, f(float))"),
        (30, "ns::kernel<float>(…)"),
        (18, "ns::kernel<f…loat>"),
        (12, "ns::kern…at>"),
    ],
)
def test_shorten_gives_up_parameters_first(width: int, text: str) -> None:
    assert shorten("void ns::kernel<float>(int, f(float))", width) == text


def test_wrap_keeps_given_breaks() -> None:
    assert wrap("one two\nthree", 7) == ["one two", "three"]
    assert wrap("", 7) == [""]


@pytest.mark.parametrize(
    ("width", "lines"),
    [(41, ["by replay: `tracekit whatif a --host 2x`."]),
     (40, ["by replay:", "`tracekit whatif a --host 2x`."]),
     (20, ["by replay: `tracekit", "whatif a --host 2x`."])],
)  # fmt: skip
def test_wrap_keeps_what_is_copied_on_one_line(width: int, lines: list[str]) -> None:
    """A command that was broken at 80 columns cannot be copied."""
    assert wrap("by replay: `tracekit whatif a --host 2x`.", width) == lines


def test_notes_word_a_breakdown() -> None:
    meta = {
        "window_ns": 2_000_000_000,
        "idle_ns": 500_000_000,
        "wu_residual_ns": 40_000_000,
        "devices": 4,
        "iterations": 1,
        "skip": 2,
        "coverage": {"none": 0.2, "nvtx": 0.8, "autograd": 0.0},
        "share": "exposed_ns / window_ns",
    }
    assert notes(meta) == [
        "window 2.000 s on 4 devices · 1 iteration after 2 skipped · idle 500.00 ms (25.0 %)",
        "WU as a residual (window minus FP and BP): 40.000 ms",
        "stages known by: nvtx 80.0 %, none 20.0 % of busy time",
        "share: exposed_ns / window_ns",
    ]


def test_notes_say_what_is_unknown_and_show_any_other_key() -> None:
    meta = {
        "window_ns": 0,
        "idle_ns": 0,
        "wu_residual_ns": None,
        "coverage": {},
        "warnings": ["first\x1b", "second"],
        "step_ns": 1500,
        "store": "a/b",
        "shape": {"x": 1},
        "least_percent": -96.14159,
        "unsized": 0,
        "exact": True,
        "long": "word " * 20,
    }
    assert notes(meta) == [
        "window 0 ns · idle 0 ns",
        "WU as a residual (window minus FP and BP): unknown",
        "stages known by: nothing of busy time",
        "step: 1.500 us · store: a/b · shape: x 1 · least: -96.1 % · exact: yes",
        "long: " + "word " * 20,
        "warning: first␛",
        "warning: second",
    ]


def test_what_is_not_quite_all_does_not_read_as_all_of_it() -> None:
    lines = notes({"coverage": {"nvtx": 0.99996, "none": 0.00004}})
    assert lines == ["stages known by: nvtx >99.9 %, none <0.1 % of busy time"]
    assert notes({"coverage": {"nvtx": 1.0}}) == ["stages known by: nvtx 100.0 % of busy time"]


def test_a_note_on_expected_bytes_says_what_is_modelled_and_unknown() -> None:
    known = {
        "gpus": 2, "gradient_bytes": 100, "expected_bytes": 200, "observed_bytes": 150.0,
        "ratio": 0.75, "unsized": 0, "evidence": "measured",
    }  # fmt: skip
    (line,) = notes({"expected": known})
    assert "observed (0.75 of the expected bytes), " in line
    (line,) = notes({"expected": known | {"unsized": 3, "evidence": "modelled"}})
    assert "by a model (0.75 of the expected bytes), 3 transfers not sized, " in line
    assert line.endswith("gradients of S = 100 B, 4 bytes a parameter")
    (line,) = notes({"expected": known | {"expected_bytes": None, "ratio": None}})
    assert line.endswith(
        "150 B observed; most are not shown to be gradients of all GPUs, so none are expected"
    )


def test_messages_are_sized_one_by_one_and_timed_by_the_median() -> None:
    sizes = [None, 0, 4, 1000, 1024, 1536, 65536, 3 << 20, 1 << 40]
    times = [1.5e3, 2e3, 2e3, 2e3, 2e3, 3e3, 3e4, 4e5, 5e9]
    frame = pl.DataFrame({"size_bytes": sizes, "p50_ns": times})
    size, time = shown(frame)
    assert size.header == "size"
    assert size.numeric
    assert size.texts == [
        "-", "0 B", "4 B", "1,000 B", "1 KiB", "1,536 B", "64 KiB", "3 MiB", "1,024 GiB"
    ]  # fmt: skip
    assert time.header == "p50 (us)"
    assert time.texts[0] == "1.500"
    assert time.texts[-1] == "5,000,000.000"
    assert shown(frame.drop("size_bytes"))[0].header == "p50 (ms)"


def test_ranges_with_a_depth_are_shown_as_a_tree() -> None:
    assert show(
        range=["step N", "step N > forward", "(backward thread)"],
        style=["push_pop", "push_pop", None],
        depth=[0, 1, None],
    ) == [
        ("range", ["step N", "  forward", "(backward thread)"]),
        ("style", ["push_pop", "push_pop", "-"]),
    ]
    assert show(range=["a > b"], ops=[1])[0] == ("range", ["a > b"])


def test_times_of_the_host_have_a_unit_beside_those_of_the_gpu() -> None:
    columns = {"host_ns": [9_000_000_000], "projected_ns": [400_000_000], "busy_ns": [5_000_000]}
    assert [header for header, _ in show(**columns)] == ["host (ms)", "projected (ms)", "busy (ms)"]


def test_notes_of_ranges_and_layers() -> None:
    assert notes({"inclusive": True, "depth": None}) == [
        "busy: ops launched in a range or in ranges inside it; self_busy: launched in it directly"
    ]
    assert notes({"depth": 2}) == ["2 levels of ranges; deeper ones count in these"]
    assert notes({"joined": {"BP": {"sequence": 0.75, "none": 0.25}}}) == [
        "layer of BP known by: sequence 75.0 %, none 25.0 % of its ops' time"
    ]
    assert notes({"unjoined": {"FP": "nothing says it"}}) == [
        "layer of FP unknown: nothing says it"
    ]


def test_columns_of_one_label_are_named_once() -> None:
    """Of ``bound_ns`` and ``bound`` a footer said "bound, bound"."""
    assert unknown_note(["flops", "bound", "bound"]) == ["unknown or none: flops, bound"]
    frame = pl.DataFrame({"operator": ["x"], "bound_ns": [None], "bound": ["communication"]})
    known, unknown = with_values(shown(frame.cast({"bound_ns": pl.Int64})))
    assert ([each.label for each in known], unknown) == (["operator", "bound"], ["bound_ns"])


def test_a_share_just_below_one_is_not_all() -> None:
    """A table said 100.0 where the line below it says >99.9 %."""
    (column,) = shown(pl.DataFrame({"share": [0.99952, 1.0, 0.9994, None, 1e-5]}))
    assert column.texts == [">99.9", "100.0", "99.9", "-", "<0.1"]
