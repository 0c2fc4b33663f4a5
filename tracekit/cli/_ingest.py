"""`tracekit ingest`: make runs of trace files."""

import re
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import tracekit
from tracekit import model
from tracekit import store as stores
from tracekit.cli._command import Judged, command
from tracekit.cli._guard import complain
from tracekit.cli._options import (
    IterationOption,
    Label,
    RulesOption,
    StepOption,
    VerdictOption,
    rows_frame,
)
from tracekit.cli._progress import progress_bar, progress_bars
from tracekit.errors import InputError, TracekitError, UsageError
from tracekit.support.columns import columns
from tracekit.support.quantities import parse_duration
from tracekit.support.questions import MANY, Folder, Option
from tracekit.support.schemas import Json, one

if TYPE_CHECKING:
    import tracekit
    from tracekit.model import GivenClock

_MOST_DRIFT = 10_000
"""Largest drift allowed, parts per million: computer clocks drift by tens, and are corrected by at
most 500."""


_STATUS = "^(ingested(, renamed from .*)?$|already in the store(, renamed from .*)?$|skipped: )"
_JSON = Json(
    "ingest",
    run="text or null: Name of the run; null where several runs were asked for or none could be "
    "made.",
    rows={
        **columns("name"),
        "id": "id or null: Id of the run; null for a skipped report, as all that follows the "
        "status.",
        "file": "text: The file, as it was given; of a run of several reports all that are in it, "
        "separated by commas.",
        "status": {
            **one("text: Whether the run is new, or why the report is not in it."),
            "pattern": _STATUS,
        },
        **columns("labels", "devices"),
        "gpus": "text or null: Product names of the devices.",
        "processes": "count or null: Number of processes.",
        **columns("ops"),
        "kernels": "count or null: Number of ops that are kernels.",
        "ranges": "count or null: Number of NVTX ranges.",
        **columns("iterations", "verdict", "launched", "coverage", "warnings"),
    },
)


@command(
    "tracekit ingest trace.sqlite",
    "tracekit ingest before.sqlite after.sqlite --label model=unet --label gpus=4",
    "tracekit ingest decode.pt.trace.json --capture capture.pt.trace.json",
    "tracekit ingest rank*.sqlite --run unet --processes 4",
    "tracekit ingest rank*.sqlite --run unet --dask tcp://head:8786 --on-error skip",
    rows=False,
    writes=[_JSON],
)
def ingest(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Trace files.")],
    *,
    name: Annotated[
        str | None,
        Option("Name of the run; only with one file. Default: the file's."),
    ] = None,
    label: Label = None,
    rules: RulesOption = None,
    iteration: IterationOption = None,
    verdict: VerdictOption = None,
    step: StepOption = None,
    memory: Annotated[
        int | None,
        Option(
            "How much memory to use on a machine. Default: 4GiB, or what is free if less.",
            "SIZE",
            unit="bytes",
        ),
    ] = None,
    nsys: Annotated[
        str | None,
        Option(
            "The nsys that exports .nsys-rep files. Default: TRACEKIT_NSYS, or the installed.",
            "PATH",
        ),
    ] = None,
    capture: Annotated[
        list[Path] | None,
        Option(
            "PyTorch trace of the capture of the CUDA graphs that FILE replays; may be given "
            "several times.",
            "FILE",
        ),
    ] = None,
    tiles: Annotated[
        bool, Option("Make what `tracekit view` opens with now, not at first view.")
    ] = False,
    store: Folder = None,
    run: Annotated[
        str | None,
        Option(
            "Make one run of all files, the reports of its ranks or nodes, under this name.",
            "NAME",
            panel=MANY,
        ),
    ] = None,
    processes: Annotated[
        int | None,
        Option(
            "How many reports to read at once. Default: as many as there are cores.",
            "N",
            least=1,
            panel=MANY,
        ),
    ] = None,
    dask: Annotated[
        str | None,
        Option(
            "Read the reports on the Dask cluster of this scheduler, such as tcp://host:8786.",
            "ADDRESS",
            panel=MANY,
        ),
    ] = None,
    clock: Annotated[
        list[str] | None,
        Option(
            "Correction of a report's clock, such as rank3=+1.5ms, which is added to the offset "
            "by recorded session starts; or rank3=+1.5ms,20ppm@10s: 1.5 ms at 10 s of its time, "
            "and 20 us more each second. Default: as found by ingest; see info --clocks.",
            "WHO=OFFSET[,DRIFT@TIME]",
            panel=MANY,
        ),
    ] = None,
    force: Annotated[
        bool,
        Option(
            "Join reports into one run despite signs that they are of different jobs.", panel=MANY
        ),
    ] = False,
    on_error: Annotated[
        Literal["stop", "skip"] | None,
        Option(
            "Stop at a report that cannot be read or is of another job, or skip it. Default: stop.",
            panel=MANY,
        ),
    ] = None,
) -> Judged:
    """Make a run of each trace file, or with --run one run of all of them.

    Reads the files, finds the stage of every op, and stores the result. If the store already has a
    file of the same content, that file is not read again.
    """
    options = {
        "labels": label or {},
        "rules": rules,
        "iteration": iteration,
        "verdict": verdict,
        "step": step,
        "store": store,
        "memory": memory,
        "nsys": nsys,
        "captures": capture or [],
    }
    asked = {"--processes": processes, "--dask": dask, "--clock": clock, "--force": force,
             "--on-error": on_error}  # fmt: skip
    if capture and len(files) > 1:
        raise UsageError("--capture is of one file", "ingest files with captures one by one")
    _check_names(files, name, run, [option for option, value in asked.items() if value])
    if run is not None:
        many = {"processes": processes, "dask": dask, "clocks": _clocks(clock or []),
                "force": force}  # fmt: skip
        rows, code = _ingest_run(files, run, on_error or "stop", options | many), 0
    else:
        rows, code = _ingest_all(files, options | {"name": name})
    if tiles:
        from tracekit.view import keep_tiles

        for each in {row["name"] for row in rows}:
            keep_tiles(tracekit.open(each, store=store))
    only = rows[0]["name"] if rows and (run or len(files) == 1) else None
    answer = model.Answer(
        rows=rows_frame(rows), run=only, empty="", as_records=True, command="ingest"
    )
    return Judged(answer, code)


def _check_names(files: list[Path], name: str | None, run: str | None, asked: list[str]) -> None:
    if name is not None and run is not None:
        raise UsageError("--name and --run both name the run", "give --run alone")
    if name is not None and len(files) > 1:
        raise UsageError(
            f"--name {name!r} cannot name {len(files)} files",
            "make one run of them with --run, or ingest them one by one to name them",
        )
    if asked and run is None:
        raise UsageError(
            f"{asked[0]} is for one run of many reports", "name that run with --run NAME"
        )


def _clocks(asked: list[str]) -> "dict[str, GivenClock]":
    """Return the clock correction of each report: name -> correction."""
    found: dict[str, GivenClock] = {}
    for text in asked:
        who, _, clock = text.rpartition("=")
        if not who or who in found:
            raise UsageError(f"the clock {text!r} names no report, or one that has another clock",
                             "give each once, as in --clock rank3=+1.5ms")  # fmt: skip
        found[who] = _clock(clock)
    return found


def _clock(text: str) -> "GivenClock":
    """Return the correction written as ``+1.5ms``, ``20ppm@10s``, or ``+1.5ms,20ppm@10s``."""
    offset, comma, drift = text.rpartition(",")
    found = re.fullmatch(r"\s*([+-]?[0-9]+(?:\.[0-9]+)?)\s*ppm\s*(?:@(.*))?", drift.lower())
    if found is None and not comma:
        return parse_duration(text)
    by = Decimal(found[1]) if found else Decimal("Infinity")
    if found is None or abs(by) > _MOST_DRIFT:
        raise UsageError(f"cannot read the clock drift {drift!r}",
                         f"write it as 20ppm@10s, of at most {_MOST_DRIFT:,} ppm")  # fmt: skip
    since = parse_duration(found[2]) if found[2] else 0
    return parse_duration(offset) if comma else 0, float(by / 1_000_000), since


def _ingest_run(
    files: list[Path], name: str, on_error: str, options: dict[str, Any]
) -> list[dict[str, Any]]:
    """Make one run of all files; return its row, and a row for each skipped file."""
    skipped: dict[Path, str] = {}

    def skip(file: Path, error: InputError) -> None:
        skipped[file] = str(error)

    names = _names(options["store"])
    try:
        with progress_bars(name) as (progress, report_progress):
            made, is_new = tracekit.ingest(
                files,
                name=name,
                progress=progress,
                report_progress=report_progress,
                on_error=skip if on_error == "skip" else "stop",
                **options,
            )
    finally:
        # Below the bars, which are gone by now.
        for why in skipped.values():
            complain(f"skipped: {why}")
    kept = ", ".join(str(file) for file in files if file not in skipped)
    row = _row(kept, made, is_new=is_new, before=names.get(made.id))
    nothing: dict[str, Any] = {
        key: [] if isinstance(value, list) else None for key, value in row.items()
    }
    return [
        row,
        *(
            nothing | {"name": made.name, "file": str(file), "status": f"skipped: {why}"}
            for file, why in skipped.items()
        ),
    ]


def _ingest_all(files: list[Path], options: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """Make a run of each file; a file that cannot be read is reported and left out."""
    rows, code = [], 0
    names = _names(options["store"])
    for file in files:
        try:
            with progress_bar(file) as progress:
                run, is_new = tracekit.ingest(file, progress=progress, **options)
        except TracekitError as error:
            complain(str(error))
            code = error.exit_code
            if not isinstance(error, InputError):
                break
        else:
            rows.append(_row(str(file), run, is_new=is_new, before=names.get(run.id)))
    return rows, code


def _names(store: Path | None) -> dict[str, str]:
    """Return the names of the store's runs: id -> name; empty if it is no store."""
    with suppress(TracekitError):
        return {record.id: record.name for record in stores.Store.discover(store).runs()}
    return {}


def _row(file: str, run: "tracekit.Run", *, is_new: bool, before: str | None) -> dict[str, Any]:
    """Return the row of the answer for a run; `before` is its earlier name if the store had it."""
    renamed = f", renamed from {before!r}" if before not in (None, run.name) else ""
    return {
        "name": run.name,
        "id": run.id,
        "file": file,
        "status": f"{'ingested' if is_new else 'already in the store'}{renamed}",
        "labels": [f"{key}={value}" for key, value in run.labels.items()],
        **run.record.summary,
        "warnings": list(run.warnings),
    }
