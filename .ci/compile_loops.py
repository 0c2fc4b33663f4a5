"""Compile the loops that the usual ingest and its questions run.

    python .ci/compile_loops.py FOLDER [TRIPLE]

What is compiled goes to a folder (see `tracekit.support.native`), for any processor of the kind
that this machine has. Which types of arguments loops are given, traces tell: simulated ones are
ingested and asked. Loops run as they stand there, while other processes compile them; but those
that never do so elsewhere are waited for. What another trace needs beyond that is compiled where it
is met. With what LLVM calls another machine by, such as `aarch64-unknown-linux-gnu`, object files
for that one are written beside: nothing loads them yet.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracekit.runs import Run

ROOT = Path(__file__).resolve().parents[1]
KERNELS = 1_000
MOST_PROCESSES = 4
"""The longest loop takes more than a quarter of the time of all."""
sys.path.insert(0, str(ROOT))


def main() -> int:
    """Run the script."""
    folder = Path(sys.argv[1]).absolute()
    # Numba reads the first two when it is loaded; nothing is compiled already in the last.
    os.environ |= {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    with tempfile.TemporaryDirectory() as place:
        os.environ["NUMBA_CACHE_DIR"] = str(Path(place) / "nothing")
        with _Compilers(folder, *sys.argv[2:]) as compilers:
            export, trace = Path(place) / "export.sqlite", Path(place) / "trace.json"
            for generator, path, *size in (
                ("generate_export.py", export, "--kernels", str(KERNELS)),
                ("generate_kineto.py", trace, "--megabytes", "1"),
            ):
                subprocess.run(
                    [sys.executable, ROOT / "benchmarks" / generator, path, *size],
                    check=True, stdout=subprocess.DEVNULL,
                )  # fmt: skip
            run_loops(export, trace, Path(place), compilers)
    loops = list(folder.glob("*.loop"))
    print(f"{len(loops)} loops, {sum(path.stat().st_size for path in loops):,} bytes")
    return 0


class _Compilers:
    """Processes that compile loops.

    Parameters
    ----------
    folder
        Where the code goes.
    triple
        Another machine to compile for as well.
    """

    def __init__(self, folder: Path, triple: str = "") -> None:
        processes = min(len(os.sched_getaffinity(0)), MOST_PROCESSES)
        self._folder, self._triple, self._lock = folder, triple, Lock()
        self._pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
        self._met: dict[tuple[Any, str], Future[None]] = {}
        for _ in range(processes):  # which are started when there is something to do
            self._pool.submit(_get_ready)

    def __enter__(self) -> _Compilers:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        for done in self._met.values():
            done.result()

    def compile(self, loop: Callable[..., Any], given: tuple[Any, ...]) -> Future[None]:
        """Have a loop compiled for such arguments, if that was not asked for before."""
        from tracekit.support import native

        met = (loop, native.arguments(given).types)
        with self._lock:
            if met not in self._met:
                task = self._pool.submit(
                    _compile, self._folder, self._triple, loop, _emptied(given)
                )
                self._met[met] = task
            return self._met[met]

    def noticed(self, loop: Callable[..., Any], rows: int) -> Callable[..., Any]:
        """Return what runs a loop, and has it compiled; see `tracekit.support.compiled`."""
        from tracekit.support import compiled, native

        native._FOLDER = self._folder

        @cache
        def machine_code() -> Callable[..., Any]:
            return compiled._compiled(loop)

        def run(*given: Any) -> Any:
            done = self.compile(loop, given)
            if rows < compiled.ALWAYS:
                return loop(*given)
            done.result()
            return machine_code()(*given)

        return run


def _emptied(one: Any) -> Any:
    """Return an argument of the same type with nothing in it."""
    import numpy as np

    if isinstance(one, tuple):
        items = map(_emptied, one)
        return type(one)(*items) if hasattr(one, "_fields") else tuple(items)
    return np.empty((0,) * one.ndim, one.dtype) if isinstance(one, np.ndarray) else one


def _get_ready() -> None:
    import gc

    import numba  # noqa: F401

    gc.disable()  # which would look a tenth of the time for what is left over


def _compile(folder: Path, triple: str, loop: Callable[..., Any], given: tuple[Any, ...]) -> None:
    from tracekit.support import compiler, native

    native._FOLDER = folder
    taken, made = native.arguments(given), compiler._compile(loop, given)
    code = native.extracted(made, taken.codes)
    if code is None:
        return
    native.keep_for_all(loop, taken.types, code)
    if triple:
        name = hashlib.sha256(code.symbol.encode()).hexdigest()
        (folder / f"{name}.o").write_bytes(_for_other(made.library.get_llvm_str(), triple))


def _for_other(text: str, triple: str) -> bytes:
    """Return an object file of LLVM's text for another machine than the one it was made for."""
    from llvmlite import binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(opt=3, reloc="pic")
    module = llvm.parse_assembly(re.sub(r"(?m)^target .*$", "", text))
    module.triple, module.data_layout = triple, str(machine.target_data)
    module.verify()
    code: bytes = machine.emit_object(module)
    return code


def run_loops(export: Path, trace: Path, place: Path, compilers: _Compilers) -> None:
    """Ingest an export and a trace and ask, with every loop however short its input is."""
    from tracekit.support import compiled

    compiled.compiled = compilers.noticed  # before any module takes it from there
    import numpy as np

    import tracekit
    from tracekit.analysis.statistics import differences
    from tracekit.sources.kineto import _document
    from tracekit.sources.sqlite import _leaf_spans as _spans
    from tracekit.sources.sqlite import _page_loops as _pages

    compiled.FEW_ROWS = 0
    run, _ = tracekit.ingest(export, store=place / "from_library")
    ask(run)
    _spans.FEW_ROWS = 0  # rows are read from pages
    _spans.SMALL_FILE_BYTES = 0
    tracekit.ingest(export, store=place / "from_pages")
    _document.FEWEST_BYTES = 0
    tracekit.ingest(trace, store=place / "from_json")
    bits, places = np.zeros(0, np.uint8), np.zeros(0, np.int64)
    # Of which the trace has none, or too few.
    steps = np.ones((1, 5), np.int64)
    differences(steps, steps)
    compilers.compile(_pages.reals, (bits, places, places.view(np.float64), bits))


def ask(run: Run) -> None:
    """Ask a run what is usually asked."""
    import tracekit

    for by in (["stage"], ["kernel"], ["range"], ["layer"], ["iteration"]):
        run.breakdown(by=by)
    for by in (["range"], ["range", "kernel"]):
        run.breakdown(by=by, inclusive=True)
    run.diagnose()
    run.idle()
    tracekit.compare(run, run)
    run.critical_path()
    run.critical_path(kernels=1)
    run.whatif(no_sync=True)


if __name__ == "__main__":
    sys.exit(main())
