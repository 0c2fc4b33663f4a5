"""Machine code of loops: kept in files, found by content, loaded without the compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import tracekit
from tracekit.support import allocator, native
from tracekit.support.compiled import locate, remembered
from tracekit.support.compiler import Compiled

pytestmark = pytest.mark.skipif(not native._LINKS_HERE, reason="Numba links its own code here")

COUNT = 3


def weigh(
    numbers: np.ndarray, tables: tuple[np.ndarray, tuple[np.ndarray, bool]], by: int, out: Any
) -> int:
    """Take one argument of each kind: an array, tuples in tuples, a truth and a number."""
    square, (small, adds) = tables
    total = 0
    for row in range(numbers.size):
        value = numbers[row] * by + square[row, 1] + small[row]
        out[row] = value
        total += value if adds else -value
    return total + COUNT


def case(*, adds: bool = True) -> tuple[Any, ...]:
    square, small = np.arange(6).reshape(3, 2), np.array([1, -2, 3], np.int8)
    return np.array([10, 20, 30]), (square, (small, adds)), 7, np.zeros(3)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own folder for code, empty."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setattr(native, "_FOLDER", tmp_path / "package")
    return tmp_path / "own"


def kept_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.loop"))


@pytest.fixture(scope="module")
def code() -> native.Code:
    """The code of `weigh`, compiled once for all tests."""
    from tracekit.support.compiler import _compile

    found = native.extracted(_compile(weigh, case()), native.arguments(case()).codes)
    assert found is not None
    return found


def keep(code: native.Code) -> str:
    types = native.arguments(case()).types
    native.keep(weigh, types, code)
    return types


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("adds", [True, False])
def test_machine_code_does_what_the_loop_does(code: native.Code, *, adds: bool) -> None:
    keep(code)
    one, other = case(adds=adds), case(adds=adds)
    loop = Compiled(weigh)
    assert loop.is_kept(*one)
    assert loop(*one) == loop.if_kept(*one) == weigh(*other)
    assert one[3].tolist() == other[3].tolist()


@pytest.mark.slow
def test_code_stays_what_it_is_when_other_code_is_linked(code: native.Code) -> None:
    """Even code that is called by the same symbol, as that of another version may be."""
    given = case()
    taken = native.arguments(given)
    first = native.link(code)
    others = [native.link(replace(code)) for _ in range(2)]
    assert len({first, *others}) == 3
    for address in (first, *others, first):
        assert native.call(address, taken, returns=True) == weigh(*case())


@pytest.mark.slow
def test_what_is_compiled_is_kept_for_each_combination_of_types(folder: Path) -> None:
    loop = Compiled(weigh)
    numbers, tables, by, out = case()
    for given in ((numbers, tables, by, out), (numbers.astype(np.int32), tables, by, out)):
        assert not loop.is_kept(*given)
        assert loop.if_kept(*given) == weigh(*given)
        assert not loop.is_kept(*given)
        assert loop(*given) == weigh(*given)
        assert loop.is_kept(*given)
    assert len(kept_in(folder)) == 2


@pytest.mark.slow
def test_another_process_needs_no_compiler(code: native.Code, folder: Path) -> None:
    known = np.array([5, 6])
    given = (np.array([5, 7, 6]), known, *remembered(known), np.empty(3, np.int32))
    Compiled(locate)(*given)
    program = (
        "import sys, numpy as np\n"
        "from tracekit.support.compiled import compiled, locate, remembered\n"
        "known, found = np.array([5, 6]), np.empty(3, np.int32)\n"
        "compiled(locate, 1 << 30)(np.array([5, 7, 6]), known, *remembered(known), found)\n"
        "print(found.tolist(), 'numba' in sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(tracekit.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == "[0, -1, 1] False"


@pytest.mark.slow
@pytest.mark.parametrize("damage", [b"", b"\0" * 40, None])
def test_a_damaged_file_is_as_none(code: native.Code, folder: Path, damage: bytes | None) -> None:
    types = keep(code)
    [path] = kept_in(folder)
    assert native.find(weigh, types) == code
    path.write_bytes(path.read_bytes()[:-1] if damage is None else damage)
    assert native.find(weigh, types) is None


@pytest.mark.slow
def test_a_file_serves_only_what_it_was_made_of(
    code: native.Code, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = keep(code)
    assert native.find(weigh, types) == code
    assert native.find(weigh, types.replace("i1", "i2")) is None
    for change in (("_source", lambda _: b"another text"), ("_processor", lambda: "another")):
        native._name.cache_clear()
        with monkeypatch.context() as changed:
            changed.setattr(native, *change)
            assert native.find(weigh, types) is None
    native._name.cache_clear()
    monkeypatch.setitem(weigh.__globals__, "COUNT", 4)
    assert native.find(weigh, types) is None
    native._name.cache_clear()


@pytest.mark.slow
def test_what_comes_with_the_package_is_found_whatever_the_processor(
    code: native.Code, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = native.arguments(case()).types
    native.keep_for_all(weigh, types, code)
    assert not kept_in(folder)
    native._name.cache_clear()
    monkeypatch.setattr(native, "_processor", lambda: "one that nobody has")
    assert native.find(weigh, types) == code
    native._name.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_where_nothing_can_be_written_code_is_compiled_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    given = case()
    assert Compiled(weigh)(*given) == weigh(*case())


class Pair(NamedTuple):
    low: Any
    high: Any


class Turned(NamedTuple):
    high: Any
    low: Any


class Both(NamedTuple):
    pair: Pair
    scale: np.ndarray


def spread(both: Both, out: np.ndarray) -> None:
    """Take columns by name."""
    for row in range(out.size):
        out[row] = (both.pair.high[row] - both.pair.low[row]) * both.scale[row]


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_loops_take_columns_by_name() -> None:
    low, high, scale = np.array([1, 2]), np.array([10, 30]), np.array([2, 3], np.int32)
    loop = Compiled(spread)
    for pair, expected in ((Pair(low, high), [18, 84]), (Turned(low, high), [-18, -84])):
        out = np.zeros(2, np.int64)
        loop(Both(pair, scale), out)
        assert out.tolist() == expected


def test_names_of_columns_are_part_of_their_type() -> None:
    columns = (np.arange(2), np.arange(2))
    given = (columns, Pair(*columns), Turned(*columns))
    assert len({native.arguments([one]).types for one in given}) == len(given)
    assert len({native.arguments([one]).codes for one in given}) == 1


@pytest.mark.parametrize(
    "unfit", [np.arange(8)[::2], np.arange(4).reshape(2, 2).T, 1.5, "text", None]
)
def test_what_only_the_compiler_can_pass_is_refused(unfit: object) -> None:
    with pytest.raises(native.UnfitError):
        native.arguments([np.arange(2), (unfit,)])


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_arrays_with_gaps_are_left_to_the_compiler() -> None:
    numbers, tables, by, out = case()
    gaps = np.repeat(numbers, 2)[::2]
    assert Compiled(weigh)(gaps, tables, by, out) == weigh(numbers, tables, by, out)
    assert Compiled(weigh).if_kept(gaps, tables, by, out) == weigh(numbers, tables, by, out)


def test_where_linking_was_never_tried_numba_does_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_LINKS_HERE", False)
    given = case()
    assert Compiled(weigh)(*given) == weigh(*case())
    assert not kept_in(folder)
    assert Compiled(weigh).if_kept(*case()) == weigh(*case())


def test_a_loop_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_function", lambda *_: lambda *_: 1)
    with pytest.raises(ArithmeticError, match="a number that it cannot work with"):
        native.call(0, native.arguments(case()), returns=True)


def test_without_functions_of_glibc_memory_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    monkeypatch.setenv("_RJEM_MALLOC_CONF", "mine")
    monkeypatch.setattr(allocator, "_of_glibc", asked.append)
    allocator.keep_free_memory()
    allocator.give_back_free_memory()
    assert asked == ["mallopt", "malloc_trim"]
    assert os.environ["_RJEM_MALLOC_CONF"] == "mine"
