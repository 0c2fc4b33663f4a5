"""Write what every command prints of some runs, in every format, to compare two versions.

    python benchmarks/outputs.py write before --store STORE
    python benchmarks/outputs.py write after --store STORE       # with the other version
    python benchmarks/outputs.py compare before after

With `--only REGEX` those commands alone are written, with `--formats table,json` those formats;
what only the first folder holds is no difference then. Beside the JSON of an answer are its
figures, as JSON too; a report is the page.

The runs are those of the store, which both versions have to open. Each output is one file; a
comparison lists those that differ and ends with 1 if any does.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import io
import itertools
import os
import re
import shlex
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from typer.main import get_command

from tracekit import Answer, Store
from tracekit.cli import _command, app
from tracekit.runs import DECLARED

WIDTH = 100
FORMATS = ("table", "json", "csv", "markdown")
OF_RUN = [
    *(f"breakdown RUN --by {key}" for key in (
        "stage", "kind,device", "kernel", "range", "layer", "stream", "rank,node", "iteration",
        "stage,iteration",
    )),
    "breakdown RUN --per-iteration",
    "breakdown RUN --by kernel --per-iteration --skip 1",
    "breakdown RUN --by range --inclusive",
    "breakdown RUN --by range --depth 2",
    "breakdown RUN --as inference",
    *(f"idle RUN --by {key}" for key in ("cause", "stage,cause", "iteration", "rank", "range")),
    "idle RUN --longest 5",
    "breakdown RUN --by range,kernel --inclusive",
    "breakdown RUN --by kernel --where mean>10us --sort ops --top 5 --full-names",
    "diagnose RUN",
    "diagnose RUN --all",
    *(f"stragglers RUN --by {key}" for key in ("rank", "iteration")),
    *(f"critical-path RUN --by {key}" for key in ("cause", "stage,cause", "kernel")),
    "critical-path RUN --kernels 5",
    *(f"flops RUN --by {key}" for key in ("operator", "layer", "iteration")),
    *(f"roofline RUN --by {key}" for key in ("operator", "stage")),
    "whatif RUN --speed gemm=2x --stage bp=1.5x --overlap --no-sync --loader 2x",
    *(f"links RUN --by {key}" for key in ("link", "pair,method", "route", "stage", "iteration")),
    "links RUN --counters",
    "links RUN --by method --parameters 60M --bytes all_reduce=25MB",
    "collectives RUN",
    "collectives RUN --by collective,stage,rank",
    "latency RUN",
    "latency RUN --buckets class --measure span",
    *(f"latency RUN --what {what}" for what in ("histogram", "pointer-queries", "staging")),
    *(f"memory RUN --what {what}" for what in ("use", "extra", "growth")),
    "memory RUN --what largest-batch --capacity 16GiB",
    "study RUN",
    "scaling RUN --images 256K",
    "overhead RUN",
    "overhead RUN --api",
    "overhead RUN --profiler",
    "stalls RUN",
    "bubbles RUN",
    "project RUN",
    "info RUN",
    "info RUN --stages",
    "info RUN --clocks",
    "runs show RUN",
    "topology show RUN",
    "topology check RUN",
    "report RUN",
]  # fmt: skip
OF_RUN += [
    f"{name} RUN" for name in (
        each.replace("_", "-") for each, told in DECLARED.items() if not told.is_of_files
    )
    if not any(line.startswith(f"{name} ") for line in OF_RUN)
]  # fmt: skip
OF_PAIR = [
    *(f"compare RUN OTHER --by {key}" for key in (
        "stage", "step", "kind", "kernel", "range", "device,rank", "collective", "api", "link",
        "memory", "cause",
    )),
    "compare RUN OTHER --skip 1 --anyway --match-names",
    "compare RUN OTHER --fail-above 5%",
    "gate RUN OTHER --step 5%",
    "latency RUN --against OTHER",
    "study RUN OTHER",
    "scaling RUN OTHER",
    "overhead RUN OTHER",
    "stalls RUN OTHER",
    "bubbles RUN OTHER",
    "report RUN --against OTHER",
]  # fmt: skip
OF_STORE = [
    "runs", "runs check", "study", "study dgx1", "scaling", "overhead", "topology list",
    "topology show dgx1v --what routes",
    'sql @latest "SELECT kind, count(*) AS n FROM ops GROUP BY kind ORDER BY kind"', "nonsense",
    "record --study dgx1",
    *(f"{each} --help" for each in ("", "study dgx1", *get_command(app).commands)),
    "hang sample_traces/hang/gloo_trace_rank_0", "straggler-cost nowhere.csv",
    "nccl-inspector sample_traces/nccl_inspector",
]  # fmt: skip


DRAWN: list[Answer] = []
"""What the command that runs has answered."""


class _Terminal(io.TextIOWrapper):
    """A standard output that passes for a terminal."""

    def isatty(self) -> bool:
        return True


def outputs(store: Path) -> list[str]:
    """Return the commands, without their formats."""
    names = sorted(run.name for run in Store.discover(store).runs())
    told = [line.replace("RUN", name) for name in names for line in OF_RUN]
    pairs = itertools.pairwise(names)
    told += [line.replace("RUN", a).replace("OTHER", b) for a, b in pairs for line in OF_PAIR]
    return [*told, *OF_STORE]


def write(folder: Path, store: Path, only: str, formats: str) -> None:
    """Write one file per command and format."""
    folder.mkdir(parents=True)
    os.environ.update(TRACEKIT_STORE=str(store), COLUMNS=str(WIDTH), LINES="50")
    told = [
        line if form is None else f"{line} --format {form}"
        for line in outputs(store)
        for form in (formats.split(",") if _has_formats(line) else (None,))
    ]
    told = [line for line in told if re.search(only, line)]
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(_write_one, told, itertools.repeat(folder), chunksize=16))


def _has_formats(line: str) -> bool:
    return "--help" not in line and line != "nonsense" and not line.startswith("report ")


def _write_one(line: str, folder: Path) -> None:
    raw = io.BytesIO()
    out, error = _Terminal(raw, "utf-8", write_through=True), io.StringIO()
    code: object = 0
    name = re.sub(r"[^A-Za-z0-9_.,-]+", " ", line).strip()[:200]
    words = shlex.split(line)
    here = Path()
    if words[0] == "report" and "--help" not in words:
        here = folder  # so that what is said of the page is the same in every folder
        words += ["--output", f"{name}.html"]
    DRAWN.clear()
    vars(_command)["_draw"] = lambda answer, _wanted: DRAWN.append(answer)
    # Back again, as other commands name files from here.
    with (
        contextlib.chdir(here),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(error),
    ):
        try:
            app(words, prog_name="tracekit")
        except SystemExit as stop:
            code = stop.code
    text = f"{line}\nexit {code}\n{error.getvalue()}\n".encode()
    (folder / name).write_bytes(text + raw.getvalue())
    if line.endswith("--format json"):
        for answer in DRAWN:
            for figure in answer.figures:
                (folder / f"{name} {figure}.figure").write_text(_drawn(answer, figure))


def _drawn(answer: Answer, figure: str) -> str:
    try:
        return str(answer.figure(figure).to_json())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is to stay as it is
        return repr(error)


def compare(before: Path, after: Path) -> int:
    """List what differs, and return how many outputs do."""
    names = sorted(path.name for path in after.iterdir())
    different = [
        name for name in names
        if not (before / name).exists()
        or not filecmp.cmp(before / name, after / name, shallow=False)
    ]  # fmt: skip
    print(*different, sep="\n")
    print(f"{len(different)} of {len(names)} outputs differ", file=sys.stderr)
    return len(different)


def main() -> int:
    """Run the command line of this script."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    writing.add_argument("folder", type=Path)
    writing.add_argument("--store", type=Path, required=True)
    writing.add_argument("--only", default="")
    writing.add_argument("--formats", default=",".join(FORMATS))
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "write":
        write(given.folder.resolve(), given.store.resolve(), given.only, given.formats)
        return 0
    return min(1, compare(given.before, given.after))


if __name__ == "__main__":
    sys.exit(main())
