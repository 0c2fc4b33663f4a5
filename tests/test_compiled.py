"""Loops that are compiled only when that pays."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from effort import by_day

import tracekit
from tracekit.errors import UsageError
from tracekit.support import compiled as _compiled
from tracekit.support import compiler
from tracekit.support.compiled import compiled, plain
from tracekit.support.compiled import given as given_column
from tracekit.support.parquet._encoding_loops import number

SAMPLES = Path(__file__).resolve().parents[1] / "sample_traces"

INGEST = """
import sys
import tracekit
tracekit.ingest(sys.argv[1], store=sys.argv[2])
print("numba" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", by_day(["ddp_4gpu", "p2p_2gpu_start_end"], "ddp_4gpu"))
def test_a_small_ingest_needs_no_compiler(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(tracekit.__file__).parents[1])}
    environment.pop("TRACEKIT_CATALOG", None)
    sample, store = SAMPLES / f"{name}.sqlite", tmp_path / "store"
    done = subprocess.run(
        [sys.executable, "-c", INGEST, sample, store],
        capture_output=True, text=True, check=True, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.split() == ["False"]


def test_few_rows_run_the_loop_itself_until_they_come_to_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_compiled, "_rows", Counter())
    assert compiled(number, _compiled.FEWEST_ROWS - 1) is plain(number)
    assert compiled(number, 1) is plain(number)  # too few to pass them to machine code
    assert compiled(number, _compiled._WORTH_CALLING) == _compiled._compiled(number).if_kept
    assert compiled(number, _compiled.FEWEST_ROWS) is not plain(number)
    assert compiled(number, _compiled.FEW_ROWS) is compiled(number, 1 << 30)


def test_a_loop_is_compiled_once_many_batches_of_few_rows_come_to_many() -> None:
    def loop() -> None:
        """Do nothing, for no other test."""

    batch = _compiled.FEW_ROWS // 2
    first, *later = (compiled(loop, batch) for _ in range(3))
    assert [first == each for each in later] == [False, False]
    assert later[0] is later[1] is compiled(loop, _compiled.FEWEST_ROWS)


def test_what_is_given_may_not_be_written_to() -> None:
    for column in (pl.Series([1, 2]), pl.Series([True, False]), pl.Series(np.arange(3))):
        array = given_column(column)
        assert array.tolist() == column.to_list()
        assert not array.flags.writeable
        assert array.flags.c_contiguous


def test_where_nothing_can_be_kept_loops_are_compiled_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import numba

    make, asked = numba.njit, []

    def njit(*loops: Callable[..., object], **options: object) -> object:
        asked.append(options)
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return make(*loops, **options)

    monkeypatch.setattr(numba, "njit", njit)
    codes, found = np.array([5, 7, 5]), np.empty(3, np.int32)
    compiler.kept.__wrapped__(number)(codes, np.full(8, -1), np.empty(8, np.int64), found)
    assert found.tolist() == [0, 1, 0]
    assert [bool(options.get("cache")) for options in asked[:2]] == [True, False]


class Planted:
    """An object that leaves a trace where it is unpickled.

    Parameters
    ----------
    mark
        The folder that is made.
    """

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._mark),)


def run_kept() -> None:
    """Run a loop as Numba keeps it, as in a new process."""
    codes, found = np.array([5, 7, 5]), np.empty(3, np.int32)
    compiler.kept.__wrapped__(number)(codes, np.full(8, -1), np.empty(8, np.int64), found)
    assert found.tolist() == [0, 1, 0]


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o700, 0o777], ids=oct)
def test_nothing_is_unpickled_that_others_may_have_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """Numba's own files run what is in them."""
    import numba

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    run_kept()
    [index] = (tmp_path / "cache").glob("*/*.nbi")
    index.write_bytes(pickle.dumps(Planted(tmp_path / "mark")))
    index.parent.chmod(mode)
    with suppress(FileExistsError):  # which comes of reading it twice
        run_kept()
    assert (tmp_path / "mark").exists() == (mode == 0o700)


def test_numba_keeps_nothing_in_a_folder_that_is_not_named_absolutely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numba

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(numba.config, "CACHE_DIR", "cache")
    run_kept()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["disable_jit: 1", "[]", "{{{", "cache_dir: /elsewhere"])
def test_settings_in_the_working_directory_are_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    """It may be a folder of traces from anywhere."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".numba_config.yaml").write_text(content)
    for run in (run_kept, lambda: compiler.Compiled(number)(np.arange(3))):
        with pytest.raises(
            UsageError, match=r"numba_config\.yaml would change how Numba .* another folder"
        ):
            run()


def test_a_compiler_that_is_switched_off_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import numba

    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    with pytest.raises(UsageError, match="NUMBA_DISABLE_JIT forbids it: unset it"):
        run_kept()
