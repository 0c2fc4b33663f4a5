"""Commands that a user ends with Ctrl-C at any moment, as `reliability.py` tries them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fake_nsys import make_fake_nsys  # of tests/, which who imports this looks into

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "sample_traces" / "recorded"
KEPT = ROOT / "sample_traces" / "ddp_4gpu.sqlite"
INTERRUPTED = 130
DONE, STOPPED = "done before", "stopped with one line and exit code 130"
PATIENCE_S = 120

# What is imported before is next to nothing; a shell's background job may ignore interrupts.
_COMMAND = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from tracekit.cli import main
begun = int(sys.argv.pop(1))
os.write(begun, b"!")
os.close(begun)
main()
"""


class Tried:
    """A folder with a store and what commands make, and the commands that are tried there."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        self._folder = folder
        self.page = folder / "pages" / "report.html"
        self.page.parent.mkdir()
        self.last_words = "\n"
        (folder / "tools").mkdir()
        self._environment = {
            **os.environ,
            "TRACEKIT_NSYS": str(make_fake_nsys(folder / "tools")),
            "TRACEKIT_STORE": str(self.store),
            "PYTHONPATH": str(ROOT),
        }
        waits = [sys.executable, "-c", "import time; time.sleep(0.3)"]
        ranks = [str(RECORDED / f"mpi_latency_rank{rank}.sqlite") for rank in (0, 1)]
        self.commands: dict[str, list[str]] = {
            "ingest": ["ingest", str(ROOT / "sample_traces" / "p2p_4gpu_star.sqlite")],
            "ingest of two reports": ["ingest", *ranks, "--run", "ranks", "--processes", "2"],
            "report": ["report", "kept", "-o", str(self.page)],
            "study": ["study", "kept"],
            "record": ["record", "--", *waits],
        }
        assert self.run(["ingest", str(KEPT), "--name", "kept"])[0] == 0

    def run(self, words: list[str], after: float | None = None) -> tuple[int, str, float]:
        """Run a command, send it an interrupt some time after it begins, and see how it ends.

        What it says comes second, and how long it took from then on third.

        As from a terminal, what the command has started is sent the interrupt too.
        """
        reading, writing = os.pipe()
        with subprocess.Popen(
            [sys.executable, "-c", _COMMAND, str(writing), *words],
            cwd=self._folder, env=self._environment, pass_fds=[writing], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            os.close(writing)
            with os.fdopen(reading, "rb") as begun:
                begun.read(1)
            since = time.monotonic()
            if after is not None:
                time.sleep(after)
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGINT)
            _, said = process.communicate(timeout=PATIENCE_S)
        return process.returncode, said, time.monotonic() - since

    def ended(self, words: list[str], after: float) -> str:
        """Interrupt a command; what it says is one line, and nothing of it is left over."""
        code, said, _ = self.run(words, after)
        if words[0] == "record":  # nsys and the program that it ran speak too
            assert str(ROOT / "tracekit") not in said, said
        else:
            assert all(line.startswith("tracekit: ") for line in said.splitlines()), said
        assert code in (0, INTERRUPTED), (code, said)
        assert bool(code) == said.endswith("tracekit: interrupted\n"), (code, said)
        assert not list((self.store / "staging").iterdir())
        assert [each.name for each in self.page.parent.iterdir()] in ([], [self.page.name])
        if self.page.exists():
            assert self.page.read_text().endswith(self.last_words)
            self.page.unlink()
        return STOPPED if code else DONE


def interrupt(
    folder: Path, cases: int, forget: Callable[[Path], object], check: Callable[[Path], object]
) -> list[dict[str, Any]]:
    """Return by command how often it was done before, and how often it stopped.

    Parameters
    ----------
    folder
        Where to try it.
    cases
        How many interrupts in all.
    forget, check
        What removes from a store all runs but the first, and sees that what it lists is whole.
    """
    pick, tried = random.Random(22), Tried(folder)
    longest = {}
    for name, words in tried.commands.items():
        forget(tried.store)
        code, said, longest[name] = tried.run(words)
        assert code == 0, (name, said)
    tried.last_words = tried.page.read_text()[-100:]
    found: Counter[tuple[str, str]] = Counter()
    for number in range(cases):
        name = list(tried.commands)[number % len(tried.commands)]
        forget(tried.store)
        found[name, tried.ended(tried.commands[name], pick.uniform(0.0, longest[name]))] += 1
        check(tried.store)
    for words in tried.commands.values():
        code, said, _ = tried.run(words)
        assert code == 0, said
    return [{"command": name, "ended": how, "times": n} for (name, how), n in sorted(found.items())]
