"""A program that takes the place of nsys: it runs what it is to record and writes a report of it.

What it exports of a report is an SQLite file that was made before.
"""

from __future__ import annotations

import sys
from pathlib import Path

from nsys_builder import NsysBuilder

from tracekit.sources._nsys_tool import REPORT_MAGIC

HELP = """
usage: nsys profile [<args>] [application] [<application args>]

\t-c, --capture-range=

\t   Possible values are none, cudaProfilerApi, nvtx.

\t--capture-range-end=

\t--cpuctxsw=

\t--cuda-graph-trace=<granularity>

\t--cuda-memory-usage=

\t--gpu-metrics-device=

\t--mpi-impl=

\t--nic-metrics=

\t-p, --nvtx-capture=

\t-o, --output=

\t-s, --sample=

\t   Possible values are 'process-tree' or 'none'.

\t-t, --trace=

\t   Possible values are 'cuda', 'nvtx', 'mpi', 'osrt' or 'none'.
\t   Default is 'cuda,nvtx,osrt'.

\t-w, --show-output=

\t   Possible values are 'true' or 'false'.
"""

_PROGRAM = """#!{python} -S
import os, sys
words = sys.argv[1:]
if "--version" in words:
    print("NVIDIA Nsight Systems version 2023.4.4")
    sys.exit()
if "status" in words:
    print("CPU Profiling Environment (process-tree):", os.environ.get("SWITCHES", "OK"))
    sys.exit()
if "--help" in words:
    print({help!r} if words[0] == "profile" else "--lazy --tables")
    sys.exit()
output = next(each.partition("=")[2] for each in words if each.startswith("--output="))
if words[0] == "export":
    with open({export!r}, "rb") as source, open(output, "wb") as target:
        target.write(source.read())
    sys.exit()
import ctypes, re, subprocess
output = re.sub(r"%q{{(\\w+)}}", lambda found: os.environ[found[1]], output)
program = words[1:]
while program and program[0].startswith("--"):
    program = program[1:]
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # as nsys, it waits for what the program leaves behind
code = subprocess.run(program).returncode
if code < 0:
    code = 128 - code
try:
    while True:
        os.wait()
except ChildProcessError:
    pass
if "NO_REPORT" not in os.environ:
    with open(output + ".nsys-rep", "wb") as report:
        report.write({magic!r} + repr(program + [output]).encode())
sys.exit(code)
"""


def make_fake_nsys(folder: Path, *, staged: bool | None = True) -> Path:
    """Write the program into a folder, with an export of two steps of FP and WU on the host.

    If not `staged`, it is one of calls of MPI alone; if None, of nothing.
    """
    export = folder / "made.sqlite"
    export.unlink(missing_ok=True)
    with NsysBuilder(export, schema="3.11.1") as made:
        if staged is False:
            made.mpi("COLLECTIVES", 10, 20, "MPI_Barrier")
        for number in range(2 if staged else 0):
            at = 1000 * number
            made.push_pop(at, at + 900, f"iteration {number}")
            made.push_pop(at, at + 600, "FP")
            made.push_pop(at + 600, at + 800, "WU")
    program = folder / "nsys"
    program.write_text(
        _PROGRAM.format(
            python=sys.executable, help=HELP, export=str(export), magic=REPORT_MAGIC + b" 1..\n"
        )
    )
    program.chmod(0o755)
    return program
