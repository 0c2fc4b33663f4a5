from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from present_frames import HOSTILE, STAGES, STAGES_META

from tracekit.present import to_csv, to_json, to_markdown, to_parquet

ODD = pl.DataFrame(
    {
        "big": [2**62 + 1, None],
        "float": [float("nan"), float("-inf")],
        "list": [["a", None], []],
        "struct": [{"x": 1.5}, {"x": float("inf")}],
        "bytes": [b"\x00\xff", None],
        "at": [datetime(2024, 2, 3, 4, 5, 6, tzinfo=UTC)] * 2,
        "span": [timedelta(microseconds=3)] * 2,
        "decimal": [Decimal("1.25"), None],
    }
)


def test_json_has_four_members_and_a_row_per_line() -> None:
    frame = pl.DataFrame({"stage": ["FP", None], "ops": [1, None], "share": [0.5, None]})
    assert (
        to_json("breakdown", "mnist", {"devices": 1}, frame)
        == """\
{
  "command": "breakdown",
  "run": "mnist",
  "meta": {"devices": 1},
  "rows": [
    {"stage": "FP", "ops": 1, "share": 0.5},
    {"stage": null, "ops": null, "share": null}
  ]
}
"""
    )


def test_json_without_rows() -> None:
    document = json.loads(to_json("runs", None, {}, STAGES.clear()))
    assert document == {"command": "runs", "run": None, "meta": {}, "rows": []}


def test_json_of_every_type() -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    rows = json.loads(to_json("sql", "r", {}, ODD), parse_constant=refuse)["rows"]
    assert rows[0] == {
        "big": 2**62 + 1,
        "float": None,
        "list": ["a", None],
        "struct": {"x": 1.5},
        "bytes": "00ff",
        "at": "2024-02-03T04:05:06+00:00",
        "span": 3000,
        "decimal": 1.25,
    }
    assert rows[1]["struct"] == {"x": None}
    assert rows[1]["float"] is None


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_json_keeps_any_text_and_is_safe_to_print(text: str) -> None:
    written = to_json("sql", text, {text: text}, pl.DataFrame({"name": [text]}))
    assert json.loads(written) == {
        "command": "sql", "run": text, "meta": {text: text}, "rows": [{"name": text}],
    }  # fmt: skip
    assert written.isascii()
    assert not any(ord(c) < 32 for c in written.replace("\n", ""))


def test_csv() -> None:
    assert to_csv(STAGES.head(2)) == (
        "stage,ops,busy_ns,exposed_ns,overlap_ns,share\n"
        "FP,1200,40000000,40000000,0,0.4\n"
        "BP,2400,50000000,50000000,0,0.5\n"
    )
    assert to_csv(STAGES.clear()) == "stage,ops,busy_ns,exposed_ns,overlap_ns,share\n"


def test_csv_reads_back() -> None:
    frame = pl.DataFrame({"name": [HOSTILE, 'a"b,c', None], "n": [1, None, 3]})
    assert_frame_equal(pl.read_csv(to_csv(frame).encode()), frame)


def test_csv_of_nested_and_binary_values() -> None:
    assert to_csv(ODD.select("list", "struct", "bytes", "span").head(1)) == (
        'list,struct,bytes,span\n"[""a"", null]","{""x"": 1.5}",00ff,3000\n'
    )


def test_parquet_keeps_types() -> None:
    assert_frame_equal(pl.read_parquet(io.BytesIO(to_parquet(STAGES))), STAGES)


def test_markdown() -> None:
    meta = {key: STAGES_META[key] for key in ("window_ns", "idle_ns", "share")}
    assert (
        to_markdown(STAGES.head(2), meta, "mnist")
        == """\
**mnist**

| stage | ops | busy (ms) | exposed (ms) | overlap (ms) | share (%) |
| --- | ---: | ---: | ---: | ---: | ---: |
| FP | 1,200 | 40.000 | 40.000 | 0.000 | 40.0 |
| BP | 2,400 | 50.000 | 50.000 | 0.000 | 50.0 |
| idle |  |  | 4.999 |  | 5.0 |
| window | 3,600 |  | 100.000 |  | 100.0 |

window 100.00 ms · idle 4.999 ms (5.0 %)

share: exposed_ns / window_ns
"""
    )


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("void k<4, float*>(int)", r"void k\<4, float\*\>(int)"),
        ("a|b", r"a\|b"),
        ("back\\slash `code`", r"back\\slash \`code\`"),
        ("all_reduce", "all_reduce"),
        ("__global__", r"\_\_global\_\_"),
        ("[link](x) ~~s~~ &lt; #1 $x$", r"\[link\](x) \~\~s\~\~ \&lt; \#1 \$x\$"),
        ("\x1b[2J\n", r"␛\[2J␊"),
    ],
)
def test_markdown_takes_no_markup_from_a_name(name: str, cell: str) -> None:
    lines = to_markdown(pl.DataFrame({"name": [name]}), {}, name).splitlines()
    assert lines[0] == f"**{cell}**"
    assert lines[-1] == f"| {cell} |"


def test_markdown_keeps_how_far_a_range_is_indented() -> None:
    rows = pl.DataFrame({"range": ["step", "step > forward"], "depth": [0, 1]})
    assert "| &nbsp;&nbsp;forward |" in to_markdown(rows, {})
