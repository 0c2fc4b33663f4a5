"""Traces of literal rows in the canonical tables, without a file.

    b = TraceBuilder()
    b.range(0, 100, "forward")
    b.op("gemm", at=10)
    trace = b.trace()

Thread numbers say the process: threads 0 to 9 are process 0's, 10 to 19 process 1's, and so on.
Ranges and ops get their numbers when the trace is made, in the order that sources give them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import polars as pl

from tracekit.attribution import Rules, attribute
from tracekit.model import PATHS, Trace, path_texts


class TraceBuilder:
    """Collects rows; every method gives the absent columns values that matter to no test."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {
            name: [] for name in ("ops", "calls", "ranges", "iterations", "devices", "reports")
        }
        self.thread_names: dict[int, str | None] = {}
        self.pids: dict[int, int] = {}

    def thread(self, thread: int, name: str | None = None) -> None:
        """Name a thread; one that is used without being named has no name."""
        self.thread_names[thread] = name

    def range(self, start: int, end: int, name: str | None, *, thread: int = 0, **row: Any) -> None:
        """Add a range: push/pop in the default domain unless `row` says otherwise.

        Its path, where `row` says one, is written as it is shown: ``"forward > layer"``.
        """
        self.thread_names.setdefault(thread, None)
        place = {"report": 0, "process": thread // 10, "thread": thread}
        self.rows["ranges"].append(
            {**place, "name": name, "start": start, "end": end, "style": "push_pop"} | row
        )

    def start_end(self, start: int, end: int, name: str, *, thread: int = 0) -> None:
        """Add a start/end range."""
        self.range(start, end, name, thread=thread, style="start_end")

    def call(self, start: int, end: int, *, thread: int = 0, correlation: int | None) -> None:
        """Add a CUDA call."""
        self.thread_names.setdefault(thread, None)
        self.rows["calls"].append(
            {
                "report": 0, "process": thread // 10, "thread": thread, "start": start, "end": end,
                "name": "cudaLaunchKernel", "correlation": correlation,
            }
        )  # fmt: skip

    def op(
        self,
        name: str,
        at: int | None = None,
        *,
        thread: int = 0,
        start: int | None = None,
        end: int | None = None,
        **row: Any,
    ) -> None:
        """Add an op, and a call of 1 ns at `at` that launches it.

        It starts 2 ns after its launch and takes 5 ns, unless told otherwise.
        """
        correlation = len(self.rows["ops"]) + 1
        begin = (at or 0) + 2 if start is None else start
        self.thread_names.setdefault(thread, None)
        made: dict[str, Any] = {"launch_start": None}
        if at is not None:
            self.call(at, at + 1, thread=thread, correlation=correlation)
            made = {"launch_thread": thread, "launch_start": at, "launch_end": at + 1}
        self.rows["ops"].append(
            {
                "report": 0, "process": thread // 10, "device": 0, "stream": 7, "start": begin,
                "end": begin + 5 if end is None else end, "name": name, "kind": "compute",
                "correlation": correlation, "stage": "OTHER",
                "stage_source": "nvtx" if row.get("stage", "OTHER") != "OTHER" else "none",
            } | made | row
        )  # fmt: skip

    def iteration(self, number: int, start: int, end: int, *, thread: int = 0, **row: Any) -> None:
        """Add an iteration, for analyses of a trace that is not attributed."""
        self.thread_names.setdefault(thread, None)
        self.rows["iterations"].append(
            {
                "report": 0, "process": thread // 10, "thread": thread, "iteration": number,
                "name": f"step {number}", "start": start, "end": end,
            } | row
        )  # fmt: skip

    def trace(self) -> Trace:
        """Make the trace, not attributed."""
        threads = sorted(self.thread_names)
        processes = sorted({thread // 10 for thread in threads})
        rows: dict[str, Iterable[dict[str, Any]]] = {
            **self.rows,
            "ranges": sorted(self.rows["ranges"], key=lambda row: (row["start"], -row["end"])),
            "ops": sorted(self.rows["ops"], key=lambda row: row["start"]),
            "calls": sorted(self.rows["calls"], key=lambda row: row["start"]),
            "threads": [
                {
                    "report": 0, "process": thread // 10, "thread": thread, "tid": 1000 + thread,
                    "name": self.thread_names[thread], "global_id": thread,
                }
                for thread in threads
            ],
            "processes": [
                {
                    "report": 0, "process": process, "pid": self.pids.get(process, 100 + process),
                    "global_id": process,
                }
                for process in processes
            ],
        }  # fmt: skip
        frames = {name: _frame(list(some)) for name, some in rows.items() if some}
        for name, number in (("ranges", "range"), ("ops", "op"), ("calls", "call")):
            if name in frames:
                frames[name] = frames[name].with_row_index(number)
        if "path" in frames.get("ranges", pl.DataFrame()).columns:
            frames["ranges"], frames["paths"] = with_paths(frames["ranges"])
        return Trace.of(frames)

    def attributed(self, rules: Rules | None = None) -> Trace:
        """Make the trace and attribute it, by the default rules unless others are given.

        Its processes are said to train: few rows hold no sign of it.
        """
        return self.judged(training(rules or default_rules()))

    def judged(self, rules: Rules | None = None) -> Trace:
        """Make the trace and attribute it, and let what its processes do be found."""
        return attribute(self.trace(), rules or default_rules())


@cache
def default_rules() -> Rules:
    """Read the default rules once."""
    return Rules.load()


def training(rules: Rules) -> Rules:
    """Return rules by which processes train, unless the rules say what they do."""
    if rules is default_rules():
        return _default_training()
    return rules if rules.verdict else replace(rules, verdict="training")


@cache
def _default_training() -> Rules:
    """Return these, with what was made of them before."""
    return replace(default_rules(), verdict="training")


def with_paths(ranges: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return ranges whose paths are written as texts with numbers for them, and table ``paths``."""
    chains: list[tuple[str, ...]] = []
    for text in ranges["path"].drop_nulls():
        labels = tuple(text.split(" > "))
        chains += [labels[: n + 1] for n in range(len(labels))]
    numbers = {chain: number for number, chain in enumerate(dict.fromkeys(chains))}
    paths = [
        {
            "path": number, "parent_path": numbers.get(chain[:-1]), "label": chain[-1],
            "depth": len(chain) - 1,
        }
        for chain, number in numbers.items()
    ]  # fmt: skip
    of_ranges = [None if text is None else numbers[tuple(text.split(" > "))]
                 for text in ranges["path"]]  # fmt: skip
    return ranges.with_columns(path=pl.Series(of_ranges, dtype=pl.Int32)), pl.DataFrame(
        paths, schema=PATHS.schema
    )


def paths_of(trace: Trace) -> list[str | None]:
    """Return the text of the path of each range."""
    return path_texts(trace.read("paths"), trace.read("ranges")["path"]).to_list()


def _frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, infer_schema_length=None)


def stages(trace: Trace) -> dict[str, tuple[str, str]]:
    """Return the stage and its source of each op, by the op's name."""
    return {
        str(name): (stage, source)
        for name, stage, source in trace.read("ops").select("name", "stage", "stage_source").rows()
    }


def iterations_of(trace: Trace) -> dict[str, int | None]:
    """Return the iteration of each op, by the op's name."""
    return dict(trace.read("ops").select(pl.col("name").cast(pl.String), "iteration").rows())


def steps(trace: Trace) -> list[tuple[int, int, int, int]]:
    """Return ``process, iteration, start, end`` of each iteration, in order."""
    columns = ("process", "iteration", "start", "end")
    return trace.read("iterations").select(columns).rows()
