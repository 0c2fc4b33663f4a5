"""How much is tested, by what one asks for."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import effort
import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _as_before(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    effort.choose(request.config.getoption("effort"))


@pytest.mark.parametrize(
    ("chosen", "tried"), [("quick", [6, 3]), ("usual", [15, 3]), ("thorough", [600, 70])]
)
def test_random_examples(chosen: str, tried: list[int]) -> None:
    effort.choose(chosen)
    assert [effort.examples(60), effort.examples(7)] == tried


def test_cases_that_are_not_chosen_run_at_night() -> None:
    first, second, third = effort.by_day([1, (2, 3), (4, 5)], 1, (4, 5))
    assert [first, third] == [1, (4, 5)]
    assert (second.values, [mark.name for mark in second.marks]) == ((2, 3), ["nightly"])


def test_marks_are_explained() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    marks = settings["tool"]["pytest"]["ini_options"]["markers"]
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for mark in marks:
        name = mark.partition(":")[0]
        assert f"`{name}`" in page or name == "gpu", name


CASES = """
import pytest

@pytest.mark.parametrize("case", range(5))
def test_cases(case): pass

@pytest.mark.slow
def test_slow(): pass

@pytest.mark.training
def test_training(): pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(("chosen", "left"), [("quick", ["cases[0]", "cases[4]"]), ("usual", None)])
def test_a_quick_run_takes_two_short_cases(
    tmp_path: Path, chosen: str, left: list[str] | None
) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(CASES)
    for name in ("effort.py", "temporary.py"):
        (tmp_path / "tests" / name).write_text((ROOT / "tests" / name).read_text())
    words = ["-m", "pytest", "-q", "-n0", "--collect-only", f"--effort={chosen}"]
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found = [line.partition("::test_")[2] for line in done.stdout.splitlines() if "::" in line]
    assert found == left if left else len(found) == 7
