"""Texts in which numbers are none, or are counted in other units further down."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hostile_files import ERROR, KINDS, RIGHT, make_kineto, make_nvprof_csv, outcome

NUMBERS = (
    "NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e-400", "9007199254740993", "-5e18",
)  # fmt: skip


@pytest.mark.parametrize(
    "every", [3, pytest.param(1, marks=pytest.mark.nightly)], ids=["some", "all"]
)
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("field", ["ts", "dur"])
def test_times_of_pytorch_that_are_none(
    field: str, number: str, every: int, tmp_path: Path
) -> None:
    path = make_kineto(tmp_path)
    met = [0]

    def changed(found: re.Match[str]) -> str:
        met[0] += 1
        return f'"{field}": {number}' if met[0] % every == 0 else found[0]

    path.write_text(re.sub(rf'"{field}": [-0-9.]+', changed, path.read_text()))
    assert met[0] > 3
    told = outcome(KINDS["PyTorch JSON"], path)
    assert told == RIGHT if every > 1 else told in (RIGHT, ERROR)


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ("s,ms,KB", RIGHT),
        ("us,ns,MB", RIGHT),
        ("ns,s,B", RIGHT),
        ("%,us,B", ERROR),
        (",,", ERROR),
    ],
)
def test_units_of_nvprof_that_change_in_a_file(units: str, expected: str, tmp_path: Path) -> None:
    path = make_nvprof_csv(tmp_path)
    lines = path.read_text().split("\n")
    header, half = lines[1], len(lines) // 2
    again = [header, units + ",,,,,,,"]
    path.write_text("\n".join([*lines[:half], *again, *lines[half:]]))
    assert outcome(KINDS["nvprof CSV"], path) == expected
