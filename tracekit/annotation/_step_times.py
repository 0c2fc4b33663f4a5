"""Notes when optimizers have made a step, with and without a profiler: `record --calibrate`.

Each step costs a line in a file of its process, and nothing else is put in place.
"""

from __future__ import annotations

import os
import time
from types import ModuleType
from typing import Any

from ._imports import when_imported

FOLDER = "TRACEKIT_STEP_TIMES"
"""Variable that names the folder of these files, which have the number of their process."""


def note_steps(folder: str) -> None:
    """Write the time of each step, and whose it is, once the program imports optimizers."""

    def install(module: ModuleType) -> None:
        files: dict[int, int] = {}  # a process that is forked has one of its own

        def note(optimizer: Any, *_: Any) -> None:
            if is_compiling():
                return
            now, pid = time.perf_counter_ns(), os.getpid()
            if pid not in files:
                path = os.path.join(folder, str(pid))
                files[pid] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(files[pid], b"%d %d\n" % (now, id(optimizer)))

        compiler = getattr(getattr(module, "torch", None), "compiler", None)
        is_compiling = getattr(compiler, "is_compiling", bool)
        module.register_optimizer_step_post_hook(note)

    when_imported({"torch.optim.optimizer": install})
