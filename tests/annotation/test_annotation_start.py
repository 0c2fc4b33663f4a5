"""How annotations get into a program, and that nothing does where nobody listens."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tracekit.annotation import annotate, variables
from tracekit.annotation._annotate import _LISTENER as VARIABLE
from tracekit.annotation._imports import when_imported
from tracekit.annotation._nvtx import NvtxRanges, _Attributes, _GetModule, _Pop, _Push


def _python(code: str, environment: dict[str, str]) -> str:
    left = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", VARIABLE}}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**left, **environment},
    )  # fmt: skip
    return done.stdout + done.stderr


_MODULES = "import sys; print(*sorted(sys.modules), sys.path, sys.meta_path)"


def test_off_means_that_nothing_is_imported() -> None:
    without, off = (
        re.sub("sitecustomize |0x[0-9a-f]+", "", _python(_MODULES, more))
        for more in ({}, variables(1, {}))
    )
    assert off == without


def test_another_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine', __file__)")
    for listens in ({}, {VARIABLE: "/no/such/library.so"}):
        said = _python(
            "import sys, sitecustomize as s; print(s.__file__, sys.path)",
            {**variables(1, {"PYTHONPATH": str(tmp_path)}), **listens},
        )
        mine = str(tmp_path / "sitecustomize.py")
        assert said.startswith(f"mine {mine}\n{mine} [''")
        assert "annotation" not in said


def test_a_program_without_pytorch_pays_nothing() -> None:
    said = _python(_MODULES, {**variables(1, {}), VARIABLE: "/no/such/library.so"})
    assert "_tracekit_annotation._imports" in said
    for heavy in ("_tracekit_annotation._hooks", " ctypes ", " torch ", " tracekit "):
        assert heavy not in said


def test_a_program_runs_whatever_becomes_of_its_annotations(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__path__ = []\nprint('imported')")
    said = _python(
        "import torch; print(torch.__loader__, torch.__spec__.loader)",
        {**variables(1, {"PYTHONPATH": str(tmp_path)}), VARIABLE: "/no/such/library.so"},
    )
    assert said.startswith("imported\n")
    assert "tracekit: no annotations (/no/such/library.so: cannot open" in said
    assert "_tracekit" not in said


def test_the_path_of_python_stays() -> None:
    assert variables(2, {})["PYTHONPATH"].endswith("annotation/site")
    assert variables(2, {"PYTHONPATH": "/a:/b"})["PYTHONPATH"].endswith("/site:/a:/b")
    assert variables(2, {})["TRACEKIT_ANNOTATE"] == "2"


def test_modules_are_told_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("awaited_one", "awaited_two"):
        (tmp_path / f"{name}.py").write_text("value = 1")
    monkeypatch.syspath_prepend(tmp_path)
    told: list[Any] = []
    before = list(sys.meta_path)
    stop = when_imported(dict.fromkeys(["awaited_one", "awaited_two", "sys"], told.append))
    assert told == [sys]
    import awaited_one

    assert told[1:] == [awaited_one]
    assert awaited_one.value == 1
    assert "awaited" not in repr(awaited_one.__spec__.loader.__class__)
    stop()
    import awaited_two

    assert awaited_two is not None
    assert len(told) == 2
    assert sys.meta_path == before


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with tracekit.annotate(loader=[1, 2]) as annotations:
        assert list(annotations.loader) == [1, 2]
    with pytest.raises(ValueError, match=r"annotate\(loader=\.\.\.\)"):
        _ = annotate().loader


class _Profiler:
    """Plays a profiler: fills its functions into the tables of slots; they keep what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []
        string = ctypes.c_char_p
        self._names: dict[int, str] = {}
        self._functions = {
            10: ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, string)(self._register),
            12: ctypes.PYFUNCTYPE(ctypes.c_void_p, string)(self._create),
            4: _Push(lambda domain, at: self._say("push", domain, at)),
            5: _Pop(lambda domain: self._say("pop", domain, None)),
            2: ctypes.PYFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p)(
                lambda domain, at: self._say("start", domain, at)
            ),
            3: ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64)(
                lambda _, handle: self.said.append(f"end {handle}")
            ),
        }

    def initialize(self, get_table: Any) -> None:
        address = get_table(1)
        assert get_table(7) is None
        get_module = _GetModule(ctypes.c_void_p.from_address(address + 8).value)
        table, count = ctypes.c_void_p(), ctypes.c_uint()
        assert get_module(99, ctypes.byref(table), ctypes.byref(count)) == 0
        assert get_module(5, ctypes.byref(table), ctypes.byref(count)) == 1
        slots = (ctypes.c_void_p * count.value).from_address(table.value)
        assert slots[0] is slots[count.value - 1] is None
        for slot, function in self._functions.items():
            ctypes.c_void_p.from_address(slots[slot]).value = ctypes.cast(
                function, ctypes.c_void_p
            ).value

    def _create(self, name: bytes) -> int:
        self.said.append(f"domain {name.decode()}")
        return 7

    def _register(self, domain: int, name: bytes) -> int:
        assert domain == 7
        handle = 1000 + len(self._names)
        self._names[handle] = name.decode()
        return handle

    def _say(self, what: str, domain: int, at: int | None) -> int:
        assert domain == 7
        name = ""
        if at is not None:
            attributes = _Attributes.from_address(at)
            assert attributes.size == 48
            registered = attributes.message_type == 3
            message = attributes.message
            name = self._names[message] if registered else ctypes.string_at(message).decode() + "'"
        self.said.append(f"{what} {name}".strip())
        return 5


def test_ranges_by_the_c_interface() -> None:
    profiler = _Profiler()
    ranges = NvtxRanges(profiler.initialize)
    for _ in range(2):
        ranges.push("FP")
        ranges.pop()
    ranges.end(ranges.start("BP"))
    ranges.end(ranges.start_once("iteration 0"))
    ranges.mark("said")
    assert profiler.said == [
        "domain tracekit", "push FP", "pop", "push FP", "pop", "start BP", "end 5",
        "start iteration 0'", "end 5", "push said", "pop",
    ]  # fmt: skip
    assert list(profiler._names.values()) == ["FP", "BP", "said"]


def test_a_profiler_that_takes_no_ranges() -> None:
    with pytest.raises(OSError, match="takes no NVTX ranges"):
        NvtxRanges(lambda _: None)
