"""Machine code of loops: kept in files, found by content, loaded without the compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import release

import tracekit
from tracekit.support import compiler, native
from tracekit.support.compiler import Compiled
from tracekit.support.parquet._encoding_loops import number

pytestmark = pytest.mark.skipif(not native._LINKS_HERE, reason="Numba links its own code here")

COUNT = 3


def weigh(
    numbers: np.ndarray, tables: tuple[np.ndarray, tuple[np.ndarray, bool]], by: int, out: Any
) -> int:
    """Take one argument of each kind: an array, tuples in tuples, a truth and a number."""
    square, (small, adds) = tables
    total = 0
    for row in range(len(numbers)):
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
    native._library_index.cache_clear()
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


def is_kept(loop: Compiled, given: tuple[Any, ...]) -> bool:
    """Tell whether nothing has to be compiled for such arguments."""
    return loop._found(native.arguments(given)) is not None


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("adds", [True, False])
def test_machine_code_does_what_the_loop_does(code: native.Code, *, adds: bool) -> None:
    keep(code)
    one, other = case(adds=adds), case(adds=adds)
    loop = Compiled(weigh)
    assert is_kept(loop, one)
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
        assert not is_kept(loop, given)
        assert loop.if_kept(*given) == weigh(*given)
        assert not is_kept(loop, given)
        assert loop(*given) == weigh(*given)
        assert is_kept(loop, given)
    assert len(kept_in(folder)) == 2


@pytest.mark.slow
def test_another_process_needs_no_compiler(code: native.Code, folder: Path) -> None:
    given = (np.array([5, 7, 5]), np.full(8, -1), np.empty(8, np.int64), np.empty(3, np.int32))
    Compiled(number)(*given)
    program = (
        "import sys, numpy as np\n"
        "from tracekit.support.compiled import compiled\n"
        "from tracekit.support.parquet._encoding_loops import number\n"
        "example, found = np.empty(8, np.int64), np.empty(3, np.int32)\n"
        "compiled(number, 1 << 30)(np.array([5, 7, 5]), np.full(8, -1), example, found)\n"
        "print(found.tolist(), 'numba' in sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(tracekit.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == "[0, 1, 0] False"


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
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_release_has_one_library_for_all_loops(
    code: native.Code, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = case()
    types = native.arguments(given).types
    native.keep_for_all(weigh, types, code)
    files = {f"loops/{path.name}": path.read_bytes() for path in native._FOLDER.iterdir()}
    shutil.rmtree(native._FOLDER)
    native._FOLDER.mkdir()
    for name, data in release.linked(files).items():
        (native._FOLDER / Path(name).name).write_bytes(data)
    for name in ("numba", "llvmlite"):
        monkeypatch.setitem(sys.modules, name, None)
    assert Compiled(weigh)(*given) == weigh(*(other := case()))
    assert given[3].tolist() == other[3].tolist()
    native._library_index.cache_clear()


def test_without_a_compiler_a_loop_runs_as_it_stands(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "has_compiler", lambda: False)
    compiler._tell_that_it_is_slow.cache_clear()
    for given in (case(), (np.repeat(case()[0], 2)[::2], *case()[1:])):
        assert Compiled(weigh)(*given) == weigh(*case())
    assert [each.message.partition(":")[0] for each in caplog.records] == [
        "this trace needs a loop that the release lacks"
    ]


def test_a_release_asks_for_no_compiler() -> None:
    told = (
        "Name: x\nRequires-Dist: llvmlite<0.51,>=0.44\nRequires-Dist: numba<1\n\nRequires-Dist: n"
    )
    assert release.without_compiler(told) == (
        "Name: x\nRequires-Dist: llvmlite<0.51,>=0.44; extra == 'compiler'\n"
        "Requires-Dist: numba<1; extra == 'compiler'\nProvides-Extra: compiler\n\nRequires-Dist: n"
    )


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


COMPILES = """
import sys, numpy as np
from tracekit.support import compiler
from tracekit.support.parquet._encoding_loops import number
compile = compiler._compile
def told(*given):
    print("compiles", flush=True)
    input()
    return compile(*given)
compiler._compile = told
print("begins", flush=True)
example, found = np.empty(8, np.int64), np.empty(3, np.int32)
compiler.Compiled(number)(np.array([5, 7, 5]), np.full(8, -1), example, found)
print(found.tolist(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_of_several_processes_one_compiles() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(tracekit.__file__).parents[1])}
    start = partial(
        subprocess.Popen, [sys.executable, "-c", COMPILES], text=True, env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with start() as first:
        assert [next(first.stdout), next(first.stdout)] == ["begins\n", "compiles\n"]
        with start() as second:  # not before: of two it would be unknown which compiles
            assert next(second.stdout) == "begins\n"
            told = [process.communicate("\n")[0] for process in (first, second)]
    assert told == ["[0, 1, 0]\n"] * 2


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_where_nothing_can_be_written_code_is_compiled_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    given = case()
    assert Compiled(weigh)(*given) == weigh(*case())


class TestCaches:
    """Machine code outside of the package is run only where its user alone may have put it."""

    @pytest.mark.parametrize("mode", [0o777, 0o775, 0o702], ids=oct)
    def test_a_folder_that_others_may_write_to_is_not_used(self, folder: Path, mode: int) -> None:
        types = keep(ANY_CODE)
        assert native.find(weigh, types) == ANY_CODE
        folder.chmod(mode)
        assert native.find(weigh, types) is None
        self.assert_nothing_is_kept(folder)

    def test_nor_one_that_others_may_replace(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        types = keep(ANY_CODE)
        assert native.is_closed(folder)
        folder.parent.chmod(0o777)
        assert native.find(weigh, types) == ANY_CODE  # for nobody else enters what that lies in
        let_others_enter(folder.parent, monkeypatch)
        assert native.find(weigh, types) is None
        self.assert_nothing_is_kept(folder)
        folder.parent.chmod(0o1777)  # as /tmp: there only the owner may
        assert native.find(weigh, types) == ANY_CODE

    def test_nor_one_of_another_user(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        types = keep(ANY_CODE)
        give_away(folder, monkeypatch)
        assert native.find(weigh, types) is None
        self.assert_nothing_is_kept(folder)

    def test_nor_a_file_of_another_user(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It may have come there before the folder was closed."""
        types = keep(ANY_CODE)
        give_away(kept_in(folder)[0], monkeypatch)
        assert native.find(weigh, types) is None

    def test_nor_a_file_that_others_may_write_to(self, folder: Path) -> None:
        types = keep(ANY_CODE)
        folder.chmod(0o755)
        kept_in(folder)[0].chmod(0o666)
        assert native.find(weigh, types) is None

    def test_a_link_leads_only_to_what_is_closed(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        types = keep(ANY_CODE)
        link = folder.parent / "link"
        link.symlink_to(folder)
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(link))
        assert native.find(weigh, types) == ANY_CODE
        folder.chmod(0o777)
        assert native.find(weigh, types) is None

    @pytest.mark.parametrize("target", ["absolute", "relative"])
    @pytest.mark.parametrize("whose", ["another's", "anybody's"])
    def test_every_link_on_the_way_is_looked_at(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, target: str, whose: str
    ) -> None:
        """Whoever can change one in the middle may lead it elsewhere after it was looked at."""
        types = keep(ANY_CODE)
        others = folder.parent / "others"
        others.mkdir()
        (others / "link").symlink_to(folder if target == "absolute" else f"../{folder.name}")
        (folder.parent / "link").symlink_to("others/link")
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder.parent / "link"))
        assert native.find(weigh, types) == ANY_CODE
        if whose == "another's":
            give_link_away(others / "link", monkeypatch)
        else:
            others.chmod(0o777)
            let_others_enter(others, monkeypatch)
        assert native.find(weigh, types) is None
        self.assert_nothing_is_kept(folder)

    def test_a_link_that_leads_nowhere_is_as_none(self, folder: Path) -> None:
        types = keep(ANY_CODE)
        [path] = kept_in(folder)
        path.unlink()
        path.symlink_to(path)
        assert native.find(weigh, types) is None

    def test_a_folder_is_named_absolutely(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        types = keep(ANY_CODE)
        monkeypatch.chdir(folder.parent)
        monkeypatch.setenv("NUMBA_CACHE_DIR", folder.name)
        assert native.find(weigh, types) is None
        self.assert_nothing_is_kept(folder)

    def test_without_a_home_none_is_looked_for(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(folder.parent)
        monkeypatch.delenv("NUMBA_CACHE_DIR")
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")
        monkeypatch.setenv("HOME", "relative")
        monkeypatch.setattr(native, "_BESIDE", folder.parent / "absent" / "file")
        (folder.parent / "absent").touch()
        assert native.find(weigh, keep(ANY_CODE)) is None
        assert [path.name for path in folder.parent.iterdir()] == ["absent"]

    def test_a_new_folder_is_closed_whatever_the_umask(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        inner = folder / "in" / "it"
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(inner))
        before = os.umask(0)
        try:
            types = keep(ANY_CODE)
        finally:
            os.umask(before)
        assert {each.stat().st_mode & 0o777 for each in (inner, inner.parent, folder)} == {0o700}
        assert native.find(weigh, types) == ANY_CODE

    def test_what_lies_in_the_package_is_trusted_as_its_modules(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        types = native.arguments(case()).types
        native.keep_for_all(weigh, types, ANY_CODE)
        native._FOLDER.chmod(0o777)
        assert native.find(weigh, types) == ANY_CODE
        monkeypatch.delenv("NUMBA_CACHE_DIR")
        monkeypatch.setattr(native, "_FOLDER", folder)
        monkeypatch.setattr(native, "_BESIDE", folder.parent / "beside")
        keep(ANY_CODE)
        native._BESIDE.chmod(0o777)
        assert native.find(weigh, types) == ANY_CODE

    def assert_nothing_is_kept(self, folder: Path) -> None:
        before = {path: path.read_bytes() for path in kept_in(folder)}
        native.keep(weigh, "other types", ANY_CODE)
        assert {path: path.read_bytes() for path in kept_in(folder)} == before


ANY_CODE = native.Code("symbol", returns=True, machine_code=b"of no processor")


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a file belong to a user who is neither this one nor root."""
    if os.geteuid() == 0:
        os.chown(path, 54321, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)


def give_link_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it seem that a link, not what it leads to, belongs to another user."""
    true = Path.lstat

    def lstat(each: Path) -> os.stat_result:
        status = true(each)
        if each != path:
            return status
        return os.stat_result((*status[:4], os.geteuid() + 54_321, *status[5:]))

    monkeypatch.setattr(Path, "lstat", lstat)


def let_others_enter(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it seem that anybody may enter the folders above a path; those of pytest are closed."""
    true, above = Path.lstat, set(path.parents)

    def lstat(each: Path) -> os.stat_result:
        status = true(each)
        return os.stat_result((status.st_mode | 0o011, *status[1:])) if each in above else status

    monkeypatch.setattr(Path, "lstat", lstat)


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
    for row in range(len(out)):
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
    with pytest.raises(ArithmeticError, match="a division by 0"):
        native.call(0, native.arguments(case()), returns=True)
