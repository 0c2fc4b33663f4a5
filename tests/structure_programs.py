"""Programs of literal launches, each with the stage that it is of, for tests of structure.

    p = Program()
    p.run("m:h2d/I m:gemm/F b:gemm_backward/B m:adam/W", times=4)

A token is thread, op and stage. Threads are letters; `m` is the first thread of its process. Ops
are copies (``h2d, d2h, d2d``, of a batch; ``label``, a small one from the host), ``memset``,
``graph``, collectives (``all_reduce, send_recv``), else a kernel of that name; ``name@stream``
launches on another stream than 7, ``name#size`` with so many threads. Stages are the first letters,
``-`` none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracekit.attribution.structure import Structure, Work
from tracekit.model import COLLECTIVES, KINDS, STAGES

COPIES = {"h2d": ("h2d", 1 << 20), "d2h": ("d2h", 4), "d2d": ("d2d", 1 << 20), "label": ("h2d", 64)}
LETTERS = {stage[0]: place for place, stage in enumerate(STAGES)} | {"-": -1}


@dataclass(repr=False)
class Program:
    """Launches in order, 10 ns apart unless `pause` says otherwise; each runs for `length` ns."""

    main: str | None = "m"
    length: int = 7
    rows: list[dict[str, Any]] = field(default_factory=list)
    expected: list[int] = field(default_factory=list)
    now: int = 0

    def run(self, text: str, times: int = 1, *, pause: int = 0, device: int = 0) -> Program:
        """Launch what a text says, some times; the host waits before each time."""
        for _ in range(times):
            self.now += pause
            for token in text.split():
                thread, rest = token.split(":", 1)
                op, stage = rest.rsplit("/", 1)
                self._launch(thread, op, device)
                self.expected.append(LETTERS[stage])
        return self

    def _launch(self, thread: str, op: str, device: int) -> None:
        op, _, stream = op.partition("@")
        op, _, size = op.partition("#")
        kind, bytes_, collective = "compute", -1, 0
        if op in COPIES:
            kind, bytes_ = COPIES[op]
        elif op in {"memset", "graph"}:
            kind = op
        elif op in COLLECTIVES:
            kind, collective = "collective", COLLECTIVES.index(op) + 1
        self.now += 10
        self.rows.append(
            {
                "kind": KINDS.index(kind), "device": device, "start": self.now + 5,
                "end": self.now + 5 + self.length, "launch": self.now, "thread": ord(thread),
                "context_stream": int(stream or 7), "name": op if kind == "compute" else None,
                "size": int(size or -1), "bytes": bytes_, "collective": collective,
            }
        )  # fmt: skip

    def work(self) -> Work:
        """Return the work."""
        names = sorted({row["name"] for row in self.rows} - {None})
        codes = {None: -1} | {name: place for place, name in enumerate(names)}
        columns = (
            {key: [row[key] for row in self.rows] for key in self.rows[0]} if self.rows else {}
        )
        columns["name"] = [codes[name] for name in columns.get("name", [])]
        return work_of(columns, names, None if self.main is None else ord(self.main))

    def __repr__(self) -> str:
        return f"<Program of {len(self.rows)} launches: {letters(self.stages)}>"

    @property
    def stages(self) -> NDArray[Any]:
        """What is expected."""
        return np.array(self.expected)


TYPES = {
    "kind": np.int8, "device": np.int32, "start": np.int64, "end": np.int64, "launch": np.int64,
    "thread": np.int32, "context_stream": np.int64, "name": np.int32, "size": np.int64,
    "bytes": np.int64, "collective": np.int8,
}  # fmt: skip


def work_of(columns: dict[str, Iterable[int]], names: list[str], main: int | None) -> Work:
    """Return work of literal columns; those that are absent are empty."""
    arrays = {name: np.array(list(columns.get(name, ())), kind) for name, kind in TYPES.items()}
    return Work(names=names, main_thread=main, **arrays)


def letters(stages: NDArray[Any]) -> str:
    """Return stages by their first letters, which a failed test shows well."""
    back = {place: letter for letter, place in LETTERS.items()}
    return "".join(back[int(stage)] for stage in stages)


def check(found: Structure, program: Program, method: str = "threads") -> None:
    """Check that all stages are as the program says, found in the way that is named."""
    assert found.method == method, found.evidence
    assert letters(found.stage) == letters(program.stages)
