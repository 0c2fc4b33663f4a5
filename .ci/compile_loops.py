"""Compile the loops that the usual ingest and its questions run, to be part of a wheel.

    python .ci/compile_loops.py

What is compiled goes to ``tracekit/loops`` (see `tracekit.support.native`), for any processor of
the kind that this machine has. Which types of arguments loops are given, traces tell: a simulated
one is ingested and asked, with every loop compiled however short its input is. What another trace
needs beyond that is compiled where it is met.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOOPS = ROOT / "tracekit" / "loops"
KERNELS = 3_000
# Numba reads these when it is loaded.
os.environ |= {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}


def main() -> int:
    """Run the script."""
    shutil.rmtree(LOOPS, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NUMBA_CACHE_DIR"] = str(Path(folder) / "nothing")
        export = Path(folder) / "export.sqlite"
        generator = ROOT / "benchmarks" / "generate_export.py"
        subprocess.run(
            [sys.executable, generator, export, "--kernels", str(KERNELS)],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        compile_for(export, Path(folder) / "store")
    loops = sorted(LOOPS.iterdir())
    print(f"{len(loops)} loops, {sum(path.stat().st_size for path in loops):,} bytes")
    return 0


def compile_for(export: Path, store: Path) -> None:
    """Compile what an export and questions about it need."""
    sys.path.insert(0, str(ROOT))
    import numpy as np

    import tracekit
    from tracekit.attribution import _launches
    from tracekit.sources import _merging
    from tracekit.sources.sqlite import _pages, _spans
    from tracekit.support import compiled, native

    compiled.FEW_ROWS = _merging.FEW_ROWS = _spans.FEW_ROWS = 0
    native.keep = native.keep_for_all
    run, _ = tracekit.ingest(export, store=store)
    _launches.SPARSE = 0  # as where ids of calls lie far apart
    tracekit.ingest(export, store=store.with_name("sparse"))
    bits, places = np.zeros(0, np.uint8), np.zeros(0, np.int64)
    reals = compiled.compiled(_pages.reals, compiled.ALWAYS)  # of which the trace has none
    reals(bits, places, places.view(np.float64), bits)
    for by in (["stage"], ["kernel"], ["range"], ["layer"], ["iteration"]):
        run.breakdown(by=by)


if __name__ == "__main__":
    sys.exit(main())
