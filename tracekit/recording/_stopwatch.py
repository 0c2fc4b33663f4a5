"""Run a program and write its duration to a file: ``FOLDER PROGRAM...``.

It is started as a separate process, and imports nothing of tracekit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

WHOLE = ".whole"
"""Suffix of the file's name, after the process id."""


def main(folder: str, *program: str) -> int:
    """Run the program, write its duration (ns) to a file in `folder`; return its exit code.

    The code is 128 plus the number of the signal if a signal ended the program.
    """
    start = time.monotonic_ns()
    with subprocess.Popen(program) as process:  # noqa: S603 - what the user asked for
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program hears it, too
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        code = process.wait()
    with open(f"{folder}/{os.getpid()}{WHOLE}", "w") as file:  # noqa: PTH123 - pathlib takes time
        file.write(str(time.monotonic_ns() - start))
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
