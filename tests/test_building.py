"""What builds a wheel: hatchling, when the loops are compiled."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import threading
import tomllib
import zipfile
from pathlib import Path

import backend
import compile_loops
import numpy as np
import pytest
import release
from hatchling import build as hatchling
from packaging.requirements import Requirement

from tracekit.support import native
from tracekit.support.parquet._encoding_loops import number

ROOT = Path(__file__).resolve().parents[1]

COMPILED = {"loops": "yes"}

linked = pytest.mark.skipif(not backend.LINKED, reason="no wheel holds such code here")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source tree with code of an earlier build, where hatchling tells what it finds of that."""
    loops = tmp_path / "tracekit" / "loops"
    loops.mkdir(parents=True)
    (loops / "earlier.loop").touch()
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(backend, "ROOT", tmp_path)
    monkeypatch.setattr(backend, "LOOPS", loops)
    monkeypatch.setattr(hatchling, "build_wheel", lambda *_: found(loops))
    return tmp_path


def found(loops: Path) -> str:
    return " ".join(sorted(path.name for path in loops.glob("*"))) or "nothing"


def script(tree: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Put a script in the place of the one that compiles."""
    (tree / "compile_loops.py").write_text(text)
    monkeypatch.setattr(backend, "__file__", str(tree / "backend.py"))


WRITES = """
import pathlib, sys
folder = pathlib.Path(sys.argv[1])
folder.mkdir()
(folder / "new.loop").touch()
"""


def test_code_is_compiled_where_it_is_linked() -> None:
    assert backend.LINKED == native._LINKS_HERE


@linked
def test_a_wheel_holds_what_was_compiled_for_it_and_nothing_else(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tree, monkeypatch, WRITES)
    assert backend.build_wheel("dist", COMPILED) == "new.loop"


@linked
def test_a_wheel_is_built_without_what_cannot_be_compiled(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script(tree, monkeypatch, WRITES + "sys.exit('no room')")
    assert backend.build_wheel("dist", COMPILED) == "nothing"
    told = capfd.readouterr()
    assert told.out == ""
    assert told.err.startswith("no room\ntracekit: its loops could not be compiled, see above.")


@pytest.mark.parametrize("can_link", [True, False])
def test_a_wheel_is_built_without_unless_that_is_told_and_code_can_be_linked(
    tree: Path, monkeypatch: pytest.MonkeyPatch, *, can_link: bool
) -> None:
    script(tree, monkeypatch, WRITES)
    monkeypatch.setattr(backend, "LINKED", can_link)
    assert backend.build_wheel("dist", None if can_link else COMPILED) == "nothing"


def test_what_it_is_told_is_yes_or_no(tree: Path) -> None:
    with pytest.raises(SystemExit, match="loops=none: say loops=yes or loops=no"):
        backend.build_wheel("dist", {"loops": "none"})
    assert found(tree / "tracekit" / "loops") == "earlier.loop"


@linked
def test_of_two_builds_from_the_same_files_one_waits(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(hatchling, "build_wheel", lambda *_: seen.append("packed") or "")
    with backend._alone():
        other = threading.Thread(target=backend.build_wheel, args=("dist",))
        other.start()
        other.join(0.1)
        assert (seen, found(tree / "tracekit" / "loops")) == ([], "earlier.loop")
    other.join()
    assert (seen, found(tree / "tracekit" / "loops")) == (["packed"], "nothing")


@linked
@pytest.mark.slow
def test_loops_run_as_they_stand_and_other_processes_compile_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setattr(native, "_FOLDER", tmp_path)
    found = np.zeros(2, np.int32)
    given = (np.array([5, 4]), np.full(8, -1), np.empty(8, np.int64), found)
    with compile_loops._Compilers(tmp_path) as compilers:
        assert compilers.noticed(number, 1)(*given) == 2  # distinct ones
        assert compilers.compile(number, given) is compilers.compile(number, given)
    assert found.tolist() == [0, 1]
    assert len(list(tmp_path.iterdir())) == 1
    assert native.find(number, native.arguments(given).types) is not None


class TestWhatABuildNeeds:
    @linked
    def test_of_a_wheel_is_what_compiles(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(ROOT)
        own = set(hatchling.get_requires_for_build_wheel())
        needed = {
            backend.name_of(each) for each in backend.get_requires_for_build_wheel(COMPILED)
        } - own
        assert {"numba", "llvmlite", "numpy", "polars", "sqlalchemy"} <= needed
        assert not needed & backend.UNUSED

    def test_of_a_wheel_without_code_is_what_hatchling_needs(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(ROOT)
        own = hatchling.get_requires_for_build_wheel()
        assert backend.get_requires_for_build_wheel() == own

    @pytest.mark.parametrize("kind", ["sdist", "editable"])
    def test_of_all_else_is_what_hatchling_needs(self, kind: str) -> None:
        for hook in (f"build_{kind}", f"get_requires_for_build_{kind}"):
            assert getattr(backend, hook) is getattr(hatchling, hook)

    def test_what_is_left_out_is_needed_by_tracekit(self) -> None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
        assert {backend.name_of(each) for each in project["dependencies"]} > backend.UNUSED

    @pytest.mark.slow
    def test_what_is_left_out_is_not_imported_by_an_ingest_and_questions(
        self, tmp_path: Path
    ) -> None:
        program = """
import sys
sys.path.insert(0, ".ci")
import backend
import compile_loops
sys.modules.update(dict.fromkeys(backend.UNUSED))
import tracekit
run, _ = tracekit.ingest("sample_traces/ddp_4gpu.sqlite", store=sys.argv[1])
compile_loops.ask(run)
"""
        command = [sys.executable, "-c", program, tmp_path / "store"]
        subprocess.run(command, cwd=ROOT, check=True)


def symbols(code: bytes) -> tuple[int, set[str], set[str]]:
    """The machine of an ELF object of 64 bits, and what it defines and wants: functions by name."""
    machine, sections = *struct.unpack_from("<H", code, 18), *struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    table = [struct.unpack_from("<IIQQQQIIQQ", code, sections + size * n) for n in range(count)]
    [found] = [each for each in table if each[1] == 2]  # the table of symbols
    names = table[found[6]][4]
    known: dict[bool, set[str]] = {True: set(), False: set()}
    for at in range(found[4] + 24, found[4] + found[5], 24):
        name, info, _, section = struct.unpack_from("<IBBH", code, at)
        if info >> 4:  # others are seen in the file alone
            text = code[names + name : code.index(b"\0", names + name)].decode()
            known[section != 0].add(text)
    return machine, known[True], known[False]


@linked
@pytest.mark.nightly
def test_each_loop_compiles_for_aarch64_and_calls_nothing_but_libc(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / ".ci" / "compile_loops.py", tmp_path]
    subprocess.run([*command, "aarch64-unknown-linux-gnu"], check=True)
    files = list(tmp_path.glob("*.loop"))
    here = [native.Code.unpacked(path.read_bytes()) for path in files]
    there = [symbols(path.read_bytes()) for path in tmp_path.glob("*.o")]
    assert len(there) == len(here) > 40
    assert {machine for machine, _, _ in there} == {183}
    defined = set().union(*(names for _, names, _ in there))
    assert {code.symbol for code in here if code} <= defined
    assert not set().union(*(names for _, _, names in there)) - native._LIBRARY


@pytest.mark.parametrize("name", ["llvmlite", "numba", "polars"])
def test_what_the_code_knows_the_inside_of_has_an_upper_bound(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    [needed] = [each for each in project["dependencies"] if backend.name_of(each) == name]
    assert Requirement(needed).specifier.contains("99") is False
    assert any(each.operator == "<" for each in Requirement(needed).specifier)


@linked
@pytest.mark.nightly
def test_the_first_ingest_of_a_wheel_compiles_nothing(tmp_path: Path) -> None:
    place, own = tmp_path / "installed", tmp_path / "own"
    with zipfile.ZipFile(release.release(built(tmp_path), tmp_path / "out")) as wheel:
        (tag,) = (name for name in wheel.namelist() if name.endswith(".dist-info/WHEEL"))
        assert b"Tag: py3-none-manylinux2014_x86_64" in wheel.read(tag)
        wheel.extractall(place)
    export = tmp_path / "export.sqlite"
    generator = ROOT / "benchmarks" / "generate_export.py"
    subprocess.run([sys.executable, generator, export, "--kernels", "100000"], check=True)
    program = """
import sys, tracekit
run, _ = tracekit.ingest(sys.argv[1], store=sys.argv[2])
run.breakdown(by=["stage"])
assert tracekit.__file__.startswith(sys.argv[3])
assert not {"llvmlite", "numba"} & sys.modules.keys()
"""
    command = [sys.executable, "-c", program, export, tmp_path / "store", place]
    environment = {"PYTHONPATH": str(place), "NUMBA_CACHE_DIR": str(own), "PATH": os.defpath}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert not own.exists()


def built(folder: Path) -> Path:
    """Build a wheel as from a copy of this tree, without what its build is to do without."""
    tree, absent = folder / "tree", folder / "absent"  # no history: the version is no matter
    for name in ("tracekit", ".ci", "benchmarks", "sample_traces", "schemas", "workloads"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    absent.mkdir()
    for name in backend.UNUSED:
        (absent / f"{name}.py").write_text("raise ImportError")
    path = os.pathsep.join([str(tree / ".ci"), str(absent)])
    program = "import sys, backend; print(backend.build_wheel(sys.argv[1], {'loops': 'yes'}))"
    done = subprocess.run(
        [sys.executable, "-c", program, folder], cwd=tree, check=True, stdout=subprocess.PIPE,
        text=True, env={"PYTHONPATH": path, "PATH": os.defpath},
    )  # fmt: skip
    return folder / done.stdout.strip()
